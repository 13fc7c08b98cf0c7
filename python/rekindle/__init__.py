"""Rekindle trains a PyTorch model in the memory you have.

    model = rekindle.compile(model, budget="8GiB")
    print(rekindle.report(model))

The planner itself works without PyTorch; what needs it is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rekindle._native import Decision, Graph, Plan, parse_budget, rewrite, smallest, verify
from rekindle.errors import (
    CheckFailed,
    CompilerMissing,
    ForeignBudget,
    InfeasibleBudget,
    InvalidInput,
    LiveGradients,
    NoGradients,
    OverBudget,
    PlanningStopped,
    RanksDiffer,
    RekindleError,
    RetainedGraph,
    SplitStep,
    TooManyShapes,
    TorchMissing,
    Unplanned,
    UnplannedPart,
    UnsupportedGraph,
    UnsupportedOption,
    UnsupportedTorch,
)

if TYPE_CHECKING:
    from rekindle.alone import LargestBatch, StepProfile, max_batch, plan, profile
    from rekindle.account import measure_peak
    from rekindle.module import PlannedModule, backend, compile
    from rekindle.reporting import Report, report

_NEEDS_TORCH = {
    "LargestBatch": "alone",
    "StepProfile": "alone",
    "max_batch": "alone",
    "plan": "alone",
    "profile": "alone",
    "PlannedModule": "module",
    "Report": "reporting",
    "backend": "module",
    "compile": "module",
    "measure_peak": "account",
    "report": "reporting",
}
"""What is imported when it is first used, and from where."""

__all__ = [
    "CheckFailed",
    "CompilerMissing",
    "Decision",
    "ForeignBudget",
    "Graph",
    "InfeasibleBudget",
    "InvalidInput",
    "LargestBatch",
    "LiveGradients",
    "NoGradients",
    "OverBudget",
    "Plan",
    "PlannedModule",
    "PlanningStopped",
    "RanksDiffer",
    "RekindleError",
    "Report",
    "RetainedGraph",
    "SplitStep",
    "StepProfile",
    "TooManyShapes",
    "TorchMissing",
    "Unplanned",
    "UnplannedPart",
    "UnsupportedGraph",
    "UnsupportedOption",
    "UnsupportedTorch",
    "backend",
    "compile",
    "max_batch",
    "measure_peak",
    "parse_budget",
    "plan",
    "profile",
    "report",
    "rewrite",
    "smallest",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'rekindle' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"rekindle.{_NEEDS_TORCH[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise TorchMissing(
            f"rekindle.{name} needs PyTorch, which is not installed: pip install torch"
        ) from None
