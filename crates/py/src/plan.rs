//! The plan: made, read, written, taken apart, rewritten and checked.

use pyo3::prelude::*;
use rekindle_analysis::transfers;
use rekindle_graph::{Bytes, Micros, NodeId, Phase, Step, StorageId, Timeline};
use rekindle_plan::{Choice, Effort, Options, PlanError, Planned, Status, Strategy};
use rekindle_verify::{Audit, Origins, Violations};

use crate::error::{invalid, no_plan};
use crate::graph::{Graph, ROLES, runs};
use crate::watch::PythonWatch;

/// A schedule on one graph: runs and frees and, with a store, transfers.
#[pyclass(frozen, module = "rekindle")]
pub(crate) struct Plan {
    plan: rekindle_graph::Plan,
    /// Known where the plan was made here, and not read.
    lower_bound: Option<f64>,
    status: Option<Status>,
}

impl From<Planned> for Plan {
    fn from(planned: Planned) -> Plan {
        Plan {
            plan: planned.plan,
            lower_bound: Some(planned.lower_bound.get()),
            status: Some(planned.status),
        }
    }
}

#[pymethods]
impl Plan {
    /// Reads `remat.plan/1` or `remat.plan/2`. Nothing is known of its bound and status, and
    /// `verify` judges the rest.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Plan> {
        Ok(Plan {
            plan: rekindle_graph::Plan::from_json(text).map_err(|error| invalid(py, error))?,
            lower_bound: None,
            status: None,
        })
    }

    /// Writes `remat.plan/1`, or `remat.plan/2` where something is moved.
    fn to_json(&self) -> String {
        self.plan.to_json()
    }

    /// What the step may use, in bytes.
    #[getter]
    fn budget(&self) -> u64 {
        self.plan.budget.get()
    }

    /// The highest sum of live bytes.
    #[getter]
    fn peak(&self) -> u64 {
        self.plan.peak.get()
    }

    /// When everything is done, in microseconds.
    #[getter]
    fn time(&self) -> f64 {
        self.plan.time.get()
    }

    /// No plan under the budget takes less time, in microseconds.
    #[getter]
    fn bound(&self) -> Option<f64> {
        self.lower_bound
    }

    /// The store that it moves storages to, as it is typed; `None` if it moves nothing.
    #[getter]
    fn store(&self) -> Option<String> {
        let schedule = &self.plan.schedule;
        schedule.store.filter(|_| schedule.has_transfers()).map(|store| store.to_string())
    }

    /// The strategy that made it.
    #[getter]
    fn strategy(&self) -> Option<&str> {
        self.plan.strategy.as_deref()
    }

    /// How the planning ended: `optimal`, `feasible` or `stopped`.
    #[getter]
    fn status(&self) -> Option<&'static str> {
        self.status.map(|status| match status {
            Status::Optimal => "optimal",
            Status::Feasible { .. } => "feasible",
            Status::LimitReached { .. } => "stopped",
        })
    }

    /// `("run", node)`, and `("free", storage)`, `("offload", storage)` and `("fetch", storage)`,
    /// in order.
    fn steps(&self) -> Vec<(&'static str, u32)> {
        let pair = |step: &Step| match *step {
            Step::Run(node) => ("run", node.0),
            Step::Free(storage) => ("free", storage.0),
            Step::Offload(storage) => ("offload", storage.0),
            Step::Fetch(storage) => ("fetch", storage.0),
        };
        self.plan.schedule.steps.iter().map(pair).collect()
    }

    /// What becomes of each activation of `graph`, ascending by storage.
    fn decisions(&self, py: Python<'_>, graph: &Graph) -> PyResult<Vec<Decision>> {
        let decisions = rekindle_plan::decisions(&graph.graph, &self.plan);
        let decisions = decisions.map_err(|error| invalid(py, error))?;
        let named = decisions.iter().map(|d| Decision::new(&graph.graph, d));
        Ok(named.collect())
    }

    /// The highest bytes during each run, in order.
    fn timeline(&self, py: Python<'_>, graph: &Graph) -> PyResult<Vec<u64>> {
        let timeline = Timeline::new(&graph.graph, &self.plan.schedule);
        let timeline = timeline.map_err(|error| invalid(py, error))?;
        Ok(runs(&self.plan.schedule, &timeline))
    }

    /// The same steps as a plan of another graph with the same nodes, which may have other sizes
    /// and times, in `budget` bytes.
    fn carried_over(&self, py: Python<'_>, graph: &Graph, budget: u64) -> PyResult<Plan> {
        let plan = self.plan.carried_over(&graph.graph, Bytes(budget));
        let plan = plan.map_err(|error| invalid(py, error))?;
        rekindle_verify::verify(&graph.graph, &plan).map_err(|found| invalid(py, found))?;
        Ok(Plan { plan, lower_bound: None, status: None })
    }

    /// What goes to the store and back; `None` if nothing does.
    fn transfers(&self, py: Python<'_>, graph: &Graph) -> PyResult<Option<Transfers>> {
        let found = transfers(&graph.graph, &self.plan.schedule);
        let found = found.map_err(|error| invalid(py, error))?;
        Ok(found.map(|found| Transfers {
            moved_out: found.moved_out.get(),
            moved_in: found.moved_in.get(),
            hidden: found.hidden.get(),
            waited: found.waited.get(),
            store_peak: found.store_peak.get(),
            between_steps: found.stored_at_start.get(),
        }))
    }

    /// What is live at the plan's peak, in bytes by role; the largest first.
    fn bytes_by_role(&self, py: Python<'_>, graph: &Graph) -> PyResult<Vec<(&'static str, u64)>> {
        let graph = &graph.graph;
        let bytes = |s: StorageId| graph.storage(s).bytes.get();
        let mut sums = [0; ROLES.len()];
        let role = |s: StorageId| ROLES.iter().position(|r| r.1 == graph.storage(s).role);
        let role = |s| role(s).expect("every role is listed");
        let inputs = graph.nodes().iter().filter(|n| n.phase == Phase::Input);
        inputs
            .flat_map(|n| &n.writes)
            .filter(|s| !self.plan.schedule.stored_at_start.contains(s))
            .for_each(|&s| sums[role(s)] += bytes(s));
        let mut highest = (Bytes::ZERO, sums, 0);
        rekindle_graph::replay(graph, &self.plan.schedule, |moment| {
            let claimed = moment.claimed.iter();
            claimed.for_each(|&s| sums[role(s)] += bytes(s));
            if moment.during > highest.0 {
                highest = (moment.during, sums, moment.scratch.get());
            }
            if let Step::Free(s) = moment.step {
                sums[role(s)] -= bytes(s);
            }
        })
        .map_err(|error| invalid(py, error))?;
        let names = ROLES.iter().map(|role| role.0).zip(highest.1);
        let mut found: Vec<_> = names.chain([("scratch", highest.2)]).collect();
        found.retain(|&(_, bytes)| bytes > 0);
        found.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        Ok(found)
    }

    fn __repr__(&self) -> String {
        let plan = &self.plan;
        let steps = plan.schedule.steps.len();
        format!("<rekindle.Plan: {steps} steps, peak {}, {}>", plan.peak, plan.time)
    }
}

/// What a plan moves to a store and back.
#[pyclass(frozen, get_all, module = "rekindle")]
pub(crate) struct Transfers {
    /// Bytes that go to the store.
    moved_out: u64,
    /// Bytes that come back.
    moved_in: u64,
    /// Microseconds in which something is copied while nodes run.
    hidden: f64,
    /// Microseconds in which something is copied while nothing runs.
    waited: f64,
    /// The most that the store holds, in bytes.
    store_peak: u64,
    /// Bytes that live in the store between training steps.
    between_steps: u64,
}

#[pymethods]
impl Transfers {
    fn __repr__(&self) -> String {
        let [out, back] = [self.moved_out, self.moved_in].map(Bytes);
        let [hidden, waited] = [self.hidden, self.waited].map(Micros);
        format!("<rekindle.Transfers: {out} out, {back} in, {hidden} hidden, {waited} waited>")
    }
}

/// What becomes of one activation, and why.
#[pyclass(frozen, get_all, module = "rekindle")]
pub(crate) struct Decision {
    /// Which storage.
    storage: u32,
    /// What a person calls it.
    name: String,
    /// Its size.
    bytes: u64,
    /// How often it is made again; 0 if it is kept or moved.
    recomputed: u32,
    /// How often it comes back from the store; 0 if it is not moved.
    moved: u32,
    /// Why, in a few words.
    reason: &'static str,
    /// Microseconds to rebuild it while everything else is kept.
    recompute_time: f64,
    /// Microseconds that the plan spends on making it again.
    spent: f64,
    /// The node that makes it.
    created: u32,
    /// The first backward node that reads it.
    first_backward: u32,
}

impl Decision {
    fn new(graph: &rekindle_graph::Graph, decision: &rekindle_plan::Decision) -> Decision {
        let (recomputed, moved) = match decision.choice {
            Choice::Keep => (0, 0),
            Choice::Recompute { times } => (times, 0),
            Choice::Move { times } => (0, times),
        };
        Decision {
            storage: decision.storage.0,
            name: graph.storage_name(decision.storage),
            bytes: decision.bytes.get(),
            recomputed,
            moved,
            reason: decision.reason.text(),
            recompute_time: decision.recompute_time.get(),
            spent: decision.spent.get(),
            created: decision.created.0,
            first_backward: decision.first_backward.0,
        }
    }
}

/// Every strategy by name, with a sentence that says what it does; the default first.
#[pyfunction]
pub(crate) fn strategies() -> Vec<(&'static str, &'static str)> {
    Strategy::ALL.iter().map(|s| (s.name, s.about)).collect()
}

/// The store that `text` describes (`out=25GB/s,in=25GB/s,latency=10us`), as Rekindle writes it.
#[pyfunction]
pub(crate) fn parse_store(py: Python<'_>, text: &str) -> PyResult<String> {
    Ok(store_of(py, text)?.to_string())
}

fn store_of(py: Python<'_>, text: &str) -> PyResult<rekindle_graph::Store> {
    let store = rekindle_graph::parse_store(text);
    store.map_err(|why| invalid(py, format!("the store \"{text}\" {why}")))
}

/// Plans `graph` under `budget` bytes, where a store may help. `progress(done, total, best,
/// lowest)` is called now and then; after `time_limit` seconds the best plan so far is taken.
#[pyfunction]
#[pyo3(signature = (
    graph, budget, *, strategy = "search", effort = None, time_limit = None, progress = None,
    store = None
))]
pub(crate) fn plan(
    py: Python<'_>,
    graph: &Graph,
    budget: u64,
    strategy: &str,
    effort: Option<u8>,
    time_limit: Option<f64>,
    progress: Option<Py<PyAny>>,
    store: Option<&str>,
) -> PyResult<Plan> {
    let options = options(py, strategy, effort, store)?;
    let watch = PythonWatch::new(time_limit, progress);
    watched(py, watch, |watch| rekindle_plan::plan(&graph.graph, Bytes(budget), &options, watch))
}

/// The plan with the smallest peak that the strategy knows how to reach.
#[pyfunction]
#[pyo3(signature = (graph, *, strategy = "search", effort = None, store = None))]
pub(crate) fn smallest(
    py: Python<'_>,
    graph: &Graph,
    strategy: &str,
    effort: Option<u8>,
    store: Option<&str>,
) -> PyResult<Plan> {
    let options = options(py, strategy, effort, store)?;
    watched(py, PythonWatch::new(None, None), |watch| {
        rekindle_plan::smallest(&graph.graph, &options, watch)
    })
}

/// Plans at `points` budgets, from the plain step's peak down to the smallest peak known.
#[pyfunction]
#[pyo3(signature = (
    graph, points = 20, *, strategy = "search", effort = None, time_limit = None, progress = None,
    store = None
))]
pub(crate) fn frontier(
    py: Python<'_>,
    graph: &Graph,
    points: usize,
    strategy: &str,
    effort: Option<u8>,
    time_limit: Option<f64>,
    progress: Option<Py<PyAny>>,
    store: Option<&str>,
) -> PyResult<Vec<Plan>> {
    let options = options(py, strategy, effort, store)?;
    let mut watch = PythonWatch::new(time_limit, progress);
    let graph = &graph.graph;
    let found = py.detach(|| rekindle_plan::frontier(graph, points, &options, &mut watch));
    watch.finish()?;
    let found = found.map_err(|error| no_plan(py, &error))?;
    Ok(found.points.into_iter().map(Plan::from).collect())
}

/// Plans without Python's lock. An exception in the watch, Ctrl-C among them, goes before any plan.
fn watched(
    py: Python<'_>,
    mut watch: PythonWatch,
    plan: impl Send + FnOnce(&mut PythonWatch) -> Result<Planned, PlanError>,
) -> PyResult<Plan> {
    let planned = py.detach(|| plan(&mut watch));
    watch.finish()?;
    Ok(planned.map_err(|error| no_plan(py, &error))?.into())
}

fn options(
    py: Python<'_>,
    strategy: &str,
    effort: Option<u8>,
    store: Option<&str>,
) -> PyResult<Options> {
    let strategy = Strategy::from_name(strategy).ok_or_else(|| {
        let names = Strategy::names();
        invalid(py, format!("there is no strategy \"{strategy}\"; there are {names}"))
    })?;
    let effort = match effort {
        None => Effort::DEFAULT,
        Some(level) => Effort::new(level)
            .ok_or_else(|| invalid(py, format!("effort {level} is not between 0 and 10")))?,
    };
    let store = store.map(|text| store_of(py, text)).transpose()?;
    Ok(Options { strategy, effort, store })
}

/// The plan as an ordinary graph: each recomputation is a node of its own, and nothing is written
/// twice.
#[pyfunction]
pub(crate) fn rewrite(py: Python<'_>, graph: &Graph, plan: &Plan) -> PyResult<Graph> {
    let rewritten = rekindle_rewrite::rewrite(&graph.graph, &plan.plan);
    Graph::checked(py, rewritten.map(|rewritten| rewritten.graph))
}

/// Everything that is wrong with `plan` as a plan of `graph`, in words; nothing if it holds.
#[pyfunction]
pub(crate) fn verify(graph: &Graph, plan: &Plan) -> Vec<String> {
    words(rekindle_verify::verify(&graph.graph, &plan.plan))
}

/// Likewise, with everything that is wrong with `rewritten` as a graph that runs the plan. Each of
/// its nodes stands for a step on `graph`, a `wait` for a free; each of its storages for one of
/// `graph`.
#[pyfunction]
pub(crate) fn verify_rewritten(
    py: Python<'_>,
    graph: &Graph,
    plan: &Plan,
    rewritten: &Graph,
    nodes: Vec<(String, u32)>,
    storages: Vec<u32>,
) -> PyResult<Vec<String>> {
    let step = |(kind, number): (String, u32)| match &kind[..] {
        "run" => Ok(Step::Run(NodeId(number))),
        "free" => Ok(Step::Free(StorageId(number))),
        "offload" => Ok(Step::Offload(StorageId(number))),
        "fetch" => Ok(Step::Fetch(StorageId(number))),
        _ => Err(invalid(py, format!("a step is run, free, offload or fetch, not \"{kind}\""))),
    };
    let nodes: Vec<Step> = nodes.into_iter().map(step).collect::<PyResult<_>>()?;
    let storages: Vec<StorageId> = storages.into_iter().map(StorageId).collect();
    let origins = Origins { nodes: &nodes, storages: &storages };
    let (graph, rewritten) = (&graph.graph, &rewritten.graph);
    Ok(words(rekindle_verify::verify_rewritten(graph, &plan.plan, rewritten, origins)))
}

fn words(judged: Result<Audit, Violations>) -> Vec<String> {
    match judged {
        Ok(_) => Vec::new(),
        Err(violations) => violations.0.iter().map(ToString::to_string).collect(),
    }
}
