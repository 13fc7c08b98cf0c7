"""Operations whose results lie in other sizes than PyTorch's meta functions say: losses that are
reduced in place, bags of embeddings, norms in mixed precision.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

import rekindle

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOSSES: dict[str, Loss] = {
    "mse": functional.mse_loss,
    "mse, the sum": lambda x, y: functional.mse_loss(x, y, reduction="sum"),
    "mse, all elements": lambda x, y: functional.mse_loss(x, y, reduction="none").mean(),
    "mse of one row": lambda x, y: functional.mse_loss(x, y[:1].expand_as(x)),
    "smooth l1": functional.smooth_l1_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "binary cross-entropy": lambda x, y: functional.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "binary cross-entropy with logits": lambda x, y: functional.binary_cross_entropy_with_logits(
        x, y.sigmoid()
    ),
    "soft margin": lambda x, y: functional.soft_margin_loss(x, y.sign()),
    "Kullback-Leibler": lambda x, y: functional.kl_div(
        x.log_softmax(1), y.softmax(1), reduction="batchmean"
    ),
    "cross-entropy": functional.cross_entropy,
}


class Regression(nn.Module):
    """Layers and a loss."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *[part for _ in range(4) for part in (nn.Linear(32, 32), nn.Tanh())]
        )
        self.loss = loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(self.layers(x), y)


class Losses(unittest.TestCase):
    def test_the_peak_is_the_predicted_one(self) -> None:
        for name, loss in LOSSES.items():
            with self.subTest(name):
                torch.manual_seed(0)
                x, y = torch.randn(256, 32), torch.randn(256, 32)
                model = rekindle.compile(Regression(loss), 0.75, profile="roofline", effort=1)
                with rekindle.measure_peak([*model.parameters(), x, y]) as measured:
                    model(x, y).backward()
                (graph,) = rekindle.report(model).graphs
                self.assertEqual(measured.peak, graph.peak)
                self.assertLessEqual(measured.peak, graph.budget)


class Bags(nn.Module):
    """Layers on the means of embeddings, or on other values of each bag."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(50, 32, mode=mode)
        self.layers = nn.Sequential(
            *[part for _ in range(4) for part in (nn.Linear(32, 32), nn.Tanh())]
        )

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.layers(self.bags(indices, offsets)).pow(2).mean()


class Embeddings(unittest.TestCase):
    def test_the_peak_is_the_predicted_one(self) -> None:
        for mode in ("sum", "mean", "max"):
            with self.subTest(mode):
                torch.manual_seed(0)
                indices, offsets = torch.randint(0, 50, (1024,)), torch.arange(0, 1024, 4)
                model = rekindle.compile(Bags(mode), 1.0, profile="roofline", effort=1)
                with rekindle.measure_peak([*model.parameters(), indices, offsets]) as measured:
                    model(indices, offsets).backward()
                (graph,) = rekindle.report(model).graphs
                self.assertEqual(measured.peak, graph.peak)


NORMS = (
    nn.GroupNorm(8, 16),
    nn.LayerNorm([16, 3, 3]),
    nn.BatchNorm2d(16),
    nn.BatchNorm2d(16, affine=False),
    nn.InstanceNorm2d(16, affine=True),
)


class Norms(unittest.TestCase):
    def test_the_peak_in_mixed_precision_is_the_predicted_one(self) -> None:
        """Weights in single precision norm what autocast has made half precision."""
        for norm in NORMS:
            torch.manual_seed(0)
            layers = [nn.Conv2d(4, 16, 3), norm, nn.SiLU(), nn.Conv2d(16, 16, 3)]
            model, x = Squares(layers), torch.randn(32, 4, 5, 5)
            planned = rekindle.compile(model, 1.0, profile="roofline", effort=1)
            there = [*model.parameters(), *model.buffers(), x]
            with self.subTest(str(norm)), rekindle.measure_peak(there) as measured:
                with torch.autocast("cpu", torch.bfloat16):
                    loss = planned(x)
                loss.backward()
                (graph,) = rekindle.report(planned).graphs
                self.assertEqual(measured.peak, graph.peak)


class Squares(nn.Sequential):
    """Layers, and the mean of the squares of what they give."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).float().square().mean()


if __name__ == "__main__":
    unittest.main()
