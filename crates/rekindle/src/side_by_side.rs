//! Steps side by side: several trainers share the machine in short turns.
//!
//! In: trainers, each with its next batch in place. Out: what each step gave, with its own time.
//!
//! A machine that is busy with something else for some seconds would be slow for whichever step
//! runs just then, and two steps could not be compared. So each step runs on a thread of its own,
//! and only the one that holds the baton computes; it hands the baton on at the first end of a node
//! after [`TURN`]. A step's time is the sum of its turns.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rekindle_engine::{Direction, Observer, TransferWatch};
use rekindle_graph::{Bytes, NodeId};

use crate::{Error, IterationReport, Trainer};

/// How long a step goes on before the next one's turn: short beside the seconds for which a machine
/// is busy, long beside the few milliseconds at most in which a step's data come back to the
/// caches.
const TURN: Duration = Duration::from_millis(50);

/// Runs the next step of each trainer, all at the same time. The batches are in place already.
///
/// # Errors
/// If the measured peak of a step is not the predicted one.
pub fn side_by_side(
    trainers: &mut [&mut Trainer<'_>],
) -> Result<Vec<(IterationReport, Duration)>, Error> {
    in_turns(TURN, trainers)
}

fn in_turns(
    turn: Duration,
    trainers: &mut [&mut Trainer<'_>],
) -> Result<Vec<(IterationReport, Duration)>, Error> {
    let baton = &Arc::new(Baton::new(trainers.len()));
    std::thread::scope(|scope| {
        let run = |me, trainer: &mut Trainer<'_>| {
            let mut turns = Turns::take(baton, me, turn);
            let report = trainer.run_observed(&mut turns)?;
            Ok((report, turns.spent + turns.since.elapsed()))
        };
        let steps: Vec<_> = trainers
            .iter_mut()
            .enumerate()
            .map(|(me, trainer)| scope.spawn(move || run(me, trainer)))
            .collect();
        let join = |step: std::thread::ScopedJoinHandle<'_, _>| match step.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        steps.into_iter().map(join).collect()
    })
}

/// Says who may compute.
struct Baton {
    turn: Mutex<Turn>,
    passed: Condvar,
}

struct Turn {
    holder: usize,
    /// Whether the step of each trainer is over.
    over: Vec<bool>,
}

impl Baton {
    fn new(runners: usize) -> Baton {
        Baton {
            turn: Mutex::new(Turn { holder: 0, over: vec![false; runners] }),
            passed: Condvar::new(),
        }
    }

    /// The state is valid after every statement, so that a panic elsewhere does not matter.
    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when it is the turn of `me`.
    fn wait(&self, me: usize) {
        let turn = self.passed.wait_while(self.lock(), |t| t.holder != me);
        drop(turn.unwrap_or_else(PoisonError::into_inner));
    }

    /// Gives the turn to the next whose step is not over: `me` again, if there is nobody else.
    fn pass(&self, me: usize, over: bool) {
        let mut turn = self.lock();
        turn.over[me] = over;
        let runners = turn.over.len();
        let mut next = (1..=runners).map(|k| (me + k) % runners);
        turn.holder = next.find(|&i| !turn.over[i]).unwrap_or(me);
        drop(turn);
        self.passed.notify_all();
    }
}

/// The turns of one step. Dropping it, also while unwinding, lets the others go on.
struct Turns {
    baton: Arc<Baton>,
    me: usize,
    /// How long a turn is, at least.
    length: Duration,
    /// The time that the turns so far took.
    spent: Duration,
    /// When this turn began.
    since: Instant,
}

impl Turns {
    /// Waits for the first turn.
    fn take(baton: &Arc<Baton>, me: usize, length: Duration) -> Turns {
        baton.wait(me);
        Turns { baton: Arc::clone(baton), me, length, spent: Duration::ZERO, since: Instant::now() }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.baton.pass(self.me, true);
    }
}

impl Observer for Turns {
    fn before(&mut self, _: NodeId) {}

    fn after(&mut self, _: NodeId, _: Bytes) {
        let turn = self.since.elapsed();
        if turn >= self.length {
            self.spent += turn;
            self.baton.pass(self.me, false);
            self.baton.wait(self.me);
            self.since = Instant::now();
        }
    }

    fn transfers(&self) -> Option<Arc<dyn TransferWatch>> {
        Some(Arc::new(OwnTurn { baton: Arc::clone(&self.baton), me: self.me }))
    }
}

/// Lets a step's transfers begin in its own turns alone: otherwise the others' turns would hide
/// them. One that has begun goes on, which is little beside a turn.
struct OwnTurn {
    baton: Arc<Baton>,
    me: usize,
}

impl TransferWatch for OwnTurn {
    fn began(&self, _: NodeId, _: Direction) {
        self.baton.wait(self.me);
    }

    fn ended(&self, _: NodeId, _: Direction, _: Bytes) {}
}

#[cfg(test)]
mod tests {
    use rekindle_engine::Engine;
    use rekindle_models::{Model, ModelOptions, build};

    use super::*;

    const STEPS: usize = 2;

    fn trainer(model: &Model) -> Trainer<'_> {
        let engine = Engine::new(&model.program, 1).expect("the model is small");
        Trainer::new(model, engine, 7).expect("it has no store")
    }

    /// The models differ in length, so that a step goes on when the others are over.
    #[test]
    fn steps_in_turns_give_what_they_give_alone() {
        let model = |name, batch| {
            let options = ModelOptions { batch, ..ModelOptions::default() };
            build(name, &options).expect("the model exists")
        };
        let models = [model("mlp", 8), model("bert-tiny", 1), model("mlp", 16)];
        let mut alone: Vec<_> = models.iter().map(trainer).collect();
        let mut together: Vec<_> = models.iter().map(trainer).collect();
        for _ in 0..STEPS {
            let expected: Vec<_> = alone.iter_mut().map(|t| t.step().unwrap()).collect();
            for trainer in &mut together {
                trainer.feed().unwrap();
            }
            let mut trainers: Vec<_> = together.iter_mut().collect();
            let steps = in_turns(Duration::ZERO, &mut trainers).unwrap();
            for (expected, (report, time)) in expected.iter().zip(steps) {
                assert_eq!(report.loss.to_bits(), expected.loss.to_bits());
                assert_eq!(report, *expected);
                assert!(time > Duration::ZERO);
            }
        }
    }
}
