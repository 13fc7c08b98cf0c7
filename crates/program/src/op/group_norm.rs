//! Normalisation of groups of channels in each image; with one channel to a group, of instances.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// `group_norm`: `x, gamma, beta → y, stats` (`[batch, groups, 2]`: mean, reciprocal deviation)
/// for `x: [batch, pixels, channels]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// How many images there are.
    pub batch: usize,
    /// Pixels of each.
    pub pixels: usize,
    /// Channels of each pixel.
    pub channels: usize,
    /// Into how many groups they fall; the channels are a multiple of it.
    pub groups: usize,
    /// What is added to the variance, so that its root is never zero.
    pub eps: f32,
}

/// `group_norm_dx`: `x, stats, gamma, dy → dx, dgamma, dbeta`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNormDx(pub GroupNorm);

impl Builder {
    /// Normalises each of `groups` groups of channels in each image of `x: [n, …, channels]`.
    ///
    /// # Errors
    /// If the shapes do not agree, or the groups do not divide the channels.
    pub fn group_norm(
        &mut self,
        name: &str,
        x: &Var,
        [gamma, beta]: [&Var; 2],
        groups: usize,
        eps: f32,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let (batch, channels) = (x.shape().first().copied().unwrap_or(1), x.cols());
        self.expect_type(&name, "x", x, DType::F32)?;
        self.expect_shape(&name, "gamma", gamma, &[channels])?;
        self.expect_shape(&name, "beta", beta, &[channels])?;
        if groups == 0 || x.shape().len() < 2 || !channels.is_multiple_of(groups) {
            return Err(ProgramError::Argument {
                node: name,
                what: "groups",
                expected: format!("a divisor of the {channels} channels of a batch"),
                found: groups.to_string(),
            });
        }
        let pixels = x.len() / batch / channels;
        let op = GroupNorm { batch, pixels, channels, groups, eps };
        let y = (x.shape().to_vec(), DType::F32);
        let stats = (vec![batch, groups, 2], DType::F32);
        let mut vars = self.forward(name, op, &[x, gamma, beta], vec![y, stats])?;
        Ok(vars.swap_remove(0))
    }
}

impl Operation for GroupNorm {
    const FACTS: Facts<GroupNorm> = Facts {
        name: "group_norm",
        shapes: |op| {
            let (len, stats) = op.sizes();
            Shapes::f32([len, op.channels, op.channels], [len, stats])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(GroupNorm::gradient),
    };
}

impl Operation for GroupNormDx {
    const FACTS: Facts<GroupNormDx> = Facts {
        name: "group_norm_dx",
        shapes: |GroupNormDx(op)| {
            let (len, stats) = op.sizes();
            Shapes::f32([len, stats, op.channels, len], [len, op.channels, op.channels])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl GroupNorm {
    /// How many elements `x` and the statistics have.
    fn sizes(&self) -> (usize, usize) {
        (self.batch * self.pixels * self.channels, 2 * self.batch * self.groups)
    }

    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let [x, gamma, beta] = [0, 1, 2].map(|k| rule.read(k));
        let reads = vec![x, rule.write(1), gamma, rule.dy()];
        let written = rule.emit("dx", GroupNormDx(*self), reads, &[x, gamma, beta])?;
        rule.give(1, written[1])?;
        rule.give(2, written[2])?;
        rule.give(0, written[0])
    }
}
