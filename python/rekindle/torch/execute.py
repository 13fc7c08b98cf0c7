"""A module → a function that frees every value after its last use, its arguments included.

FX's generated code lets go of a local after its last use, but a caller that passes arguments one by
one keeps them all alive. So the generated function takes one list, empties it into locals, and the
values die where they are last read. AOTAutograd calls a function marked `_boxed_call` in this way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from rekindle.torch.interfaces import mark_boxed, name_of
from rekindle.torch.transfers import NODES, Transfers

Boxed = Callable[[list[Any]], Any]


VIEW, RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default


def boxed(
    module: fx.GraphModule,
    transfers: Transfers | None = None,
    tangents: int = 0,
    *,
    as_traced: bool = False,
) -> Boxed:
    """The module as a function of one list, which it empties. Values that it moves go where
    `transfers` takes them. The last of its inputs, so many, may be laid out in memory in another
    way than it was traced for: what cannot be a view of them then is a copy, as in eager. If a
    result is to have the type `as_traced`, it is cast where it has another.
    """
    graph = fx.Graph()
    arguments = graph.placeholder("arguments")
    inputs = module.graph.find_nodes(op="placeholder")
    copies = {
        node: graph.call_function(operator.getitem, (arguments, at))
        for at, node in enumerate(inputs)
    }
    graph.call_method("clear", (arguments,))
    following = what_follows(inputs[len(inputs) - tangents :])
    for node in module.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if transfers is not None and node.target in NODES:
                copies[node].target = transfers.bound(node.target)
            if node.target is VIEW and node in following:
                copies[node].target = RESHAPE
            value = node.meta.get("val")
            if as_traced and isinstance(value, torch.Tensor) and value.is_floating_point():
                copies[node] = graph.call_function(_cast, (copies[node], value.dtype))
    unpacked = fx.GraphModule(module, graph, f"Boxed{type(module).__name__}")
    run = unpacked.forward

    def call(arguments: list[Any]) -> Any:
        return run(arguments)

    return mark_boxed(call)


def _cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype)


STRIDED = {"as_strided", "as_strided_scatter", "_reshape_alias"}
"""Operations whose arguments say where in memory something lies."""


def depends_on_layout(inputs: Iterable[fx.Node]) -> bool:
    """Whether what follows from some nodes counts on their being laid out as they were traced."""
    return any(name_of(node.target) in STRIDED for node in what_follows(inputs))


def what_follows(inputs: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that read some nodes, and those that read these."""
    found, waiting = set[fx.Node](), list(inputs)
    while waiting:
        new = [user for user in waiting.pop().users if user not in found]
        found.update(new)
        waiting += new
    return found
