"""The gradient of a value that several graphs read is added up in eager's order.

Autograd adds up the gradients of a value one by one, from its last use to its first. A captured
graph adds up those of its own uses and hands out the sum, so where two graphs read a value, the sum
of the one is added to the sum of the other, and rounds differently. Here a graph that reads a value
more than once, and is not the last of a call, gives a stand-in beside its results, which comes
after all of these uses. From then on the value has the stand-in as its origin: the gradient of what
reads it later arrives at the stand-in, and so at the graph's own backward, which begins its sum
with it.

A value that was made in the call gets its new origin in place, so eager code between graphs follows
it too. Parameters, views and what the caller gave keep theirs: there the graphs behind are handed
another tensor with the same contents.

A stand-in has the value's shape, one element of memory and no contents. Where nothing reads the
value later, its gradient is minus zero, which changes no sum, and as small. Where nothing but the
stand-in has a gradient, eager would not run the graph's backward: it only passes that gradient on.

Limits: what eager computes between graphs of a parameter, a view or an argument is added to the
sum. A value that a graph overwrites stays as it is, and so do tensors that are spread over
processes. A hook that is put on a value after a graph has read it is called without that graph's
share.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from rekindle.torch.execute import what_follows
from rekindle.torch.interfaces import (
    fake_of,
    is_plain_fake,
    is_view,
    is_written,
    leave_out_missing_gradients,
    same_version,
)
from rekindle.torch.joint import Joint


class _StandIn(torch.autograd.Function):
    """Stands for a value behind its uses, and hands it the gradient that arrives."""

    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            value.shape, [0] * value.dim(), dtype=value.dtype, device=value.device
        )

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _NewOrigin(torch.autograd.Function):
    """Gives a value another origin, in place."""

    @staticmethod
    def forward(ctx: Any, _stand_in: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class _OtherOrigin(torch.autograd.Function):
    """A tensor with the contents of a value and another origin."""

    @staticmethod
    def forward(_ctx: Any, _stand_in: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class StandIns:
    """The stand-ins of one call. No value is kept alive by them."""

    def __init__(self) -> None:
        self.arguments: set[int] = set()
        """The identities of what the caller gave, which others may read outside of the call."""
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        """Those of values that keep their origin."""

    def put(self, value: torch.Tensor, stand_in: torch.Tensor) -> None:
        """From now on the gradient of a value goes to a stand-in."""
        keeps = value.is_leaf or is_view(value) or value.retains_grad
        if keeps or id(value) in self.arguments:
            self._known[id(value)] = weakref.ref(value), stand_in
            return
        with same_version(value):
            _NewOrigin.apply(stand_in, value)

    def reader(self, value: Any) -> Any:
        """What a graph is to read in place of a value."""
        known = self._known.get(id(value))
        if known is None or known[0]() is not value:
            return value
        return _OtherOrigin.apply(known[1], value)

    def clear(self) -> None:
        """The call is over."""
        self._known.clear()
        self.arguments.clear()


def add_stand_ins(module: fx.GraphModule) -> list[int]:
    """Lets a graph give a stand-in for each value that it reads more than once, behind its results.
    Gives the positions of these values among its inputs.
    """
    inputs = module.graph.find_nodes(op="placeholder")
    found = [at for at, node in enumerate(inputs) if _is_added_up(node)]
    output = module.graph.output_node()
    (results,) = output.args
    assert isinstance(results, (list, tuple))
    order = {node: at for at, node in enumerate(module.graph.nodes)}
    stand_ins = []
    for at in found:
        last = max((user for user in inputs[at].users if user is not output), key=order.__getitem__)
        with module.graph.inserting_after(last):
            stand_ins.append(module.graph.call_function(_StandIn.apply, (inputs[at],)))
    output.args = ((*results, *stand_ins),)
    module.recompile()
    return found


def _is_added_up(node: fx.Node) -> bool:
    """Whether a graph adds up the gradient of an input from several uses."""
    fake = fake_of(node)
    if not is_plain_fake(fake) or not fake.requires_grad or is_written(fake):
        return False
    uses = [use for user in node.users if user.op != "output" for use in _arguments(user)]
    return uses.count(node) > 1


def _arguments(user: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg((user.args, user.kwargs), found.append)
    return found


def written_inputs(module: fx.GraphModule) -> set[int]:
    """Which of its inputs a graph overwrites."""
    inputs = enumerate(module.graph.find_nodes(op="placeholder"))
    return {at for at, node in inputs if is_written(fake_of(node))}


def in_order(
    run: Callable[..., Any],
    added_up: list[int],
    written: set[int],
    stand_ins: Callable[[], StandIns],
) -> Callable[..., Any]:
    """The function of a graph with `added_up` stand-ins, whose values come from those of the graphs
    before it.
    """

    def call(*args: Any) -> Any:
        known = stand_ins()
        results = run(
            *(value if at in written else known.reader(value) for at, value in enumerate(args))
        )
        if not added_up:
            return results
        end = len(results) - len(added_up)
        for at, stand_in in zip(added_up, results[end:], strict=True):
            if stand_in.requires_grad:
                leave_out_missing_gradients(stand_in)
                known.put(args[at], stand_in)
        return results[:end]

    return call


def is_stand_in(node: object) -> bool:
    """Whether a node of a joint graph makes a stand-in."""
    if not isinstance(node, fx.Node) or node.target is not torch.ops.aten.empty_strided.default:
        return False
    return not any(node.meta["val"].stride())


def passed_on(joint: Joint, tangents: list[torch.Tensor | None]) -> list[Any] | None:
    """What a backward gives that has a gradient for stand-ins only; None if it has others."""
    arrived = [
        (node, value)
        for node, value in zip(joint.tangents, tangents, strict=True)
        if value is not None
    ]
    if not all(is_stand_in(joint.output_of(node)) for node, _ in arrived):
        return None
    results: list[Any] = [None] * len(joint.gradients)
    for node, value in arrived:
        sums = what_follows([node])
        results[next(at for at, sum in enumerate(joint.gradients) if sum in sums)] = value
    return results


def nothing_for(joint: Joint, tangent: fx.Node) -> torch.Tensor:
    """The gradient of an output for which none has arrived."""
    like = tangent.meta["val"]
    if is_stand_in(joint.output_of(tangent)):
        return torch.full((), -0.0, dtype=like.dtype, device=like.device).expand(like.shape)
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
