"""What happens when a node runs again: nothing new, the same draw once more, or something that must
not happen twice.

Also the form in which a node runs again: a batch norm that updated its running statistics is
computed again without them.
"""

from __future__ import annotations

import operator
from enum import Enum
from typing import Any

import torch
from torch import fx

from rekindle.torch.interfaces import (
    BATCH_NORM,
    BATCH_NORM_AGAIN,
    is_operation,
    name_of,
    schema_of,
)
from rekindle.torch.joint import overwrites, tensors_of
from rekindle.torch.target.atomics import is_repeatable


class Effect(Enum):
    """Whether a node may run again."""

    PURE = "pure"
    RANDOM = "random"
    ONCE = "once"


COLLECTIVES = {
    "_c10d_functional",
    "_c10d_functional_autograd",
    "c10d",
    "c10d_functional",
    "symm_mem",
}
"""Namespaces of operations that talk to other processes: each must run as often on every rank."""


ROUTING = {
    "argmax",
    "argmin",
    "argsort",
    "bincount",
    "histc",
    "kthvalue",
    "multinomial",
    "nonzero",
    "searchsorted",
    "sort",
    "topk",
}
"""Operations whose results say where others go, such as to which expert. They are small, and both
passes must take the same route, also where equal values may be told apart in another way.
"""


def is_collective(node: fx.Node) -> bool:
    """Whether it talks to other processes."""
    return is_operation(node.target) and node.target.namespace in COLLECTIVES


def has_collectives(graph: fx.Graph) -> bool:
    """Whether ranks that run the graph talk to one another while they do."""
    return any(is_collective(node) for node in graph.nodes)


def effect_of(node: fx.Node) -> Effect:
    """Whether a node may run again. What is not known to be harmless runs once."""
    target = node.target
    if not is_operation(target):
        return Effect.ONCE
    if overwrites(node) or is_collective(node) or name_of(target) in ROUTING:
        return Effect.ONCE
    if torch.Tag.nondeterministic_seeded in target.tags and draws(node):
        return Effect.RANDOM
    kind = next((tensor.device.type for tensor in tensors_of(node)), "cpu")
    return Effect.PURE if is_repeatable(name_of(target), kind) else Effect.ONCE


def draws(node: fx.Node) -> bool:
    """Whether a node that can draw random numbers does. Attention draws only if its dropout is
    above zero.
    """
    probability = argument(node, "dropout_p")
    return probability is None or probability > 0.0


def argument(node: fx.Node, name: str) -> Any:
    """The argument that the operation's schema calls `name`; its default if it is not given, None
    if there is none.
    """
    assert is_operation(node.target)
    for position, formal in enumerate(schema_of(node.target).arguments):
        if formal.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, formal.default_value)
    return None


BATCH_NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default
RUNNING_STATISTICS = (3, 4)
"""Where both take the running mean and variance."""


def unread(node: fx.Node) -> tuple[int, ...]:
    """The positions of arguments that the node takes but that its results do not depend on.

    In training mode a batch norm normalises with the statistics of the batch; the running ones go
    into their own update alone, which happens in the forward, and the backward ignores them. Those
    that are made for one batch norm (an instance norm repeats the model's) are taken for read, so
    that they are there.
    """
    if node.target is BATCH_NORM and node.args[5]:
        given = [node.args[position] for position in RUNNING_STATISTICS]
        return RUNNING_STATISTICS if all(_is_known_before(value) for value in given) else ()
    if node.target is BATCH_NORM_BACKWARD and node.args[7]:
        return RUNNING_STATISTICS
    return ()


def _is_known_before(statistics: Any) -> bool:
    """Whether running statistics are an input's, or an earlier batch norm's: these have run by the
    time when they are needed, whoever reads them.
    """
    if not isinstance(statistics, fx.Node) or statistics.op == "placeholder":
        return True
    made_by = statistics.args[0] if statistics.target is operator.getitem else None
    return isinstance(made_by, fx.Node) and made_by.target is BATCH_NORM


def passed_on(node: fx.Node) -> list[fx.Node]:
    """The running statistics that a batch norm takes from an earlier one of the same layer.

    Its first run, which updates them, reads them; no later run does.
    """
    if node.target is not BATCH_NORM:
        return []
    values = [node.args[position] for position in unread(node)]
    return [value for value in values if isinstance(value, fx.Node) and value.op != "placeholder"]


def again(node: fx.Node) -> tuple[Any, tuple[Any, ...], int | None]:
    """How a node runs again in the backward: operation, arguments, and how many of its results
    there are (None: all).

    The results that both forms have are bit-equal.
    """
    if node.target is BATCH_NORM and unread(node):
        source, weight, bias, _, _, training, momentum, epsilon = node.args
        return BATCH_NORM_AGAIN, (source, weight, bias, training, momentum, epsilon), 3
    return node.target, without_unread(node), None


def without_unread(node: fx.Node) -> tuple[Any, ...]:
    """The arguments with None in place of those that a backward node ignores."""
    if node.target is not BATCH_NORM_BACKWARD:
        return node.args
    return tuple(
        None if position in unread(node) else value for position, value in enumerate(node.args)
    )
