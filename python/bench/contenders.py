"""The contenders of `torch_contest.py`: ways to run a training step, each of which lives in a
process of its own.

A contender first trains for three steps from the same weights as the others with an optimizer, and
its loss, gradients and buffers of each step are compared with eager's, bit for bit. Then it waits
for orders and runs a step at each.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from full_models import CASES, Step
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import checkpoint

import rekindle
from batch_norm import separate_statistics
from rekindle.torch.execute import boxed
from rekindle.torch.module import session_of

SEED = 7


@dataclass(frozen=True)
class Kind:
    """A way to run the step: eager, checkpoint, torch with a share, or rekindle with a number of
    bytes.
    """

    way: str
    budget: float | int | None = None


@dataclass
class Trained:
    """What a training showed. Its numbers are digests: a step of BERT has half a gigabyte of
    them.
    """

    lasting: int
    """Bytes of the parameters and their gradients, which are there in every step."""
    budget: int | None = None
    """Rekindle's; where no plan goes as low as was asked, the smallest for which it knows one."""
    predicted: int | None = None
    peak: int = 0
    planning: float = 0.0
    first_call: float = 0.0
    digests: dict[str, str] = field(default_factory=dict)
    error: float = 0.0
    """The largest difference between gradients of the first step and eager's, as a share of the
    parameter's largest.
    """

    def differing(self, other: Trained) -> int:
        """How many numbers are not the same, bit for bit."""
        assert self.digests.keys() == other.digests.keys()
        return sum(value != other.digests[name] for name, value in self.digests.items())


class Contender:
    """The step in one way, and what its training showed."""

    def __init__(self, case: str, kind: Kind) -> None:
        self.module, self.batch = CASES[case].build()
        self.trained = Trained(sum(2 * part.nbytes for part in self.module.parameters()))
        self.step: Callable[..., Tensor] = self.module
        if kind.way == "checkpoint":
            checkpoint_blocks(self.module)
        elif kind.way == "torch":
            backend = torch_budget(kind.budget, self._note_planning)
            self.step = torch.compile(self.module, backend=backend, dynamic=False)
        elif kind.way == "rekindle":
            self.trained.budget = kind.budget
            self.step = rekindle.compile(self.module, kind.budget, wait=True)

    def run(self, seed: int = SEED) -> Tensor:
        """One step. The gradients of the step before are gone by then."""
        self.module.zero_grad(set_to_none=True)
        torch.manual_seed(seed)
        loss = self.step(*self.batch)
        loss.backward()
        return loss

    def train(self, gradients: Path) -> None:
        """A few steps with an optimizer. The gradients of the first are compared with those in a
        file or, by the first to come, written there.
        """
        start = {name: value.clone() for name, value in self.module.state_dict().items()}
        try:
            self._train(gradients)
        except rekindle.InfeasibleBudget as infeasible:
            self.module.load_state_dict(start)
            self.trained.budget = infeasible.smallest
            self.step = rekindle.compile(self.module, infeasible.smallest, wait=True)
            self._train(gradients)
        if self.trained.budget is not None:
            (plan,) = session_of(self.step).planned
            self.trained.predicted, self.trained.planning = plan.peak, plan.seconds

    def _train(self, gradients: Path) -> None:
        optimizer = torch.optim.SGD(self.module.parameters(), lr=1e-3, momentum=0.9)
        for number, run in enumerate((self._first, self._measured, self.run)):
            loss = run(SEED + number)
            if number == 0:
                self._compare(gradients)
            numbers = {"loss": loss, **self._gradients(), **dict(self.module.named_buffers())}
            self.trained.digests.update(
                (f"{number}: {name}", digest(value)) for name, value in numbers.items()
            )
            optimizer.step()

    def _first(self, seed: int) -> Tensor:
        """A step whose time is that of the first call."""
        begin = time.perf_counter()
        loss = self.run(seed)
        self.trained.first_call = time.perf_counter() - begin
        return loss

    def _measured(self, seed: int) -> Tensor:
        """A step whose peak is measured."""
        self.module.zero_grad(set_to_none=True)
        gc.collect()
        with rekindle.measure_peak(
            [*self.module.parameters(), *self.module.buffers(), *self.batch]
        ) as account:
            loss = self.run(seed)
        self.trained.peak = account.peak
        return loss

    def _gradients(self) -> dict[str, Tensor]:
        parts = self.module.named_parameters()
        return {f"gradient of {name}": part.grad for name, part in parts if part.grad is not None}

    def _compare(self, file: Path) -> None:
        found = self._gradients()
        if not file.exists():
            torch.save(found, file)
        expected = torch.load(file, mmap=True)
        self.trained.error = max(difference(found[name], value) for name, value in expected.items())

    def _note_planning(self, seconds: float) -> None:
        self.trained.planning += seconds


def torch_budget(
    share: float, note: Callable[[float], None] = lambda _: None
) -> Callable[..., object]:
    """PyTorch's partitioner with its budget, a share of the activations that it counts. `note` is
    told the seconds that it takes.
    """

    def partition(joint: torch.fx.GraphModule, *args: object, **kwargs: object) -> object:
        separate_statistics(joint.graph)
        begin = time.perf_counter()
        with functorch_config.patch(activation_memory_budget=share):
            result = min_cut_rematerialization_partition(joint, *args, **kwargs)
        note(time.perf_counter() - begin)
        return result

    def run(module: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        return boxed(module)

    return aot_autograd(fw_compiler=run, bw_compiler=run, partition_fn=partition)


def checkpoint_blocks(step: Step) -> None:
    """Every block is recomputed in the backward."""
    for block in step.blocks():
        again = functools.partial(checkpoint, block.forward, use_reentrant=False)
        block.forward = again  # type: ignore[method-assign]


def digest(tensor: Tensor) -> str:
    return hashlib.blake2b(tensor.detach().reshape(-1).numpy()).hexdigest()


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest expected value."""
    largest = (found - expected).abs().max().item()
    return largest / max(expected.abs().max().item(), 1e-30) if largest else 0.0


def serve(orders: Connection, case: str, kind: Kind, gradients: Path) -> None:
    """The process of a contender: trains, tells what that showed, then runs a step at each order
    until there is nobody to give one.
    """
    contender = Contender(case, kind)
    contender.train(gradients)
    orders.send(contender.trained)
    run_at_orders(orders, contender.run, contender.module)


def run_at_orders(orders: Connection, run: Callable[[], object], module: torch.nn.Module) -> None:
    """A step at each order, until there is nobody to give one."""
    try:
        while True:
            orders.recv()
            run()
            module.zero_grad(set_to_none=True)
            orders.send("done")
    except EOFError:
        pass
