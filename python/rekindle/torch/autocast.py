"""A backward that is called inside autocast, and one that is not.

A backward is traced with its forward, when nobody knows from where it will be called. Eager's
backward follows the autocast of the place where it is called, so that has to be found out: the
first step is traced for a backward outside of it. If it is called inside, the operations of the
traced backward run in that autocast, which does to them what it does in eager, and what comes out
in another type is cast to its own, as autograd does between operations. The next step is captured
anew, with the casts as operations that a plan counts.

Limits: once a backward has been called inside autocast, those that follow are taken to be so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from rekindle.torch.interfaces import pytree

OUTSIDE, INSIDE = "off", "same_as_forward"
"""How a backward is traced, in PyTorch's words."""


class BackwardAutocast:
    """Where the backwards of one session are called."""

    def __init__(self) -> None:
        self.traced = OUTSIDE
        """How what is captured now has its backward traced."""
        self._found: tuple[str, torch.dtype] | None = None
        """The autocast in which a backward runs that was not traced for it."""

    def watch(self, result: Any) -> None:
        """Finds out where the backward of a call is called from, if the call is in autocast."""
        device = next((kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)), None)
        if device is None or self.traced == INSIDE:
            return
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda _: self._look(device))

    def _look(self, device: str) -> None:
        if torch.is_autocast_enabled(device):
            self._found = device, torch.get_autocast_dtype(device)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Runs a backward that was traced for the outside in the autocast in which it is called."""
        if self._found is None:
            yield
            return
        device, dtype = self._found
        with torch.autocast(device, dtype):
            yield

    @property
    def is_elsewhere(self) -> bool:
        """Whether backwards are called inside that were traced for the outside."""
        return self._found is not None

    def is_to_be_captured_anew(self) -> bool:
        """Whether what is compiled has its backward traced for another place; says so once."""
        if self._found is None:
            return False
        self._found, self.traced = None, INSIDE
        return True
