//! Optimizers: the updates of parameters as nodes of the program.
//!
//! In: the gradients of a backward pass. Out: one node for each parameter that has one, placed
//! right after the last node that reads the parameter or its gradient. So a gradient dies as soon
//! as it is complete, and the step never holds all of them.

use rekindle_graph::{Phase, Role, StorageId};

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Op, Shapes};
use crate::{Builder, DType, Gradients, Init, Node, ProgramError};

/// How parameters follow their gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// PyTorch's SGD with dampening 0.
    Sgd(SgdOptions),
    /// PyTorch's Adam, or AdamW if the weight decay is decoupled.
    Adam(AdamOptions),
}

/// The settings of stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// How far a parameter moves along its gradient.
    pub learning_rate: f32,
    /// The share of the last movement that is kept; a buffer holds it if it is not zero.
    pub momentum: f32,
    /// The L2 penalty, which is added to the gradient.
    pub weight_decay: f32,
}

/// The settings of Adam and AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// How far a parameter moves.
    pub learning_rate: f32,
    /// Decay of the first moment; in double, since `1 - beta` loses digits that PyTorch keeps.
    pub beta1: f64,
    /// Decay of the second moment; in double as well.
    pub beta2: f64,
    /// What is added to the root of the second moment, so that nothing is divided by zero.
    pub eps: f32,
    /// How much of the parameter itself is taken off, in each step.
    pub weight_decay: f32,
    /// Whether the weight itself decays (AdamW) and not the gradient (Adam).
    pub decoupled: bool,
}

/// `sgd`: `param*, grad [, momentum*]`, as PyTorch's SGD with dampening 0. May run once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// How many elements the parameter has.
    pub len: usize,
    /// How they are updated.
    pub options: SgdOptions,
}

/// `adam`: `param*, grad, first*, second*`, as PyTorch's Adam or AdamW, without amsgrad. The step
/// count of the bias correction is the run's step, from 1. May run once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// How many elements the parameter has.
    pub len: usize,
    /// How they are updated.
    pub options: AdamOptions,
}

impl Operation for Sgd {
    const FACTS: Facts<Sgd> = Facts {
        name: "sgd",
        shapes: |op| Shapes::f32([op.len, op.len], []).and_read(op.options.momentum != 0.0, op.len),
        effect: Effects::Once {
            updates: |op| {
                if op.options.momentum == 0.0 { &[0] } else { &[0, 2] }
            },
        },
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl Operation for Adam {
    const FACTS: Facts<Adam> = Facts {
        name: "adam",
        shapes: |op| Shapes::f32([op.len; 4], []),
        effect: Effects::Once { updates: |_| &[0, 2, 3] },
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl Optimizer {
    /// SGD with momentum 0.9 and without weight decay.
    pub fn sgd(learning_rate: f32) -> Optimizer {
        Optimizer::Sgd(SgdOptions { learning_rate, momentum: 0.9, weight_decay: 0.0 })
    }

    /// Adam with PyTorch's defaults.
    pub fn adam(learning_rate: f32) -> Optimizer {
        Optimizer::Adam(AdamOptions {
            learning_rate,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
        })
    }

    /// AdamW with PyTorch's defaults.
    pub fn adamw(learning_rate: f32) -> Optimizer {
        Optimizer::Adam(AdamOptions {
            learning_rate,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
            decoupled: true,
        })
    }

    /// The update of a parameter of `len` elements.
    fn op(self, len: usize) -> Op {
        match self {
            Optimizer::Sgd(options) => Sgd { len, options }.into(),
            Optimizer::Adam(options) => Adam { len, options }.into(),
        }
    }

    /// What it remembers of each parameter, by the names of PyTorch's state.
    fn state(self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd(SgdOptions { momentum: 0.0, .. }) => &[],
            Optimizer::Sgd(_) => &["momentum"],
            Optimizer::Adam(_) => &["exp_avg", "exp_avg_sq"],
        }
    }
}

impl Builder {
    /// Adds the update of every parameter that has a gradient.
    ///
    /// # Errors
    /// If it was called before.
    pub fn optimize(
        &mut self,
        gradients: &Gradients,
        optimizer: Optimizer,
    ) -> Result<(), ProgramError> {
        let last = self.last_uses();
        // Each update with the node that it follows.
        let mut updates: Vec<(usize, Node)> = Vec::with_capacity(gradients.pairs().len());
        for &(parameter, gradient) in gradients.pairs() {
            let after = last[parameter.index()].max(last[gradient.index()]);
            updates.push((after, self.update(parameter, gradient, optimizer)?));
        }
        self.insert_nodes(updates)
    }

    /// The position of the last node that touches each tensor.
    fn last_uses(&self) -> Vec<usize> {
        let mut last = vec![0; self.tensors.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for tensor in node.reads.iter().chain(&node.writes) {
                last[tensor.index()] = at;
            }
        }
        last
    }

    /// The update of one parameter, with new tensors for its state.
    fn update(
        &mut self,
        parameter: StorageId,
        gradient: StorageId,
        optimizer: Optimizer,
    ) -> Result<Node, ProgramError> {
        let tensor = self.tensors[parameter.index()].clone();
        let mut reads = vec![parameter, gradient];
        for state in optimizer.state() {
            let name = format!("{}.{state}", tensor.name);
            let role = Role::OptimizerState;
            let state = self.source(name, &tensor.shape, DType::F32, role, Init::Zeros)?;
            reads.push(state.tensor());
        }
        Ok(Node {
            name: format!("{}.update", tensor.name),
            op: optimizer.op(tensor.len()),
            phase: Phase::Optimizer,
            reads,
            writes: vec![],
        })
    }
}
