"""The plans of one compiled model, and how far they have come.

AOTAutograd hands a `Session` each training graph (`partition`) and runs the two modules that it
gives back. Graphs without a backward run as they are. A session is in one `State` (`states`).

A step that is one graph is planned when it is captured. Of a step that is several graphs, a first
pass collects: each is planned to hold as little as it can for those behind it, and runs. Before the
next step they are planned together (`several_graphs`), and the model is compiled anew with these
plans. Where nobody tells when a step begins (`rekindle.backend`), a second graph in a step is
refused when it is to run.

A budget that is a share is one of the largest step so far, in bytes: a smaller step, such as that
of the last batch, may use as many.

Gradients that are there when a step begins count as held: a step that finds some has a plan of its
own.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from rekindle.errors import LiveGradients, OverBudget, RekindleError, SplitStep
from rekindle.settings import Settings
from rekindle.torch.autocast import BackwardAutocast
from rekindle.torch.better_plan import BetterPlan
from rekindle.torch.capture import traced_as_eager
from rekindle.torch.effects import has_collectives
from rekindle.torch.execute import Boxed, boxed, depends_on_layout
from rekindle.torch.halves import Halves, leave_room
from rekindle.torch.held import OptimizerState, Outstanding, gradient_bytes, unread
from rekindle.torch.inductor_budget import InductorPlans
from rekindle.torch.interfaces import (
    aot_autograd,
    ends_with_return,
    is_whole,
    mark_boxed,
    take_tangents_as_they_come,
    without_modes,
)
from rekindle.torch.joint import Joint, tensors_of
from rekindle.torch.lower import Lowered, lower
from rekindle.torch.neighbours import is_larger, nearest, with_costs_of, with_same_costs
from rekindle.torch.outputs import cut_off, refusing
from rekindle.torch.planning import Cost, Decide, PlannedGraph, TimedPlan, better_than, plan_joint
from rekindle.torch.ranks import agree
from rekindle.torch.several_graphs import GraphsOfStep, Others, Part, first_pass
from rekindle.torch.stores import transfers_for, with_store
from rekindle.torch.states import TRANSITIONS, Call, State
from rekindle.torch.sums import StandIns, add_stand_ins, in_order, written_inputs
from rekindle.torch.target.saved import SavedStep
from rekindle.torch.transfers import Transfers

Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
CAPTURE = "rekindle_capture"
"""Under this key a module's `meta` tells of which captured graph it is a half."""
STEP = "planned_step"
"""The function that a call of a module begins with."""


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
        wait: bool = False,
    ) -> None:
        self.settings = settings
        self.kept = OptimizerState(optimizer, left_by_optimizer)
        self.check = check
        self.inductor = inductor
        self.wait = wait
        """Whether a step waits for the best plan that the planner finds."""
        self.given: SavedStep | None = None
        """A plan that was made elsewhere, for the one graph that a step is."""
        self.state = State.BACKEND
        self.failure: RekindleError | None = None
        """Why the state is FAILED."""
        self.call = Call()
        self.autocast = BackwardAutocast()
        self.told_compiled: set[str] = set()
        """Where the model's Python is told that it is compiled."""
        self.ends: set[str] = set()
        """Why graphs end inside a step."""
        self.largest_budget = 0
        """The bytes that the largest step so far may use."""
        self.resident: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """The bytes of all parameters and buffers of the model, and of the gradients that a step
        makes.
        """
        self.parameters: Callable[[], Iterable[torch.Tensor]] = tuple
        self._inputs: list[Any] = []
        """What the graph that is being captured is called with."""
        self.outstanding = Outstanding()
        self._under_inductor = InductorPlans() if inductor else None
        """Where Inductor runs the modules: what finds plans that hold there."""
        self._transfers: Transfers | None = None
        """What moves activations, for all graphs."""
        self._capture_numbers = itertools.count()
        self._captures: dict[int, Halves] = {}
        """Graphs whose two modules have not both been compiled yet."""
        self._numbers: dict[tuple[bool, str], int] = {}
        """Of each graph, with what is held beside it."""
        self._collected: dict[int, PlannedGraph] = {}
        self._running: dict[int, PlannedGraph] = {}
        """Those that are not to be planned again before they run, in the order of their first
        calls.
        """
        self._better: dict[int, BetterPlan] = {}
        """Plans that are being made, for graphs that run by their first ones."""
        self._halves: dict[int, list[Halves]] = {}
        """The captures of these graphs."""
        self._parts: dict[tuple[int, frozenset[int] | None], Part] = {}
        self._decided: dict[int, TimedPlan] = {}
        """The plans that count the other graphs of their step."""
        self._handed_on: dict[int, set[int]] = {}
        """Which of the values that these graphs hand out nobody holds in their backward."""

    @property
    def is_backend(self) -> bool:
        """Whether `torch.compile` captured the steps before anything here was asked."""
        return self.state is State.BACKEND

    @property
    def planned(self) -> list[PlannedGraph]:
        """One for each graph and shape, in the order of their first calls."""
        return list(self._running.values())

    def attach(
        self,
        resident: Callable[[], tuple[int, int]],
        *,
        is_split: bool,
        parameters: Callable[[], Iterable[torch.Tensor]] = tuple,
    ) -> None:
        """The session is that of a module with `parameters`, which tells when a call begins and
        what is resident.
        """
        self.resident, self.parameters = resident, parameters
        self.state = State.COLLECTING if is_split else State.ONE_GRAPH

    def _go(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} cannot become {state}"
        self.state = state

    @property
    def _is_split(self) -> bool:
        """Whether a step is several graphs."""
        return self.state not in (State.BACKEND, State.ONE_GRAPH)

    def _note_split(self) -> None:
        """A step turns out to be several graphs."""
        call = self.call
        if self.state is State.ONE_GRAPH and (call.breaks or len(call.runs) > 1):
            self._go(State.COLLECTING)

    def begin(self, gradients: int) -> int:
        """A call of the model begins, while there are gradients of so many bytes. Gives the bytes
        that earlier calls still hold.
        """
        self.call = Call(gradients)
        waiting = self.outstanding.bytes()
        for number in [number for number in self._better if number not in waiting]:
            self._take_better(number)
        return sum(waiting.values())

    def _take_better(self, number: int) -> None:
        """Between two steps, a better plan takes the place of the first one if it is there."""
        better = self._better[number]
        better.calls += 1
        if not better.is_due():
            return
        decided, halves = better.take(), self._halves.pop(number)
        del self._better[number]
        if decided is None:
            return
        known = self._collected[number]
        planned = plan_joint(known.joint, self.settings, known.lowered, given=decided)
        planned.seconds += known.seconds
        if all(half.has_room(planned) for half in halves):
            self._collected[number] = self._running[number] = planned
            for half in halves:
                half.put(number, planned)

    def adapt(self, captures: Iterable[Halves]) -> bool:
        """Before a call: lets what was captured while something else was in memory run by plans
        that count what is there in this call. False if it must be captured again.
        """
        others = [half for half in captures if half.numbers.get(self._beside()) != half.number]
        if not others:
            return True
        is_fixed = self.check or self.inductor or self.given is not None
        if is_fixed or self.state is not State.ONE_GRAPH:
            return False
        waiting = self.outstanding.bytes()
        return all(half.number not in waiting and self._turn(half) for half in others)

    def _turn(self, half: Halves) -> bool:
        """Lets a captured graph run by a plan that counts what is in memory in this call."""
        beside = self._beside()
        known = half.numbers.get(beside)
        if known is not None and half.is_run_by(known):
            return True
        if known is not None:
            planned = self._collected[known]
        else:
            # What is made here has no contents, as in a capture: who measures shall not count it.
            with without_modes():
                known, lowered = self._lower(half.planned.joint)
                planned = self._plan(known, half.planned.joint, lowered, half.planned)
        if not half.has_room(planned):
            return False
        half.is_run_by(known)
        half.replace(planned)
        half.number = half.numbers[beside] = known
        self._collected[known] = self._running[known] = planned
        if planned.decided.better:
            self._look_for_better(half)
        return True

    def end(self, result: Any) -> None:
        """A call of the model is over, and returns this."""
        self.call.flow.end(result)
        self.call.stand_ins.clear()
        self._note_split()
        if self._undecided():
            self._warn_of_first_pass()

    def forget(self, numbers: Iterable[int]) -> None:
        """Drops what is known of some graphs, which will not run again as they are."""
        gone = set(numbers)
        for number in gone:
            for known in (self._collected, self._running, self._decided, self._handed_on):
                known.pop(number, None)
            self._better.pop(number, None)
            self._halves.pop(number, None)
        self._parts = {key: part for key, part in self._parts.items() if key[0] not in gone}
        self._numbers = {key: n for key, n in self._numbers.items() if n not in gone}

    def _allowed(self, plain_peak: int) -> int:
        """The budget in bytes, for a step whose plain peak is known. A share is one of the largest
        step so far.
        """
        self.largest_budget = self._settings_now().bytes_for(plain_peak)
        return self.largest_budget

    def _settings_now(self) -> Settings:
        return self.settings.with_at_least(self.largest_budget)

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
            budget = self._allowed(step.plain_peak)
            digests = " ".join(part.graph.digest for part in step.parts)
            decided = agree(
                f"{digests} planned together in {budget} with {self.settings}",
                lambda: step.plan(with_store(self.settings), budget),
                has_collectives=any(
                    has_collectives(self._collected[number].joint.graph) for number in numbers
                ),
            )
        except RekindleError as error:
            self._go(State.FAILED)
            self.failure = error
            raise
        except BaseException:
            self._go(State.COLLECTING)
            raise
        self._decided.update(zip(numbers, decided, strict=True))
        self._handed_on.update((number, self._handed_on_by(number)) for number in numbers)
        self._running.clear()
        self._go(State.RUNNING)
        return True

    def _step(self) -> tuple[list[int], GraphsOfStep]:
        """The graphs of this call, by number, and the step that they make up."""
        numbers = sorted({run.number for run in self.call.flow.runs})
        parts = [self._part(number, self._handed_on_by(number)) for number in numbers]
        runs = [replace(run, number=numbers.index(run.number)) for run in self.call.flow.runs]
        return numbers, GraphsOfStep(parts, runs, self.resident()[0])

    def _handed_on_by(self, number: int) -> set[int]:
        """Which of the values that a graph hands out no caller of it in this call gets."""
        runs = [run.handed_on for run in self.call.flow.runs if run.number == number]
        return set.intersection(*runs) if runs else set()

    def _part(self, number: int, handed_on: set[int] | None = None) -> Part:
        """A graph as a part of its step; `handed_on` where it is known what becomes of the values
        that it hands out.
        """
        key = number, None if handed_on is None else frozenset(handed_on)
        if key not in self._parts:
            planned = self._collected[number]
            graph = planned.graph
            if handed_on:
                nodes = graph.nodes
                lowered = lower(planned.joint, graph.name, self.held(planned.joint), handed_on)
                graph = lowered.graph.with_times([node.time for node in nodes])
                graph = graph.with_workspaces([node.workspace for node in nodes])
            self._parts[key] = Part(
                graph,
                planned.lowered.boundary,
                planned.joint.input_gradient_bytes,
                with_store(self.settings).store,
            )
        return self._parts[key]

    def _warn_of_first_pass(self) -> None:
        """The parts are known, and so is what the pass that collected them needs."""
        numbers, step = self._step()
        budget = self._allowed(step.plain_peak)
        peak = step.peak([self._collected[number].plan for number in numbers])
        if peak > budget:
            warnings.warn(
                f"this step, which finds out of which {len(self.call.runs)} graphs the model is "
                f"made, may need {peak} bytes, {peak - budget} more than the budget of {budget}; "
                "from the next step on the budget holds",
                OverBudget,
                stacklevel=3,
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
        if self.call.before_capture is not None:
            self.call.before_capture()
        static = static_lifetime_input_indices or ()
        joint = Joint(joint_module, num_fwd_outputs, static, self._inputs)
        if not self._is_split:
            self.kept.note(joint, self.parameters())
        if self._transfers is None:
            devices = [t.device for node in joint.primals for t in tensors_of(node)]
            self._transfers = transfers_for(self.settings, devices)
        number, lowered = self._lower(joint)
        if self.state is State.RUNNING and number not in self._decided:
            self._go(State.COLLECTING)
        planned = self._plan(number, joint, lowered)
        self._collected[number] = self._running[number] = planned
        halves = Halves(
            number,
            planned,
            self.autocast,
            beside=self._beside(),
            check=self.check,
            transfers=self._transfers,
        )
        self.call.captured.append(halves)
        capture = next(self._capture_numbers)
        self._captures[capture] = halves
        if planned.decided.better:
            leave_room(planned)
            self._look_for_better(halves)
        forward, backward = planned.modules.forward, planned.modules.backward
        forward.meta[CAPTURE] = backward.meta[CAPTURE] = capture
        return forward, backward

    def _look_for_better(self, halves: Halves) -> None:
        """A graph runs by its first plan: a better one is looked for."""
        number, planned, settings = halves.number, halves.planned, self._settings_now()
        self._halves.setdefault(number, []).append(halves)
        if number not in self._better:
            self._better[number] = BetterPlan(
                planned.decided, lambda progress: better_than(planned, settings, progress)
            )

    def _lower(self, joint: Joint) -> tuple[int, Lowered]:
        """The number of a graph, and the graph to plan."""
        next_number = max(self._numbers.values(), default=-1) + 1
        held = self.held(joint)
        lowered = lower(joint, f"graph {next_number}", held)
        number = self._numbers.setdefault((self._is_split, lowered.graph.digest), next_number)
        if number != next_number:
            handed_on = self._handed_on.get(number, set())
            lowered = lower(joint, f"graph {number}", held, handed_on)
        return number, lowered

    def _plan(
        self, number: int, joint: Joint, lowered: Lowered, known: PlannedGraph | None = None
    ) -> PlannedGraph:
        """The plan of a graph. Its costs are those of the same one that is `known` with something
        else in memory beside it, if one is.
        """
        if self.given is not None:
            self.given.refuse_another(lowered.graph)
            decided = TimedPlan(self.given.graph, self.given.plan, from_disk=True)
            if self._under_inductor is not None:
                return self._under_inductor.take(joint, lowered, decided)
            return plan_joint(joint, self.settings, lowered, given=decided)
        given = self._decided.get(number)
        if given is not None:
            if self._under_inductor is not None:
                return self._under_inductor.hold(joint, self.settings, lowered, given)
            return plan_joint(joint, self.settings, lowered, given=given)
        if self._is_split:
            return plan_joint(joint, self.settings, lowered, decide=self._first_pass(joint))
        near = nearest(lowered, self._running.values())
        is_known = near is not None and is_larger(near, lowered)
        cost: Cost | None = None
        if near is not None and is_known:
            cost = lambda: (with_costs_of(near, lowered), near.decided.guessed)  # noqa: E731
        if known is not None:
            cost = lambda: (with_same_costs(known, lowered), known.decided.guessed)  # noqa: E731
        if self._under_inductor is not None:
            planned = self._under_inductor.plan(joint, self._settings_now(), lowered, cost)
        else:
            planned = plan_joint(
                joint,
                self._settings_now(),
                lowered,
                cost=cost,
                start=near.plan if near is not None else None,
                is_urgent=not self.wait and self.state is State.ONE_GRAPH,
            )
        self.largest_budget = planned.budget
        return planned

    def _first_pass(self, joint: Joint) -> Decide:
        """How a graph is planned while those behind it are not known: what it saves shall be
        little.
        """
        call = self.call
        captured = [half.number for half in call.captured]
        before = call.runs + [number for number in captured if number not in call.runs]
        resident, gradients = self.resident()
        # As they are planned by now: the plan of a known step may drop what is handed on.
        parts = {number: self._part(number, self._handed_on.get(number)) for number in before}
        others = Others(
            resident,
            saved=sum(parts[number].saved_by(self._collected[number].plan) for number in before),
            gradients=gradients - sum(part.gradients for part in parts.values()),
        )
        size = joint.input_gradient_bytes
        settings = with_store(self.settings)
        return lambda graph, boundary: first_pass(
            Part(graph, boundary, size, settings.store), settings, others
        )

    def held(self, joint: Joint) -> dict[str, int]:
        """Bytes that lie in memory beside the graph's own."""
        # Where a step is several graphs, what others read is counted when they are planned
        # together.
        beside = {} if self._is_split else unread(joint, self.resident()[0])
        return self.held_by_others() | beside

    def _beside(self) -> tuple[int, int]:
        """What tells what is in memory beside a graph: the bytes of gradients, and of how many
        parameters an optimizer has no state.
        """
        return self.call.gradients, self.kept.left_out

    def held_by_others(self) -> dict[str, int]:
        """Bytes that are there whatever the graph is."""
        gradients, state = self.call.gradients, self.kept.bytes(is_split=self._is_split)
        held = {"gradients of an earlier step": gradients} if gradients else {}
        return held | ({"optimizer state": state} if state else {})

    def again(self) -> Session:
        """A session with the same settings that has planned nothing."""
        session = Session(
            self.settings,
            optimizer=self.kept.optimizer,
            left_by_optimizer=self.kept.left,
            check=self.check,
            inductor=self.inductor,
            wait=self.wait,
        )
        session.given = self.given
        return session

    @property
    def costs(self) -> str:
        """From which times the plans are made, in words."""
        if self.given is not None:
            return self.given.costs
        measured = self.settings.profile == "measure"
        return "measured on this device" if measured else "a cost model, a prediction"

    def __deepcopy__(self, _memo: Any) -> Session:
        return self.again()

    def __reduce__(self) -> tuple[Callable[..., Session], tuple[Any, ...]]:
        options = self.check, self.inductor, self.wait
        state = self.kept.bytes(is_split=self._is_split)
        return _restored, (self.settings, *options, state, self.given)

    def backend(self) -> Compiler:
        """What `torch.compile` takes as its backend."""
        capture: Compiler = aot_autograd(
            fw_compiler=self._forward,
            bw_compiler=self._backward,
            inference_compiler=self._inference,
            partition_fn=self.partition,
        )

        def compiler(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            if self.state is State.ONE_GRAPH and not is_whole(module, STEP):
                self._go(State.COLLECTING)
            unread, added_up = self._cut_off(module), self._stand_ins(module)
            is_alone, written = not self._is_split or self.inductor, written_inputs(module)
            self._inputs = inputs
            try:
                run = capture(module, inputs)
            finally:
                self._inputs = []
            run = refusing(run, unread) if unread else run
            return run if is_alone else in_order(run, added_up, written, self._call_stand_ins)

        return compiler if self.inductor else traced_as_eager(compiler, self.autocast)

    def _cut_off(self, module: fx.GraphModule) -> list[int]:
        """Takes what nobody differentiates out of a graph that ends a call; gives the positions of
        these outputs.
        """
        is_last = self.state is State.BACKEND or ends_with_return(module, STEP)
        return cut_off(module) if is_last and self.settings.differentiated == "loss" else []

    def _stand_ins(self, module: fx.GraphModule) -> list[int]:
        """Adds stand-ins to a graph behind which others may read what it reads."""
        is_followed = self._is_split and not ends_with_return(module, STEP)
        return add_stand_ins(module) if is_followed and not self.inductor else []

    def _call_stand_ins(self) -> StandIns:
        return self.call.stand_ins

    def _forward(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        halves = self._captures[module.meta[CAPTURE]]
        if not self.inductor and not depends_on_layout(halves.planned.joint.tangents):
            take_tangents_as_they_come()
        run = halves.forward(module)

        def call(arguments: list[Any]) -> Any:
            if self.state is State.BACKEND:
                self._refuse_what_is_not_counted(halves.planned, arguments)
            self.call.runs.append(halves.number)
            joint = halves.planned.joint
            taken: tuple[list[Any], list[Any]] = [], []
            pairs = zip(joint.primals, joint.gradients, arguments, strict=True)
            for node, gradient, value in pairs:
                if node not in joint.parameters:
                    taken[gradient is None].append(value)
            taking = self.call.flow.begin(halves.number, *taken)
            # What is taken shall be dropped when it has been used.
            del taken, pairs, value
            results = run(arguments)
            given = results[len(joint.new_contents) : len(joint.forward_outputs)]
            self.call.flow.give(taking, given)
            del given
            modules = halves.planned.modules
            if modules.largest_saved is not None:
                saved = results[modules.largest_saved]
                self.outstanding.note(halves.number, modules.saved_bytes, saved)
            return results

        return mark_boxed(call)

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
        needed, budget = planned.peak + found, planned.budget
        if needed > budget:
            raise LiveGradients(
                f"gradients of an earlier step hold {found} bytes, and with them the step needs "
                f"{needed} of {budget} allowed: call zero_grad(set_to_none=True) before the "
                "forward, or use rekindle.compile, which plans for them"
            )

    def _backward(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        return self._captures.pop(module.meta[CAPTURE]).backward(module)

    def _inference(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        run = boxed(module)

        def call(arguments: list[Any]) -> Any:
            self.call.ran_without_gradients = True
            return run(arguments)

        return mark_boxed(call)


def _restored(
    settings: Settings,
    check: bool,
    inductor: bool,
    wait: bool,
    optimizer_bytes: int,
    given: SavedStep | None = None,
) -> Session:
    """A session that was sent to another process, or kept in a file."""
    session = Session(
        settings, left_by_optimizer=optimizer_bytes, check=check, inductor=inductor, wait=wait
    )
    session.given = given
    return session
