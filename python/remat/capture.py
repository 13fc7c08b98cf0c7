"""`torch.compile` → joint graphs, and planned modules back.

A `Session` belongs to one compiled model. AOTAutograd hands it each training graph (`partition`) and runs the two modules that
it gives back. Graphs without a backward run as they are.

A step that is one graph is planned when it is captured. Of a step that is several graphs, the first pass collects: each is planned to use as
little as it can, and runs. Before the next step they are planned together (`plan_together`), and the model is compiled anew with these plans.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from remat.checking import Check
from remat.errors import RetainedGraph, TooManyShapes, UnplannedPart
from remat.execute import Boxed, boxed
from remat.joint import Joint
from remat.lower import lower
from remat.optimizer import state_bytes
from remat.planning import Found, Planned, Settings, plan_joint
from remat.ranks import agree
from remat.together import Part, Step, use_least

Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
NUMBER = "remat_plan"
"""Under this key a module's `meta` tells which graph it is a half of."""
MOST_PLANS = 64
"""Graphs that a session plans. A model whose inputs have a new shape in every step would do nothing else."""


class Session:
    """The plans of one compiled model."""

    def __init__(
        self,
        settings: Settings,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        check: bool = False,
    ) -> None:
        self.settings = settings
        self.optimizer = optimizer
        self.check = check
        self.planned: list[Planned] = []
        """One for each graph and shape, in the order of their first calls."""
        self.checks: dict[int, Check] = {}
        """Comparisons whose backward has not been compiled yet."""
        self.resident: Callable[[], int] = lambda: 0
        """The bytes of all parameters and buffers of the model."""
        self.collects = False
        """Whether somebody will call `plan_together` after a first pass."""
        self.is_split = False
        """Whether a step is several graphs."""
        self.runs: list[int] = []
        """The graphs that ran forward since `begin`, in order."""
        self.ran_without_gradients = False
        self.breaks: list[str] = []
        """Why graphs ended where they did, since `begin`."""
        self._known_breaks: dict[str, int] = dict(counters["graph_break"])
        self._numbers: dict[str, int] = {}
        self._collected: dict[int, Planned] = {}
        self._decided: dict[int, Found] = {}

    def begin(self) -> None:
        """A call of the model begins."""
        self.runs, self.breaks, self.ran_without_gradients = [], [], False
        self._known_breaks = dict(counters["graph_break"])

    def end(self) -> None:
        """A call of the model is over."""
        self._note_breaks()
        self.is_split |= len(self.runs) > 1

    def _note_breaks(self) -> None:
        known = self._known_breaks
        self.breaks = [why for why, count in counters["graph_break"].items() if count > known.get(why, 0)]
        self.is_split |= bool(self.breaks)

    @property
    def is_undecided(self) -> bool:
        """Whether the call before was a first pass, whose graphs wait to be planned together."""
        return self.is_split and any(number not in self._decided for number in self.runs)

    def plan_together(self) -> None:
        """Plans the graphs of the call before under the budget of the step."""
        numbers = sorted(set(self.runs))
        collected = [self._collected[number] for number in numbers]
        parts = [Part(planned.graph, planned.lowered.boundary) for planned in collected]
        step = Step(parts, [numbers.index(number) for number in self.runs], self.resident())
        budget = self.settings.bytes_for_step(parts[0].graph, step.plain_peak)
        graphs = "".join(part.graph.to_json() for part in parts)
        decided = agree(graphs, lambda: step.plan(self.settings, budget))
        self._decided.update(zip(numbers, decided, strict=True))
        # The model is compiled anew, and each graph comes again.
        self.planned.clear()

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
        joint = Joint(joint_module, num_fwd_outputs, static_lifetime_input_indices or ())
        text = lower(joint).text
        number = self._numbers.setdefault(text, len(self._numbers))
        if number >= MOST_PLANS:
            raise TooManyShapes(
                f"this model has been planned for {MOST_PLANS} graphs already, and its inputs have another shape again; "
                "pad or group the inputs so that they have a few shapes, or compile a model of its own for each"
            )
        if self.is_split and not self.collects:
            warnings.warn(
                "the step is several graphs, and each is planned for the whole budget: use remat.compile, which plans them together",
                UnplannedPart,
                stacklevel=2,
            )
        planned = plan_joint(
            joint,
            self.settings,
            self.held(),
            f"graph {number}",
            decide=use_least if self.is_split and self.collects else None,
            given=self._decided.get(number),
        )
        self._collected[number] = planned
        self.planned.append(planned)
        forward, backward = planned.modules()
        forward.meta[NUMBER] = backward.meta[NUMBER] = number
        return forward, backward

    def held(self) -> dict[str, int]:
        """Bytes that lie in memory beside the step's own."""
        if self.optimizer is None:
            return {}
        return {"optimizer state": state_bytes(self.optimizer)}

    def backend(self) -> Compiler:
        """What `torch.compile` takes as its backend."""
        compiler: Compiler = aot_autograd(
            fw_compiler=self._forward, bw_compiler=self._backward, inference_compiler=self._inference, partition_fn=self.partition
        )
        return compiler

    def _forward(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        number, run = module.meta[NUMBER], boxed(module)
        if self.check:
            self.checks[number] = Check(self._collected[number])
            run = self.checks[number].forward(run)

        def call(arguments: list[Any]) -> Any:
            self.runs.append(number)
            return run(arguments)

        return _as_boxed(call)

    def _backward(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        run = boxed(module)
        if self.check:
            run = self.checks.pop(module.meta[NUMBER]).backward(run)

        def call(arguments: list[Any]) -> Any:
            _refuse_retained_graph()
            return run(arguments)

        return _as_boxed(call)

    def _inference(self, module: fx.GraphModule, _inputs: list[Any]) -> Boxed:
        run = boxed(module)

        def call(arguments: list[Any]) -> Any:
            self.ran_without_gradients = True
            return run(arguments)

        return _as_boxed(call)


def _refuse_retained_graph() -> None:
    if torch._C._autograd._get_current_graph_task_keep_graph():
        raise RetainedGraph(
            "backward(retain_graph=True) and gradients of gradients keep what the plan frees, so the budget could not hold; "
            "add up the losses and call backward once, or compute that part outside the planned module"
        )


def _as_boxed(call: Boxed) -> Boxed:
    call._boxed_call = True  # type: ignore[attr-defined]
    return call
