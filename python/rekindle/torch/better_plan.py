"""A better plan is looked for while training goes on with the first one.

The planner works without Python's lock, in a thread of its own. When it is done, the plan takes the
place of the first one between two steps. Where there are several ranks, the first one plans, and
all change over at the same call.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from rekindle.errors import RekindleError
from rekindle.planner import ProgressLine
from rekindle.torch.planning import TimedPlan
from rekindle.torch.ranks import agree, is_first, is_one

CALLS = 8
"""With several ranks, the call after the first plan's at which all change over. By then most plans
are there; if not, it is waited for.
"""


class _Dropped(Exception):
    """Nobody waits for the plan any more."""


class _Watch(ProgressLine):
    """Ends the planning when the model is gone, or the program is about to end. Says nothing."""

    def __init__(self, owner: object) -> None:
        super().__init__()
        self.owner = weakref.ref(owner)

    def __call__(self, done: int, total: int, best: float | None, lowest: int) -> None:
        """Raises if nobody waits."""
        if self.owner() is None or not threading.main_thread().is_alive():
            raise _Dropped


class BetterPlan:
    """A plan that is being made."""

    def __init__(self, digest: str, find: Callable[[ProgressLine], TimedPlan | None]) -> None:
        self.digest = digest
        self.calls = 0
        """Since the first plan."""
        self._found: TimedPlan | None = None
        self._thread: threading.Thread | None = None
        if is_first():
            watch, self_ = _Watch(self), weakref.ref(self)

            def look() -> None:
                try:
                    found = find(watch)
                except (_Dropped, RekindleError):
                    return
                waiting = self_()
                if waiting is not None:
                    waiting._found = found

            self._thread = threading.Thread(target=look, name="rekindle plans")
            self._thread.start()

    def is_due(self) -> bool:
        """Whether it is time to change over."""
        if is_one():
            return self._thread is not None and not self._thread.is_alive()
        return self.calls >= CALLS

    def take(self) -> TimedPlan | None:
        """The plan, on every rank; None if there is none that is better."""
        return agree(self.digest, self._wait)

    def _wait(self) -> TimedPlan | None:
        if self._thread is not None:
            self._thread.join()
        return self._found
