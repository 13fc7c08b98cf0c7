//! Text → tokens, by a Hugging Face `tokenizer.json`.
//!
//! In: UTF-8 files, in the order of their names. Out: one file of tokens without a name, which is
//! gone when it is closed. After each file stands the token that ends a text, if the tokenizer has
//! one of the usual names.
//!
//! Files are read piece by piece: a piece ends behind a line whose neighbours on both sides of the
//! line's end are no blanks, where a tokenizer of words begins anew anyway. So memory does not
//! depend on how long a text is.

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use rekindle_graph::open_file;
use serde::de::IgnoredAny;
use tokenizers::Tokenizer;

use crate::array::{Array, Number};
use crate::file::DataFile;
use crate::{BadFiles, DataError};

/// Where a piece of text may end.
const PIECE: usize = 1 << 16;
/// Where it ends whatever stands there.
const LONGEST: usize = 1 << 20;
/// What tokenizers call the end of a text.
const ENDS: [&str; 3] = ["<|endoftext|>", "</s>", "<|end_of_text|>"];

/// What became of some text.
pub(crate) struct Tokenised {
    pub(crate) array: Array,
    /// Files that were left out, with the reason.
    pub(crate) skipped: Vec<(PathBuf, String)>,
}

/// Tokenises files, for a model of `vocab` tokens.
pub(crate) fn tokenise(
    files: &[PathBuf],
    tokenizer: &Path,
    vocab: usize,
    bad_files: BadFiles,
) -> Result<Tokenised, DataError> {
    // One thread: ours are counted, and the library's would not be.
    tokenizers::utils::parallelism::set_parallelism(false);
    let mut coder = Coder::open(tokenizer, vocab)?;
    let mut skipped = Vec::new();
    for file in files {
        match (coder.file(file), bad_files) {
            (Err(DataError::BadFile { path, why }), BadFiles::Skip) => skipped.push((path, why)),
            (coded, _) => coded?,
        }
    }
    Ok(Tokenised { array: coder.finish()?, skipped })
}

/// The tokenizer that a file describes. The library takes some faults of a file for its own and
/// panics: JSON that ends inside a decoder, a precompiled map of characters that is none.
fn parsed(text: &[u8]) -> Result<Tokenizer, String> {
    serde_json::from_slice::<IgnoredAny>(text).map_err(|error| error.to_string())?;
    match catch_unwind(|| Tokenizer::from_bytes(text)) {
        Ok(parsed) => parsed.map_err(|error| error.to_string()),
        Err(_) => Err("a part of it does not hold what its type says".into()),
    }
}

struct Coder {
    path: PathBuf,
    tokenizer: Tokenizer,
    end: Option<u32>,
    vocab: usize,
    out: BufWriter<File>,
}

impl Coder {
    fn open(path: &Path, vocab: usize) -> Result<Coder, DataError> {
        let unusable = |why: String| DataError::Tokenizer { path: path.to_owned(), why };
        let mut text = Vec::new();
        let read = open_file(path).and_then(|mut file| file.read_to_end(&mut text));
        read.map_err(|source| DataError::Read { path: path.to_owned(), source })?;
        let tokenizer = parsed(&text).map_err(unusable)?;
        let largest = tokenizer.get_vocab(true).into_values().max();
        if let Some(largest) = largest.filter(|&largest| largest as usize >= vocab) {
            return Err(unusable(format!(
                "its largest token is {largest}, and the model knows {vocab} tokens"
            )));
        }
        let end = ENDS.iter().find_map(|end| tokenizer.token_to_id(end));
        let out = BufWriter::new(unnamed(path)?);
        Ok(Coder { path: path.to_owned(), tokenizer, end, vocab, out })
    }

    /// Adds the tokens of a file, which is read twice: nothing is added of one that is no text.
    fn file(&mut self, path: &Path) -> Result<(), DataError> {
        let bad = |why: String| DataError::BadFile { path: path.to_owned(), why };
        let mut file = BufReader::new(open_file(path).map_err(|error| bad(error.to_string()))?);
        check_text(&mut file).map_err(bad)?;
        let mut file = BufReader::new(open_file(path).map_err(|error| bad(error.to_string()))?);
        let (mut piece, mut line) = (Vec::new(), Vec::new());
        loop {
            line.clear();
            let read = file.by_ref().take(LONGEST as u64).read_until(b'\n', &mut line);
            let is_over = read.map_err(|error| bad(error.to_string()))? == 0;
            if is_over || (piece.len() >= PIECE && may_part(&piece, &line)) || piece.len() > LONGEST
            {
                let rest = self.piece(&piece)?;
                piece = piece.split_off(rest);
            }
            if is_over {
                break;
            }
            piece.extend_from_slice(&line);
        }
        self.put(&self.end.map(|end| vec![end]).unwrap_or_default())
    }

    /// Codes what is whole of a piece of text; gives where the rest begins, which is the beginning
    /// of a letter.
    fn piece(&mut self, bytes: &[u8]) -> Result<usize, DataError> {
        let whole = match std::str::from_utf8(bytes) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = std::str::from_utf8(&bytes[..whole]).expect("it was looked at");
        let coded = self.tokenizer.encode_fast(text, false).map_err(|error| {
            DataError::Tokenizer { path: self.path.clone(), why: error.to_string() }
        })?;
        self.put(coded.get_ids())?;
        Ok(whole)
    }

    fn put(&mut self, ids: &[u32]) -> Result<(), DataError> {
        for &id in ids {
            if id as usize >= self.vocab {
                let why = format!("it made token {id}, and the model knows {} tokens", self.vocab);
                return Err(DataError::Tokenizer { path: self.path.clone(), why });
            }
            self.out.write_all(&id.to_le_bytes()).map_err(|source| self.failed(source))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Array, DataError> {
        let failed = |source| DataError::Read { path: PathBuf::from("the file of tokens"), source };
        let file = self.out.into_inner().map_err(|error| failed(error.into_error()))?;
        let name = Path::new("the tokenised text");
        Ok(Array::raw(DataFile::new(file, name)?, Number::U32))
    }

    fn failed(&self, source: std::io::Error) -> DataError {
        DataError::Read { path: PathBuf::from("the file of tokens"), source }
    }
}

/// Whether text may be parted between these two pieces: at the end of a line, where neither side
/// has a blank.
fn may_part(before: &[u8], after: &[u8]) -> bool {
    let is_blank = |byte: &u8| byte.is_ascii_whitespace() || !byte.is_ascii();
    let ends = matches!(before, [.., letter, b'\n'] if !is_blank(letter));
    ends && after.first().is_some_and(|letter| !is_blank(letter))
}

/// Reads a file to its end, as UTF-8.
fn check_text(file: &mut impl std::io::Read) -> Result<(), String> {
    let (mut buffer, mut kept) = (vec![0; PIECE], 0);
    loop {
        let read = file.read(&mut buffer[kept..]).map_err(|error| error.to_string())?;
        let bytes = &buffer[..kept + read];
        let rest = match std::str::from_utf8(bytes) {
            Ok(_) => 0,
            Err(error) if error.error_len().is_none() && read > 0 => {
                bytes.len() - error.valid_up_to()
            }
            Err(_) => return Err("it is no UTF-8 text".into()),
        };
        if read == 0 {
            return Ok(());
        }
        let end = kept + read;
        buffer.copy_within(end - rest..end, 0);
        kept = rest;
    }
}

/// A new file without a name, among the system's temporary files.
fn unnamed(about: &Path) -> Result<File, DataError> {
    let failed = |source| DataError::Read { path: about.to_owned(), source };
    let folder = std::env::temp_dir();
    for number in 0.. {
        let path = folder.join(format!("rekindle-tokens.{}.{number}", std::process::id()));
        let made = File::options().read(true).write(true).create_new(true).open(&path);
        match made {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
            Ok(file) => {
                std::fs::remove_file(&path).map_err(failed)?;
                return Ok(file);
            }
        }
    }
    unreachable!("numbers do not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_parted_between_words_at_a_lines_end() {
        assert!(may_part(b"one\n", b"two"));
        assert!(!may_part(b"one\n\n", b"two"));
        assert!(!may_part(b"one\n", b" two"));
        assert!(!may_part(b"one \n", b"two"));
        assert!(!may_part(b"one", b"two"));
        assert!(!may_part(b"one\n", b""));
    }

    #[test]
    fn letters_across_pieces_are_text_and_halves_of_them_are_not() {
        let long = "ü".repeat(PIECE);
        assert_eq!(check_text(&mut long.as_bytes()), Ok(()));
        assert_eq!(check_text(&mut &long.as_bytes()[1..]), Err("it is no UTF-8 text".into()));
        let half = &long.as_bytes()[..long.len() - 1];
        assert_eq!(check_text(&mut &half[..]), Err("it is no UTF-8 text".into()));
        assert_eq!(check_text(&mut &b""[..]), Ok(()));
    }
}
