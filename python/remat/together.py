"""Several graphs in one step: how many bytes each may leave behind, so that the step's peak holds.

A model is captured in several graphs where it is split into buckets (DDP) or blocks (FSDP2), or where a graph breaks. They run one
after the other forward, and in the other order backward. While graph i runs there are in memory, beside its own bytes,

    held_i = the parameters of the others + what the graphs before it saved + the gradients of those behind it

and what it saves itself lies there while the graphs behind it run. So with B the budget, graph i is planned for B - held_i, and with a
scratch at the moment between its passes that leaves room for no more than a_i: then it saves at most a_i.

Method: a_i lies between the least that a plan of graph i can save and what the plain step saves, at the same share for all graphs. The
largest share in sixteenths for which every graph has a plan is taken.

Limits: one share for all is simple, not optimal. Gradients count as held in the forward too, and what one graph hands to the next is
counted by both, so that a step may stay below its budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from remat import _native
from remat.errors import InfeasibleBudget
from remat.planning import Found, Settings, plan_graph

STEPS = 16
"""Shares that are tried: finer ones change little, and each costs a plan of every graph."""
QUICK = 0
"""The planner's effort while shares are tried: whether there is a plan is all that counts."""


SCRATCHES = (0, 1, 2, 4, 8)
"""Bytes in use between the passes that the first pass plans with, in eighths of the plain peak."""


def save_least(graph: _native.Graph, boundary: int) -> _native.Plan:
    """A plan that holds little between the passes: the smallest while as many bytes are in use there as the whole step needs."""
    return _native.smallest(with_scratch(graph, boundary, graph.peak), effort=QUICK)


def with_scratch(graph: _native.Graph, boundary: int, scratch: int) -> _native.Graph:
    """The graph with so many bytes in use at its node between the passes."""
    file = json.loads(graph.to_json())
    file["nodes"][boundary]["workspace_bytes"] = scratch
    return _native.Graph.from_json(json.dumps(file))


class Part:
    """One graph of the step."""

    def __init__(self, graph: _native.Graph, boundary: int) -> None:
        self.graph = with_scratch(graph, boundary, 0)
        self.boundary = boundary
        file: dict[str, Any] = json.loads(self.graph.to_json())
        sizes = [storage["bytes"] for storage in file["storages"]]
        roles = [storage["role"] for storage in file["storages"]]
        inputs = {s for node in file["nodes"] if node["phase"] == "input" for s in node["writes"]}
        self.base: int = sum(sizes[s] for s in inputs)
        """Bytes of its inputs and parameters."""
        self.parameters = sum(sizes[s] for s in inputs if roles[s] == "parameter")
        self.gradients = sum(sizes[s] for s in set(file["outputs"]) - inputs if roles[s] == "gradient")
        """Bytes that its backward hands out."""
        ran = [number for number, node in enumerate(file["nodes"]) if node["phase"] != "input"]
        self.plain_saved: int = self.graph.timeline()[ran.index(boundary)] - self.base
        """What lies there between its passes in the plain step, its inputs aside."""
        self.least_saved: int = min(self.saved_by(save_least(self.graph, boundary)), self.plain_saved)
        """The same in a plan that saves as little as it can."""

    def saved_by(self, plan: _native.Plan) -> int:
        """What lies there between the passes in a plan."""
        runs = [number for kind, number in plan.steps() if kind == "run"]
        return plan.timeline(self.graph)[runs.index(self.boundary)] - self.base

    def saved(self, share: float) -> int:
        """The most that it may save, at a share of what it can."""
        return self.least_saved + int(share * (self.plain_saved - self.least_saved))


def use_least(graph: _native.Graph, boundary: int) -> Found:
    """What one takes while it is not known what else the step holds: of a few plans, the one whose peak and savings add up to least."""
    part = Part(graph, boundary)
    best: tuple[int, Found] | None = None
    for eighths in SCRATCHES:
        roomy = with_scratch(part.graph, boundary, part.graph.peak * eighths // 8)
        plan = _native.smallest(roomy, effort=QUICK)
        cost = max(plan.timeline(part.graph)) + part.saved_by(plan)
        if best is None or cost < best[0]:
            best = cost, Found(roomy, plan)
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class Step:
    """The graphs of one step, the order in which they run forward, and the bytes of all parameters."""

    parts: Sequence[Part]
    runs: Sequence[int]
    resident: int

    def held(self, share: float) -> list[int]:
        """The most bytes that others hold while each part runs."""
        held = [0] * len(self.parts)
        for at, number in enumerate(self.runs):
            before = sum(self.parts[other].saved(share) for other in self.runs[:at])
            behind = sum(self.parts[other].gradients for other in self.runs[at + 1 :])
            others = max(self.resident - self.parts[number].parameters, 0)
            held[number] = max(held[number], others + before + behind)
        return held

    @property
    def plain_peak(self) -> int:
        """The step's peak without plans, as it is counted here."""
        return max(held + part.graph.peak for held, part in zip(self.held(1.0), self.parts, strict=True))

    def plan(self, settings: Settings, budget: int) -> list[Found]:
        """A plan for each part; together they need no more than `budget`."""
        share = largest_share(lambda share: self._fits(settings, budget, share))
        if share is None:
            raise self._infeasible(settings, budget)
        return [self._plan_part(number, settings, budget, share) for number in range(len(self.parts))]

    def _plan_part(self, number: int, settings: Settings, budget: int, share: float) -> Found:
        part, held = self.parts[number], self.held(share)[number]
        scratch = max(budget - held - part.base - part.saved(share), 0)
        graph = with_scratch(part.graph, part.boundary, scratch)
        return Found(graph, plan_graph(graph, settings, max(budget - held, 0)))

    def _fits(self, settings: Settings, budget: int, share: float) -> bool:
        quick = settings.with_effort(QUICK)
        try:
            for number in sorted(set(self.runs)):
                self._plan_part(number, quick, budget, share)
        except InfeasibleBudget:
            return False
        return True

    def _infeasible(self, settings: Settings, budget: int) -> InfeasibleBudget:
        """The error, with the smallest budget for which the parts have plans, to a hundredth."""
        low, high = budget, max(self.plain_peak, budget)
        while high - low > high // 100:
            middle = (low + high) // 2
            if self._fits(settings, middle, 0.0):
                high = middle
            else:
                low = middle
        floors = [held + part.graph.floor for held, part in zip(self.held(0.0), self.parts, strict=True)]
        tightest = floors.index(max(floors))
        return InfeasibleBudget(
            f"no plans for the {len(self.runs)} graphs of the step fit together in {budget} bytes\n"
            f"  smallest budget with known plans: {high} bytes\n"
            f"  the tightest is graph {tightest}, while others hold {self.held(0.0)[tightest]} bytes",
            budget,
            high,
            max(floors),
            f"graph {tightest}",
        )


def largest_share(fits: Callable[[float], bool]) -> float | None:
    """The largest share, in sixteenths, that fits; None if none does. What fits at a share fits below it."""
    low, high = -1, STEPS + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle / STEPS):
            low = middle
        else:
            high = middle
    return None if low < 0 else low / STEPS
