"""Bytes that are held while a step runs, and that its own graph does not say.

Forwards that wait for their backward, gradients of earlier steps, parameters that the step does not
read, and what an optimizer keeps between steps.
"""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from rekindle.torch.interfaces import pytree, storage_sizes, without_modes
from rekindle.torch.joint import Joint


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


def unread(joint: Joint, resident: int) -> dict[str, int]:
    """How many of so many bytes of parameters and buffers lie beside the graph, which does not read
    them; as something that is held.
    """
    inside = {storage for node in joint.parameters for storage in joint.held(node)}
    size = max(resident - sum(storage.bytes for storage in inside), 0)
    return {"parameters that are not read": size} if size else {}


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes that some tensors lie in, as far as they are on this rank."""
    return sum(storage_sizes(local(tensor) for tensor in tensors).values())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def state_bytes(optimizer: torch.optim.Optimizer, dtype: torch.dtype | None = None) -> int:
    """The bytes of the optimizer's state once every parameter that is trained has had a step; of
    parameters of type `dtype` if it is given. An optimizer passes over what has no gradient.

    For each parameter that has no state yet, one step is made on a parameter of zeros of the same
    shape; what it leaves is counted and dropped. Only one parameter's worth of memory is used at a
    time.
    """
    known: dict[Any, int] = {}
    total = 0
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state:
                total += _state_bytes(state)
                continue
            if not parameter.requires_grad and parameter.grad is None:
                continue
            key = (number, parameter.shape, parameter.dtype, parameter.device)
            if key not in known:
                known[key] = _bytes_after_a_step(optimizer, group, parameter, dtype)
            total += known[key]
    return total


def _bytes_after_a_step(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameter: torch.Tensor,
    dtype: torch.dtype | None,
) -> int:
    with without_modes(), torch.no_grad():
        stand_in = torch.nn.Parameter(torch.zeros_like(parameter, dtype=dtype))
        stand_in.grad = torch.zeros_like(stand_in)
        trial = copy.copy(optimizer)
        trial.state = defaultdict(dict)
        trial.param_groups = [{**group, "params": [stand_in]}]
        trial.step()
        return _state_bytes(trial.state.get(stand_in, {}))


def _state_bytes(state: Any) -> int:
    tensors = [leaf for leaf in pytree.tree_leaves(dict(state)) if isinstance(leaf, torch.Tensor)]
    return sum(storage_sizes(tensors).values())
