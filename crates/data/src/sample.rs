//! What a model takes, and where one sample of it is written.

use rekindle_program::random::Stream;

use crate::DataError;

/// What each sample must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Images.
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
    /// So many numbers.
    Features {
        /// How many numbers.
        len: usize,
    },
    /// Sequences of tokens.
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
}

/// What each sample is to be answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// A class; for a sequence of tokens, the token that follows each.
    #[default]
    Usual,
    /// So many classes, such as one for each pixel, or one for a sequence of tokens.
    Classes {
        /// How many.
        count: usize,
    },
    /// So many numbers.
    Numbers {
        /// How many.
        count: usize,
    },
}

impl Answers {
    /// Labels of one sample. Where the answer is numbers, the label says that the sample counts.
    pub fn labels(self, wanted: &Wanted) -> usize {
        match (self, *wanted) {
            (Answers::Usual, Wanted::Tokens { sequence, .. }) => sequence,
            (Answers::Usual | Answers::Numbers { .. }, _) => 1,
            (Answers::Classes { count }, _) => count,
        }
    }

    /// Numbers that one sample is answered with.
    pub fn numbers(self) -> usize {
        match self {
            Answers::Numbers { count } => count,
            Answers::Usual | Answers::Classes { .. } => 0,
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

/// The place of one sample.
pub(crate) struct SampleMut<'a> {
    pub(crate) features: FeaturesMut<'a>,
    pub(crate) labels: &'a mut [i64],
    /// Empty where the answer is no numbers.
    pub(crate) numbers: &'a mut [f32],
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
    fn read(&self, index: usize, draw: Option<Stream>, to: SampleMut<'_>) -> Result<(), DataError>;
}
