//! A folder or a file → samples of what a model takes.
//!
//! What a path holds is told by what is there: folders of images, arrays by their names, text by
//! its ending. Nothing but lists and headers is read here, except text, which is tokenised.

use std::path::{Path, PathBuf};

use rekindle_program::random::Stream;

use crate::arrays::{Arrays, INPUTS};
use crate::images::{Images, Pixels};
use crate::sample::{Answers, SampleMut, Samples, Wanted};
use crate::text::{Tokenised, tokenise};
use crate::tokens::Tokens;
use crate::{DataError, DataOptions};

/// Samples that a model can be trained on.
pub struct Dataset {
    samples: Box<dyn Samples>,
    wanted: Wanted,
    answers: Answers,
    about: String,
    /// The names of the classes, where folders name them.
    classes: Option<Vec<String>>,
    class_count: Option<usize>,
    /// Files that were left out when the data was opened.
    skipped: Vec<(PathBuf, String)>,
}

impl Dataset {
    /// Opens what is at `path`.
    ///
    /// # Errors
    /// If it holds nothing that the model takes, or cannot be read.
    pub fn open(path: &Path, wanted: Wanted, options: &DataOptions) -> Result<Dataset, DataError> {
        match wanted {
            Wanted::Tokens { sequence, vocab } if options.answers == Answers::Usual => {
                tokens(path, wanted, sequence, vocab, options)
            }
            Wanted::Images { .. } if !has_arrays(path) => images(path, wanted, options),
            _ => arrays(path, wanted, options),
        }
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What each sample is.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// What each sample is to be answered with.
    pub fn answers(&self) -> Answers {
        self.answers
    }

    /// What it is, for a person.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// The names of the classes, where folders name them.
    pub fn classes(&self) -> Option<&[String]> {
        self.classes.as_deref()
    }

    /// How many classes the samples belong to; nothing for tokens.
    pub fn class_count(&self) -> Option<usize> {
        self.class_count
    }

    /// Files that were left out when the data was opened, with the reason.
    pub fn skipped(&self) -> &[(PathBuf, String)] {
        &self.skipped
    }

    pub(crate) fn read(
        &self,
        index: usize,
        draw: Option<Stream>,
        to: SampleMut<'_>,
    ) -> Result<(), DataError> {
        self.samples.read(index, draw, to)
    }
}

/// The share of data's memory that decoding one image may take.
const DECODING: u64 = 2;

fn images(path: &Path, wanted: Wanted, options: &DataOptions) -> Result<Dataset, DataError> {
    let Wanted::Images { height, width, channels, channels_first } = wanted else {
        unreachable!("asked for images")
    };
    if !matches!(options.answers, Answers::Usual | Answers::Classes { count: 1 }) {
        return Err(DataError::NoArrays { path: path.to_owned() });
    }
    let memory = options.memory.get() / DECODING;
    let options = options.images.clone();
    let pixels = Pixels { height, width, channels, channels_first, options, memory };
    let images = Images::open(path, pixels)?;
    let count = images.classes.len();
    Ok(Dataset {
        about: format!("{} images of {count} classes", images.len()),
        classes: Some(images.classes.clone()),
        class_count: Some(count),
        samples: Box::new(images),
        wanted,
        answers: Answers::Usual,
        skipped: Vec::new(),
    })
}

/// Whether a path is of arrays and not of folders of images.
fn has_arrays(path: &Path) -> bool {
    !path.is_dir() || INPUTS.iter().any(|name| path.join(format!("{name}.npy")).exists())
}

fn arrays(path: &Path, wanted: Wanted, options: &DataOptions) -> Result<Dataset, DataError> {
    let arrays = Arrays::open(path, wanted, options)?;
    let count = arrays.classes()?;
    let about = match (count, options.answers.numbers()) {
        (Some(count), _) => format!("{} samples of {count} classes", arrays.len()),
        (None, numbers) => format!("{} samples, {numbers} numbers for each", arrays.len()),
    };
    Ok(Dataset {
        about,
        classes: None,
        class_count: count,
        samples: Box::new(arrays),
        wanted,
        answers: options.answers,
        skipped: Vec::new(),
    })
}

fn tokens(
    path: &Path,
    wanted: Wanted,
    sequence: usize,
    vocab: usize,
    options: &DataOptions,
) -> Result<Dataset, DataError> {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let (tokens, skipped, of) = match ending {
        "bin" | "npy" if !path.is_dir() => {
            (Tokens::open(path, options.token_type, sequence, vocab)?, Vec::new(), String::new())
        }
        _ => {
            let files = texts(path)?;
            let tokenizer = options.tokenizer.as_deref().ok_or(DataError::NoTokenizer)?;
            let Tokenised { array, skipped } =
                tokenise(&files, tokenizer, vocab, options.bad_files)?;
            let of = format!(" of {} text files", files.len() - skipped.len());
            (Tokens::new(array, sequence, vocab)?, skipped, of)
        }
    };
    let (count, sequences) = (tokens.count(), tokens.len());
    Ok(Dataset {
        about: format!("{count} tokens{of}, {sequences} sequences of {sequence}"),
        samples: Box::new(tokens),
        wanted,
        answers: Answers::Usual,
        classes: None,
        class_count: None,
        skipped,
    })
}

/// The text files of a folder and of the folders in it, by name; or the one that is named.
fn texts(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let fail = |source| DataError::Read { path: folder.clone(), source };
        for entry in std::fs::read_dir(&folder).map_err(fail)? {
            let entry = entry.map_err(fail)?.path();
            match entry.extension().and_then(|e| e.to_str()) {
                _ if entry.is_dir() => folders.push(entry),
                Some("txt" | "md") => found.push(entry),
                _ => {}
            }
        }
    }
    found.sort();
    match found.is_empty() {
        false => Ok(found),
        true => Err(DataError::Nothing {
            path: path.to_owned(),
            why: "it has no .txt or .md file".into(),
        }),
    }
}
