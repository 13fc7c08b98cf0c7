"""The gradient of what several graphs of a step read is added up in eager's order."""

import copy
import os
import unittest
import warnings
from unittest import mock

import torch
from torch import nn

import rekindle
from rekindle.torch.module import session_of

WIDTH = 32


class Model(nn.Module):
    """Four layers; where its graph ends is for those that are made from it to say."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def mixed(self, value: torch.Tensor) -> torch.Tensor:
        """Reads the value three times."""
        query, key, part = (layer(value) for layer in self.layers[:3])
        return torch.softmax(query @ key.t(), -1) @ part


class Residual(Model):
    """A block of attention that ends a graph, and a sum around it, as in BigBird."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = torch.tanh(self.layers[3](value))
        for _ in range(2):
            torch._dynamo.graph_break()
            added = self.mixed(value)
            torch._dynamo.graph_break()
            value = value + torch.tanh(added)
        return value.square().mean()


class Shared(Model):
    """Layers that each of three graphs uses twice."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            value = value + self.mixed(torch.tanh(self.mixed(value)))
            torch._dynamo.graph_break()
        return value.square().mean()


class Left(Model):
    """What is read several times is not read again."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = torch.tanh(self.layers[3](value))
        torch._dynamo.graph_break()
        value = self.mixed(value) + value.t()[:WIDTH].t().repeat(1, 1)
        torch._dynamo.graph_break()
        return value.square().mean()


class Overwritten(Model):
    """What was read several times is overwritten in another graph, and read again."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.layers[3](value)
        torch._dynamo.graph_break()
        added = (value + 1.0) * 0.3 + value * 3.0 + value / 7.0
        torch._dynamo.graph_break()
        value.mul_(0.5)
        return (added + value).square().mean() + value.cos().mean()


class Aside(Model):
    """What a graph makes of a value is not part of the loss: eager leaves its layers alone."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = torch.tanh(self.layers[3](value))
        torch._dynamo.graph_break()
        self.kept = self.mixed(value)
        torch._dynamo.graph_break()
        return value.square().mean()


class Hooked(Model):
    """A hook watches the gradient of what two graphs read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.watched(torch.tanh(self.layers[3](value)))
        added = self.mixed(value)
        torch._dynamo.graph_break()
        return (value + added).square().mean()

    @torch.compiler.disable
    def watched(self, value: torch.Tensor) -> torch.Tensor:
        value.register_hook(lambda gradient: self.seen.append(gradient.clone()))
        return value


def numbers(module: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """The loss and the gradients of one step."""
    module.zero_grad()
    loss = module(batch)
    loss.backward()
    seen = getattr(module, "seen", [])
    return [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None), *seen]


class Sums(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(mock.patch.dict(os.environ, REKINDLE_CACHE="off"))

    def test_several_graphs_have_eagers_bits(self) -> None:
        for kind in (Residual, Shared, Left, Aside, Overwritten, Hooked):
            with self.subTest(kind=kind.__name__):
                # Of three small sums there is nothing to compute twice.
                self.assert_alike(kind, 1.0 if kind is Overwritten else 0.9)

    def test_under_autocast(self) -> None:
        for kind in (Left, Aside, Hooked):
            with self.subTest(kind=kind.__name__):
                self.assert_alike(kind, 0.9, torch.bfloat16)

    def assert_alike(
        self, kind: type[Model], share: float, autocast: torch.dtype | None = None
    ) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        module, batch = kind(), torch.randn(WIDTH, WIDTH)
        planned = rekindle.compile(copy.deepcopy(module), share, profile="roofline", effort=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                with torch.autocast("cpu", autocast, enabled=autocast is not None):
                    plain, ours = numbers(module, batch), numbers(planned, batch)
                self.assertEqual(len(plain), len(ours))
                for a, b in zip(plain, ours, strict=True):
                    self.assertTrue(torch.equal(a, b))


if __name__ == "__main__":
    unittest.main()
