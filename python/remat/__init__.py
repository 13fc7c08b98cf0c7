"""Remat trains a PyTorch model in the memory you have."""

from __future__ import annotations

from remat._native import Decision, Graph, Plan, parse_budget, rewrite, smallest, verify
from remat.errors import InfeasibleBudget, InvalidInput, PlanningStopped, RematError

__all__ = [
    "Decision",
    "Graph",
    "InfeasibleBudget",
    "InvalidInput",
    "Plan",
    "PlanningStopped",
    "RematError",
    "parse_budget",
    "rewrite",
    "smallest",
    "verify",
]
