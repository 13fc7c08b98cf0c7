"""A joint graph and a budget → a checked plan and the two modules that run it.

The stages in their order: lower, look for the plan among those of earlier runs, time the nodes,
plan, check, inject, check again. A plan from disk passes the same checks as a new one; one that
fails them is made anew.
"""

from __future__ import annotations

import importlib.metadata
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from rekindle import _native, caching
from rekindle.errors import InvalidInput, RekindleError
from rekindle.execute import to_module
from rekindle.footprint import Footprint, replay_split
from rekindle.inject import Block, Split, inject
from rekindle.joint import Joint, outputs_of
from rekindle.lower import Lowered, lower
from rekindle.options import check_settings
from rekindle.progress import Progress
from rekindle.ranks import agree
from rekindle.timing import Profile, time_nodes

Budget = int | float | str
Strategy = str
"""A name that `_native.strategies` lists."""


@dataclass(frozen=True)
class Settings:
    """What a user asks for."""

    budget: Budget
    profile: Profile = "measure"
    strategy: Strategy = "search"
    effort: int | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        check_settings(self.budget, self.profile, self.strategy, self.effort, self.time_limit)

    def with_effort(self, effort: int) -> Settings:
        """The same with another effort."""
        return replace(self, effort=effort)

    def bytes_for(self, graph: _native.Graph) -> int:
        """The budget in bytes."""
        if isinstance(self.budget, str):
            return _native.parse_budget(self.budget, graph)
        return int(self.budget * graph.peak) if isinstance(self.budget, float) else self.budget

    @property
    def is_share(self) -> bool:
        """Whether the budget depends on the plain step's peak."""
        return isinstance(self.budget, float) or (
            isinstance(self.budget, str) and self.budget.strip().endswith("%")
        )

    def bytes_without_share(self, graph: _native.Graph) -> int | None:
        """The budget in bytes if it is the same for any graph."""
        return None if self.is_share else self.bytes_for(graph)

    def bytes_for_step(self, graph: _native.Graph, plain_peak: int) -> int:
        """The budget in bytes of a step of several graphs, `graph` among them."""
        if isinstance(self.budget, float):
            return int(self.budget * plain_peak)
        if self.is_share:
            return self.bytes_for(graph) * plain_peak // graph.peak
        return self.bytes_for(graph)


@dataclass(frozen=True)
class Outside:
    """Bytes that others own while a step runs."""

    owned: int
    """There all the time: parameters, inputs, what was named as held."""
    tangents: int
    """There from the moment between the modules."""


@dataclass
class Planned:
    """A planned step: the graph, the plan, the modules, and how they were come by."""

    joint: Joint
    lowered: Lowered
    graph: _native.Graph
    """With the times that were planned with."""
    plan: _native.Plan
    split: Split
    outside: Outside
    footprint: Footprint
    """What the modules hold, node by node."""
    plain_peak: int
    """The peak of the plain step's modules."""
    seconds: float
    """Spent on timing and planning."""
    from_disk: bool = False
    guessed: list[str] = field(default_factory=list)
    """Operations whose times are the cost model's although measuring was asked for."""
    measured_peak: int | None = None
    """Where Inductor runs the modules: the peak of the first step."""
    measured_saved: int | None = None
    """Likewise, what the forward handed to the backward."""

    @property
    def saved(self) -> int:
        """Bytes that the forward hands to the backward."""
        return sum(block.bytes for block in self.split.saved)

    @property
    def replaced_bytes(self) -> int:
        """Bytes of the forward's outputs that are copied into inputs, and freed, before the
        backward begins.

        What is handed out or saved as well is not freed.
        """
        outputs, count = outputs_of(self.split.forward.graph), len(self.joint.new_contents)
        return sum(
            block.bytes
            for block in self._made_for(outputs[:count]) - self._made_for(outputs[count:])
        )

    def _made_for(self, outputs: list[Any]) -> set[Block]:
        """What the forward makes and some of its outputs lie in."""
        blocks = self.split.forward.blocks
        return {
            block
            for value in outputs
            if isinstance(value, fx.Node)
            for block in blocks[value]
            if block.making > 0
        }

    @property
    def peak(self) -> int:
        """The predicted peak of the step, in bytes."""
        return self.footprint.peak

    def modules(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward, as AOTAutograd takes them."""
        root = self.joint.module
        return to_module(root, self.split.forward, "Forward"), to_module(
            root, self.split.backward, "Backward"
        )


@dataclass
class Found:
    """A timed graph and its plan. Sent to another process it is text, and loses its bound."""

    graph: _native.Graph
    plan: _native.Plan
    from_disk: bool = False
    guessed: list[str] = field(default_factory=list)

    def __getstate__(self) -> tuple[str, str, bool, list[str]]:
        return self.graph.to_json(), self.plan.to_json(), self.from_disk, self.guessed

    def __setstate__(self, state: tuple[str, str, bool, list[str]]) -> None:
        graph, plan, self.from_disk, self.guessed = state
        self.graph, self.plan = _native.Graph.from_json(graph), _native.Plan.from_json(plan)


Decide = Callable[[_native.Graph, int], Found]
"""A timed graph and its node between the passes → the graph as it was planned, and its plan."""


def plan_joint(
    joint: Joint,
    settings: Settings,
    held: dict[str, int] | None = None,
    name: str = "step",
    *,
    decide: Decide | None = None,
    given: Found | None = None,
) -> Planned:
    """Plans a step and builds its modules. `held` names bytes that others keep in memory for the
    whole step.

    `decide` takes the place of the planner's call; a plan that is `given` is used as it is.
    """
    begin = time.perf_counter()
    lowered = lower(joint, name, held)
    found = given or agree(lowered.text, lambda: _find(joint, lowered, settings, decide))
    graph, plan = found.graph, found.plan
    _refuse_violations(graph, plan)
    split = inject(joint, lowered, plan.steps())
    seconds = time.perf_counter() - begin
    outside = _outside(lowered)
    footprint = _footprint(joint, outside, split)
    planned = Planned(
        joint,
        lowered,
        graph,
        plan,
        split,
        outside,
        footprint,
        0,
        seconds,
        found.from_disk,
        found.guessed,
    )
    planned.plain_peak = _footprint(joint, outside, plain_split(planned)).peak
    if planned.peak > plan.peak:
        raise RekindleError(
            f"the modules need {planned.peak} bytes, the plan promised {plan.peak}; please report this"
        )
    return planned


def _find(joint: Joint, lowered: Lowered, settings: Settings, decide: Decide | None) -> Found:
    """The plan of an earlier run, or a new one."""
    if decide is not None:
        graph, guessed = timed(joint, lowered, settings)
        found = decide(graph, lowered.boundary)
        found.guessed = guessed
        return found
    key = caching.key_of(lowered.text, _about(joint, settings))
    stored = _from_disk(key, lowered, settings)
    if stored is not None:
        return stored
    graph, guessed = timed(joint, lowered, settings)
    plan = plan_graph(graph, settings, settings.bytes_for(graph))
    _refuse_violations(graph, plan)
    caching.store(key, graph.to_json(), plan.to_json())
    return Found(graph, plan, guessed=guessed)


def plan_graph(graph: _native.Graph, settings: Settings, budget: int) -> _native.Plan:
    """The planner's call, as the user has set it."""
    return _native.plan(
        graph,
        budget,
        strategy=settings.strategy,
        effort=settings.effort,
        time_limit=settings.time_limit,
        progress=Progress(),
    )


def plain_split(planned: Planned) -> Split:
    """The modules of the step without a plan: every node once, in the graph's own order."""
    plain = _native.plan(planned.graph, planned.graph.peak)
    return inject(planned.joint, planned.lowered, plain.steps())


def _about(joint: Joint, settings: Settings) -> dict[str, object]:
    """Everything but the graph that a plan depends on."""
    return {
        **vars(settings),
        "torch": torch.__version__,
        "rekindle": _version(),
        "threads": torch.get_num_threads(),
        "devices": sorted(
            {
                _device_name(t.device)
                for n in joint.primals
                if isinstance(t := n.meta.get("val"), torch.Tensor)
            }
        ),
    }


def _version() -> str:
    try:
        return importlib.metadata.version("rekindle")
    except importlib.metadata.PackageNotFoundError:
        return "source"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _from_disk(key: str, lowered: Lowered, settings: Settings) -> Found | None:
    """The plan of an earlier run, if it is one for this graph and budget."""
    try:
        texts = caching.load(key)
        if texts is None:
            return None
        graph, plan = _native.Graph.from_json(texts[0]), _native.Plan.from_json(texts[1])
        _refuse_another(graph, plan, lowered, settings)
        _refuse_violations(graph, plan)
    except Exception as error:  # Whatever is wrong with a file, training goes on.
        warnings.warn(f"the plan {key} on disk is damaged and is made anew: {error}", stacklevel=2)
        return None
    return Found(graph, plan, from_disk=True)


def _refuse_another(
    graph: _native.Graph, plan: _native.Plan, lowered: Lowered, settings: Settings
) -> None:
    """A stored plan must be one for this graph, times aside, and this budget."""
    if _without_times(graph) != _without_times(_native.Graph.from_json(lowered.text)):
        raise InvalidInput("it is of another graph")
    wanted = settings.bytes_for(graph)
    if plan.budget != wanted:
        raise InvalidInput(f"its budget is {plan.budget} bytes and not {wanted}")


def _without_times(graph: _native.Graph) -> dict[str, Any]:
    file: dict[str, Any] = json.loads(graph.to_json())
    for node in file["nodes"]:
        node["time_us"] = 0.0
    return file


def timed(joint: Joint, lowered: Lowered, settings: Settings) -> tuple[_native.Graph, list[str]]:
    """The graph with the time of every node, and the operations whose times had to be the cost
    model's.
    """
    timing = time_nodes(joint, settings.profile)
    file: dict[str, Any] = json.loads(lowered.text)
    for entry, node in zip(file["nodes"], lowered.nodes, strict=True):
        if entry["phase"] != "input" and node is not None:
            entry["time_us"] = timing.microseconds[node]
    return _native.Graph.from_json(json.dumps(file)), timing.guessed


def _refuse_violations(graph: _native.Graph, plan: _native.Plan) -> None:
    violations = _native.verify(graph, plan)
    if violations:
        raise RekindleError(
            "the checker rejects the plan, please report this:\n" + "\n".join(violations)
        )


def _outside(lowered: Lowered) -> Outside:
    file = json.loads(lowered.text)
    sizes = [storage["bytes"] for storage in file["storages"]]
    inputs = [s for node in file["nodes"] if node["phase"] == "input" for s in node["writes"]]
    tangents = sum(storage["bytes"] for storage in file["storages"] if storage["role"] == "tangent")
    return Outside(sum(sizes[s] for s in inputs) - lowered.state_bytes, tangents)


def _footprint(joint: Joint, outside: Outside, split: Split) -> Footprint:
    """The replay of the modules, with what others own counted."""
    return replay_split(split, outside.owned, outside.tangents, len(joint.new_contents))
