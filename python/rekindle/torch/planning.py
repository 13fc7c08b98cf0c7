"""A joint graph and a budget → a checked plan and the two modules that run it.

The stages in their order: lower, look for the plan among those of earlier runs, time the nodes,
plan, check, inject, check what was built. A plan from disk passes the same checks as a new one; one
that fails them is made anew.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from rekindle import _native, cache
from rekindle.errors import InfeasibleBudget, InvalidInput, RekindleError
from rekindle.planner import ProgressLine, plan_with
from rekindle.settings import Budget, Settings, TimeSource
from rekindle.torch.effects import has_collectives
from rekindle.torch.inductor import CompiledStep
from rekindle.torch.inject import inject
from rekindle.torch.joint import Joint
from rekindle.torch.lower import Lowered, lower
from rekindle.torch.lower_back import Modules, check_modules
from rekindle.torch.ranks import agree
from rekindle.torch.stores import with_store
from rekindle.torch.timing import time_nodes


@dataclass
class TimedPlan:
    """A timed graph and its plan. Sent to another process it is text, and loses its bound."""

    graph: _native.Graph
    plan: _native.Plan
    from_disk: bool = False
    guessed: list[str] = field(default_factory=list)
    """Operations whose times are the cost model's although measuring was asked for."""
    better: str = ""
    """Where the planner, given its time, may find a better one: under which name it tells other
    processes. Empty otherwise.
    """
    is_ours: bool = True
    """Whether this process has found it."""

    def __getstate__(self) -> tuple[str, str, bool, list[str], str]:
        texts = self.graph.to_json(), self.plan.to_json()
        return *texts, self.from_disk, self.guessed, self.better

    def __setstate__(self, state: tuple[str, str, bool, list[str], str]) -> None:
        graph, plan, self.from_disk, self.guessed, self.better = state
        self.graph, self.plan = _native.Graph.from_json(graph), _native.Plan.from_json(plan)
        self.is_ours = False


@dataclass
class PlannedGraph:
    """A joint graph with its plan, the modules that run it, and how they were come by."""

    joint: Joint
    lowered: Lowered
    decided: TimedPlan
    modules: Modules
    seconds: float
    """Spent on timing and planning."""
    compiled: CompiledStep | None = None
    """Where Inductor runs the modules: what it made of them."""
    measured_peak: int | None = None
    """Where Inductor runs the modules: the peak of the first step."""
    measured_saved: int | None = None
    """Likewise, what the forward handed to the backward."""

    @property
    def graph(self) -> _native.Graph:
        """With the times that were planned with."""
        return self.decided.graph

    @property
    def plan(self) -> _native.Plan:
        """What the modules run."""
        return self.decided.plan

    @property
    def peak(self) -> int:
        """The predicted peak of the step, in bytes."""
        return self.modules.peak if self.compiled is None else self.compiled.peak

    @property
    def budget(self) -> int:
        """What the step may take, in bytes. A plan that Inductor runs was made for another."""
        return self.plan.budget if self.compiled is None else self.compiled.budget

    @functools.cached_property
    def plain(self) -> Modules:
        """The modules of the step without a plan: every node once, in the graph's own order. They
        are built for those who ask.
        """
        return build(self.joint, self.lowered, self.graph, _plain(self.graph))


def plan(
    joint_graph: fx.GraphModule,
    budget: Budget,
    *,
    num_forward_outputs: int,
    static_inputs: Sequence[int] = (),
    profile: TimeSource = "measure",
    strategy: str = "search",
    effort: int | None = None,
    time_limit: float | None = None,
) -> PlannedGraph:
    """Plans a joint graph that another tool has captured; `modules` are its forward and backward.

    The graph is as AOTAutograd gives it to a `partition_fn`: functional, tangents are the
    placeholders called `tangents_…`, a fake tensor in each `meta["val"]`. `static_inputs` are the
    positions of parameters and buffers.
    """
    settings = Settings(budget, profile, strategy, effort, time_limit)
    _check_joint_graph(joint_graph, num_forward_outputs)
    return plan_joint(Joint(joint_graph, num_forward_outputs, static_inputs), settings)


def _check_joint_graph(module: object, num_forward_outputs: int) -> None:
    """Refuses what is no joint graph."""
    if not isinstance(module, fx.GraphModule):
        raise InvalidInput(
            f"a joint graph is a torch.fx.GraphModule, not a {type(module).__name__}"
        )
    outputs = module.graph.output_node().args[0]
    if not isinstance(outputs, (list, tuple)):
        raise InvalidInput(
            "the graph gives one value: a joint graph gives a tuple, the forward's outputs and "
            "then the gradients"
        )
    if not 0 < num_forward_outputs <= len(outputs):
        raise InvalidInput(
            f"the graph gives {len(outputs)} values, of which {num_forward_outputs} cannot be the "
            "forward's outputs"
        )
    placeholders = module.graph.find_nodes(op="placeholder")
    if not any(node.name.startswith("tangents") for node in placeholders):
        raise InvalidInput(
            "no placeholder of the graph is called tangents_…: it is not a joint graph, whose "
            "backward begins at these"
        )
    unknown = [node.name for node in placeholders if "val" not in node.meta]
    if unknown:
        raise InvalidInput(
            f'{unknown[0]} has no fake tensor in its meta["val"], so its size is not known: trace '
            "the graph with fake tensors"
        )


Decide = Callable[[_native.Graph, int], TimedPlan]
"""A timed graph and its node between the passes → the graph as it was planned, and its plan."""
Cost = Callable[[], tuple[_native.Graph, list[str]]]
"""Gives a graph with the time and the scratch of every node, and the operations whose times had to
be the cost model's.
"""


def plan_joint(
    joint: Joint,
    settings: Settings,
    lowered: Lowered | None = None,
    *,
    decide: Decide | None = None,
    given: TimedPlan | None = None,
    cost: Cost | None = None,
    start: _native.Plan | None = None,
    is_urgent: bool = False,
) -> PlannedGraph:
    """Plans a step and builds its modules. Where it is `lowered` already, that graph is planned.

    `decide` takes the place of the planner's call; a plan that is `given` is used as it is. `cost`
    takes the place of the clock, and `start` is the plan of a graph with the same nodes. If it
    `is_urgent`, a plan that is found at once is taken where the search would take long; it says
    so, and `better_plan` finds the other.
    """
    begin = time.perf_counter()
    lowered = lowered or lower(joint)
    find = cost or (lambda: timed(joint, lowered, settings))
    what = "as one of several" if decide is not None else "at once" if is_urgent else "to the end"
    decided = given or agree(
        f"{lowered.graph.digest} planned {what} with {settings}",
        lambda: (
            _decide(joint, lowered, settings, find, start, is_urgent)
            if decide is None
            else _decided_by(decide, lowered, find)
        ),
        has_collectives=has_collectives(joint.graph),
    )
    modules = build(joint, lowered, decided.graph, decided.plan)
    return PlannedGraph(joint, lowered, decided, modules, time.perf_counter() - begin)


def build(joint: Joint, lowered: Lowered, graph: _native.Graph, plan: _native.Plan) -> Modules:
    """The modules of a plan, checked."""
    modules = check_modules(joint, lowered, graph, plan, inject(joint, lowered, plan.steps()))
    if modules.peak > plan.peak:
        raise RekindleError(
            f"the modules need {modules.peak} bytes, the plan promised {plan.peak}; "
            "please report this"
        )
    return modules


def _decided_by(decide: Decide, lowered: Lowered, cost: Cost) -> TimedPlan:
    graph, guessed = cost()
    decided = decide(graph, lowered.boundary)
    decided.guessed = guessed
    return decided


def _decide(
    joint: Joint,
    lowered: Lowered,
    settings: Settings,
    cost: Cost,
    start: _native.Plan | None,
    is_urgent: bool,
) -> TimedPlan:
    """The plan of an earlier run, or a new one."""
    stored = stored_plan(key_of(joint, lowered, settings), lowered, settings)
    if stored is not None:
        return stored
    graph, guessed = cost()
    if is_urgent and is_long(settings, graph):
        first = _first_plan(settings, graph, start)
        if first is not None:
            name = f"rekindle/better/{uuid.uuid4().hex}"
            return TimedPlan(graph, first, guessed=guessed, better=name)
    plan = _search(joint, lowered, settings, graph)
    return TimedPlan(graph, plan, guessed=guessed)


def _search(
    joint: Joint,
    lowered: Lowered,
    settings: Settings,
    graph: _native.Graph,
    progress: ProgressLine | None = None,
) -> _native.Plan:
    """The planner's own plan of a timed graph, kept for the next run."""
    budget = settings.bytes_for(graph.peak)
    plan = plan_with(with_store(settings), graph, budget, progress)
    cache.store(key_of(joint, lowered, settings), graph.to_json(), plan.to_json())
    return plan


def better_than(
    planned: PlannedGraph, settings: Settings, progress: ProgressLine
) -> TimedPlan | None:
    """What the planner finds for a graph that has a first plan; None if that is as good."""
    first = planned.decided
    found = _search(planned.joint, planned.lowered, settings, first.graph, progress)
    if found.time >= first.plan.time:
        return None
    return TimedPlan(first.graph, found, guessed=first.guessed)


LONG_SEARCH = 4_000_000
"""Work of a search (storages touched) that is not waited for: it takes about half a second."""
SEARCH_WORK, SEARCH_WORK_PER_NODE = 400_000, 4_000
"""The planner's work at effort 0 and the most for each node; each level doubles it."""
DEFAULT_EFFORT = 5


def is_long(settings: Settings, graph: _native.Graph) -> bool:
    """Whether planning takes so long that training begins with another plan."""
    effort = DEFAULT_EFFORT if settings.effort is None else settings.effort
    work = min(SEARCH_WORK, SEARCH_WORK_PER_NODE * len(graph)) << effort
    is_tight = settings.bytes_for(graph.peak) < graph.peak
    return is_tight and settings.strategy == "search" and work > LONG_SEARCH


def _first_plan(
    settings: Settings, graph: _native.Graph, start: _native.Plan | None
) -> _native.Plan | None:
    """A plan that is found at once: the planner's first, or that of a graph with the same nodes."""
    budget, found = settings.bytes_for(graph.peak), []
    with contextlib.suppress(InfeasibleBudget):
        found.append(plan_with(with_store(settings.with_effort(0)), graph, budget))
    if start is not None:
        with contextlib.suppress(InvalidInput):
            found.append(start.carried_over(graph, budget))
    return min(found, key=lambda plan: plan.time, default=None)


def _plain(graph: _native.Graph) -> _native.Plan:
    return _native.plan(graph, graph.peak)


def timed(joint: Joint, lowered: Lowered, settings: Settings) -> tuple[_native.Graph, list[str]]:
    """The graph with the time of every node, and the operations whose times had to be the cost
    model's.
    """
    timing = time_nodes(joint, settings.profile)
    known = timing.microseconds
    times = [known.get(node, 0.0) if node is not None else 0.0 for node in lowered.nodes]
    scratch = [timing.scratch.get(node, 0) if node is not None else 0 for node in lowered.nodes]
    return lowered.graph.with_times(times).with_workspaces(scratch), timing.guessed


def key_of(
    joint: Joint, lowered: Lowered, settings: Settings, *, with_inductor: bool = False
) -> str:
    """Under which the plan is kept on disk."""
    about = _about(joint, lowered, settings) | ({"inductor": True} if with_inductor else {})
    return cache.key_of(lowered.graph.digest, about)


def _about(joint: Joint, lowered: Lowered, settings: Settings) -> dict[str, object]:
    """Everything but the graph that a plan depends on, and what its graph is called."""
    tensors = [node.meta.get("val") for node in joint.primals]
    devices = {_device_name(t.device) for t in tensors if isinstance(t, torch.Tensor)}
    return {
        **vars(settings),
        "name": lowered.graph.name,
        "torch": torch.__version__,
        "rekindle": _version(),
        "threads": torch.get_num_threads(),
        "devices": sorted(devices),
    }


def _version() -> str:
    try:
        return importlib.metadata.version("rekindle")
    except importlib.metadata.PackageNotFoundError:
        return "source"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def stored_plan(key: str, lowered: Lowered, settings: Settings | None = None) -> TimedPlan | None:
    """The plan of an earlier run, if it is one for this graph; and for the budget that is set, if
    one is.
    """
    try:
        texts = cache.load(key)
        if texts is None:
            return None
        stored = TimedPlan(
            _native.Graph.from_json(texts[0]), _native.Plan.from_json(texts[1]), from_disk=True
        )
        _refuse_another(stored, lowered, settings)
    except Exception as error:  # Whatever is wrong with a file, training goes on.
        warnings.warn(f"the plan {key} on disk is damaged and is made anew: {error}", stacklevel=2)
        return None
    return stored


def _refuse_another(stored: TimedPlan, lowered: Lowered, settings: Settings | None) -> None:
    """A stored plan must be one for this graph, times aside, and this budget; and it must hold."""
    without_scratch = stored.graph.with_workspaces([0] * len(stored.graph))
    if without_scratch.digest != lowered.graph.digest:
        raise InvalidInput("it is of another graph")
    wanted = stored.plan.budget if settings is None else settings.bytes_for(stored.graph.peak)
    if stored.plan.budget != wanted:
        raise InvalidInput(f"its budget is {stored.plan.budget} bytes and not {wanted}")
    violations = _native.verify(stored.graph, stored.plan)
    if violations:
        raise InvalidInput("; ".join(violations))
