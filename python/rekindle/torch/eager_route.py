"""While a model is captured, its Python takes the way that it takes in eager.

Libraries ask whether they are being compiled, and then compute something else: Hugging Face builds
a mask that eager leaves out, Mamba scans in another order. And Dynamo ends a graph where a branch
depends on the values of a tensor, so they ask in order not to branch. Inside a `Route`

* code outside of PyTorch that asks is told that nothing is compiled. Where the graph would end
  because of that answer, and does not end with the other one, the other one is given: such code
  avoids what Dynamo cannot follow, and rarely computes something else;
* a branch on a tensor that follows from at most one input of the call, or a truth value that is
  made of one (`item()`, `in`), is decided with the values of this call. Where there is an input, a
  guard decides it anew in each call: another answer is another graph, with a plan of its own. A
  branch on a random number that goes one way whatever is drawn (a layer that is dropped with
  probability zero) goes that way;
* what NumPy draws is drawn by NumPy, and ends the graph: traced, it would be drawn by PyTorch, and
  be something else;
* what is only said (a logger's messages, warnings) is left out of the capture, and locks and
  context variables do not end a graph (`python_context`).

Limits: a branch on two inputs, on random numbers that do decide, or on what needs a gradient ends
the graph, as it does without this file.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import fx

from rekindle.torch.interfaces import (
    Place,
    answer_to_libraries,
    branch_value,
    constant_in_dynamo,
    decide_branches,
    decide_truths,
    dynamo_config,
    guard_value,
    without_fakes,
    without_modes,
)
from rekindle.torch.python_context import followed
from rekindle.torch.randomness import GeneratorStates

MOST_CHANGES = 32
"""Places that are told that they are compiled. Each costs a capture up to that place."""
MOST_NODES = 64
"""A condition is a handful of operations. One that is made of more is not computed twice."""


class Route:
    """The way through one model, as far as it is known."""

    def __init__(self) -> None:
        self.compiled: set[Place] = set()
        """Where the model is told that it is compiled."""
        self._asked: list[Place] = []
        """Where it was told that it is not, since the capture began."""
        self._last: tuple[Place, str] | None = None
        """The answer that was changed last, and because of which end."""

    @contextmanager
    def taken(self, *, is_whole: bool) -> Iterator[None]:
        """What is captured in this scope goes this way. Whether it is to be one graph."""
        self._asked = []
        with (
            followed() if is_whole else nullcontext(),
            answer_to_libraries(self._answer),
            decide_branches(_decide),
            decide_truths(_decide),
            dynamo_config.patch(
                ignore_logging_functions=_said_only(), use_numpy_random_stream=True
            ),
        ):
            yield

    def _answer(self, place: Place) -> bool:
        if place in self.compiled:
            return True
        self._asked.append(place)
        return False

    def told_compiled(self) -> list[str]:
        """Where the model is told that it is compiled, in words: there it may compute something
        else than in eager.
        """
        # Libraries ask by a function of their own; who calls it says more.
        lines = [[f"{file}:{line}" for file, line in place[:2]] for place in self.compiled]
        return sorted(" < ".join(pair) for pair in lines)

    def change(self, end: str) -> bool:
        """The graph has ended, for the reason `end`: changes the last answer. Gives whether there
        was one to change; the answer that did not help is taken back.
        """
        if self._last is not None and self._last[1] == end:
            self.compiled.discard(self._last[0])
            return False
        if not self._asked or len(self.compiled) >= MOST_CHANGES:
            return False
        place = self._asked[-1]
        self._last = place, end
        self.compiled.add(place)
        return True


def _said_only() -> set[Callable[..., Any]]:
    """Functions that only say something."""
    methods = ("debug", "info", "warning", "warning_once", "warning_advice", "error", "log")
    known = [getattr(logging.Logger, name, None) for name in (*methods, "critical", "exception")]
    return {warnings.warn, *(method for method in known if method is not None)}


def _decide(translator: Any, value: Any) -> Any:
    """The value on which a branch depends, as a constant if it can be known."""
    node = branch_value(value)
    if node is None:
        return value
    certain = whatever_is_drawn(node)
    if certain is not None:
        return constant_in_dynamo(translator, certain)
    inputs = _inputs_of(node)
    if inputs is None or len(inputs) > 1:
        return value
    condition = _function(node, inputs)
    known = [source for source in (guard_value(n) for n in inputs) if source is not None]
    if len(known) < len(inputs) or any(source.tensor.requires_grad for source in known):
        return value
    answer = _compute(condition, [source.tensor for source in known])
    if answer is None:
        return value
    for source in known:
        source.guard(lambda tensor: _compute(condition, [tensor]) is answer)
    return constant_in_dynamo(translator, answer)


COMPARED: dict[str, Callable[[float], bool | None]] = {
    "lt": lambda number: True if number >= 1.0 else False if number <= 0.0 else None,
    "ge": lambda number: False if number >= 1.0 else True if number <= 0.0 else None,
    "le": lambda number: True if number >= 1.0 else False if number < 0.0 else None,
    "gt": lambda number: False if number >= 1.0 else True if number < 0.0 else None,
}
"""Whether a number that is drawn from zero to below one is less than another, and so on; None where
that depends on the draw.
"""


def whatever_is_drawn(node: fx.Node) -> bool | None:
    """The answer of a comparison of `torch.rand` with a number, if every draw gives the same."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name not in COMPARED or len(node.args) != 2:
        return None
    drawn, number = node.args
    if not isinstance(drawn, fx.Node) or drawn.target is not torch.rand:
        return None
    return COMPARED[name](number) if isinstance(number, (int, float)) else None


def _inputs_of(node: fx.Node) -> list[fx.Node] | None:
    """The inputs that a value follows from; None if it is not a plain computation on tensors."""
    found: dict[fx.Node, None] = {}
    waiting = [node]
    while waiting:
        at = waiting.pop()
        if at in found:
            continue
        found[at] = None
        if at.op not in ("call_function", "call_method", "placeholder") or len(found) > MOST_NODES:
            return None
        waiting += at.all_input_nodes
    return [at for at in found if at.op == "placeholder"]


def _function(node: fx.Node, inputs: list[fx.Node]) -> Callable[..., Any]:
    """What computes a value from the inputs."""
    graph = fx.Graph()
    copies = {at: graph.placeholder(at.name) for at in inputs}

    def copy(at: fx.Node) -> fx.Node:
        if at not in copies:
            copies[at] = graph.node_copy(at, copy)
        return copies[at]

    graph.output(copy(node))
    return fx.GraphModule({}, graph)


def _compute(condition: Callable[..., Any], tensors: list[torch.Tensor]) -> bool | None:
    """The answer; None if there is none, or if random numbers decide."""
    states = GeneratorStates()
    with without_modes(), without_fakes(), torch.no_grad():
        try:
            answer = bool(condition(*tensors))
        except Exception:  # Dynamo then ends the graph here, and eager says what is wrong.
            return None
        if not states.are_unchanged():
            states.put_back()
            return None
    return answer
