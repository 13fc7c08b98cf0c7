"""Every rank takes the same decisions: the first one plans, and the others take its plan.

Measured times differ between processes, and so would plans that are made apart; a rank that waits
in a collective for one that recomputes something else is slow at best. Before it is planned a graph
is compared: ranks that hold different graphs cannot share a plan, and say so.

Limits: all ranks of the default group must plan the same graphs in the same order, as in data
parallel training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as distributed

from rekindle.errors import RanksDiffer, RekindleError
from rekindle.torch.interfaces import without_modes

Answer = TypeVar("Answer")


def agree(digest: str, find: Callable[[], Answer]) -> Answer:
    """What `find` gives, on the first rank. It must survive being sent; an error of `find` is
    raised on every rank.
    """
    if (
        not (distributed.is_available() and distributed.is_initialized())
        or distributed.get_world_size() == 1
    ):
        return find()
    refuse_different(digest)
    sent: list[Answer | RekindleError | None] = [None]
    if distributed.get_rank() == 0:
        try:
            sent = [find()]
        except RekindleError as error:
            sent = [error]
    with without_modes():
        distributed.broadcast_object_list(sent, src=0)
    (found,) = sent
    if isinstance(found, RekindleError):
        raise found
    assert found is not None
    return found


def refuse_different(digest: str) -> None:
    """Compares the graphs of all ranks by their digests."""
    digests: list[str | None] = [None] * distributed.get_world_size()
    # A graph is compiled in a mode whose tensors have no contents; what is sent needs some.
    with without_modes():
        distributed.all_gather_object(digests, digest)
    others = [str(rank) for rank, other in enumerate(digests) if other != digests[0]]
    if others:
        raise RanksDiffer(
            f"rank {', '.join(others)} would train another graph than rank 0, so one plan cannot "
            "serve both; build the same model on every rank and give each a batch of the same shape"
        )
