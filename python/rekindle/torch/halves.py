"""The two functions of a captured graph, as AOTAutograd calls them: the modules of its plan, with
what watches over the first step.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import fx

from rekindle.errors import OverBudget, RetainedGraph
from rekindle.torch.autocast import BackwardAutocast
from rekindle.torch.bit_check import BitCheck
from rekindle.torch.execute import Boxed, boxed
from rekindle.torch.interfaces import keeps_graph, mark_boxed
from rekindle.torch.measure import Meter
from rekindle.torch.planning import PlannedGraph


class Halves:
    """A captured graph, and how its two modules run."""

    def __init__(
        self,
        number: int,
        planned: PlannedGraph,
        autocast: BackwardAutocast,
        *,
        check: bool = False,
        inductor: bool = False,
    ) -> None:
        self.number = number
        """Which of the session's graphs it is."""
        self.planned = planned
        self.autocast = autocast
        self.inductor = inductor
        self._watch: BitCheck | Meter | None = None
        if check:
            self._watch = BitCheck(planned)
        elif inductor:
            self._watch = Meter(planned, warn_over_budget)

    def forward(self, module: fx.GraphModule, inputs: list[Any]) -> Boxed:
        """Runs the forward."""
        run = self._executor(module, inputs, is_backward=False)
        return run if self._watch is None else self._watch.forward(run)

    def backward(self, module: fx.GraphModule, inputs: list[Any]) -> Boxed:
        """Runs the backward."""
        run = self._executor(module, inputs, is_backward=True)
        if self._watch is not None:
            run = self._watch.backward(run)

        def call(arguments: list[Any]) -> Any:
            _refuse_retained_graph()
            with self.autocast.around():
                return run(arguments)

        return mark_boxed(call)

    def _executor(self, module: fx.GraphModule, inputs: list[Any], *, is_backward: bool) -> Boxed:
        if not self.inductor:
            return boxed(module)
        from rekindle.torch.inductor import compile_half

        return compile_half(module, inputs, is_backward=is_backward)


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
