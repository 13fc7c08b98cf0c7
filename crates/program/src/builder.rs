//! The builder: the one way to write a program.
//!
//! In: calls, one for each op of the forward pass (the methods stand in the file of each op's
//! family under `op/`), then [`Builder::backward`] and [`Builder::optimize`]. Out: a [`Program`]
//! that is valid by construction: shapes agree, names are unique, every tensor has one writer and
//! is written before it is read.
//!
//! A [`Var`] is a handle: a tensor, seen in some shape. A reshape makes a new handle and no node.
//! Names follow the scopes that are open: `conv1` within `layer1.0` is `layer1.0.conv1`.

use std::collections::BTreeSet;

use rekindle_graph::{Phase, Role, StorageId};

use crate::op::{Op, Operand, Source};
use crate::{DType, Init, Node, Program, ProgramError, Tensor};

/// The largest tensor that the builder accepts, in bytes. It is beyond any machine's memory, and
/// small enough that no sum over a program's tensors can overflow 64 bits.
const LARGEST: u64 = 1 << 46;

/// A handle to a tensor of a program, seen in some shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Var {
    tensor: StorageId,
    shape: Vec<usize>,
}

impl Var {
    /// The tensor.
    pub fn tensor(&self) -> StorageId {
        self.tensor
    }

    /// The shape in which this handle sees it.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no element; the builder makes no such tensor.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The extent of the last axis; 1 for a scalar.
    pub(crate) fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Everything but the last axis.
    pub(crate) fn rows(&self) -> usize {
        self.len() / self.cols()
    }

    /// Its shape with another last axis.
    pub(crate) fn with_cols(&self, cols: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape.pop();
        shape.push(cols);
        shape
    }
}

/// Writes a program, node by node.
#[derive(Debug)]
pub struct Builder {
    name: String,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) nodes: Vec<Node>,
    init: Vec<Option<Init>>,
    /// Which tensors get a gradient: parameters, but neither buffers nor data.
    pub(crate) trainable: Vec<bool>,
    /// Names of all nodes.
    names: BTreeSet<String>,
    /// The open scopes, outermost first.
    scopes: Vec<String>,
    /// How many dropouts there are.
    pub(crate) sites: u32,
}

impl Builder {
    /// An empty program.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder {
            name: name.into(),
            tensors: Vec::new(),
            nodes: Vec::new(),
            init: Vec::new(),
            trainable: Vec::new(),
            names: BTreeSet::new(),
            scopes: Vec::new(),
            sites: 0,
        }
    }

    /// Runs `body` with `scope.` before every name that it makes.
    pub fn scope<T>(&mut self, scope: &str, body: impl FnOnce(&mut Builder) -> T) -> T {
        self.scopes.push(scope.to_owned());
        let value = body(self);
        self.scopes.pop();
        value
    }

    /// A batch of data or labels, which somebody writes before each step.
    ///
    /// # Errors
    /// If the name is taken, or the shape is empty or too large. So for all sources.
    pub fn input(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Var, ProgramError> {
        self.source(self.scoped(name), shape, dtype, Role::Input, Init::Zeros)
    }

    /// A weight or bias that training changes.
    ///
    /// # Errors
    /// As [`Builder::input`].
    pub fn parameter(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let var = self.source(name, shape, DType::F32, Role::Parameter, init)?;
        self.trainable[var.tensor.index()] = true;
        Ok(var)
    }

    /// A part of the model that only effects change, such as a running mean.
    ///
    /// # Errors
    /// As [`Builder::input`].
    pub fn buffer(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        init: Init,
    ) -> Result<Var, ProgramError> {
        self.source(self.scoped(name), shape, dtype, Role::Parameter, init)
    }

    /// A table of integers that never changes, such as position ids: `ids`, again and again.
    ///
    /// # Errors
    /// As [`Builder::input`]; also if `ids` do not go into the table a whole number of times.
    pub fn constant_ids(
        &mut self,
        name: &str,
        shape: &[usize],
        ids: Vec<i64>,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let whole = |count: usize| !ids.is_empty() && count.is_multiple_of(ids.len());
        if !elements(shape).is_some_and(whole) {
            return Err(ProgramError::Shape {
                node: name,
                operand: "ids",
                expected: format!("{shape:?}"),
                found: vec![ids.len()],
            });
        }
        self.source(name, shape, DType::I64, Role::Constant, Init::Ids(ids))
    }

    /// A table of numbers that never changes, such as a mask.
    ///
    /// # Errors
    /// As [`Builder::input`]; also if there is not a number for each element.
    pub fn constant(
        &mut self,
        name: &str,
        shape: &[usize],
        values: Vec<f32>,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        if elements(shape) != Some(values.len()) {
            return Err(ProgramError::Shape {
                node: name,
                operand: "values",
                expected: format!("{shape:?}"),
                found: vec![values.len()],
            });
        }
        self.source(name, shape, DType::F32, Role::Constant, Init::Table(values.into()))
    }

    /// The position of each element in its row: 0, 1, 2 and so on along the last axis.
    ///
    /// # Errors
    /// As [`Builder::input`].
    pub fn positions(&mut self, name: &str, shape: &[usize]) -> Result<Var, ProgramError> {
        let row = shape.last().map_or(1, |&row| row.max(1));
        self.source(self.scoped(name), shape, DType::I64, Role::Constant, Init::Count(row))
    }

    /// A gradient that is fed into the backward pass.
    ///
    /// # Errors
    /// As [`Builder::input`].
    pub fn tangent(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
    ) -> Result<Var, ProgramError> {
        self.source(self.scoped(name), shape, DType::F32, Role::Tangent, init)
    }

    /// What the elements of a tensor are; nothing for a handle of another builder.
    pub fn dtype(&self, var: &Var) -> Option<DType> {
        self.tensors.get(var.tensor.index()).map(|tensor| tensor.dtype)
    }

    /// The same tensor in another shape. No node, no copy.
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshape(&self, var: &Var, shape: &[usize]) -> Result<Var, ProgramError> {
        if elements(shape) == Some(var.len()) {
            return Ok(Var { tensor: var.tensor, shape: shape.to_vec() });
        }
        let name = self.tensors.get(var.tensor.index()).map(|t| t.name.clone());
        Err(ProgramError::Shape {
            node: format!("{}.reshape", name.unwrap_or_default()),
            operand: "x",
            expected: format!("of as many elements as {shape:?}"),
            found: var.shape.clone(),
        })
    }

    /// The finished program; `outputs` must be there after the step.
    ///
    /// # Errors
    /// If an output comes from another builder.
    pub fn finish(mut self, outputs: &[&Var]) -> Result<Program, ProgramError> {
        for output in outputs {
            self.owned(&self.name, "output", output)?;
        }
        // Sources first: they are there from the start, and so they read.
        self.nodes.sort_by_key(|node| node.phase != Phase::Input);
        Ok(Program {
            name: self.name,
            tensors: self.tensors,
            nodes: self.nodes,
            outputs: outputs.iter().map(|v| v.tensor).collect(),
            init: self.init,
        })
    }

    /// The full name of `name` in the open scopes.
    pub(crate) fn scoped(&self, name: &str) -> String {
        let mut full = String::new();
        for scope in &self.scopes {
            full.push_str(scope);
            full.push('.');
        }
        full + name
    }

    /// A tensor that is there from the start. `name` is the full name.
    pub(crate) fn source(
        &mut self,
        name: String,
        shape: &[usize],
        dtype: DType,
        role: Role,
        init: Init,
    ) -> Result<Var, ProgramError> {
        self.check_new(&name, [(shape, dtype)])?;
        let tensor = self.add_tensor(name.clone(), shape.to_vec(), dtype, role, Some(init));
        let len = shape.iter().product();
        let op = Source { dtype, len }.into();
        self.add_node(name, op, Phase::Input, vec![], vec![tensor]);
        Ok(Var { tensor, shape: shape.to_vec() })
    }

    /// A node of the forward pass. `name` is the full name; one handle for each of `writes`.
    pub(crate) fn forward(
        &mut self,
        name: String,
        op: impl Into<Op>,
        reads: &[&Var],
        writes: Vec<(Vec<usize>, DType)>,
    ) -> Result<Vec<Var>, ProgramError> {
        let reads = reads.iter().map(|v| v.tensor).collect();
        let shapes: Vec<_> = writes.iter().map(|(shape, _)| shape.clone()).collect();
        let tensors = self.emit(name, op.into(), Phase::Forward, reads, writes)?;
        let handles = tensors.into_iter().zip(shapes);
        Ok(handles.map(|(tensor, shape)| Var { tensor, shape }).collect())
    }

    /// A node of the forward pass with one result, an `f32` tensor of shape `shape`.
    pub(crate) fn forward_one(
        &mut self,
        name: String,
        op: impl Into<Op>,
        reads: &[&Var],
        shape: Vec<usize>,
    ) -> Result<Var, ProgramError> {
        let mut vars = self.forward(name, op, reads, vec![(shape, DType::F32)])?;
        Ok(vars.remove(0))
    }

    /// A node of any phase. `name` is the full name; the first write gets it too, the others with
    /// their number.
    pub(crate) fn emit(
        &mut self,
        name: String,
        op: Op,
        phase: Phase,
        reads: Vec<StorageId>,
        writes: Vec<(Vec<usize>, DType)>,
    ) -> Result<Vec<StorageId>, ProgramError> {
        self.check_new(&name, writes.iter().map(|(s, d)| (s.as_slice(), *d)))?;
        let role = match phase {
            Phase::Forward => Role::Activation,
            Phase::Backward => Role::Gradient,
            Phase::Input | Phase::Optimizer => Role::Other,
        };
        let mut tensors = Vec::with_capacity(writes.len());
        for (k, (shape, dtype)) in writes.into_iter().enumerate() {
            let tensor = match k {
                0 => name.clone(),
                k => format!("{name}:{k}"),
            };
            tensors.push(self.add_tensor(tensor, shape, dtype, role, None));
        }
        self.add_node(name, op, phase, reads, tensors.clone());
        Ok(tensors)
    }

    /// Inserts each node after the node at its position.
    pub(crate) fn insert_nodes(
        &mut self,
        mut inserted: Vec<(usize, Node)>,
    ) -> Result<(), ProgramError> {
        for (_, node) in &inserted {
            if !self.names.insert(node.name.clone()) {
                let name = node.name.clone();
                return Err(ProgramError::Duplicate { name });
            }
            self.assert_shapes(node);
        }
        inserted.sort_by_key(|&(after, _)| after);
        let mut inserted = inserted.into_iter().peekable();
        for (at, node) in std::mem::take(&mut self.nodes).into_iter().enumerate() {
            self.nodes.push(node);
            while let Some((_, node)) = inserted.next_if(|&(after, _)| after == at) {
                self.nodes.push(node);
            }
        }
        Ok(())
    }

    /// Whether a node of this name with tensors of these shapes can be made.
    fn check_new<'a>(
        &self,
        name: &str,
        writes: impl IntoIterator<Item = (&'a [usize], DType)>,
    ) -> Result<(), ProgramError> {
        if self.names.contains(name) {
            return Err(ProgramError::Duplicate { name: name.into() });
        }
        for (shape, dtype) in writes {
            let (name, shape) = (name.to_owned(), shape.to_vec());
            if shape.contains(&0) {
                return Err(ProgramError::Empty { name, shape });
            }
            let bytes = shape
                .iter()
                .try_fold(dtype.size() as u64, |n, &extent| n.checked_mul(extent as u64));
            if bytes.is_none_or(|bytes| bytes > LARGEST) {
                let limit = LARGEST;
                return Err(ProgramError::TooLarge { name, shape, limit });
            }
        }
        Ok(())
    }

    fn add_tensor(
        &mut self,
        name: String,
        shape: Vec<usize>,
        dtype: DType,
        role: Role,
        init: Option<Init>,
    ) -> StorageId {
        let id = StorageId::new(self.tensors.len());
        self.tensors.push(Tensor { name, shape, dtype, role });
        self.init.push(init);
        self.trainable.push(false);
        id
    }

    fn add_node(
        &mut self,
        name: String,
        op: Op,
        phase: Phase,
        reads: Vec<StorageId>,
        writes: Vec<StorageId>,
    ) {
        self.names.insert(name.clone());
        let node = Node { name, op, phase, reads, writes };
        self.assert_shapes(&node);
        self.nodes.push(node);
    }

    /// Panics unless the operands of a new node are what the shape rule of its op says: otherwise
    /// the op's method of the builder, or the rule of differentiation that made it, is wrong.
    fn assert_shapes(&self, node: &Node) {
        let of = |ids: &[StorageId]| -> Vec<Operand> {
            let tensors = ids.iter().map(|id| &self.tensors[id.index()]);
            tensors.map(|t| Operand::new(t.dtype, t.len())).collect()
        };
        let (name, shapes) = (&node.name, node.op.shapes());
        assert_eq!(of(&node.reads), shapes.reads, "what `{name}` reads");
        assert_eq!(of(&node.writes), shapes.writes, "what `{name}` writes");
    }

    /// The tensor of `var`; fails unless it is a handle of this builder.
    pub(crate) fn owned(
        &self,
        node: &str,
        operand: &'static str,
        var: &Var,
    ) -> Result<&Tensor, ProgramError> {
        let tensor = self.tensors.get(var.tensor.index());
        tensor
            .filter(|tensor| tensor.len() == var.len())
            .ok_or_else(|| ProgramError::Foreign { node: node.into(), operand })
    }

    /// Fails unless `var` is a handle of this builder and holds `dtype`.
    pub(crate) fn expect_type(
        &self,
        node: &str,
        operand: &'static str,
        var: &Var,
        dtype: DType,
    ) -> Result<(), ProgramError> {
        let found = self.owned(node, operand, var)?.dtype;
        if found == dtype {
            return Ok(());
        }
        Err(ProgramError::Type { node: node.into(), operand, expected: dtype, found })
    }

    /// Fails unless `var` holds `f32` in exactly this shape.
    pub(crate) fn expect_shape(
        &self,
        node: &str,
        operand: &'static str,
        var: &Var,
        shape: &[usize],
    ) -> Result<(), ProgramError> {
        self.expect_type(node, operand, var, DType::F32)?;
        if var.shape == shape {
            return Ok(());
        }
        Err(wrong_shape(node, operand, format!("{shape:?}"), var))
    }

    /// The extents of `var`, which must hold `f32` and have as many axes as `axes` names.
    pub(crate) fn expect_axes<const N: usize>(
        &self,
        node: &str,
        operand: &'static str,
        var: &Var,
        axes: [&str; N],
    ) -> Result<[usize; N], ProgramError> {
        self.expect_type(node, operand, var, DType::F32)?;
        <[usize; N]>::try_from(var.shape.as_slice())
            .map_err(|_| wrong_shape(node, operand, format!("[{}]", axes.join(", ")), var))
    }
}

/// How many elements a shape has, if the number fits.
fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent))
}

/// The error for an operand of another shape.
pub(crate) fn wrong_shape(
    node: &str,
    operand: &'static str,
    expected: String,
    found: &Var,
) -> ProgramError {
    ProgramError::Shape { node: node.into(), operand, expected, found: found.shape.clone() }
}
