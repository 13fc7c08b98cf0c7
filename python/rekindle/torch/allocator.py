"""What the allocator hands out and takes back, event by event.

On the CPU the events are those of PyTorch's profiler. They have every block that an operation takes
and gives back inside, which no list of tensors shows. A profiler is slow to start, so one is
started for many operations, and a mark around each of them says which events are its own.

Limits: there can be one profiler at a time (`is_profiled`). What other threads of the same
operation take is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch.autograd import profiler

MEMORY_EVENT = "[memory]"
"""What the profiler calls an event of the allocator."""
MARK = "rekindle "
"""How the names of marks begin."""
SILENT = "99"
"""A level above that of every message; some builds of the profiler's library report each start on
standard error.
"""


@dataclass
class Allocations:
    """Bytes taken and not given back, since the counting began."""

    peak: int = 0
    now: int = 0

    def count(self, size: int) -> None:
        """Enters an event: bytes that are taken, or given back if they are negative."""
        self.now += size
        self.peak = max(self.peak, self.now)


@dataclass
class Events:
    """What the allocator did; known when the recording ends."""

    whole: Allocations = field(default_factory=Allocations)
    marked: dict[int, Allocations] = field(default_factory=dict)
    """The same inside each mark, by its number."""


def mark(number: int) -> torch.autograd.profiler.record_function:
    """A context whose allocations are counted apart. Marks do not overlap."""
    return profiler.record_function(f"{MARK}{number}")


@contextmanager
def recorded() -> Iterator[Events]:
    """Records what the allocator hands out and takes back in its scope."""
    found = Events()
    with (
        mock.patch.dict(os.environ, KINETO_LOG_LEVEL=SILENT),
        profiler.profile(profile_memory=True) as profile,
    ):
        yield found
    assert profile.kineto_results is not None
    events = list(profile.kineto_results.events())
    sizes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == MEMORY_EVENT]
    sizes.sort(key=lambda event: event[0])
    marks = sorted(
        (e.start_ns(), e.end_ns(), int(e.name().removeprefix(MARK)))
        for e in events
        if e.name().startswith(MARK)
    )
    for _, size in sizes:
        found.whole.count(size)
    _count_marked(found, sizes, marks)


def _count_marked(
    found: Events, sizes: list[tuple[int, int]], marks: list[tuple[int, int, int]]
) -> None:
    at = 0
    for begin, end, number in marks:
        counted = found.marked.setdefault(number, Allocations())
        while at < len(sizes) and sizes[at][0] < begin:
            at += 1
        while at < len(sizes) and sizes[at][0] <= end:
            counted.count(sizes[at][1])
            at += 1


@contextmanager
def allocations() -> Iterator[Allocations]:
    """Counts what the allocator hands out in its scope; known when it ends."""
    with recorded() as found:
        yield found.whole
