"""`rekindle.plan`: a graph and a budget → a plan; `rekindle.frontier`: plans for many budgets. They
need no PyTorch.
"""

from __future__ import annotations

import sys
import time

from rekindle import _native
from rekindle.errors import InfeasibleBudget, InvalidInput
from rekindle.settings import Budget, Settings

PATIENCE_SECONDS = 5.0
"""Nothing is said before, and then once in this time."""
FEWEST_POINTS = 2
"""A frontier has two ends."""


def plan(
    graph: _native.Graph,
    budget: Budget,
    *,
    strategy: str = "search",
    effort: int | None = None,
    time_limit: float | None = None,
    store: str | None = None,
) -> _native.Plan:
    """A plan that runs `graph` in `budget`: bytes, text (`"8GiB"`, `"60%"`) or a share of the plain
    step's peak (`0.6`).

    `strategy` is one of `rekindle.strategies()`; `effort` (0 to 10) and `time_limit` (seconds)
    bound the planning. With a `store`, such as `"out=25GB/s,in=25GB/s,latency=10us"`, tensors may
    be moved to it and back; add `half-duplex` for one channel, `limit=40GiB` for the most that it
    may hold. Raises `InfeasibleBudget` if no plan fits.
    """
    settings = Settings(
        budget, strategy=strategy, effort=effort, time_limit=time_limit, store=store
    )
    return plan_with(settings, graph, settings.bytes_for(graph.peak))


def smallest(
    graph: _native.Graph,
    *,
    strategy: str = "search",
    effort: int | None = None,
    store: str | None = None,
) -> _native.Plan:
    """The plan with the smallest peak that the strategy knows how to reach. Its peak is a budget
    that `plan` and `compile` accept, whatever times are measured.
    """
    plan = _native.smallest(untimed(graph), strategy=strategy, effort=effort, store=store)
    return plan.carried_over(graph, plan.peak)


def plan_with(
    settings: Settings, graph: _native.Graph, budget: int, progress: ProgressLine | None = None
) -> _native.Plan:
    """The planner's call in so many bytes, as the user has set it.

    Where the search goes depends on times, which another run measures anew. So a budget is refused
    only if it is refused without times too, and then the smallest that is named is the same in
    every run, and works.
    """
    try:
        return _plan_once(settings, graph, budget, progress)
    except InfeasibleBudget:
        plan = _plan_once(settings, untimed(graph), budget, progress)
        return plan.carried_over(graph, budget)


def untimed(graph: _native.Graph) -> _native.Graph:
    """The graph with the same time for every node that runs."""
    return graph.with_times([0.0 if node.phase == "input" else 1.0 for node in graph.nodes])


def _plan_once(
    settings: Settings, graph: _native.Graph, budget: int, progress: ProgressLine | None
) -> _native.Plan:
    return _native.plan(
        graph,
        budget,
        strategy=settings.strategy,
        effort=settings.effort,
        time_limit=settings.time_limit,
        progress=progress or ProgressLine(),
        store=settings.store,
    )


def frontier(
    graph: _native.Graph,
    points: int = 20,
    *,
    strategy: str = "search",
    effort: int | None = None,
    time_limit: float | None = None,
    store: str | None = None,
) -> list[_native.Plan]:
    """Plans at `points` budgets, from the plain step's peak down to the smallest peak known:
    budgets descend, and times never fall. The options are those of `rekindle.plan`.
    """
    if type(points) is not int or points < FEWEST_POINTS:
        raise InvalidInput(f"points is a whole number from {FEWEST_POINTS}, not {points!r}")
    settings = Settings(1.0, strategy=strategy, effort=effort, time_limit=time_limit, store=store)
    return _native.frontier(
        graph,
        points,
        strategy=settings.strategy,
        effort=settings.effort,
        time_limit=settings.time_limit,
        progress=ProgressLine(),
        store=settings.store,
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
