//! An ONNX file: its graph in memory, its weights where they are.
//!
//! An exported file is the imported one, field by field, but that each initializer which the model
//! has comes with the model's values, in the file itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use rekindle_graph::{StorageId, open_file, replace_file};
use rekindle_models::weights::{Fill, Stored, Take, stored};
use rekindle_models::{Model, ModelOptions};

use crate::import::{self, Mode};
use crate::loss::Loss;
use crate::proto::{self, Elements, Extent, GraphProto, Place, TensorProto};
use crate::wire::{Field, Message, damaged};
use crate::{OnnxError, fold};

/// The oldest version of the standard operators whose meaning is the one that is built.
const OLDEST_OPSET: i64 = 13;
/// The largest message of the format.
const LARGEST: u64 = (1 << 31) - 1;
/// What export holds at a time.
const BUFFER: usize = 1 << 20;

/// A model read from an ONNX file.
#[derive(Debug)]
pub struct Onnx {
    origin: Origin,
    pub(crate) graph: GraphProto,
    /// Position of each initializer by name.
    by_name: BTreeMap<String, usize>,
}

/// Where the bytes of large tensors are.
#[derive(Debug)]
enum Origin {
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl Onnx {
    /// Reads the graph of a file; external data is looked for beside it.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Onnx, OnnxError> {
        let bytes = read_file(path)?;
        let graph = proto::read(&bytes)?;
        Onnx::new(Origin::File(path.to_owned()), graph)
    }

    /// Reads the graph from the bytes of a file without external data.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Onnx, OnnxError> {
        let graph = proto::read(&bytes)?;
        Onnx::new(Origin::Bytes(bytes), graph)
    }

    fn new(origin: Origin, graph: GraphProto) -> Result<Onnx, OnnxError> {
        if graph.opset < OLDEST_OPSET {
            return Err(OnnxError::Opset { found: graph.opset, oldest: OLDEST_OPSET });
        }
        let names = graph.initializers.iter().enumerate();
        let by_name = names.map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        Ok(Onnx { origin, graph, by_name })
    }

    /// The names and extents of the inputs that are no initializers.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &[Extent])> {
        let inputs = self.graph.inputs.iter();
        let inputs = inputs.filter(|input| !self.by_name.contains_key(&input.name));
        inputs.map(|input| (input.name.as_str(), input.shape.as_slice()))
    }

    /// One training step: free first axes are the batch, other free axes of ids the sequence, and
    /// those of images the image size.
    ///
    /// # Errors
    /// If an operator is not supported, or the shapes or the loss do not fit.
    pub fn train(&self, loss: Loss, options: &ModelOptions) -> Result<Model, OnnxError> {
        let (forward, builder) = import::forward(self, loss, options, Mode::Train)?;
        Ok(forward.train(builder, options.updates())?)
    }

    /// The forward pass alone, without dropout and with the running statistics of batch-norms.
    ///
    /// # Errors
    /// As [`Onnx::train`].
    pub fn evaluate(&self, loss: Loss, options: &ModelOptions) -> Result<Model, OnnxError> {
        let (forward, builder) = import::forward(self, loss, options, Mode::Evaluate)?;
        Ok(forward.evaluate(builder)?)
    }

    /// Passes the file's values of every parameter and buffer of `model` on. `pieces` has each
    /// tensor overwritten piece by piece, in their order.
    ///
    /// # Errors
    /// If the file cannot be read or lacks a tensor of the model, or what `pieces` says.
    pub fn load(
        &self,
        model: &Model,
        mut pieces: impl FnMut(StorageId, &mut Fill<'_>) -> io::Result<()>,
    ) -> Result<(), OnnxError> {
        for stored in stored(model) {
            let Some(tensor) = self.initializer(&stored.name) else {
                continue; // A counter of batches, which the format does not have.
            };
            let bytes = stored.shape.iter().product::<usize>() * size_of::<f32>();
            if tensor.elements != Elements::F32 || tensor.bytes() != Some(bytes) {
                return Err(OnnxError::Foreign { name: stored.name, bytes });
            }
            let mut source = self.source(tensor)?;
            let whole = stored.order().map(|order| reorder(&mut source, bytes, order));
            let whole = whole.transpose().map_err(|error| self.unreadable(error))?;
            let mut done = 0;
            let mut fill = |piece: &mut [u8]| {
                let from = done;
                done += piece.len();
                match &whole {
                    _ if done > bytes => Err(io::Error::other("more bytes than the tensor has")),
                    Some(whole) => {
                        piece.copy_from_slice(&whole[from..done]);
                        Ok(())
                    }
                    None => source.read_exact(piece),
                }
            };
            pieces(stored.tensor, &mut fill).map_err(|error| self.unreadable(error))?;
        }
        Ok(())
    }

    /// Writes the graph with the values of `model`, which `pieces` hands out piece by piece. The
    /// file appears whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written or would be too large, or what `pieces` says.
    pub fn export(
        &self,
        path: &Path,
        model: &Model,
        pieces: impl Fn(StorageId, &mut Take<'_>) -> io::Result<()>,
    ) -> Result<(), OnnxError> {
        let trained = stored(model).into_iter().map(|stored| (stored.name.clone(), stored));
        let trained: BTreeMap<String, Stored> = trained.collect();
        let read;
        let bytes = match &self.origin {
            Origin::Bytes(bytes) => bytes,
            Origin::File(from) => {
                read = read_file(from)?;
                &read
            }
        };
        let parts = self.parts(bytes, &trained)?;
        let total: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if total > LARGEST {
            return Err(OnnxError::TooLarge { path: path.to_owned(), bytes: total });
        }
        let write = |file: &mut File| -> Result<(), WriteFault> {
            let mut out = BufWriter::with_capacity(BUFFER, file);
            for part in &parts {
                match part {
                    Part::Kept(range) => out.write_all(&bytes[range.clone()])?,
                    Part::New(bytes) => out.write_all(bytes)?,
                    Part::Values(stored, _) => write_values(&mut out, stored, &pieces)?,
                    Part::Beside(tensor, _) => {
                        let mut source = self.source(tensor).map_err(WriteFault::Other)?;
                        io::copy(&mut source, &mut out)?;
                    }
                }
            }
            Ok(out.flush()?)
        };
        replace_file(path, write).map_err(|fault| match fault {
            WriteFault::Io(source) => OnnxError::Write { path: path.to_owned(), source },
            WriteFault::Other(error) => error,
        })
    }

    /// The file's initializer of this name.
    pub(crate) fn initializer(&self, name: &str) -> Option<&TensorProto> {
        self.by_name.get(name).map(|&at| &self.graph.initializers[at])
    }

    /// The elements of a tensor as a constant.
    pub(crate) fn constant(&self, tensor: &TensorProto) -> Result<fold::Constant, OnnxError> {
        let size = tensor.bytes().ok_or_else(|| {
            damaged(format!("`{}` holds elements of a type that is not read", tensor.name))
        })?;
        fold::check_len(&tensor.name, &tensor.shape)?;
        let mut bytes = vec![0; size];
        self.source(tensor)?.read_exact(&mut bytes).map_err(|error| self.unreadable(error))?;
        Ok(fold::Constant::from_bytes(tensor.elements, tensor.shape.clone(), &bytes))
    }

    /// A reader of the elements of a tensor.
    fn source(&self, tensor: &TensorProto) -> Result<Source<'_>, OnnxError> {
        let length = tensor.bytes().unwrap_or(0) as u64;
        let at = |path: &Path, offset: u64| -> Result<Source<'_>, OnnxError> {
            let io = |source| OnnxError::Read { path: path.to_owned(), source };
            let mut file = open_file(path).map_err(io)?;
            let end = file.metadata().map_err(io)?.len();
            if offset.checked_add(length).is_none_or(|last| last > end) {
                return Err(damaged(format!(
                    "`{}` lies at bytes {offset} to {offset} + {length} of {}, which has {end}",
                    tensor.name,
                    path.display()
                )));
            }
            file.seek(SeekFrom::Start(offset)).map_err(io)?;
            Ok(Source::File(io::BufReader::with_capacity(BUFFER, file).take(length)))
        };
        match (&tensor.place, &self.origin) {
            (Place::Here(bytes), _) => Ok(Source::Bytes(bytes.clone(), 0)),
            (Place::File(range), Origin::Bytes(bytes)) => Ok(Source::Slice(&bytes[range.clone()])),
            (Place::File(range), Origin::File(path)) => at(path, range.start as u64),
            (Place::Beside { file, offset, .. }, Origin::File(path)) => {
                let folder = path.parent().unwrap_or(Path::new(""));
                at(&folder.join(beside(&tensor.name, file)?), *offset)
            }
            (Place::Beside { file, .. }, Origin::Bytes(_)) => {
                Err(OnnxError::External { name: tensor.name.clone(), file: file.clone() })
            }
        }
    }

    fn unreadable(&self, source: io::Error) -> OnnxError {
        let path = match &self.origin {
            Origin::File(path) => path.clone(),
            Origin::Bytes(_) => PathBuf::from("the model's bytes"),
        };
        OnnxError::Read { path, source }
    }

    /// The file's bytes in their order, with other values.
    fn parts<'a>(
        &'a self,
        bytes: &[u8],
        trained: &'a BTreeMap<String, Stored>,
    ) -> Result<Vec<Part<'a>>, OnnxError> {
        const GRAPH: u64 = 7;
        const INITIALIZER: u64 = 5;
        let mut initializers = self.graph.initializers.iter();
        let file = Message::new(bytes);
        rewrite(file, GRAPH, &mut |graph| {
            rewrite(graph, INITIALIZER, &mut |tensor| {
                let proto = initializers.next().ok_or_else(|| damaged("the file has changed"))?;
                let len = proto.bytes().unwrap_or(0);
                let values = match trained.get(&proto.name) {
                    Some(stored) => Part::Values(stored, len),
                    None if matches!(proto.place, Place::Beside { .. }) => Part::Beside(proto, len),
                    None => return Ok(vec![Part::Kept(tensor.range())]),
                };
                with_values(tensor, values)
            })
        })
    }
}

/// A part of an exported file.
enum Part<'a> {
    /// Bytes of the imported file.
    Kept(Range<usize>),
    /// Other bytes.
    New(Vec<u8>),
    /// The model's values of a tensor, of so many bytes.
    Values(&'a Stored, usize),
    /// What an external file holds, of so many bytes.
    Beside(&'a TensorProto, usize),
}

impl Part<'_> {
    fn len(&self) -> usize {
        match self {
            Part::Kept(range) => range.len(),
            Part::New(bytes) => bytes.len(),
            Part::Values(_, len) | Part::Beside(_, len) => *len,
        }
    }
}

/// Why an export failed.
enum WriteFault {
    Io(io::Error),
    Other(OnnxError),
}

impl From<io::Error> for WriteFault {
    fn from(error: io::Error) -> WriteFault {
        WriteFault::Io(error)
    }
}

/// What is read of a tensor.
enum Source<'a> {
    Bytes(Vec<u8>, usize),
    Slice(&'a [u8]),
    File(io::Take<io::BufReader<File>>),
}

impl io::Read for Source<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::Bytes(bytes, at) => {
                let read = (&bytes[*at..]).read(into)?;
                *at += read;
                Ok(read)
            }
            Source::Slice(bytes) => bytes.read(into),
            Source::File(file) => file.read(into),
        }
    }
}

/// A message with each field `number` made anew by `inner`; all others are kept.
fn rewrite<'a, 'b>(
    message: Message<'b>,
    number: u64,
    inner: &mut dyn FnMut(Message<'b>) -> Result<Vec<Part<'a>>, OnnxError>,
) -> Result<Vec<Part<'a>>, OnnxError> {
    let mut parts = Vec::new();
    let mut from = message.range().start;
    message.fields_from(|start, found, field| {
        if found == number {
            let field = field.message()?;
            parts.push(Part::Kept(from..start));
            let new = inner(field)?;
            parts.push(Part::New([varint(number << 3 | 2), varint(total(&new))].concat()));
            parts.extend(new);
            from = field.range().end;
        }
        Ok(())
    })?;
    parts.push(Part::Kept(from..message.range().end));
    Ok(parts)
}

/// A tensor's message with other values, which are held in the message itself.
fn with_values<'a>(tensor: Message<'_>, values: Part<'a>) -> Result<Vec<Part<'a>>, OnnxError> {
    /// Fields that hold values or say where they are.
    const OF_VALUES: [u64; 7] = [4, 5, 7, 9, 10, 13, 14];
    const RAW_DATA: u64 = 9;
    let mut kept = Vec::new();
    tensor.fields(|number, field| {
        if OF_VALUES.contains(&number) {
            return Ok(());
        }
        match field {
            Field::Varint(value) => {
                kept.extend(varint(number << 3));
                kept.extend(varint(value));
            }
            Field::Bytes(bytes) => {
                kept.extend(varint(number << 3 | 2));
                kept.extend(varint(bytes.bytes().len() as u64));
                kept.extend(bytes.bytes());
            }
            Field::Fixed32(_) | Field::Fixed64(_) => {}
        }
        Ok(())
    })?;
    kept.extend(varint(RAW_DATA << 3 | 2));
    kept.extend(varint(values.len() as u64));
    Ok(vec![Part::New(kept), values])
}

fn total(parts: &[Part<'_>]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

/// A number as the format has it.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn write_values(
    out: &mut impl Write,
    stored: &Stored,
    pieces: &impl Fn(StorageId, &mut Take<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let order = stored.order();
    let mut whole = Vec::new();
    pieces(stored.tensor, &mut |piece| match &order {
        None => out.write_all(piece),
        Some(_) => {
            whole.extend_from_slice(piece);
            Ok(())
        }
    })?;
    for at in order.into_iter().flatten() {
        out.write_all(&whole[at..at + size_of::<f32>()])?;
    }
    Ok(())
}

/// A tensor whose elements the program has elsewhere.
fn reorder(
    source: &mut Source<'_>,
    bytes: usize,
    order: impl Iterator<Item = usize>,
) -> io::Result<Vec<u8>> {
    let mut whole = vec![0; bytes];
    for at in order {
        source.read_exact(&mut whole[at..at + size_of::<f32>()])?;
    }
    Ok(whole)
}

/// The name of an external file, which may not lead out of the folder.
fn beside<'a>(name: &str, file: &'a str) -> Result<&'a Path, OnnxError> {
    let path = Path::new(file);
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    match !file.is_empty() && path.components().all(inside) {
        true => Ok(path),
        false => Err(OnnxError::External { name: name.into(), file: file.into() }),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, OnnxError> {
    let io = |source| OnnxError::Read { path: path.to_owned(), source };
    let mut file = open_file(path).map_err(io)?;
    let mut bytes = Vec::new();
    // Unlike a vector of that size, this is an error where there is no memory.
    file.read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}
