"""Batch-norm for PyTorch's partitioner: the normalisation apart from the running statistics.

The joint graph has one operation that normalises and also gives the new running statistics, of
which it reads the old ones. PyTorch's partitioner recomputes it in the backward, when the old ones
have been overwritten, and the step fails. Here the normalisation uses the batch alone, and the
running statistics follow from the batch's, as Inductor has it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def separate_statistics(graph: fx.Graph) -> None:
    """Rewrites every batch-norm in training mode, and its backward, which does not read the running
    statistics either.
    """
    for node in graph.find_nodes(
        op="call_function", target=aten._native_batch_norm_legit_functional.default
    ):
        if node.args[5]:
            _separate(graph, node)
    for node in graph.find_nodes(
        op="call_function", target=aten.native_batch_norm_backward.default
    ):
        gradient, value, weight, _mean, _variance, saved_mean, saved_scale, training, *rest = (
            node.args
        )
        if training:
            node.args = (
                gradient,
                value,
                weight,
                None,
                None,
                saved_mean,
                saved_scale,
                training,
                *rest,
            )
    graph.eliminate_dead_code()
    graph.lint()


def _separate(graph: fx.Graph, node: fx.Node) -> None:
    value, weight, bias, running_mean, running_variance, _training, momentum, epsilon = node.args
    with graph.inserting_before(node):
        results = _call(
            graph,
            aten._native_batch_norm_legit.no_stats,
            value,
            weight,
            bias,
            True,
            momentum,
            epsilon,
        )
        parts = [_call(graph, operator.getitem, results, position) for position in range(3)]
    picks = {pick.args[1]: pick for pick in node.users}
    last = max(picks.values(), key=list(graph.nodes).index)
    with graph.inserting_before(last.next):
        for position, new in enumerate(
            _statistics(graph, value, parts, running_mean, running_variance, momentum, epsilon), 3
        ):
            if position in picks:
                picks[position].replace_all_uses_with(new)
        for position in range(3):
            if position in picks:
                picks[position].replace_all_uses_with(parts[position])


def _statistics(
    graph: fx.Graph,
    value: Any,
    parts: list[fx.Node],
    mean: Any,
    variance: Any,
    momentum: Any,
    epsilon: Any,
) -> tuple[fx.Node, fx.Node]:
    """The new running mean and variance. The scale that the operation saves is 1 / sqrt(variance +
    epsilon).
    """
    shape = value.meta["val"].shape
    count = shape.numel() // shape[1]
    batch_mean = _call(graph, aten.view.default, parts[1], [shape[1]])
    scale = _call(graph, aten.view.default, parts[2], [shape[1]])
    batch_variance = _call(
        graph, aten.sub.Tensor, _call(graph, aten.pow.Tensor_Scalar, scale, -2), epsilon
    )
    unbiased = _call(graph, aten.mul.Tensor, batch_variance, count / (count - 1))
    return (
        _call(graph, aten.lerp.Scalar, mean, batch_mean, momentum),
        _call(graph, aten.lerp.Scalar, variance, unbiased, momentum),
    )


def _call(graph: fx.Graph, operation: Callable[..., Any], *args: Any) -> fx.Node:
    """A node with the fake value that the partitioner reads sizes from."""
    node = graph.call_function(operation, args)
    node.meta["val"] = operation(*fx.map_arg(args, lambda argument: argument.meta["val"]))
    return node
