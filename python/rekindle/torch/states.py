"""How far a session is, and what has happened in a call of it.

A step that is one graph is planned when it is captured; one that is several is collected, planned
together and captured anew. `TRANSITIONS` says which state may follow which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from rekindle.torch.flow import Flow
from rekindle.torch.halves import Halves
from rekindle.torch.interfaces import graph_breaks
from rekindle.torch.sums import StandIns


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
    captured: list[Halves] = field(default_factory=list)
    """The graphs that were captured, in order."""
    before_capture: Callable[[], None] | None = None
    """What is to be done before a graph is captured."""
    flow: Flow = field(default_factory=Flow)
    """What they hand to one another, where that is not known yet."""
    stand_ins: StandIns = field(default_factory=StandIns)
    """Where the gradients go of what several of them read."""
    ran_without_gradients: bool = False
    breaks_before: dict[str, int] = field(default_factory=graph_breaks)

    @property
    def breaks(self) -> list[str]:
        """Why graphs ended where they did."""
        known = self.breaks_before
        return [why for why, count in graph_breaks().items() if count > known.get(why, 0)]
