"""`cargo xtask bench torch`, one case: ways to train in less memory, side by side in one process.

Contenders: plain eager; `torch.utils.checkpoint` around each block; PyTorch's own `activation_memory_budget`; and Remat with the
peak of each of the others as its budget, and below them all. Compiled contenders run in the same executor, operation by operation.

Prints a line of CSV for each contender: its budget, its measured peak, the predicted one, its largest gradient error against eager,
the seconds of its first call and those of them spent on planning, and the seconds of every counted step. In each round the
contenders take turns, and each round begins with another one.

A step is forward and backward with the same random seed. Its peak is the sum of all live storages, parameters, gradients and batch
included; scratch inside an operation is not seen. Arguments: the case and the number of rounds.
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

os.environ["REMAT_CACHE"] = "off"  # Planning is part of what is measured.

import torch
from full_models import CASES, Step
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import checkpoint

import remat
from batch_norm import separate_statistics
from remat.execute import boxed
from remat.module import session_of

SEED = 7
TORCH_BUDGETS = (0.7, 0.5, 0.3)
BELOW = 0.75
"""How far below the lowest of the others Remat is asked to go: this share of what they hold above the parameters and gradients."""
Batch = tuple[Tensor, Tensor]


@dataclass
class Contender:
    """A way to run the step, and what was measured of it."""

    name: str
    step: Callable[..., Tensor]
    module: Step
    budget: int | None = None
    predicted: int | None = None
    planning: float = 0.0
    first_call: float = 0.0
    peak: int = 0
    error: float = 0.0
    seconds: list[float] = field(default_factory=list)

    def run(self, batch: Batch) -> None:
        """One step. The gradients of the step before are gone by then."""
        self.module.zero_grad(set_to_none=True)
        torch.manual_seed(SEED)
        self.step(*batch).backward()

    def prepare(self, batch: Batch, reference: dict[str, Tensor]) -> None:
        """The first call; then a step whose peak and gradients are measured."""
        begin = time.perf_counter()
        self.run(batch)
        self.first_call = time.perf_counter() - begin
        self.module.zero_grad(set_to_none=True)
        gc.collect()
        account = remat.measure_peak([*self.module.parameters(), *self.module.buffers(), *batch])
        with account:
            self.run(batch)
        self.peak = account.peak
        gradients = gradients_of(self.module)
        self.error = max((difference(gradients[name], plain) for name, plain in reference.items()), default=0.0)

    def time(self, batch: Batch) -> None:
        self.module.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        self.run(batch)
        self.seconds.append(time.perf_counter() - begin)
        self.module.zero_grad(set_to_none=True)

    def row(self) -> str:
        times = " ".join(f"{seconds:.4f}" for seconds in self.seconds)
        budget, predicted = (("" if value is None else value) for value in (self.budget, self.predicted))
        cells = (self.name, budget, self.peak, predicted, f"{self.error:.3g}", f"{self.first_call:.2f}")
        return ",".join(map(str, (*cells, f"{self.planning:.2f}", times)))


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: part.grad.clone() for name, part in module.named_parameters() if part.grad is not None}


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest expected value."""
    largest = (found - expected).abs().max().item()
    return largest / max(expected.abs().max().item(), 1e-30) if largest else 0.0


def checkpointed(step: Step) -> Contender:
    """A copy of the step in which every block is recomputed in the backward."""
    step = copy.deepcopy(step)
    for block in step.blocks():
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    return Contender("checkpoint per block", step, step)


def torch_budget(step: Step, share: float) -> Contender:
    """PyTorch's partitioner with its budget, a share of the activations that it counts."""
    contender = Contender(f"torch budget {share}", step, step)

    def partition(joint: torch.fx.GraphModule, *args: object, **kwargs: object) -> object:
        separate_statistics(joint.graph)
        begin = time.perf_counter()
        with functorch_config.patch(activation_memory_budget=share):
            result = min_cut_rematerialization_partition(joint, *args, **kwargs)
        contender.planning += time.perf_counter() - begin
        return result

    def run(module: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        return boxed(module)

    backend = aot_autograd(fw_compiler=run, bw_compiler=run, partition_fn=partition)
    contender.step = torch.compile(step, backend=backend, dynamic=False)
    return contender


def planned(step: Step, name: str, budget: int, batch: Batch, reference: dict[str, Tensor]) -> Contender:
    """Remat with a budget; where no plan goes so low, with the smallest for which it knows one."""
    contender = Contender(name, remat.compile(step, budget), step, budget)
    try:
        contender.prepare(batch, reference)
    except remat.InfeasibleBudget as infeasible:
        return planned(step, name, infeasible.smallest, batch, reference)
    plan = session_of(contender.step).planned[-1]
    contender.predicted, contender.planning = plan.peak, plan.seconds
    return contender


def contenders(step: Step, batch: Batch) -> Iterator[Contender]:
    """All of them, ready to be timed."""
    eager = Contender("eager", step, step)
    eager.prepare(batch, {})
    reference = gradients_of(step)
    yield eager
    others = [checkpointed(step), *(torch_budget(step, share) for share in TORCH_BUDGETS)]
    for other in others:
        other.prepare(batch, reference)
        yield other
    for peak in sorted({other.peak for other in others}, reverse=True):
        names = " and ".join(other.name for other in others if other.peak == peak)
        yield planned(step, f"remat at {names}", peak, batch, reference)
    parameters = sum(2 * part.nbytes for part in step.parameters())
    lowest = min(other.peak for other in others)
    below = parameters + int(BELOW * (lowest - parameters))
    yield planned(step, "remat below", below, batch, reference)


def main(case: str, rounds: int) -> None:
    # Every contender compiles the same module anew.
    torch._dynamo.config.recompile_limit = 100
    step, batch = CASES[case].build()
    ready = []
    for contender in contenders(step, batch):
        print(f"{case}: {contender.name}, {contender.peak / 2**20:.0f} MiB", file=sys.stderr, flush=True)
        ready.append(contender)
    for begin in range(rounds):
        for position in range(len(ready)):
            ready[(begin + position) % len(ready)].time(batch)
    print("contender,budget,peak,predicted_peak,gradient_error,first_call_s,planning_s,seconds")
    for contender in ready:
        print(contender.row())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
