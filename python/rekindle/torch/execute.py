"""A module → a function that frees every value after its last use, its arguments included.

FX's generated code lets go of a local after its last use, but a caller that passes arguments one by
one keeps them all alive. So the generated function takes one list, empties it into locals, and the
values die where they are last read. AOTAutograd calls a function marked `_boxed_call` in this way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import fx

from rekindle.torch.interfaces import mark_boxed
from rekindle.torch.transfers import NODES, Transfers

Boxed = Callable[[list[Any]], Any]


def boxed(module: fx.GraphModule, transfers: Transfers | None = None) -> Boxed:
    """The module as a function of one list, which it empties. Values that it moves go where
    `transfers` takes them.
    """
    graph = fx.Graph()
    arguments = graph.placeholder("arguments")
    inputs = module.graph.find_nodes(op="placeholder")
    copies = {
        node: graph.call_function(operator.getitem, (arguments, at))
        for at, node in enumerate(inputs)
    }
    graph.call_method("clear", (arguments,))
    for node in module.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if transfers is not None and node.target in NODES:
                copies[node].target = transfers.bound(node.target)
    unpacked = fx.GraphModule(module, graph, f"Boxed{type(module).__name__}")
    run = unpacked.forward

    def call(arguments: list[Any]) -> Any:
        return run(arguments)

    return mark_boxed(call)
