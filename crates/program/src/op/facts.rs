//! What everything but the kernel needs to know of an op: one [`Facts`] per op, in the file of its
//! family. Nothing has a default, so an op that leaves something out does not compile.
//!
//! The engine's part, kernel and scratch, is its trait `Kernel`: this crate computes nothing.

use rekindle_graph::Effect;

use crate::autodiff::Rule;
use crate::{DType, ProgramError};

/// An op with its facts.
pub(crate) trait Operation: Sized + 'static {
    /// The row of this op in the table of ops.
    const FACTS: Facts<Self>;
}

/// What an op is, as a function of its dimensions `T`.
pub(crate) struct Facts<T> {
    /// A short name, as reports show it.
    pub(crate) name: &'static str,
    /// The shape rule: what it reads and writes, in the order that the op documents.
    pub(crate) shapes: fn(&T) -> Shapes,
    /// What it does besides writing its results, which decides whether it may run again.
    pub(crate) effect: Effects<T>,
    /// Multiplications and additions of one run; zero for what only moves or maps elements.
    pub(crate) flops: fn(&T) -> u64,
    /// How gradients pass through it.
    pub(crate) derivative: Derivative<T>,
}

/// What a run of an op does besides writing its results.
pub(crate) enum Effects<T> {
    /// Nothing: the results depend on the reads alone.
    Pure,
    /// Nothing, but the results also depend on random numbers, which a second run draws again.
    Random,
    /// It overwrites these of its reads in place, or changes what is outside the program; so it
    /// may run only once.
    Once { updates: fn(&T) -> &'static [usize] },
}

impl<T> Effects<T> {
    /// As the planner sees it.
    pub(crate) fn of_graph(&self) -> Effect {
        match self {
            Effects::Pure => Effect::Pure,
            Effects::Random => Effect::Random,
            Effects::Once { .. } => Effect::Once,
        }
    }

    /// Which of the reads are overwritten in place.
    pub(crate) fn updates(&self, op: &T) -> &'static [usize] {
        match self {
            Effects::Pure | Effects::Random => &[],
            Effects::Once { updates } => updates(op),
        }
    }
}

/// A rule of differentiation: emits the backward nodes of one forward node.
type GradientRule<T> = fn(&T, &mut Rule<'_>) -> Result<(), ProgramError>;

/// How gradients pass through an op.
pub(crate) enum Derivative<T> {
    /// By this rule, which takes one gradient of each result.
    Rule(GradientRule<T>),
    /// By this rule, whose kernel adds up to two gradients of the first result itself.
    SumRule(GradientRule<T>),
    /// Not at all: no gradient can reach its results, another op's rule covers it, or it belongs
    /// to the backward pass or the optimizer, which are not differentiated.
    None,
}

impl<T> Derivative<T> {
    /// How many gradients of the first result the rule takes; none where no gradient passes.
    pub(crate) fn takes(&self) -> usize {
        match self {
            Derivative::Rule(_) => 1,
            Derivative::SumRule(_) => 2,
            Derivative::None => 0,
        }
    }

    /// Emits the backward nodes of the node that `rule` holds.
    pub(crate) fn apply(&self, op: &T, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        match self {
            Derivative::Rule(emit) | Derivative::SumRule(emit) => emit(op, rule),
            Derivative::None => unreachable!("`{}` got a gradient and has no rule", rule.node.name),
        }
    }
}

/// One operand: the type and the number of its elements. Its axes are the caller's affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The number of elements of each type.
pub enum Operand {
    F32(usize),
    I64(usize),
    U8(usize),
}

impl Operand {
    /// The operand that has `len` elements of this type.
    pub fn new(dtype: DType, len: usize) -> Operand {
        match dtype {
            DType::F32 => Operand::F32(len),
            DType::I64 => Operand::I64(len),
            DType::U8 => Operand::U8(len),
        }
    }
}

/// The operands of an op, in the order that it documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shapes {
    /// What it reads; what it updates in place is among them.
    pub reads: Vec<Operand>,
    /// What it writes.
    pub writes: Vec<Operand>,
}

impl Shapes {
    pub(crate) fn new<const R: usize, const W: usize>(
        reads: [Operand; R],
        writes: [Operand; W],
    ) -> Shapes {
        let (reads, writes) = (reads.into(), writes.into());
        Shapes { reads, writes }
    }

    /// Reads and results of `f32` elements, as most ops have.
    pub(crate) fn f32<const R: usize, const W: usize>(
        reads: [usize; R],
        writes: [usize; W],
    ) -> Shapes {
        Shapes::new(reads.map(Operand::F32), writes.map(Operand::F32))
    }

    /// The same with another `f32` operand at the end of the reads, if `is_read`.
    pub(crate) fn and_read(mut self, is_read: bool, len: usize) -> Shapes {
        self.reads.extend(is_read.then_some(Operand::F32(len)));
        self
    }
}
