"""`torch.compile` → joint graphs, and planned modules back.

A `Session` belongs to one compiled model. AOTAutograd hands it each training graph (`partition`)
and runs the two modules that it gives back. Graphs without a backward run as they are.

A step that is one graph is planned when it is captured. Of a step that is several graphs, the first
pass collects: each is planned to hold as little as it can for those behind it, and runs. Before the
next step they are planned together (`plan_together`), and the model is compiled anew with these
plans. Where nobody tells when a step begins (`rekindle.backend`), a second graph in a step is
refused when it is to run.

Gradients that are there when a step begins count as held: a step that finds some has a plan of its
own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from rekindle.checking import Check
from rekindle.errors import LiveGradients, OverBudget, RetainedGraph, SplitStep, TooManyShapes
from rekindle.execute import Boxed, as_boxed, boxed
from rekindle.joint import Joint
from rekindle.lower import lower
from rekindle.metering import Meter
from rekindle.optimizer import state_bytes
from rekindle.outstanding import UNREAD, Outstanding, gradient_bytes, unread_bytes
from rekindle.planning import Decide, Found, Planned, Settings, plan_joint
from rekindle.ranks import agree
from rekindle.sparse import refuse_sparse
from rekindle.together import Others, Part, Step, first_pass

Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
NUMBER = "rekindle_plan"
"""Under this key a module's `meta` tells which graph it is a half of."""
MOST_PLANS = 64
"""Graphs that a session plans. A model whose inputs have a new shape in every step would do nothing
else.
"""


class Session:
    """The plans of one compiled model."""

    def __init__(
        self,
        settings: Settings,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        check: bool = False,
        inductor: bool = False,
    ) -> None:
        self.settings = settings
        self.optimizer = optimizer
        self.left_by_optimizer = 0
        """Where there was an optimizer that did not come along to this process: the bytes of its
        state.
        """
        self.check = check
        self.inductor = inductor
        self.planned: list[Planned] = []
        """One for each graph and shape, in the order of their first calls."""
        self.resident: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """The bytes of all parameters and buffers of the model, and of the gradients that a step
        makes.
        """
        self.collects = False
        """Whether somebody tells when a call begins, and calls `plan_together` after a first pass.
        """
        self.is_split = False
        """Whether a step is several graphs."""
        self.runs: list[int] = []
        """The graphs that ran forward since `begin`, in order."""
        self.ran_without_gradients = False
        self.breaks: list[str] = []
        """Why graphs ended where they did, since `begin`."""
        self.gradients = 0
        """Bytes of gradients that were there at `begin`."""
        self.outstanding = Outstanding()
        self._watches: dict[int, Check | Meter] = {}
        """What wraps the two modules of a graph; its backward has not been compiled yet."""
        self._known_breaks: dict[str, int] = dict(counters["graph_break"])
        self._captured: list[int] = []
        """The graphs that were captured since `begin`, in order."""
        self._numbers: dict[tuple[int, bool, str], int] = {}
        """Of each graph, with what is held beside it: gradients, and parameters if it is alone."""
        self._collected: dict[int, Planned] = {}
        self._parts: dict[int, Part] = {}
        self._decided: dict[int, Found] = {}

    def begin(self, gradients: int) -> int:
        """A call of the model begins, while there are gradients of so many bytes. Gives the bytes
        that earlier calls still hold.
        """
        self.runs, self.breaks, self.ran_without_gradients = [], [], False
        self.gradients, self._captured = gradients, []
        self._known_breaks = dict(counters["graph_break"])
        return sum(self.outstanding.bytes().values())

    def end(self) -> None:
        """A call of the model is over."""
        self._note_breaks()
        self.is_split |= len(self.runs) > 1
        if self.is_undecided:
            self._warn_of_first_pass()

    def _note_breaks(self) -> None:
        known = self._known_breaks
        self.breaks = [
            why for why, count in counters["graph_break"].items() if count > known.get(why, 0)
        ]
        self.is_split |= bool(self.breaks) and self.collects

    @property
    def is_undecided(self) -> bool:
        """Whether the call before was a first pass, whose graphs wait to be planned together."""
        return self.is_split and any(number not in self._decided for number in self.runs)

    def plan_together(self) -> None:
        """Plans the graphs of the call before under the budget of the step."""
        numbers, step = self._step()
        budget = self.settings.bytes_for_step(step.parts[0].graph, step.plain_peak)
        graphs = "".join(part.graph.to_json() for part in step.parts)
        decided = agree(graphs, lambda: step.plan(self.settings, budget))
        self._decided.update(zip(numbers, decided, strict=True))
        # The model is compiled anew, and each graph comes again.
        self.planned.clear()

    def _step(self) -> tuple[list[int], Step]:
        """The graphs of the call before, by number, and the step that they make up."""
        numbers = sorted(set(self.runs))
        parts = [self._part(number) for number in numbers]
        return numbers, Step(
            parts, [numbers.index(number) for number in self.runs], self.resident()[0]
        )

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
        budget = self.settings.bytes_for_step(step.parts[0].graph, step.plain_peak)
        peak = step.peak([self._collected[number].plan for number in numbers])
        if peak > budget:
            warnings.warn(
                f"this step, which finds out of which {len(self.runs)} graphs the model is made, may need {peak} bytes, "
                f"{peak - budget} more than the budget of {budget}; from the next step on the budget holds",
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
        self._note_breaks()
        refuse_sparse(joint_module.graph)
        joint = Joint(joint_module, num_fwd_outputs, static_lifetime_input_indices or ())
        number = self._number(joint)
        planned = plan_joint(
            joint,
            self.settings,
            self.held(joint),
            f"graph {number}",
            decide=self._first_pass(joint)
            if self.is_split and number not in self._decided
            else None,
            given=self._decided.get(number),
        )
        self._collected[number] = planned
        self._captured.append(number)
        self.planned.append(planned)
        forward, backward = planned.modules()
        forward.meta[NUMBER] = backward.meta[NUMBER] = number
        return forward, backward

    def _number(self, joint: Joint) -> int:
        key = self.gradients, self.is_split, lower(joint).text
        number = self._numbers.setdefault(key, len(self._numbers))
        if number >= MOST_PLANS:
            raise TooManyShapes(
                f"this model has been planned for {MOST_PLANS} graphs already, and its inputs have another shape again; "
                "pad or group the inputs so that they have a few shapes, or compile a model of its own for each"
            )
        return number

    def _first_pass(self, joint: Joint) -> Decide:
        """How a graph is planned while those behind it are not known: what it saves shall be
        little.
        """
        before = self.runs + [number for number in self._captured if number not in self.runs]
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
        unread = 0 if self.is_split else unread_bytes(joint, self.resident()[0])
        return self.held_by_others() | ({UNREAD: unread} if unread else {})

    def held_by_others(self) -> dict[str, int]:
        """Bytes that are there whatever the graph is."""
        held = {"gradients of an earlier step": self.gradients} if self.gradients else {}
        state = self.optimizer_bytes()
        return held | ({"optimizer state": state} if state else {})

    def optimizer_bytes(self) -> int:
        """The bytes of the optimizer's state once every parameter has had a step."""
        return self.left_by_optimizer if self.optimizer is None else state_bytes(self.optimizer)

    def again(self) -> Session:
        """A session with the same settings that has planned nothing."""
        session = Session(
            self.settings, optimizer=self.optimizer, check=self.check, inductor=self.inductor
        )
        session.left_by_optimizer = self.left_by_optimizer
        return session

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
        return compiler

    def _forward(self, module: fx.GraphModule, inputs: list[Any]) -> Boxed:
        number = module.meta[NUMBER]
        planned = self._collected[number]
        saved, largest = planned.saved, planned.split.largest_saved
        run = self._executor(module, inputs, is_backward=False)
        if self.check or self.inductor:
            self._watches[number] = (
                Check(planned) if self.check else Meter(planned, warn_over_budget)
            )
            run = self._watches[number].forward(run)

        def call(arguments: list[Any]) -> Any:
            if not self.collects:
                self._refuse_what_is_not_counted(planned, arguments)
            self.runs.append(number)
            results = run(arguments)
            if largest is not None:
                self.outstanding.note(number, saved, results[largest])
            return results

        return as_boxed(call)

    def _executor(self, module: fx.GraphModule, inputs: list[Any], *, is_backward: bool) -> Boxed:
        if not self.inductor:
            return boxed(module)
        from rekindle.inductor import compile_half

        return compile_half(module, inputs, is_backward=is_backward)

    def _refuse_what_is_not_counted(self, planned: Planned, arguments: list[Any]) -> None:
        """Where nobody tells when a step begins, what a plan does not count is found when it is
        there.
        """
        waiting = self.outstanding.bytes()
        if waiting:
            raise SplitStep(
                f"a graph is to run while {len(waiting)} others wait for their backward and hold {sum(waiting.values())} bytes, "
                "but rekindle.backend plans each graph for the whole budget: use rekindle.compile, which plans the graphs of a step together, "
                "or call backward after each forward. The graphs end here: "
                + ("; ".join(sorted(self.breaks)) or "unknown")
            )
        found = gradient_bytes(arguments)
        if planned.peak + found > planned.plan.budget:
            raise LiveGradients(
                f"gradients of an earlier step hold {found} bytes, and with them the step needs {planned.peak + found} of {planned.plan.budget} "
                "allowed: call zero_grad(set_to_none=True) before the forward, or use rekindle.compile, which plans for them"
            )

    def _backward(self, module: fx.GraphModule, inputs: list[Any]) -> Boxed:
        run = self._executor(module, inputs, is_backward=True)
        watch = self._watches.pop(module.meta[NUMBER], None)
        if watch is not None:
            run = watch.backward(run)

        def call(arguments: list[Any]) -> Any:
            _refuse_retained_graph()
            return run(arguments)

        return as_boxed(call)

    def _inference(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        run = boxed(module)

        def call(arguments: list[Any]) -> Any:
            self.ran_without_gradients = True
            return run(arguments)

        return as_boxed(call)


def _restored(settings: Settings, check: bool, inductor: bool, optimizer_bytes: int) -> Session:
    """A session that was sent to another process, or kept in a file."""
    session = Session(settings, check=check, inductor=inductor)
    session.left_by_optimizer = optimizer_bytes
    return session


def warn_over_budget(planned: Planned) -> None:
    """Says so if a step that was measured needed more than it may."""
    budget, measured = planned.plan.budget, planned.measured_peak
    if measured is not None and measured > budget:
        warnings.warn(
            f"Inductor's modules needed {measured} bytes, {measured - budget} more than the budget of {budget}: it fuses and reorders, and its "
            "operations take scratch, which no plan foresees; lower the budget by as much, or leave inductor=True out",
            OverBudget,
            stacklevel=2,
        )


def _refuse_retained_graph() -> None:
    if torch._C._autograd._get_current_graph_task_keep_graph():
        raise RetainedGraph(
            "backward(retain_graph=True) and gradients of gradients keep what the plan frees, so the budget could not hold; "
            "add up the losses and call backward once, or compute that part outside the planned module"
        )
