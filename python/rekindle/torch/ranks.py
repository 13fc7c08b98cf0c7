"""Every rank takes the same decisions: the first one plans, and the others take its plan.

Measured times differ between processes, and so would plans that are made apart; a rank that waits
in a collective for one that recomputes something else is slow at best. Before it is planned a graph
is compared: ranks that hold different graphs cannot share a plan, and say so.

What is said goes through the store at which the ranks met, and not through a collective: no tensor
is needed, whatever the backend, and a rank that does not come is an error after `patience()` and
not a wait without end.

Limits: all ranks of the default group must plan the same graphs in the same order, as in data
parallel training.
"""

from __future__ import annotations

import datetime
import itertools
import os
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as distributed

from rekindle.errors import InvalidInput, RankMissing, RanksDiffer, RekindleError
from rekindle.torch.interfaces import default_store

Answer = TypeVar("Answer")

PATIENCE = "REKINDLE_PATIENCE"
"""The environment variable that says for how many seconds a rank waits for another."""
PATIENCE_SECONDS = 600.0

_meetings = itertools.count()


def agree(digest: str, find: Callable[[], Answer]) -> Answer:
    """What `find` gives, on the first rank. It must survive being sent; an error of `find` is
    raised on every rank.
    """
    if is_one():
        return find()
    meeting = _Meeting()
    meeting.refuse_different(digest)
    return meeting.first_says(find)


def is_one() -> bool:
    """Whether this process trains alone."""
    return (
        not (distributed.is_available() and distributed.is_initialized())
        or distributed.get_world_size() == 1
    )


def is_first() -> bool:
    """Whether this process plans for all."""
    return is_one() or distributed.get_rank() == 0


def patience() -> float:
    """For how many seconds a rank waits for another."""
    given = os.environ.get(PATIENCE)
    try:
        seconds = PATIENCE_SECONDS if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 1e9:
        raise InvalidInput(f"{PATIENCE} is a number of seconds above zero, not {given!r}")
    return seconds


class _Meeting:
    """One decision of all ranks. Each rank counts them, so that none takes the word of another."""

    def __init__(self) -> None:
        self.number = next(_meetings)
        self.store = default_store()
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()

    def say(self, what: str, value: Any) -> None:
        self.store.set(self.key(self.rank, what), pickle.dumps(value))

    def hear(self, rank: int, what: str) -> Any:
        key, seconds = self.key(rank, what), patience()
        try:
            self.store.wait([key], datetime.timedelta(seconds=seconds))
        except RuntimeError as error:
            raise RankMissing(
                f"rank {self.rank} has waited for {seconds:.0f} s for the {what} of rank {rank}, "
                "which does not come: is that rank alive, does it train the same model in the same "
                f"order, and with gradients? Set {PATIENCE} to more seconds if it only takes long"
            ) from error
        return pickle.loads(self.store.get(key))

    def key(self, rank: int, what: str) -> str:
        return f"rekindle/{self.number}/{what}/{rank}"

    def refuse_different(self, digest: str) -> None:
        """Compares the graphs of all ranks by their digests."""
        self.say("graph", digest)
        digests = [self.hear(rank, "graph") for rank in range(self.ranks)]
        others = [str(rank) for rank, other in enumerate(digests) if other != digests[0]]
        if others:
            raise RanksDiffer(
                f"rank {', '.join(others)} would train another graph than rank 0, so one plan "
                "cannot serve both; build the same model on every rank and give each a batch of "
                "the same shape"
            )

    def first_says(self, find: Callable[[], Answer]) -> Answer:
        """What the first rank finds, or its error."""
        if self.rank == 0:
            try:
                found = find()
            except BaseException as error:
                said = RekindleError(f"rank 0 could not plan: {error!r}")
                self.say("plan", error if isinstance(error, RekindleError) else said)
                raise
            self.say("plan", found)
            return found
        heard = self.hear(0, "plan")
        if isinstance(heard, RekindleError):
            raise heard
        answer: Answer = heard
        return answer
