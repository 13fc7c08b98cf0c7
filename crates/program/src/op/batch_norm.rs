//! Batch normalisation, with what follows it in a residual network.

use super::Op;
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// What a batch-norm does after normalising.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// Nothing.
    Linear,
    /// ReLU.
    Relu,
    /// Add a second operand, then ReLU (the end of a residual block).
    AddRelu,
}

/// Batch normalisation over the rows of `x: [rows, channels]`, in training mode.
///
/// `batch_norm_stats`: `x → stats` (`[2, channels]`: mean, biased variance);
/// `batch_norm`: `x, stats, gamma, beta [, residual] → y`;
/// `batch_norm_update`: `stats, running_mean*, running_var*, batches*` (`batches` is `i64[1]`; the
/// running variance takes the unbiased one), may run once;
/// `batch_norm_dx`: `x, stats, gamma [, beta if Relu] [, y if AddRelu], dy [, dy2] →
/// dx, dgamma, dbeta [, dresidual if AddRelu]`. The gradient of `y` is `dy` or `dy + dy2`.
/// `Relu` recomputes its mask from `x` with the very arithmetic of the forward kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Pixels of all images.
    pub rows: usize,
    /// Channels.
    pub channels: usize,
    /// Added to the variance.
    pub eps: f32,
    /// What follows.
    pub tail: Tail,
}

/// What a batch-norm reads and updates besides the data.
#[derive(Clone, Debug)]
pub struct BatchNormState {
    /// The scale of each channel.
    pub gamma: Var,
    /// The shift of each channel.
    pub beta: Var,
    /// The running mean of each channel.
    pub running_mean: Var,
    /// The running variance of each channel.
    pub running_var: Var,
    /// How many batches went into them: `i64[1]`.
    pub batches: Var,
    /// Added to the variance.
    pub eps: f32,
    /// The share of the new batch in the running statistics.
    pub momentum: f32,
}

/// What follows a batch-norm, fused into it.
#[derive(Clone, Copy, Debug)]
pub enum Then<'a> {
    /// Nothing.
    Nothing,
    /// ReLU.
    Relu,
    /// Add this, then ReLU.
    AddRelu(&'a Var),
}

impl Then<'_> {
    fn tail(self) -> Tail {
        match self {
            Then::Nothing => Tail::Linear,
            Then::Relu => Tail::Relu,
            Then::AddRelu(_) => Tail::AddRelu,
        }
    }
}

impl Builder {
    /// Normalises each channel of `x` by the statistics of the batch, and updates the running ones.
    ///
    /// # Errors
    /// If the shapes do not agree, or the batch has a single row: it has no variance.
    pub fn batch_norm(
        &mut self,
        name: &str,
        x: &Var,
        state: &BatchNormState,
        then: Then<'_>,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let channels = x.cols();
        self.expect_type(&name, "x", x, DType::F32)?;
        let of_channels = [
            ("gamma", &state.gamma),
            ("beta", &state.beta),
            ("running_mean", &state.running_mean),
            ("running_var", &state.running_var),
        ];
        for (operand, var) in of_channels {
            self.expect_shape(&name, operand, var, &[channels])?;
        }
        self.expect_type(&name, "batches", &state.batches, DType::I64)?;
        if let Then::AddRelu(residual) = then {
            self.expect_shape(&name, "residual", residual, x.shape())?;
        }
        if x.rows() < 2 {
            return Err(ProgramError::Argument {
                node: name,
                what: "number of values per channel",
                expected: "at least 2; use a larger batch or image".into(),
                found: x.rows().to_string(),
            });
        }
        let norm = BatchNorm {
            rows: x.rows(),
            channels,
            eps: state.eps,
            tail: then.tail(),
        };
        self.batch_norm_nodes(name, x, state, then, norm)
    }

    fn batch_norm_nodes(
        &mut self,
        name: String,
        x: &Var,
        state: &BatchNormState,
        then: Then<'_>,
        norm: BatchNorm,
    ) -> Result<Var, ProgramError> {
        let op = Op::BatchNormStats(norm);
        let stats = self.forward_one(format!("{name}.stats"), op, &[x], vec![2, norm.channels])?;
        let op = Op::BatchNormUpdate {
            norm,
            momentum: state.momentum,
        };
        let reads = [
            &stats,
            &state.running_mean,
            &state.running_var,
            &state.batches,
        ];
        self.forward(format!("{name}.update"), op, &reads, vec![])?;
        let mut reads = vec![x, &stats, &state.gamma, &state.beta];
        if let Then::AddRelu(residual) = then {
            reads.push(residual);
        }
        self.forward_one(name, Op::BatchNorm(norm), &reads, x.shape().to_vec())
    }
}

impl BatchNorm {
    pub(crate) fn gradient(self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let [x, stats, gamma, beta] = [0, 1, 2, 3].map(|k| rule.read(k));
        let mut reads = vec![x, stats, gamma];
        let mut like = vec![x, gamma, beta];
        match self.tail {
            Tail::Linear => {}
            Tail::Relu => reads.push(beta),
            Tail::AddRelu => {
                reads.push(rule.write(0));
                like.push(rule.read(4));
            }
        }
        reads.extend_from_slice(rule.gradients(0));
        let written = rule.emit("dx", Op::BatchNormDx(self), reads, &like)?;
        rule.give(2, written[1])?;
        rule.give(3, written[2])?;
        if self.tail == Tail::AddRelu {
            rule.give(4, written[3])?;
        }
        rule.give(0, written[0])
    }
}
