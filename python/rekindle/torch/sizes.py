"""Every size in a captured graph is a number, or the graph is refused.

Where the size of a result depends on values (`bincount`, `nonzero`), tracing has a symbol for it.
What follows may say which number that is: counts that are added to eight others are eight. Such a
size is written as the number that it is, and so is every value of the graph that is one.

Limits: a size that stays a symbol is an `UnknownSize` error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from rekindle.errors import UnknownSize
from rekindle.torch.interfaces import detect_fake_mode, number_of, pytree, storage_key

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def settle_sizes(graph: fx.Graph) -> None:
    """Writes numbers in place of symbols that stand for one, and refuses a graph with others."""
    blocks: dict[int, torch.UntypedStorage] = {}
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, SYMBOLS):
            _settle_number(graph, node, value)
        elif any(_has_symbols(leaf) for leaf in pytree.tree_leaves(value)):
            node.meta["val"] = pytree.tree_map_only(
                torch.Tensor, lambda leaf: _settled(node, leaf, blocks), value
            )
        _settle_arguments(node)


def _has_symbols(leaf: Any) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        return isinstance(leaf, SYMBOLS)
    sizes = (*leaf.shape, *leaf.stride(), leaf.storage_offset())
    return any(isinstance(size, SYMBOLS) for size in sizes)


def _settle_number(graph: fx.Graph, node: fx.Node, value: Any) -> None:
    """Takes out a node that gives a number."""
    number = _number(node, value)
    if node.op == "placeholder":
        node.meta["val"] = number
        return

    def given(argument: fx.Node) -> Any:
        return number if argument is node else argument

    for user in list(node.users):
        user.args = fx.map_arg(user.args, given)
        user.kwargs = fx.map_arg(user.kwargs, given)
    graph.erase_node(node)


def _settle_arguments(node: fx.Node) -> None:
    """Writes numbers in place of symbols among what a node is called with."""

    def settled(value: Any) -> Any:
        return _number(node, value) if isinstance(value, SYMBOLS) else value

    if any(isinstance(leaf, SYMBOLS) for leaf in pytree.tree_leaves((node.args, node.kwargs))):
        node.args, node.kwargs = pytree.tree_map(settled, (node.args, node.kwargs))


def _settled(
    node: fx.Node, tensor: torch.Tensor, blocks: dict[int, torch.UntypedStorage]
) -> torch.Tensor:
    """The same tensor without contents, with numbers for its sizes. Those that shared a block of
    memory share one.
    """
    block = tensor.untyped_storage()
    key = storage_key(block)
    if key not in blocks and not (_has_symbols(tensor) or isinstance(block.nbytes(), SYMBOLS)):
        return tensor
    sizes = [_number(node, size) for size in tensor.shape]
    strides = [_number(node, stride) for stride in tensor.stride()]
    offset = _number(node, tensor.storage_offset())
    mode = detect_fake_mode(tensor)
    assert mode is not None, "a joint graph has tensors without contents"
    with mode:
        if key not in blocks:
            size = _number(node, block.nbytes())
            blocks[key] = torch.empty(
                size, dtype=torch.uint8, device=tensor.device
            ).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(blocks[key], offset, sizes, strides)


def _number(node: fx.Node, value: Any) -> Any:
    """The number that a symbol stands for."""
    if not isinstance(value, SYMBOLS):
        return value
    number = number_of(value)
    if number is None:
        raise UnknownSize(
            f"{node.name} ({node.target}) has a size that depends on values ({value}), and a plan "
            "needs numbers: compute it outside of the planned module, or from the shapes of inputs"
        )
    return number
