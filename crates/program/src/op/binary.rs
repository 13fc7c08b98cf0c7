//! Functions of two numbers, with operands that are repeated along axes where they have extent one.
//!
//! Axes along which both operands behave alike are joined, so that a bias on rows, a factor for
//! each channel of an image and a mask for all heads are two or three axes to a kernel.

use rekindle_graph::StorageId;

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Reduce, Scale, Shapes};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pair {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`.
    Div,
    /// `a` where `b` is not zero, else zero; no gradient for `b`.
    Keep,
    /// One where `a = b`, else zero; no gradient.
    Equal,
    /// One where `a < b`, else zero; no gradient.
    Less,
}

/// `binary`: `a, b → y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binary {
    /// The extents of `y`, with ones in front.
    pub shape: [usize; Binary::AXES],
    /// Along which axes `a` is repeated: there it has extent one.
    pub repeats_a: [bool; Binary::AXES],
    /// Along which axes `b` is repeated.
    pub repeats_b: [bool; Binary::AXES],
    /// What is made of each pair.
    pub pair: Pair,
}

impl Binary {
    /// The most axes, after those are joined that both operands see alike.
    pub const AXES: usize = 6;
}

/// A shape as joined axes: each an extent, and whether `a` and `b` are repeated along it.
type Joined = Vec<(usize, [bool; 2])>;

impl Builder {
    /// `pair` of each element of `a` and the one of `b` that belongs to it. Shapes are aligned at
    /// their last axes; where one operand has extent one or no axis, it is repeated.
    ///
    /// # Errors
    /// If the shapes cannot be aligned.
    pub fn binary(
        &mut self,
        name: &str,
        pair: Pair,
        a: &Var,
        b: &Var,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "a", a, DType::F32)?;
        self.expect_type(&name, "b", b, DType::F32)?;
        let unfit = |what: String| ProgramError::Shape {
            node: name.clone(),
            operand: "b",
            expected: what,
            found: b.shape().to_vec(),
        };
        let Some(shape) = broadcast(a.shape(), b.shape()) else {
            return Err(unfit(format!("equal to {:?} or one, axis by axis", a.shape())));
        };
        let joined = join(&shape, a.shape(), b.shape());
        if joined.len() > Binary::AXES {
            return Err(unfit(format!("repeated along fewer axes of {:?}", a.shape())));
        }
        let mut op = Binary {
            shape: [1; Binary::AXES],
            repeats_a: [false; Binary::AXES],
            repeats_b: [false; Binary::AXES],
            pair,
        };
        let first = Binary::AXES - joined.len();
        for (axis, &(extent, [in_a, in_b])) in (first..).zip(&joined) {
            op.shape[axis] = extent;
            op.repeats_a[axis] = in_a;
            op.repeats_b[axis] = in_b;
        }
        self.forward_one(name, op, &[a, b], shape)
    }
}

/// The shape to which both are repeated, if they can be.
fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[usize], axis: usize| {
        (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis])
    };
    let extents = (0..rank).map(|axis| match (extent(a, axis), extent(b, axis)) {
        (a, b) if a == b || b == 1 => Some(a),
        (1, b) => Some(b),
        _ => None,
    });
    extents.collect()
}

fn join(shape: &[usize], a: &[usize], b: &[usize]) -> Joined {
    let mut joined = Joined::new();
    for (axis, &extent) in shape.iter().enumerate() {
        if extent == 1 {
            continue;
        }
        let repeated = [a, b]
            .map(|of| (axis + of.len()).checked_sub(shape.len()).is_none_or(|axis| of[axis] == 1));
        match joined.last_mut() {
            Some((last, before)) if *before == repeated => *last *= extent,
            _ => joined.push((extent, repeated)),
        }
    }
    joined
}

impl Operation for Binary {
    const FACTS: Facts<Binary> = Facts {
        name: "binary",
        shapes: |op| {
            let [a, b] = [op.repeats_a, op.repeats_b].map(|repeats| op.operand_len(&repeats));
            Shapes::f32([a, b], [op.shape.iter().product()])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(Binary::gradient),
    };
}

impl Binary {
    fn operand_len(&self, repeats: &[bool; Binary::AXES]) -> usize {
        let own = self.shape.iter().zip(repeats).filter(|(_, repeated)| !**repeated);
        own.map(|(extent, _)| extent).product()
    }

    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let (dy, wants) = (rule.dy(), [rule.wants(0), rule.wants(1)]);
        match self.pair {
            Pair::Add | Pair::Sub => {
                if wants[0] {
                    self.give_summed(rule, 0, dy)?;
                }
                if wants[1] {
                    self.give_second(rule, dy)?;
                }
            }
            Pair::Mul => {
                // What is smaller comes first, so that the larger factor can be freed before its
                // own gradient is made.
                for k in [1, 0] {
                    if wants[k] {
                        self.give_product(rule, k)?;
                    }
                }
            }
            Pair::Div => {
                if wants[1] {
                    let (y, b) = (rule.write(0), rule.read(1));
                    let plain = self.with(Pair::Mul, [false; Binary::AXES]);
                    let product = rule.emit("dy_y", plain, vec![dy, y], &[y])?[0];
                    let over = self.with(Pair::Div, self.repeats_b);
                    let quotient = rule.emit("dy_y_b", over, vec![product, b], &[y])?[0];
                    self.give_negated(rule, quotient)?;
                }
                if wants[0] {
                    let over = self.with(Pair::Div, self.repeats_b);
                    let (b, y) = (rule.read(1), rule.write(0));
                    let da = rule.emit("dy_b", over, vec![dy, b], &[y])?[0];
                    self.give_summed(rule, 0, da)?;
                }
            }
            Pair::Keep => {
                if wants[0] {
                    let kept = self.with(Pair::Keep, self.repeats_b);
                    let (b, y) = (rule.read(1), rule.write(0));
                    let da = rule.emit("kept", kept, vec![dy, b], &[y])?[0];
                    self.give_summed(rule, 0, da)?;
                }
            }
            Pair::Equal | Pair::Less => {}
        }
        Ok(())
    }

    /// The same extents with a whole first operand and a second one that is so repeated.
    fn with(&self, pair: Pair, repeats_b: [bool; Binary::AXES]) -> Binary {
        Binary { repeats_a: [false; Binary::AXES], repeats_b, pair, ..*self }
    }

    fn repeats(&self, k: usize) -> &[bool; Binary::AXES] {
        [&self.repeats_a, &self.repeats_b][k]
    }

    /// The gradient of the second operand of a sum or a difference.
    fn give_second(&self, rule: &mut Rule<'_>, dy: StorageId) -> Result<(), ProgramError> {
        match self.pair {
            Pair::Sub => self.give_negated(rule, dy),
            _ => self.give_summed(rule, 1, dy),
        }
    }

    /// Gives the second operand the negative of `full`, summed where it is repeated.
    fn give_negated(&self, rule: &mut Rule<'_>, full: StorageId) -> Result<(), ProgramError> {
        let len = self.operand_len(&self.repeats_b);
        let summed = self.summed(rule, 1, full)?;
        rule.emit_for(1, "db", Scale { len, factor: -1.0 }, vec![summed])
    }

    /// Gives operand `k` the gradient `full` of the whole shape, summed where it is repeated.
    fn give_summed(
        &self,
        rule: &mut Rule<'_>,
        k: usize,
        full: StorageId,
    ) -> Result<(), ProgramError> {
        let summed = self.summed(rule, k, full)?;
        rule.give(k, summed)
    }

    fn summed(
        &self,
        rule: &mut Rule<'_>,
        k: usize,
        full: StorageId,
    ) -> Result<StorageId, ProgramError> {
        let sums = Reduce::steps(&self.shape, self.repeats(k));
        let mut sum = full;
        let last = sums.len();
        for (step, op) in sums.into_iter().enumerate() {
            let suffix = format!("sum{k}_{step}");
            sum = match step + 1 == last {
                true => rule.emit(&suffix, op, vec![sum], &[rule.read(k)])?[0],
                false => rule.emit_flat(&suffix, op, vec![sum])?,
            };
        }
        Ok(sum)
    }

    /// The gradient of factor `k`: `dy` times the other one, summed where it is repeated. Where
    /// the other is whole and one sum is enough, the product is never held.
    fn give_product(&self, rule: &mut Rule<'_>, k: usize) -> Result<(), ProgramError> {
        let (dy, other, y) = (rule.dy(), rule.read(1 - k), rule.write(0));
        let sums = Reduce::steps(&self.shape, self.repeats(k));
        let whole = self.repeats(1 - k).iter().all(|repeated| !repeated);
        if let ([sum], true) = (&sums[..], whole) {
            let op = Reduce { product: true, ..*sum };
            return rule.emit_for(k, &format!("d{k}"), op, vec![dy, other]);
        }
        let product = self.with(Pair::Mul, *self.repeats(1 - k));
        if sums.is_empty() {
            return rule.emit_for(k, &format!("d{k}"), product, vec![dy, other]);
        }
        let full = rule.emit(&format!("product{k}"), product, vec![dy, other], &[y])?[0];
        self.give_summed(rule, k, full)
    }
}

impl Binary {
    /// A function of two operands of `len` elements.
    pub(super) fn whole(len: usize, pair: Pair) -> Binary {
        let mut shape = [1; Binary::AXES];
        shape[Binary::AXES - 1] = len;
        let repeats = [false; Binary::AXES];
        Binary { shape, repeats_a: repeats, repeats_b: repeats, pair }
    }
}
