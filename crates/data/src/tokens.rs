//! Sequences of tokens, packed one after the other: sample `i` is tokens `i · n` to `(i + 1) · n`,
//! and its labels are the same tokens one further on.
//!
//! Token files are raw little-endian numbers (`.bin`) or arrays (`.npy`), read by position.

use std::path::Path;

use rekindle_program::random::Stream;

use crate::array::{Array, Number};
use crate::file::DataFile;
use crate::sample::{FeaturesMut, SampleMut, Samples};
use crate::{DataError, TokenType};

/// The tokens of a file.
pub(crate) struct Tokens {
    array: Array,
    sequence: usize,
    vocab: usize,
}

impl Tokens {
    pub(crate) fn open(
        path: &Path,
        kind: TokenType,
        sequence: usize,
        vocab: usize,
    ) -> Result<Tokens, DataError> {
        let array = match path.extension().and_then(|e| e.to_str()) {
            Some("npy") => Array::npy(path)?,
            _ => {
                let number = match kind {
                    TokenType::U16 => Number::U16,
                    TokenType::U32 => Number::U32,
                };
                Array::raw(DataFile::open(path)?, number)
            }
        };
        Tokens::new(array, sequence, vocab)
    }

    pub(crate) fn new(array: Array, sequence: usize, vocab: usize) -> Result<Tokens, DataError> {
        let tokens = Tokens { array, sequence, vocab };
        match tokens.len() {
            0 => Err(DataError::Nothing {
                path: tokens.array.path().to_owned(),
                why: format!(
                    "{} tokens make no sequence of {sequence} and the token after it",
                    tokens.array.len()
                ),
            }),
            _ => Ok(tokens),
        }
    }

    /// How many tokens there are.
    pub(crate) fn count(&self) -> u64 {
        self.array.len()
    }
}

impl Samples for Tokens {
    fn len(&self) -> usize {
        (self.array.len().saturating_sub(1) / self.sequence as u64) as usize
    }

    fn read(
        &self,
        index: usize,
        _: Option<Stream>,
        SampleMut { features, labels, .. }: SampleMut<'_>,
    ) -> Result<(), DataError> {
        let FeaturesMut::Ids(ids) = features else { unreachable!("tokens are ids") };
        let first = (index * self.sequence) as u64;
        self.array.whole(first, ids)?;
        self.array.whole(first + 1, labels)?;
        let all = ids.iter().chain(labels.last());
        let bad = (first..).zip(all).find(|(_, id)| !(0..self.vocab as i64).contains(id));
        match bad {
            None => Ok(()),
            Some((position, &token)) => Err(DataError::TokenOutOfRange {
                path: self.array.path().to_owned(),
                position,
                token: token as u64,
                vocab: self.vocab,
            }),
        }
    }
}
