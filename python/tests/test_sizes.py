"""Sizes that depend on values: numbers where they are known, another graph where they are not."""

import os
import unittest
import unittest.mock
import warnings

import torch
from torch import nn

import rekindle
from rekindle.torch.module import session_of

QUICK = {"effort": 1, "profile": "roofline"}


class Two(nn.Module):
    """Two layers, between which something has a size that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.second(self.between(torch.tanh(self.first(value)))).square().sum()

    def between(self, value: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Counted(Two):
    """Counts that are multiplied by eight numbers are eight."""

    def between(self, value: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(value.argmax(-1), minlength=8)
        return value * counts.float()[None].reshape(1, -1)


class Masked(Two):
    def between(self, value: torch.Tensor) -> torch.Tensor:
        return value[value[:, 0] > 0]


class Split(Two):
    """Sizes that Python asks for."""

    def between(self, value: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(value.argmax(-1), minlength=8).tolist()
        return torch.cat([part * 2 for part in value.split(counts)])


class Looped(Two):
    """A loop whose body ends a graph."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        total = value.new_zeros(())
        for at in range(2):
            total = total + self.second(value[value[:, at] > 0]).sum()
        return total


class Sizes(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.enterContext(unittest.mock.patch.dict(os.environ, REKINDLE_CACHE="off"))
        self.enterContext(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        torch.manual_seed(0)

    def train(self, module: nn.Module) -> int:
        """Compares two batches with eager; gives the most graphs of a step."""
        planned, most = rekindle.compile(module, 1.0, **QUICK), 0
        for _ in range(2):
            batch, found = torch.randn(32, 8), []
            for model in (module, planned):
                model.zero_grad()
                model(batch).backward()
                found.append([part.grad.clone() for part in module.parameters()])
            for ours, theirs in zip(*found, strict=True):
                self.assertTrue(torch.equal(ours, theirs))
            most = max(most, len(session_of(planned).call.runs))
        return most

    def test_a_size_that_follows_is_a_number(self) -> None:
        self.assertEqual(self.train(Counted()), 1)

    def test_a_size_that_does_not_ends_the_graph_before_it(self) -> None:
        for kind in (Masked, Split):
            with self.subTest(kind.__name__):
                torch._dynamo.reset()
                self.assertGreater(self.train(kind()), 1)

    def test_a_loop_that_cannot_be_captured_says_what_ends_the_graph(self) -> None:
        with self.assertRaisesRegex(rekindle.Unplanned, "depends on values.*inside a loop"):
            rekindle.compile(Looped(), 1.0, **QUICK)(torch.randn(32, 8))

    def test_tools_that_need_one_graph_say_which_size_it_is(self) -> None:
        with self.assertRaisesRegex(rekindle.UnknownSize, "a size that depends on values"):
            rekindle.profile(Masked(), torch.randn(32, 8))


if __name__ == "__main__":
    unittest.main()
