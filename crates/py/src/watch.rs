//! The planner's watch in Python: progress, the time limit, and Ctrl-C.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rekindle_plan::{Progress, Watch};

/// How often Python is asked for its lock: often enough that Ctrl-C feels immediate.
const INTERVAL: Duration = Duration::from_millis(50);

/// Calls a Python function with the progress, and ends the work at the limit or at an exception.
pub(crate) struct PythonWatch {
    started: Instant,
    next: Duration,
    limit: Option<f64>,
    progress: Option<Py<PyAny>>,
    /// What the function raised, or the signal that arrived.
    raised: Option<PyErr>,
}

impl PythonWatch {
    /// `limit` is in seconds.
    pub(crate) fn new(limit: Option<f64>, progress: Option<Py<PyAny>>) -> PythonWatch {
        PythonWatch { started: Instant::now(), next: INTERVAL, limit, progress, raised: None }
    }

    /// What was raised while the planner worked.
    pub(crate) fn finish(self) -> PyResult<()> {
        self.raised.map_or(Ok(()), Err)
    }

    fn tell(&self, progress: &Progress) -> PyResult<()> {
        Python::attach(|py| {
            py.check_signals()?;
            if let Some(function) = &self.progress {
                let best = progress.best.map(rekindle_graph::Micros::get);
                let lowest = progress.lowest.get();
                function.call1(py, (progress.done, progress.total, best, lowest))?;
            }
            Ok(())
        })
    }
}

impl Watch for PythonWatch {
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        if self.raised.is_some() {
            return ControlFlow::Break(());
        }
        let elapsed = self.started.elapsed();
        if elapsed >= self.next {
            self.next = elapsed + INTERVAL;
            self.raised = self.tell(progress).err();
        }
        let late = self.limit.is_some_and(|limit| elapsed.as_secs_f64() >= limit);
        match late || self.raised.is_some() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}
