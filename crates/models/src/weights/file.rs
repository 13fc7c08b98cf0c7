//! Safetensors files, read and written tensor by tensor, straight from and to where the values are.
//!
//! The one buffer, of [`BUFFER`] bytes, is for small tensors and for those whose layout differs;
//! whatever is larger than it goes past it. Files are the bytes that the `safetensors` crate
//! writes, which would need a copy of each tensor.

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
        self.read_range(0..values, &mut |bytes| {
            found.update(bytes);
            true
        })?;
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

    /// Reads a tensor of the file to where the program has it.
    ///
    /// # Errors
    /// If it cannot be read, or `into` has another size.
    pub fn read(
        &mut self,
        name: &str,
        stored: &Stored,
        into: &mut [u8],
    ) -> Result<(), WeightsError> {
        stored.check_size(into.len())?;
        let from = self.range(name).start;
        let Some(order) = stored.order() else {
            return self.read_at(from, into);
        };
        self.read_at(from, &mut [])?;
        for at in order {
            let word = &mut into[at..at + size_of::<f32>()];
            let read = self.file.read_exact(word);
            read.map_err(|source| self.unreadable(source))?;
        }
        Ok(())
    }

    /// Whether a tensor of the file has these bytes.
    pub(super) fn is_equal(&mut self, name: &str, mut bytes: &[u8]) -> Result<bool, WeightsError> {
        let mut equal = true;
        self.read_range(self.range(name), &mut |piece| {
            let (here, rest) = bytes.split_at(piece.len());
            bytes = rest;
            equal = here == piece;
            equal
        })?;
        Ok(equal)
    }

    /// Where a tensor is in the file.
    fn range(&self, name: &str) -> Range<u64> {
        let info = self.header.info(name).expect("names are of this file");
        let (from, to) = info.data_offsets;
        self.start + from as u64..self.start + to as u64
    }

    /// Hands out a range of the file, piece by piece, as long as `more` wants.
    fn read_range(
        &mut self,
        range: Range<u64>,
        more: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), WeightsError> {
        let mut piece = vec![0; BUFFER];
        for at in range.clone().step_by(BUFFER) {
            let piece = &mut piece[..BUFFER.min((range.end - at) as usize)];
            self.read_at(at, piece)?;
            if !more(piece) {
                break;
            }
        }
        Ok(())
    }

    fn read_at(&mut self, at: u64, into: &mut [u8]) -> Result<(), WeightsError> {
        // Unlike `seek`, this keeps what the buffer has.
        let file = &mut self.file;
        let here = file.stream_position();
        let read = here
            .and_then(|here| file.seek_relative(at as i64 - here as i64))
            .and_then(|()| file.read_exact(into));
        read.map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: io::Error) -> WeightsError {
        WeightsError::Read { path: self.path.clone(), source }
    }
}

/// Writes a file of these tensors, whole or not at all, with one entry of metadata if there is a
/// `note`. `bytes_of` gives the little-endian bytes of each tensor, in the program's layout.
///
/// # Errors
/// If the file cannot be written, or a tensor has another size.
pub fn write_tensors<'v>(
    path: &Path,
    note: Option<(&str, String)>,
    mut tensors: Vec<Stored>,
    checksum: bool,
    bytes_of: impl Fn(StorageId) -> &'v [u8],
) -> Result<(), WeightsError> {
    // As the crate sorts them: what has the largest elements first, so that all are aligned.
    tensors.sort_by(|a, b| b.file_type().cmp(&a.file_type()).then(a.name.cmp(&b.name)));
    for tensor in &tensors {
        tensor.check_size(bytes_of(tensor.tensor).len())?;
    }
    let write = |file: &mut File| {
        let mut out = BufWriter::with_capacity(BUFFER, Summed::new(file));
        out.write_all(&header(note, &tensors, checksum)?)?;
        for tensor in &tensors {
            let bytes = bytes_of(tensor.tensor);
            match tensor.order() {
                None => out.write_all(bytes)?,
                Some(mut order) => {
                    order.try_for_each(|at| out.write_all(&bytes[at..at + size_of::<f32>()]))?
                }
            }
        }
        out.flush()?;
        let sum = out.get_ref().sum.clone().finalize();
        if checksum {
            out.write_all(&sum.to_le_bytes())?;
        }
        out.flush()
    };
    replace_file(path, write)
        .map_err(|source| WeightsError::Write { path: path.to_owned(), source })
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
