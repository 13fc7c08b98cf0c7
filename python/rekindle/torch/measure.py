"""The peak of a step, measured in two ways.

`measure_peak()` is a context. Inside it, each storage that an operation returns is entered with its
bytes, and a weak reference takes it out when it dies. What was there before is counted if it is
named. The count is exact: it is the sum of what PyTorch asked its allocator for, without what an
operation asks for and gives back while it runs (its scratch) and without the allocator's own
rounding.

`Meter` is for a step that is not run operation by operation: it wraps the functions that run a
plan's two modules. The first time, each runs under PyTorch's profiler, whose memory events say what
was taken and given back, and when. Counted are these bytes, scratch included, over what is there
before the step.

Limits: on a GPU `measure_peak` counts what is asked for; `torch.cuda.max_memory_allocated` adds the
allocator's rounding. While another profiler runs a `Meter` measures nothing; the next step is
measured then.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from rekindle.torch.allocator import Allocations, allocations
from rekindle.torch.execute import Boxed
from rekindle.torch.interfaces import (
    TorchDispatchMode,
    is_profiled,
    mark_boxed,
    pytree,
    storage_key,
    storage_sizes,
)
from rekindle.torch.planning import PlannedGraph


class measure_peak(TorchDispatchMode):  # noqa: N801 (a context, named like one)
    """Counts the bytes of all storages that are made in its scope.

    `there` are tensors whose bytes count from the start, such as `model.parameters()` and the
    batch.
    """

    def __init__(self, there: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.now = 0
        """Bytes that are live."""
        self.peak = 0
        """The highest count so far."""
        self._known: dict[int, Any] = {}
        for tensor in there:
            self._enter(tensor)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tells the compiler to compile what runs under this mode, and to run it under it."""
        return True

    def reset(self) -> None:
        """Forgets the peak, not what is live."""
        self.peak = self.now

    def _enter(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key in self._known:
            return
        size = storage.nbytes()
        self._known[key] = weakref.finalize(storage, self._leave, key, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _leave(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._enter(leaf)
        return result


class Meter:
    """The measured bytes of one planned graph. Wraps the functions that run its two modules."""

    def __init__(self, planned: PlannedGraph) -> None:
        self.planned = planned
        self._forward: Allocations | None = None
        self._is_done = False

    def forward(self, run: Boxed) -> Boxed:
        """Runs the forward, and measures it if no whole step has been measured."""

        def call(arguments: list[Any]) -> Any:
            if self._is_done or is_profiled():
                return run(arguments)
            there = _storages(arguments)
            with allocations() as counted:
                results = run(arguments)
            self._forward = counted
            saved = _storages(results[len(self.planned.joint.forward_outputs) :])
            self.planned.measured_saved = sum(
                size for storage, size in saved.items() if storage not in there
            )
            return results

        return mark_boxed(call)

    def backward(self, run: Boxed) -> Boxed:
        """Runs the backward, and measures it if its forward was measured."""

        def call(arguments: list[Any]) -> Any:
            if self._forward is None or is_profiled():
                return run(arguments)
            before, self._forward = self._forward, None
            with allocations() as counted:
                results = run(arguments)
            self._finish(before, counted)
            return results

        return mark_boxed(call)

    def _finish(self, forward: Allocations, backward: Allocations) -> None:
        planned = self.planned
        run = planned.modules
        between = forward.now - run.replaced_bytes + run.tangent_bytes
        planned.measured_peak = run.owned_bytes + max(forward.peak, between + backward.peak)
        self._is_done = True


def _storages(values: list[Any]) -> dict[int, int]:
    """The bytes of each storage that the tensors among some values lie in."""
    return storage_sizes(value for value in values if isinstance(value, torch.Tensor))
