//! Safetensors files, read and written tensor by tensor, straight from and to where the values are.
//!
//! A tensor comes and goes in pieces, in their order, so that nobody needs room for a whole one but
//! for those whose layout differs, which are small. The one buffer, of [`BUFFER`] bytes, is for
//! small pieces; whatever is larger than it goes past it. Files are the bytes that the
//! `safetensors` crate writes, which would need a copy of each tensor.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rekindle_graph::{StorageId, open_file, replace_file};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::{Stored, WeightsError};

/// What reading and writing hold at a time, beyond the header: large enough for a disk's full
/// speed, and nothing beside a model.
const BUFFER: usize = 1 << 20;
/// Headers beyond this are damage, not tensors; the format's own limit.
const LARGEST_HEADER: u64 = 100_000_000;
/// The checksum of a file that has one: a tensor of four bytes at the end, the CRC-32 of all bytes
/// before it, little-endian.
const CHECKSUM: &str = "remat.crc32";
const CHECKSUM_BYTES: usize = 4;

/// An open file whose header has been read.
pub struct TensorFile {
    path: PathBuf,
    file: BufReader<File>,
    header: Metadata,
    /// Where the values begin.
    start: u64,
    /// Where the file ends.
    end: u64,
}

impl TensorFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If it cannot be read, or its header does not describe it to the last byte.
    pub fn open(path: &Path) -> Result<TensorFile, WeightsError> {
        let io = |source| WeightsError::Read { path: path.to_owned(), source };
        let damaged = |why: String| WeightsError::Format { path: path.to_owned(), why };
        let file = open_file(path).map_err(io)?;
        let end = file.metadata().map_err(io)?.len();
        let mut file = BufReader::with_capacity(BUFFER, file);
        let mut length = [0; 8];
        if end < 8 {
            return Err(damaged(format!("it has {end} bytes, less than a header")));
        }
        file.read_exact(&mut length).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER || length > end - 8 {
            return Err(damaged(format!("a header of {length} bytes in {end} bytes")));
        }
        // Unlike a vector of that size, this is an error where there is no memory.
        let mut header = Vec::new();
        let read = file.by_ref().take(length).read_to_end(&mut header);
        read.map_err(io)?;
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
        let start = 8 + length;
        let needed = start + header.data_len() as u64;
        if end != needed {
            return Err(damaged(format!("it has {end} bytes, but its header speaks of {needed}")));
        }
        Ok(TensorFile { path: path.to_owned(), file, header, start, end })
    }

    /// A text of the header's metadata.
    pub fn note(&self, key: &str) -> Option<&str> {
        let notes = self.header.metadata().as_ref()?;
        notes.get(key).map(String::as_str)
    }

    /// The tensors by name, without the checksum.
    pub fn tensors(&self) -> BTreeMap<String, &TensorInfo> {
        let mut tensors: BTreeMap<_, _> = self.header.tensors().into_iter().collect();
        tensors.remove(CHECKSUM);
        tensors
    }

    /// Reads the whole file, and compares it with the checksum at its end.
    ///
    /// # Errors
    /// If it cannot be read, or has no checksum, or another.
    pub fn verify(&mut self) -> Result<(), WeightsError> {
        let damaged =
            |file: &TensorFile, why: String| WeightsError::Format { path: file.path.clone(), why };
        let values = self.end - CHECKSUM_BYTES as u64;
        let sum = self.header.info(CHECKSUM).filter(|info| {
            info.dtype == Dtype::U8 && self.start + info.data_offsets.0 as u64 == values
        });
        if sum.is_none() {
            return Err(damaged(self, "it has no checksum".into()));
        }
        let mut found = crc32fast::Hasher::new();
        let mut piece = vec![0; BUFFER];
        for at in (0..values).step_by(BUFFER) {
            let piece = &mut piece[..BUFFER.min((values - at) as usize)];
            self.read_at(at, piece)?;
            found.update(piece);
        }
        let mut expected = [0; CHECKSUM_BYTES];
        self.read_at(values, &mut expected)?;
        let (found, expected) = (found.finalize(), u32::from_le_bytes(expected));
        match found == expected {
            true => Ok(()),
            false => Err(damaged(
                self,
                format!("its bytes have the checksum {found:08x}, and should have {expected:08x}"),
            )),
        }
    }

    /// Reads a tensor of the file to where the program has it: `pieces` asks for one piece after
    /// the other.
    ///
    /// # Errors
    /// If it cannot be read, or the pieces have another size in all, or what `pieces` says.
    pub fn read(
        &mut self,
        name: &str,
        stored: &Stored,
        pieces: impl FnOnce(&mut Fill<'_>) -> io::Result<()>,
    ) -> Result<(), WeightsError> {
        let path = self.path.clone();
        let whole = stored.order().map(|order| self.read_reordered(name, order)).transpose()?;
        let Range { start, end } = self.range(name);
        let bytes = (end - start) as usize;
        let mut done = 0;
        let mut fill = |piece: &mut [u8]| {
            let from = done;
            done += piece.len();
            match &whole {
                // What does not belong is counted, and told below.
                _ if done > bytes => Ok(()),
                Some(whole) => {
                    piece.copy_from_slice(&whole[from..done]);
                    Ok(())
                }
                None => self.read_exact_at(start + from as u64, piece),
            }
        };
        pieces(&mut fill).map_err(|source| WeightsError::Read { path, source })?;
        stored.check_size(done)
    }

    /// A tensor whose elements the program has elsewhere.
    fn read_reordered(
        &mut self,
        name: &str,
        order: impl Iterator<Item = usize>,
    ) -> Result<Vec<u8>, WeightsError> {
        let Range { start, end } = self.range(name);
        let mut whole = vec![0; (end - start) as usize];
        self.read_at(start, &mut [])?;
        for at in order {
            let word = &mut whole[at..at + size_of::<f32>()];
            let read = self.file.read_exact(word);
            read.map_err(|source| self.unreadable(source))?;
        }
        Ok(whole)
    }

    /// Whether two tensors of the file have the same bytes.
    pub(super) fn are_equal(&mut self, name: &str, other: &str) -> Result<bool, WeightsError> {
        let (one, two) = (self.range(name), self.range(other));
        let mut pieces = [vec![0; BUFFER], vec![0; BUFFER]];
        let len = one.end - one.start;
        if two.end - two.start != len {
            return Ok(false);
        }
        for at in (0..len).step_by(BUFFER) {
            let count = BUFFER.min((len - at) as usize);
            let [a, b] = &mut pieces;
            self.read_at(one.start + at, &mut a[..count])?;
            self.read_at(two.start + at, &mut b[..count])?;
            if a[..count] != b[..count] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where a tensor is in the file.
    fn range(&self, name: &str) -> Range<u64> {
        let info = self.header.info(name).expect("names are of this file");
        let (from, to) = info.data_offsets;
        self.start + from as u64..self.start + to as u64
    }

    fn read_at(&mut self, at: u64, into: &mut [u8]) -> Result<(), WeightsError> {
        self.read_exact_at(at, into).map_err(|source| self.unreadable(source))
    }

    fn read_exact_at(&mut self, at: u64, into: &mut [u8]) -> io::Result<()> {
        // Unlike `seek`, this keeps what the buffer has.
        let here = self.file.stream_position()?;
        self.file.seek_relative(at as i64 - here as i64)?;
        self.file.read_exact(into)
    }

    fn unreadable(&self, source: io::Error) -> WeightsError {
        WeightsError::Read { path: self.path.clone(), source }
    }
}

/// Overwrites one piece of a tensor.
pub type Fill<'a> = dyn FnMut(&mut [u8]) -> io::Result<()> + 'a;

/// Takes one piece of a tensor.
pub type Take<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

/// Writes a file of these tensors, whole or not at all, with one entry of metadata if there is a
/// `note`. `pieces` hands out the little-endian bytes of each tensor, in the program's layout,
/// piece by piece in their order.
///
/// # Errors
/// If the file cannot be written, or a tensor has another size, or what `pieces` says.
pub fn write_tensors(
    path: &Path,
    note: Option<(&str, String)>,
    mut tensors: Vec<Stored>,
    checksum: bool,
    pieces: impl Fn(StorageId, &mut Take<'_>) -> io::Result<()>,
) -> Result<(), WeightsError> {
    // As the crate sorts them: what has the largest elements first, so that all are aligned.
    tensors.sort_by(|a, b| b.file_type().cmp(&a.file_type()).then(a.name.cmp(&b.name)));
    let write = |file: &mut File| {
        let mut out = BufWriter::with_capacity(BUFFER, Summed::new(file));
        out.write_all(&header(note, &tensors, checksum)?)?;
        for tensor in &tensors {
            write_tensor(&mut out, tensor, &pieces)?;
        }
        out.flush()?;
        let sum = out.get_ref().sum.clone().finalize();
        if checksum {
            out.write_all(&sum.to_le_bytes())?;
        }
        Ok(out.flush()?)
    };
    replace_file(path, write).map_err(|fault| match fault {
        Fault::Write(source) => WeightsError::Write { path: path.to_owned(), source },
        Fault::Values(error) => error,
    })
}

/// Why a file is not written.
enum Fault {
    Write(io::Error),
    Values(WeightsError),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Write(error)
    }
}

fn write_tensor(
    out: &mut impl Write,
    tensor: &Stored,
    pieces: &impl Fn(StorageId, &mut Take<'_>) -> io::Result<()>,
) -> Result<(), Fault> {
    let mut found = 0;
    let order = tensor.order();
    let mut whole = Vec::new();
    pieces(tensor.tensor, &mut |piece| {
        found += piece.len();
        match &order {
            None => out.write_all(piece),
            Some(_) => {
                whole.extend_from_slice(piece);
                Ok(())
            }
        }
    })?;
    tensor.check_size(found).map_err(Fault::Values)?;
    for at in order.into_iter().flatten() {
        out.write_all(&whole[at..at + size_of::<f32>()])?;
    }
    Ok(())
}

/// All that stands before the values.
fn header(note: Option<(&str, String)>, tensors: &[Stored], checksum: bool) -> io::Result<Vec<u8>> {
    let own = tensors.iter();
    let own = own.map(|tensor| (tensor.name.clone(), tensor.file_type(), tensor.shape.clone()));
    let sum = (CHECKSUM.to_owned(), Dtype::U8, vec![CHECKSUM_BYTES]);
    let mut end = 0;
    let entry = |(name, dtype, shape): (String, Dtype, Vec<usize>)| {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let info = TensorInfo { dtype, shape, data_offsets: (start, end) };
        (name, info)
    };
    let entries = own.chain(checksum.then_some(sum)).map(entry).collect();
    let note = note.map(|(key, text)| HashMap::from([(key.to_owned(), text)]));
    let header = Metadata::new(note, entries).map_err(io::Error::other)?;
    let mut text = serde_json::to_vec(&header)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut all = (text.len() as u64).to_le_bytes().to_vec();
    all.append(&mut text);
    Ok(all)
}

/// A file that knows the checksum of what was written to it.
struct Summed<'f> {
    file: &'f mut File,
    sum: crc32fast::Hasher,
}

impl Summed<'_> {
    fn new(file: &mut File) -> Summed<'_> {
        Summed { file, sum: crc32fast::Hasher::new() }
    }
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
