"""Where Dynamo, which turns a model's Python into graphs, is told what to answer and how to branch.

These are private interfaces of PyTorch like those in `interfaces`, which gives them on; they have a
file of their own because they are Dynamo's inside: its table of what known functions return, and its
table of what bytecodes do.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo import symbolic_convert
from torch._dynamo.guards import install_guard
from torch._dynamo.variables import TensorVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

OWN = "torch"
"""The package whose own code must know that it is traced."""
QUESTIONS: tuple[Any, ...] = (
    torch.compiler.is_compiling,
    torch.compiler.is_dynamo_compiling,
    torch._utils.is_compiling,
)
JUMPS = tuple(number for name, number in dis.opmap.items() if "JUMP" in name and "_IF_" in name)
"""The bytecodes that branch."""

Decide = Callable[[Any, Any], Any]
Place = tuple[tuple[str, int | None], ...]
"""The lines of a model's Python that are being run, from the inside out."""


def _place(translator: Any) -> Place:
    found = []
    while translator is not None:
        found.append((translator.f_code.co_filename, translator.lineno))
        translator = translator.parent
    return tuple(found)


@contextmanager
def answer_to_libraries(answer_at: Callable[[Place], bool]) -> Iterator[None]:
    """What Dynamo lets code outside of PyTorch know when it asks whether it is compiled, by the
    place where it asks.
    """
    handlers = TorchInGraphFunctionVariable._get_handlers()
    known = {question: handlers[question] for question in QUESTIONS if question in handlers}

    def answering(original: Callable[..., Any]) -> Callable[..., Any]:
        def answer(variable: Any, translator: Any, *args: Any, **kwargs: Any) -> Any:
            asker = str(translator.f_globals.get("__name__", ""))
            if asker.partition(".")[0] == OWN:
                return original(variable, translator, *args, **kwargs)
            return VariableTracker.build(translator, answer_at(_place(translator)))

        return answer

    handlers.update({question: answering(original) for question, original in known.items()})
    try:
        yield
    finally:
        handlers.update(known)


@contextmanager
def decide_branches(decide: Decide) -> Iterator[None]:
    """Asks `decide` for the value to branch on wherever it is a tensor."""
    tables = [kind.dispatch_table for kind in _kinds(symbolic_convert.InstructionTranslatorBase)]
    before = [{number: table[number] for number in JUMPS} for table in tables]

    def deciding(original: Callable[..., Any]) -> Callable[..., Any]:
        def jump(translator: Any, instruction: Any) -> Any:
            if translator.stack and isinstance(translator.stack[-1], TensorVariable):
                translator.stack[-1] = decide(translator, translator.stack[-1])
            return original(translator, instruction)

        return jump

    for table, originals in zip(tables, before, strict=True):
        for number, original in originals.items():
            table[number] = deciding(original)
    try:
        yield
    finally:
        for table, originals in zip(tables, before, strict=True):
            for number, original in originals.items():
                table[number] = original


@torch.compiler.substitute_in_graph(
    torch.xpu.is_current_stream_capturing, skip_signature_check=True
)
def _captures_no_stream() -> bool:
    """Libraries ask this beside the other questions, and Dynamo does not know the answer."""
    return False


def _kinds(kind: type) -> list[Any]:
    """A class and all that are made from it."""
    return [kind, *(more for below in kind.__subclasses__() for more in _kinds(below))]


def branch_value(variable: Any) -> fx.Node | None:
    """The node of a truth value among Dynamo's variables."""
    node = variable.proxy.node
    example = node.meta.get("example_value")
    is_truth = isinstance(example, torch.Tensor) and example.numel() == 1
    return node if is_truth and not example.requires_grad else None


@dataclass
class GuardedInput:
    """An input of the call that is captured."""

    tensor: torch.Tensor
    source: Any

    def guard(self, holds: Callable[[torch.Tensor], bool]) -> None:
        """The graph serves only calls for whose input this holds."""

        def create(builder: Any, guard: Any) -> None:
            manager = builder.get_guard_manager(guard)
            manager.add_lambda_guard(holds, ["a branch goes the same way"], guard.user_stack)

        install_guard(self.source.make_guard(create))


def guard_value(placeholder: fx.Node) -> GuardedInput | None:
    """The tensor that an input is in this call; None if there is no telling."""
    argument = placeholder.meta.get("grapharg")
    source = getattr(argument, "source", None)
    tensor = getattr(argument, "example", None)
    if source is None or not isinstance(tensor, torch.Tensor):
        return None
    return GuardedInput(tensor, source)


def constant_in_dynamo(translator: Any, value: bool) -> Any:
    """A constant among Dynamo's variables."""
    return VariableTracker.build(translator, value)
