"""Bytes that are held while a step runs, and that its own graph does not say.

Forwards that wait for their backward, gradients of earlier steps, parameters that the step does not
read, and what an optimizer keeps between steps.
"""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Container, Iterable
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


def untrained(joint: Joint, parameters: Iterable[torch.Tensor]) -> set[int]:
    """Which of a model's parameters get no gradient from a step that is one graph, by their `id`.

    None where it is not known: where a gradient goes to what is no placeholder's tensor, or on
    beyond the graph, from where it may reach every parameter.
    """
    trained = set()
    for node, gradient in zip(joint.primals, joint.gradients, strict=True):
        if gradient is None:
            continue
        tensor = joint.inputs[node]() if node in joint.inputs else None
        if tensor is None or not tensor.is_leaf:
            return set()
        trained.add(id(tensor))
    return {id(parameter) for parameter in parameters} - trained


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes that some tensors lie in, as far as they are on this rank."""
    return sum(storage_sizes(local(tensor) for tensor in tensors).values())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def optimizer_state(
    optimizer: torch.optim.Optimizer | None,
    joint: Joint,
    model: torch.nn.Module,
    dtype: torch.dtype | None = None,
) -> dict[str, int]:
    """What an optimizer keeps beside a step of `model` that is one graph, as something that is
    held; `dtype` as in `state_bytes`.
    """
    if optimizer is None:
        return {}
    size = state_bytes(optimizer, dtype, untrained(joint, model.parameters()))
    return {"optimizer state": size} if size else {}


class OptimizerState:
    """What an optimizer keeps between the steps of a model, as far as its steps are known."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, left: int) -> None:
        self.optimizer = optimizer
        self.left = left
        """Where there was an optimizer that did not come along to this process: the bytes of its
        state.
        """
        self._untrained: set[int] | None = None

    def note(self, joint: Joint, parameters: Iterable[torch.Tensor]) -> None:
        """There is a step that is one graph: for parameters that get no gradient in any such step
        there is no state.
        """
        if self.optimizer is not None:
            found = untrained(joint, parameters)
            self._untrained = found if self._untrained is None else self._untrained & found

    @property
    def left_out(self) -> int:
        """For how many parameters there is none."""
        return len(self._untrained or ())

    def bytes(self, *, is_split: bool) -> int:
        """The bytes of the state. Where a step is several graphs, all parameters count that are not
        frozen.
        """
        if self.optimizer is None:
            return self.left
        return state_bytes(self.optimizer, untrained=() if is_split else self._untrained or ())


def state_bytes(
    optimizer: torch.optim.Optimizer,
    dtype: torch.dtype | None = None,
    untrained: Container[int] = (),
) -> int:
    """The bytes of the optimizer's state once every parameter that is trained has had a step; of
    parameters of type `dtype` if it is given. An optimizer passes over what has no gradient: what
    is frozen, and what is `untrained`, by its `id`.

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
            is_trained = parameter.requires_grad and id(parameter) not in untrained
            if not is_trained and parameter.grad is None:
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
