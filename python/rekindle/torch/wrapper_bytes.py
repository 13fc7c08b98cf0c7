"""The functions that Inductor generates → the bytes that a step takes with them, before it runs.

In: what Inductor wrote for the two modules of a plan. Out: the peak of the step.

Inductor's kernels are called by a Python function of its making, the wrapper: it takes buffers,
hands dead ones on, calls kernels and lets go. That function is run here as it is, with tensors that
have no contents and with kernels that do nothing, forward and backward one after the other, so that
what it takes and gives back is known, and when. The storages are counted as `measure.measure_peak`
counts them. What an operation of PyTorch's that the wrapper calls takes and gives back inside (its
scratch) is found by running it alone, once for all calls of the same sizes, strides and types.

What is between the modules is what AOTAutograd does there: the new contents of inputs are copied
and dropped, other outputs stay, tangents come, and what was saved is handed over.

Limits: what a kernel takes behind PyTorch's allocator is not seen, as it is not in a measured peak.
On a GPU an input that is not aligned is copied before the wrapper is called, which is not counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from rekindle.torch.allocator import mark, recorded
from rekindle.torch.interfaces import (
    FakeTensorMode,
    compiling_kernels_by,
    inductor,
    is_operation,
    is_profiled,
    pytree,
    schema_of,
    storage_key,
    storage_sizes,
    without_fakes,
    without_modes,
)
from rekindle.torch.joint import Joint
from rekindle.torch.lower_back import Modules
from rekindle.torch.measure import measure_peak
from rekindle.torch.randomness import same_draws
from rekindle.torch.timing import device_bytes, device_peak

Wrapper = Callable[[list[Any]], Sequence[Any]]


def load(source: str, constants: dict[str, torch.Tensor]) -> Wrapper:
    """A wrapper that takes what it takes, and whose kernels do nothing."""
    scope: dict[str, Any] = {"__name__": "rekindle_wrapper"}
    with compiling_kernels_by(_NothingCompiled):
        exec(compile(source, "<Inductor's wrapper>", "exec"), scope)  # noqa: S102 (it is our own)
    for name in scope:
        if name.startswith("empty_strided_"):
            scope[name] = functools.partial(_empty, name.removeprefix("empty_strided_"))
        elif name.startswith("assert_"):
            scope[name] = _nothing
    scope["reinterpret_tensor"] = _view
    scope.update(constants)
    call: Wrapper = scope["call"]
    return call


def _empty(
    device: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    kind, _, pinned = device.partition("_")
    assert not pinned, "a step does not take pinned memory"
    return torch.empty_strided(size, stride, dtype=dtype, device=kind)


def _view(
    base: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    return torch.as_strided(base, size, stride, base.storage_offset() + offset)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Stands for a kernel, and for a check of what it is given."""


class _Kernel:
    """A kernel that does nothing, however it is called."""

    run = __call__ = staticmethod(_nothing)


class _NothingCompiled:
    """Takes the place of what compiles a wrapper's kernels."""

    def __getattr__(self, _name: str) -> Callable[..., _Kernel]:
        return lambda *_args, **_kwargs: _Kernel()


@dataclass(frozen=True)
class Like:
    """What a tensor is but for its contents."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Like:
        """What a tensor is."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def made_up(self) -> torch.Tensor:
        """Ones where values are real, zeros where they may be indices."""
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        return made.fill_(1 if self.dtype.is_floating_point or self.dtype.is_complex else 0)


@dataclass(frozen=True)
class Call:
    """A call of an operation, without the contents of its arguments."""

    operation: Any
    args: Any
    kwargs: Any

    @property
    def key(self) -> str:
        """Equal for calls that do the same work."""
        return str(self)


class Scratch:
    """The most that each operation takes while it runs, its results included. What has been found
    is kept: the next plan calls much of the same.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, calls: Iterable[Call]) -> list[int]:
        """The most bytes that each call takes over those that are there before it."""
        calls = list(calls)
        unknown = {call.key: call for call in calls if call.key not in self._known}
        # Of two profilers the second would end the first.
        if unknown and not is_profiled():
            self._find(unknown)
        return [self._known.get(call.key, 0) for call in calls]

    def _find(self, calls: dict[str, Call]) -> None:
        with without_modes(), without_fakes(), torch.no_grad(), same_draws(), recorded() as events:
            on_device = {
                key: _run_alone(number, call) for number, (key, call) in enumerate(calls.items())
            }
        for number, key in enumerate(calls):
            found = on_device[key]
            self._known[key] = events.marked[number].peak if found is None else found


def _run_alone(number: int, call: Call) -> int | None:
    """Runs a call twice, so that what it keeps for good is there, the second time in a mark. On a
    GPU gives what it took there.
    """
    args, kwargs = pytree.tree_map_only(Like, Like.made_up, (call.args, call.kwargs))
    if call.operation is inductor().run_with_rng_state:
        args = (torch.get_rng_state(), *args[1:])
    call.operation(*args, **kwargs)
    is_on_device = any(
        isinstance(leaf, torch.Tensor) and leaf.is_cuda
        for leaf in pytree.tree_leaves((args, kwargs))
    )
    before = device_bytes() if is_on_device else 0
    with mark(number):
        result = call.operation(*args, **kwargs)
    del result
    return device_peak() - before if is_on_device else None


class _Counted(measure_peak):
    """Counts a step that runs without contents, on the device whose memory counts."""

    supports_higher_order_operators = True

    def __init__(self, metered: str) -> None:
        super().__init__()
        self.metered = metered
        self.calls: list[tuple[int, Call]] = []
        """The bytes before each call of an operation that may take scratch, and the call."""

    def _enter(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == self.metered:
            super()._enter(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, kwargs = self.now, kwargs or {}
        known = pytree.tree_map_only(torch.Tensor, Like.of, (args, kwargs))
        if func is inductor().run_and_save_rng_state:
            result: Any = torch.empty_like(torch.get_rng_state()), args[0](*args[1:], **kwargs)
        elif func is inductor().run_with_rng_state:
            result = args[1](*args[2:], **kwargs)
        else:
            result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._enter(leaf)
        if not is_operation(func) or not (_is_view(func) or _only_makes(func)):
            self.calls.append((before, Call(func, *known)))
        return result

    def peak_with(self, scratch: Scratch) -> int:
        """The peak, with what operations take inside."""
        taken = scratch.of(call for _, call in self.calls)
        inside = [before + most for (before, _), most in zip(self.calls, taken, strict=True)]
        return max([self.peak, *inside])


def _is_view(operation: Any) -> bool:
    returns = [about.alias_info for about in schema_of(operation).returns]
    return any(alias is not None and not alias.is_write for alias in returns)


MAKERS = ("aten::empty", "aten::new_empty")
"""How the names of operations begin that only take memory."""


def _only_makes(operation: Any) -> bool:
    return str(schema_of(operation).name).startswith(MAKERS)


@dataclass(frozen=True)
class Foreseen:
    """What a step will take, by what Inductor has written for it."""

    peak: int
    """The most bytes at any time, with all that others own."""
    saved: int
    """What the forward hands to the backward and nobody else owns."""


def foresee(
    joint: Joint, modules: Modules, forward: Wrapper, backward: Wrapper, scratch: Scratch
) -> Foreseen:
    """The bytes of a step that these wrappers run."""
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with without_modes(), fake_mode, torch.no_grad(), _Counted(joint.metered) as counted:
        blocks: dict[int, torch.Tensor] = {}
        owned = [_argument(node, blocks) for node in joint.primals]
        there = counted.now
        counted.reset()
        outputs = list(forward(list(owned)))
        kept, saved = outputs[: len(joint.forward_outputs)], outputs[len(joint.forward_outputs) :]
        del outputs
        saved_bytes = _not_among(saved, owned)
        handed_out = kept[len(joint.new_contents) :]
        del kept
        # Autograd holds the tangents until the backward returns.
        tangents = [_argument(node, blocks) for node in joint.tangents]
        arguments = [*saved, *tangents]
        del saved
        gradients = backward(arguments)
        del gradients, handed_out, tangents
        peak = counted.peak_with(scratch)
    return Foreseen(modules.owned_bytes + peak - there, saved_bytes)


def _argument(node: fx.Node, blocks: dict[int, torch.Tensor]) -> Any:
    """What a step is called with in place of an input: a tensor without contents, in the same
    block as others that share one.
    """
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage()
    elements = storage.nbytes() // value.element_size()
    block = blocks.get(storage_key(storage))
    if block is None:
        block = torch.empty(elements, dtype=value.dtype, device=value.device)
        blocks[storage_key(storage)] = block
    return block.view(value.dtype).as_strided(value.shape, value.stride(), value.storage_offset())


def _not_among(values: Iterable[Any], owned: Iterable[Any]) -> int:
    """The bytes of the storages of some values that no other ones lie in."""
    theirs = storage_sizes(value for value in owned if isinstance(value, torch.Tensor))
    found = storage_sizes(value for value in values if isinstance(value, torch.Tensor))
    return sum(size for storage, size in found.items() if storage not in theirs)
