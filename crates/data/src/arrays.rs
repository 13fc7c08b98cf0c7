//! Samples in arrays: one row of `inputs` and one of `labels` for each.
//!
//! A folder has them as `.npy` files, a safetensors file as tensors, by the names in [`INPUTS`] and
//! [`LABELS`]. Images may be stored with their channels last or first, whichever way the model
//! takes them. Numbers are taken as they are, but for the mean and deviation that were asked for.

use std::path::Path;

use rekindle_program::random::Stream;

use crate::array::Array;
use crate::sample::{FeaturesMut, Samples};
use crate::{DataError, ImageOptions, Wanted};

/// What the array of inputs may be called.
pub(crate) const INPUTS: [&str; 4] = ["inputs", "images", "x", "X"];
/// What the array of labels may be called.
pub(crate) const LABELS: [&str; 4] = ["labels", "targets", "y", "Y"];

/// Two arrays.
pub(crate) struct Arrays {
    inputs: Array,
    labels: Array,
    wanted: Wanted,
    options: ImageOptions,
    /// Whether images are stored with the channels where the model does not take them.
    turned: bool,
    classes: Option<usize>,
}

impl Arrays {
    pub(crate) fn open(
        path: &Path,
        wanted: Wanted,
        classes: Option<usize>,
        options: ImageOptions,
    ) -> Result<Arrays, DataError> {
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
        if labels.len() != inputs.rows() as u64 {
            let why = format!("{} labels for {} inputs", labels.len(), inputs.rows());
            return unsuitable(&labels, why);
        }
        let turned = match turned(&wanted, inputs.shape.get(1..).unwrap_or_default()) {
            Some(turned) => turned,
            None => {
                let why = format!("its rows have shape {:?}, not {wanted:?}", &inputs.shape[1..]);
                return unsuitable(&inputs, why);
            }
        };
        Ok(Arrays { inputs, labels, wanted, options, turned, classes })
    }

    /// How many classes the labels name: one more than the highest of them.
    pub(crate) fn classes(&self) -> Result<usize, DataError> {
        const PIECE: usize = 4096;
        let mut highest = 0;
        let mut piece = [0; PIECE];
        for first in (0..self.labels.rows()).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(self.labels.rows() - first)];
            self.labels.whole(first as u64, piece)?;
            highest = piece.iter().copied().fold(highest, i64::max);
        }
        Ok(highest as usize + 1)
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
        Wanted::Tokens { .. } => None,
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
        features: FeaturesMut<'_>,
        labels: &mut [i64],
    ) -> Result<(), DataError> {
        let FeaturesMut::Numbers(into) = features else { unreachable!("arrays are numbers") };
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
        self.labels.whole(index as u64, labels)?;
        match self.classes.filter(|&classes| !(0..classes as i64).contains(&labels[0])) {
            None => Ok(()),
            Some(classes) => Err(DataError::LabelOutOfRange {
                path: self.labels.path().to_owned(),
                row: index,
                label: labels[0],
                classes,
            }),
        }
    }
}
