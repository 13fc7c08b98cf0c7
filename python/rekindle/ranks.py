"""Every rank takes the same decisions: the first one plans, and the others take its plan.

Measured times differ between processes, and so would plans that are made apart; a rank that waits
in a collective for one that recomputes something else is slow at best. Before it is planned a graph
is compared: ranks that hold different graphs cannot share a plan, and say so.

Limits: all ranks of the default group must plan the same graphs in the same order, as in data
parallel training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as distributed
from torch.utils._python_dispatch import _disable_current_modes

from rekindle.errors import RanksDiffer, RekindleError

Found = TypeVar("Found")


def agree(graph: str, find: Callable[[], Found]) -> Found:
    """What `find` gives, on the first rank. It must survive being sent; an error of `find` is
    raised on every rank.
    """
    if (
        not (distributed.is_available() and distributed.is_initialized())
        or distributed.get_world_size() == 1
    ):
        return find()
    refuse_different(graph)
    sent: list[Found | RekindleError | None] = [None]
    if distributed.get_rank() == 0:
        try:
            sent = [find()]
        except RekindleError as error:
            sent = [error]
    with _disable_current_modes():
        distributed.broadcast_object_list(sent, src=0)
    (found,) = sent
    if isinstance(found, RekindleError):
        raise found
    assert found is not None
    return found


def refuse_different(graph: str) -> None:
    """Compares the graphs of all ranks."""
    digests: list[str | None] = [None] * distributed.get_world_size()
    # A graph is compiled in a mode whose tensors have no contents; what is sent needs some.
    with _disable_current_modes():
        distributed.all_gather_object(digests, hashlib.sha256(graph.encode()).hexdigest())
    others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise RanksDiffer(
            f"rank {', '.join(others)} would train another graph than rank 0, so one plan cannot serve both; "
            "build the same model on every rank and give each a batch of the same shape"
        )
