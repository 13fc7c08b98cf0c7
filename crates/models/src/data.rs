//! Synthetic batches: deterministic, different at every step, and with something to learn.
//!
//! In: a model, a seed and the number of the step. Out: values for each of its inputs. Every
//! element is a pure function of (seed, step, position), so inputs that belong together agree
//! without being made together.
//!
//! - Features are noise around a pattern that belongs to the sample's class.
//! - Tokens are drawn with a few frequent and many rare ones. Token 0, the padding, does not occur.
//! - For masked language modelling 15 % of the tokens are chosen; of these 80 % are replaced by the
//!   mask token, 10 % by a random one, and 10 % stay. The very first token is always chosen, so
//!   that a batch of any size has a loss.

use rekindle_graph::StorageId;
use rekindle_program::op::CrossEntropy;
use rekindle_program::random::Stream;

use crate::{Input, InputKind, Model, Values};

/// The share of tokens that a masked language model must guess.
const MASKED_SHARE: f64 = 0.15;
/// The shares of those that are shown as the mask token and as a random token; the rest is shown
/// as it is.
const SHOWN_AS_MASK: f64 = 0.8;
const SHOWN_AT_RANDOM: f64 = 0.1;
/// `[MASK]` in BERT's vocabulary.
const MASK_TOKEN: usize = 103;
/// The share of a class's pattern in a feature; the rest is noise. Both keep unit variance.
const PATTERN: f64 = 0.5;

/// The values of every input of `model` at this step.
pub fn batch(model: &Model, seed: u64, step: u64) -> Vec<(StorageId, Values)> {
    let batch = Batch::new(seed, step);
    let inputs = model.inputs.iter();
    inputs
        .map(|input| {
            let shape = &model.program.tensor(input.tensor).shape;
            (input.tensor, batch.values(input, shape))
        })
        .collect()
}

/// The streams of one step, one for each question that is asked of a position.
struct Batch {
    class: Stream,
    /// The same at every step.
    pattern: Stream,
    noise: Stream,
    token: Stream,
    chosen: Stream,
    shown: Stream,
    random_token: Stream,
}

impl Batch {
    fn new(seed: u64, step: u64) -> Batch {
        let data = Stream::new(seed);
        let step = data.branch(step);
        Batch {
            class: step.branch(0),
            pattern: data.branch(u64::MAX),
            noise: step.branch(1),
            token: step.branch(2),
            chosen: step.branch(3),
            shown: step.branch(4),
            random_token: step.branch(5),
        }
    }

    fn values(&self, input: &Input, shape: &[usize]) -> Values {
        let len = shape.iter().product::<usize>() as u64;
        let ids = |id: &dyn Fn(u64) -> i64| Values::I64((0..len).map(id).collect());
        match input.kind {
            InputKind::Features { classes } => {
                let samples = shape.first().copied().unwrap_or(1) as u64;
                Values::F32(self.features(samples, len / samples, classes))
            }
            InputKind::Targets => {
                let samples = shape.first().copied().unwrap_or(1) as u64;
                Values::F32(self.features(samples, len / samples, 1))
            }
            InputKind::Classes { classes } => ids(&|i| self.class(i, classes) as i64),
            InputKind::Tokens { vocab } => ids(&|i| token(self.token, i, vocab)),
            InputKind::MaskedTokens { vocab } => ids(&|i| self.masked_token(i, vocab)),
            InputKind::MaskedLabels { vocab } => ids(&|i| {
                if self.is_chosen(i) { token(self.token, i, vocab) } else { CrossEntropy::IGNORE }
            }),
            InputKind::NextLabels { vocab } => {
                let sequence = shape.last().copied().unwrap_or(1) as u64;
                ids(&|i| {
                    if (i + 1) % sequence == 0 {
                        CrossEntropy::IGNORE
                    } else {
                        token(self.token, i + 1, vocab)
                    }
                })
            }
        }
    }

    fn class(&self, sample: u64, classes: usize) -> usize {
        below(self.class.unit(sample), classes)
    }

    fn features(&self, samples: u64, len: u64, classes: usize) -> Vec<f32> {
        // A uniform draw from `[-√3, √3)` has unit variance.
        let spread = |unit: f64| (2.0 * unit - 1.0) * 3f64.sqrt();
        let noise_share = (1.0 - PATTERN * PATTERN).sqrt();
        let mut values = Vec::with_capacity((samples * len) as usize);
        for sample in 0..samples {
            let pattern = self.pattern.branch(self.class(sample, classes) as u64);
            values.extend((0..len).map(|i| {
                let noise = spread(self.noise.unit(sample * len + i));
                (PATTERN * spread(pattern.unit(i)) + noise_share * noise) as f32
            }));
        }
        values
    }

    fn is_chosen(&self, position: u64) -> bool {
        position == 0 || self.chosen.unit(position) < MASKED_SHARE
    }

    fn masked_token(&self, position: u64, vocab: usize) -> i64 {
        let shown = self.shown.unit(position);
        if !self.is_chosen(position) || shown >= SHOWN_AS_MASK + SHOWN_AT_RANDOM {
            token(self.token, position, vocab)
        } else if shown >= SHOWN_AS_MASK {
            token(self.random_token, position, vocab)
        } else {
            MASK_TOKEN.min(vocab - 1) as i64
        }
    }
}

/// A token id from 1: the cube makes small ids frequent and large ones rare.
fn token(stream: Stream, position: u64, vocab: usize) -> i64 {
    if vocab < 2 {
        return 0;
    }
    1 + below(stream.unit(position).powi(3), vocab - 1) as i64
}

/// A number below `count` from one in `[0, 1)`.
fn below(unit: f64, count: usize) -> usize {
    ((unit * count as f64) as usize).min(count.saturating_sub(1))
}
