"""`cargo xtask bench zoo`, one model: trained by plan at several budgets, beside its library's own
checkpointing and PyTorch's budget.

Each contender begins with the same weights and trains for two steps with AdamW; every loss,
gradient, parameter and buffer is compared with eager's, bit for bit. Then one step is measured by
its storages and one by what the allocator handed out. Prints a line of CSV for each contender; one
that fails has its error in its line. Arguments: the model.

Times are processor time, so that what else the machine does matters little: of a step, the median
of a few, and of the first call, which captures and plans.

A peak is that of forward and backward: parameters, buffers and batch, and all that is made; by
storages, and by the allocator's events, which have the scratch of operations as well.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

os.environ["REKINDLE_CACHE"] = "off"

import torch
from contenders import digest, torch_budget
from torch import Tensor, nn
from zoo_models import ZOO, build
from zoo_more_models import MORE

import rekindle
from rekindle.planner import plan_with
from rekindle.settings import Budget, Settings
from rekindle.torch.allocator import allocations
from rekindle.torch.held import storage_bytes
from rekindle.torch.interfaces import pytree, reset_dynamo
from rekindle.torch.joint import tensors_of
from rekindle.torch.module import session_of

STEPS = 2
"""Optimizer steps whose numbers are compared."""
TIMED = 3
"""Steps whose median time is taken."""
SEED = 7
SHARES = (0.7, 0.5)
EFFORT = 2
"""Of the planner: overheads stay a rough sign, and forty models are planned in an hour."""
SWITCHES = (
    "gradient_checkpointing_enable",
    "enable_gradient_checkpointing",
    "set_grad_checkpointing",
)
"""What the libraries call their own checkpointing."""


@dataclass
class Row:
    """A line of the table. Empty where nothing is known."""

    contender: str
    graphs: int | None = None
    budget: int | None = None
    peak: int | None = None
    """By storages."""
    predicted: int | None = None
    allocated: int | None = None
    """By the allocator's events."""
    predicted_allocated: int | None = None
    numbers: int | None = None
    differing: int | None = None
    seconds: float | None = None
    first_call: float | None = None
    error: str = ""

    @classmethod
    def head(cls) -> str:
        return ",".join(field.name for field in fields(cls))

    def csv(self) -> str:
        values = [getattr(self, field.name) for field in fields(self)]
        return ",".join("" if value is None else _cell(value) for value in values)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return " ".join(str(value).replace(",", ";").replace('"', "'").split())[:300]


Way = Callable[[nn.Module], Callable[..., Tensor]]


class Run:
    """A model that trains in one way."""

    def __init__(self, name: str, way: Way) -> None:
        reset_dynamo()
        self.module, self.arguments = build({**ZOO, **MORE}[name])
        self.step = way(self.module)
        self.digests: dict[str, str] = {}

    def once(self) -> Tensor:
        """Forward and backward."""
        loss = self.step(**self.arguments)
        loss.backward()
        return loss.detach()

    def train(self) -> float:
        """A few optimizer steps; the seconds of the first call."""
        first_call = 0.0
        optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3)
        torch.manual_seed(SEED)
        for number in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            begin = time.process_time()
            loss = self.once()
            first_call = first_call or time.process_time() - begin
            optimizer.step()
            self.note(number, {"loss": loss, **self.numbers()})
        return first_call

    def numbers(self) -> dict[str, Tensor]:
        parts = dict(self.module.named_parameters())
        gradients = {f"gradient of {n}": p.grad for n, p in parts.items() if p.grad is not None}
        return {**parts, **gradients, **dict(self.module.named_buffers())}

    def note(self, step: int, numbers: dict[str, Tensor]) -> None:
        self.digests.update((f"{step}: {name}", digest(value)) for name, value in numbers.items())

    def there(self) -> list[Tensor]:
        """What is in memory before a step."""
        leaves = [t for t in pytree.tree_leaves(self.arguments) if isinstance(t, Tensor)]
        return [*self.module.parameters(), *self.module.buffers(), *leaves, *self.constants()]

    def constants(self) -> list[Tensor]:
        """Tensors that a captured graph holds: eager makes them anew in each step."""
        if not isinstance(self.step, rekindle.PlannedModule):
            return []
        graphs = [planned.joint.graph for planned in session_of(self.step).planned]
        nodes = [node for graph in graphs for node in graph.find_nodes(op="get_attr")]
        return [tensor for node in nodes for tensor in tensors_of(node)]

    def clear(self) -> None:
        self.module.zero_grad(set_to_none=True)
        gc.collect()

    def peak(self) -> int:
        self.clear()
        with rekindle.measure_peak(self.there()) as measured:
            self.once()
        return measured.peak

    def allocated(self) -> int:
        self.clear()
        with allocations() as measured:
            self.once()
        return storage_bytes(self.there()) + measured.peak

    def seconds(self) -> float:
        times = []
        for _ in range(TIMED):
            self.clear()
            begin = time.process_time()
            self.once()
            times.append(time.process_time() - begin)
        return statistics.median(times)


class Model:
    """One model, and what was seen of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.eager: dict[str, str] = {}
        """The digests of eager's numbers."""
        self.smallest: int | None = None
        """The smallest budget that was named so far."""
        self.is_refused = False
        """Whether there was a budget without a plan."""

    def show(self, contender: str, way: Way) -> None:
        """Trains in one way, and prints what that showed, or the error that ended it."""
        row = Row(contender)
        try:
            self.measure(row, way)
        except Exception as error:
            row.error = f"{type(error).__name__}: {error}"
            if isinstance(error, rekindle.InfeasibleBudget):
                self.smallest, self.is_refused = error.smallest, True
        print(row.csv(), flush=True)

    def measure(self, row: Row, way: Way) -> None:
        run = Run(self.name, way)
        row.first_call = run.train()
        known = self.eager or run.digests
        row.numbers = len(known)
        row.differing = sum(known.get(what) != value for what, value in run.digests.items())
        row.differing += len(known.keys() - run.digests.keys())
        row.peak, row.allocated, row.seconds = run.peak(), run.allocated(), run.seconds()
        if isinstance(run.step, rekindle.PlannedModule):
            describe_plan(row, run.step)
            self.note_smallest(run.step)
        if not self.eager:
            self.eager = run.digests

    def note_smallest(self, planned: rekindle.PlannedModule) -> None:
        """Asks the planner for the smallest budget of a step that is one graph."""
        graphs = session_of(planned).planned
        if len(graphs) == 1 and self.smallest is None:
            settings = Settings(1, effort=EFFORT)
            try:
                plan_with(settings, graphs[0].graph, 1)
            except rekindle.InfeasibleBudget as infeasible:
                self.smallest = infeasible.smallest

    def smallest_budget(self) -> int:
        """As it was named; where nothing named it, by asking for one byte."""
        if self.smallest is None:
            self.show("rekindle, one byte", planned_at(1))
        if self.smallest is None:
            raise AssertionError("a budget of one byte was not refused")
        return self.smallest


def describe_plan(row: Row, planned: rekindle.PlannedModule) -> None:
    session = session_of(planned)
    graphs = session.planned
    row.graphs, row.budget = len(graphs), session.largest_budget
    if len(graphs) == 1:
        row.predicted = graphs[0].modules.peak_of_storages
        row.predicted_allocated = graphs[0].peak


def checkpointing(module: nn.Module) -> Callable[..., Tensor]:
    """The library's own: every block is recomputed."""
    for part in module.modules():
        for switch in SWITCHES:
            if callable(getattr(part, switch, None)):
                getattr(part, switch)()
                return module
    raise LookupError("its library has no switch for checkpointing")


def planned_at(budget: Budget) -> Way:
    return lambda module: rekindle.compile(module, budget, effort=EFFORT, wait=True)


def main(name: str) -> None:
    warnings.simplefilter("ignore")
    print(Row.head())
    model = Model(name)
    model.show("eager", lambda module: module)
    if name in MORE:
        model.show(f"rekindle {SHARES[0]}", planned_at(SHARES[0]))
        if not model.is_refused:
            return
    else:
        show_others(model)
        for share in SHARES:
            model.show(f"rekindle {share}", planned_at(share))
    model.show("rekindle smallest", planned_at(model.smallest_budget()))


def show_others(model: Model) -> None:
    """What else saves memory."""
    model.show("checkpointing", checkpointing)
    backend = torch_budget(0.5)
    model.show(
        "torch budget 0.5",
        lambda module: torch.compile(module, backend=backend, dynamic=False),
    )


if __name__ == "__main__":
    main(sys.argv[1])
