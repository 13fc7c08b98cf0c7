"""A graph for inputs of another shape: what is known from a graph that differs in its sizes only.

The nodes of both are the same, one by one, so the steps of one's plan are a schedule of the other.
Where the known graph is nowhere smaller, its costs serve too: times are scaled by the cost model,
and scratch is taken as it is, which is at least what the smaller operation takes. So nothing has to
run before the new shape is planned.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

from rekindle import _native
from rekindle.torch.lower import Lowered
from rekindle.torch.planning import PlannedGraph
from rekindle.torch.timing import roofline


def structure_of(graph: _native.Graph) -> str:
    """Equal for graphs that differ in sizes, times and scratch only."""
    wires = [(n.op, n.phase, n.reads, n.writes, n.updates, n.effect) for n in graph.nodes]
    return hashlib.sha256(repr((wires, graph.outputs)).encode()).hexdigest()


def nearest(lowered: Lowered, known: Iterable[PlannedGraph]) -> PlannedGraph | None:
    """Of some graphs, the one with the same nodes that is nearest in size; one that is nowhere
    smaller if there is any.
    """
    wanted, peak = structure_of(lowered.graph), lowered.graph.peak

    def distance(near: PlannedGraph) -> tuple[bool, float]:
        return not is_larger(near, lowered), abs(math.log(near.lowered.graph.peak / peak))

    alike = [planned for planned in known if structure_of(planned.lowered.graph) == wanted]
    return min(alike, key=distance, default=None)


def is_larger(near: PlannedGraph, lowered: Lowered) -> bool:
    """Whether no storage of the known graph is smaller."""
    pairs = zip(near.graph.storages, lowered.graph.storages, strict=True)
    return all(theirs >= ours for (theirs, _), (ours, _) in pairs)


def with_costs_of(near: PlannedGraph, lowered: Lowered) -> _native.Graph:
    """The graph with the costs of one that is larger."""
    known = near.graph.nodes
    times = [
        node.time * roofline(ours) / roofline(theirs)
        if ours is not None and theirs is not None and node.time
        else 0.0
        for node, ours, theirs in zip(known, lowered.nodes, near.lowered.nodes, strict=True)
    ]
    scratch = [node.workspace for node in known]
    return lowered.graph.with_times(times).with_workspaces(scratch)


def with_same_costs(known: PlannedGraph, lowered: Lowered) -> _native.Graph:
    """The graph with the costs of the same one beside which something else lay in memory."""
    costs = dict(zip(known.lowered.nodes, known.graph.nodes, strict=True))
    pairs = [costs.get(node) if node is not None else None for node in lowered.nodes]
    return lowered.graph.with_times([cost.time if cost else 0.0 for cost in pairs]).with_workspaces(
        [cost.workspace if cost else 0 for cost in pairs]
    )
