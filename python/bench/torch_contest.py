"""`cargo xtask bench torch`, one case: ways to train in less memory, side by side in one process.

Contenders: plain eager; `torch.utils.checkpoint` around each block; PyTorch's own `activation_memory_budget`; and Remat with the
peak of each of the others as its budget, and below them all. Compiled contenders run in the same executor, operation by operation.

Every contender first trains for three steps from the same weights with an optimizer, and its loss, gradients and buffers of each step are
compared with eager's, bit for bit. Then they are timed: in each round the contenders take turns, and each round begins with another one.

Prints a line of CSV for each contender: its budget, its measured peak, the predicted one, how many of the numbers of its training differ
from eager's, its largest gradient error in the first step, the seconds of its first call and those of them spent on planning, and the
seconds of every counted step.

A step is forward and backward. Its peak is the sum of all live storages, parameters, gradients and batch included; scratch inside an
operation is not seen. Arguments: the case and the number of rounds.
"""

from __future__ import annotations

import copy
import functools
import gc
import hashlib
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
BELOW = (0.75, 0.85)
"""How far below the lowest of the others Remat is asked to go: these shares of what they hold above the parameters and gradients."""
NEAR = 1.01
"""Peaks that are so close together are met by one plan, at the lowest of them."""
FEWEST_BUDGETS = 3
"""Remat is asked for so many peaks at least; the second share below is for peaks that are all close together."""
Batch = tuple[Tensor, Tensor]


@dataclass
class Trained:
    """The numbers of a training, as digests: a step of BERT has half a gigabyte of them."""

    digests: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Those of the first step."""

    def note(self, step: int, loss: Tensor, module: nn.Module) -> None:
        """Takes in the loss, the gradients and the buffers of a step."""
        gradients = gradients_of(module)
        if step == 0:
            self.gradients = {name: part.clone() for name, part in gradients.items()}
        numbers = {"loss": loss, **gradients, **dict(module.named_buffers())}
        self.digests.update((f"{step}: {name}", digest(number)) for name, number in numbers.items())

    def differing(self, other: Trained) -> int:
        """How many are not the same, bit for bit."""
        assert self.digests.keys() == other.digests.keys()
        return sum(value != other.digests[name] for name, value in self.digests.items())

    def error(self, other: Trained) -> float:
        """The largest difference between gradients of the first step, as a share of the parameter's largest."""
        return max(difference(self.gradients[name], expected) for name, expected in other.gradients.items())


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
    differing: int = 0
    error: float = 0.0
    seconds: list[float] = field(default_factory=list)

    def run(self, batch: Batch, seed: int = SEED) -> Tensor:
        """One step. The gradients of the step before are gone by then."""
        self.module.zero_grad(set_to_none=True)
        torch.manual_seed(seed)
        loss = self.step(*batch)
        loss.backward()
        return loss

    def train(self, batch: Batch, start: dict[str, Tensor], eager: Trained | None = None) -> Trained:
        """A few steps from the weights `start`, compared with eager's."""
        self.module.load_state_dict(start)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=1e-3, momentum=0.9)
        trained = Trained()
        for number, run in enumerate((self.first, self.measured, self.run)):
            loss = run(batch, SEED + number)
            trained.note(number, loss, self.module)
            optimizer.step()
        if eager is not None:
            self.differing, self.error = trained.differing(eager), trained.error(eager)
        return trained

    def first(self, batch: Batch, seed: int) -> Tensor:
        """A step whose time is that of the first call."""
        begin = time.perf_counter()
        loss = self.run(batch, seed)
        self.first_call = time.perf_counter() - begin
        return loss

    def measured(self, batch: Batch, seed: int) -> Tensor:
        """A step whose peak is measured."""
        self.module.zero_grad(set_to_none=True)
        gc.collect()
        with remat.measure_peak([*self.module.parameters(), *self.module.buffers(), *batch]) as account:
            loss = self.run(batch, seed)
        self.peak = account.peak
        return loss

    def time(self, batch: Batch) -> None:
        self.module.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        self.run(batch)
        self.seconds.append(time.perf_counter() - begin)
        self.module.zero_grad(set_to_none=True)

    def row(self) -> str:
        times = " ".join(f"{seconds:.4f}" for seconds in self.seconds)
        budget, predicted = (("" if value is None else value) for value in (self.budget, self.predicted))
        cells = (self.name, budget, self.peak, predicted, self.differing, f"{self.error:.3g}", f"{self.first_call:.2f}")
        return ",".join(map(str, (*cells, f"{self.planning:.2f}", times)))


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    return {f"gradient of {name}": part.grad for name, part in module.named_parameters() if part.grad is not None}


def digest(tensor: Tensor) -> str:
    return hashlib.blake2b(tensor.detach().reshape(-1).numpy()).hexdigest()


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


def planned(step: Step, name: str, budget: int, batch: Batch, start: dict[str, Tensor], eager: Trained) -> Contender:
    """Remat with a budget; where no plan goes so low, with the smallest for which it knows one."""
    contender = Contender(name, remat.compile(step, budget), step, budget)
    try:
        contender.train(batch, start, eager)
    except remat.InfeasibleBudget as infeasible:
        return planned(step, name, infeasible.smallest, batch, start, eager)
    (plan,) = session_of(contender.step).planned
    contender.predicted, contender.planning = plan.peak, plan.seconds
    return contender


def contenders(step: Step, batch: Batch) -> Iterator[Contender]:
    """All of them, trained and ready to be timed."""
    start = {name: value.clone() for name, value in step.state_dict().items()}
    eager = Contender("eager", step, step)
    trained = eager.train(batch, start)
    yield eager
    others = [checkpointed(step), *(torch_budget(step, share) for share in TORCH_BUDGETS)]
    for other in others:
        other.train(batch, start, trained)
        yield other
    lasting = sum(2 * part.nbytes for part in step.parameters())
    for budget, name in budgets([eager, *others], lasting).items():
        yield planned(step, f"remat at {name}", budget, batch, start, trained)


def budgets(peers: list[Contender], lasting: int) -> dict[int, str]:
    """What Remat is asked for and whose peak it is, the highest first. `lasting` bytes are there all the time."""
    groups: list[list[Contender]] = []
    for peer in sorted(peers, key=lambda peer: peer.peak):
        if groups and peer.peak <= NEAR * groups[-1][0].peak:
            groups[-1].append(peer)
        else:
            groups.append([peer])
    found = {group[0].peak: " and ".join(peer.name for peer in group) for group in reversed(groups)}
    lowest = groups[0][0].peak
    for share in BELOW[: max(1, FEWEST_BUDGETS - len(found))]:
        found[lasting + int(share * (lowest - lasting))] = f"{share} of the lowest"
    return found


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
    print("contender,budget,peak,predicted_peak,differing,gradient_error,first_call_s,planning_s,seconds")
    for contender in ready:
        print(contender.row())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
