"""What a step finds in memory that its own graph does not say.

Forwards that wait for their backward, gradients of earlier steps, and parameters that it does not
read.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from rekindle.joint import Joint

UNREAD = "parameters that are not read"
"""What a graph calls the bytes of parameters and buffers beside it."""


class Outstanding:
    """The forwards whose saved values are still there.

    Of each, the largest saved storage is watched by a weak reference: it dies when the backward has
    used it, or when the result of the forward is dropped.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, weakref.ref[Any]]] = []

    def note(self, number: int, size: int, largest: torch.Tensor) -> None:
        """The forward of a graph has saved so many bytes; `largest` is the largest of what it
        saved.
        """
        self._drop_dead()
        self._waiting.append((number, size, weakref.ref(largest.untyped_storage())))

    def bytes(self) -> dict[int, int]:
        """The bytes that wait, by graph."""
        self._drop_dead()
        found: dict[int, int] = {}
        for number, size, _ in self._waiting:
            found[number] = found.get(number, 0) + size
        return found

    def _drop_dead(self) -> None:
        self._waiting = [entry for entry in self._waiting if entry[2]() is not None]


def gradient_bytes(tensors: Iterable[Any]) -> int:
    """The bytes of the gradients that the leaves among some values hold, those that were frozen
    afterwards included.
    """
    leaves = [
        t for t in tensors if isinstance(t, torch.Tensor) and t.is_leaf and t.grad is not None
    ]
    return storage_bytes(leaf.grad for leaf in leaves if leaf.grad is not None)


def resident_bytes(module: torch.nn.Module) -> int:
    """The bytes of all parameters and buffers of a module."""
    return storage_bytes([*module.parameters(), *module.buffers()])


def unread_bytes(joint: Joint, resident: int) -> int:
    """How many of so many bytes of parameters and buffers lie beside the graph, which does not read
    them.
    """
    inside = {storage for node in joint.parameters for storage in joint.held(node)}
    return max(resident - sum(storage.bytes for storage in inside), 0)


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes that some tensors lie in, as far as they are on this rank."""
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
