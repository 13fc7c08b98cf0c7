"""A model that prepares itself in its first forward does so before it is captured.

Some models register hooks on their parts when they run for the first time. Dynamo cannot follow
that, so the graph of the first step would end there. Here the forward runs once without contents,
as far as the first operation after the hooks are registered: then they are there, as they are after
a forward in eager, and the capture finds them.

Nothing else stays of that run: no tensor is computed, nothing is drawn, and what it has assigned to
the module in tensors is taken back.

Limits: what the forward does beside tensors up to that place, it does twice. Where it needs the
values of a tensor before it is there, nothing is prepared, and the graph ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import hooks

from rekindle.torch.interfaces import FakeTensorMode, is_fake, pytree
from rekindle.torch.randomness import GeneratorStates


def registers_hooks(end: str) -> bool:
    """Whether a graph has ended where a hook is registered, by what Dynamo says of the end."""
    places = [line for line in end.splitlines() if line.strip().startswith("File ")]
    return bool(places) and hooks.__file__ in places[-1]


def registered_hooks() -> int:
    """How many hooks have been registered in this process."""
    return int(hooks.RemovableHandle.next_id)


class _Prepared(Exception):
    """Hooks are there."""


class _UntilHooks(TorchFunctionMode):
    """Ends a run at the first call of PyTorch's after a hook is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.before = registered_hooks()

    def __torch_function__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if registered_hooks() != self.before:
            raise _Prepared
        return function(*args, **(kwargs or {}))


def prepare(
    module: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> bool:
    """Lets a module register its hooks. Gives whether it has."""
    before, states, fakes = registered_hooks(), GeneratorStates(), FakeTensorMode()
    inputs = pytree.tree_map_only(torch.Tensor, fakes.from_tensor, (args, kwargs))
    with _without_contents(module, fakes), fakes, _UntilHooks():
        # What goes wrong without contents is no mistake of the model's: the graph ends, then.
        with contextlib.suppress(Exception):
            forward(*inputs[0], **inputs[1])
    if not states.are_unchanged():
        states.put_back()
    return registered_hooks() != before


@contextlib.contextmanager
def _without_contents(module: torch.nn.Module, fakes: FakeTensorMode) -> Iterator[None]:
    """In this scope the parameters and buffers of a module have no contents. What is assigned to
    its parts meanwhile in such tensors is taken back.
    """
    parts = list(module.modules())
    owners = [owner for part in parts for owner in (part._parameters, part._buffers)]
    known = [(owner, dict(owner)) for owner in [*owners, *(part.__dict__ for part in parts)]]
    for owner in owners:
        owner.update(pytree.tree_map_only(torch.Tensor, fakes.from_tensor, dict(owner)))
    try:
        yield
    finally:
        for owner, values in known:
            for name in [name for name, value in owner.items() if is_fake(value)]:
                if name in values:
                    owner[name] = values[name]
                else:
                    del owner[name]
