//! Optimizers: the updates of parameters as nodes of the program.
//!
//! In: the gradients of a backward pass. Out: one node for each parameter that has one, placed
//! right after the last node that reads the parameter or its gradient. So a gradient dies as soon
//! as it is complete, and the step never holds all of them.
//!
//! Unless they are clipped by the norm of all of them: then every update waits for the last
//! gradient. Where the gradients of several steps are summed, the sums are state of the optimizer:
//! each step adds to them, and the engine is told which step updates the parameters.

use rekindle_graph::{Phase, Role, StorageId};

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Accumulate, Keep, Op, Shapes, SquareSum};
use crate::{Builder, DType, Gradients, Init, Node, Patterns, ProgramError, Var};

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

/// How the parameters of a step are updated, all together.
#[derive(Clone, Debug, PartialEq)]
pub struct Updates {
    /// How each follows its gradient.
    pub optimizer: Optimizer,
    /// Parameters of these names do not decay.
    pub no_decay: Patterns,
    /// Whether parameters of one axis, which are biases and the scales of norms, decay.
    pub vectors_decay: bool,
    /// Gradients whose norm, all together, is above this are scaled down to it.
    pub clip: Option<f32>,
    /// Whether gradients are summed over several steps before the parameters follow them.
    pub accumulate: bool,
}

impl From<Optimizer> for Updates {
    fn from(optimizer: Optimizer) -> Updates {
        let no_decay = Patterns::default();
        Updates { optimizer, no_decay, vectors_decay: true, clip: None, accumulate: false }
    }
}

/// `sgd`: `param*, grad [, momentum*] [, total]`, as PyTorch's SGD with dampening 0. With `total`,
/// the sum of all gradients' squares, the gradient is scaled first. May run once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// How many elements the parameter has.
    pub len: usize,
    /// How they are updated.
    pub options: SgdOptions,
    /// The norm of all gradients above which they are scaled down to it.
    pub clip: Option<f32>,
}

/// `adam`: `param*, grad, first*, second* [, total]`, as PyTorch's Adam or AdamW, without amsgrad.
/// The step count of the bias correction is the number of the update, from 1. May run once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// How many elements the parameter has.
    pub len: usize,
    /// How they are updated.
    pub options: AdamOptions,
    /// The norm of all gradients above which they are scaled down to it.
    pub clip: Option<f32>,
}

impl Operation for Sgd {
    const FACTS: Facts<Sgd> = Facts {
        name: "sgd",
        shapes: |op| {
            let shapes = Shapes::f32([op.len, op.len], []);
            shapes.and_read(op.options.momentum != 0.0, op.len).and_read(op.clip.is_some(), 1)
        },
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
        shapes: |op| Shapes::f32([op.len; 4], []).and_read(op.clip.is_some(), 1),
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
    fn op(self, len: usize, clip: Option<f32>) -> Op {
        match self {
            Optimizer::Sgd(options) => Sgd { len, options, clip }.into(),
            Optimizer::Adam(options) => Adam { len, options, clip }.into(),
        }
    }

    /// The same without weight decay.
    fn without_decay(self) -> Optimizer {
        match self {
            Optimizer::Sgd(options) => Optimizer::Sgd(SgdOptions { weight_decay: 0.0, ..options }),
            Optimizer::Adam(options) => {
                Optimizer::Adam(AdamOptions { weight_decay: 0.0, ..options })
            }
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
    /// Adds the update of every parameter that has a gradient. Gives the sum of all gradients'
    /// squares if they are clipped.
    ///
    /// # Errors
    /// If it was called before.
    pub fn optimize(
        &mut self,
        gradients: &Gradients,
        updates: impl Into<Updates>,
    ) -> Result<Option<Var>, ProgramError> {
        let updates = updates.into();
        let last = self.last_uses();
        let mut nodes = Inserted { last: &last, nodes: Vec::new() };
        let mut pairs = gradients.pairs().to_vec();
        if updates.accumulate {
            pairs = self.accumulate(&pairs, &mut nodes)?;
        }
        let total = match updates.clip {
            Some(_) => Some(self.square_sum(&pairs, gradients, &mut nodes)?),
            None => None,
        };
        let complete = last.iter().copied().max().filter(|_| total.is_some()).unwrap_or(0);
        for (&(parameter, taken), &(_, gradient)) in pairs.iter().zip(gradients.pairs()) {
            let after = last[parameter.index()].max(last[gradient.index()]).max(complete);
            let node = self.update(parameter, taken, total, &updates)?;
            nodes.nodes.push((after, node));
        }
        let nodes = nodes.nodes;
        self.insert_nodes(nodes)?;
        Ok(total.map(|total| self.handle(total)))
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

    /// Adds each gradient to a sum of its own. The total takes the gradient's place, and becomes
    /// the sum that the next step finds: nobody reads a sum that has been overwritten.
    fn accumulate(
        &mut self,
        pairs: &[(StorageId, StorageId)],
        nodes: &mut Inserted<'_>,
    ) -> Result<Vec<(StorageId, StorageId)>, ProgramError> {
        let mut summed = Vec::with_capacity(pairs.len());
        for &(parameter, gradient) in pairs {
            let tensor = self.tensors[parameter.index()].clone();
            let name = format!("{}.gradient_sum", tensor.name);
            let role = Role::OptimizerState;
            let sum = self.source(name.clone(), &tensor.shape, DType::F32, role, Init::Zeros)?;
            let len = tensor.len();
            let (shape, role) = (tensor.shape, Role::Gradient);
            let total = self.add_tensor(format!("{name}.total"), shape, DType::F32, role, None);
            let (sum, add, keep) = (sum.tensor(), Accumulate { len }, Keep { len });
            nodes.push(gradient, format!("{name}.total"), add, vec![sum, gradient], vec![total]);
            nodes.push(gradient, format!("{name}.keep"), keep, vec![sum, total], vec![]);
            summed.push((parameter, total));
        }
        Ok(summed)
    }

    /// The sum of the squares of what the optimizer takes, gradient by gradient as they come.
    fn square_sum(
        &mut self,
        pairs: &[(StorageId, StorageId)],
        gradients: &Gradients,
        nodes: &mut Inserted<'_>,
    ) -> Result<StorageId, ProgramError> {
        let mut taken: Vec<(StorageId, StorageId)> =
            pairs.iter().zip(gradients.pairs()).map(|(pair, of)| (of.1, pair.1)).collect();
        taken.sort_by_key(|(gradient, _)| nodes.last[gradient.index()]);
        let mut total = None;
        for (gradient, taken) in taken {
            let len = self.tensors[taken.index()].len();
            let name = format!("{}.square_sum", self.tensors[taken.index()].name);
            let op = SquareSum { len, goes_on: total.is_some() };
            let reads = [taken].into_iter().chain(total).collect();
            let sum = self.add_tensor(name.clone(), vec![1], DType::F32, Role::Other, None);
            nodes.push(gradient, name, op, reads, vec![sum]);
            total = Some(sum);
        }
        total.ok_or_else(|| ProgramError::NoParameter { name: "gradients".into() })
    }

    /// The update of one parameter, with new tensors for its state.
    fn update(
        &mut self,
        parameter: StorageId,
        gradient: StorageId,
        total: Option<StorageId>,
        updates: &Updates,
    ) -> Result<Node, ProgramError> {
        let tensor = self.tensors[parameter.index()].clone();
        let is_vector = tensor.shape.len() < 2;
        let optimizer =
            match updates.no_decay.matches(&tensor.name) || (is_vector && !updates.vectors_decay) {
                true => updates.optimizer.without_decay(),
                false => updates.optimizer,
            };
        let mut reads = vec![parameter, gradient];
        for state in optimizer.state() {
            let name = format!("{}.{state}", tensor.name);
            let role = Role::OptimizerState;
            let state = self.source(name, &tensor.shape, DType::F32, role, Init::Zeros)?;
            reads.push(state.tensor());
        }
        reads.extend(total);
        Ok(Node {
            name: format!("{}.update", tensor.name),
            op: optimizer.op(tensor.len(), updates.clip),
            phase: Phase::Optimizer,
            reads,
            writes: vec![],
        })
    }
}

/// Nodes of the optimizer, each with the position of the node that it follows.
struct Inserted<'a> {
    /// The last use of each tensor before there was an optimizer.
    last: &'a [usize],
    nodes: Vec<(usize, Node)>,
}

impl Inserted<'_> {
    /// A node that follows the last use of `gradient`.
    fn push(
        &mut self,
        gradient: StorageId,
        name: String,
        op: impl Into<Op>,
        reads: Vec<StorageId>,
        writes: Vec<StorageId>,
    ) {
        let node = Node { name, op: op.into(), phase: Phase::Optimizer, reads, writes };
        self.nodes.push((self.last[gradient.index()], node));
    }
}
