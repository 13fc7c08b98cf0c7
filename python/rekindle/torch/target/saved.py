"""A plan on its way to the device: `rekindle.step/1`, a JSON file.

It has the graph, the plan, what is predicted and from what. `compile(plan=…)` runs it if the step
that it captures on the device is the very same graph; if not, the error says where they differ.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rekindle import _native
from rekindle.errors import AnotherGraph, InvalidInput

if TYPE_CHECKING:
    from rekindle.torch.target.trace import TracedPlan

FORMAT = "rekindle.step/1"


@dataclass(frozen=True)
class SavedStep:
    """A graph, its plan, and predictions."""

    graph: _native.Graph
    plan: _native.Plan
    device: str
    costs: str
    torch_version: str
    predicted: dict[str, Any] = field(default_factory=dict)
    """Bytes and microseconds, by name; `reserved` and `allocated` only for a GPU."""
    margins: dict[str, int] = field(default_factory=dict)
    dtype: str = ""
    """Of the model's and the batch's real numbers, as `bfloat16`, where it is not their own."""
    autocast: str = ""
    """The lower precision of mixed precision, likewise."""

    @staticmethod
    def of(planned: TracedPlan) -> SavedStep:
        """What a plan has to say on the device."""
        step, found = planned.step, planned.footprint
        predicted: dict[str, Any] = {
            "live": planned.live,
            "plain_live": step.exact(step.graph, _native.plan(step.graph, step.graph.peak)),
            "time": planned.plan.time,
            "plain_time": step.graph.time,
            "budget": planned.budget,
        }
        if found is not None:
            predicted |= {"allocated": found.allocated, "reserved": found.reserved}
        return SavedStep(
            step.graph,
            planned.plan,
            step.device.name,
            step.costs,
            torch.__version__,
            predicted,
            {margin.name: margin.bytes for margin in step.margins},
            _name(step.dtype),
            _name(step.autocast),
        )

    @property
    def is_for_gpu(self) -> bool:
        """Whether a GPU's allocator was predicted."""
        return "reserved" in self.predicted

    def write(self, path: str | Path) -> Path:
        """Writes `rekindle.step/1`."""
        path = Path(path)
        path.write_text(self.to_json())
        return path

    def to_json(self) -> str:
        """The file's text."""
        text = {
            "format": FORMAT,
            "device": self.device,
            "costs": self.costs,
            "torch": self.torch_version,
            "predicted": self.predicted,
            "margins": self.margins,
            "dtype": self.dtype,
            "autocast": self.autocast,
            "graph": json.loads(self.graph.to_json()),
            "plan": json.loads(self.plan.to_json()),
        }
        return json.dumps(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedStep.from_json, (self.to_json(), "a saved plan")

    @staticmethod
    def read(path: str | Path) -> SavedStep:
        """Reads `rekindle.step/1`, and checks that its plan is one of its graph."""
        try:
            return SavedStep.from_json(Path(path).read_text(), str(path))
        except OSError as error:
            raise InvalidInput(f"{path} is no saved plan: {error}") from error

    @staticmethod
    def from_json(text: str, path: str) -> SavedStep:
        """Likewise, of a text; `path` names it."""
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            saved = SavedStep(
                _native.Graph.from_json(json.dumps(found["graph"])),
                _native.Plan.from_json(json.dumps(found["plan"])),
                str(found["device"]),
                str(found["costs"]),
                str(found["torch"]),
                dict(found["predicted"]),
                {str(name): int(size) for name, size in found["margins"].items()},
                _dtype_name(found.get("dtype", "")),
                _dtype_name(found.get("autocast", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{path} is no saved plan: {error}") from error
        violations = _native.verify(saved.graph, saved.plan)
        if violations:
            raise InvalidInput(f"the plan in {path} does not hold: {'; '.join(violations)}")
        return saved

    def refuse_another(self, graph: _native.Graph) -> None:
        """The step that runs must be the one that was planned, scratch and times aside."""
        planned, found = (g.with_workspaces([0] * len(g)) for g in (self.graph, graph))
        if planned.digest != found.digest:
            raise AnotherGraph(
                f"the plan is for another step than the one that was captured here (planned for "
                f"{self.device} with PyTorch {self.torch_version}): {_difference(planned, found)}; "
                "plan again with the same batch, types, optimizer and PyTorch"
            )


def dtype_of(name: str) -> torch.dtype | None:
    """The type of that name; None for no name."""
    found: torch.dtype | None = getattr(torch, name) if name else None
    return found


def _name(dtype: torch.dtype | None) -> str:
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def _dtype_name(name: str) -> str:
    if name and not isinstance(getattr(torch, name, None), torch.dtype):
        raise ValueError(f"PyTorch has no type {name!r}")
    return name


def _difference(planned: _native.Graph, found: _native.Graph) -> str:
    """The first thing in which two graphs differ, in words."""
    if len(planned) != len(found):
        pairs = zip(planned.nodes, found.nodes, strict=False)
        at = next((a.name for a, b in pairs if a.op != b.op), "the end")
        return f"{len(planned)} operations were planned and {len(found)} captured, from {at} on"
    for a, b in zip(planned.nodes, found.nodes, strict=True):
        if (a.op, a.reads, a.writes) != (b.op, b.reads, b.writes):
            return f"{a.name} was planned as {a.op}, and {b.name} is {b.op}"
    for number, (a_size, b_size) in enumerate(zip(planned.storages, found.storages, strict=True)):
        if a_size != b_size:
            writers = [node.name for node in planned.nodes if number in node.writes]
            where = writers[0] if writers else f"storage {number}"
            return f"{where} was planned with {a_size[0]} bytes, and has {b_size[0]}"
    return "in what is kept at the end"
