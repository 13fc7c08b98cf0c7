"""Options are checked when they are given, and not when the first step runs. Each error says what
would do.
"""

from __future__ import annotations

import json
import math

import torch

from rekindle import _native
from rekindle.errors import InvalidInput

PROFILES = ("measure", "roofline")
STRATEGIES = tuple(name for name, _ in _native.strategies())
HIGHEST_EFFORT = 10
MOST_BYTES = 2**63
"""No budget has as many."""


def check_settings(
    budget: object, profile: object, strategy: object, effort: object, time_limit: object
) -> None:
    """Refuses what no plan could be made with."""
    check_budget(budget)
    _check_name("profile", profile, PROFILES)
    _check_name("strategy", strategy, STRATEGIES)
    if effort is not None and (type(effort) is not int or not 0 <= effort <= HIGHEST_EFFORT):
        raise InvalidInput(f"effort is a whole number from 0 to {HIGHEST_EFFORT}, not {effort!r}")
    if time_limit is not None and (
        type(time_limit) not in (int, float) or not 0.0 < time_limit < math.inf
    ):  # type: ignore[operator]
        raise InvalidInput(
            f"time_limit is a number of seconds above zero, not {time_limit!r}; leave it out for no limit"
        )


def check_budget(budget: object) -> None:
    """Refuses what is no amount of memory."""
    if isinstance(budget, bool) or not isinstance(budget, (int, float, str)):
        raise InvalidInput(
            f'a budget is bytes, a share such as 0.6, or text such as "8GiB", not {budget!r}'
        )
    if isinstance(budget, float) and not 0.0 < budget <= 1.0:
        raise InvalidInput(
            f"a share of the plain peak is above 0 and at most 1, not {budget}; bytes are whole numbers"
        )
    if isinstance(budget, int) and not 0 < budget < MOST_BYTES:
        raise InvalidInput(
            f"a budget of {budget} bytes makes no sense: give a number above zero that a machine can hold"
        )
    if isinstance(budget, str):
        _check_text(budget)


def _check_text(budget: str) -> None:
    whole = _block()
    size = _native.parse_budget(budget, whole)
    if budget.strip().endswith("%") and size > whole.peak:
        raise InvalidInput(
            f'a budget of "{budget}" is more than the plain step needs: a share is at most 100%'
        )
    if size >= MOST_BYTES:
        raise InvalidInput(f'the budget "{budget}" is more bytes than a machine can hold')


def _block() -> _native.Graph:
    """A graph whose peak is so high that a share of it tells which share it is."""
    node = {
        "name": "block",
        "op": "block",
        "phase": "forward",
        "reads": [],
        "writes": [0],
        "time_us": 0.0,
    }
    storage = {"bytes": 10**15, "role": "other"}
    file = {
        "format": "remat.graph/1",
        "name": "block",
        "storages": [storage],
        "nodes": [node],
        "outputs": [0],
    }
    return _native.Graph.from_json(json.dumps(file))


def _check_name(what: str, given: object, names: tuple[str, ...]) -> None:
    if given not in names:
        raise InvalidInput(f"{what} is one of {', '.join(names)}, not {given!r}")


def check_module(module: object) -> None:
    """Refuses what is not a module."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"a torch.nn.Module is planned, not {_type(module)}")


def check_optimizer(optimizer: object) -> None:
    """Refuses what is not an optimizer; None is none."""
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInput(
            f"optimizer is a torch.optim.Optimizer whose state counts, not {_type(optimizer)}; leave it out for none"
        )


def _type(value: object) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"the class {kind.__name__}" if kind is value else f"a {kind.__name__}"
