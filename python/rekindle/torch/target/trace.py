"""`rekindle.torch.trace`: a training step for a device that is not here.

In: a model, with contents or on the device `meta`, and a batch. Out: a `TracedStep` that says
whether the step fits in a budget, which batch does, and plans for it, plain, by plan, and with the
host's memory as a store. Nothing runs, and nothing is allocated for the model.

A budget on a GPU is what the process may take of it: the margins, and what PyTorch's allocator
reserves. On the host it is what `rekindle.compile` counts, live bytes to the byte.

Everything here is a prediction, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from rekindle import _native
from rekindle.errors import DoesNotFit, InfeasibleBudget, InvalidInput
from rekindle.planner import ProgressLine, plan_with
from rekindle.settings import Settings
from rekindle.torch.capture import Batch, capture
from rekindle.torch.environment import check_module, check_optimizer, check_torch
from rekindle.torch.held import optimizer_state, unread
from rekindle.torch.interfaces import storage_key
from rekindle.torch.joint import Joint
from rekindle.torch.lower import Lowered, lower
from rekindle.torch.planning import build, timed
from rekindle.torch.target.batches import largest, resized, size_of
from rekindle.torch.target.costs import predicted_microseconds
from rekindle.torch.target.devices import Device, device_named
from rekindle.torch.target.margins import Margin, default_margins, replaced_margins
from rekindle.torch.target.saved import SavedStep
from rekindle.torch.target.scratch import scratch_of

GIB, MIB = 1 << 30, 1 << 20
FEASIBLE_EFFORT = 1
"""The planner's effort while it is only asked whether there is a plan."""
WAYS = ("plain", "planned", "offload")
"""Without a plan, by a plan that recomputes, and by one that moves tensors to the host, too."""


@dataclass(frozen=True, repr=False)
class Way:
    """What one way to train needs, predicted."""

    fits: bool
    needed: int
    """Bytes of the device, with margins, of a plan that fits; of a way that does not fit, the least
    that is known.
    """

    def __repr__(self) -> str:
        return f"{'fits' if self.fits else 'does not fit'}, {_size(self.needed)} predicted"


@dataclass(frozen=True, repr=False)
class Fit:
    """Whether a step fits in a budget. All of it is predicted."""

    budget: int
    device: str
    plain: Way
    planned: Way
    offload: Way | None
    """None where there is nothing to move tensors to."""

    def __bool__(self) -> bool:
        return self.planned.fits or bool(self.offload and self.offload.fits)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [f"prediction for {self.device}, budget {_size(self.budget)}:"]
        for name in WAYS:
            way: Way | None = getattr(self, name)
            if way is not None:
                lines.append(f"  {name}: {way}")
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Batches:
    """The largest batches that fit in a budget, predicted; 0 where not even one does. The next
    ones do not fit; a larger one that does is not ruled out.
    """

    budget: int
    device: str
    plain: int
    planned: int
    offload: int | None

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        offload = "" if self.offload is None else f", {self.offload} with offload to the host"
        return (
            f"prediction for {self.device} in {_size(self.budget)}: batch {self.plain} "
            f"plain, {self.planned} by plan{offload}"
        )


@dataclass(frozen=True, repr=False)
class TracedPlan:
    """A plan for the device, with what is predicted of it."""

    step: TracedStep
    plan: _native.Plan
    budget: int
    """Of the process: margins and what the allocator reserves."""
    live: int
    """The most bytes that are live."""
    footprint: _native.Footprint | None
    """What the allocator does; None on the host, whose allocator is not modelled."""

    @property
    def overhead(self) -> float:
        """The time that the plan adds, as a share of the plain step's."""
        return self.plan.time / self.step.graph.time - 1.0 if self.step.graph.time else 0.0

    @property
    def needed(self) -> int:
        """Bytes of the device, with margins."""
        inside = self.live if self.footprint is None else self.footprint.reserved
        return inside + self.step.margin_bytes

    def save(self, path: str | Path) -> Path:
        """Writes graph, plan and predictions, for `compile(plan=…)` and `verify` on the device."""
        return SavedStep.of(self).write(path)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        step, found = self.step, self.footprint
        lines = [
            f"prediction for {step.device.name}: {step.name}, batch {step.batch_size}, budget "
            f"{_size(self.budget)}",
            f"  live {_size(self.live)} (plain {_size(step.graph.peak)})",
        ]
        if found is not None:
            lines.append(
                f"  allocated {_size(found.allocated)}, reserved "
                f"{_size(found.reserved)}, fragmentation {_size(found.fragmentation)}"
            )
        lines += [f"  {margin}" for margin in step.margins]
        lines.append(
            f"  +{100 * self.overhead:.1f} % time, by {step.costs}; substitutions and sizes: "
            f"PyTorch {torch.__version__}"
        )
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class TracedStep:
    """A captured training step with the costs of a device."""

    graph: _native.Graph
    """With predicted or measured times."""
    name: str
    device: Device
    batch_size: int
    margins: tuple[Margin, ...]
    dtype: torch.dtype | None
    autocast: torch.dtype | None
    costs: str
    """Where the times are from."""
    expandable_segments: bool
    at: Callable[[int], TracedStep]
    """The same step for another batch size, captured anew."""
    exact: Callable[[_native.Graph, _native.Plan], int]
    """The live bytes of a plan as they will be measured: a plan counts the states of all random
    draws, a step keeps those of the draws that it repeats.
    """

    @property
    def margin_bytes(self) -> int:
        """What the process takes beside the step."""
        return sum(margin.bytes for margin in self.margins)

    @property
    def has_offload(self) -> bool:
        """Whether there is another memory to move tensors to."""
        return self.device.is_gpu

    def fits(self, budget: int | str | None = None) -> Fit:
        """Whether the step fits: plain, by plan, with offload. Without a budget, in all that the
        device has.
        """
        room = self._room(budget)
        ways = {way: self._try(self.graph, way, room) for way in self._ways()}
        return Fit(
            room + self.margin_bytes,
            self.device.name,
            ways["plain"],
            ways["planned"],
            ways.get("offload"),
        )

    def max_batch(self, budget: int | str | None = None) -> Batches:
        """The largest batches that fit, each way: batches that fit while the next ones do not. That
        none beyond them fits is not proven: an allocator may have room for a batch and none for a
        smaller one. The step is captured at two sizes, from which the others follow, and once more
        at each answer, which must be the step that followed.
        """
        room = self._room(budget)
        captured: dict[int, _native.Graph] = {self.batch_size: self.graph}

        def graph_at(size: int) -> _native.Graph:
            if size not in captured:
                captured[size] = self.at(size).graph
            return captured[size]

        sizes: dict[str, int] = {}
        known = self.batch_size
        for way in self._ways():
            # What fits in one way fits in those that can do more.
            least = max(sizes.values(), default=0)
            excess = partial(self._excess, way=way, room=room)
            sizes[way], known = largest(excess, room, graph_at, known, least)
        return Batches(
            room + self.margin_bytes,
            self.device.name,
            sizes["plain"],
            sizes["planned"],
            sizes.get("offload"),
        )

    def plan(
        self,
        budget: int | str | None = None,
        *,
        offload: bool = False,
        strategy: str = "search",
        effort: int | None = None,
        time_limit: float | None = None,
    ) -> TracedPlan:
        """A plan in the budget. Raises `InfeasibleBudget` or `DoesNotFit` if there is none."""
        if offload and not self.has_offload:
            raise InvalidInput("on the host there is no other memory to move tensors to")
        room = self._room(budget)
        store = self.device.store if offload else None
        settings = Settings(room, "roofline", strategy, effort, time_limit, store=store)
        try:
            plan, footprint = self._plan(self.graph, settings, room)
        except DoesNotFit as error:
            smallest = None if error.smallest is None else error.smallest + self.margin_bytes
            raise DoesNotFit(
                f"prediction for {self.device.name}: {error}; beside it, "
                f"{_size(self.margin_bytes)} are margins",
                smallest,
            ) from None
        live = self.exact(self.graph, plan)
        return TracedPlan(self, plan, room + self.margin_bytes, live, footprint)

    def with_times(self, measured: _native.Graph, source: str) -> TracedStep:
        """The step with times that were measured on the device: those of the same graph, as
        `rekindle.profile` there writes it.
        """
        without = measured.with_workspaces([0] * len(measured))
        if without.digest != self.graph.with_workspaces([0] * len(self.graph)).digest:
            raise InvalidInput("the measured graph is not that of this step")
        times = [node.time for node in measured.nodes]
        scratch = [
            max(ours.workspace, theirs.workspace)
            for ours, theirs in zip(self.graph.nodes, measured.nodes, strict=True)
        ]
        graph = self.graph.with_times(times).with_workspaces(scratch)
        return replace(self, graph=graph, costs=f"times measured: {source}")

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return (
            f"prediction for {self.device.name}: {self.name}, batch {self.batch_size}, plain peak "
            f"{_size(self.graph.peak)} live, {len(self.graph)} nodes, costs: {self.costs}"
        )

    def _ways(self) -> Sequence[str]:
        return WAYS if self.has_offload else WAYS[:2]

    def _room(self, budget: int | str | None) -> int:
        """The bytes that are left to the allocator."""
        if budget is None:
            if not self.device.memory:
                raise InvalidInput("how much memory the host has is not known: give a budget")
            budget = self.device.memory
        allowed = Settings(budget, "roofline").bytes_without_share
        if allowed is None:
            raise InvalidInput('give the budget of a device in bytes, such as "72GiB"')
        return max(allowed - self.margin_bytes, 1)

    def _try(self, graph: _native.Graph, way: str, room: int) -> Way:
        """Whether there is a plan; which is the fastest is not asked."""
        if way == "plain":
            needed = graph.peak
            if self.device.is_gpu:
                found = _native.footprint(graph, expandable=self.expandable_segments)
                needed = found.reserved
            return Way(needed <= room, needed + self.margin_bytes)
        if way == "planned":
            return self._try_to_plan(graph, room, None)
        # A plan that moves nothing is one, too.
        alone = self._try_to_plan(graph, room, None)
        if alone.fits:
            return alone
        moving = self._try_to_plan(graph, room, self.device.store)
        return moving if moving.fits or moving.needed < alone.needed else alone

    def _excess(self, graph: _native.Graph, *, way: str, room: int) -> int:
        """The bytes that are lacking to a batch; 0 where it fits. It is larger than what the ways
        before this one can do.
        """
        store = self.device.store if way == "offload" else None
        found = self._try_to_plan(graph, room, store) if store else self._try(graph, way, room)
        return 0 if found.fits else max(found.needed - self.margin_bytes - room, 1)

    def _try_to_plan(self, graph: _native.Graph, room: int, store: str | None) -> Way:
        settings = Settings(room, "roofline", effort=FEASIBLE_EFFORT, store=store)
        try:
            plan, footprint = self._plan(graph, settings, room, is_any=True)
        except (InfeasibleBudget, DoesNotFit) as error:
            assert error.smallest is not None, "a planner names a budget that it can meet"
            return Way(False, error.smallest + self.margin_bytes)
        inside = plan.peak if footprint is None else footprint.reserved
        return Way(True, inside + self.margin_bytes)

    def _plan(
        self, graph: _native.Graph, settings: Settings, room: int, *, is_any: bool = False
    ) -> tuple[_native.Plan, _native.Footprint | None]:
        if not self.device.is_gpu:
            return plan_with(settings, graph, room), None
        return _native.plan_reserved(
            graph,
            room,
            expandable=self.expandable_segments,
            strategy=settings.strategy,
            effort=settings.effort,
            time_limit=settings.time_limit,
            progress=ProgressLine(),
            store=settings.store,
            is_any=is_any,
        )


def trace(
    model: torch.nn.Module,
    batch: Batch,
    *,
    device: str | Device = "cpu",
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    make_batch: Callable[[int], Batch] | None = None,
    margins: Mapping[str, int | str] | str | Path | None = None,
    expandable_segments: bool = False,
    ranks: int = 1,
    name: str | None = None,
) -> TracedStep:
    """Captures a training step of `model`, which returns its loss, for a device of
    `rekindle.torch.DEVICES`, without the device and without weights.

    `dtype` is that of the model's and the batch's real numbers on the device, if it is another;
    `autocast` the lower precision of mixed precision there. With `optimizer` its state counts.
    `make_batch(n)` gives a batch of `n`; without it batches of other sizes are the given one,
    repeated. `margins` takes the place of declared margins: bytes by name, or a record that
    `verify` wrote on the device. `expandable_segments` is the allocator's setting of that name;
    with `ranks` above one, NCCL's buffers count.
    """
    check_torch()
    check_module(model, is_run=False)
    check_optimizer(optimizer)
    target = device_named(device)
    title = name or type(model).__name__
    size = size_of(batch)

    def at(count: int) -> TracedStep:
        inputs = batch if count == size else _batch_of(count)
        joint = capture(model, inputs, target, dtype, autocast)
        held = optimizer_state(optimizer, joint, model, dtype)
        held |= unread(joint, _resident(model, dtype))
        lowered = lower(joint, title, held)
        graph, operations = _costed(joint, lowered, target)
        lines = replaced_margins(default_margins(target, operations, ranks), margins)
        costs = f"the data sheet of {target.name} ({target.source}), a prediction"

        def exact(graph: _native.Graph, plan: _native.Plan) -> int:
            # On a GPU the states are not in its memory.
            return plan.peak if target.is_gpu else build(joint, lowered, graph, plan).peak

        return TracedStep(
            graph,
            title,
            target,
            count,
            tuple(lines),
            dtype,
            autocast,
            costs,
            expandable_segments,
            at,
            exact,
        )

    def _batch_of(count: int) -> Batch:
        return make_batch(count) if make_batch is not None else resized(batch, size, count)

    return at(size)


def _resident(model: torch.nn.Module, dtype: torch.dtype | None) -> int:
    """The bytes of all parameters and buffers, in the type that they have on the device."""
    found: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        storage = tensor.untyped_storage()
        itemsize = tensor.element_size()
        if dtype is not None and tensor.is_floating_point():
            itemsize = dtype.itemsize
        # A storage without contents is told from others by its tensor.
        key = storage_key(storage)
        found[key] = storage.nbytes() // tensor.element_size() * itemsize
    return sum(found.values())


def _costed(joint: Joint, lowered: Lowered, device: Device) -> tuple[_native.Graph, list[str]]:
    """The graph with the device's times and scratch, and its operations."""
    operations = [str(node.target) for node in joint.computing()]
    if not device.is_gpu:
        graph, _ = timed(joint, lowered, Settings(1.0, "roofline"))
        return graph, operations
    known = {node: predicted_microseconds(node, device) for node in joint.computing()}
    times = [known.get(node, 0.0) if node is not None else 0.0 for node in lowered.nodes]
    scratch = [scratch_of(node) if node in known else 0 for node in lowered.nodes]
    return lowered.graph.with_times(times).with_workspaces(scratch), operations


def _size(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.2f} MiB"
