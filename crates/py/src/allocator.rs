//! The device's allocator: what it would reserve for a plan, for a history, and plans for that.

use pyo3::prelude::*;
use rekindle_allocator::{
    Caching, FootprintError, Request, ReserveError, SegmentThere, Segments, fit_reserved,
    footprint_within, plan_reserved, replay_requests,
};
use rekindle_graph::{Bytes, Schedule};

use crate::error::{invalid, no_plan, out_of_memory};
use crate::graph::Graph;
use crate::plan::{Plan, options};
use crate::watch::PythonWatch;

/// What the allocator has handed out and taken at most; a prediction.
#[pyclass(frozen, eq, module = "rekindle")]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Footprint {
    footprint: rekindle_allocator::Footprint,
}

#[pymethods]
impl Footprint {
    /// `max_memory_allocated`, in bytes.
    #[getter]
    fn allocated(&self) -> u64 {
        self.footprint.allocated.get()
    }

    /// `max_memory_reserved`, in bytes.
    #[getter]
    fn reserved(&self) -> u64 {
        self.footprint.reserved.get()
    }

    /// What is reserved and never handed out at once, in bytes.
    #[getter]
    fn fragmentation(&self) -> u64 {
        self.footprint.reserved.saturating_sub(self.footprint.allocated).get()
    }

    /// How often a step gives cached memory back to the device because its limit is met.
    #[getter]
    fn given_back(&self) -> u32 {
        self.footprint.given_back
    }

    fn __repr__(&self) -> String {
        let rekindle_allocator::Footprint { allocated, reserved, .. } = self.footprint;
        format!("<rekindle.Footprint: {allocated} allocated, {reserved} reserved, predicted>")
    }
}

fn segments(expandable: bool) -> Segments {
    match expandable {
        true => Segments::Expandable,
        false => Segments::Fixed,
    }
}

fn limit_of(limit: Option<u64>) -> Bytes {
    Bytes(limit.unwrap_or(u64::MAX))
}

/// The footprint of a plan, or of the plain step, that is repeated.
#[pyfunction]
#[pyo3(signature = (graph, plan = None, *, expandable = false, limit = None))]
pub(crate) fn footprint(
    py: Python<'_>,
    graph: &Graph,
    plan: Option<&Plan>,
    expandable: bool,
    limit: Option<u64>,
) -> PyResult<Footprint> {
    let plain;
    let schedule = match plan {
        Some(plan) => plan.schedule(),
        None => {
            plain = Schedule::plain(&graph.graph);
            &plain
        }
    };
    match footprint_within(&graph.graph, schedule, segments(expandable), limit_of(limit)) {
        Ok(footprint) => Ok(Footprint { footprint }),
        Err(FootprintError::Schedule(error)) => Err(invalid(py, error)),
        Err(FootprintError::OutOfMemory(error)) => Err(out_of_memory(py, error, None)),
    }
}

/// Plans so that the allocator reserves at most `budget`; if `is_any`, the first plan that does.
#[pyfunction(name = "plan_reserved")]
#[pyo3(signature = (
    graph, budget, *, expandable = false, strategy = "search", effort = None, time_limit = None,
    progress = None, store = None, is_any = false
))]
pub(crate) fn plan_for_reserved(
    py: Python<'_>,
    graph: &Graph,
    budget: u64,
    expandable: bool,
    strategy: &str,
    effort: Option<u8>,
    time_limit: Option<f64>,
    progress: Option<Py<PyAny>>,
    store: Option<&str>,
    is_any: bool,
) -> PyResult<(Plan, Footprint)> {
    let options = options(py, strategy, effort, store)?;
    let mut watch = PythonWatch::new(time_limit, progress);
    let (graph, segments) = (&graph.graph, segments(expandable));
    let plan = if is_any { fit_reserved } else { plan_reserved };
    let found = py.detach(|| plan(graph, Bytes(budget), segments, &options, &mut watch));
    watch.finish()?;
    match found {
        Ok((planned, footprint)) => Ok((planned.into(), Footprint { footprint })),
        Err(ReserveError::Plan(error)) => Err(no_plan(py, &error)),
        Err(error @ ReserveError::DoesNotFit { smallest, .. }) => {
            Err(out_of_memory(py, error, Some(smallest)))
        }
    }
}

/// A recorded history as our allocator has it.
#[pyclass(frozen, eq, module = "rekindle")]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Replayed {
    replayed: rekindle_allocator::Replayed,
}

#[pymethods]
impl Replayed {
    /// What was handed out and taken at most.
    #[getter]
    fn footprint(&self) -> Footprint {
        Footprint { footprint: self.replayed.footprint }
    }

    /// Blocks that were handed out.
    #[getter]
    fn blocks(&self) -> usize {
        self.replayed.blocks
    }

    /// Those of them that are not at their recorded address.
    #[getter]
    fn elsewhere(&self) -> usize {
        self.replayed.elsewhere
    }

    /// Segments that were taken or given back in another way than the recorded one.
    #[getter]
    fn otherwise(&self) -> usize {
        self.replayed.otherwise
    }

    fn __repr__(&self) -> String {
        let rekindle_allocator::Replayed { footprint, blocks, elsewhere, .. } = self.replayed;
        let rekindle_allocator::Footprint { allocated, reserved, .. } = footprint;
        format!(
            "<rekindle.Replayed: {allocated} allocated, {reserved} reserved, {elsewhere} of \
             {blocks} blocks elsewhere, predicted>"
        )
    }
}

/// A segment with its address, its bytes, whether it belongs to the small pool, and addresses and
/// bytes of its blocks.
type There = (u64, u64, bool, Vec<(u64, u64)>);

/// A recorded history of `alloc`, `free`, `segment_alloc` and `segment_free`, each with an address
/// and bytes, that begins with segments which are there.
#[pyfunction]
#[pyo3(signature = (history, *, there = Vec::new(), expandable = false, limit = None))]
pub(crate) fn replay_history(
    py: Python<'_>,
    history: Vec<(String, u64, u64)>,
    there: Vec<There>,
    expandable: bool,
    limit: Option<u64>,
) -> PyResult<Replayed> {
    let requests: Result<Vec<Request>, String> = history.iter().map(request).collect();
    let requests = requests.map_err(|error| invalid(py, error))?;
    let there: Vec<SegmentThere> = there.into_iter().map(segment).collect();
    let allocator = Caching::new(segments(expandable)).with_limit(limit_of(limit));
    let found = replay_requests(allocator, &there, &requests);
    found.map(|replayed| Replayed { replayed }).map_err(|error| invalid(py, error))
}

fn request((action, address, bytes): &(String, u64, u64)) -> Result<Request, String> {
    match action.as_str() {
        "alloc" => Ok(Request::Allocate(*address, Bytes(*bytes))),
        "free" => Ok(Request::Free(*address)),
        "segment_alloc" => Ok(Request::Take(*address, Bytes(*bytes))),
        "segment_free" => Ok(Request::GiveBack(*address)),
        _ => Err(format!("a history has no event {action:?}")),
    }
}

fn segment((address, size, is_small, used): There) -> SegmentThere {
    let used = used.into_iter().map(|(address, size)| (address, Bytes(size))).collect();
    SegmentThere { address, size: Bytes(size), is_small, used }
}
