"""The two functions of a captured graph, as AOTAutograd calls them: the modules of its plan, with
what watches over the first step.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

from rekindle.errors import RetainedGraph
from rekindle.torch.autocast import BackwardAutocast
from rekindle.torch.bit_check import BitCheck
from rekindle.torch.execute import Boxed, boxed
from rekindle.torch.interfaces import detect_fake_mode, is_view, keeps_graph, mark_boxed
from rekindle.torch.joint import outputs_of, tensors_of
from rekindle.torch.lower import forward_nodes
from rekindle.torch.measure import Meter
from rekindle.torch.planning import PlannedGraph
from rekindle.torch.sums import nothing_for, passed_on
from rekindle.torch.transfers import Transfers


class Halves:
    """A captured graph, and how its two modules run.

    AOTAutograd counts what the forward of the first plan saves, and keeps as many values for the
    backward from then on. So if another plan may follow, the forward saves some empty tensors
    more; a later plan has as many, and fills up with empty ones.
    """

    def __init__(
        self,
        number: int,
        planned: PlannedGraph,
        autocast: BackwardAutocast,
        *,
        beside: Hashable = 0,
        check: bool = False,
        transfers: Transfers | None = None,
    ) -> None:
        self.number = number
        """Which of the session's graphs it is now."""
        self.numbers = {beside: number}
        """Which it is by what is in memory beside it."""
        self._ready: dict[int, tuple[PlannedGraph, BitCheck | Meter | None, Boxed, Boxed]] = {}
        """How it runs as each of them, where it has."""
        self.planned = planned
        self.autocast = autocast
        self.check = check
        self.transfers = transfers
        """What moves values to the store, if there is one."""
        self._slots = 0
        """How many tensors AOTAutograd keeps for the backward."""
        self._forward: Boxed
        self._backward: Boxed
        self._watch = self._new_watch()

    def _new_watch(self) -> BitCheck | Meter | None:
        if self.check:
            return BitCheck(self.planned)
        return None if self.planned.compiled is None else Meter(self.planned)

    def forward(self, module: fx.GraphModule) -> Boxed:
        """Runs the forward of the plan of the time."""
        self._slots = len(saved_by(module, self._num_outputs)[0])
        self._forward = self._watched_forward(self._executor(module, is_backward=False))

        def call(arguments: list[Any]) -> Any:
            return self._forward(arguments)

        return mark_boxed(call)

    def backward(self, module: fx.GraphModule) -> Boxed:
        """Runs the backward of the plan of the time."""
        self._backward = self._watched_backward(self._executor(module, is_backward=True))

        def call(arguments: list[Any]) -> Any:
            _refuse_retained_graph()
            passed = self._without_missing(arguments)
            if passed is not None:
                return passed
            with self.autocast.around():
                return self._backward(arguments)

        return mark_boxed(call)

    def _without_missing(self, arguments: list[Any]) -> list[Any] | None:
        """Puts something in place of the gradients that have not arrived. Where the backward need
        not run for those that have, gives its results.
        """
        joint = self.planned.joint
        first = len(arguments) - len(joint.tangents)
        missing = [at for at, value in enumerate(arguments[first:]) if value is None]
        if not missing:
            return None
        passed = passed_on(joint, arguments[first:])
        for at in missing:
            arguments[first + at] = nothing_for(joint, joint.tangents[at])
        return passed

    @property
    def _num_outputs(self) -> int:
        return len(self.planned.joint.forward_outputs)

    def _watched_forward(self, run: Boxed) -> Boxed:
        return run if self._watch is None else self._watch.forward(run)

    def _watched_backward(self, run: Boxed) -> Boxed:
        return run if self._watch is None else self._watch.backward(run)

    def _executor(self, module: fx.GraphModule, *, is_backward: bool) -> Boxed:
        compiled = self.planned.compiled
        if compiled is None:
            return self._boxed(module, is_backward=is_backward)
        return compiled.backward.run if is_backward else compiled.forward.run

    def _boxed(self, module: fx.GraphModule, *, is_backward: bool) -> Boxed:
        if not is_backward:
            return boxed(module, self.transfers)
        tangents = len(self.planned.joint.tangents)
        run = boxed(module, self.transfers, tangents)
        cast = functools.cache(
            functools.partial(boxed, module, self.transfers, tangents, as_traced=True)
        )

        def call(arguments: list[Any]) -> Any:
            return (cast() if self.autocast.is_elsewhere else run)(arguments)

        return mark_boxed(call)

    def has_room(self, planned: PlannedGraph) -> bool:
        """Whether another plan of the graph saves no more values than there is room for."""
        first = len(saved_by(self.planned.modules.forward, self._num_outputs)[1])
        tensors, objects = map(len, saved_by(planned.modules.forward, self._num_outputs))
        return tensors <= self._slots and objects == first

    def is_run_by(self, number: int) -> bool:
        """Turns to a plan that it has been run by; gives whether it has."""
        self._ready[self.number] = self.planned, self._watch, self._forward, self._backward
        if number in self._ready:
            self.planned, self._watch, self._forward, self._backward = self._ready[number]
            self.number = number
        return number in self._ready

    def put(self, number: int, planned: PlannedGraph) -> None:
        """Another plan for one of the graphs that it is. It takes its place when it is next run."""
        if number == self.number:
            self.replace(planned)
        self._ready.pop(number, None)

    def replace(self, planned: PlannedGraph) -> None:
        """Runs another plan of the graph from now on, for which there is room. No forward may wait
        for its backward.
        """
        tensors = len(saved_by(planned.modules.forward, self._num_outputs)[0])
        self.planned = planned
        self._watch = self._new_watch()
        forward = self._watched_forward(self._boxed(planned.modules.forward, is_backward=False))
        backward = self._watched_backward(self._boxed(planned.modules.backward, is_backward=True))
        unused, slots = [torch.empty(0)] * (self._slots - tensors), self._slots
        end = self._num_outputs + tensors

        def run_forward(arguments: list[Any]) -> Any:
            results = list(forward(arguments))
            kept = [
                value.detach() if is_view(value) else value
                for value in results[self._num_outputs : end]
            ]
            return [*results[: self._num_outputs], *kept, *unused, *results[end:]]

        def run_backward(arguments: list[Any]) -> Any:
            del arguments[tensors:slots]
            return backward(arguments)

        self._forward, self._backward = run_forward, run_backward


def leave_room(planned: PlannedGraph) -> None:
    """Lets the modules of a plan hand over more values than they do, all of them empty, so that a
    plan which saves more can take its place.
    """
    joint, modules = planned.joint, planned.modules
    forward = forward_nodes(joint)
    wanted = sum(any(user not in forward for user in node.users) for node in forward)
    wanted += len(planned.lowered.token_of)
    tensors, objects = saved_by(modules.forward, len(joint.forward_outputs))
    room = wanted + wanted // 4 + LEAST_ROOM - len(tensors)
    if room <= 0:
        return
    output = modules.forward.graph.output_node()
    joint_outputs = outputs_of(modules.forward.graph)[: len(joint.forward_outputs)]
    with modules.forward.graph.inserting_before(output):
        empty = modules.forward.graph.call_function(torch.empty, (0,))
    fake_mode = detect_fake_mode([tensors_of(node) for node in joint.primals])
    with fake_mode or contextlib.nullcontext():
        empty.meta["val"] = torch.empty(0)
    output.args = ([*joint_outputs, *tensors, *[empty] * room, *objects],)
    taken = modules.backward.graph.find_nodes(op="placeholder")
    with modules.backward.graph.inserting_before(taken[len(tensors)]):
        for number in range(room):
            unused = modules.backward.graph.placeholder(f"unused_{number}")
            unused.meta = dict(empty.meta)


def saved_by(forward: fx.GraphModule, num_outputs: int) -> tuple[list[fx.Node], list[fx.Node]]:
    """What a forward hands to its backward: tensors, and behind them what is none."""
    saved = outputs_of(forward.graph)[num_outputs:]
    tensors = [value for value in saved if tensors_of(value)]
    return tensors, saved[len(tensors) :]


LEAST_ROOM = 8
"""Values that a later plan may save beyond those that the plain step would, and a quarter."""


def _refuse_retained_graph() -> None:
    if keeps_graph():
        raise RetainedGraph(
            "backward(retain_graph=True) and gradients of gradients keep what the plan frees, so "
            "the budget could not hold; add up the losses and call backward once, or compute that "
            "part outside the planned module"
        )
