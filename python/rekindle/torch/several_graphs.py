"""Several graphs in one step: how many bytes each may leave behind, so that the step's peak holds.

A model is captured in several graphs where it is split into buckets (DDP) or blocks (FSDP2), or
where a graph breaks. They run one after the other forward, and in the other order backward. While
graph i runs there are in memory, beside its own bytes,

    held_i = the parameters of the others + what the graphs before it took, gave and saved
    late_i = in its backward: the gradients of those behind it, and what the caller got of them

where a value that one graph gives and another takes is one (`flow`). What graph i saves lies there
while the graphs behind it run. So with B the budget, graph i is planned for B - held_i, with late_i
as bytes that come at the moment between its passes and stay, and with a scratch at that moment that
leaves room for no more than a_i: then it saves at most a_i. Nothing runs between the passes of the
last graph, so it may save what it likes.

Method: a_i lies between the least that a plan of graph i can save and what the plain step saves, at
a share in sixteenths. Who saves less needs more himself, and leaves more to those behind: so, in
their order, each graph gets the smallest share for which it has a plan in the room that those
before it leave, and there is no budget for which others would do. That share is not below one that
is the same for all, and that one is the largest for which there are plans. In the pass that
collects the graphs those behind are not known: each graph gets the smallest share for which it has
a plan beside what is held by then, and all gradients that may follow.

Limits: a share is a bound, of which a plan may leave something. What the graphs before took and
gave counts as long as they wait, and what a backward hands to a graph further before counts until
the end, so that a step may stay below its budget.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rekindle import _native
from rekindle.errors import InfeasibleBudget
from rekindle.planner import plan_with, untimed
from rekindle.settings import Settings
from rekindle.torch.effects import Effect
from rekindle.torch.flow import Run
from rekindle.torch.planning import TimedPlan

SHARES = 16
"""Shares that are tried: finer ones change little, and each costs a plan of every graph."""
QUICK = 0
"""The planner's effort while shares are tried: whether there is a plan is all that counts."""
HARDER = 2
"""Its effort where that finds none: two hundredths lower for four blocks of attention."""


Share = float | None
"""Of what a graph can save; None where it may save what it likes."""

NONE_FITS = math.inf
"""The share of which there is no plan."""

SCRATCHES = (0, 1, 2, 4, 8)
"""Bytes in use between the passes that the first pass plans with, in eighths of the plain peak."""


def save_least(graph: _native.Graph, boundary: int, store: str | None = None) -> _native.Plan:
    """A plan that holds little between the passes: the smallest while as many bytes are in use
    there as the whole step needs.
    """
    roomy = untimed(graph.with_workspace(boundary, graph.peak))
    return _native.smallest(roomy, effort=QUICK, store=store)


class Part:
    """One graph of the step."""

    def __init__(
        self,
        graph: _native.Graph,
        boundary: int,
        input_gradients: int,
        store: str | None = None,
    ) -> None:
        self.graph = graph.with_workspace(boundary, 0)
        self.store = store
        self.boundary = boundary
        nodes = graph.nodes
        sizes, roles = zip(*graph.storages, strict=True)
        inputs = {s for node in nodes if node.phase == "input" for s in node.writes}
        self.base: int = sum(sizes[s] for s in inputs)
        """Bytes of its inputs and parameters."""
        self.parameters: int = sum(sizes[s] for s in inputs if roles[s] == "parameter")
        self.input_gradients = input_gradients
        """Bytes that its backward hands to the graphs before it."""
        handed_out: int = sum(
            sizes[s] for s in set(graph.outputs) - inputs if roles[s] == "gradient"
        )
        self.gradients = max(handed_out - input_gradients, 0)
        """Bytes of its parameters' gradients."""
        self.tangents: int = sum(sizes[s] for s in nodes[boundary].writes)
        """Bytes that its backward is handed, and that its own peak counts."""
        ran = [number for number, node in enumerate(nodes) if node.phase != "input"]
        self.plain_saved: int = self.graph.timeline()[ran.index(boundary)] - self.base
        """What lies there between its passes in the plain step, its inputs aside."""
        self.least_saved: int = min(
            self.saved_by(save_least(self.graph, boundary, store)), self.plain_saved
        )
        """The same in a plan that saves as little as it can."""
        given = set(nodes[boundary].reads) - inputs
        self.passing: int = sum(
            sizes[s] for s in given | set(nodes[boundary].writes) if roles[s] != "parameter"
        )
        """Bytes that lie there between its passes and are not its own: what it hands out, and the
        gradients of that.
        """
        self.late = 0
        """Bytes of others that come between its passes, and stay."""
        self._planned = self.graph

    def beside(self, late: int) -> Part:
        """The same with so many bytes of others from the moment between its passes on."""
        part = copy.copy(self)
        part.late, part._planned = late, with_late(self.graph, self.boundary, late)
        return part

    def saved_by(self, plan: _native.Plan) -> int:
        """What lies there between the passes in a plan."""
        runs = [number for kind, number in plan.steps() if kind == "run"]
        return plan.timeline(self.graph)[runs.index(self.boundary)] - self.base

    @property
    def planned_peak(self) -> int:
        """The graph's own peak without a plan, with what comes of others."""
        return self._planned.peak

    @property
    def floor(self) -> int:
        """No plan needs less, with what comes of others."""
        return self._planned.floor

    def peak_of(self, plan: _native.Plan) -> int:
        """The graph's own peak in a plan."""
        return max(plan.timeline(self.graph))

    def plan(self, settings: Settings, room: int, share: Share) -> TimedPlan:
        """A plan in so many bytes that saves no more than the share. There is one if it `fits`."""
        try:
            plan = plan_with(settings, self._in(room, share), room)
        except InfeasibleBudget:
            plan = self._quick(room, share)
        return TimedPlan(self.graph, plan.carried_over(self.graph, room))

    def fits(self, room: int, share: Share) -> bool:
        """Whether there is a plan in so many bytes that saves no more than the share. It does not
        depend on times: what fits once fits in every run.
        """
        if self.store is None and self._in(room, share).floor > room:
            return False
        try:
            self._quick(room, share)
        except InfeasibleBudget:
            return False
        return True

    def _quick(self, room: int, share: Share) -> _native.Plan:
        graph = untimed(self._in(room, share))
        try:
            return _native.plan(graph, room, effort=QUICK, store=self.store)
        except InfeasibleBudget:
            # Where little is lacking, it is looked for harder.
            return _native.plan(graph, room, effort=HARDER, store=self.store)

    def _in(self, room: int, share: Share) -> _native.Graph:
        """The graph with so much in use between its passes that it saves no more than the share."""
        if share is None:
            return self._planned
        scratch = max(room - self.base - self.late - self.saved(share), 0)
        return self._planned.with_workspace(self.boundary, scratch)

    def saved(self, share: Share) -> int:
        """The most that it may save, at a share of what it can."""
        if share is None:
            return self.plain_saved
        return self.least_saved + int(share * (self.plain_saved - self.least_saved))


def with_late(graph: _native.Graph, boundary: int, late: int) -> _native.Graph:
    """The graph with bytes that come at the moment between its passes, and stay."""
    if not late:
        return graph
    nodes, extra = graph.nodes, len(graph.storages)
    node = nodes[boundary]
    nodes[boundary] = _native.Node(
        node.name,
        node.op,
        node.phase,
        reads=node.reads,
        writes=[*node.writes, extra],
        updates=node.updates,
        effect=node.effect,
        time=node.time,
        workspace=node.workspace,
    )
    return _native.Graph(
        graph.name,
        storages=[*graph.storages, (late, "gradient")],
        nodes=nodes,
        outputs=[*graph.outputs, extra],
        targets=[at for at, node in enumerate(nodes) if node.effect == Effect.ONCE.value],
    )


@dataclass(frozen=True)
class Others:
    """What a step holds beside one of its graphs, as far as it is known while the graphs are
    collected.
    """

    resident: int
    """Bytes of all parameters."""
    saved: int
    """Bytes that the graphs before it have saved."""
    gradients: int
    """Bytes of the gradients that it and those behind it make, at most."""

    def held(self, part: Part) -> int:
        """The most bytes that others hold while the graph runs."""
        return (
            max(self.resident - part.parameters, 0)
            + self.saved
            + max(self.gradients - part.gradients, 0)
        )


def first_pass(part: Part, settings: Settings, others: Others) -> TimedPlan:
    """A plan while it is not known what comes behind: of those that fit, one that saves little.

    Where the budget is a share of a peak that is not known yet, or nothing fits, the plan whose
    peak and savings add up to least.
    """
    budget = settings.bytes_without_share
    if budget is None:
        return use_least(part)
    room = max(budget - others.held(part), 0)
    quick = settings.with_effort(QUICK)
    too_small = largest_share(lambda share: not part.fits(room, share))
    share = 0.0 if too_small is None else too_small + 1 / SHARES
    if share > 1.0:
        return use_least(part)
    return part.plan(quick, room, share)


def use_least(part: Part) -> TimedPlan:
    """Of a few plans, the one whose peak and savings add up to least."""
    best: tuple[int, TimedPlan] | None = None
    for eighths in SCRATCHES:
        roomy = part.graph.with_workspace(part.boundary, part.graph.peak * eighths // 8)
        plan = _native.smallest(roomy, effort=QUICK, store=part.store)
        cost = part.peak_of(plan) + part.saved_by(plan)
        if best is None or cost < best[0]:
            best = cost, TimedPlan(roomy, plan)
    assert best is not None
    return best[1]


class GraphsOfStep:
    """The graphs of one step, their runs in the order of the forward, and all parameters' bytes.
    The number of a run is that of its part.
    """

    def __init__(self, parts: Sequence[Part], runs: Sequence[Run], resident: int) -> None:
        self.runs, self.resident = runs, resident
        late = [0] * len(parts)
        for at, run in enumerate(runs):
            late[run.number] = max(late[run.number], self._late(parts, at))
        self.parts = [part.beside(size) for part, size in zip(parts, late, strict=True)]
        self._known: dict[tuple[int, int, Share], bool] = {}
        """Whether there is a plan of a part in so many bytes, at a share."""

    def _late(self, parts: Sequence[Part], at: int) -> int:
        """The bytes of others that come between the passes of a run, and stay."""
        run, behind = self.runs[at], self.runs[at + 1 :]
        gradients = sum(parts[other.number].gradients for other in behind)
        # Some of what those behind hand on is what this one is handed.
        handed_on = sum(
            parts[other.number].input_gradients
            for number, other in enumerate(behind)
            if self._reaches_before(at, at + 1 + number)
        )
        own = run.taken | run.all_given
        returned = {
            block: other.all_given[block]
            for other in behind
            for block in other.returned
            if block not in own
        }
        return gradients + max(handed_on - parts[run.number].tangents, 0) + sum(returned.values())

    def _reaches_before(self, at: int, other: int) -> bool:
        """Whether the backward of a run behind gives a gradient that no run from `at` on takes."""
        given = [block for run in self.runs[at:other] for block in run.all_given]
        return not self.runs[other].differentiated.issubset(given)

    def held(self, shares: Sequence[Share]) -> list[int]:
        """The most bytes that others hold while each part runs, at shares of what they can save."""
        return self._held(
            [part.saved(share) for part, share in zip(self.parts, shares, strict=True)]
        )

    def _held(self, saved: Sequence[int]) -> list[int]:
        held = [0] * len(self.parts)
        blocks: dict[int, int] = {}
        private = 0
        for run in self.runs:
            part = self.parts[run.number]
            others = max(self.resident - part.parameters, 0) + private
            others += sum(size for block, size in blocks.items() if block not in run.taken)
            held[run.number] = max(held[run.number], others)
            blocks |= run.taken | run.all_given
            private += max(saved[run.number] - part.passing, 0)
        return held

    def peak(self, plans: Sequence[_native.Plan]) -> int:
        """The step's peak when its parts run by these plans, as it is counted here."""
        pairs = list(zip(self.parts, plans, strict=True))
        held = self._held([part.saved_by(plan) for part, plan in pairs])
        return max(
            others + part.late + part.peak_of(plan)
            for others, (part, plan) in zip(held, pairs, strict=True)
        )

    @property
    def plain_peak(self) -> int:
        """The step's peak without plans, as it is counted here."""
        held = self.held([1.0] * len(self.parts))
        return max(
            others + part.planned_peak for others, part in zip(held, self.parts, strict=True)
        )

    def plan(self, settings: Settings, budget: int) -> list[TimedPlan]:
        """A plan for each part; together they need no more than `budget`."""
        least = largest_share(lambda share: self._shares(budget, share) is not None)
        shares = None if least is None else self._shares(budget, least)
        if shares is None:
            raise self._infeasible(budget)
        return [
            part.plan(settings, max(budget - held, 0), share)
            for part, held, share in zip(self.parts, self.held(shares), shares, strict=True)
        ]

    def _least_shares(self, least: float) -> list[Share]:
        """One share for all parts, but for one that runs last and never before."""
        shares: list[Share] = [least] * len(self.parts)
        last = self.runs[-1].number
        if sum(run.number == last for run in self.runs) == 1:
            shares[last] = None
        return shares

    def _shares(self, budget: int, least: float) -> list[Share] | None:
        """For each part the smallest share, from `least` on, with which all have plans together;
        None if there are no plans.
        """
        shares, number = self._least_shares(least), 0
        while number < len(self.parts):
            room = max(budget - self.held(shares)[number], 0)
            share = self._smallest_share(number, room, shares[number])
            if share is NONE_FITS:
                return None
            # A part that saves more leaves less room to those behind it, and where it runs several
            # times to itself.
            is_settled = share == shares[number]
            shares[number], number = share, number + 1 if is_settled else 0
        return shares

    def _smallest_share(self, number: int, room: int, least: Share) -> Share:
        """The smallest share from `least` on for which a part has a plan in so many bytes."""
        if self._fits(number, room, least):
            return least
        if least is None:
            return NONE_FITS
        too_small = largest_share(lambda share: not self._fits(number, room, max(share, least)))
        share = 0.0 if too_small is None else too_small + 1 / SHARES
        return share if share <= 1.0 else NONE_FITS

    def _fits(self, number: int, room: int, share: Share) -> bool:
        key = number, room, share
        if key not in self._known:
            self._known[key] = self.parts[number].fits(room, share)
        return self._known[key]

    def _smallest(self, above: int) -> int:
        """The smallest budget for which the parts have plans, to a hundredth."""
        low, high = above, max(self.plain_peak, above)
        while high - low > high // 100:
            middle = (low + high) // 2
            if self._shares(middle, 0.0) is not None:
                high = middle
            else:
                low = middle
        return high

    def _without_store(self) -> GraphsOfStep:
        parts = [Part(part.graph, part.boundary, part.input_gradients) for part in self.parts]
        return GraphsOfStep(parts, self.runs, self.resident)

    def _infeasible(self, budget: int) -> InfeasibleBudget:
        """The error, with the smallest budget for which the parts have plans."""
        smallest, without = self._smallest(budget), ""
        if any(part.store is not None for part in self.parts):
            without = f"  without the store: {self._without_store()._smallest(budget)} bytes\n"
        others = self.held(self._least_shares(0.0))
        floors = [held + part.floor for held, part in zip(others, self.parts, strict=True)]
        tightest = floors.index(max(floors))
        return InfeasibleBudget(
            f"no plans for the {len(self.runs)} graphs of the step fit together in {budget} bytes\n"
            f"  smallest budget with known plans: {smallest} bytes\n{without}"
            f"  the tightest is graph {tightest}, while others hold "
            f"{others[tightest]} bytes",
            budget,
            smallest,
            max(floors),
            f"graph {tightest}",
        )


def largest_share(fits: Callable[[float], bool]) -> float | None:
    """The largest share, in sixteenths, that fits; None if none does. What fits at a share fits
    below it.
    """
    low, high = -1, SHARES + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle / SHARES):
            low = middle
        else:
            high = middle
    return None if low < 0 else low / SHARES
