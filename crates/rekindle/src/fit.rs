//! The stages from a model to a step that runs in a budget: profile, plan, rewrite, verify, place.
//!
//! In: a model, a budget, [`FitOptions`]. Out: [`Fitted`], with what each stage gave.
//!
//! The budget bounds the *arena*: live bytes plus what fragmentation costs. The planner knows live
//! bytes only; so if a plan's arena is larger than the budget, the planner is asked again for a
//! peak that is lower by the excess. Where storages may be moved, the same goes for what the store
//! may hold: what is moved begins at a page, in the arena and in the store.
//!
//! Invariant: what runs is the rewritten graph that was verified. It is never replaced by another.

use std::path::{Path, PathBuf};

use rekindle_engine::{Engine, EngineError, FileStore, Layout, Peak, Store};
use rekindle_graph::{Bytes, Graph, Micros, Schedule, Step};
use rekindle_models::Model;
use rekindle_plan::{NoWatch, Options, PlanError, Planned, Watch, plan};
use rekindle_profile::{MeasureOptions, measure_store};
use rekindle_program::Program;
use rekindle_rewrite::{Rewritten, rewrite};
use rekindle_verify::{Audit, verify_rewritten};

use crate::{Error, Preparing, profile};

/// How to fit a step into a budget.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// How many threads run a kernel. Scratch, and so the peak, depends on it; results do not.
    pub threads: usize,
    /// The planner's strategy and effort, and its view of the store. Where `offload` names a folder
    /// and there is no view of it yet, [`with_store`] measures it.
    pub plan: Options,
    /// Where storages may be moved to; `None` if they may not.
    pub offload: Option<Offload>,
    /// Microseconds that a moved byte takes of a processor, out and in; [`with_store`] measures
    /// them.
    pub processor: [f64; 2],
    /// How often each node is measured.
    pub measure: MeasureOptions,
    /// The seed that the weights, the generated data and the dropout are drawn from.
    pub seed: u64,
}

/// A store in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offload {
    /// The folder of the file.
    pub folder: PathBuf,
    /// The most bytes that the file may have.
    pub limit: Option<Bytes>,
}

impl FitOptions {
    /// The folder of the store, if there is one.
    pub fn folder(&self) -> Option<&Path> {
        self.offload.as_ref().map(|offload| offload.folder.as_path())
    }
}

impl Default for FitOptions {
    fn default() -> Self {
        FitOptions {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            plan: Options::default(),
            offload: None,
            processor: [0.0; 2],
            measure: MeasureOptions::default(),
            seed: 0,
        }
    }
}

/// A step that fits, with what each stage gave.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The bytes that the arena may use.
    pub budget: Bytes,
    /// Profile: the plain step with its times.
    pub graph: Graph,
    /// Plan: made for this budget, or for a lower one if its arena would not have fitted.
    pub planned: Planned,
    /// Rewrite: the plan as an ordinary graph, which is what runs.
    pub rewritten: Rewritten,
    /// Verify: what the independent replay measured.
    pub audit: Audit,
    /// Place: the rewritten graph with an address for everything. Its arena is at most the budget.
    pub layout: Layout,
    /// What transfers take of the processors that compute. The plan's clock does not know it.
    pub moving: Micros,
    /// How often the planner was asked.
    pub rounds: usize,
    /// The seed of the weights that an engine starts with.
    pub seed: u64,
    /// Where its engine's store is, if it may have one.
    pub folder: Option<PathBuf>,
}

/// How often the planner is asked. Each time it gets less room by what was too much, so the arena
/// fits after two or three rounds, or the strategy has nothing lower.
const ROUNDS: usize = 8;

/// The next plan lies a little differently in its arena: it gets less room by the excess and one
/// part in this many of it.
const MARGIN: u64 = 4;

/// The plain step of `model`, lowered and placed but not run: its graph, and the peak that it has.
pub fn plain(model: &Model, threads: usize) -> Layout {
    Layout::plain(&model.program, threads)
}

/// Fits one training step of `model`, whose plain step is `plain`, into an arena of at most
/// `budget`.
///
/// # Errors
/// If no plan fits; the error names the smallest arena known.
pub fn fit(
    model: &Model,
    plain: &Layout,
    budget: Bytes,
    options: &FitOptions,
) -> Result<Fitted, Error> {
    let options = &with_store(options, plain.graph())?;
    let graph = profile(model, plain, budget, options, &mut |_| {})?;
    fit_profiled(&model.program, &graph, budget, options, &mut NoWatch)
}

/// The same options with the planner's view of the store: measured for storages such as those of
/// `graph`, if there is a folder for one and no view of it yet. That takes about two seconds.
///
/// # Errors
/// If no file can be made in the folder, or it fails.
pub fn with_store(options: &FitOptions, graph: &Graph) -> Result<FitOptions, Error> {
    let mut options = options.clone();
    if let (Some(offload), None) = (&options.offload, options.plan.store) {
        let measured = measure_store(&offload.folder, offload.limit, graph)?;
        (options.plan.store, options.processor) = (Some(measured.store), measured.processor);
    }
    Ok(options)
}

/// Sets up a step that has been placed, with weights from `seed`, and with a store in `folder` if
/// it moves anything. That takes seconds for a large arena: `watch` sees how it comes along.
///
/// # Errors
/// If the arena does not fit in the machine's memory, or the store not in its folder.
pub fn set_up(
    layout: &Layout,
    seed: u64,
    folder: Option<&Path>,
    watch: &mut dyn FnMut(Preparing),
) -> Result<Engine, EngineError> {
    let mut ready = |ready, arena| watch(Preparing::Memory { ready, arena });
    let bytes = layout.store_bytes();
    let folder = folder.filter(|_| bytes > Bytes::ZERO);
    let file = folder.map(|folder| FileStore::new(folder, bytes)).transpose()?;
    // Two channels also where the disk has one: what waits for it then is the disk's own queue.
    let store = file.map(|file| Store { backing: Box::new(file), duplex: true, depth: 1 });
    Engine::with_store(layout.clone(), seed, store, &mut ready)
}

/// Plans, rewrites, verifies and places a step of `program`, whose `graph` has its times.
///
/// # Errors
/// If no plan fits; the error names the smallest arena known.
pub fn fit_profiled(
    program: &Program,
    graph: &Graph,
    budget: Bytes,
    options: &FitOptions,
    watch: &mut dyn Watch,
) -> Result<Fitted, Error> {
    let mut room = budget;
    let mut asked = options.plan.clone();
    for round in 1..=ROUNDS {
        let planned = match plan(graph, room, &asked, watch) {
            Ok(planned) => planned,
            Err(error @ PlanError::Infeasible(_)) => {
                return last_resort(program, graph, budget, options, watch, error);
            }
            Err(error) => return Err(error.into()),
        };
        let peak = planned.plan.peak;
        let fitted = Fitted::new(program, graph, planned, options, budget, round)?;
        let less =
            |all: Bytes, excess: Bytes| all.saturating_sub(excess + Bytes(excess.get() / MARGIN));
        let (arena, over) = (fitted.predicted().arena, fitted.over_store_limit(options));
        if arena <= budget && over == Bytes::ZERO {
            return Ok(fitted);
        }
        if arena > budget {
            room = less(peak, arena - budget);
        }
        if let Some(limit) = asked.store.as_mut().and_then(|store| store.limit.as_mut()) {
            *limit = less(*limit, over);
        }
    }
    let error = PlanError::Stopped { budget, lowest: room };
    last_resort(program, graph, budget, options, watch, error)
}

/// The step with the smallest arena that the strategy is known to reach.
///
/// # Errors
/// Only what the planner gives for reasons other than the budget.
pub fn smallest(
    program: &Program,
    graph: &Graph,
    options: &FitOptions,
    watch: &mut dyn Watch,
) -> Result<Fitted, Error> {
    let least = rekindle_plan::smallest(graph, &options.plan, watch)?;
    // Fragmentation may cost a plan more than it saves; then the plain step is the smaller one.
    let plain = plan(graph, least.stats.plain_peak, &options.plan, watch)?;
    let fitted = |planned: Planned| {
        let budget = planned.plan.budget;
        Fitted::new(program, graph, planned, options, budget, 1)
    };
    let (least, plain) = (fitted(least)?, fitted(plain)?);
    let mut smaller = match least.predicted().arena <= plain.predicted().arena {
        true => least,
        false => plain,
    };
    smaller.budget = smaller.predicted().arena;
    Ok(smaller)
}

/// The smallest plan, if at least its arena is within the budget: so the budget that an error names
/// is one that works.
fn last_resort(
    program: &Program,
    graph: &Graph,
    budget: Bytes,
    options: &FitOptions,
    watch: &mut dyn Watch,
    error: PlanError,
) -> Result<Fitted, Error> {
    let least = smallest(program, graph, options, watch)?;
    let fits = least.predicted().arena <= budget;
    match fits && least.over_store_limit(options) == Bytes::ZERO {
        true => Ok(Fitted { budget, ..least }),
        false => Err(Error::DoesNotFit {
            budget,
            smallest: least.predicted().arena,
            source: Box::new(error),
        }),
    }
}

/// What the transfers of a schedule take of the processors that compute, if no other is left for
/// them.
fn taken_by_transfers(graph: &Graph, schedule: &Schedule, options: &FitOptions) -> Micros {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if options.threads < cores {
        return Micros::ZERO;
    }
    let [out, back] = options.processor;
    let taken = schedule.steps.iter().map(|&step| match step {
        Step::Offload(s) => out * graph.storage(s).bytes.get() as f64,
        Step::Fetch(s) => back * graph.storage(s).bytes.get() as f64,
        Step::Run(_) | Step::Free(_) => 0.0,
    });
    Micros(taken.sum::<f64>() / options.threads as f64)
}

impl Fitted {
    /// The time of a training step as it is predicted: the plan's, and what its transfers take of
    /// the processors.
    pub fn time(&self) -> Micros {
        self.planned.plan.time + self.moving
    }

    /// Its time above the plain step's, as a share of it.
    pub fn overhead(&self) -> f64 {
        let plain = self.planned.stats.plain_time.get();
        self.planned.overhead() + if plain > 0.0 { self.moving.get() / plain } else { 0.0 }
    }

    /// Rewrites, verifies and places a plan.
    fn new(
        program: &Program,
        graph: &Graph,
        planned: Planned,
        options: &FitOptions,
        budget: Bytes,
        rounds: usize,
    ) -> Result<Fitted, Error> {
        let rewritten = rewrite(graph, &planned.plan)?;
        let origins = rewritten.origins();
        let audit = verify_rewritten(graph, &planned.plan, &rewritten.graph, origins)?;
        let layout = Layout::new(program, rewritten.graph.clone(), origins, options.threads)?;
        Ok(Fitted {
            budget,
            moving: taken_by_transfers(graph, &planned.plan.schedule, options),
            graph: graph.clone(),
            planned,
            rewritten,
            audit,
            layout,
            rounds,
            seed: options.seed,
            folder: options.folder().map(Path::to_owned),
        })
    }

    /// By how much the store's file is larger than it may be.
    fn over_store_limit(&self, options: &FitOptions) -> Bytes {
        let limit = options.offload.as_ref().and_then(|offload| offload.limit);
        limit.map_or(Bytes::ZERO, |limit| self.layout.store_bytes().saturating_sub(limit))
    }

    /// The peak that every training step will have.
    pub fn predicted(&self) -> Peak {
        self.layout.predicted()
    }

    /// Sets up the verified step to run.
    ///
    /// # Errors
    /// If the arena does not fit in the machine's memory, or the store not in its folder.
    pub fn engine(&self) -> Result<Engine, EngineError> {
        set_up(&self.layout, self.seed, self.folder.as_deref(), &mut |_| {})
    }
}
