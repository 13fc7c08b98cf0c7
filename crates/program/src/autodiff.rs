//! Reverse-mode differentiation of a program.
//!
//! In: the nodes of the forward pass, and a gradient for each tensor to start from. Out: nodes of
//! the backward pass, and the gradient of each parameter.
//!
//! Method: the forward nodes are visited last to first. When a node is visited, everything that
//! reads its results has been visited, so their gradients are complete; the rule of its op (the
//! rules stand with their ops) turns them into contributions to the gradients of its operands.
//! Contributions to one tensor are added up as they come, except where an op's kernel takes them
//! apart: a batch-norm's backward reads two gradients, and an embedding's starts from one.
//!
//! A node gets backward nodes only if the start depends on it and it depends on a parameter.
//! Where a rule makes both, the gradient of a weight comes before that of the data, so that the
//! data can be freed before its gradient is made.
//!
//! Limits: nodes of the backward pass are not differentiated again.

use rekindle_graph::{Phase, Role, StorageId};

use crate::op::{Add, Op, Operand};
use crate::{Builder, DType, Init, Node, ProgramError, Tensor, Var};

/// The gradients of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gradients {
    /// Parameter and gradient, by parameter. Parameters without influence are missing.
    pairs: Vec<(StorageId, StorageId)>,
}

impl Gradients {
    /// Parameter and gradient, by parameter; a parameter without influence is missing.
    pub fn pairs(&self) -> &[(StorageId, StorageId)] {
        &self.pairs
    }

    /// The gradient of a parameter, if it has one.
    pub fn of(&self, parameter: &Var) -> Option<StorageId> {
        let at = self.pairs.binary_search_by_key(&parameter.tensor(), |&(parameter, _)| parameter);
        at.ok().map(|at| self.pairs[at].1)
    }
}

impl Builder {
    /// Appends the backward pass of `loss`, a single element, whose own gradient is one.
    ///
    /// # Errors
    /// If `loss` has several elements or depends on no parameter.
    pub fn backward(&mut self, loss: &Var) -> Result<Gradients, ProgramError> {
        let name = format!("{}.seed", self.owned("backward", "loss", loss)?.name);
        self.expect_shape(&name, "loss", loss, &[1])?;
        let seed = self.source(name, &[1], DType::F32, Role::Tangent, Init::Ones)?;
        self.vjp(&[(loss, &seed)])
    }

    /// Appends the backward pass of several tensors, each with its own gradient: the
    /// vector-Jacobian product of the parameters.
    ///
    /// # Errors
    /// If a gradient's shape is not its tensor's, or a tensor is named twice or depends on no
    /// parameter.
    pub fn vjp(&mut self, starts: &[(&Var, &Var)]) -> Result<Gradients, ProgramError> {
        let needed = needed(self);
        let room = gradient_operands(self);
        let mut contributions = vec![Vec::new(); self.tensors.len()];
        for (y, gradient) in starts {
            let name = self.owned("vjp", "y", y)?.name.clone();
            self.expect_shape(&name, "gradient", gradient, y.shape())?;
            if !needed[y.tensor().index()] {
                return Err(ProgramError::NoParameter { name });
            }
            if !contributions[y.tensor().index()].is_empty() {
                return Err(ProgramError::Duplicate { name });
            }
            contributions[y.tensor().index()].push(gradient.tensor());
        }
        for at in (0..self.nodes.len()).rev() {
            let node = &self.nodes[at];
            let reached = node.writes.iter().any(|w| !contributions[w.index()].is_empty());
            let needs = node.reads.iter().any(|r| needed[r.index()]);
            if node.phase == Phase::Forward && reached && needs {
                let op = node.op;
                let mut rule = Rule {
                    node: node.clone(),
                    builder: self,
                    contributions: &mut contributions,
                    needed: &needed,
                    room: &room,
                };
                op.differentiate(&mut rule)?;
            }
        }
        let trained = (0..contributions.len()).filter(|&i| self.trainable[i]);
        let pairs = trained.filter_map(|i| Some((StorageId::new(i), *contributions[i].first()?)));
        Ok(Gradients { pairs: pairs.collect() })
    }
}

/// Which tensors depend on a parameter in a way that has a gradient.
fn needed(builder: &Builder) -> Vec<bool> {
    let mut needed = builder.trainable.clone();
    for node in builder.nodes.iter().filter(|n| n.phase == Phase::Forward) {
        if node.op.gradients_taken() > 0 && node.reads.iter().any(|r| needed[r.index()]) {
            for write in &node.writes {
                needed[write.index()] = true;
            }
        }
    }
    needed
}

/// How many gradients of each tensor the backward kernel of its writer takes apart.
fn gradient_operands(builder: &Builder) -> Vec<usize> {
    let mut operands = vec![1; builder.tensors.len()];
    for node in builder.nodes.iter().filter(|n| n.phase == Phase::Forward) {
        if let Some(first) = node.writes.first() {
            operands[first.index()] = node.op.gradients_taken();
        }
    }
    operands
}

/// What a rule works with: the forward node, and the gradients so far.
pub(crate) struct Rule<'a> {
    /// The forward node.
    pub(crate) node: Node,
    builder: &'a mut Builder,
    /// Gradients that have arrived, by tensor of the forward pass.
    contributions: &'a mut [Vec<StorageId>],
    needed: &'a [bool],
    /// How many gradients may wait for each tensor before they are added up.
    room: &'a [usize],
}

impl Rule<'_> {
    /// Operand `k` of the forward node.
    pub(crate) fn read(&self, k: usize) -> StorageId {
        self.node.reads[k]
    }

    /// Result `k` of the forward node.
    pub(crate) fn write(&self, k: usize) -> StorageId {
        self.node.writes[k]
    }

    /// The tensor of a forward operand or result.
    pub(crate) fn tensor(&self, id: StorageId) -> &Tensor {
        &self.builder.tensors[id.index()]
    }

    /// Whether operand `k` needs a gradient.
    pub(crate) fn wants(&self, k: usize) -> bool {
        self.needed[self.read(k).index()]
    }

    /// The gradients of result `k`: none, one, or as many as the kernel takes apart.
    pub(crate) fn gradients(&self, k: usize) -> &[StorageId] {
        &self.contributions[self.write(k).index()]
    }

    /// The gradient of the first result.
    pub(crate) fn dy(&self) -> StorageId {
        self.gradients(0)[0]
    }

    /// Takes back what has arrived for operand `k`, to start from it.
    pub(crate) fn take(&mut self, k: usize) -> Option<StorageId> {
        self.contributions[self.read(k).index()].pop()
    }

    /// Appends a node named after the forward node, with one result shaped like each of `like`.
    pub(crate) fn emit(
        &mut self,
        suffix: &str,
        op: impl Into<Op>,
        reads: Vec<StorageId>,
        like: &[StorageId],
    ) -> Result<Vec<StorageId>, ProgramError> {
        let name = format!("{}.{suffix}", self.node.name);
        let writes = like.iter().map(|&id| (self.tensor(id).shape.clone(), self.tensor(id).dtype));
        let writes = writes.collect();
        let op = op.into();
        self.builder.emit(name, op, Phase::Backward, reads, writes)
    }

    /// Appends a node with one result, of whatever shape, for another node to read.
    pub(crate) fn emit_flat(
        &mut self,
        suffix: &str,
        op: impl Into<Op>,
        reads: Vec<StorageId>,
    ) -> Result<StorageId, ProgramError> {
        let op = op.into();
        let name = format!("{}.{suffix}", self.node.name);
        let writes = op.shapes().writes;
        let [Operand::F32(len)] = writes[..] else {
            unreachable!("`{name}` has one result of floats");
        };
        let writes = vec![(vec![len], DType::F32)];
        Ok(self.builder.emit(name, op, Phase::Backward, reads, writes)?[0])
    }

    /// Appends a node and gives its one result to operand `k`.
    pub(crate) fn emit_for(
        &mut self,
        k: usize,
        suffix: &str,
        op: impl Into<Op>,
        reads: Vec<StorageId>,
    ) -> Result<(), ProgramError> {
        let like = [self.read(k)];
        let written = self.emit(suffix, op, reads, &like)?;
        self.give(k, written[0])
    }

    /// A gradient that is zero everywhere, shaped like `like`.
    pub(crate) fn zeros(&mut self, like: StorageId) -> Result<StorageId, ProgramError> {
        let name = format!("{}.zeros", self.tensor(like).name);
        let shape = self.tensor(like).shape.clone();
        let zeros = self.builder.source(name, &shape, DType::F32, Role::Constant, Init::Zeros)?;
        Ok(zeros.tensor())
    }

    /// Contributes `gradient` to operand `k`, if it needs one.
    pub(crate) fn give(&mut self, k: usize, gradient: StorageId) -> Result<(), ProgramError> {
        if !self.wants(k) {
            return Ok(());
        }
        let to = self.read(k);
        let room = self.room[to.index()];
        let arrived = &mut self.contributions[to.index()];
        if arrived.len() < room {
            arrived.push(gradient);
            return Ok(());
        }
        let last = arrived[room - 1];
        let len = self.tensor(to).len();
        let sum = self.emit(&format!("dsum{k}"), Add { len }, vec![last, gradient], &[to])?;
        self.contributions[to.index()][room - 1] = sum[0];
        Ok(())
    }
}
