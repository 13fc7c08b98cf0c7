"""What operations take and give back inside is part of the predicted peak, which is what the
allocator hands out.
"""

import os
import unittest
from unittest import mock

import torch
from torch import nn

import rekindle
from rekindle.torch.allocator import allocations, mark, recorded
from rekindle.torch.held import storage_bytes
from rekindle.torch.module import session_of


class Dilated(nn.Module):
    """Dilated convolutions, which unfold their input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *[
                part
                for rate in (2, 4, 2, 4)
                for part in (nn.Conv2d(16, 16, 3, padding=rate, dilation=rate), nn.Tanh())
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


class Scratch(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        self.enterContext(mock.patch.dict(os.environ, REKINDLE_CACHE="off"))

    def test_marks_count_their_own_events(self) -> None:
        with recorded() as events:
            torch.empty(1000, dtype=torch.uint8)
            with mark(1):
                kept = torch.empty(500, dtype=torch.uint8)
                torch.empty(2000, dtype=torch.uint8)
            with mark(2):
                del kept
        self.assertEqual((events.marked[1].peak, events.marked[1].now), (2500, 500))
        self.assertEqual((events.marked[2].peak, events.marked[2].now), (0, -500))

    def test_the_allocators_peak_is_the_predicted_one(self) -> None:
        x = torch.randn(4, 16, 24, 24)
        for budget in (1.0, 0.85):
            with self.subTest(budget=budget):
                model = rekindle.compile(Dilated(), budget, effort=1)
                model(x).backward()
                there = [*model.parameters(), x]
                model.zero_grad()
                with allocations() as measured:
                    model(x).backward()
                (step,) = session_of(model).planned
                self.assertEqual(storage_bytes(there) + measured.peak, step.peak)
                self.assertLessEqual(step.peak, step.plan.budget)
                model.zero_grad()
                with rekindle.measure_peak(there) as storages:
                    model(x).backward()
                self.assertEqual(storages.peak, step.modules.peak_of_storages)
                self.assertLess(storages.peak, step.peak, "dilated convolutions take scratch")


if __name__ == "__main__":
    unittest.main()
