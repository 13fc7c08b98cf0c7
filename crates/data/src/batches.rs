//! Samples in the order of an epoch, batch after batch.
//!
//! Batch `n` is a pure function of the data, the seed and `n`: an epoch's order is a permutation
//! that is drawn from the seed and the epoch's number, and what is random in a sample from those
//! and the sample. In training, what is left of an epoch after its last whole batch is left out, so
//! that every step has the same size; the next epoch has another order. Otherwise the last batch is
//! filled up with samples that do not count.

use std::path::PathBuf;
use std::sync::Arc;

use rekindle_graph::Bytes;
use rekindle_program::random::Stream;

use crate::sample::{Features, SampleMut};
use crate::{BadFiles, DataError, Dataset};

/// The label of what does not count.
pub const IGNORED: i64 = -100;

/// Some samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The features of all samples, one after the other.
    pub features: Features,
    /// The labels of all samples; [`IGNORED`] for those that do not count.
    pub labels: Vec<i64>,
    /// The numbers that the samples are to be answered with, if they are; zero for those that do
    /// not count.
    pub numbers: Vec<f32>,
    /// How many samples count.
    pub samples: usize,
    /// Bad files in whose place others stand.
    pub skipped: Vec<Skipped>,
}

/// A file that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// The streams of a seed, one for each question.
const SPLIT: u64 = 0;
const ORDER: u64 = 1;
const SAMPLE: u64 = 2;

/// A permutation of the numbers below `count`, drawn from `stream` (Fisher and Yates).
pub fn order(stream: Stream, count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    for last in (1..count).rev() {
        let other = (stream.unit(last as u64) * (last + 1) as f64) as usize;
        order.swap(last, other.min(last));
    }
    order
}

/// Parts samples into those to train on and those to validate with, a `share` of all: drawn from
/// the seed, or, where samples follow each other as a text does, the last ones.
pub fn split(dataset: &Dataset, share: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    let count = dataset.len();
    let held = ((count as f64 * share).round() as usize).min(count);
    let mut all = match dataset.wanted() {
        crate::Wanted::Tokens { .. } => (0..count as u32).collect(),
        _ => order(Stream::new(seed).branch(SPLIT), count),
    };
    let mut held = all.split_off(count - held);
    all.sort_unstable();
    held.sort_unstable();
    (all, held)
}

/// Batches of some samples of a data set.
#[derive(Clone)]
pub struct Batches {
    dataset: Arc<Dataset>,
    /// Which samples.
    part: Arc<[u32]>,
    batch: usize,
    seed: u64,
    training: bool,
    bad_files: BadFiles,
    /// The epoch whose order is known, and that order.
    epoch: Option<(u64, Arc<[u32]>)>,
}

impl Batches {
    /// Shuffled and varied, epoch after epoch without end.
    ///
    /// # Errors
    /// If there are not enough samples for a batch.
    pub fn training(
        dataset: Arc<Dataset>,
        part: Vec<u32>,
        batch: usize,
        seed: u64,
        bad_files: BadFiles,
    ) -> Result<Batches, DataError> {
        if part.len() < batch {
            return Err(DataError::TooFew { samples: part.len(), batch });
        }
        let part = part.into();
        Ok(Batches { dataset, part, batch, seed, training: true, bad_files, epoch: None })
    }

    /// Each sample once, as it is and in order.
    pub fn evaluation(
        dataset: Arc<Dataset>,
        part: Vec<u32>,
        batch: usize,
        bad_files: BadFiles,
    ) -> Batches {
        let part = part.into();
        Batches { dataset, part, batch, seed: 0, training: false, bad_files, epoch: None }
    }

    /// Batches in an epoch.
    pub fn per_epoch(&self) -> u64 {
        match self.training {
            true => (self.part.len() / self.batch) as u64,
            false => self.part.len().div_ceil(self.batch) as u64,
        }
    }

    /// Samples in a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// How many samples there are.
    pub fn samples(&self) -> usize {
        self.part.len()
    }

    /// What a batch takes.
    pub fn batch_bytes(&self) -> Bytes {
        let wanted = self.dataset.wanted();
        let feature = match wanted {
            crate::Wanted::Tokens { .. } => size_of::<i64>(),
            _ => size_of::<f32>(),
        };
        let answers = self.dataset.answers();
        let sample = wanted.features() * feature
            + answers.labels(&wanted) * size_of::<i64>()
            + answers.numbers() * size_of::<f32>();
        Bytes((self.batch * sample) as u64)
    }

    /// Batch number `number`, counted from 0 over all epochs.
    ///
    /// # Errors
    /// If a file is bad and shall not be skipped, or something cannot be read.
    pub fn read(&mut self, number: u64) -> Result<Batch, DataError> {
        let per_epoch = self.per_epoch().max(1);
        let (epoch, place) = (number / per_epoch, (number % per_epoch) as usize);
        let order = self.order_of(epoch);
        let wanted = self.dataset.wanted();
        let answers = self.dataset.answers();
        let first = place * self.batch;
        let samples = self.batch.min(self.part.len() - first);
        let mut batch = Batch {
            features: Features::zeros(&wanted, self.batch),
            labels: vec![IGNORED; self.batch * answers.labels(&wanted)],
            numbers: vec![0.0; self.batch * answers.numbers()],
            samples,
            skipped: Vec::new(),
        };
        for row in 0..samples {
            self.read_sample(&mut batch, &order, epoch, first + row, row)?;
        }
        Ok(batch)
    }

    /// Writes the sample at a place of the order or, where that one is bad and others are, the next
    /// that is not: so a batch is whole, and the same whenever it is read.
    fn read_sample(
        &self,
        batch: &mut Batch,
        order: &[u32],
        epoch: u64,
        place: usize,
        row: usize,
    ) -> Result<(), DataError> {
        let (wanted, answers) = (self.dataset.wanted(), self.dataset.answers());
        let (labels, numbers) = (answers.labels(&wanted), answers.numbers());
        let stream = Stream::new(self.seed).branch(SAMPLE).branch(epoch);
        let mut last = None;
        for further in 0..order.len() {
            let index = order[(place + further) % order.len()];
            let draw = self.training.then(|| stream.branch(u64::from(index)));
            let to = SampleMut {
                features: batch.features.sample(row, wanted.features()),
                labels: &mut batch.labels[row * labels..(row + 1) * labels],
                numbers: &mut batch.numbers[row * numbers..(row + 1) * numbers],
            };
            match (self.dataset.read(index as usize, draw, to), self.bad_files) {
                (Err(DataError::BadFile { path, why }), BadFiles::Skip) => {
                    batch.skipped.push(Skipped { path: path.clone(), why: why.clone() });
                    last = Some((path, why));
                }
                (read, _) => return read,
            }
        }
        let (path, why) = last.expect("a batch has samples");
        Err(DataError::AllBad { tried: order.len(), path, why })
    }

    /// The samples in the order of an epoch.
    fn order_of(&mut self, epoch: u64) -> Arc<[u32]> {
        if !self.training {
            return Arc::clone(&self.part);
        }
        match &self.epoch {
            Some((known, order)) if *known == epoch => Arc::clone(order),
            _ => {
                let stream = Stream::new(self.seed).branch(ORDER).branch(epoch);
                let places = order(stream, self.part.len());
                let order: Arc<[u32]> = places.iter().map(|&at| self.part[at as usize]).collect();
                self.epoch = Some((epoch, Arc::clone(&order)));
                order
            }
        }
    }
}
