//! How good a model is on data that it does not learn from: loss, accuracy, perplexity.
//!
//! The forward pass runs in the memory of the training step, between two of its runs: parameters
//! are where they are, and the rest of the arena is free then. Metrics come from the logits, row by
//! row and in the rows' order.

use rekindle_data::{Answers, Batch, Batches, Features, Skipped, Wanted};
use rekindle_engine::{Engine, EngineError, Iteration, Layout};
use rekindle_graph::Bytes;
use rekindle_models::{Input, InputKind, Model};

use crate::Error;

/// What the samples of a model's data are, and what they are to be answered with: the first input
/// and the second.
///
/// # Errors
/// If the model learns from something that no data here is.
pub fn wanted(model: &Model) -> Result<(Wanted, Answers), Error> {
    let refuse = || Err(Error::NoData { model: model.program.name.clone() });
    let [data, labels] = &model.inputs[..] else {
        return refuse();
    };
    let wanted = features(model, data)?;
    let samples = model.program.tensor(data.tensor).shape[0].max(1);
    let all = model.program.tensor(labels.tensor).len();
    if !all.is_multiple_of(samples) {
        return refuse();
    }
    let count = all / samples;
    let answers = match (labels.kind, &wanted) {
        (InputKind::NextLabels { .. }, _) => Answers::Usual,
        (InputKind::Classes { .. }, Wanted::Images { .. } | Wanted::Features { .. })
            if count == 1 =>
        {
            Answers::Usual
        }
        // A loss that the graph has reads ids or numbers like any other input.
        (InputKind::Classes { .. } | InputKind::Tokens { .. }, _) => Answers::Classes { count },
        (InputKind::Targets | InputKind::Features { .. }, _) => Answers::Numbers { count },
        _ => return refuse(),
    };
    match answers {
        Answers::Usual if count != answers.labels(&wanted) => refuse(),
        _ => Ok((wanted, answers)),
    }
}

/// What the features of each sample are.
fn features(model: &Model, data: &Input) -> Result<Wanted, Error> {
    let refuse = || Err(Error::NoData { model: model.program.name.clone() });
    let shape = &model.program.tensor(data.tensor).shape;
    match (data.kind, &shape[..]) {
        (InputKind::Features { .. }, &[_, a, b, c]) => {
            let channels_first = a <= 4 && c > 4;
            let [height, width, channels] = if channels_first { [b, c, a] } else { [a, b, c] };
            Ok(Wanted::Images { height, width, channels, channels_first })
        }
        (InputKind::Features { .. }, [_, rest @ ..]) => {
            Ok(Wanted::Features { len: rest.iter().product() })
        }
        (InputKind::Tokens { vocab }, &[_, sequence]) => Ok(Wanted::Tokens { sequence, vocab }),
        _ => refuse(),
    }
}

/// What was found on some data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// The mean over all rows: samples, or tokens.
    pub loss: f64,
    /// The share of rows whose class has the highest logit; not a number where there are none.
    pub accuracy: f64,
    /// The share of rows whose class is among the five highest; not a number where there are none.
    pub top5: f64,
    /// How many rows there were.
    pub rows: u64,
}

impl Metrics {
    /// `e` to the loss: between how many tokens the model still hesitates.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// A model that is evaluated.
pub struct Evaluation<'m> {
    model: &'m Model,
    layout: Layout,
    batches: Batches,
}

impl<'m> Evaluation<'m> {
    /// Evaluates `model`, built to infer, on these batches, in the memory of the step that `layout`
    /// is of.
    ///
    /// # Errors
    /// If that step does not have the model's parameters in memory.
    pub fn beside(
        layout: &Layout,
        model: &'m Model,
        batches: Batches,
    ) -> Result<Evaluation<'m>, Error> {
        let layout = layout.beside(&model.program)?;
        Ok(Evaluation { model, layout, batches })
    }

    /// The arena that it needs.
    pub fn room(&self) -> Bytes {
        self.layout.room()
    }

    /// How many samples it takes.
    pub fn samples(&self) -> usize {
        self.batches.samples()
    }

    /// Runs it in the memory of `engine`. `watch` is told how many batches of how many are over,
    /// and which files were skipped.
    ///
    /// # Errors
    /// If data cannot be read.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        watch: &mut dyn FnMut(u64, u64, &[Skipped]),
    ) -> Result<Metrics, Error> {
        let total = self.batches.per_epoch();
        let mut sums = Sums::default();
        for number in 0..total {
            let batch = self.batches.read(number)?;
            let model = self.model;
            let ran = engine.run_beside(&mut self.layout, |engine| sums.add(engine, model, &batch));
            ran?;
            watch(number + 1, total, &batch.skipped);
        }
        Ok(sums.metrics())
    }
}

/// Writes a batch to where a model reads it.
pub(crate) fn feed(engine: &mut Engine, model: &Model, batch: &Batch) -> Result<(), EngineError> {
    let [features, labels] = [0, 1].map(|k| model.inputs[k].tensor);
    match &batch.features {
        Features::Numbers(values) => engine.write_f32(features, values)?,
        Features::Ids(ids) => engine.write_i64(features, ids)?,
    }
    match batch.numbers.is_empty() {
        true => engine.write_i64(labels, &batch.labels),
        false => engine.write_f32(labels, &batch.numbers),
    }
}

#[derive(Default)]
struct Sums {
    loss: f64,
    first: u64,
    top5: u64,
    rows: u64,
    /// Whether rows have classes.
    ranked: bool,
}

impl Sums {
    fn add(
        &mut self,
        engine: &mut Engine,
        model: &Model,
        batch: &Batch,
    ) -> Result<(), EngineError> {
        feed(engine, model, batch)?;
        engine.run(Iteration { seed: 0, number: 1 })?;
        let counted = batch.labels.iter().filter(|&&label| label >= 0).count() as u64;
        self.rows += counted;
        let loss = f64::from(engine.read_f32(model.loss)?[0]);
        let Some(logits) = model.logits else {
            self.loss += loss * counted as f64;
            return Ok(());
        };
        let logits = engine.read_f32(logits)?;
        if logits.len() == batch.numbers.len() {
            // Samples that only fill up the batch are in its loss.
            self.loss += square_errors(&logits, batch);
            return Ok(());
        }
        self.loss += loss * counted as f64;
        if !batch.numbers.is_empty() || !logits.len().is_multiple_of(batch.labels.len().max(1)) {
            return Ok(());
        }
        self.ranked = true;
        let classes = logits.len() / batch.labels.len().max(1);
        for (row, &label) in logits.chunks_exact(classes.max(1)).zip(&batch.labels) {
            if let Ok(label) = usize::try_from(label) {
                let rank = rank(row, label);
                self.first += u64::from(rank == 0);
                self.top5 += u64::from(rank < 5);
            }
        }
        Ok(())
    }

    fn metrics(&self) -> Metrics {
        let share = |count: u64| match self.ranked {
            true => count as f64 / self.rows.max(1) as f64,
            false => f64::NAN,
        };
        Metrics {
            loss: self.loss / self.rows.max(1) as f64,
            accuracy: share(self.first),
            top5: share(self.top5),
            rows: self.rows,
        }
    }
}

/// The sum over the samples that count of their mean squared errors.
fn square_errors(outputs: &[f32], batch: &Batch) -> f64 {
    let each = outputs.len() / batch.labels.len().max(1);
    let counted = batch.samples * each;
    let pairs = outputs[..counted].iter().zip(&batch.numbers);
    let sum: f64 = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    sum / each.max(1) as f64
}

/// How many classes come before this one; of equal ones the first does.
fn rank(logits: &[f32], class: usize) -> usize {
    let own = logits[class];
    let before = |(index, &logit): (usize, &f32)| logit > own || (logit == own && index < class);
    logits.iter().enumerate().filter(|&each| before(each)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_ranked_by_its_logit_and_then_by_its_number() {
        let logits = [1.0, 3.0, 2.0, 3.0];
        assert_eq!([0, 1, 2, 3].map(|class| rank(&logits, class)), [3, 0, 2, 1]);
    }
}
