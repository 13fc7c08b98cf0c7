"""How fast a store is both ways, what each copy takes besides its bytes, and whether the directions
disturb each other.

In: `Transfers`, as a step uses them. Out: text that the planner reads as a store. A copy of b bytes
is taken to last latency + b / rate, so two sizes say both: a small one, and a large one, as
activations are.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import torch

from rekindle.torch.transfers import Transfers

SMALL = 64 << 10
"""Seldom smaller, and mostly latency."""
LARGE = 16 << 20
"""Few activations are larger, and those move at the same speed."""
COPIES = 5
"""Copies of each size in each direction, to places of their own; the median counts."""
DUPLEX = 0.75
"""Both directions at once, taking less than this share of one after the other, are two channels."""


def measure(transfers: Transfers, device: torch.device) -> str:
    """Measures a store. It holds 160 MiB meanwhile, and memory 32."""
    small, large = (_Copies(transfers, device, size) for size in (SMALL, LARGE))
    times = [(small.median(way), large.median(way)) for way in ("out", "back")]
    rates = [(LARGE - SMALL) / max(more - less, 1e-9) for less, more in times]
    latency = sum(less - SMALL / rate for (less, _), rate in zip(times, rates, strict=True)) / 2
    is_duplex = large.both() < DUPLEX * COPIES * sum(more for _, more in times)
    out, back = (f"{_digits(rate / 1e6)}MB/s" for rate in rates)
    text = f"out={out},in={back},latency={_digits(max(latency, 0.0) * 1e6)}us"
    return text if is_duplex else f"{text},half-duplex"


def _digits(number: float) -> str:
    """Three digits: more of a measured number is noise."""
    return f"{float(f'{number:.3g}'):.6f}"


class _Copies:
    """Copies of one size."""

    def __init__(self, transfers: Transfers, device: torch.device, size: int) -> None:
        self.transfers, self.device = transfers, device
        self.value = torch.ones(size, dtype=torch.uint8, device=device)
        # Every place is used once before, so that its first use is not measured.
        for _ in range(2):
            self.tokens = [self.transfers.offload(self.value) for _ in range(COPIES)]
            self.transfers.wait(self.value, *self.tokens)

    def out(self, at: int) -> None:
        """Copies out, to a place of its own."""
        self.tokens[at] = self.transfers.offload(self.value)
        self.transfers.wait(self.value, self.tokens[at])

    def back(self, at: int) -> None:
        """Copies in, to new memory."""
        self.transfers.wait(self.transfers.fetch(self.tokens[at]))

    def median(self, way: str) -> float:
        """Seconds that a copy takes."""
        copy: Callable[[int], None] = getattr(self, way)
        return statistics.median(self._seconds(functools.partial(copy, at)) for at in range(COPIES))

    def both(self) -> float:
        """Seconds for all copies of both directions at once."""

        def run() -> None:
            known = list(self.tokens)
            self.tokens = [self.transfers.offload(self.value) for _ in known]
            for token in known:
                self.transfers.wait(self.transfers.fetch(token))
            self.transfers.wait(self.value, *self.tokens)

        return self._seconds(run)

    def _seconds(self, run: Callable[[], None]) -> float:
        self._finish()
        begin = time.perf_counter()
        run()
        self._finish()
        return time.perf_counter() - begin

    def _finish(self) -> None:
        """On a GPU, whoever waits is the stream that computes, and not the host."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
