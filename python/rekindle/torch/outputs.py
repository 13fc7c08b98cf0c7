"""What a module returns beside its loss, and nobody differentiates, costs no gradient.

AOTAutograd hands the backward a gradient for each output that may have one, zeros if need be: for
logits, that is as much as the logits. So of a graph that returns a loss (a value without
dimensions that needs a gradient) everything else is cut off from the backward before the graph is
captured. The right gradient of the loss does not change: in eager nothing arrives there either.

What was cut off says so when a gradient arrives: an error, and never a gradient that lacks a part.

Limits: only the end of a call can be cut off. What one graph hands to the next is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from rekindle.errors import NotDifferentiated
from rekindle.torch.interfaces import fake_of


def cut_off(module: fx.GraphModule) -> list[int]:
    """Takes all outputs but the losses out of the backward; gives their positions. There are none
    if there is no loss.
    """
    output = module.graph.output_node()
    (results,) = output.args
    assert isinstance(results, (list, tuple))
    trained = {
        at: value
        for at, value in enumerate(results)
        if isinstance(value, fx.Node) and _needs_gradient(value)
    }
    losses = [at for at, value in trained.items() if fake_of(value).dim() == 0]
    if not losses:
        return []
    # What goes in and comes out again is not ours to mark.
    inner = {at: value for at, value in trained.items() if value.op != "placeholder"}
    others = {at: value for at, value in inner.items() if at not in losses}
    cut: dict[fx.Node, fx.Node] = {}
    with module.graph.inserting_before(output):
        for value in others.values():
            if value not in cut:
                cut[value] = module.graph.call_method("detach", (value,))
                cut[value].meta = dict(value.meta)
    output.args = (
        tuple(cut[others[at]] if at in others else value for at, value in enumerate(results)),
    )
    module.recompile()
    return list(others)


def _needs_gradient(value: fx.Node) -> bool:
    fake = fake_of(value)
    return isinstance(fake, torch.Tensor) and fake.requires_grad


def refusing(run: Callable[..., Any], positions: list[int]) -> Callable[..., Any]:
    """The same function, whose results at some positions refuse a gradient."""

    def call(*args: Any) -> Any:
        results = run(*args)
        for at in positions:
            if not results[at].requires_grad:
                results[at].requires_grad_().register_hook(_refuse)
        return results

    return call


def _refuse(_gradient: torch.Tensor) -> None:
    raise NotDifferentiated(
        "a value that the module returns beside its loss is differentiated, and the plan counts on "
        "the loss alone, so that the value costs no gradient: give rekindle.compile "
        'differentiated="all", or let the module add everything up to one loss'
    )
