"""The plans of one compiled model, and how far they have come.

AOTAutograd hands a `Session` each training graph (`partition`) and runs the two modules that it
gives back. Graphs without a backward run as they are. A session is in one `State`, and
`TRANSITIONS` says which may follow.

A step that is one graph is planned when it is captured. Of a step that is several graphs, a first
pass collects: each is planned to hold as little as it can for those behind it, and runs. Before the
next step they are planned together (`several_graphs`), and the model is compiled anew with these
plans. Where nobody tells when a step begins (`rekindle.backend`), a second graph in a step is
refused when it is to run.

Gradients that are there when a step begins count as held: a step that finds some has a plan of its
own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch
from torch import fx

from rekindle.errors import (
    LiveGradients,
    OverBudget,
    RekindleError,
    RetainedGraph,
    SplitStep,
    TooManyShapes,
)
from rekindle.settings import Settings
from rekindle.torch.bit_check import BitCheck
from rekindle.torch.capture import traced_as_eager
from rekindle.torch.execute import Boxed, boxed
from rekindle.torch.held import Outstanding, gradient_bytes, state_bytes, unread
from rekindle.torch.interfaces import aot_autograd, graph_breaks, keeps_graph, mark_boxed
from rekindle.torch.joint import Joint
from rekindle.torch.lower import lower
from rekindle.torch.measure import Meter
from rekindle.torch.planning import Decide, PlannedGraph, TimedPlan, plan_joint
from rekindle.torch.ranks import agree
from rekindle.torch.several_graphs import GraphsOfStep, Others, Part, first_pass

Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
NUMBER = "rekindle_plan"
"""Under this key a module's `meta` tells which graph it is a half of."""
MOST_PLANS = 64
"""Graphs that a session plans. A model whose inputs have a new shape in every step would do nothing
else.
"""


class State(Enum):
    """How far a session is."""

    BACKEND = auto()
    """Nobody tells when a step begins. Each graph is planned for the whole budget."""
    ONE_GRAPH = auto()
    """A step is one graph, as far as is known. Each is planned for the whole budget."""
    COLLECTING = auto()
    """A step is several graphs, and some have no plan yet that counts the others."""
    PLANNING = auto()
    """The graphs of the call before are planned together."""
    RUNNING = auto()
    """Every graph has a plan that counts the others."""
    FAILED = auto()
    """There are no plans that fit together. Every further call says so."""


TRANSITIONS = {
    State.BACKEND: (),
    # A graph breaks, a second graph has run, or DDP or FSDP2 will split the step.
    State.ONE_GRAPH: (State.COLLECTING,),
    # The call that collected is over, and the next one begins.
    State.COLLECTING: (State.PLANNING,),
    # Back where planning is interrupted.
    State.PLANNING: (State.RUNNING, State.FAILED, State.COLLECTING),
    # Inputs of another shape bring a graph that has no plan.
    State.RUNNING: (State.COLLECTING,),
    State.FAILED: (),
}
"""The states that may follow each."""


@dataclass
class Call:
    """What has happened since a call of the model began."""

    gradients: int = 0
    """Bytes of gradients that were there when it began."""
    runs: list[int] = field(default_factory=list)
    """The graphs that ran forward, in order."""
    captured: list[int] = field(default_factory=list)
    """The graphs that were captured, in order."""
    ran_without_gradients: bool = False
    breaks_before: dict[str, int] = field(default_factory=graph_breaks)

    @property
    def breaks(self) -> list[str]:
        """Why graphs ended where they did."""
        known = self.breaks_before
        return [why for why, count in graph_breaks().items() if count > known.get(why, 0)]


class Session:
    """The plans of one compiled model."""

    def __init__(
        self,
        settings: Settings,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        left_by_optimizer: int = 0,
        check: bool = False,
        inductor: bool = False,
    ) -> None:
        self.settings = settings
        self.optimizer = optimizer
        self.left_by_optimizer = left_by_optimizer
        """Where there was an optimizer that did not come along to this process: the bytes of its
        state.
        """
        self.check = check
        self.inductor = inductor
        self.state = State.BACKEND
        self.failure: RekindleError | None = None
        """Why the state is FAILED."""
        self.call = Call()
        self.planned: list[PlannedGraph] = []
        """One for each graph and shape, in the order of their first calls."""
        self.resident: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """The bytes of all parameters and buffers of the model, and of the gradients that a step
        makes.
        """
        self.outstanding = Outstanding()
        self._watches: dict[int, BitCheck | Meter] = {}
        """What wraps the two modules of a graph; its backward has not been compiled yet."""
        self._numbers: dict[tuple[int, bool, str], int] = {}
        """Of each graph, with what is held beside it: gradients, and parameters if it is alone."""
        self._collected: dict[int, PlannedGraph] = {}
        self._parts: dict[int, Part] = {}
        self._decided: dict[int, TimedPlan] = {}
        """The plans that count the other graphs of their step."""

    def attach(self, resident: Callable[[], tuple[int, int]], *, is_split: bool) -> None:
        """The session is that of a module, which tells when a call begins and what is resident."""
        self.resident = resident
        self.state = State.COLLECTING if is_split else State.ONE_GRAPH

    def _go(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} cannot become {state}"
        self.state = state

    @property
    def _is_split(self) -> bool:
        """Whether a step is several graphs."""
        return self.state not in (State.BACKEND, State.ONE_GRAPH)

    def _note_split(self) -> None:
        """A step turns out to be several graphs, or to have one without a plan."""
        call = self.call
        if self.state is State.ONE_GRAPH and (call.breaks or len(call.runs) > 1):
            self._go(State.COLLECTING)

    def begin(self, gradients: int) -> int:
        """A call of the model begins, while there are gradients of so many bytes. Gives the bytes
        that earlier calls still hold.
        """
        self.call = Call(gradients)
        return sum(self.outstanding.bytes().values())

    def end(self) -> None:
        """A call of the model is over."""
        self._note_split()
        if self._undecided():
            self._warn_of_first_pass()

    def _undecided(self) -> bool:
        """Whether graphs ran in this call that wait to be planned together."""
        is_collecting = self.state is State.COLLECTING
        return is_collecting and any(number not in self._decided for number in self.call.runs)

    def plan_together(self) -> bool:
        """Before a call: plans the graphs of the call before under the budget of the step, if they
        were collected. Then the model must be compiled anew, and each graph comes again.
        """
        if self.failure is not None:
            raise self.failure
        if not self._undecided():
            return False
        self._go(State.PLANNING)
        try:
            numbers, step = self._step()
            budget = self.settings.bytes_for(step.plain_peak)
            digests = "".join(part.graph.digest for part in step.parts)
            decided = agree(digests, lambda: step.plan(self.settings, budget))
        except RekindleError as error:
            self._go(State.FAILED)
            self.failure = error
            raise
        except BaseException:
            self._go(State.COLLECTING)
            raise
        self._decided.update(zip(numbers, decided, strict=True))
        self.planned.clear()
        self._go(State.RUNNING)
        return True

    def _step(self) -> tuple[list[int], GraphsOfStep]:
        """The graphs of this call, by number, and the step that they make up."""
        numbers = sorted(set(self.call.runs))
        parts = [self._part(number) for number in numbers]
        order = [numbers.index(number) for number in self.call.runs]
        return numbers, GraphsOfStep(parts, order, self.resident()[0])

    def _part(self, number: int) -> Part:
        if number not in self._parts:
            planned = self._collected[number]
            self._parts[number] = Part(
                planned.graph, planned.lowered.boundary, planned.joint.input_gradient_bytes
            )
        return self._parts[number]

    def _warn_of_first_pass(self) -> None:
        """The parts are known, and so is what the pass that collected them needs."""
        numbers, step = self._step()
        budget = self.settings.bytes_for(step.plain_peak)
        peak = step.peak([self._collected[number].plan for number in numbers])
        if peak > budget:
            warnings.warn(
                f"this step, which finds out of which {len(self.call.runs)} graphs the model is "
                f"made, may need {peak} bytes, {peak - budget} more than the budget of {budget}; "
                "from the next step on the budget holds",
                OverBudget,
                stacklevel=5,
            )

    def partition(
        self,
        joint_module: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Takes a joint graph, gives the forward and the backward of its plan."""
        self._note_split()
        joint = Joint(joint_module, num_fwd_outputs, static_lifetime_input_indices or ())
        number = self._number(joint)
        if self.state is State.RUNNING and number not in self._decided:
            self._go(State.COLLECTING)
        is_first_pass = self._is_split and number not in self._decided
        planned = plan_joint(
            joint,
            self.settings,
            self.held(joint),
            f"graph {number}",
            decide=self._first_pass(joint) if is_first_pass else None,
            given=self._decided.get(number),
        )
        self._collected[number] = planned
        self.call.captured.append(number)
        self.planned.append(planned)
        forward, backward = planned.modules.forward, planned.modules.backward
        forward.meta[NUMBER] = backward.meta[NUMBER] = number
        return forward, backward

    def _number(self, joint: Joint) -> int:
        key = self.call.gradients, self._is_split, lower(joint).graph.digest
        number = self._numbers.setdefault(key, len(self._numbers))
        if number >= MOST_PLANS:
            raise TooManyShapes(
                f"this model has been planned for {MOST_PLANS} graphs already, and its inputs have "
                "another shape again; pad or group the inputs so that they have a few shapes, or "
                "compile a model of its own for each"
            )
        return number

    def _first_pass(self, joint: Joint) -> Decide:
        """How a graph is planned while those behind it are not known: what it saves shall be
        little.
        """
        call = self.call
        before = call.runs + [number for number in call.captured if number not in call.runs]
        resident, gradients = self.resident()
        others = Others(
            resident,
            saved=sum(
                self._part(number).saved_by(self._collected[number].plan) for number in before
            ),
            gradients=gradients - sum(self._part(number).gradients for number in set(before)),
        )
        size = joint.input_gradient_bytes
        return lambda graph, boundary: first_pass(
            Part(graph, boundary, size), self.settings, others
        )

    def held(self, joint: Joint) -> dict[str, int]:
        """Bytes that lie in memory beside the graph's own."""
        # Where a step is several graphs, what others read is counted when they are planned
        # together.
        beside = {} if self._is_split else unread(joint, self.resident()[0])
        return self.held_by_others() | beside

    def held_by_others(self) -> dict[str, int]:
        """Bytes that are there whatever the graph is."""
        gradients, state = self.call.gradients, self.optimizer_bytes()
        held = {"gradients of an earlier step": gradients} if gradients else {}
        return held | ({"optimizer state": state} if state else {})

    def optimizer_bytes(self) -> int:
        """The bytes of the optimizer's state once every parameter has had a step."""
        return self.left_by_optimizer if self.optimizer is None else state_bytes(self.optimizer)

    def again(self) -> Session:
        """A session with the same settings that has planned nothing."""
        return Session(
            self.settings,
            optimizer=self.optimizer,
            left_by_optimizer=self.left_by_optimizer,
            check=self.check,
            inductor=self.inductor,
        )

    def __deepcopy__(self, _memo: Any) -> Session:
        return self.again()

    def __reduce__(self) -> tuple[Callable[..., Session], tuple[Any, ...]]:
        return _restored, (self.settings, self.check, self.inductor, self.optimizer_bytes())

    def backend(self) -> Compiler:
        """What `torch.compile` takes as its backend."""
        compiler: Compiler = aot_autograd(
            fw_compiler=self._forward,
            bw_compiler=self._backward,
            inference_compiler=self._inference,
            partition_fn=self.partition,
        )
        return compiler if self.inductor else traced_as_eager(compiler)

    def _forward(self, module: fx.GraphModule, inputs: list[Any]) -> Boxed:
        number = module.meta[NUMBER]
        planned = self._collected[number]
        saved, largest = planned.modules.saved_bytes, planned.modules.largest_saved
        run = self._executor(module, inputs, is_backward=False)
        if self.check or self.inductor:
            watch = BitCheck(planned) if self.check else Meter(planned, warn_over_budget)
            self._watches[number] = watch
            run = watch.forward(run)

        def call(arguments: list[Any]) -> Any:
            if self.state is State.BACKEND:
                self._refuse_what_is_not_counted(planned, arguments)
            self.call.runs.append(number)
            results = run(arguments)
            if largest is not None:
                self.outstanding.note(number, saved, results[largest])
            return results

        return mark_boxed(call)

    def _executor(self, module: fx.GraphModule, inputs: list[Any], *, is_backward: bool) -> Boxed:
        if not self.inductor:
            return boxed(module)
        from rekindle.torch.inductor import compile_half

        return compile_half(module, inputs, is_backward=is_backward)

    def _refuse_what_is_not_counted(self, planned: PlannedGraph, arguments: list[Any]) -> None:
        """Where nobody tells when a step begins, what a plan does not count is found when it is
        there.
        """
        waiting = self.outstanding.bytes()
        if waiting:
            raise SplitStep(
                f"a graph is to run while {len(waiting)} others wait for their backward and hold "
                f"{sum(waiting.values())} bytes, but rekindle.backend plans each graph for the "
                "whole budget: use rekindle.compile, which plans the graphs of a step together, "
                "or call backward after each forward. The graphs end here: "
                + ("; ".join(sorted(self.call.breaks)) or "unknown")
            )
        found = gradient_bytes(arguments)
        needed, budget = planned.peak + found, planned.plan.budget
        if needed > budget:
            raise LiveGradients(
                f"gradients of an earlier step hold {found} bytes, and with them the step needs "
                f"{needed} of {budget} allowed: call zero_grad(set_to_none=True) before the "
                "forward, or use rekindle.compile, which plans for them"
            )

    def _backward(self, module: fx.GraphModule, inputs: list[Any]) -> Boxed:
        run = self._executor(module, inputs, is_backward=True)
        watch = self._watches.pop(module.meta[NUMBER], None)
        if watch is not None:
            run = watch.backward(run)

        def call(arguments: list[Any]) -> Any:
            _refuse_retained_graph()
            return run(arguments)

        return mark_boxed(call)

    def _inference(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        run = boxed(module)

        def call(arguments: list[Any]) -> Any:
            self.call.ran_without_gradients = True
            return run(arguments)

        return mark_boxed(call)


def _restored(settings: Settings, check: bool, inductor: bool, optimizer_bytes: int) -> Session:
    """A session that was sent to another process, or kept in a file."""
    return Session(settings, left_by_optimizer=optimizer_bytes, check=check, inductor=inductor)


def warn_over_budget(planned: PlannedGraph) -> None:
    """Says so if a step that was measured needed more than it may."""
    budget, measured = planned.plan.budget, planned.measured_peak
    if measured is not None and measured > budget:
        warnings.warn(
            f"Inductor's modules needed {measured} bytes, {measured - budget} more than the budget "
            f"of {budget}: it fuses and reorders, and its operations take scratch, which no plan "
            "foresees; lower the budget by as much, or leave inductor=True out",
            OverBudget,
            stacklevel=2,
        )


def _refuse_retained_graph() -> None:
    if keeps_graph():
        raise RetainedGraph(
            "backward(retain_graph=True) and gradients of gradients keep what the plan frees, so "
            "the budget could not hold; add up the losses and call backward once, or compute that "
            "part outside the planned module"
        )
