//! The file with other weights.
//!
//! An exported file is the imported one, field by field, but that each initializer which the model
//! has comes with the model's values, in the file itself. What is kept is copied from file to file,
//! so that an export holds no more than a buffer and one tensor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use rekindle_graph::{StorageId, open_file, replace_file};
use rekindle_models::Model;
use rekindle_models::weights::{Stored, Take, stored};

use crate::file::{BUFFER, Origin};
use crate::proto::{Place, TensorProto};
use crate::wire::{Field, Message, damaged};
use crate::{Onnx, OnnxError};

/// The largest message of the format.
const LARGEST: u64 = (1 << 31) - 1;
/// The field of a file that is its graph.
const GRAPH: u64 = 7;
/// The field of a graph that is an initializer.
const INITIALIZER: u64 = 5;
/// Fields of a tensor that hold values or say where they are.
const OF_VALUES: [u64; 7] = [4, 5, 7, 9, 10, 13, 14];
/// The field of a tensor that holds its values as bytes.
const RAW_DATA: u64 = 9;

/// Where things are in a file.
#[derive(Debug)]
pub(crate) struct Outline {
    before: Range<usize>,
    graph: Vec<Piece>,
    behind: Range<usize>,
}

/// A piece of a graph.
#[derive(Debug)]
enum Piece {
    /// Bytes of the file.
    Kept(Range<usize>),
    /// The next initializer: where it is, and its fields without values.
    Tensor { whole: Range<usize>, head: Vec<u8> },
}

impl Outline {
    /// The outline of the bytes of a file.
    pub(crate) fn new(bytes: &[u8]) -> Result<Outline, OnnxError> {
        let mut found = None;
        Message::new(bytes).fields_from(|start, number, field| {
            if number == GRAPH {
                let graph = field.message()?;
                if found.is_some() {
                    return Err(damaged("it has two graphs"));
                }
                found = Some((start, graph.range().end, pieces(graph)?));
            }
            Ok(())
        })?;
        let (start, end, graph) = found.ok_or_else(|| damaged("it has no graph"))?;
        Ok(Outline { before: 0..start, graph, behind: end..bytes.len() })
    }
}

fn pieces(graph: Message<'_>) -> Result<Vec<Piece>, OnnxError> {
    let mut pieces = Vec::new();
    let mut from = graph.range().start;
    graph.fields_from(|start, number, field| {
        if number == INITIALIZER {
            let tensor = field.message()?;
            pieces.push(Piece::Kept(from..start));
            pieces.push(Piece::Tensor { whole: tensor.range(), head: without_values(tensor)? });
            from = tensor.range().end;
        }
        Ok(())
    })?;
    pieces.push(Piece::Kept(from..graph.range().end));
    Ok(pieces)
}

fn without_values(tensor: Message<'_>) -> Result<Vec<u8>, OnnxError> {
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
    Ok(kept)
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

fn total(parts: &[Part<'_>]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

/// The key of a field that is a message, and the length of the message.
fn opening(number: u64, length: u64) -> Vec<u8> {
    [varint(number << 3 | 2), varint(length)].concat()
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

impl Onnx {
    /// Writes the graph with the values of `model`, which `pieces` hands out piece by piece. The
    /// file appears whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written or would be too large, the imported file has changed, or what
    /// `pieces` says.
    pub fn export(
        &self,
        path: &Path,
        model: &Model,
        pieces: impl Fn(StorageId, &mut Take<'_>) -> io::Result<()>,
    ) -> Result<(), OnnxError> {
        let trained = stored(model).into_iter().map(|stored| (stored.name.clone(), stored));
        let trained: BTreeMap<String, Stored> = trained.collect();
        let parts = self.parts(&trained);
        let bytes = total(&parts);
        if bytes > LARGEST {
            return Err(OnnxError::TooLarge { path: path.to_owned(), bytes });
        }
        // Opened before anything is written: it may be the file that is replaced.
        let mut from = self.kept_source()?;
        let write = |file: &mut File| -> Result<(), WriteFault> {
            let mut out = BufWriter::with_capacity(BUFFER, file);
            for part in &parts {
                match part {
                    Part::Kept(range) => from.copy(range, &mut out)?,
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

    /// The file's bytes in their order, with other values.
    fn parts<'a>(&'a self, trained: &'a BTreeMap<String, Stored>) -> Vec<Part<'a>> {
        let mut initializers = self.graph.initializers.iter();
        let mut graph = Vec::new();
        for piece in &self.outline.graph {
            let (whole, head) = match piece {
                Piece::Kept(range) => {
                    graph.push(Part::Kept(range.clone()));
                    continue;
                }
                Piece::Tensor { whole, head } => (whole, head),
            };
            let proto = initializers.next().expect("the outline is of the same bytes");
            let len = proto.bytes().unwrap_or(0);
            let values = match trained.get(&proto.name) {
                Some(stored) => Part::Values(stored, len),
                None if matches!(proto.place, Place::Beside { .. }) => Part::Beside(proto, len),
                None => {
                    graph.push(Part::New(opening(INITIALIZER, whole.len() as u64)));
                    graph.push(Part::Kept(whole.clone()));
                    continue;
                }
            };
            let head = [&head[..], &opening(RAW_DATA, len as u64)].concat();
            graph.push(Part::New(opening(INITIALIZER, (head.len() + len) as u64)));
            graph.extend([Part::New(head), values]);
        }
        let mut parts = vec![Part::Kept(self.outline.before.clone())];
        parts.push(Part::New(opening(GRAPH, total(&graph))));
        parts.extend(graph);
        parts.push(Part::Kept(self.outline.behind.clone()));
        parts
    }

    fn kept_source(&self) -> Result<Kept<'_>, OnnxError> {
        match &self.origin {
            Origin::Bytes(bytes) => Ok(Kept::Bytes(bytes)),
            Origin::File(path) => {
                let io = |source| OnnxError::Read { path: path.clone(), source };
                let file = open_file(path).map_err(io)?;
                let expected = self.outline.behind.end as u64;
                match file.metadata().map_err(io)?.len() == expected {
                    true => Ok(Kept::File(file)),
                    false => Err(damaged("it has changed since it was read")),
                }
            }
        }
    }
}

/// Where what is kept is read.
enum Kept<'a> {
    Bytes(&'a [u8]),
    File(File),
}

impl Kept<'_> {
    fn copy(&mut self, range: &Range<usize>, out: &mut impl Write) -> io::Result<()> {
        match self {
            Kept::Bytes(bytes) => out.write_all(&bytes[range.clone()]),
            Kept::File(file) => {
                file.seek(SeekFrom::Start(range.start as u64))?;
                let copied = io::copy(&mut file.take(range.len() as u64), out)?;
                match copied == range.len() as u64 {
                    true => Ok(()),
                    false => Err(io::Error::other("the imported file has become shorter")),
                }
            }
        }
    }
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
