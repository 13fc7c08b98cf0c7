//! Dropout.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};
use crate::{Builder, ProgramError, Var};

/// `dropout`: `x → y`: each element is zeroed with probability `p` and scaled by `1 / (1 - p)`
/// otherwise. The mask is a pure function of (seed, step, site, element), so the gradient is the
/// same op on `dy` with the same site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// How many elements there are.
    pub len: usize,
    /// The probability that an element is zeroed.
    pub p: f32,
    /// Which dropout of the program this is, counted from 0.
    pub site: u32,
}

impl Builder {
    /// Zeroes each element with probability `p`, and scales the others by `1 / (1 - p)`. If `p` is
    /// zero, or nothing is learned, this is `x` itself.
    ///
    /// # Errors
    /// If `p` is not in `[0, 1)`.
    pub fn dropout(&mut self, name: &str, x: &Var, p: f32) -> Result<Var, ProgramError> {
        if !(0.0..1.0).contains(&p) {
            return Err(ProgramError::Argument {
                node: self.scoped(name),
                what: "dropout probability",
                expected: "at least 0 and below 1".into(),
                found: p.to_string(),
            });
        }
        if p == 0.0 || self.settings.inference {
            return Ok(x.clone());
        }
        let (len, site) = (x.len(), self.sites);
        let y = self.map(name, Dropout { len, p, site }, x)?;
        self.sites += 1;
        Ok(y)
    }
}

impl Operation for Dropout {
    const FACTS: Facts<Dropout> = Facts {
        name: "dropout",
        shapes: |op| Shapes::f32([op.len], [op.len]),
        effect: Effects::Random,
        flops: |_| 0,
        // The same mask on the gradient.
        derivative: Derivative::Rule(|op, rule| rule.emit_for(0, "dx", *op, vec![rule.dy()])),
    };
}
