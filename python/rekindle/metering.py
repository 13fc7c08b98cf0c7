"""The peak of a step that is not run operation by operation, measured in its first run by what the
allocator hands out.

`Meter` wraps the functions that run a plan's two modules, as `checking.Check` does. The first time,
each runs under PyTorch's profiler, whose memory events say what was taken and given back, and when.
Counted are these bytes, over what is there before the step: the count has in it what an operation
takes and gives back while it runs.

Limits: while another profiler runs nothing is measured; the next step is then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.autograd import profiler

from rekindle.execute import Boxed, as_boxed
from rekindle.planning import Planned

MEMORY_EVENT = "[memory]"
"""What the profiler calls an event of the allocator."""
SILENT = "99"
"""A level above that of every message; some builds of the profiler's library report each start on
standard error.
"""


@dataclass
class Allocations:
    """Bytes taken and not given back, since the counting began."""

    peak: int = 0
    now: int = 0


@contextmanager
def allocations() -> Iterator[Allocations]:
    """Counts what the allocator hands out in its scope; known when it ends."""
    counted = Allocations()
    with (
        mock.patch.dict(os.environ, KINETO_LOG_LEVEL=SILENT),
        profiler.profile(profile_memory=True) as profile,
    ):
        yield counted
    assert profile.kineto_results is not None
    events = [event for event in profile.kineto_results.events() if event.name() == MEMORY_EVENT]
    for event in sorted(events, key=lambda event: event.start_ns()):
        counted.now += event.nbytes()
        counted.peak = max(counted.peak, counted.now)


class Meter:
    """The measured bytes of one planned graph. Wraps the functions that run its two modules."""

    def __init__(self, planned: Planned, done: Callable[[Planned], None]) -> None:
        self.planned = planned
        self.done = done
        """Called when the peak is known."""
        self._forward: Allocations | None = None
        self._is_done = False

    def forward(self, run: Boxed) -> Boxed:
        """Runs the forward, and measures it if no whole step has been measured."""

        def call(arguments: list[Any]) -> Any:
            if self._is_done or _is_taken():
                return run(arguments)
            there = storages_of(arguments)
            with allocations() as counted:
                results = run(arguments)
            self._forward = counted
            saved = storages_of(results[self.planned.split.num_forward_outputs :])
            self.planned.measured_saved = sum(
                size for storage, size in saved.items() if storage not in there
            )
            return results

        return as_boxed(call)

    def backward(self, run: Boxed) -> Boxed:
        """Runs the backward, and measures it if its forward was measured."""

        def call(arguments: list[Any]) -> Any:
            if self._forward is None or _is_taken():
                return run(arguments)
            before, self._forward = self._forward, None
            with allocations() as counted:
                results = run(arguments)
            self._finish(before, counted)
            return results

        return as_boxed(call)

    def _finish(self, forward: Allocations, backward: Allocations) -> None:
        planned = self.planned
        between = forward.now - planned.replaced_bytes + planned.outside.tangents
        planned.measured_peak = planned.outside.owned + max(forward.peak, between + backward.peak)
        self._is_done = True
        self.done(planned)


def storages_of(values: list[Any]) -> dict[int, int]:
    """The bytes of each storage that the tensors among some values lie in."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


def _is_taken() -> bool:
    """Whether somebody else is profiling: there can be one profiler at a time."""
    return bool(torch._C._autograd._profiler_enabled())
