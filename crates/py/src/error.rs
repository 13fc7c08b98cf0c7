//! Every error of the crates as an exception of `rekindle.errors`.

use pyo3::prelude::*;
use pyo3::types::PyAnyMethods;
use rekindle_graph::Bytes;
use rekindle_plan::{Infeasible, PlanError};

/// The exception `class` of `rekindle.errors`, made from `arguments`; or why there is none.
fn exception<'py>(
    py: Python<'py>,
    class: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyErr {
    let made = py
        .import("rekindle.errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1(arguments));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// What was given is no graph, no plan, or no plan of this graph.
pub(crate) fn invalid(py: Python<'_>, why: impl std::fmt::Display) -> PyErr {
    exception(py, "InvalidInput", (why.to_string(),))
}

/// The device would run out of memory; with so much it would not, if that is known.
pub(crate) fn out_of_memory(
    py: Python<'_>,
    why: impl std::fmt::Display,
    smallest: Option<Bytes>,
) -> PyErr {
    exception(py, "DoesNotFit", (why.to_string(), smallest.map(Bytes::get)))
}

/// There is no plan.
pub(crate) fn no_plan(py: Python<'_>, error: &PlanError) -> PyErr {
    match error {
        PlanError::Infeasible(infeasible) => infeasible_budget(py, infeasible),
        PlanError::NeedsStore { .. } | PlanError::AlreadyMoves { .. } => invalid(py, error),
        PlanError::Stopped { .. } => exception(py, "PlanningStopped", (error.to_string(),)),
        PlanError::Rejected { .. } => exception(py, "RekindleError", (error.to_string(),)),
    }
}

fn infeasible_budget(py: Python<'_>, infeasible: &Infeasible) -> PyErr {
    let arguments = (
        infeasible.to_string(),
        infeasible.budget.get(),
        infeasible.smallest_known.get(),
        infeasible.lower_bound.get(),
        infeasible.at_name.clone(),
    );
    exception(py, "InfeasibleBudget", arguments)
}
