"""Rekindle trains a PyTorch model in the memory you have.

    model = rekindle.compile(model, budget="8GiB")
    print(rekindle.report(model))

Graphs are planned without PyTorch. What needs it is in `rekindle.torch`, and its names are here
too: they are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rekindle import errors
from rekindle._native import (
    Decision,
    Graph,
    Node,
    Plan,
    Transfers,
    parse_budget,
    rewrite,
    strategies,
    verify,
)
from rekindle.errors import *  # noqa: F403 (every error, by its name)
from rekindle.planner import frontier, plan, smallest

if TYPE_CHECKING:
    from rekindle import torch
    from rekindle.torch import (
        LargestBatch,
        PlannedModule,
        Report,
        StepProfile,
        backend,
        compile,
        max_batch,
        measure_peak,
        profile,
        report,
    )

__all__ = [
    *errors.__all__,
    "Decision",
    "Graph",
    "LargestBatch",
    "Node",
    "Plan",
    "PlannedModule",
    "Report",
    "StepProfile",
    "Transfers",
    "backend",
    "compile",
    "frontier",
    "max_batch",
    "measure_peak",
    "parse_budget",
    "plan",
    "profile",
    "report",
    "rewrite",
    "smallest",
    "strategies",
    "torch",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rekindle' has no attribute {name!r}")
    try:
        part = importlib.import_module("rekindle.torch")
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise errors.TorchMissing(
            f"rekindle.{name} needs PyTorch, which is not installed: pip install torch"
        ) from None
    return part if name == "torch" else getattr(part, name)
