//! The stages from a model to a step that runs in a budget: profile, plan, rewrite, verify, place.
//!
//! In: a model, a budget, [`FitOptions`]. Out: [`Fitted`], with what each stage gave.
//!
//! The budget bounds the *arena*: live bytes plus what fragmentation costs. The planner knows live
//! bytes only; so if a plan's arena is larger than the budget, the planner is asked again for a
//! peak that is lower by the excess.
//!
//! Invariant: the schedule that runs has the order of the rewritten graph, and equals the plan that
//! was verified, step by step. It is never replaced by another.

use rekindle_engine::{Engine, Layout, Peak, lower};
use rekindle_graph::{Bytes, Graph, NodeId, Schedule, Step};
use rekindle_models::Model;
use rekindle_plan::{NoWatch, Options, PlanError, Planned, Watch, plan};
use rekindle_profile::MeasureOptions;
use rekindle_rewrite::{Rewritten, rewrite};
use rekindle_verify::{Audit, Origins, verify_rewritten};

use crate::{Error, Preparing, profile};

/// How to fit a step into a budget.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// How many threads run a kernel. Scratch, and so the peak, depends on it; results do not.
    pub threads: usize,
    /// The planner's strategy and effort.
    pub plan: Options,
    /// How often each node is measured.
    pub measure: MeasureOptions,
    /// Of the weights and the data.
    pub seed: u64,
}

impl Default for FitOptions {
    fn default() -> Self {
        FitOptions {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            plan: Options::default(),
            measure: MeasureOptions::default(),
            seed: 0,
        }
    }
}

/// A step that fits, with what each stage gave.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// What the arena may use.
    pub budget: Bytes,
    /// Profile: the step with its times.
    pub graph: Graph,
    /// Plan: made for this budget, or for a lower one if its arena would not have fitted.
    pub planned: Planned,
    /// Rewrite: the plan as an ordinary graph.
    pub rewritten: Rewritten,
    /// Verify: what the independent replay measured.
    pub audit: Audit,
    /// The steps that run: the order of the rewritten graph, as nodes of the program.
    pub schedule: Vec<Step>,
    /// Place: the peak that every step will have. Its arena is at most the budget.
    pub predicted: Peak,
    /// How often the planner was asked.
    pub rounds: usize,
    /// How many threads run a kernel.
    pub threads: usize,
    /// Of the weights that an engine starts with.
    pub seed: u64,
}

/// How often the planner is asked. Each time it gets less room by what was too much, so the arena
/// fits after two or three rounds, or the strategy has nothing lower.
const ROUNDS: usize = 8;

/// The next plan lies a little differently in its arena: it gets less room by the excess and one
/// part in this many of it.
const MARGIN: u64 = 4;

/// The peak of the plain step, without running it.
///
/// # Errors
/// None for a program that the builder made.
pub fn plain_peak(model: &Model, threads: usize) -> Result<Peak, Error> {
    let graph = lower(&model.program, threads);
    let steps = Schedule::plain(&graph).steps;
    Ok(Layout::new(&model.program, &steps, threads)?.predicted())
}

/// Fits one training step of `model` into an arena of at most `budget`.
///
/// # Errors
/// If no plan fits; the error names the smallest arena known.
pub fn fit(model: &Model, budget: Bytes, options: &FitOptions) -> Result<Fitted, Error> {
    let graph = profile(model, budget, options, &mut |_| {})?;
    fit_profiled(model, &graph, budget, options, &mut NoWatch)
}

/// Plans, rewrites, verifies and places the step whose `graph` has its times.
///
/// # Errors
/// If no plan fits; the error names the smallest arena known.
pub fn fit_profiled(
    model: &Model,
    graph: &Graph,
    budget: Bytes,
    options: &FitOptions,
    watch: &mut dyn Watch,
) -> Result<Fitted, Error> {
    let mut room = budget;
    for round in 1..=ROUNDS {
        let planned = match plan(graph, room, &options.plan, watch) {
            Ok(planned) => planned,
            Err(error @ PlanError::Infeasible(_)) => {
                return last_resort(model, graph, budget, options, watch, error);
            }
            Err(error) => return Err(error.into()),
        };
        let peak = planned.plan.peak;
        let fitted = Fitted::new(model, graph, planned, options, budget, round)?;
        let arena = fitted.predicted.arena;
        if arena <= budget {
            return Ok(fitted);
        }
        let excess = arena - budget;
        room = peak.saturating_sub(excess + Bytes(excess.get() / MARGIN));
    }
    let error = PlanError::Stopped {
        budget,
        lowest: room,
    };
    last_resort(model, graph, budget, options, watch, error)
}

/// The step with the smallest arena that the strategy is known to reach.
///
/// # Errors
/// Only what the planner gives for reasons other than the budget.
pub fn smallest(
    model: &Model,
    graph: &Graph,
    options: &FitOptions,
    watch: &mut dyn Watch,
) -> Result<Fitted, Error> {
    let least = rekindle_plan::smallest(graph, &options.plan, watch)?;
    // Fragmentation may cost a plan more than it saves; then the plain step is the smaller one.
    let plain = plan(graph, least.stats.plain_peak, &options.plan, watch)?;
    let fitted = |planned: Planned| {
        let budget = planned.plan.budget;
        Fitted::new(model, graph, planned, options, budget, 1)
    };
    let (least, plain) = (fitted(least)?, fitted(plain)?);
    let mut smaller = match least.predicted.arena <= plain.predicted.arena {
        true => least,
        false => plain,
    };
    smaller.budget = smaller.predicted.arena;
    Ok(smaller)
}

/// The smallest plan, if at least its arena is within the budget: so the budget that an error names
/// is one that works.
fn last_resort(
    model: &Model,
    graph: &Graph,
    budget: Bytes,
    options: &FitOptions,
    watch: &mut dyn Watch,
    error: PlanError,
) -> Result<Fitted, Error> {
    let least = smallest(model, graph, options, watch)?;
    match least.predicted.arena <= budget {
        true => Ok(Fitted { budget, ..least }),
        false => Err(Error::DoesNotFit {
            budget,
            smallest: least.predicted.arena,
            source: Box::new(error),
        }),
    }
}

impl Fitted {
    /// Rewrites, verifies and places a plan.
    fn new(
        model: &Model,
        graph: &Graph,
        planned: Planned,
        options: &FitOptions,
        budget: Bytes,
        rounds: usize,
    ) -> Result<Fitted, Error> {
        let rewritten = rewrite(graph, &planned.plan)?;
        let origins = Origins {
            nodes: &rewritten.node_origin,
            storages: &rewritten.storage_origin,
        };
        let audit = verify_rewritten(graph, &planned.plan, &rewritten.graph, origins)?;
        let schedule = schedule(graph, &rewritten);
        if schedule != planned.plan.schedule.steps {
            let pairs = schedule.iter().zip(&planned.plan.schedule.steps);
            let step = pairs.take_while(|(ours, planned)| ours == planned).count();
            return Err(Error::NotAsPlanned { step });
        }
        let predicted = Layout::new(&model.program, &schedule, options.threads)?.predicted();
        Ok(Fitted {
            budget,
            graph: graph.clone(),
            planned,
            rewritten,
            audit,
            schedule,
            predicted,
            rounds,
            threads: options.threads,
            seed: options.seed,
        })
    }

    /// Sets up the verified schedule to run.
    ///
    /// # Errors
    /// If the arena does not fit in the machine's memory.
    pub fn engine(&self, model: &Model) -> Result<Engine, Error> {
        self.engine_watched(model, &mut |_| {})
    }

    /// As [`Fitted::engine`], which takes seconds for a large arena: `watch` sees how it comes
    /// along.
    ///
    /// # Errors
    /// If the arena does not fit in the machine's memory.
    pub fn engine_watched(
        &self,
        model: &Model,
        watch: &mut dyn FnMut(Preparing),
    ) -> Result<Engine, Error> {
        let mut ready = |ready, arena| watch(Preparing::Memory { ready, arena });
        let (steps, threads) = (&self.schedule, self.threads);
        let engine = Engine::with_schedule(&model.program, steps, threads, self.seed, &mut ready)?;
        Ok(engine)
    }

    /// The nodes in the order in which they run.
    pub fn order(&self) -> Vec<NodeId> {
        order(&self.rewritten)
    }
}

/// The nodes of the program in the order of the rewritten graph.
fn order(rewritten: &Rewritten) -> Vec<NodeId> {
    let runs = rewritten.graph.natural_order().into_iter();
    runs.map(|id| rewritten.node_origin[id.index()]).collect()
}

/// The rewritten graph as steps on the program: its order, everything freed after its last use.
fn schedule(graph: &Graph, rewritten: &Rewritten) -> Vec<Step> {
    Schedule::of_order(graph, &order(rewritten)).steps
}
