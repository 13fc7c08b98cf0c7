"""How long each node takes: measured on the device, or by a cost model.

In: a `Joint`. Out: microseconds for each computing node.

`measure` runs each operation alone, on made-up tensors of the same sizes, strides, types and
devices: once to warm up, then the median of a few runs. Operations that agree in all of this are
run once for all. Only one operation's tensors are in memory at a time, so a step that does not fit
can be measured. On a GPU the clock is the device's own (events). An operation that refuses made-up
values gets the cost model's time, and `Timing.guessed` says which.

`roofline` runs nothing: the longer of moving the bytes that the operation reads and writes, and
doing its arithmetic, plus what a launch costs. `RATES` are the rates of an A100 in single precision
and of one modern CPU core; a plan depends on their ratios only.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from rekindle.settings import TimeSource
from rekindle.torch.interfaces import (
    pytree,
    storage_key,
    storage_sizes,
    without_fakes,
    without_modes,
)
from rekindle.torch.joint import Joint, tensors_of
from rekindle.torch.randomness import same_draws

RUNS = 3
"""Runs whose median is taken."""
ENOUGH_SECONDS = 0.5
"""One run of an operation that takes this long says enough."""


@dataclass(frozen=True)
class Rates:
    """What a device does in a microsecond."""

    bytes: float
    operations: float
    launch: float
    """Microseconds that any operation takes."""


RATES = {
    "cuda": Rates(bytes=1.5e6, operations=1.9e7, launch=3.0),
    "cpu": Rates(bytes=1e4, operations=5e4, launch=5.0),
}


@dataclass
class Timing:
    """Microseconds for each node, and where they are from."""

    microseconds: dict[fx.Node, float] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    """Operations that could not be run alone and have the cost model's time."""


def time_nodes(joint: Joint, profile: TimeSource) -> Timing:
    """The time of every computing node."""
    timing = Timing()
    known: dict[str, float] = {}
    for node in joint.computing():
        what = _signature(node)
        if what not in known:
            known[what] = _time(node, profile, timing)
        timing.microseconds[node] = known[what]
    return timing


def _time(node: fx.Node, profile: TimeSource, timing: Timing) -> float:
    if profile == "measure":
        try:
            return _measure(node)
        except Exception as refusal:
            why = str(refusal).splitlines()[0] if str(refusal) else repr(refusal)
            timing.guessed.append(f"{node.name} ({node.target}): {why}")
    return roofline(node)


def _signature(node: fx.Node) -> str:
    """Equal for operations that do the same work: the operation, and sizes, strides, types and
    plain arguments.
    """

    def described(value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        leaves = pytree.tree_leaves(value.meta.get("val"))
        return [
            (tuple(t.shape), t.stride(), t.dtype, t.device) if isinstance(t, torch.Tensor) else t
            for t in leaves
        ]

    return str((node.target, pytree.tree_map_only(fx.Node, described, (node.args, node.kwargs))))


def _measure(node: fx.Node) -> float:
    with without_modes(), without_fakes(), torch.no_grad(), same_draws():
        args, kwargs = pytree.tree_map_only(fx.Node, _made_up, (node.args, node.kwargs))
        device = next((t.device for t in tensors_of(node)), torch.device("cpu"))
        clock = _device_clock if device.type == "cuda" else _host_clock
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        run = functools.partial(target, *args, **kwargs)
        first = clock(run)
        if first > ENOUGH_SECONDS * 1e6:
            return first
        return statistics.median(clock(run) for _ in range(RUNS))


def _host_clock(run: Callable[[], Any]) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1e3


def _device_clock(run: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _made_up(node: fx.Node) -> Any:
    if node.op == "get_attr" and "val" not in node.meta:
        return tensors_of(node)[0]
    return pytree.tree_map_only(torch.Tensor, _made_up_tensor, node.meta.get("val"))


def _made_up_tensor(like: torch.Tensor) -> torch.Tensor:
    """Ones where values are real, zeros where they may be indices: a valid index everywhere."""
    tensor = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    fill = 1 if like.dtype.is_floating_point or like.dtype.is_complex else 0
    return tensor.fill_(fill) if tensor.untyped_storage().nbytes() else tensor


def roofline(node: fx.Node) -> float:
    """The cost model's microseconds."""
    results = tensors_of(node)
    moved = storage_sizes(results)
    for value in node.all_input_nodes:
        moved.update((storage_key(t.untyped_storage()), t.nbytes) for t in tensors_of(value))
    rates = RATES.get(results[0].device.type if results else "cpu", RATES["cuda"])
    return rates.launch + max(
        sum(moved.values()) / rates.bytes, operations(node) / rates.operations
    )


def operations(node: fx.Node) -> float:
    """Arithmetic operations: PyTorch's own count where it has one, else one for each number that
    comes out.
    """
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return sum(tensor.numel() for tensor in tensors_of(node))
    value = lambda argument: argument.meta.get("val")  # noqa: E731
    args, kwargs = pytree.tree_map_only(fx.Node, value, (node.args, node.kwargs))
    return float(count(*args, **kwargs, out_val=node.meta.get("val")))
