//! The same numbers: the planned step against the plain one, bit by bit.
//!
//! In: a model and a fitted step. Out: how many numbers were compared, and every tensor that
//! differs.
//!
//! Four runs of the same steps on the same data. The plain step and the planned step, each exactly
//! as it trains: losses, parameters, buffers and optimizer state are compared. Then both once more
//! with the gradients kept to the end of the step, in the same orders of runs and with nothing
//! moved, since a step that trains lets go of each gradient as soon as it is used. One engine
//! exists at a time.

use std::path::Path;

use rekindle_engine::Layout;
use rekindle_graph::{NodeId, Plan, Schedule, StorageId};
use rekindle_models::{Model, Values};
use rekindle_rewrite::{Rewritten, rewrite};

use crate::checkpoint::persistent;
use crate::trainer::read;
use crate::{Error, Fitted, Trainer, set_up};

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    /// How many training steps each run took.
    pub steps: u64,
    /// How many tensors were compared: the loss of each step, gradients, parameters, buffers and
    /// state.
    pub tensors: usize,
    /// How many numbers were compared.
    pub numbers: usize,
    /// The tensors that are not the same; there should be none.
    pub differences: Vec<Difference>,
}

/// A tensor that is not the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The tensor's name.
    pub name: String,
    /// How many of its numbers differ.
    pub count: usize,
    /// The first of them: its index, the plain value and the planned one.
    pub first: (usize, f64, f64),
}

impl Checked {
    /// Whether every bit is the same.
    pub fn is_equal(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Runs `steps` steps plain and as planned, and compares every number that they leave.
///
/// # Errors
/// If the plain step does not fit in the machine's memory, or a measured peak is not the predicted
/// one. A difference is no error but a finding.
pub fn check_numbers(
    model: &Model,
    plain: &Layout,
    fitted: &Fitted,
    steps: u64,
    seed: u64,
) -> Result<Checked, Error> {
    let (start, watch) = (&|_: &mut Trainer<'_>| Ok(()), &mut |_, _| {});
    check_numbers_from(model, plain, fitted, steps, seed, start, watch)
}

/// As [`check_numbers`], for runs that begin elsewhere: `start` prepares each of them, for instance
/// with the weights of a file. `watch` is told how many steps of how many are over.
///
/// # Errors
/// As [`check_numbers`], and whatever `start` says.
pub fn check_numbers_from(
    model: &Model,
    plain: &Layout,
    fitted: &Fitted,
    steps: u64,
    seed: u64,
    start: &dyn Fn(&mut Trainer<'_>) -> Result<(), Error>,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Checked, Error> {
    let mut checked = Checked { steps, ..Checked::default() };
    let mut run = Run { steps, seed, start, watch, done: 0 };
    let mut compare = |model, plain, planned, tensors: Vec<StorageId>| {
        let plain = run.of(model, plain, None, &tensors)?;
        let planned = run.of(model, planned, fitted.folder.as_deref(), &tensors)?;
        checked.compare(model, &plain, &planned);
        Ok::<(), Error>(())
    };
    compare(model, plain, &fitted.layout, persistent(&model.program))?;
    let keeping = with_gradients(model);
    let plain = crate::plain(&keeping, plain.threads());
    let planned = in_order_of(fitted, &plain)?;
    let gradients = model.gradients.iter().map(|&(_, g)| g).collect();
    compare(&keeping, &plain, &planned, gradients)?;
    Ok(checked)
}

/// A step that keeps its gradients, in the order of the fitted one.
fn in_order_of(fitted: &Fitted, plain: &Layout) -> Result<Layout, Error> {
    let Rewritten { graph, .. } = &fitted.rewritten;
    let runs = graph.natural_order().into_iter();
    let order: Vec<NodeId> = runs.filter_map(|id| fitted.layout.run_of(id)).collect();
    let plan = Plan {
        // The gradients that it keeps make it another graph than the one that was planned.
        digest: None,
        schedule: Schedule::of_order(plain.graph(), &order),
        ..fitted.planned.plan.clone()
    };
    let rewritten = rewrite(plain.graph(), &plan)?;
    let (origins, threads) = (rewritten.origins(), plain.threads());
    Ok(Layout::new(plain.program(), rewritten.graph.clone(), origins, threads)?)
}

/// The same step with its gradients among the outputs.
fn with_gradients(model: &Model) -> Model {
    let mut keeping = model.clone();
    for &(_, gradient) in &model.gradients {
        if !keeping.program.outputs.contains(&gradient) {
            keeping.program.outputs.push(gradient);
        }
    }
    keeping
}

/// How each run goes.
struct Run<'a> {
    steps: u64,
    seed: u64,
    start: &'a dyn Fn(&mut Trainer<'_>) -> Result<(), Error>,
    watch: &'a mut dyn FnMut(u64, u64),
    /// How many training steps all runs took so far.
    done: u64,
}

/// Plain and planned, twice each.
const RUNS: u64 = 4;

/// What a run left.
struct Left {
    losses: Vec<f32>,
    tensors: Vec<(StorageId, Values)>,
}

impl Run<'_> {
    fn of(
        &mut self,
        model: &Model,
        layout: &Layout,
        folder: Option<&Path>,
        tensors: &[StorageId],
    ) -> Result<Left, Error> {
        let engine = set_up(layout, self.seed, folder, &mut |_| {})?;
        let mut trainer = Trainer::new(model, engine, self.seed)?;
        (self.start)(&mut trainer)?;
        let mut losses = Vec::new();
        for _ in 0..self.steps {
            (self.watch)(self.done, RUNS * self.steps);
            losses.push(trainer.step()?.loss);
            self.done += 1;
        }
        let each = |&id| Ok((id, read(trainer.engine(), id)?));
        Ok(Left { losses, tensors: tensors.iter().map(each).collect::<Result<_, Error>>()? })
    }
}

impl Checked {
    fn compare(&mut self, model: &Model, plain: &Left, planned: &Left) {
        let losses = |left: &Left| Values::F32(left.losses.clone());
        self.compare_one("the loss of each step", &losses(plain), &losses(planned));
        for ((id, plain), (_, planned)) in plain.tensors.iter().zip(&planned.tensors) {
            self.compare_one(&model.program.tensor(*id).name, plain, planned);
        }
    }

    fn compare_one(&mut self, name: &str, plain: &Values, planned: &Values) {
        self.tensors += 1;
        self.numbers += plain.len();
        let differing: Vec<(usize, f64, f64)> = match (plain, planned) {
            (Values::F32(a), Values::F32(b)) => {
                let pairs = a.iter().zip(b).enumerate();
                let differ = pairs.filter(|(_, (a, b))| a.to_bits() != b.to_bits());
                differ.map(|(i, (&a, &b))| (i, f64::from(a), f64::from(b))).collect()
            }
            (Values::I64(a), Values::I64(b)) => {
                let pairs = a.iter().zip(b).enumerate();
                let differ = pairs.filter(|(_, (a, b))| a != b);
                differ.map(|(i, (&a, &b))| (i, a as f64, b as f64)).collect()
            }
            (Values::F32(_), Values::I64(_)) | (Values::I64(_), Values::F32(_)) => {
                unreachable!("both runs are of one program")
            }
        };
        if let Some(&first) = differing.first() {
            self.differences.push(Difference { name: name.into(), count: differing.len(), first });
        }
    }
}
