//! A graph of the file → the forward pass of a program.
//!
//! In: the nodes in their order, which is a valid one. Out: ops of the builder. Each operator has
//! a function in the file of its family; [`OPERATORS`] is the list of all. What is computed from
//! constants alone is folded and makes no node.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_models::{Forward, InputKind, ModelOptions};
use rekindle_program::{Builder, DType, Init, Settings, Var};

use crate::fold::{self, Constant};
use crate::proto::{Elements, Extent, NodeProto};
use crate::value::{Seen, Value};
use crate::{Loss, Onnx, OnnxError};

mod activation;
mod attention;
mod convolution;
mod elementwise;
mod layout;
mod norm;
mod product;
mod rearrangement;
mod reduction;

/// How a node of the file becomes ops: its results, in their order.
type Handler = fn(&mut Import<'_>, &NodeProto) -> Result<Vec<Value>, OnnxError>;

/// The families of operators.
const FAMILIES: [&[(&str, Handler)]; 9] = [
    activation::OPERATORS,
    attention::OPERATORS,
    convolution::OPERATORS,
    elementwise::OPERATORS,
    layout::OPERATORS,
    norm::OPERATORS,
    product::OPERATORS,
    rearrangement::OPERATORS,
    reduction::OPERATORS,
];

/// Operators that fold where all their operands are constants.
const FOLDED: [&str; 7] = ["Floor", "Ceil", "GatherND", "Mod", "Range", "ReduceProd", "Round"];

/// The operators that are supported, by name; those that fold take constants alone.
pub fn operators() -> Vec<&'static str> {
    let all = FAMILIES.iter().flat_map(|family| family.iter().map(|(name, _)| *name));
    let mut all: Vec<_> = all.chain(FOLDED).collect();
    all.sort_unstable();
    all
}

/// Whether the forward pass is part of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// With dropout and the statistics of the batch.
    Train,
    /// Without, and with the running statistics.
    Evaluate,
}

/// The forward pass of a file, with its loss.
pub(crate) fn forward(
    onnx: &Onnx,
    loss: Loss,
    options: &ModelOptions,
    mode: Mode,
) -> Result<(Forward, Builder), OnnxError> {
    check_operators(onnx)?;
    let mut import = Import::new(onnx, options, mode)?;
    for at in 0..onnx.graph.nodes.len() {
        if !import.done.contains(&at) {
            import.node(&onnx.graph.nodes[at])?;
        }
    }
    let mut outputs = Vec::new();
    for output in &onnx.graph.outputs {
        if let Some(Value::Tensor(seen)) = import.values.get(&output.name) {
            outputs.push(seen.clone());
        }
    }
    let forward = loss.put(&mut import, &outputs)?;
    Ok((forward, import.builder))
}

/// Fails with every node whose operator is not supported.
fn check_operators(onnx: &Onnx) -> Result<(), OnnxError> {
    let known: BTreeSet<&str> = operators().into_iter().collect();
    let standard = |node: &NodeProto| matches!(node.domain.as_str(), "" | "ai.onnx");
    let unknown = onnx.graph.nodes.iter();
    let unknown: Vec<_> =
        unknown.filter(|node| !standard(node) || !known.contains(node.op.as_str())).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let list = unknown.iter().map(|node| format!("{} (`{}`)", node.op, node.label()));
    let list = list.collect::<Vec<_>>().join(", ");
    Err(OnnxError::Unsupported { count: unknown.len(), list })
}

/// A program that is being built.
pub(crate) struct Import<'a> {
    pub(crate) onnx: &'a Onnx,
    pub(crate) builder: Builder,
    pub(crate) mode: Mode,
    /// The probability of every dropout, where it shall not be the file's own.
    pub(crate) dropout: Option<f32>,
    pub(crate) values: BTreeMap<String, Value>,
    pub(crate) inputs: Vec<(Var, InputKind)>,
    /// Nodes that are part of another's op already.
    pub(crate) done: BTreeSet<usize>,
    /// The nodes that read each value.
    readers: BTreeMap<&'a str, Vec<usize>>,
    /// Initializers that are weights of convolutions.
    convolved: BTreeSet<&'a str>,
    /// Parameters and buffers that have been declared.
    declared: BTreeMap<String, Seen>,
    /// Tensors in another order of their axes, by tensor and order.
    reordered: BTreeMap<(usize, Vec<usize>), Var>,
    names: BTreeSet<String>,
}

impl<'a> Import<'a> {
    fn new(onnx: &'a Onnx, options: &ModelOptions, mode: Mode) -> Result<Import<'a>, OnnxError> {
        let graph = &onnx.graph;
        let mut readers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut convolved = BTreeSet::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            for input in &node.inputs {
                readers.entry(input).or_default().push(at);
            }
            if matches!(node.op.as_str(), "Conv" | "ConvTranspose") {
                convolved.extend(node.inputs.get(1).map(String::as_str));
            }
        }
        for output in &graph.outputs {
            // An output is read by the caller, too.
            readers.entry(&output.name).or_default().push(usize::MAX);
        }
        let settings = Settings { inference: mode == Mode::Evaluate, ..options.settings.clone() };
        let mut import = Import {
            onnx,
            builder: Builder::with_settings(format!("onnx-b{}", options.batch), settings),
            mode,
            dropout: options.dropout,
            values: BTreeMap::new(),
            inputs: Vec::new(),
            done: BTreeSet::new(),
            readers,
            convolved,
            declared: BTreeMap::new(),
            reordered: BTreeMap::new(),
            names: graph.initializers.iter().map(|tensor| tensor.name.clone()).collect(),
        };
        for tensor in &graph.initializers {
            let value = match import.is_parameter(&tensor.name) {
                true => Value::Parameter(tensor.name.clone(), tensor.shape.clone()),
                // What is no parameter is read when somebody needs it.
                false => continue,
            };
            import.values.insert(tensor.name.clone(), value);
        }
        import.declare_inputs(options)?;
        Ok(import)
    }

    /// Whether an initializer is trained. PyTorch's newer exporter says so; what it leaves without
    /// a word are its own constants, unless the name is one of a module. Other exporters keep
    /// constants in nodes, so that initializers are parameters but for single numbers without such
    /// a name, and for the angles that a rotary embedding takes sines of.
    fn is_parameter(&self, name: &str) -> bool {
        let Some(tensor) = self.onnx.initializer(name) else {
            return false;
        };
        let kinds = &self.onnx.graph.kinds;
        let of_module = name.contains('.');
        let said = match kinds.get(name).map(String::as_str) {
            Some(kind) => kind == "PARAMETER",
            None if !kinds.is_empty() => of_module,
            None => of_module || tensor.shape.iter().product::<usize>() > 1,
        };
        let statistics = self.readers_of(name).iter().any(|node| {
            node.op == "BatchNormalization" && node.inputs.iter().skip(3).any(|read| read == name)
        });
        said && tensor.elements == Elements::F32 && !statistics && !name.ends_with("inv_freq")
    }

    fn declare_inputs(&mut self, options: &ModelOptions) -> Result<(), OnnxError> {
        for input in &self.onnx.graph.inputs {
            if self.onnx.initializer(&input.name).is_some() {
                continue;
            }
            let ids = match input.elements {
                Elements::F32 => false,
                Elements::I64 | Elements::I32 | Elements::Bool => true,
                _ => {
                    let why = format!("input `{}` holds neither floats nor ids", input.name);
                    return Err(OnnxError::Damaged { why });
                }
            };
            let mut shape = Vec::with_capacity(input.shape.len());
            for (axis, extent) in input.shape.iter().enumerate() {
                let (what, asked) = match axis {
                    0 => ("samples", options.batch),
                    _ if ids => ("tokens", options.sequence),
                    _ if input.shape.len() == 4 && axis > 1 => ("pixels", options.image_size),
                    _ => ("features", options.sequence),
                };
                shape.push(match extent {
                    Extent::Free(_) => asked,
                    Extent::Fixed(found) if axis == 0 && *found != asked => {
                        let (input, found) = (input.name.clone(), *found);
                        return Err(OnnxError::Extent { input, what, found, asked });
                    }
                    Extent::Fixed(found) => *found,
                });
            }
            self.declare_input(&input.name, &shape, ids)?;
        }
        Ok(())
    }

    /// Images are held channels last; everything else as it is.
    fn declare_input(&mut self, name: &str, shape: &[usize], ids: bool) -> Result<(), OnnxError> {
        self.names.insert(name.to_owned());
        let order: Vec<usize> = match shape.len() {
            4 if !ids => vec![0, 2, 3, 1],
            rank => (0..rank).collect(),
        };
        let stored: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let (dtype, kind) = match ids {
            true => (DType::I64, InputKind::Tokens { vocab: 2 }),
            false => (DType::F32, InputKind::Features { classes: 1 }),
        };
        let var = self.builder.input(name, &stored, dtype)?;
        self.inputs.push((var.clone(), kind));
        self.values.insert(name.to_owned(), Value::Tensor(Seen { var, order, causal: false }));
        Ok(())
    }

    /// A node becomes a constant where all its operands are, or ops.
    fn node(&mut self, node: &NodeProto) -> Result<(), OnnxError> {
        let constants = self.constants(node)?;
        let results = match constants {
            Some(constants) => {
                let operands: Vec<Option<&Constant>> =
                    constants.iter().map(|constant| constant.as_deref()).collect();
                fold::fold(node, &operands)?
            }
            None => None,
        };
        let results = match results {
            Some(constants) => constants.into_iter().map(Value::from).collect(),
            None => {
                let handlers = FAMILIES.iter().flat_map(|family| family.iter());
                let handler = handlers.clone().find(|(name, _)| *name == node.op);
                let Some((_, handler)) = handler else {
                    return Err(node.wrong("its operands are not constants"));
                };
                handler(self, node)?
            }
        };
        for (name, value) in node.outputs.iter().zip(results) {
            self.values.insert(name.clone(), value);
        }
        Ok(())
    }

    /// All operands as constants, if they are.
    fn constants(
        &self,
        node: &NodeProto,
    ) -> Result<Option<Vec<Option<std::rc::Rc<Constant>>>>, OnnxError> {
        let mut all = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            all.push(match name.as_str() {
                "" => None,
                name => match self.find(node, name)? {
                    Value::Constant(constant) => Some(constant),
                    _ => return Ok(None),
                },
            });
        }
        // What reads nothing is no matter of folding.
        Ok((!all.is_empty()).then_some(all))
    }

    fn find(&self, node: &NodeProto, name: &str) -> Result<Value, OnnxError> {
        if let Some(value) = self.values.get(name) {
            return Ok(value.clone());
        }
        match self.onnx.initializer(name) {
            Some(tensor) => Ok(self.onnx.constant(tensor)?.into()),
            None => Err(OnnxError::Missing { node: node.label(), name: name.into() }),
        }
    }

    /// Operand `index`, if it is there.
    pub(crate) fn optional(
        &self,
        node: &NodeProto,
        index: usize,
    ) -> Result<Option<Value>, OnnxError> {
        match node.inputs.get(index).map(String::as_str) {
            None | Some("") => Ok(None),
            Some(name) => self.find(node, name).map(Some),
        }
    }

    /// Operand `index`.
    pub(crate) fn value(&self, node: &NodeProto, index: usize) -> Result<Value, OnnxError> {
        let value = self.optional(node, index)?;
        value.ok_or_else(|| node.wrong(format!("it lacks operand {index}")))
    }

    /// Operand `index`, if it is a constant.
    pub(crate) fn constant(
        &self,
        node: &NodeProto,
        index: usize,
    ) -> Result<Option<std::rc::Rc<Constant>>, OnnxError> {
        match self.optional(node, index)? {
            Some(Value::Constant(constant)) => Ok(Some(constant)),
            Some(_) => Err(node.wrong(format!("operand {index} is not known before it runs"))),
            None => Ok(None),
        }
    }

    /// Operand `index` as a tensor of floats.
    pub(crate) fn tensor(&mut self, node: &NodeProto, index: usize) -> Result<Seen, OnnxError> {
        let value = self.value(node, index)?;
        self.floats(node, value)
    }

    /// A value as a tensor of floats.
    pub(crate) fn floats(&mut self, node: &NodeProto, value: Value) -> Result<Seen, OnnxError> {
        match value {
            Value::Tensor(seen) if seen.causal => self.masked(node, &seen),
            Value::Tensor(seen) => match self.is_ids(&seen.var) {
                true => {
                    let name = self.name(node, "cast");
                    let var = self.builder.cast(&name, &seen.var)?;
                    Ok(seen.with(var))
                }
                false => Ok(seen),
            },
            Value::Constant(constant) => {
                let name = self.name(node, "constant");
                let var = self.builder.constant(&name, &constant.shape, constant.to_floats())?;
                Ok(Seen::plain(var))
            }
            Value::Parameter(name, shape) => self.parameter(&name, &shape),
            Value::Coin(shape, chance) => {
                let ones = self.coin(node, &shape, chance)?;
                let name = self.name(node, "scale");
                let var = self.builder.scale(&name, &ones.var, chance as f32)?;
                Ok(ones.with(var))
            }
            Value::Uniform(_) | Value::List(_) => {
                Err(node.wrong("random numbers or a sequence as an operand"))
            }
        }
    }

    /// `1 / chance` with this chance, else zero.
    pub(crate) fn coin(
        &mut self,
        node: &NodeProto,
        shape: &[usize],
        chance: f64,
    ) -> Result<Seen, OnnxError> {
        let len = shape.iter().product();
        let name = self.name(node, "ones");
        let ones = self.builder.constant(&name, shape, vec![1.0; len])?;
        let name = self.name(node, "drawn");
        let p = self.drop_probability(1.0 - chance as f32);
        Ok(Seen::plain(self.builder.dropout(&name, &ones, p)?))
    }

    /// The probability with which a dropout of the file drops.
    pub(crate) fn drop_probability(&self, own: f32) -> f32 {
        match self.mode {
            Mode::Train => self.dropout.unwrap_or(own),
            Mode::Evaluate => 0.0,
        }
    }

    /// Whether a tensor holds whole numbers.
    pub(crate) fn is_ids(&self, var: &Var) -> bool {
        self.builder.dtype(var) == Some(DType::I64)
    }

    /// A trained initializer; weights of convolutions as the engine has them.
    pub(crate) fn parameter(&mut self, name: &str, shape: &[usize]) -> Result<Seen, OnnxError> {
        if let Some(seen) = self.declared.get(name) {
            return Ok(seen.clone());
        }
        let order: Vec<usize> = match shape.len() {
            4 if self.convolved.contains(name) => vec![2, 3, 1, 0],
            rank => (0..rank).collect(),
        };
        let stored: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let var = self.builder.parameter(name, &stored, Init::Zeros)?;
        let seen = Seen { var, order, causal: false };
        self.declared.insert(name.to_owned(), seen.clone());
        Ok(seen)
    }

    /// A buffer: an initializer that only effects change, or a counter that the file lacks.
    pub(crate) fn buffer(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Var, OnnxError> {
        if let Some(seen) = self.declared.get(name) {
            return Ok(seen.var.clone());
        }
        self.names.insert(name.to_owned());
        let var = self.builder.buffer(name, shape, dtype, Init::Zeros)?;
        self.declared.insert(name.to_owned(), Seen::plain(var.clone()));
        Ok(var)
    }

    /// The tensor of a value with its axes in memory in this order.
    pub(crate) fn in_order(&mut self, seen: &Seen, order: &[usize]) -> Result<Var, OnnxError> {
        if seen.order == order {
            return Ok(seen.var.clone());
        }
        let moved: Vec<usize> = order.iter().map(|&axis| seen.place(axis)).collect();
        let shape = seen.var.shape();
        let to: Vec<usize> = moved.iter().map(|&axis| shape[axis]).collect();
        let real: Vec<usize> = moved.iter().copied().filter(|&axis| shape[axis] > 1).collect();
        if real.is_sorted() {
            return Ok(self.builder.reshape(&seen.var, &to)?);
        }
        let mut key = moved.clone();
        key.extend(shape);
        let key = (seen.var.tensor().index(), key);
        if let Some(var) = self.reordered.get(&key) {
            return Ok(var.clone());
        }
        let name = self.fresh("transpose");
        let var = self.builder.transpose(&name, &seen.var, &moved)?;
        self.reordered.insert(key, var.clone());
        Ok(var)
    }

    /// The tensor of a value in the order of its own axes.
    pub(crate) fn plain(&mut self, seen: &Seen) -> Result<Var, OnnxError> {
        let order: Vec<usize> = (0..seen.order.len()).collect();
        self.in_order(seen, &order)
    }

    /// The tensor of a value with axis `axis` last in memory, and all others in their order.
    pub(crate) fn with_last(&mut self, seen: &Seen, axis: usize) -> Result<Var, OnnxError> {
        let mut order: Vec<usize> = (0..seen.order.len()).filter(|&own| own != axis).collect();
        order.push(axis);
        self.in_order(seen, &order)
    }

    /// A value as an image, channels last: `[n, c, …]` with the second axis last in memory.
    pub(crate) fn channels_last(&mut self, seen: &Seen) -> Result<Seen, OnnxError> {
        if seen.order.len() < 2 {
            return Err(crate::wire::damaged("it reads an image that has no channels"));
        }
        let mut order: Vec<usize> = (0..seen.order.len()).filter(|&axis| axis != 1).collect();
        order.push(1);
        let var = self.in_order(seen, &order)?;
        Ok(Seen { var, order, causal: false })
    }

    /// Nodes that read a value; one that is not of the graph stands for the graph's caller.
    fn readers_of(&self, name: &str) -> Vec<&'a NodeProto> {
        let readers = self.readers.get(name).into_iter().flatten();
        readers.filter_map(|&at| self.onnx.graph.nodes.get(at)).collect()
    }

    /// The one node that reads a result of `node`, if there is just one and it is of these
    /// operators.
    pub(crate) fn only_reader(
        &self,
        node: &NodeProto,
        operators: &[&str],
    ) -> Option<(usize, &'a NodeProto)> {
        let readers = self.readers.get(node.outputs.first()?.as_str())?;
        let [at] = readers[..] else {
            return None;
        };
        let reader = self.onnx.graph.nodes.get(at)?;
        operators.contains(&reader.op.as_str()).then_some((at, reader))
    }

    /// A name for an op of `node`, used once: the value's own name, or that with a part.
    pub(crate) fn name(&mut self, node: &NodeProto, part: &str) -> String {
        let base = node.outputs.first().cloned().unwrap_or_default();
        let name = if part.is_empty() { base } else { format!("{base}.{part}") };
        self.fresh(&name)
    }

    /// A name for something that the file does not have.
    pub(crate) fn input_name(&mut self, name: &str) -> String {
        self.fresh(name)
    }

    fn fresh(&mut self, name: &str) -> String {
        let name = if name.is_empty() { "node" } else { name };
        let mut fresh = name.to_owned();
        let mut number = 1;
        while !self.names.insert(fresh.clone()) {
            number += 1;
            fresh = format!("{name}~{number}");
        }
        fresh
    }
}
