"""A better plan is looked for while training goes on with the first one.

The planner works without Python's lock, in a thread of its own. When it is done, the plan takes the
place of the first one between two steps. Where there are several ranks, the one that found the
first plan looks for the better one and tells the others, and all change over at the same call of
the graph. That thread speaks for itself: who waits for it waits for nothing else.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable

from rekindle.errors import RekindleError
from rekindle.planner import ProgressLine
from rekindle.torch.planning import TimedPlan
from rekindle.torch.ranks import hear, is_one, say

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

    def __init__(self, first: TimedPlan, find: Callable[[ProgressLine], TimedPlan | None]) -> None:
        self.name = first.better
        self.calls = 0
        """Since the first plan."""
        self._found: TimedPlan | None = None
        self._thread: threading.Thread | None = None
        if first.is_ours:
            name, watch, self_ = self.name, _Watch(self), weakref.ref(self)

            def look() -> None:
                found = None
                try:
                    with contextlib.suppress(_Dropped, RekindleError):
                        found = find(watch)
                finally:
                    if not is_one():
                        # The others may have ended, and the place where they met with them.
                        with contextlib.suppress(RuntimeError):
                            say(name, found)
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
        if self._thread is None:
            heard: TimedPlan | None = hear(self.name, "better plan of another rank")
            return heard
        return self._wait()

    def _wait(self) -> TimedPlan | None:
        if self._thread is not None:
            self._thread.join()
        return self._found
