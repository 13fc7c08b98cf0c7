//! Samples in arrays: one row of `inputs` and one of `labels` for each.
//!
//! A folder has them as `.npy` files, a safetensors file as tensors, by the names in [`INPUTS`] and
//! [`LABELS`]. Images may be stored with their channels last or first, whichever way the model
//! takes them. Numbers are taken as they are, but for the mean and deviation that were asked for.

use std::path::Path;

use rekindle_program::random::Stream;

use crate::array::Array;
use crate::batches::IGNORED;
use crate::sample::{FeaturesMut, SampleMut, Samples};
use crate::{Answers, DataError, DataOptions, ImageOptions, Wanted};

/// What the array of inputs may be called.
pub(crate) const INPUTS: [&str; 4] = ["inputs", "images", "x", "X"];
/// What the array of labels may be called.
pub(crate) const LABELS: [&str; 4] = ["labels", "targets", "y", "Y"];

/// Two arrays.
pub(crate) struct Arrays {
    inputs: Array,
    labels: Array,
    wanted: Wanted,
    answers: Answers,
    options: ImageOptions,
    /// Whether images are stored with the channels where the model does not take them.
    turned: bool,
    classes: Option<usize>,
}

impl Arrays {
    pub(crate) fn open(
        path: &Path,
        wanted: Wanted,
        options: &DataOptions,
    ) -> Result<Arrays, DataError> {
        let (answers, classes) = (options.answers, options.classes);
        let array = |names: &[&str]| -> Result<Array, DataError> {
            let found = match path.is_dir() {
                true => {
                    let mut files = names.iter().map(|name| path.join(format!("{name}.npy")));
                    files.find(|file| file.exists()).map(|file| Array::npy(&file)).transpose()?
                }
                false => Array::safetensors(path, names)?,
            };
            found.ok_or_else(|| DataError::Nothing {
                path: path.to_owned(),
                why: format!("it has no array named {}", names.join(" or ")),
            })
        };
        let (inputs, labels) = (array(&INPUTS)?, array(&LABELS)?);
        let unsuitable = |array: &Array, why: String| {
            Err(DataError::Unsuitable { path: array.path().to_owned(), why })
        };
        let (each, what) = match answers.numbers() {
            0 => (answers.labels(&wanted), "labels"),
            numbers => (numbers, "numbers"),
        };
        if Some(labels.len()) != (inputs.rows() as u64).checked_mul(each as u64) {
            let (found, rows) = (labels.len(), inputs.rows());
            let why = format!("{found} {what} for {rows} inputs, with {each} to each");
            return unsuitable(&labels, why);
        }
        let turned = match turned(&wanted, inputs.shape.get(1..).unwrap_or_default()) {
            Some(turned) => turned,
            None => {
                let why = format!("its rows have shape {:?}, not {wanted:?}", &inputs.shape[1..]);
                return unsuitable(&inputs, why);
            }
        };
        let options = options.images.clone();
        Ok(Arrays { inputs, labels, wanted, answers, options, turned, classes })
    }

    /// How many classes the labels name: one more than the highest of them; nothing where they are
    /// numbers.
    pub(crate) fn classes(&self) -> Result<Option<usize>, DataError> {
        const PIECE: usize = 4096;
        if self.answers.numbers() > 0 {
            return Ok(None);
        }
        let mut highest = 0;
        let mut piece = [0; PIECE];
        let all = self.labels.len();
        for first in (0..all).step_by(PIECE) {
            let piece = &mut piece[..(all - first).min(PIECE as u64) as usize];
            self.labels.whole(first, piece)?;
            highest = piece.iter().copied().fold(highest, i64::max);
        }
        Ok(Some((highest as usize).saturating_add(1)))
    }
}

/// Whether the channels stand elsewhere than the model takes them; nothing if rows of that shape do
/// not fit.
fn turned(wanted: &Wanted, shape: &[usize]) -> Option<bool> {
    match *wanted {
        Wanted::Images { height, width, channels, channels_first } => {
            let last = [height, width, channels];
            let first = [channels, height, width];
            let (straight, turned) = if channels_first { (first, last) } else { (last, first) };
            match shape {
                _ if shape == straight => Some(false),
                _ if shape == turned => Some(true),
                [h, w] if [*h, *w] == [height, width] && channels == 1 => Some(false),
                _ => None,
            }
        }
        Wanted::Features { len } => (shape.iter().product::<usize>() == len).then_some(false),
        Wanted::Tokens { sequence, .. } => {
            (shape.iter().product::<usize>() == sequence).then_some(false)
        }
    }
}

impl Samples for Arrays {
    fn len(&self) -> usize {
        self.inputs.rows()
    }

    fn read(
        &self,
        index: usize,
        _: Option<Stream>,
        SampleMut { features, labels, numbers }: SampleMut<'_>,
    ) -> Result<(), DataError> {
        self.answer(index, labels, numbers)?;
        let into = match features {
            FeaturesMut::Numbers(into) => into,
            FeaturesMut::Ids(ids) => return self.ids(index, ids),
        };
        self.inputs.row(index, into)?;
        if let Wanted::Images { height, width, channels, channels_first } = self.wanted {
            let pixels = height * width;
            if self.turned {
                let stored = into.to_vec();
                for (at, value) in stored.into_iter().enumerate() {
                    let to = match channels_first {
                        true => at % channels * pixels + at / channels,
                        false => at % pixels * channels + at / pixels,
                    };
                    into[to] = value;
                }
            }
            for (at, value) in into.iter_mut().enumerate() {
                let channel = if channels_first { at / pixels } else { at % channels };
                let (mean, deviation) = self.options.normal(channel);
                *value = (*value - mean) / deviation;
            }
        }
        Ok(())
    }
}

impl Arrays {
    /// The tokens of a row, each of which the model must know.
    fn ids(&self, index: usize, into: &mut [i64]) -> Result<(), DataError> {
        let Wanted::Tokens { vocab, .. } = self.wanted else { unreachable!("ids are of tokens") };
        let first = index as u64 * into.len() as u64;
        self.inputs.whole(first, into)?;
        let bad = (first..).zip(&*into).find(|(_, id)| !(0..vocab as i64).contains(*id));
        match bad {
            None => Ok(()),
            Some((position, &token)) => Err(DataError::TokenOutOfRange {
                path: self.inputs.path().to_owned(),
                position,
                token: token as u64,
                vocab,
            }),
        }
    }

    /// What a row is to be answered with.
    fn answer(
        &self,
        index: usize,
        labels: &mut [i64],
        numbers: &mut [f32],
    ) -> Result<(), DataError> {
        if !numbers.is_empty() {
            labels.fill(0);
            return self.labels.numbers(index as u64 * numbers.len() as u64, numbers);
        }
        self.labels.whole(index as u64 * labels.len() as u64, labels)?;
        // What does not count, such as a pixel at a border, may be marked so in several of them.
        let counts = |&&label: &&i64| label != IGNORED || labels.len() == 1;
        let Some(classes) = self.classes else { return Ok(()) };
        match labels.iter().filter(counts).find(|label| !(0..classes as i64).contains(*label)) {
            None => Ok(()),
            Some(&label) => Err(DataError::LabelOutOfRange {
                path: self.labels.path().to_owned(),
                row: index,
                label,
                classes,
            }),
        }
    }
}
