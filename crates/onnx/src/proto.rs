//! The messages of an ONNX file, as far as training needs them.
//!
//! In: the bytes of a file. Out: [`GraphProto`]: nodes, initializers, inputs and outputs, by name.
//! The bytes of tensors are not taken along, but where they are: [`Place`].

use std::collections::BTreeMap;
use std::ops::Range;

use crate::OnnxError;
use crate::wire::{Field, Message, damaged};

/// Initializers of at most so many bytes are kept, others are read when they are needed.
const KEPT: usize = 64 << 10;

/// The element types that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    F32,
    F64,
    I64,
    I32,
    Bool,
    /// Whatever else: its number in the format.
    Other(i64),
}

impl Elements {
    pub(crate) fn new(number: i64) -> Elements {
        match number {
            1 => Elements::F32,
            6 => Elements::I32,
            7 => Elements::I64,
            9 => Elements::Bool,
            11 => Elements::F64,
            other => Elements::Other(other),
        }
    }

    /// Bytes of one element, if it is read at all.
    pub(crate) fn size(self) -> Option<usize> {
        match self {
            Elements::F32 | Elements::I32 => Some(4),
            Elements::F64 | Elements::I64 => Some(8),
            Elements::Bool => Some(1),
            Elements::Other(_) => None,
        }
    }
}

/// Where the elements of a tensor are, little-endian.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// Here.
    Here(Vec<u8>),
    /// In the file itself.
    File(Range<usize>),
    /// In another file beside it.
    Beside { file: String, offset: u64, length: Option<u64> },
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorProto {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) elements: Elements,
    pub(crate) place: Place,
}

/// What an attribute holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attribute {
    Float(f32),
    Int(i64),
    Text(String),
    Tensor(TensorProto),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    /// A graph or a list of what nobody asks for.
    Other,
}

/// An operation of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeProto {
    pub(crate) name: String,
    pub(crate) op: String,
    pub(crate) domain: String,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) attributes: BTreeMap<String, Attribute>,
}

/// An extent of a shape: a number, or free under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// This many.
    Fixed(usize),
    /// Free; axes of one name have one extent.
    Free(String),
}

/// An input or an output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ValueProto {
    pub(crate) name: String,
    pub(crate) elements: Elements,
    pub(crate) shape: Vec<Extent>,
}

/// A forward graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GraphProto {
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) initializers: Vec<TensorProto>,
    pub(crate) inputs: Vec<ValueProto>,
    pub(crate) outputs: Vec<ValueProto>,
    /// What PyTorch's exporter says each initializer is: `PARAMETER`, `BUFFER`, …
    pub(crate) kinds: BTreeMap<String, String>,
    /// The version of the standard operators.
    pub(crate) opset: i64,
}

/// The graph of a whole file.
pub(crate) fn read(file: &[u8]) -> Result<GraphProto, OnnxError> {
    let mut graph = None;
    let mut opset = 0;
    Message::new(file).fields(|number, field| {
        match number {
            7 => graph = Some(read_graph(field.message()?)?),
            8 => {
                let (domain, version) = read_opset(field.message()?)?;
                if domain.is_empty() || domain == "ai.onnx" {
                    opset = version;
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    let graph = graph.ok_or_else(|| damaged("it has no graph"))?;
    Ok(GraphProto { opset, ..graph })
}

fn read_opset(message: Message<'_>) -> Result<(String, i64), OnnxError> {
    let mut opset = (String::new(), 0);
    message.fields(|number, field| {
        match number {
            1 => opset.0 = field.text()?,
            2 => opset.1 = field.number()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(opset)
}

fn read_graph(message: Message<'_>) -> Result<GraphProto, OnnxError> {
    let mut graph = GraphProto::default();
    message.fields(|number, field| {
        match number {
            1 => graph.nodes.push(read_node(field.message()?)?),
            5 => graph.initializers.push(read_tensor(field.message()?)?),
            11 => graph.inputs.push(read_value(field.message()?)?.0),
            12 => graph.outputs.push(read_value(field.message()?)?.0),
            13 => {
                let (value, kind) = read_value(field.message()?)?;
                graph.kinds.extend(kind.map(|kind| (value.name, kind)));
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(graph)
}

fn read_node(message: Message<'_>) -> Result<NodeProto, OnnxError> {
    let mut node = NodeProto {
        name: String::new(),
        op: String::new(),
        domain: String::new(),
        inputs: vec![],
        outputs: vec![],
        attributes: BTreeMap::new(),
    };
    message.fields(|number, field| {
        match number {
            1 => node.inputs.push(field.text()?),
            2 => node.outputs.push(field.text()?),
            3 => node.name = field.text()?,
            4 => node.op = field.text()?,
            5 => node.attributes.extend([read_attribute(field.message()?)?]),
            7 => node.domain = field.text()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(node)
}

fn read_attribute(message: Message<'_>) -> Result<(String, Attribute), OnnxError> {
    let mut name = String::new();
    let mut value = Attribute::Other;
    let (mut floats, mut ints) = (Vec::new(), Vec::new());
    let mut kind = 0;
    message.fields(|number, field| {
        match number {
            1 => name = field.text()?,
            2 => value = Attribute::Float(field.float()?),
            3 => value = Attribute::Int(field.number()?),
            4 => value = Attribute::Text(String::from_utf8_lossy(field.message()?.bytes()).into()),
            5 => value = Attribute::Tensor(read_tensor(field.message()?)?),
            7 => floats.extend(field.floats()?),
            8 => ints.extend(field.numbers()?),
            20 => kind = field.number()?,
            _ => {}
        }
        Ok(())
    })?;
    // An empty list has no field of its own; the kind tells it apart.
    match kind {
        6 => value = Attribute::Floats(floats),
        7 => value = Attribute::Ints(ints),
        1 if value == Attribute::Other => value = Attribute::Float(0.0),
        2 if value == Attribute::Other => value = Attribute::Int(0),
        _ => {}
    }
    Ok((name, value))
}

fn read_tensor(message: Message<'_>) -> Result<TensorProto, OnnxError> {
    let mut dims = Vec::new();
    let mut elements = Elements::Other(0);
    let mut name = String::new();
    let mut place = None;
    let (mut floats, mut doubles, mut ints) = (Vec::new(), Vec::new(), Vec::new());
    let mut beside = (String::new(), 0, None);
    let mut is_beside = false;
    message.fields(|number, field| {
        match number {
            1 => dims.extend(field.numbers()?),
            2 => elements = Elements::new(field.number()?),
            4 => match &field {
                Field::Bytes(packed) => place = Some(kept_or_placed(*packed)),
                single => floats.extend(single.floats()?),
            },
            5 | 7 => ints.extend(field.numbers()?),
            8 => name = field.text()?,
            9 => place = Some(kept_or_placed(field.message()?)),
            10 => match &field {
                Field::Bytes(packed) => place = Some(kept_or_placed(*packed)),
                Field::Fixed64(bits) => doubles.push(*bits),
                _ => return Err(damaged("a field holds no double where one belongs")),
            },
            13 => read_beside(field.message()?, &mut beside)?,
            14 => is_beside = field.number()? == 1,
            _ => {}
        }
        Ok(())
    })?;
    let shape = dims.into_iter().map(|extent| {
        let extent = usize::try_from(extent);
        extent.map_err(|_| damaged(format!("`{name}` has a negative extent")))
    });
    let shape = shape.collect::<Result<Vec<_>, _>>()?;
    let place = match place {
        _ if is_beside => {
            let (file, offset, length) = beside;
            Place::Beside { file, offset, length }
        }
        Some(place) => place,
        None => Place::Here(match elements {
            Elements::F32 => floats.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Elements::F64 => doubles.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Elements::I64 => ints.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Elements::I32 => ints.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect(),
            Elements::Bool => ints.iter().map(|&v| u8::from(v != 0)).collect(),
            Elements::Other(_) => vec![],
        }),
    };
    let tensor = TensorProto { name, shape, elements, place };
    tensor.check_size()?;
    Ok(tensor)
}

impl TensorProto {
    /// How many bytes its elements take, if it is of a type that is read.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let size = self.elements.size()?;
        self.shape.iter().try_fold(size, |bytes, &extent| bytes.checked_mul(extent))
    }

    /// Fails unless as many bytes are there as its shape says.
    fn check_size(&self) -> Result<(), OnnxError> {
        if self.elements.size().is_none() {
            return Ok(()); // Whoever uses it is told that it is not read.
        }
        let found = match &self.place {
            Place::Here(bytes) => Some(bytes.len()),
            Place::File(range) => Some(range.len()),
            Place::Beside { length, .. } => length.and_then(|length| usize::try_from(length).ok()),
        };
        match (self.bytes(), found) {
            (Some(expected), Some(found)) if expected != found => Err(damaged(format!(
                "`{}` has shape {:?}, which takes {expected} bytes, but {found} are there",
                self.name, self.shape
            ))),
            (None, _) => Err(damaged(format!("`{}` is larger than any memory", self.name))),
            _ => Ok(()),
        }
    }
}

fn kept_or_placed(message: Message<'_>) -> Place {
    match message.bytes().len() <= KEPT {
        true => Place::Here(message.bytes().to_vec()),
        false => Place::File(message.range()),
    }
}

fn read_beside(
    message: Message<'_>,
    (file, offset, length): &mut (String, u64, Option<u64>),
) -> Result<(), OnnxError> {
    let (key, value) = read_pair(message)?;
    let number = || {
        let number = value.parse();
        number.map_err(|_| damaged(format!("`{key}` of external data is `{value}`, no number")))
    };
    match key.as_str() {
        "location" => *file = value,
        "offset" => *offset = number()?,
        "length" => *length = Some(number()?),
        _ => {}
    }
    Ok(())
}

fn read_pair(message: Message<'_>) -> Result<(String, String), OnnxError> {
    let mut pair = (String::new(), String::new());
    message.fields(|number, field| {
        match number {
            1 => pair.0 = field.text()?,
            2 => pair.1 = field.text()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(pair)
}

/// An input, output or value, and what PyTorch's exporter says it is.
fn read_value(message: Message<'_>) -> Result<(ValueProto, Option<String>), OnnxError> {
    let mut value =
        ValueProto { name: String::new(), elements: Elements::Other(0), shape: Vec::new() };
    let mut kind = None;
    message.fields(|number, field| {
        match number {
            1 => value.name = field.text()?,
            2 => read_type(field.message()?, &mut value, 0)?,
            4 => {
                let (key, text) = read_pair(field.message()?)?;
                if key == "pkg.torch.export.graph_signature.InputSpec.kind" {
                    kind = Some(text);
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok((value, kind))
}

/// `TypeProto`, its `tensor_type`, and that one's `shape`: each is one level deeper.
fn read_type(message: Message<'_>, value: &mut ValueProto, depth: usize) -> Result<(), OnnxError> {
    message.fields(|number, field| {
        match (depth, number) {
            (0, 1) => read_type(field.message()?, value, 1)?,
            (1, 1) => value.elements = Elements::new(field.number()?),
            (1, 2) => read_type(field.message()?, value, 2)?,
            (2, 1) => value.shape.push(read_extent(field.message()?)?),
            _ => {}
        }
        Ok(())
    })
}

fn read_extent(message: Message<'_>) -> Result<Extent, OnnxError> {
    let mut extent = Extent::Free(String::new());
    message.fields(|number, field| {
        match number {
            1 => {
                let fixed = usize::try_from(field.number()?);
                extent = Extent::Fixed(fixed.map_err(|_| damaged("a negative extent"))?);
            }
            2 => extent = Extent::Free(field.text()?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(extent)
}
