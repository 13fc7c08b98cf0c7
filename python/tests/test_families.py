"""A planned step is the plain step: loss, gradients, buffers and parameters bit for bit, and the
peak to the byte.
"""

import hashlib
import os
import unittest
import unittest.mock
from dataclasses import dataclass

import torch
from planned_models import FAMILIES, Family
from torch import nn

import rekindle
from rekindle.torch.module import session_of

STEPS = 3
SHARES = (0.7, 0.4)
"""Budgets between the floor (0) and the plain peak (1)."""
EFFORT = 1
"""The planner's least: what is tested is that plans run, not how good they are."""


@dataclass
class Trained:
    """What a few steps leave: numbers, and the highest count of bytes in forward and backward."""

    numbers: list[dict[str, str]]
    """The digest of every number of each step, by name."""
    peak: int


def digest(tensor: torch.Tensor) -> str:
    """Equal for tensors of the same bits, and small: a step of ResNet-152 has half a gigabyte of
    numbers.
    """
    return hashlib.blake2b(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def train(
    family: Family,
    module: nn.Module,
    batch: tuple[torch.Tensor, ...],
    optimizer: torch.optim.Optimizer,
) -> Trained:
    """A few steps under exact accounting. The optimizer's own state is counted by its making."""
    torch.manual_seed(5)
    numbers, peak = [], 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        there = [*module.parameters(), *module.buffers(), *batch]
        with rekindle.measure_peak(there) as measured:
            loss = module(*batch)
            loss.backward()
        peak = max(peak, measured.peak)
        optimizer.step()
        step = {"loss": digest(loss)}
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            step[f"gradient of {name}"] = digest(parameter.grad)
            step[name] = digest(parameter)
        step.update((name, digest(buffer)) for name, buffer in module.named_buffers())
        numbers.append(step)
    return Trained(numbers, peak)


class Families(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.enterContext(unittest.mock.patch.dict(os.environ, REKINDLE_CACHE="off"))

    def check(self, name: str) -> None:
        family = FAMILIES[name]
        module, batch = family.build()
        plain = train(family, module, batch, family.make_optimizer(module))
        whole = self.check_budget(family, 1.0, plain)
        self.assertLessEqual(
            whole.plain.peak,
            plain.peak,
            "compiled without a plan, the step needs no more than eager",
        )
        for share in SHARES:
            budget = int(whole.graph.floor + share * (whole.graph.peak - whole.graph.floor))
            planned = self.check_budget(family, budget, plain)
            self.assertGreater(planned.plan.time, planned.graph.time, "nothing was recomputed")

    def check_budget(self, family: Family, budget: int | float, plain: Trained):
        module, batch = family.build()
        compiled = rekindle.compile(module, budget, profile="roofline", effort=EFFORT)
        trained = train(family, compiled, batch, family.make_optimizer(module))
        (planned,) = session_of(compiled).planned
        for number, (step, expected) in enumerate(zip(trained.numbers, plain.numbers, strict=True)):
            self.assertEqual(step.keys(), expected.keys())
            different = [what for what, value in step.items() if value != expected[what]]
            self.assertEqual(different, [], f"step {number}, budget {budget}")
        self.assertEqual(trained.peak, planned.peak, f"predicted and measured, budget {budget}")
        self.assertLessEqual(trained.peak, planned.plan.budget)
        return planned


for _name in FAMILIES:
    setattr(Families, f"test_{_name}", lambda self, name=_name: self.check(name))


if __name__ == "__main__":
    unittest.main()
