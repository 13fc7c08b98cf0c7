//! What a model takes, and where one sample of it is written.

use rekindle_program::random::Stream;

use crate::DataError;

/// What each sample must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Images and a class for each.
    Images {
        /// Rows of pixels.
        height: usize,
        /// Columns of pixels.
        width: usize,
        /// 3 for colours, 1 for grey.
        channels: usize,
        /// Whether the model takes each channel as a plane of its own.
        channels_first: bool,
    },
    /// So many numbers and a class for each sample.
    Features {
        /// How many numbers.
        len: usize,
    },
    /// Sequences of tokens, and for each token the one that follows it.
    Tokens {
        /// Tokens in a sequence.
        sequence: usize,
        /// How many different tokens there are.
        vocab: usize,
    },
}

impl Wanted {
    /// Numbers of one sample.
    pub fn features(&self) -> usize {
        match *self {
            Wanted::Images { height, width, channels, .. } => height * width * channels,
            Wanted::Features { len } => len,
            Wanted::Tokens { sequence, .. } => sequence,
        }
    }

    /// Labels of one sample.
    pub fn labels(&self) -> usize {
        match *self {
            Wanted::Images { .. } | Wanted::Features { .. } => 1,
            Wanted::Tokens { sequence, .. } => sequence,
        }
    }
}

/// The features of some samples: numbers, or the ids of tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Features {
    /// Numbers.
    Numbers(Vec<f32>),
    /// Ids.
    Ids(Vec<i64>),
}

impl Features {
    /// Room for so many samples, all zero.
    pub(crate) fn zeros(wanted: &Wanted, samples: usize) -> Features {
        let len = samples * wanted.features();
        match wanted {
            Wanted::Images { .. } | Wanted::Features { .. } => Features::Numbers(vec![0.0; len]),
            Wanted::Tokens { .. } => Features::Ids(vec![0; len]),
        }
    }

    /// The place of one sample.
    pub(crate) fn sample(&mut self, index: usize, len: usize) -> FeaturesMut<'_> {
        let range = index * len..(index + 1) * len;
        match self {
            Features::Numbers(all) => FeaturesMut::Numbers(&mut all[range]),
            Features::Ids(all) => FeaturesMut::Ids(&mut all[range]),
        }
    }
}

/// The place of one sample's features.
pub(crate) enum FeaturesMut<'a> {
    Numbers(&'a mut [f32]),
    Ids(&'a mut [i64]),
}

/// Where samples come from.
pub(crate) trait Samples: Send + Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Writes one sample. What is random in it, such as where an image is cropped, is drawn from
    /// `draw`; without it nothing is random.
    ///
    /// # Errors
    /// [`DataError::BadFile`] if it is the sample that cannot be used.
    fn read(
        &self,
        index: usize,
        draw: Option<Stream>,
        features: FeaturesMut<'_>,
        labels: &mut [i64],
    ) -> Result<(), DataError>;
}
