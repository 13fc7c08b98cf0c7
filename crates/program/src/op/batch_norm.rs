//! Batch normalisation, with what follows it in a residual network.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Concat, Operand, Shapes, Split};
use crate::autodiff::Rule;
use crate::builder::wrong_shape;
use crate::{Builder, DType, ProgramError, Var};

/// What a batch-norm does after normalising.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// Nothing: the normalised value is the result.
    Linear,
    /// It applies ReLU.
    Relu,
    /// It adds a second operand and applies ReLU, as at the end of a residual block.
    AddRelu,
}

/// `batch_norm`: `x, stats, gamma, beta [, residual] → y` over the rows of `x: [rows, channels]`,
/// in training mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Pixels of all images.
    pub rows: usize,
    /// How many channels there are; each is normalised by itself.
    pub channels: usize,
    /// What is added to the variance, so that its root is never zero.
    pub eps: f32,
    /// What follows the normalisation.
    pub tail: Tail,
}

/// `batch_norm_stats`: `x → stats` (`[2, channels]`: mean, biased variance).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormStats(pub BatchNorm);

/// `batch_norm_update`: `stats, running_mean*, running_var*, batches*`. `batches` is `i64[1]`, and
/// the running variance takes the unbiased one. May run once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormUpdate {
    /// The batch-norm whose statistics these are.
    pub norm: BatchNorm,
    /// As PyTorch's: `running = (1 - momentum) · running + momentum · batch`.
    pub momentum: f32,
}

/// `batch_norm_dx`: `x, stats, gamma [, beta if Relu] [, y if AddRelu], dy [, dy2] →
/// dx, dgamma, dbeta [, dresidual if AddRelu]`. The gradient of `y` is `dy` or `dy + dy2`.
/// `Relu` recomputes its mask from `x` with the very arithmetic of the forward kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormDx {
    /// The batch-norm whose gradient this is.
    pub norm: BatchNorm,
    /// Whether the gradient of `y` comes in two summands.
    pub two: bool,
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
    /// What is added to the variance, so that its root is never zero.
    pub eps: f32,
    /// The share of the new batch in the running statistics.
    pub momentum: f32,
}

/// What follows a batch-norm, fused into it.
#[derive(Clone, Copy, Debug)]
pub enum Then<'a> {
    /// Nothing: the normalised value is the result.
    Nothing,
    /// ReLU.
    Relu,
    /// The addition of this, then ReLU.
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
    /// Normalises each channel of `x` by the statistics of the batch, and updates the running ones;
    /// where nothing is learned, by the running ones.
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
        if state.batches.len() != 1 {
            return Err(wrong_shape(&name, "batches", "[1]".into(), &state.batches));
        }
        if let Then::AddRelu(residual) = then {
            self.expect_shape(&name, "residual", residual, x.shape())?;
        }
        if x.rows() < 2 && !self.settings.inference {
            return Err(ProgramError::Argument {
                node: name,
                what: "number of values per channel",
                expected: "at least 2; use a larger batch or image".into(),
                found: x.rows().to_string(),
            });
        }
        let norm = BatchNorm { rows: x.rows(), channels, eps: state.eps, tail: then.tail() };
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
        let stats = match self.settings.inference {
            true => self.running_stats(&name, state)?,
            false => self.batch_stats(&name, x, state, norm)?,
        };
        let mut reads = vec![x, &stats, &state.gamma, &state.beta];
        if let Then::AddRelu(residual) = then {
            reads.push(residual);
        }
        self.forward_one(name, norm, &reads, x.shape().to_vec())
    }

    /// The statistics of the batch, which also move the running ones.
    fn batch_stats(
        &mut self,
        name: &str,
        x: &Var,
        state: &BatchNormState,
        norm: BatchNorm,
    ) -> Result<Var, ProgramError> {
        let op = BatchNormStats(norm);
        let stats = self.forward_one(format!("{name}.stats"), op, &[x], vec![2, norm.channels])?;
        let momentum = state.momentum;
        let op = BatchNormUpdate { norm, momentum };
        let reads = [&stats, &state.running_mean, &state.running_var, &state.batches];
        self.forward(format!("{name}.update"), op, &reads, vec![])?;
        Ok(stats)
    }

    /// The running statistics, as the batch-norm reads them.
    fn running_stats(&mut self, name: &str, state: &BatchNormState) -> Result<Var, ProgramError> {
        let cols = state.running_mean.len();
        let op = Concat(Split::even(1, 2, cols));
        let reads = [&state.running_mean, &state.running_var];
        self.forward_one(format!("{name}.stats"), op, &reads, vec![2, cols])
    }
}

impl Operation for BatchNormStats {
    const FACTS: Facts<BatchNormStats> = Facts {
        name: "batch_norm_stats",
        shapes: |BatchNormStats(norm)| Shapes::f32([norm.len()], [2 * norm.channels]),
        effect: Effects::Pure,
        flops: |_| 0,
        // The gradient through the statistics is part of the batch-norm's own rule.
        derivative: Derivative::None,
    };
}

impl Operation for BatchNorm {
    const FACTS: Facts<BatchNorm> = Facts {
        name: "batch_norm",
        shapes: |op| {
            let (len, c) = (op.len(), op.channels);
            Shapes::f32([len, 2 * c, c, c], [len]).and_read(op.tail == Tail::AddRelu, len)
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::SumRule(BatchNorm::gradient),
    };
}

impl Operation for BatchNormUpdate {
    const FACTS: Facts<BatchNormUpdate> = Facts {
        name: "batch_norm_update",
        shapes: |op| {
            let [stats, running] = [2, 1].map(|n| Operand::F32(n * op.norm.channels));
            Shapes::new([stats, running, running, Operand::I64(1)], [])
        },
        effect: Effects::Once { updates: |_| &[1, 2, 3] },
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl Operation for BatchNormDx {
    const FACTS: Facts<BatchNormDx> = Facts {
        name: "batch_norm_dx",
        shapes: |BatchNormDx { norm, two }| {
            let (len, c) = (norm.len(), norm.channels);
            let mut shapes = Shapes::f32([len, 2 * c, c], [len, c, c])
                .and_read(norm.tail == Tail::Relu, c)
                .and_read(norm.tail == Tail::AddRelu, len)
                .and_read(true, len)
                .and_read(*two, len);
            if norm.tail == Tail::AddRelu {
                shapes.writes.push(Operand::F32(len));
            }
            shapes
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl BatchNorm {
    /// How many elements `x` has.
    fn len(&self) -> usize {
        self.rows * self.channels
    }

    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
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
        let (norm, two) = (*self, rule.gradients(0).len() == 2);
        let written = rule.emit("dx", BatchNormDx { norm, two }, reads, &like)?;
        rule.give(2, written[1])?;
        rule.give(3, written[2])?;
        if self.tail == Tail::AddRelu {
            rule.give(4, written[3])?;
        }
        rule.give(0, written[0])
    }
}
