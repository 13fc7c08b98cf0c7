"""The parts of the contest with PyTorch's own ways that decide whether it is fair."""

import sys
import unittest
from pathlib import Path

import torch
from torch.fx.experimental.proxy_tensor import make_fx

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from batch_norm import separate_statistics
from contenders import Kind
from torch_contest import budgets

aten = torch.ops.aten
MIB = 1 << 20


class Budgets(unittest.TestCase):
    def test_peaks_that_are_near_share_the_lowest(self) -> None:
        peaks = {
            "eager": 1000 * MIB,
            "checkpoint": 500 * MIB,
            "torch 0.7": 604 * MIB,
            "torch 0.5": 600 * MIB,
        }
        self.assertEqual(
            budgets(peaks, lasting=100 * MIB),
            {
                "rekindle at eager": Kind("rekindle", 1000 * MIB),
                "rekindle at torch 0.5 and torch 0.7": Kind("rekindle", 600 * MIB),
                "rekindle at checkpoint": Kind("rekindle", 500 * MIB),
                "rekindle at 0.75 of the lowest": Kind("rekindle", 400 * MIB),
            },
        )

    def test_there_are_three_at_least(self) -> None:
        found = budgets({"eager": 500 * MIB, "checkpoint": 500 * MIB}, lasting=100 * MIB)
        self.assertEqual(
            [kind.budget for kind in found.values()], [500 * MIB, 400 * MIB, 440 * MIB]
        )


class SeparateStatistics(unittest.TestCase):
    def test_gives_what_the_single_operation_gives(self) -> None:
        """Bit for bit where it normalises. Running statistics take another way to the same value: a
        square root and back costs a few units in the last place.
        """
        torch.manual_seed(0)
        value = torch.randn(4, 3, 5, 5)
        parts = [torch.rand(3) for _ in range(4)]

        def normalise(value: torch.Tensor, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return aten._native_batch_norm_legit_functional(value, *parts, True, 0.1, 1e-5)

        expected = normalise(value, *parts)
        traced = make_fx(normalise, tracing_mode="fake")(value, *parts)
        separate_statistics(traced.graph)
        traced.recompile()
        operations = {node.target for node in traced.graph.nodes}
        self.assertNotIn(aten._native_batch_norm_legit_functional.default, operations)
        found = traced(value, *parts)
        for before, after in zip(expected[:3], found[:3]):
            self.assertTrue(torch.equal(before, after))
        for before, after in zip(expected[3:], found[3:]):
            torch.testing.assert_close(after, before, rtol=16 * torch.finfo().eps, atol=0)


if __name__ == "__main__":
    unittest.main()
