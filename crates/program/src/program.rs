//! A program: a training step as ops on tensors, node for node what the planner sees.
//!
//! Tensor `i` of a program is storage `i` of its graph, and node `i` is node `i`: one identity from
//! the model to the execution. A program says *what* runs; a schedule says when, and an engine how.

use rekindle_graph::{
    Bytes, Effect, Graph, GraphParts, Micros, NodeId, Phase, Role, Storage, StorageId,
};

use crate::Init;
use crate::op::Op;

/// Tensors start at multiples of this many bytes, and occupy multiples of it.
pub const ALIGN: u64 = 64;

/// What the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 64-bit integer: ids, labels, counters.
    I64,
    /// Byte: positions within a pooling window.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::I64 => 8,
            DType::U8 => 1,
        }
    }
}

/// A block of memory with a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// What a person calls it: `layer1.0.conv1.weight` or its node's name.
    pub name: String,
    /// The extent of each axis; empty for a scalar.
    pub shape: Vec<usize>,
    /// What its elements are.
    pub dtype: DType,
    /// What it is for.
    pub role: Role,
}

impl Tensor {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes it occupies, rounded up to [`ALIGN`].
    pub fn bytes(&self) -> Bytes {
        Bytes((self.len() * self.dtype.size()) as u64).round_up(ALIGN)
    }
}

/// One operation on tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique within the program.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// The part of the step that it belongs to.
    pub phase: Phase,
    /// In the order that the op documents.
    pub reads: Vec<StorageId>,
    /// In the order that the op documents.
    pub writes: Vec<StorageId>,
}

/// A training step as ops on tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// A short name: `resnet152-b4`.
    pub name: String,
    /// Indexed by [`StorageId`].
    pub tensors: Vec<Tensor>,
    /// Indexed by [`NodeId`]; the order is a valid one.
    pub nodes: Vec<Node>,
    /// Tensors that must be there after the step.
    pub outputs: Vec<StorageId>,
    /// What the tensors that no op computes hold at the start; indexed by [`StorageId`].
    pub init: Vec<Option<Init>>,
}

impl Program {
    /// One tensor.
    pub fn tensor(&self, id: StorageId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The planner's view: the same nodes and storages under the same ids. `workspace` says how
    /// much scratch an op's kernel needs; times are zero until somebody measures them.
    ///
    /// # Panics
    /// If the program is not valid, which the builder rules out.
    pub fn graph(&self, workspace: impl Fn(&Op) -> Bytes) -> Graph {
        let nodes = self.nodes.iter().map(|node| rekindle_graph::Node {
            name: node.name.clone(),
            op: node.op.name().into(),
            phase: node.phase,
            time: Micros::ZERO,
            flops: Some(node.op.flops()),
            reads: node.reads.clone(),
            writes: node.writes.clone(),
            updates: node.op.updates().iter().map(|&i| node.reads[i]).collect(),
            workspace: workspace(&node.op),
            effect: node.op.effect(),
        });
        let once = |node: &Node| node.op.effect() == Effect::Once;
        let targets = self.nodes.iter().enumerate().filter(|(_, n)| once(n));
        Graph::new(GraphParts {
            name: self.name.clone(),
            origin: "rekindle".into(),
            storages: self
                .tensors
                .iter()
                .map(|t| Storage { bytes: t.bytes(), role: t.role })
                .collect(),
            nodes: nodes.collect(),
            outputs: self.outputs.clone(),
            targets: targets.map(|(i, _)| NodeId::new(i)).collect(),
        })
        .expect("the builder makes valid programs")
    }
}
