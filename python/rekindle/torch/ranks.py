"""What several ranks plan, one of them plans for all: the others take its plan.

Measured times differ between processes, and so would plans that are made apart; a rank that waits
in a collective for one that recomputes something else is slow at best. The rank that asks first for
the plan of a step plans it, and those that ask for the plan of the same step take that one. None
waits for a rank that may not ask: ranks whose batches have different shapes, as with padding, have
different steps, and each is planned by who has it.

Where collectives are part of a graph, ranks that run them in another order would wait for one
another. There all ranks of the default group meet, their graphs are compared, and the first rank
plans; ranks that hold different graphs cannot share a plan, and say so.

What is said goes through the store at which the ranks met, and not through a collective: no tensor
is needed, whatever the backend, and a rank that does not come is an error after `patience()` and
not a wait without end. It is asked again and again, since a store that is waited for lets no other
thread of the process speak.

Limits: where collectives are part of graphs, all ranks must plan the same graphs in the same order.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import os
import pickle
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as distributed

from rekindle.errors import InvalidInput, RankMissing, RanksDiffer, RekindleError
from rekindle.torch.interfaces import default_store

Answer = TypeVar("Answer")

PATIENCE = "REKINDLE_PATIENCE"
"""The environment variable that says for how many seconds a rank waits for another."""
PATIENCE_SECONDS = 600.0
PAUSE_SECONDS = 0.005
"""Between two questions whether something was said."""

_meetings = itertools.count()
_asked: collections.Counter[str] = collections.Counter()
"""How often this process has asked for each plan: the others' answer is to the same time."""


def agree(about: str, find: Callable[[], Answer], *, has_collectives: bool = False) -> Answer:
    """What `find` gives, on one rank. It must survive being sent; an error of `find` is raised on
    every rank that asks. `about` is equal where the same is looked for.
    """
    if is_one():
        return find()
    if has_collectives:
        return _meet(about, find)
    key = hashlib.sha256(about.encode()).hexdigest()
    _asked[key] += 1
    key = f"rekindle/{key}/{_asked[key]}"
    if default_store().add(f"{key}/asked", 1) == 1:
        return _say_what_is_found(key, find)
    answer: Answer = _heard(key, "plan of another rank")
    return answer


def say(key: str, value: Any) -> None:
    """Says something to the ranks that listen."""
    default_store().set(key, pickle.dumps(value))


def hear(key: str, what: str) -> Any:
    """What another rank says."""
    store, seconds = default_store(), patience()
    end = time.monotonic() + seconds
    while not store.check([key]):
        if time.monotonic() > end:
            raise RankMissing(
                f"rank {distributed.get_rank()} has waited for {seconds:.0f} s for the {what}, "
                "which does not come: is that rank alive, does it train the same model in the same "
                f"order, and with gradients? Set {PATIENCE} to more seconds if it only takes long"
            )
        time.sleep(PAUSE_SECONDS)
    return pickle.loads(store.get(key))


def is_one() -> bool:
    """Whether this process trains alone."""
    return (
        not (distributed.is_available() and distributed.is_initialized())
        or distributed.get_world_size() == 1
    )


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


def _meet(about: str, find: Callable[[], Answer]) -> Answer:
    """One decision of all ranks. Each rank counts them, so that none takes the word of another."""
    key, rank = f"rekindle/meeting {next(_meetings)}", distributed.get_rank()
    say(f"{key}/{rank}", about)
    every = range(distributed.get_world_size())
    graphs = [hear(f"{key}/{other}", f"graph of rank {other}") for other in every]
    others = [str(other) for other in every if graphs[other] != graphs[0]]
    if others:
        raise RanksDiffer(
            f"rank {', '.join(others)} would train another graph than rank 0, and these have "
            "collectives, so one plan must serve all; build the same model on every rank and give "
            "each a batch of the same shape"
        )
    return _say_what_is_found(key, find) if rank == 0 else _heard(key, "plan of rank 0")


def _say_what_is_found(key: str, find: Callable[[], Answer]) -> Answer:
    try:
        found = find()
    except BaseException as error:
        said = RekindleError(f"rank {distributed.get_rank()} could not plan: {error!r}")
        say(f"{key}/plan", error if isinstance(error, RekindleError) else said)
        raise
    say(f"{key}/plan", found)
    return found


def _heard(key: str, what: str) -> Any:
    heard = hear(f"{key}/plan", what)
    if isinstance(heard, RekindleError):
        raise heard
    return heard
