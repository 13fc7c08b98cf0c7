//! Updates of parameters.

/// `sgd`: `param*, grad [, momentum*]`, as PyTorch's SGD with dampening 0. May run once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Elements.
    pub len: usize,
    /// Learning rate.
    pub learning_rate: f32,
    /// Momentum; a buffer is kept if it is not zero.
    pub momentum: f32,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f32,
}

/// `adam`: `param*, grad, first*, second*`, as PyTorch's Adam (or AdamW if `decoupled`), without
/// amsgrad. The step count of the bias correction is the run's step, from 1. May run once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Elements.
    pub len: usize,
    /// Learning rate.
    pub learning_rate: f32,
    /// Decay of the first moment; in double, since `1 - beta` loses digits that PyTorch keeps.
    pub beta1: f64,
    /// Decay of the second moment; in double as well.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Weight decay.
    pub weight_decay: f32,
    /// Decay the weight itself (AdamW) and not the gradient.
    pub decoupled: bool,
}
