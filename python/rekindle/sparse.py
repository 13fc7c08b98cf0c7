"""What has no storage cannot be planned: sparse tensors are refused before anything is counted."""

from __future__ import annotations

import torch
from torch import fx

from rekindle.errors import UnsupportedGraph
from rekindle.joint import tensors_of


def refuse_sparse(graph: fx.Graph) -> None:
    """Refuses a graph in which a tensor is not a plain block of numbers, and says which."""
    for node in graph.nodes:
        for tensor in tensors_of(node):
            if tensor.layout is not torch.strided:
                raise UnsupportedGraph(
                    f"{node.name} gives a tensor whose layout is {tensor.layout}, and how many bytes it takes is known only when it runs; "
                    "use dense tensors, and sparse=False in nn.Embedding"
                )
