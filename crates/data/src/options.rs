//! How data is read: all that a user chooses.

use std::path::PathBuf;

use rekindle_graph::Bytes;

use crate::Answers;

/// What becomes of files that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadFiles {
    /// The first one ends the run.
    #[default]
    Refuse,
    /// They are named, and left out.
    Skip,
}

/// The numbers of a raw token file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenType {
    /// 16 bits each.
    #[default]
    U16,
    /// 32 bits each.
    U32,
}

/// How images become numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageOptions {
    /// What the shorter side is resized to before the image is cropped, if that is more than the
    /// model's size.
    pub resize: Option<usize>,
    /// Crop at random instead of in the middle, in training.
    pub random_crop: bool,
    /// Mirror half of the images, in training.
    pub flip: bool,
    /// What is subtracted from each channel; the last one stands for all that follow.
    pub mean: Vec<f32>,
    /// What each channel is divided by; the last one stands for all that follow.
    pub deviation: Vec<f32>,
}

impl ImageOptions {
    /// The mean and the deviation of a channel.
    pub(crate) fn normal(&self, channel: usize) -> (f32, f32) {
        let of =
            |values: &[f32], usual| values.get(channel).or(values.last()).copied().unwrap_or(usual);
        (of(&self.mean, 0.0), of(&self.deviation, 1.0))
    }
}

/// How data is read.
#[derive(Clone, Debug, PartialEq)]
pub struct DataOptions {
    /// What becomes of files that cannot be used.
    pub bad_files: BadFiles,
    /// How images become numbers.
    pub images: ImageOptions,
    /// How many classes the model tells apart, if that is known.
    pub classes: Option<usize>,
    /// What each sample is to be answered with.
    pub answers: Answers,
    /// The tokenizer of text.
    pub tokenizer: Option<PathBuf>,
    /// The numbers of a raw token file.
    pub token_type: TokenType,
    /// What data may take of the memory: batches that are read ahead, and what decoding takes.
    pub memory: Bytes,
}

impl Default for DataOptions {
    fn default() -> DataOptions {
        DataOptions {
            bad_files: BadFiles::default(),
            images: ImageOptions::default(),
            classes: None,
            answers: Answers::default(),
            tokenizer: None,
            token_type: TokenType::default(),
            memory: Bytes(64 << 20),
        }
    }
}
