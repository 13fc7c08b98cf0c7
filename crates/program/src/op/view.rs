//! Windows on a tensor: slices, padding and repetition along its axes.
//!
//! Element `i` along an axis of the result is element `(start + i · step) / dilation` along that
//! axis of `x`; where this is no whole number or outside `x`, it is the filling. A slice has its
//! start and step; padding begins before the start; a step of zero repeats. What undoes a slice is
//! a window too: steps become dilation.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Reduce, Shapes};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// How a window goes along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// The extent of `x`.
    pub size: usize,
    /// The extent of the result.
    pub extent: usize,
    /// Where the first element is.
    pub start: isize,
    /// From one element to the next: positive, -1, or zero for a repetition.
    pub step: isize,
    /// Positions per element of `x`; one, but where a slice with steps is undone.
    pub dilation: usize,
}

/// `view`: `x → y`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// The axes, whole ones joined, with ones in front.
    pub axes: [Axis; View::AXES],
    /// What is where `x` is not.
    pub fill: f32,
}

impl Axis {
    /// All of an axis.
    pub fn whole(size: usize) -> Axis {
        Axis { size, extent: size, start: 0, step: 1, dilation: 1 }
    }

    /// An axis of extent one, repeated.
    pub fn repeated(extent: usize) -> Axis {
        Axis { size: 1, extent, start: 0, step: 0, dilation: 1 }
    }

    /// `extent` elements from `start` on; what is outside is filled.
    pub fn window(size: usize, start: isize, extent: usize) -> Axis {
        Axis { size, extent, start, step: 1, dilation: 1 }
    }

    fn is_whole(&self) -> bool {
        *self == Axis::whole(self.size)
    }

    /// Where element `i` of the result is, if it is anywhere.
    pub fn source(&self, i: usize) -> Option<usize> {
        let at = self.start + i as isize * self.step;
        let at = usize::try_from(at).ok()?;
        let found = at / self.dilation;
        (at.is_multiple_of(self.dilation) && found < self.size).then_some(found)
    }

    /// The window that undoes this one.
    fn undone(&self) -> Axis {
        let Axis { size, extent, start, step, dilation } = *self;
        debug_assert!(dilation == 1 && step != 0, "a window of the forward pass");
        match step {
            -1 => Axis { size: extent, extent: size, ..*self },
            _ => {
                let dilation = step.unsigned_abs();
                Axis { size: extent, extent: size, start: -start, step: 1, dilation }
            }
        }
    }
}

impl View {
    /// The most axes, after whole ones are joined.
    pub const AXES: usize = 6;

    /// `[outer, inner] → [outer, extent, inner]`.
    pub(super) fn repeat(outer: usize, extent: usize, inner: usize) -> View {
        let mut axes = [Axis::whole(1); View::AXES];
        axes[View::AXES - 3] = Axis::whole(outer);
        axes[View::AXES - 2] = Axis::repeated(extent);
        axes[View::AXES - 1] = Axis::whole(inner);
        View { axes, fill: 0.0 }
    }
}

impl Builder {
    /// The window on `x` that `axes` describe, one for each of its own. If all of them are whole,
    /// this is `x` itself.
    ///
    /// # Errors
    /// If there is not one for each axis, a window has a step or dilation that cannot be, or too
    /// many axes are not whole.
    pub fn view(
        &mut self,
        name: &str,
        x: &Var,
        axes: &[Axis],
        fill: f32,
    ) -> Result<Var, ProgramError> {
        if axes.iter().all(Axis::is_whole) && axes.len() == x.shape().len() {
            return Ok(x.clone());
        }
        let name = self.scoped(name);
        self.expect_type(&name, "x", x, DType::F32)?;
        let sizes = axes.iter().map(|axis| axis.size);
        let known = |axis: &Axis| {
            axis.dilation == 1
                && axis.step >= -1
                && (axis.step != 0 || (axis.size == 1 && axis.start == 0))
        };
        let mut joined: Vec<Axis> = Vec::new();
        for &axis in axes.iter().filter(|axis| **axis != Axis::whole(1)) {
            match joined.last_mut() {
                Some(last) if last.is_whole() && axis.is_whole() => {
                    *last = Axis::whole(last.size.saturating_mul(axis.size));
                }
                _ => joined.push(axis),
            }
        }
        if !sizes.eq(x.shape().iter().copied())
            || !axes.iter().all(known)
            || joined.len() > View::AXES
        {
            return Err(ProgramError::Argument {
                node: name,
                what: "window",
                expected: format!(
                    "one for each axis of {:?}, of step 1 or more, -1, or 0 on an extent of one, \
                     and at most {} that are not whole",
                    x.shape(),
                    View::AXES
                ),
                found: format!("{axes:?}"),
            });
        }
        let mut op = View { axes: [Axis::whole(1); View::AXES], fill };
        op.axes[View::AXES - joined.len()..].copy_from_slice(&joined);
        let shape = axes.iter().map(|axis| axis.extent).collect();
        self.forward_one(name, op, &[x], shape)
    }
}

impl Operation for View {
    const FACTS: Facts<View> = Facts {
        name: "view",
        shapes: |op| {
            let size = op.axes.iter().map(|axis| axis.size).product();
            Shapes::f32([size], [op.axes.iter().map(|axis| axis.extent).product()])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(View::gradient),
    };
}

impl View {
    /// What was repeated is summed first; then each window is undone.
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let repeated = self.axes.map(|axis| axis.step == 0 && axis.extent > 1);
        let undone = self.axes.map(|axis| match axis.step {
            0 => Axis::whole(1),
            _ => axis.undone(),
        });
        let sums = Reduce::steps(&self.axes.map(|axis| axis.extent), &repeated);
        let is_view = undone.iter().any(|axis| !axis.is_whole());
        let mut dy = rule.dy();
        for (step, sum) in sums.iter().enumerate() {
            let suffix = format!("sum{step}");
            dy = match step + 1 == sums.len() && !is_view {
                true => rule.emit(&suffix, *sum, vec![dy], &[rule.read(0)])?[0],
                false => rule.emit_flat(&suffix, *sum, vec![dy])?,
            };
        }
        match is_view {
            true => rule.emit_for(0, "dx", View { axes: undone, fill: 0.0 }, vec![dy]),
            false => rule.give(0, dy),
        }
    }
}
