"""A model's joint graph without running the model: for profiles, for the largest batch, and for
other tools.

The capture is that of `rekindle.compile`, ended as soon as the joint graph is there: no operation
of the model has run by then, so a step that does not fit in memory can be captured all the same.

Limits: the model must be one graph. A graph break is an error that names its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed

from rekindle import _native, planning
from rekindle.errors import InfeasibleBudget, InvalidInput, RekindleError, UnsupportedGraph
from rekindle.joint import Joint
from rekindle.lower import lower
from rekindle.optimizer import state_bytes
from rekindle.options import check_module, check_optimizer
from rekindle.outstanding import UNREAD, resident_bytes, unread_bytes
from rekindle.planning import Budget, Planned, Settings, Strategy, plan_joint
from rekindle.sparse import refuse_sparse
from rekindle.timing import Profile

Batch = torch.Tensor | Sequence[Any] | Mapping[str, Any]
"""A model's arguments: one, several in order, or several by name."""
FEASIBLE_EFFORT = 1
"""The planner's effort while batch sizes are tried: whether a plan exists, not how fast it is."""
LARGEST_BATCH = 1 << 20
"""No batch beyond this is tried."""


class _Captured(Exception):
    def __init__(self, joint: Joint) -> None:
        super().__init__("captured")
        self.joint = joint


def capture(model: torch.nn.Module, inputs: Batch) -> Joint:
    """The joint graph of one training step of `model`, which must return its loss."""

    def stop(module: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        refuse_sparse(module.graph)
        raise _Captured(
            Joint(module, num_fwd_outputs, options.get("static_lifetime_input_indices") or ())
        )

    def never(_module: fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        raise UnsupportedGraph(
            "nothing in this call needs a gradient, so there is no training step in it"
        )

    backend = aot_autograd(
        fw_compiler=never, bw_compiler=never, inference_compiler=never, partition_fn=stop
    )
    args, kwargs = _arguments(inputs)
    torch._dynamo.reset()
    try:
        torch.compile(model, backend=backend, dynamic=False, fullgraph=True)(*args, **kwargs)
    except BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, _Captured):
            return failure.inner_exception.joint
        if isinstance(failure.inner_exception, RekindleError):
            raise failure.inner_exception from None
        raise
    finally:
        torch._dynamo.reset()
    raise UnsupportedGraph("the model ran without being captured: is torch.compile disabled?")


def _arguments(inputs: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return ((inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)), {}


def plan(
    joint_graph: fx.GraphModule,
    budget: Budget,
    *,
    num_forward_outputs: int,
    static_inputs: Sequence[int] = (),
    profile: Profile = "measure",
    strategy: Strategy = "search",
    effort: int | None = None,
    time_limit: float | None = None,
) -> Planned:
    """Plans a joint graph that another tool has captured; `Planned.modules()` are its forward and
    backward.

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
            "the graph gives one value: a joint graph gives a tuple, the forward's outputs and then the gradients"
        )
    if not 0 < num_forward_outputs <= len(outputs):
        raise InvalidInput(
            f"the graph gives {len(outputs)} values, of which {num_forward_outputs} cannot be the forward's outputs"
        )
    placeholders = module.graph.find_nodes(op="placeholder")
    if not any(node.name.startswith("tangents") for node in placeholders):
        raise InvalidInput(
            "no placeholder of the graph is called tangents_…: it is not a joint graph, whose backward begins at these"
        )
    unknown = [node.name for node in placeholders if "val" not in node.meta]
    if unknown:
        raise InvalidInput(
            f'{unknown[0]} has no fake tensor in its meta["val"], so its size is not known: trace the graph with fake tensors'
        )
    refuse_sparse(module.graph)


@dataclass(frozen=True)
class StepProfile:
    """A timed training step."""

    graph: _native.Graph
    """Every operation with its time, every storage with its bytes."""
    name: str
    batch_size: int
    device: str
    guessed: list[str]
    """Operations that could not be run alone and have the cost model's time."""

    def save(self, folder: str | Path) -> list[Path]:
        """Writes the tables (CSV), the graph (`remat.graph/1`) and the pictures (SVG and PNG) that
        `rekindle profile` writes.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        return _native.write_profile(self.graph, folder, self.name, self.batch_size, self.device)

    def __str__(self) -> str:
        peak, time = self.graph.peak / 2**20, self.graph.time / 1e3
        return f"{self.name}, batch {self.batch_size} on {self.device}: peak {peak:.1f} MiB, operations {time:.1f} ms"


def profile(
    model: torch.nn.Module, inputs: Batch, *, profile: Profile = "measure", name: str | None = None
) -> StepProfile:
    """Times every operation of the model's training step, alone and without running the step.

    Parameters and buffers that the step does not read count as held.
    """
    check_module(model)
    joint = capture(model, inputs)
    lowered = lower(joint, name or type(model).__name__, _unread(model, joint))
    graph, guessed = planning.timed(joint, lowered, Settings(1.0, profile))
    args, kwargs = _arguments(inputs)
    tensors = [value for value in [*args, *kwargs.values()] if isinstance(value, torch.Tensor)]
    size = tensors[0].shape[0] if tensors and tensors[0].dim() else 1
    device = str(tensors[0].device) if tensors else "cpu"
    return StepProfile(graph, name or type(model).__name__, size, device, guessed)


@dataclass(frozen=True)
class LargestBatch:
    """What a budget allows."""

    size: int
    """The largest batch that trains in the budget by a plan; 0 if not even one does."""
    plain_size: int
    """The largest that trains in it without a plan."""
    peak: int
    """The plan's peak at `size`, in bytes."""
    budget: int

    def __str__(self) -> str:
        return f"batch {self.size} by plan, {self.plain_size} without, in {self.budget / 2**20:.1f} MiB"


def max_batch(
    model: torch.nn.Module,
    make_batch: Callable[[int], Batch],
    *,
    budget: int | str,
    strategy: Strategy = "search",
    optimizer: torch.optim.Optimizer | None = None,
) -> LargestBatch:
    """The largest batch size that trains in `budget`. `make_batch(n)` gives the model's arguments
    for a batch of `n`.

    Sizes are doubled while they fit, then halved in; the peak is taken to grow with the batch.
    Nothing of the model runs. What counts is what `compile` counts.
    """
    check_module(model)
    check_optimizer(optimizer)
    if isinstance(budget, float) or (isinstance(budget, str) and "%" in budget):
        raise InvalidInput(
            'a share of the plain peak depends on the batch: give the budget in bytes, such as "8GiB"'
        )
    held = {"optimizer state": state_bytes(optimizer)} if optimizer is not None else {}
    settings = Settings(budget, "roofline", strategy, FEASIBLE_EFFORT)
    known: dict[int, tuple[bool, int | None]] = {}
    allowed = 0

    def attempt(size: int) -> tuple[bool, int | None]:
        """Whether the plain step fits, and the plan's peak if there is one."""
        nonlocal allowed
        if size not in known:
            joint = capture(model, make_batch(size))
            lowered = lower(joint, f"batch {size}", held | _unread(model, joint))
            graph, _ = planning.timed(joint, lowered, settings)
            allowed = settings.bytes_for(graph)
            try:
                peak = _native.plan(graph, allowed, strategy=strategy, effort=FEASIBLE_EFFORT).peak
            except InfeasibleBudget:
                peak = None
            known[size] = graph.peak <= allowed, peak
        return known[size]

    size = _largest(lambda n: attempt(n)[1] is not None)
    plain = _largest(lambda n: attempt(n)[0])
    return LargestBatch(size, plain, (attempt(size)[1] or 0) if size else 0, allowed)


def _unread(model: torch.nn.Module, joint: Joint) -> dict[str, int]:
    """The bytes of parameters and buffers that the step does not read, as something that is held."""
    size = unread_bytes(joint, resident_bytes(model))
    return {UNREAD: size} if size else {}


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits; 0 if 1 does not."""
    low, high = 0, 1
    while high <= LARGEST_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
