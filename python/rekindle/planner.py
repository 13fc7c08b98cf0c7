"""`rekindle.plan`: a graph and a budget → a plan. It needs no PyTorch."""

from __future__ import annotations

import sys
import time

from rekindle import _native
from rekindle.settings import Budget, Settings

PATIENCE_SECONDS = 5.0
"""Nothing is said before, and then once in this time."""


def plan(
    graph: _native.Graph,
    budget: Budget,
    *,
    strategy: str = "search",
    effort: int | None = None,
    time_limit: float | None = None,
) -> _native.Plan:
    """A plan that runs `graph` in `budget`: bytes, text (`"8GiB"`, `"60%"`) or a share of the plain
    step's peak (`0.6`).

    `strategy` is one of `rekindle.strategies()`; `effort` (0 to 10) and `time_limit` (seconds)
    bound the planning. Raises `InfeasibleBudget` if no plan fits.
    """
    settings = Settings(budget, strategy=strategy, effort=effort, time_limit=time_limit)
    return plan_with(settings, graph, settings.bytes_for(graph.peak))


def plan_with(settings: Settings, graph: _native.Graph, budget: int) -> _native.Plan:
    """The planner's call in so many bytes, as the user has set it."""
    return _native.plan(
        graph,
        budget,
        strategy=settings.strategy,
        effort=settings.effort,
        time_limit=settings.time_limit,
        progress=ProgressLine(),
    )


class ProgressLine:
    """What the planner calls now and then: a line on standard error while planning takes long."""

    def __init__(self) -> None:
        self.begin = self.told = time.monotonic()

    def __call__(self, done: int, total: int, best: float | None, lowest: int) -> None:
        """Tells how far the planning is, and the best that it has."""
        now = time.monotonic()
        if now - self.told < PATIENCE_SECONDS:
            return
        self.told = now
        found = (
            f"lowest peak so far {lowest / 2**20:.1f} MiB"
            if best is None
            else f"best step so far {best / 1e3:.1f} ms"
        )
        share = f"{100 * done // total} %" if total else "…"
        print(
            f"rekindle: planning, {share} after {now - self.begin:.0f} s, {found}",
            file=sys.stderr,
            flush=True,
        )
