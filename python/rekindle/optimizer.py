"""How many bytes an optimizer keeps between steps, before it has made its first.

For each parameter that has no state yet, one step is made on a parameter of zeros of the same
shape; what it leaves is counted and dropped. Only one parameter's worth of memory is used at a
time.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """The bytes of the optimizer's state once every parameter has had a step."""
    known: dict[Any, int] = {}
    total = 0
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state:
                total += _bytes(state)
                continue
            key = (number, parameter.shape, parameter.dtype, parameter.device)
            if key not in known:
                known[key] = _bytes_after_a_step(optimizer, group, parameter)
            total += known[key]
    return total


def _bytes_after_a_step(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor
) -> int:
    with _disable_current_modes(), torch.no_grad():
        stand_in = torch.nn.Parameter(torch.zeros_like(parameter))
        stand_in.grad = torch.zeros_like(parameter)
        trial = copy.copy(optimizer)
        trial.state = defaultdict(dict)
        trial.param_groups = [{**group, "params": [stand_in]}]
        trial.step()
        return _bytes(trial.state.get(stand_in, {}))


def _bytes(state: Any) -> int:
    tensors = [leaf for leaf in pytree.tree_leaves(dict(state)) if isinstance(leaf, torch.Tensor)]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
