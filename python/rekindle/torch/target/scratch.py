"""Bytes that operations take and give back inside on a GPU, as far as their sources tell.

The backward of attention sums its gradients in single precision: `mha_bwd` in
`aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp` takes a tensor of the queries'
sizes for that, rounded up, one number for each row, and keys and values for each head where heads
share them. What cuDNN and the memory-efficient kernel take is not published; they are taken to need
as much.

Limits: every other operation is taken to need nothing beside its results and the libraries'
workspaces (`margins`).
"""

from __future__ import annotations

import torch
from torch import fx

ROWS = 128
HEAD, WIDE_HEAD, NARROW = 32, 64, 128
"""Heads are rounded up to the first, and from `NARROW` on to the second."""
SINGLE = 4
"""Bytes of a number in single precision."""


def scratch_of(node: fx.Node) -> int:
    """What a node takes beside its results."""
    name = str(node.target)
    if "_scaled_dot_product_" not in name or "backward" not in name:
        return 0
    shapes = [
        argument.meta["val"].shape
        for argument in node.args[1:4]
        if isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), torch.Tensor)
    ]
    if len(shapes) < 3 or any(len(shape) != 4 for shape in shapes):
        return 0
    (batch, heads, rows, size), (_, groups, columns, _) = shapes[:2]
    row_count = _rounded(rows, ROWS)
    width = _rounded(size, HEAD if size <= NARROW else WIDE_HEAD)
    sums = batch * heads * row_count * (width + 1) * SINGLE
    query = node.args[1]
    assert isinstance(query, fx.Node)
    itemsize = int(query.meta["val"].element_size())
    shared = 2 * batch * columns * heads * size * itemsize if groups != heads else 0
    return int(sums + shared)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
