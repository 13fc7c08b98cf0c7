"""What was planned, for a person to read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rekindle._native import Decision, Transfers
from rekindle.torch.autocast import INSIDE
from rekindle.torch.module import sessions_of
from rekindle.torch.planning import PlannedGraph

LISTED = 8
"""How many storages and decisions the text shows of each kind."""
TITLES = ("kept", "recomputed", "moved")
"""What becomes of activations."""


@dataclass(frozen=True)
class GraphReport:
    """One planned graph: a graph of the model, for inputs of one shape."""

    name: str
    budget: int
    plain_peak: int
    """The peak of the step without a plan, in bytes."""
    peak: int
    """The predicted peak of the step."""
    time: float
    """When the step is done by the plan, in microseconds: operations, and what they wait for."""
    plain_time: float
    bound: float | None
    """No plan under the budget takes less; None if the plan is from disk."""
    recomputed: int
    """How many operations run again."""
    saved: int
    """Bytes that the forward hands to the backward."""
    measured_peak: int | None
    """With `inductor=True`, the peak of the plan's first step, by what the allocator handed out."""
    measured_saved: int | None
    """With `inductor=True`, the bytes that the forward of that step handed to the backward."""
    seconds: float
    """Spent on planning."""
    from_disk: bool
    guessed: list[str]
    """Operations whose times are the cost model's although measuring was asked for."""
    bytes_by_role: dict[str, int]
    """What is live at the plan's peak, by what it holds."""
    decisions: list[Decision]
    """What becomes of each activation, and why; the largest first."""
    store: str | None = None
    """The store that the plan was made for, as it was measured or given; None if nothing is moved.
    """
    transfers: Transfers | None = None
    """What goes to the store and back, and what it costs; likewise."""

    @property
    def overhead(self) -> float:
        """The time that recomputation and waiting add, as a share of the plain step's."""
        return self.time / self.plain_time - 1.0 if self.plain_time else 0.0

    def __str__(self) -> str:
        lines = [
            f"{self.name}: peak {_mib(self.plain_peak)} → {_mib(self.peak)} "
            f"of {_mib(self.budget)} allowed",
            f"  recomputes {self.recomputed} operations, +{100 * self.overhead:.1f} % time"
            + self._bound_text(),
            f"  saves {_mib(self.saved)} for the backward; planned in {self.seconds:.1f} s"
            + (" (from disk)" if self.from_disk else ""),
            *self._moved_text(),
            *self._measured_text(),
            "  at the peak: "
            + ", ".join(f"{role} {_mib(size)}" for role, size in self.bytes_by_role.items()),
        ]
        for title in TITLES:
            some = [d for d in self.decisions if _title(d) == title]
            if title == "moved" and not some:
                continue
            lines.append(f"  {title}: {len(some)} activations, {_mib(sum(d.bytes for d in some))}")
            lines += [f"    {_mib(d.bytes):>12}  {d.name}: {d.reason}" for d in some[:LISTED]]
            lines += [f"    {'…':>12}  and {len(some) - LISTED} more"] if len(some) > LISTED else []
        if self.guessed:
            lines.append(
                f"  {len(self.guessed)} operations could not be measured and have the cost model's "
                "time:"
            )
            lines += [f"    {text}" for text in self.guessed[:LISTED]]
        return "\n".join(lines)

    def _moved_text(self) -> list[str]:
        moved = self.transfers
        if moved is None:
            return []
        return [
            f"  moves {_mib(moved.moved_out)} out and {_mib(moved.moved_in)} back: "
            f"{moved.hidden / 1e3:.1f} ms hidden, {moved.waited / 1e3:.1f} ms waited for; the "
            f"store ({self.store}) holds up to {_mib(moved.store_peak)}"
        ]

    def _measured_text(self) -> list[str]:
        if self.measured_peak is None or self.measured_saved is None:
            return []
        return [
            f"  as Inductor runs it: peak {_mib(self.measured_peak)}, scratch included; "
            f"saves {_mib(self.measured_saved)}"
        ]

    def _bound_text(self) -> str:
        if self.bound is None or not self.plain_time:
            return ""
        least = 100 * max(self.bound / self.plain_time - 1, 0)
        return f" (no plan under this budget adds less than {least:.1f} %)"


@dataclass(frozen=True)
class Report:
    """All graphs that a model has been planned for."""

    graphs: list[GraphReport]
    told_compiled: list[str] = field(default_factory=list)
    """Lines of the model's Python that ask whether they are compiled, and that the capture has to
    tell so: there the model may compute something else than in eager.
    """
    costs: list[str] = field(default_factory=list)
    """From which times the plans were made."""
    ends: list[str] = field(default_factory=list)
    """Why graphs ended inside a step, if they did."""
    autocast: bool = False
    """Whether backwards are taken to be called inside autocast."""
    is_backend: bool = False
    """Whether it is that of `rekindle.backend`, before which PyTorch has gone the compiled way."""

    def __str__(self) -> str:
        if not self.graphs:
            return "nothing planned yet: a plan is made at the first call that needs gradients"
        lines = [str(graph) for graph in self.graphs]
        lines.append("times: " + "; ".join(self.costs))
        if self.told_compiled:
            lines.append(
                "the model is told that it is compiled, and may compute something else than in "
                "eager (check=True says whether it does): " + ", ".join(self.told_compiled)
            )
        if self.ends:
            lines.append(
                "a step was several graphs; what both sides of an end read more than twice has its "
                "gradients added in another order than in eager, so that their sum may round "
                "differently. They end here: " + "; ".join(self.ends)
            )
        if self.autocast:
            lines.append(
                "a backward was called inside autocast, so every one is taken to be; one that is "
                "called outside would compute something else than in eager"
            )
        if self.is_backend:
            lines.append(
                "torch.compile captured this before Rekindle was asked: the model was told that "
                "it is compiled, and may compute something else than in eager"
            )
        return "\n".join(lines)


def report(model: Any) -> Report:
    """What was planned for a model that `rekindle.compile` compiled, or for the function that
    `rekindle.backend` gave.

    Of a model with several planned parts, the graphs of all, under the names of the parts: each
    part has a budget of its own.
    """
    sessions = sessions_of(model)
    graphs = [
        (part, graph_report(planned))
        for part, session in sessions.items()
        for planned in session.planned
    ]
    return Report(
        [
            replace(graph, name=f"{part}, {graph.name}") if len(sessions) > 1 else graph
            for part, graph in graphs
        ],
        sorted({place for session in sessions.values() for place in session.told_compiled}),
        sorted({session.costs for session in sessions.values()}),
        sorted({why for session in sessions.values() for why in session.ends}),
        any(session.autocast.traced == INSIDE for session in sessions.values()),
        any(session.is_backend for session in sessions.values()),
    )


def graph_report(planned: PlannedGraph) -> GraphReport:
    """The report of one planned graph."""
    steps = planned.plan.steps()
    runs = [number for kind, number in steps if kind == "run"]
    decisions = planned.plan.decisions(planned.graph)
    live = planned.plan.bytes_by_role(planned.graph)
    return GraphReport(
        name=planned.graph.name,
        budget=planned.budget,
        plain_peak=planned.plain.peak,
        peak=planned.peak,
        time=planned.plan.time,
        plain_time=planned.graph.time,
        bound=planned.plan.bound,
        recomputed=len(runs) - len(set(runs)),
        saved=planned.modules.saved_bytes,
        measured_peak=planned.measured_peak,
        measured_saved=planned.measured_saved,
        seconds=planned.seconds,
        from_disk=planned.decided.from_disk,
        guessed=planned.decided.guessed,
        bytes_by_role={role.replace("_", " "): size for role, size in live},
        decisions=sorted(decisions, key=lambda d: (-d.bytes, d.storage)),
        store=planned.plan.store,
        transfers=planned.plan.transfers(planned.graph),
    )


def _title(decision: Decision) -> str:
    if decision.moved:
        return "moved"
    return "recomputed" if decision.recomputed else "kept"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
