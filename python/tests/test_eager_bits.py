"""The numbers of a planned step are eager's where tracing has forms of its own: dropout,
interpolation, layers used twice, losses, autocast.
"""

import copy
import os
import unittest
from collections.abc import Callable
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

import rekindle
from rekindle.torch.module import session_of

BATCH = (64, 32)


class Steps(nn.Module):
    """A layer before each of some functions, and a loss."""

    def __init__(self, functions: list[Callable[[torch.Tensor], torch.Tensor]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in functions)
        self.functions = functions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, function in zip(self.layers, self.functions, strict=True):
            x = function(torch.tanh(layer(x)))
        return x.float().square().mean()


class Twice(nn.Module):
    """One batch norm, used several times in a forward."""

    def __init__(self, uses: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(uses))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(self.norm(layer(x)))
        return x.square().mean()


def images(x: torch.Tensor, mode: str, **options: object) -> torch.Tensor:
    """Interpolates the batch as if it were pictures, and brings it back to its shape."""
    larger = functional.interpolate(x.view(8, 4, 8, 8), size=(13, 11), mode=mode, **options)
    return functional.interpolate(larger, size=(8, 8), mode=mode, **options).reshape(x.shape)


FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: functional.dropout(x, 0.1),
    lambda x: functional.dropout(x, 0.15),
    lambda x: functional.dropout(x, 0.5),
    lambda x: images(x, "nearest"),
    lambda x: images(x, "bilinear", align_corners=False),
    lambda x: images(x, "bilinear", align_corners=True),
    lambda x: images(x, "bicubic", align_corners=False),
    lambda x: functional.binary_cross_entropy_with_logits(
        x, torch.full_like(x, 0.3), reduction="none"
    ),
    lambda x: torch.matmul(x.view(4, 16, 32), x[:32]).view(x.shape),
]


class Bits(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.enterContext(mock.patch.dict(os.environ, REKINDLE_CACHE="off"))

    def assert_alike(
        self,
        module: nn.Module,
        x: torch.Tensor,
        budget: float = 1.0,
        autocast: torch.dtype | None = None,
        *,
        inside: bool = False,
    ) -> rekindle.PlannedModule:
        """Two steps of the planned module leave what two steps of the module leave."""
        planned = rekindle.compile(copy.deepcopy(module), budget, profile="roofline", effort=1)
        for part in (module, planned):
            torch.manual_seed(9)
            for _ in range(2):
                part.zero_grad()
                with torch.autocast("cpu", autocast, enabled=autocast is not None):
                    loss = part(x)
                    if inside:
                        loss.backward()
                if not inside:
                    loss.backward()
        pairs = zip(module.named_parameters(), planned.named_parameters(), strict=True)
        for (name, a), (_, b) in pairs:
            self.assertTrue(torch.equal(a.grad, b.grad), name)
        for (name, a), (_, b) in zip(module.named_buffers(), planned.named_buffers(), strict=True):
            self.assertTrue(torch.equal(a, b), name)
        return planned

    def test_operations(self) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                torch.manual_seed(0)
                self.assert_alike(Steps(FUNCTIONS).to(dtype), torch.randn(BATCH, dtype=dtype))

    def test_autocast(self) -> None:
        torch.manual_seed(0)
        self.assert_alike(Steps(FUNCTIONS), torch.randn(BATCH), autocast=torch.bfloat16)

    def test_a_backward_inside_autocast(self) -> None:
        torch.manual_seed(0)
        module = Steps([lambda x: x, lambda x: x.float() @ torch.ones(32, 32), *FUNCTIONS[:2]])
        self.assert_alike(module, torch.randn(BATCH), autocast=torch.bfloat16, inside=True)

    def test_a_batch_norm_used_twice(self) -> None:
        for uses in (2, 4):
            with self.subTest(uses=uses):
                torch.manual_seed(0)
                x = torch.randn(4, 8, 12, 12)
                module = Twice(uses)
                planned = self.assert_alike(module, x, 0.7)
                planned.zero_grad()
                there = [*planned.parameters(), *planned.buffers(), x]
                with rekindle.measure_peak(there) as measured:
                    planned(x).backward()
                (step,) = session_of(planned).planned
                self.assertEqual(measured.peak, step.peak)
                runs = [node for kind, node in step.plan.steps() if kind == "run"]
                self.assertGreater(len(runs), len(set(runs)), "nothing was recomputed")


if __name__ == "__main__":
    unittest.main()
