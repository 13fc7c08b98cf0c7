"""Moving values out of memory and back while a step runs: `offload`, `fetch` and `wait`.

These three are nodes of the modules that `inject` builds. `offload` begins to copy the storage of a
value to the store and gives a token, a tensor without elements that stands for the copy. `fetch`
takes a token, and gives the value in new memory whose contents are still on their way. `wait` gives
a value back when what is under way with it is complete: its own arrival, and the copies whose
tokens are named.

They say what is done; `Transfers` does it, with a store that `file_store` or `host_store` makes.
`execute.boxed` binds one to the other.

What stays true: a token owns its copy. When nobody holds the token any more, because the backward
is through, because the result of the forward was dropped, or because an error unwound both, the
room in the store is free as soon as nothing is under way with it. So forwards may wait for their
backwards in any number and order. Memory is taken where `fetch` stands and given back behind
`wait`: how fast the store is changes no byte of it.

Limits: whole storages move. A value whose memory is in the hands of somebody else (a parameter, an
input, a result) is not moved; no plan asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from rekindle.errors import RekindleError

COPY = "_rekindle_copy"
"""Under this name the storage of a token has its copy."""
ARRIVAL = "_rekindle_arrival"
"""Under this name a storage that was fetched has the event of its arrival, until it is waited for.
"""


class Event(Protocol):
    """The end of a copy."""

    def wait(self) -> None:
        """What is computed from now on comes behind it. Raises what went wrong."""


class Store(Protocol):
    """Where storages go, and how they are copied."""

    def place(self, size: int) -> Any:
        """Room for so many bytes. It is free again when nobody holds the object any more."""

    def copy_out(self, source: torch.UntypedStorage, place: Any) -> Event:
        """Begins to copy; what was computed so far comes before it."""

    def copy_in(self, place: Any, target: torch.UntypedStorage, after: Event) -> Event:
        """Begins to copy back, behind the copy out that `after` is the end of."""


@dataclass(frozen=True)
class Copy:
    """A storage in the store, and how the value lies in it."""

    place: Any
    written: Event
    size: int
    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


def offload(_value: torch.Tensor) -> torch.Tensor:
    """Begins to copy the storage of a value to the store; gives a token of the copy."""
    raise _unbound()


def fetch(_token: torch.Tensor) -> torch.Tensor:
    """Begins to copy back; gives the value, which has not arrived yet."""
    raise _unbound()


@fx.has_side_effect
def wait(_value: torch.Tensor, *_tokens: torch.Tensor) -> torch.Tensor:
    """Gives the value when it has arrived, and the copies of these tokens are complete."""
    raise _unbound()


NODES = (offload, fetch, wait)


def name_of(node: fx.Node) -> str:
    """Which of `NODES` a node is."""
    return next(kind.__name__ for kind in NODES if kind is node.target)


def _unbound() -> RekindleError:
    return RekindleError(
        "this module moves values to a store, and none was given: run it through a planned module"
    )


class Transfers:
    """Runs the nodes, with a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def bound(self, node: Any) -> Any:
        """What runs one of `NODES`."""
        return getattr(self, node.__name__)

    def offload(self, value: torch.Tensor) -> torch.Tensor:
        """See the node."""
        storage = value.untyped_storage()
        place = self.store.place(storage.nbytes())
        copy = Copy(
            place,
            self.store.copy_out(storage, place),
            storage.nbytes(),
            value.dtype,
            value.device,
            value.shape,
            value.stride(),
            int(value.storage_offset()),
        )
        token = torch.empty(0, dtype=torch.uint8)
        setattr(token.untyped_storage(), COPY, copy)
        return token

    def fetch(self, token: torch.Tensor) -> torch.Tensor:
        """See the node."""
        copy = copy_of(token)
        block = torch.empty(copy.size, dtype=torch.uint8, device=copy.device).untyped_storage()
        setattr(block, ARRIVAL, self.store.copy_in(copy.place, block, copy.written))
        value = torch.empty(0, dtype=copy.dtype, device=copy.device)
        return value.set_(block, copy.offset, copy.shape, copy.stride)

    def wait(self, value: torch.Tensor, *tokens: torch.Tensor) -> torch.Tensor:
        """See the node."""
        arrival = vars(value.untyped_storage()).pop(ARRIVAL, None)
        if arrival is not None:
            arrival.wait()
        for token in tokens:
            copy_of(token).written.wait()
        return value


def copy_of(token: torch.Tensor) -> Copy:
    """The copy that a token stands for."""
    copy = getattr(token.untyped_storage(), COPY, None)
    if copy is None:
        raise RekindleError(
            "what the forward saved for the backward was replaced on the way, by hooks on saved "
            "tensors (torch.autograd.graph.saved_tensors_hooks, save_on_cpu): leave these out "
            "around a module that is planned with offload="
        )
    assert isinstance(copy, Copy)
    return copy
