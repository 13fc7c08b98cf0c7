"""A line on standard error while planning takes long."""

from __future__ import annotations

import sys
import time

PATIENCE_SECONDS = 5.0
"""Nothing is said before, and then once in this time."""


class Progress:
    """What the planner calls now and then."""

    def __init__(self) -> None:
        self.begin = self.told = time.monotonic()

    def __call__(self, done: int, total: int, best: float | None, lowest: int) -> None:
        """Tells how far the planning is, and the best that it has."""
        now = time.monotonic()
        if now - self.told < PATIENCE_SECONDS:
            return
        self.told = now
        found = (
            f"lowest peak so far {lowest / 2**20:.1f} MiB"
            if best is None
            else f"best step so far {best / 1e3:.1f} ms"
        )
        share = f"{100 * done // total} %" if total else "…"
        print(
            f"rekindle: planning, {share} after {now - self.begin:.0f} s, {found}",
            file=sys.stderr,
            flush=True,
        )
