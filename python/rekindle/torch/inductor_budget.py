"""A joint graph and a budget → a plan whose modules, as Inductor runs them, hold the budget.

What Inductor fuses, moves and hands on is known when it has written the function that calls its
kernels, and no plan knows it before. So plans for many inner budgets are made, from the plain step
to the least that is known, and taken in turn, the fastest first: its modules are given to Inductor,
`wrapper_bytes` tells from what Inductor wrote what the step will take, and the first plan that
takes no more than the budget is the one that runs. The kernels of that one alone are compiled.

The plans do not depend on the budget, and neither does what each takes. So a lower budget never
gives a higher peak, and never a step that is planned to be faster: the plan that a higher budget
takes either holds the lower one too, and is taken again, or takes more than the lower one allows.

A plan that holds more than the budget at the moment between the passes is not tried: what is saved
is what the plan saves, whatever Inductor does.

Where no plan holds the budget the error names the least that one takes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from rekindle import _native, cache
from rekindle.errors import InfeasibleBudget
from rekindle.planner import ProgressLine
from rekindle.settings import Settings
from rekindle.torch.effects import has_collectives
from rekindle.torch.inductor import CompiledStep, compile_half
from rekindle.torch.joint import Joint
from rekindle.torch.lower import Lowered
from rekindle.torch.lower_back import Modules
from rekindle.torch.planning import (
    Cost,
    PlannedGraph,
    TimedPlan,
    build,
    key_of,
    stored_plan,
    timed,
)
from rekindle.torch.ranks import agree
from rekindle.torch.wrapper_bytes import Scratch, foresee, load

LEVELS = 16
"""Inner budgets that there are plans for. More of them use a budget better; each that does not hold
costs as long as Inductor takes to write two functions.
"""
EFFORT = 2
"""The planner's effort for each: what Inductor changes outweighs what more effort would find, and
the frontier of a six-layer BERT takes 7 seconds in place of 70.
"""


class InductorPlans:
    """Plans that hold their budgets under Inductor, for the graphs of one session."""

    def __init__(self) -> None:
        self.scratch = Scratch()

    def plan(
        self, joint: Joint, settings: Settings, lowered: Lowered, cost: Cost | None = None
    ) -> PlannedGraph:
        """Plans a step that is one graph. `cost` takes the place of the clock."""
        begin = time.perf_counter()
        find = cost or (lambda: timed(joint, lowered, settings))
        search = _Search(joint, lowered, self.scratch)
        decided = agree(
            f"{lowered.graph.digest} planned for Inductor with {settings}",
            lambda: search.decide(settings, find),
            has_collectives=has_collectives(joint.graph),
        )
        return search.planned(decided, settings.bytes_for(decided.graph.peak), begin)

    def hold(
        self, joint: Joint, settings: Settings, lowered: Lowered, given: TimedPlan
    ) -> PlannedGraph:
        """The same for one of several graphs: its plan says how much it may take, and how much must
        be free between its passes.
        """
        begin, budget = time.perf_counter(), given.plan.budget
        search = _Search(joint, lowered, self.scratch)
        decided = agree(
            f"{given.graph.digest} planned for Inductor in {budget} with {settings}",
            lambda: search.first(
                given.graph, [given.plan, *_frontier(settings, given.graph)], budget
            ),
            has_collectives=has_collectives(joint.graph),
        )
        return search.planned(decided, budget, begin)

    def take(self, joint: Joint, lowered: Lowered, given: TimedPlan) -> PlannedGraph:
        """Takes a plan that was made elsewhere, if it holds its budget here."""
        begin, budget = time.perf_counter(), given.plan.budget
        search = _Search(joint, lowered, self.scratch)
        search.first(given.graph, [given.plan], budget)
        return search.planned(given, budget, begin)


def _frontier(settings: Settings, graph: _native.Graph) -> list[_native.Plan]:
    """Plans from the plain step's peak down to the least that is known."""
    effort = EFFORT if settings.effort is None else min(settings.effort, EFFORT)
    return _native.frontier(
        graph,
        LEVELS,
        strategy=settings.strategy,
        effort=effort,
        time_limit=settings.time_limit,
        progress=ProgressLine(),
    )


class _Search:
    """The plans of one graph, as Inductor runs them."""

    def __init__(self, joint: Joint, lowered: Lowered, scratch: Scratch) -> None:
        self.joint = joint
        self.lowered = lowered
        self.scratch = scratch
        self.tried: dict[str, tuple[Modules, CompiledStep]] = {}
        """What Inductor made of each plan, by its text."""

    def decide(self, settings: Settings, cost: Cost) -> TimedPlan:
        """The plan of an earlier run if it holds the budget, or the first that does."""
        key = key_of(self.joint, self.lowered, settings, with_inductor=True)
        stored = stored_plan(key, self.lowered)
        if stored is not None:
            budget = settings.bytes_for(stored.graph.peak)
            with contextlib.suppress(InfeasibleBudget):
                self.first(stored.graph, [stored.plan], budget)
                return stored
        graph, guessed = cost()
        budget = settings.bytes_for(graph.peak)
        found = self.first(graph, _frontier(settings, graph), budget)
        found.guessed = guessed
        cache.store(key, graph.to_json(), found.plan.to_json())
        return found

    def first(self, graph: _native.Graph, plans: Iterable[_native.Plan], budget: int) -> TimedPlan:
        """The fastest plan that holds the budget."""
        candidates = sorted(plans, key=lambda plan: plan.time)
        least = {number: self.least(graph, plan) for number, plan in enumerate(candidates)}
        known: dict[int, int] = {}
        for number, plan in enumerate(candidates):
            if least[number] > budget:
                continue
            known[number] = self.compiled(graph, plan)[1].peak
            if known[number] <= budget:
                return TimedPlan(graph, plan)
        # Nothing holds it. Those that were not tried may be the least that there is.
        for number in sorted(least.keys() - known.keys(), key=lambda number: least[number]):
            if not known or least[number] < min(known.values()):
                known[number] = self.compiled(graph, candidates[number])[1].peak
        raise self.infeasible(budget, min(known.values()))

    def least(self, graph: _native.Graph, plan: _native.Plan) -> int:
        """What a plan takes between the passes, whatever Inductor does inside them. With room that
        is kept for other graphs, that is in use.
        """
        boundary = self.lowered.boundary
        about, sizes = graph.nodes[boundary], graph.storages
        runs = [number for kind, number in plan.steps() if kind == "run"]
        between: int = plan.timeline(graph)[runs.index(boundary)]
        if about.workspace:
            return between
        # A plan counts the states of all draws, and tangents while there are new contents.
        return between - self.lowered.state_bytes - sum(sizes[s][0] for s in about.writes)

    def compiled(self, graph: _native.Graph, plan: _native.Plan) -> tuple[Modules, CompiledStep]:
        """The plan's modules, and what Inductor makes of them."""
        key = plan.to_json()
        if key not in self.tried:
            modules = build(self.joint, self.lowered, graph, plan)
            forward = compile_half(modules.forward, is_backward=False)
            backward = compile_half(modules.backward, is_backward=True)
            foreseen = foresee(
                self.joint,
                modules,
                load(forward.source, forward.constants),
                load(backward.source, backward.constants),
                self.scratch,
            )
            self.tried[key] = modules, CompiledStep(forward, backward, foreseen.peak)
        return self.tried[key]

    def planned(self, decided: TimedPlan, budget: int, begin: float) -> PlannedGraph:
        """The step as it runs, with its kernels compiled."""
        modules, step = self.compiled(decided.graph, decided.plan)
        if step.peak > budget:
            raise self.infeasible(budget, step.peak)
        self.tried.clear()
        seconds = time.perf_counter() - begin
        step.compile_kernels()
        step.budget = budget
        return PlannedGraph(self.joint, self.lowered, decided, modules, seconds, compiled=step)

    def infeasible(self, budget: int, smallest: int) -> InfeasibleBudget:
        """The error, with the least that a plan takes."""
        owned = sum(
            size
            for node in self.lowered.graph.nodes
            if node.phase == "input"
            for size in (self.lowered.graph.storages[s][0] for s in node.writes)
        )
        return InfeasibleBudget(
            f"no plan that is known fits in {budget} bytes as Inductor runs it\n"
            f"  smallest budget with a known plan: {smallest} bytes\n"
            f"  {owned} bytes are parameters, inputs and what is held beside the step\n"
            "  without inductor=True the smallest budget may be another: operations that are fused "
            "take less, and those that Inductor moves can take more",
            budget,
            smallest,
            owned,
            "the step as Inductor runs it",
        )
