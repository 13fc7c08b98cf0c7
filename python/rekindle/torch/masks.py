"""The random mask of a dropout, in the smallest form from which eager's numbers can be made.

In: a joint graph in which dropout is as eager computes it on the CPU: an empty tensor of the
input's type, filled with zeros and ones, and divided by the share that is kept. Out: the same graph
in which ones and zeros are a byte each, and become numbers in an operation of its own. So a plan
can keep the byte and make the numbers again, without drawing. The draw is the same: it does not
depend on the type. Neither does an empty tensor read what it is to be like.

Eager draws in place, into a tensor that may be transposed. The traced form draws a new one, which
never is; so where PyTorch draws along the memory, which depends on the processor, it is drawn as it
lies and transposed afterwards.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import fx

from rekindle.torch.interfaces import detect_fake_mode, without_fakes, without_modes

aten = torch.ops.aten

EMPTY = {aten.empty_like.default, aten.new_empty.default}
DRAW = aten.bernoulli.p
DIVIDE = {aten.div.Tensor, aten.div.Scalar}


def shrink_masks(graph: fx.Graph) -> None:
    """Rewrites the graph in place."""
    for node in list(graph.nodes):
        if node.target in DIVIDE and _is_mask(node):
            _shrink(graph, node)
    for node in list(graph.nodes):
        if node.target is DRAW and _is_into_empty(node):
            _redraw(graph, node)
    for node in list(graph.nodes):
        if node.target in EMPTY:
            _replace(graph, node, _empty(graph, node, node.meta["val"].dtype))


def _is_mask(divided: fx.Node) -> bool:
    """Whether a division is that of a draw into an empty tensor, which nobody else reads."""
    drawn, scale = divided.args
    if not isinstance(drawn, fx.Node) or not isinstance(scale, (int, float)):
        return False
    if drawn.target is not DRAW or len(drawn.users) != 1 or not _is_into_empty(drawn):
        return False
    return bool(drawn.meta["val"].is_floating_point())


def _is_into_empty(drawn: fx.Node) -> bool:
    """Whether a draw is into an empty tensor that nobody else reads."""
    if len(drawn.args) != 2 or drawn.kwargs:
        return False
    empty: Any = drawn.args[0]
    return isinstance(empty, fx.Node) and empty.target in EMPTY and len(empty.users) == 1


def _shrink(graph: fx.Graph, divided: fx.Node) -> None:
    drawn, scale = divided.args
    assert isinstance(drawn, fx.Node)
    empty: Any = drawn.args[0]
    number = drawn.meta["val"].dtype
    mask = _draw(graph, drawn, torch.bool)
    with graph.inserting_before(divided):
        ones = mask
        if number is not torch.float32 or torch.get_default_dtype() is not torch.float32:
            ones = _call(graph, divided, aten._to_copy.default, (mask,), dtype=number)
        noise = _call(graph, divided, divided.target, (ones, scale))
    _replace(graph, divided, noise)
    for unread in (drawn, empty):
        graph.erase_node(unread)


def _redraw(graph: fx.Graph, drawn: fx.Node) -> None:
    empty: Any = drawn.args[0]
    _replace(graph, drawn, _draw(graph, drawn, drawn.meta["val"].dtype))
    graph.erase_node(empty)


def _draw(graph: fx.Graph, drawn: fx.Node, dtype: torch.dtype) -> fx.Node:
    """Eager's draw into the empty tensor that `drawn` draws into, of a type."""
    empty, share = drawn.args
    assert isinstance(empty, fx.Node)
    like = empty.meta["val"]
    order = sorted(range(like.dim()), key=lambda axis: -like.stride(axis))
    if like.is_contiguous() or not draws_along_memory(like.device):
        order = list(range(like.dim()))
    sizes = [like.shape[axis] for axis in order]
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    with graph.inserting_before(drawn):
        room = _strided(graph, drawn, sizes, strides, dtype)
        mask = _call(graph, drawn, DRAW, (room, share))
        if order == sorted(order):
            return mask
        return _call(graph, drawn, aten.permute.default, (mask, [*map(order.index, sorted(order))]))


@functools.cache
def draws_along_memory(device: torch.device) -> bool:
    """Whether what is drawn in place into a transposed tensor follows its memory, not its axes."""
    sizes, strides = (3, 64), (1, 3)
    # A graph is captured in a mode whose tensors have no contents; these have.
    with without_modes(), without_fakes():
        generators = [torch.Generator(device).manual_seed(1) for _ in range(2)]
        transposed = torch.empty_strided(sizes, strides, device=device)
        transposed.bernoulli_(0.5, generator=generators[0])
        plain = torch.empty(sizes[::-1], device=device).bernoulli_(0.5, generator=generators[1])
        return torch.equal(transposed, plain.t())


def _empty(graph: fx.Graph, like: fx.Node, dtype: torch.dtype) -> fx.Node:
    """An empty tensor of the same sizes and strides, which reads nothing."""
    tensor = like.meta["val"]
    with graph.inserting_before(like):
        return _strided(graph, like, list(tensor.shape), list(tensor.stride()), dtype)


def _strided(
    graph: fx.Graph, origin: fx.Node, sizes: list[Any], strides: list[Any], dtype: torch.dtype
) -> fx.Node:
    device, target = origin.meta["val"].device, aten.empty_strided.default
    return _call(graph, origin, target, (tuple(sizes), tuple(strides)), dtype=dtype, device=device)


def _call(
    graph: fx.Graph, origin: fx.Node, target: Any, args: tuple[Any, ...], **kwargs: Any
) -> fx.Node:
    """A call with what its origin is known by, and a tensor without contents as its value."""
    node = graph.call_function(target, args, kwargs)
    node.meta = dict(origin.meta)
    mode = detect_fake_mode(origin.meta["val"])
    assert mode is not None, "a joint graph has tensors without contents"
    with mode:
        given = fx.map_arg(args, lambda value: value.meta["val"])
        node.meta["val"] = target(*given, **kwargs)
    return node


def _replace(graph: fx.Graph, old: fx.Node, new: fx.Node) -> None:
    old.replace_all_uses_with(new)
    graph.erase_node(old)
