"""Every error that Rekindle raises, with numbers and what to do.

All are subclasses of `RekindleError`. The planner's own are raised by the native module, which
looks them up here.
"""

from __future__ import annotations

__all__ = [
    "AnotherGraph",
    "CannotCarryOver",
    "CheckFailed",
    "CompilerMissing",
    "DoesNotFit",
    "ForeignBudget",
    "InfeasibleBudget",
    "InvalidInput",
    "LiveGradients",
    "NotDifferentiated",
    "OverBudget",
    "PlanningStopped",
    "RankMissing",
    "RanksDiffer",
    "RekindleError",
    "RetainedGraph",
    "SplitStep",
    "StoreFailed",
    "TorchMissing",
    "UnknownSize",
    "Unplanned",
    "UnplannedPart",
    "UnsupportedGraph",
    "UnsupportedOption",
    "UnsupportedTorch",
    "WrongInput",
]


class RekindleError(Exception):
    """Something that Rekindle cannot do, and why."""


class InvalidInput(RekindleError, ValueError):
    """A graph, plan, budget or option that makes no sense."""


class InfeasibleBudget(RekindleError):
    """No plan fits in the budget."""

    def __init__(self, message: str, budget: int, smallest: int, floor: int, tightest: str) -> None:
        super().__init__(message)
        #: What the step may use, in bytes.
        self.budget = budget
        #: The smallest budget for which a plan is known.
        self.smallest = smallest
        #: No plan at all goes below this.
        self.floor = floor
        #: The node, or the moment, that gives the floor.
        self.tightest = tightest

    def __reduce__(self) -> tuple[type[InfeasibleBudget], tuple[str, int, int, int, str]]:
        return type(self), (str(self), self.budget, self.smallest, self.floor, self.tightest)


class PlanningStopped(RekindleError):
    """The time limit came before a plan under the budget was found."""


class UnsupportedGraph(RekindleError):
    """A captured graph with something in it that cannot be planned."""


class UnknownSize(UnsupportedGraph):
    """A captured graph with a size in it that depends on values, and is known only when it runs."""


class UnsupportedOption(RekindleError, NotImplementedError):
    """An option that this build cannot honour."""


class TorchMissing(RekindleError, ImportError):
    """PyTorch is needed and not installed."""


class CheckFailed(RekindleError):
    """A planned step gave other numbers than the plain one."""


class UnsupportedTorch(RekindleError, ImportError):
    """A version of PyTorch that Rekindle does not know."""


class ForeignBudget(RekindleError):
    """PyTorch's own activation budget is set, and would recompute behind the plan's back."""


class CompilerMissing(RekindleError):
    """Inductor is asked for, and there is nothing that it could compile with."""


class LiveGradients(RekindleError):
    """Gradients of an earlier step are still there, and the plan has no room for them."""


class SplitStep(RekindleError):
    """A step of several graphs, where a plan can be made for one only."""


class StoreFailed(RekindleError, OSError):
    """A store that activations are moved to cannot take or give them."""


class NotDifferentiated(RekindleError):
    """A gradient of a value that the plan does not differentiate."""


class WrongInput(RekindleError, RuntimeError):
    """Arguments that the module does not run with."""


class Unplanned(RekindleError):
    """A call of which no part ran by a plan."""


class RetainedGraph(RekindleError):
    """A backward that keeps its graph, or is itself differentiated: what the plan frees would be
    needed again.
    """


class RanksDiffer(RekindleError):
    """The processes of one training run hold different graphs, so that no plan suits all."""


class RankMissing(RekindleError):
    """A process of the training run has not come to where all decide together."""


class OverBudget(UserWarning):
    """A step that needs, or needed, more than its budget."""


class UnplannedPart(UserWarning):
    """A part of the model runs outside the planned graphs."""


class CannotCarryOver(UnsupportedGraph):
    """A step that runs on a device in another way than here, and no rule says how."""


class AnotherGraph(RekindleError):
    """A plan that was made for another step than the one that is to run."""


class DoesNotFit(RekindleError):
    """A device's allocator would need more memory than there is."""

    def __init__(self, message: str, smallest: int | None = None) -> None:
        super().__init__(message)
        #: The smallest budget for which a plan is known, if it was looked for.
        self.smallest = smallest

    def __reduce__(self) -> tuple[type[DoesNotFit], tuple[str, int | None]]:
        return type(self), (str(self), self.smallest)
