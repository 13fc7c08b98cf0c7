"""What each node costs: how long it takes, and the bytes that it takes and gives back inside;
measured on the device, or by a cost model.

In: a `Joint`. Out: microseconds and scratch for each computing node.

`measure` runs each operation alone, on made-up tensors of the same sizes, strides, types and
devices. A first run of all warms up and shows what each takes of the allocator: what is above its
results is its scratch. Then the time is the median of a few runs. Operations that agree in all of
this are run once for all. Only one operation's tensors are in memory at a time, so a step that does
not fit can be measured. On a GPU the clock is the device's own (events), and so are the bytes. An
operation that refuses made-up values gets the cost model's time, and `Timing.guessed` says which;
one that talks to other processes is never run here, where they do not take part.

`roofline` runs nothing, and knows of no scratch: the longer of moving the bytes that the operation
reads and writes, and doing its arithmetic, plus what a launch costs. `RATES` are the rates of an
A100 in single precision and of one modern CPU core; a plan depends on their ratios only.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from rekindle.settings import TimeSource
from rekindle.torch.allocator import Events, mark, recorded
from rekindle.torch.effects import is_collective
from rekindle.torch.interfaces import (
    is_profiled,
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
SETTLED_SECONDS = 0.02
"""Runs that take so long together are not disturbed by what takes microseconds: no more are needed.
Of two layers of Llama, this is half of the measuring.
"""


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
NETWORK = Rates(bytes=1e4, operations=1e9, launch=30.0)
"""Between processes."""


@dataclass
class Timing:
    """What each node costs, and where that is from."""

    microseconds: dict[fx.Node, float] = field(default_factory=dict)
    scratch: dict[fx.Node, int] = field(default_factory=dict)
    """Bytes that a node takes beside its results and gives back before it ends; nothing for a node
    that was not measured.
    """
    guessed: list[str] = field(default_factory=list)
    """Operations that could not be run alone and have the cost model's time."""


def time_nodes(joint: Joint, profile: TimeSource) -> Timing:
    """The costs of every computing node."""
    alike: dict[str, list[fx.Node]] = {}
    for node in joint.computing():
        alike.setdefault(_signature(node), []).append(node)
    first = [nodes[0] for nodes in alike.values()]
    trials = _try_out(joint, first) if profile == "measure" else {}
    timing = Timing()
    for node, nodes in zip(first, alike.values(), strict=True):
        trial = trials.get(node)
        cost = roofline(node)
        if trial is not None and trial.refusal:
            timing.guessed.append(f"{node.name} ({node.target}): {trial.refusal}")
        elif trial is not None:
            cost = trial.microseconds
        timing.microseconds.update((same, cost) for same in nodes)
        if trial is not None and trial.scratch:
            timing.scratch.update((same, trial.scratch) for same in nodes)
    return timing


@dataclass
class _Trial:
    """What the runs of one operation showed."""

    microseconds: float = 0.0
    scratch: int = 0
    refusal: str = ""
    """Why it could not be run, in words."""


def _try_out(joint: Joint, nodes: list[fx.Node]) -> dict[fx.Node, _Trial]:
    """Runs each node, at first to see what it takes of the allocator, then against the clock."""
    trials = {node: _Trial() for node in nodes}
    with without_modes(), without_fakes(), torch.no_grad(), same_draws():
        # Of two profilers the second would end the first.
        with nullcontext(Events()) if is_profiled() else recorded() as events:
            for number, (node, trial) in enumerate(trials.items()):
                _attempt(trial, functools.partial(_warm_up, joint, number, node, trial))
        for number, (node, trial) in enumerate(trials.items()):
            if number in events.marked:
                taken = events.marked[number].peak
                trial.scratch = max(taken - sum(s.bytes for s in joint.made(node)), 0)
            if not trial.refusal and trial.microseconds < ENOUGH_SECONDS * 1e6:
                _attempt(trial, functools.partial(_measure, node, trial))
    return trials


def _attempt(trial: _Trial, run: Callable[[], None]) -> None:
    if trial.refusal:
        return
    try:
        run()
    except Exception as refusal:
        trial.refusal = str(refusal).splitlines()[0] if str(refusal) else repr(refusal)


def _warm_up(joint: Joint, number: int, node: fx.Node, trial: _Trial) -> None:
    """Runs a node once, in a mark of its own."""
    if is_collective(node):
        raise RuntimeError("it talks to other processes, which do not measure with this one")
    run, clock = _prepared(node)
    device = device_type(node)
    before = device_bytes() if device == "cuda" else 0
    results: list[Any] = []

    def call() -> None:
        with mark(number):
            results.append(run())

    trial.microseconds = clock(call)
    if device == "cuda":
        taken = device_peak() - before
        trial.scratch = max(taken - sum(s.bytes for s in joint.made(node)), 0)


def _measure(node: fx.Node, trial: _Trial) -> None:
    run, clock = _prepared(node)
    times: list[float] = []
    while len(times) < RUNS and sum(times) < SETTLED_SECONDS * 1e6:
        times.append(clock(run))
    trial.microseconds = statistics.median(times)


def _prepared(node: fx.Node) -> tuple[Callable[[], Any], Callable[[Callable[[], Any]], float]]:
    """The node as a call on made-up values, and the clock of its device."""
    args, kwargs = pytree.tree_map_only(fx.Node, _made_up, (node.args, node.kwargs))
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    clock = _device_clock if device_type(node) == "cuda" else _host_clock
    return functools.partial(target, *args, **kwargs), clock


def device_type(node: fx.Node) -> str:
    """The kind of device that a node runs on."""
    return next((t.device.type for t in tensors_of(node)), "cpu")


def device_bytes() -> int:
    """What is asked for on the GPU now; the peak is counted from here."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_stats().get("requested_bytes.all.current", 0))


def device_peak() -> int:
    """The most that was asked for on the GPU since."""
    return int(torch.cuda.memory_stats().get("requested_bytes.all.peak", 0))


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
    rates = NETWORK if is_collective(node) else rates
    return rates.launch + max(
        sum(moved.values()) / rates.bytes, operations(node) / rates.operations
    )


def is_counted(node: fx.Node) -> bool:
    """Whether PyTorch counts its arithmetic: products, convolutions and attention."""
    return getattr(node.target, "overloadpacket", None) in flop_registry


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
