"""The random mask of a dropout, in the smallest form from which eager's numbers can be made.

In: a joint graph in which dropout is as eager computes it on the CPU: an empty tensor of the
input's type, filled with zeros and ones, and divided by the share that is kept. Out: the same graph
in which ones and zeros are a byte each, and become numbers in an operation of its own. So a plan
can keep the byte and make the numbers again, without drawing. The draw is the same: it does not
depend on the type. Neither does an empty tensor read what it is to be like.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from rekindle.torch.interfaces import detect_fake_mode

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
        if node.target in EMPTY:
            _replace(graph, node, _empty(graph, node, node.meta["val"].dtype))


def _is_mask(divided: fx.Node) -> bool:
    """Whether a division is that of a draw into an empty tensor, which nobody else reads."""
    drawn, scale = divided.args
    if not isinstance(drawn, fx.Node) or not isinstance(scale, (int, float)):
        return False
    if drawn.target is not DRAW or len(drawn.args) != 2 or drawn.kwargs or len(drawn.users) != 1:
        return False
    empty: Any = drawn.args[0]
    is_unread = empty.target in EMPTY and len(empty.users) == 1
    return is_unread and bool(drawn.meta["val"].is_floating_point())


def _shrink(graph: fx.Graph, divided: fx.Node) -> None:
    drawn, scale = divided.args
    assert isinstance(drawn, fx.Node)
    empty: Any = drawn.args[0]
    number = drawn.meta["val"].dtype
    room = _empty(graph, empty, torch.bool)
    with graph.inserting_before(drawn):
        mask = _call(graph, drawn, DRAW, (room, drawn.args[1]))
    with graph.inserting_before(divided):
        ones = mask
        if number is not torch.float32 or torch.get_default_dtype() is not torch.float32:
            ones = _call(graph, divided, aten._to_copy.default, (mask,), dtype=number)
        noise = _call(graph, divided, divided.target, (ones, scale))
    _replace(graph, divided, noise)
    for unread in (drawn, empty):
        graph.erase_node(unread)


def _empty(graph: fx.Graph, like: fx.Node, dtype: torch.dtype) -> fx.Node:
    """An empty tensor of the same sizes and strides, which reads nothing."""
    tensor = like.meta["val"]
    with graph.inserting_before(like):
        return _call(
            graph,
            like,
            aten.empty_strided.default,
            (tuple(tensor.shape), tensor.stride()),
            dtype=dtype,
            device=tensor.device,
        )


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
