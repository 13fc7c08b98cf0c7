"""The peak of a step, measured: every storage that an operation makes is counted from its making to
its end.

`measure_peak()` is a context. Inside it, each storage that an operation returns is entered with its
bytes, and a weak reference takes it out when it dies. What was there before is counted if it is
named. The count is exact: it is the sum of what PyTorch asked its allocator for, without what an
operation asks for and gives back while it runs (its scratch) and without the allocator's own
rounding.

Limits: on a GPU this counts what is asked for; `torch.cuda.max_memory_allocated` adds the
allocator's rounding.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class measure_peak(TorchDispatchMode):  # noqa: N801 (a context, named like one)
    """Counts the bytes of all storages that are made in its scope.

    `there` are tensors whose bytes count from the start, such as `model.parameters()` and the
    batch.
    """

    def __init__(self, there: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.now = 0
        """Bytes that are live."""
        self.peak = 0
        """The highest count so far."""
        self._known: dict[int, Any] = {}
        for tensor in there:
            self._enter(tensor)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tells the compiler to compile what runs under this mode, and to run it under this mode."""
        return True

    def reset(self) -> None:
        """Forgets the peak, not what is live."""
        self.peak = self.now

    def _enter(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known[key] = weakref.finalize(storage, self._leave, key, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _leave(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._enter(leaf)
        return result
