"""What must be true of PyTorch before anything is planned."""

from __future__ import annotations

import re

import torch

from rekindle.errors import ForeignBudget, UnsupportedTorch

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
            f"PyTorch {torch.__version__} is too old for Rekindle, which needs {oldest} or newer: pip install --upgrade torch"
        )
    from torch._functorch import config

    share = config.activation_memory_budget
    if share < 1.0:
        raise ForeignBudget(
            f"torch._functorch.config.activation_memory_budget is {share}: PyTorch would recompute on its own, "
            "outside the plan and with other random numbers; set it back to 1.0 and give Rekindle the budget"
        )
