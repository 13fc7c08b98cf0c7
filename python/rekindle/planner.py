"""`rekindle.plan`: a graph and a budget → a plan. It needs no PyTorch."""

from __future__ import annotations

import json
import sys
import time

from rekindle import _native
from rekindle.errors import InfeasibleBudget, InvalidInput
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


def smallest(
    graph: _native.Graph, *, strategy: str = "search", effort: int | None = None
) -> _native.Plan:
    """The plan with the smallest peak that the strategy knows how to reach. Its peak is a budget
    that `plan` and `compile` accept, whatever times are measured.
    """
    plan = _native.smallest(untimed(graph), strategy=strategy, effort=effort)
    return carried_over(plan, graph, plan.peak)


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
        return carried_over(plan, graph, budget)


def untimed(graph: _native.Graph) -> _native.Graph:
    """The graph with the same time for every node that runs."""
    return graph.with_times([0.0 if node.phase == "input" else 1.0 for node in graph.nodes])


def carried_over(plan: _native.Plan, graph: _native.Graph, budget: int) -> _native.Plan:
    """The steps of a plan as one of another graph with the same nodes, which may have other sizes
    and times. An `InvalidInput` error if it is none in so many bytes.
    """
    times = [node.time for node in graph.nodes]
    steps = json.loads(plan.to_json()) | {"graph": graph.name, "graph_digest": graph.digest}
    time_us = sum(times[number] for kind, number in plan.steps() if kind == "run")
    peak = max(plan.timeline(graph), default=graph.peak)
    steps |= {"budget_bytes": budget, "peak_bytes": peak, "time_us": time_us}
    carried = _native.Plan.from_json(json.dumps(steps))
    violations = _native.verify(graph, carried)
    if violations:
        raise InvalidInput("; ".join(violations))
    return carried


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
