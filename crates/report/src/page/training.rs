//! The curves of training runs, as plain data.

use serde::Serialize;

/// What the metrics of a run tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrainingRun {
    /// Some updates, in their order: as many as a curve can show.
    pub updates: Vec<TrainingPoint>,
    /// Every evaluation, in their order.
    pub evaluations: Vec<EvaluationPoint>,
}

/// An update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainingPoint {
    /// Which update it was, counted from 1.
    pub update: f64,
    /// Its loss.
    pub loss: f64,
}

/// An evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EvaluationPoint {
    /// After which update.
    pub update: f64,
    /// The mean loss.
    pub loss: f64,
    /// The share that was right.
    pub accuracy: f64,
}

impl TrainingRun {
    /// More points than this are more than a screen has columns.
    pub const MOST: usize = 1000;

    /// The run with few enough updates: each is the mean of some that follow each other.
    #[must_use]
    pub fn thinned(self) -> TrainingRun {
        let step = self.updates.len().div_ceil(TrainingRun::MOST).max(1);
        let mean = |points: &[TrainingPoint]| {
            let count = points.len() as f64;
            let sum = |of: fn(&TrainingPoint) -> f64| points.iter().map(of).sum::<f64>() / count;
            TrainingPoint { update: sum(|p| p.update), loss: sum(|p| p.loss) }
        };
        TrainingRun { updates: self.updates.chunks(step).map(mean).collect(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_thinned_by_means() {
        let point = |update| TrainingPoint { update, loss: 2.0 * update };
        let run = |count: usize| TrainingRun {
            updates: (1..=count).map(|update| point(update as f64)).collect(),
            evaluations: Vec::new(),
        };
        assert_eq!(run(7).thinned(), run(7));
        let thin = run(2 * TrainingRun::MOST).thinned();
        assert_eq!(thin.updates.len(), TrainingRun::MOST);
        assert_eq!(thin.updates[0], TrainingPoint { update: 1.5, loss: 3.0 });
    }
}
