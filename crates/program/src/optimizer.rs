//! Optimizers as nodes of the program.
//!
//! In: the gradients of a backward pass. Out: one node for each parameter that has one, placed
//! right after the last node that reads the parameter or its gradient. So a gradient dies as soon
//! as it is complete, and the step never holds all of them.

use rekindle_graph::{Phase, Role, StorageId};

use crate::op::{Adam, Op, Sgd};
use crate::{Builder, DType, Gradients, Init, Node, ProgramError};

/// How parameters follow their gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// PyTorch's SGD with dampening 0.
    Sgd {
        /// Learning rate.
        learning_rate: f32,
        /// Momentum; a buffer is kept if it is not zero.
        momentum: f32,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// PyTorch's Adam, or AdamW if `decoupled`.
    Adam {
        /// Learning rate.
        learning_rate: f32,
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f32,
        /// Weight decay.
        weight_decay: f32,
        /// Decay the weight itself (AdamW) and not the gradient.
        decoupled: bool,
    },
}

impl Optimizer {
    /// SGD with momentum 0.9 and without weight decay.
    pub fn sgd(learning_rate: f32) -> Optimizer {
        Optimizer::Sgd {
            learning_rate,
            momentum: 0.9,
            weight_decay: 0.0,
        }
    }

    /// Adam with PyTorch's defaults.
    pub fn adam(learning_rate: f32) -> Optimizer {
        Optimizer::Adam {
            learning_rate,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
        }
    }

    /// AdamW with PyTorch's defaults.
    pub fn adamw(learning_rate: f32) -> Optimizer {
        Optimizer::Adam {
            learning_rate,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
            decoupled: true,
        }
    }

    /// The update of a parameter of `len` elements.
    fn op(self, len: usize) -> Op {
        match self {
            Optimizer::Sgd {
                learning_rate,
                momentum,
                weight_decay,
            } => Op::Sgd(Sgd {
                len,
                learning_rate,
                momentum,
                weight_decay,
            }),
            Optimizer::Adam {
                learning_rate,
                beta1,
                beta2,
                eps,
                weight_decay,
                decoupled,
            } => Op::Adam(Adam {
                len,
                learning_rate,
                beta1,
                beta2,
                eps,
                weight_decay,
                decoupled,
            }),
        }
    }

    /// What it remembers of each parameter, by the names of PyTorch's state.
    fn state(self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd { momentum: 0.0, .. } => &[],
            Optimizer::Sgd { .. } => &["momentum"],
            Optimizer::Adam { .. } => &["exp_avg", "exp_avg_sq"],
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
