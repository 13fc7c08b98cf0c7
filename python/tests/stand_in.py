"""A stand-in for a device's streams: copies are late, and in any order that the streams allow.

What computes is the host, at once. A copy is done when somebody waits for it, or when chance wills;
those of one direction in their order, and none before what it must come behind. Memory of the
device is held by nobody here: if it is given back under a copy, that is noted, and what was to be
copied is lost. Memory that a copy is on its way to is full of ones, which no float is.
"""

import random
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from rekindle.torch.host_store import IN, OUT
from rekindle.torch.interfaces import without_modes


@dataclass(eq=False)
class Copy:
    """A copy that was begun."""

    way: int
    host: torch.Tensor
    device: "weakref.ref[Any]"
    """The storage on the device."""
    after: list["Copy"] = field(default_factory=list)
    is_done: bool = False


class StandIn:
    """Streams that a seed shakes. `haste` is how often chance does a copy early."""

    def __init__(self, seed: int, haste: float = 0.3) -> None:
        self.dice, self.haste = random.Random(seed), haste
        self.begun: tuple[deque[Copy], deque[Copy]] = deque(), deque()
        self.given_back = 0
        """How often memory of the device was given back under a copy."""
        self.done = [0, 0]

    def pinned(self, size: int) -> torch.Tensor:
        # It is the host's, and not counted.
        with without_modes():
            return torch.empty(size, dtype=torch.uint8)

    def computed(self) -> None:
        return None

    def copy(
        self, way: int, target: torch.Tensor, source: torch.Tensor, after: list[Copy | None]
    ) -> Copy:
        host, device = (target, source) if way == OUT else (source, target)
        if way == IN:
            target.fill_(255)
        memory = weakref.ref(device.untyped_storage())
        begun = Copy(way, host, memory, [moment for moment in after if moment is not None])
        self.begun[way].append(begun)
        while self.dice.random() < self.haste:
            self.do_any()
        return begun

    def wait(self, moment: Copy) -> None:
        while not moment.is_done:
            self.do_any()

    def do_any(self) -> None:
        """Does the first copy of one direction, if nothing must come before it."""
        ready = [
            begun
            for begun in self.begun
            if begun and all(earlier.is_done for earlier in begun[0].after)
        ]
        if not ready:
            return
        copy = self.dice.choice(ready).popleft()
        with without_modes():
            self.do(copy, copy.device())
        copy.is_done = True
        self.done[copy.way] += 1

    def do(self, copy: Copy, storage: Any) -> None:
        if storage is None:
            self.given_back += 1
            copy.host.fill_(255)
            return
        memory = torch.empty(0, dtype=torch.uint8).set_(storage)
        pair = (copy.host, memory) if copy.way == OUT else (memory, copy.host)
        pair[0].copy_(pair[1])
