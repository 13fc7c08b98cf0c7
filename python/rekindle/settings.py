"""What a user asks for, checked when it is given and not when the first step runs. Each error says
what would do.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Literal

from rekindle import _native
from rekindle.errors import InvalidInput

Budget = int | float | str
"""Bytes, a share of the plain step's peak, or text such as `"8GiB"` or `"60%"`."""
TimeSource = Literal["measure", "roofline"]
"""Where the times of operations are from: a clock, or a cost model."""
TIME_SOURCES = ("measure", "roofline")
Differentiated = Literal["loss", "all"]
"""Which of the values that a module returns are differentiated, if a loss is among them."""
HIGHEST_EFFORT = 10
HOST = "host"
"""The store that is the host's memory."""
MOST_BYTES = 2**63
"""No budget has as many."""


@dataclass(frozen=True)
class Settings:
    """How a step is to be planned."""

    budget: Budget
    profile: TimeSource = "measure"
    strategy: str = "search"
    effort: int | None = None
    time_limit: float | None = None
    differentiated: Differentiated = "loss"
    at_least: int = 0
    """Bytes that a share is not below: those that it was of a larger step."""
    store: str | None = None
    """How fast the store is that the planner may move storages to."""
    offload: str | None = None
    """A folder, or `HOST`: where a plan that is executed moves activations to."""
    offload_limit: int | str | None = None
    """The most that may lie there, as it was given."""
    is_store_known: bool = False
    """Whether `store` says all that a plan that is executed needs."""

    def __post_init__(self) -> None:
        _check_budget(self.budget)
        _check_name("profile", self.profile, TIME_SOURCES)
        _check_name("strategy", self.strategy, tuple(dict(_native.strategies())))
        _check_name("differentiated", self.differentiated, ("loss", "all"))
        effort, limit = self.effort, self.time_limit
        if effort is not None and (type(effort) is not int or not 0 <= effort <= HIGHEST_EFFORT):
            raise InvalidInput(
                f"effort is a whole number from 0 to {HIGHEST_EFFORT}, not {effort!r}"
            )
        if limit is not None and (type(limit) not in (int, float) or not 0.0 < limit < math.inf):
            raise InvalidInput(
                f"time_limit is a number of seconds above zero, not {limit!r}; "
                "leave it out for no limit"
            )
        _check_store(self.store)
        _check_offload(self)

    def with_effort(self, effort: int) -> Settings:
        """The same with another effort."""
        return replace(self, effort=effort)

    def with_at_least(self, size: int) -> Settings:
        """The same with a budget of so many bytes at least, if it is a share."""
        return replace(self, at_least=size if self.is_share else 0)

    def with_store(self, speed: str) -> Settings:
        """The same with a store of this speed, for activations, that may hold as much as it may."""
        parts = [speed, *([f"limit={self.offload_bytes}"] if self.offload_bytes else [])]
        text = _native.parse_store(",".join([*parts, ACTIVATIONS]))
        return replace(self, store=text, is_store_known=True)

    @property
    def offload_bytes(self) -> int | None:
        """The most bytes that may lie in the store."""
        given = self.offload_limit
        return _native.parse_budget(given) if isinstance(given, str) else given

    def bytes_for(self, plain_peak: int) -> int:
        """The budget in bytes, for a step whose plain peak is known."""
        if isinstance(self.budget, str):
            return max(_native.parse_budget(self.budget, plain_peak), self.at_least)
        if isinstance(self.budget, float):
            return max(int(self.budget * plain_peak), self.at_least)
        return self.budget

    @property
    def is_share(self) -> bool:
        """Whether the budget is a share of a step's plain peak."""
        return isinstance(self.budget, float) or str(self.budget).strip().endswith("%")

    @property
    def bytes_without_share(self) -> int | None:
        """The budget in bytes if it is the same for any step."""
        return None if self.is_share else self.bytes_for(0)


def _check_budget(budget: object) -> None:
    """Refuses what is no amount of memory."""
    if isinstance(budget, bool) or not isinstance(budget, (int, float, str)):
        raise InvalidInput(
            f'a budget is bytes, a share such as 0.6, or text such as "8GiB", not {budget!r}'
        )
    if isinstance(budget, float) and not 0.0 < budget <= 1.0:
        raise InvalidInput(
            f"a share of the plain peak is above 0 and at most 1, not {budget}; "
            "bytes are whole numbers"
        )
    # A share of so high a peak tells which share it is.
    size = _native.parse_budget(budget, MOST_BYTES - 1) if isinstance(budget, str) else budget
    if isinstance(size, int) and not 0 < size < MOST_BYTES:
        raise InvalidInput(
            f"a budget of {budget!r} makes no sense: give a number of bytes above zero that a "
            "machine can hold, or a share of at most 100%"
        )


def _check_store(store: object) -> None:
    """Refuses what is no store."""
    if store is None:
        return
    if not isinstance(store, str):
        raise InvalidInput(
            f'a store is text such as "out=25GB/s,in=25GB/s,latency=10us", not {store!r}'
        )
    _native.parse_store(store)


ACTIVATIONS = "activations"
"""The word by which a store takes nothing that is persistent."""


def _check_offload(settings: Settings) -> None:
    """Refuses what is no place to move activations to."""
    offload, limit, store = settings.offload, settings.offload_limit, settings.store
    if offload is None:
        if limit is not None:
            raise InvalidInput("offload_limit says how much offload= may hold: give that, too")
        return
    if not isinstance(offload, str):
        raise InvalidInput(f'offload is a folder, or "{HOST}", not {offload!r}')
    if offload != HOST and not (os.path.isdir(offload) and os.access(offload, os.W_OK | os.X_OK)):
        raise InvalidInput(
            f'offload is a folder in which files can be made, or "{HOST}", and {offload} is neither'
        )
    if limit is not None and not (_is_bytes(limit) and settings.offload_bytes):
        raise InvalidInput(
            f'offload_limit is a number of bytes above zero, or text such as "40GiB", not {limit!r}'
        )
    known = {ACTIVATIONS, "limit"} if store is not None and not settings.is_store_known else set()
    parts = {part.split("=")[0].strip() for part in (store or "").split(",")}
    if known & parts:
        raise InvalidInput(
            f"with offload=, {' and '.join(sorted(known & parts))} cannot be said in store=: "
            "activations are all that moves, and offload_limit is the limit"
        )


def _is_bytes(limit: object) -> bool:
    return isinstance(limit, str) or (type(limit) is int and limit > 0)


def _check_name(what: str, given: object, names: tuple[str, ...]) -> None:
    if given not in names:
        raise InvalidInput(f"{what} is one of {', '.join(names)}, not {given!r}")
