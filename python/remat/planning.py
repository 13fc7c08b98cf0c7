"""A joint graph and a budget → a checked plan and the two modules that run it.

The stages in their order: lower, look for the plan among those of earlier runs, time the nodes, plan, check, inject, check again.
A plan from disk passes the same checks as a new one; one that fails them is made anew.
"""

from __future__ import annotations

import importlib.metadata
import json
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from remat import _native, caching
from remat.errors import InvalidInput, RematError
from remat.execute import to_module
from remat.footprint import Footprint, footprint
from remat.inject import Split, inject
from remat.joint import Joint
from remat.lower import Lowered, lower
from remat.progress import Progress
from remat.timing import Profile, time_nodes

Budget = int | float | str
Strategy = Literal["search", "mutwo", "sqrt"]
OWNED = {"parameter", "input", "constant", "optimizer_state"}
"""Roles of what is in memory for the whole step."""


@dataclass(frozen=True)
class Settings:
    """What a user asks for."""

    budget: Budget
    profile: Profile = "measure"
    strategy: Strategy = "search"
    effort: int | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if self.profile not in ("measure", "roofline"):
            raise InvalidInput(f'profile is "measure" or "roofline", not {self.profile!r}')
        if isinstance(self.budget, bool) or not isinstance(self.budget, (int, float, str)):
            raise InvalidInput(f'a budget is bytes, a share such as 0.6, or text such as "8GiB", not {self.budget!r}')
        if isinstance(self.budget, float) and not 0.0 < self.budget <= 1.0:
            raise InvalidInput(f"a share of the plain peak is above 0 and at most 1, not {self.budget}; bytes are whole numbers")

    def bytes_for(self, graph: _native.Graph) -> int:
        """The budget in bytes."""
        if isinstance(self.budget, str):
            return _native.parse_budget(self.budget, graph)
        return int(self.budget * graph.peak) if isinstance(self.budget, float) else self.budget


@dataclass
class Planned:
    """A planned step: the graph, the plan, the modules, and how they were come by."""

    joint: Joint
    lowered: Lowered
    graph: _native.Graph
    """With the times that were planned with."""
    plan: _native.Plan
    split: Split
    footprint: Footprint
    """What the modules hold, node by node."""
    plain_peak: int
    """The peak of the plain step's modules."""
    seconds: float
    """Spent on timing and planning."""
    from_disk: bool = False
    guessed: list[str] = field(default_factory=list)
    """Operations whose times are the cost model's although measuring was asked for."""

    @property
    def peak(self) -> int:
        """The predicted peak of the step, in bytes."""
        return self.footprint.peak

    def modules(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward, as AOTAutograd takes them."""
        root = self.joint.module
        return to_module(root, self.split.forward, "Forward"), to_module(root, self.split.backward, "Backward")


def plan_joint(joint: Joint, settings: Settings, held: dict[str, int] | None = None, name: str = "step") -> Planned:
    """Plans a step and builds its modules. `held` names bytes that others keep in memory for the whole step."""
    begin = time.perf_counter()
    lowered = lower(joint, name, held)
    key = caching.key_of(lowered.text, _about(joint, settings))
    found = _from_disk(key)
    guessed: list[str] = []
    from_disk = found is not None
    if found is None:
        graph, guessed = _timed(joint, lowered, settings)
        plan = _native.plan(
            graph,
            settings.bytes_for(graph),
            strategy=settings.strategy,
            effort=settings.effort,
            time_limit=settings.time_limit,
            progress=Progress(),
        )
        found = graph, plan
        _refuse_violations(graph, plan)
        caching.store(key, graph.to_json(), plan.to_json())
    graph, plan = found
    split = inject(joint, lowered, plan.steps())
    seconds = time.perf_counter() - begin
    planned = Planned(
        joint, lowered, graph, plan, split, _footprint(joint, lowered, split), 0, seconds, from_disk, guessed
    )
    planned.plain_peak = _footprint(joint, lowered, plain_split(planned)).peak
    if planned.peak > plan.peak:
        raise RematError(f"the modules need {planned.peak} bytes, the plan promised {plan.peak}; please report this")
    return planned


def plain_split(planned: Planned) -> Split:
    """The modules of the step without a plan: every node once, in the graph's own order."""
    plain = _native.plan(planned.graph, planned.graph.peak)
    return inject(planned.joint, planned.lowered, plain.steps())


def _about(joint: Joint, settings: Settings) -> dict[str, object]:
    """Everything but the graph that a plan depends on."""
    return {
        **vars(settings),
        "torch": torch.__version__,
        "remat": _version(),
        "threads": torch.get_num_threads(),
        "devices": sorted({_device_name(t.device) for n in joint.primals if isinstance(t := n.meta.get("val"), torch.Tensor)}),
    }


def _version() -> str:
    try:
        return importlib.metadata.version("remat")
    except importlib.metadata.PackageNotFoundError:
        return "source"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _from_disk(key: str) -> tuple[_native.Graph, _native.Plan] | None:
    texts = caching.load(key)
    if texts is None:
        return None
    try:
        graph, plan = _native.Graph.from_json(texts[0]), _native.Plan.from_json(texts[1])
        _refuse_violations(graph, plan)
    except RematError as error:
        warnings.warn(f"the plan {key} on disk is damaged and is made anew: {error}", stacklevel=2)
        return None
    return graph, plan


def _timed(joint: Joint, lowered: Lowered, settings: Settings) -> tuple[_native.Graph, list[str]]:
    timing = time_nodes(joint, settings.profile)
    file: dict[str, Any] = json.loads(lowered.text)
    for entry, node in zip(file["nodes"], lowered.nodes, strict=True):
        if entry["phase"] != "input" and node is not None:
            entry["time_us"] = timing.microseconds[node]
    return _native.Graph.from_json(json.dumps(file)), timing.guessed


def _refuse_violations(graph: _native.Graph, plan: _native.Plan) -> None:
    violations = _native.verify(graph, plan)
    if violations:
        raise RematError("the checker rejects the plan, please report this:\n" + "\n".join(violations))


def _footprint(joint: Joint, lowered: Lowered, split: Split) -> Footprint:
    """The replay of the modules, with what others own counted."""
    storages = json.loads(lowered.text)["storages"]
    owned = sum(s["bytes"] for s in storages if s["role"] in OWNED) - lowered.state_bytes
    tangents = sum(s["bytes"] for s in storages if s["role"] == "tangent")
    return footprint(split, owned, tangents, len(joint.new_contents))
