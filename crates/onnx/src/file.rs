//! An ONNX file: its graph in memory, its weights where they are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

use rekindle_graph::{StorageId, open_file};
use rekindle_models::weights::{Fill, stored};
use rekindle_models::{Model, ModelOptions};

use crate::export::Outline;
use crate::import::{self, Mode};
use crate::loss::Loss;
use crate::proto::{self, Elements, Extent, GraphProto, Place, TensorProto};
use crate::wire::damaged;
use crate::{OnnxError, fold};

/// The oldest version of the standard operators whose meaning is the one that is built.
const OLDEST_OPSET: i64 = 13;
/// What is read of a file at a time.
pub(crate) const BUFFER: usize = 1 << 20;

/// A model read from an ONNX file.
#[derive(Debug)]
pub struct Onnx {
    pub(crate) origin: Origin,
    pub(crate) graph: GraphProto,
    /// What an export keeps of the file.
    pub(crate) outline: Outline,
    /// Position of each initializer by name.
    by_name: BTreeMap<String, usize>,
}

/// Where the bytes of large tensors are.
#[derive(Debug)]
pub(crate) enum Origin {
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
        let (graph, outline) = (proto::read(&bytes)?, Outline::new(&bytes)?);
        Onnx::new(Origin::File(path.to_owned()), graph, outline)
    }

    /// Reads the graph from the bytes of a file without external data.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Onnx, OnnxError> {
        let (graph, outline) = (proto::read(&bytes)?, Outline::new(&bytes)?);
        Onnx::new(Origin::Bytes(bytes), graph, outline)
    }

    fn new(origin: Origin, graph: GraphProto, outline: Outline) -> Result<Onnx, OnnxError> {
        if graph.opset < OLDEST_OPSET {
            return Err(OnnxError::Opset { found: graph.opset, oldest: OLDEST_OPSET });
        }
        let names = graph.initializers.iter().enumerate();
        let by_name = names.map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        Ok(Onnx { origin, graph, outline, by_name })
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
    pub(crate) fn source(&self, tensor: &TensorProto) -> Result<Source<'_>, OnnxError> {
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
}

/// What is read of a tensor.
pub(crate) enum Source<'a> {
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
