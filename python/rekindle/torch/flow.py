"""What the graphs of a step hand to one another, seen while they run.

In: the values that each graph takes and gives, in the order in which the graphs run forward, and
what the call returns. Out: for each of these runs which blocks of memory it takes and gives, by
numbers that are the same for the same block, and which of them the caller keeps.

So a value that one graph gives and the next one takes is counted once, and one that the caller does
not get is known to be gone when nobody needs it any more.

Limits: what a module stores elsewhere, such as in an attribute, is not seen to stay.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from rekindle.torch.held import local
from rekindle.torch.interfaces import pytree, storage_key


@dataclass
class Run:
    """One graph that ran forward."""

    number: int
    """Which of the session's graphs it is."""
    taken: dict[int, int]
    """The bytes of the blocks that it takes and that are no parameters, by their numbers."""
    differentiated: set[int] = field(default_factory=set)
    """The numbers of those whose gradient its backward gives."""
    given: list[dict[int, int]] = field(default_factory=list)
    """The same for each value that it gives."""
    returned: set[int] = field(default_factory=set)
    """The numbers of those that the caller gets."""

    @property
    def all_given(self) -> dict[int, int]:
        """The blocks of all values that it gives."""
        return {number: size for value in self.given for number, size in value.items()}

    @property
    def handed_on(self) -> set[int]:
        """Which of the values that it gives the caller does not get."""
        return {at for at, value in enumerate(self.given) if self.returned.isdisjoint(value)}


class Flow:
    """The runs of one call."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._known: dict[int, tuple[int, weakref.ref[Any]]] = {}
        """The number of each block, by where it lies; another may lie there when it is gone."""
        self._count = 0

    def begin(self, number: int, taken: Iterable[Any], constant: Iterable[Any] = ()) -> Run:
        """A graph is to run forward, and takes this, and that which it gives no gradient of."""
        differentiated = [self._blocks(value) for value in taken]
        blocks = [*differentiated, *(self._blocks(value) for value in constant)]
        self.runs.append(
            Run(
                number,
                {at: size for block in blocks for at, size in block.items()},
                {at for block in differentiated for at in block},
            )
        )
        return self.runs[-1]

    def give(self, run: Run, given: Iterable[Any]) -> None:
        """It has run, and gives this."""
        run.given = [self._blocks(value) for value in given]

    def end(self, result: Any) -> None:
        """The call is over, and returns this."""
        returned = {at for leaf in pytree.tree_leaves(result) for at in self._blocks(leaf)}
        for run in self.runs:
            run.returned = returned.intersection(run.all_given)
        self._known.clear()

    def _blocks(self, value: Any) -> dict[int, int]:
        """The block that a value lies in, and its bytes."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return {}
        block = local(value).untyped_storage()
        known = self._known.get(storage_key(block))
        if known is None or known[1]() is not block:
            known = self._count, weakref.ref(block)
            self._known[storage_key(block)] = known
            self._count += 1
        return {known[0]: block.nbytes()}
