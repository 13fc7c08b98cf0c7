"""What must be true of PyTorch, and of what a user hands over, before anything is planned."""

from __future__ import annotations

import re

import torch

from rekindle.errors import ForeignBudget, InvalidInput, UnsupportedTorch
from rekindle.torch.interfaces import functorch_config

OLDEST = (2, 9)
"""The first version whose joint graphs say which inputs the forward overwrites."""


def check_torch() -> None:
    """Refuses a PyTorch that cannot do what is needed, or that is set to do the planner's work
    itself.
    """
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None or tuple(map(int, found.groups())) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedTorch(
            f"PyTorch {torch.__version__} is too old for Rekindle, which needs {oldest} or newer: "
            "pip install --upgrade torch"
        )
    share = functorch_config.activation_memory_budget
    if share < 1.0:
        raise ForeignBudget(
            f"torch._functorch.config.activation_memory_budget is {share}: PyTorch would recompute "
            "on its own, outside the plan and with other random numbers; set it back to 1.0 and "
            "give Rekindle the budget"
        )


def check_module(module: object, *, is_run: bool = True) -> None:
    """Refuses what is not a module, and one without contents if it is to run."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"a torch.nn.Module is planned, not {_type(module)}")
    for name, part in (*module.named_parameters(), *module.named_buffers()):
        if part.is_meta and is_run:
            raise InvalidInput(
                f"{name} is on the device meta, and a module without contents does not train: give "
                'it contents first, for example with module.to_empty(device="cpu")'
            )


def check_optimizer(optimizer: object) -> None:
    """Refuses what is not an optimizer; None is none."""
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInput(
            "optimizer is a torch.optim.Optimizer whose state counts, "
            f"not {_type(optimizer)}; leave it out for none"
        )


def _type(value: object) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"the class {kind.__name__}" if kind is value else f"a {kind.__name__}"
