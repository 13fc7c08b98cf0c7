"""`inductor=True`: what a step takes is known before it runs, and the budget is held."""

import unittest
from unittest import mock

import torch
from test_compile import Case, Layers
from torch import nn

import rekindle
from rekindle.settings import Settings
from rekindle.torch.capture import capture
from rekindle.torch.inductor import CompiledStep
from rekindle.torch.inductor_budget import InductorPlans
from rekindle.torch.lower import lower
from rekindle.torch.module import session_of
from rekindle.torch.wrapper_bytes import Call, Like, Scratch

GENERATOR = torch.get_rng_state().nbytes


class Mixed(nn.Module):
    """A convolution, which takes scratch, attention with dropout, and statistics of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        return self.layer(x.flatten(2).transpose(1, 2)).square().mean()


class Budget(Case):
    def test_the_foreseen_peak_is_the_measured_one(self) -> None:
        """To the byte, on a step with scratch, repeated draws and several kernels."""
        model = rekindle.compile(Mixed(), 0.88, profile="roofline", effort=1, inductor=True)
        for _ in range(2):
            model(torch.randn(2, 3, 8, 8)).backward()
            for part in model.parameters():
                part.grad = None
        (report,) = rekindle.report(model).graphs
        self.assertGreater(report.recomputed, 0)
        self.assertEqual(report.measured_peak, report.peak)
        self.assertLessEqual(report.peak, report.budget)
        (planned,) = session_of(model).planned
        self.assertEqual(planned.compiled.forward.scopes, [], "kernels were left uncompiled")

    def test_a_lower_budget_has_no_higher_peak(self) -> None:
        """And one that cannot be held is refused with the smallest that can, which holds."""
        joint = capture(Layers(depth=3), torch.randn(64, 32))
        lowered, plans = lower(joint), InductorPlans()
        plain = lowered.graph.peak

        def peak_for(budget: int) -> int:
            settings = Settings(budget, "roofline", effort=0)
            return plans.plan(joint, settings, lowered).peak

        few = mock.patch("rekindle.torch.inductor_budget.LEVELS", 4)
        with few, mock.patch.object(CompiledStep, "compile_kernels"):
            peaks = {budget: peak_for(budget) for budget in (plain, plain * 3 // 4)}
            with self.assertRaises(rekindle.InfeasibleBudget) as refused:
                peak_for(plain // 8)
            smallest = refused.exception.smallest
            peaks[smallest] = peak_for(smallest)
        self.assertTrue(all(peak <= budget for budget, peak in peaks.items()), peaks)
        self.assertEqual(sorted(peaks.values(), reverse=True), list(peaks.values()))
        self.assertEqual(peaks[smallest], smallest)
        self.assertIn("as Inductor runs it", str(refused.exception))


class Inside(Case):
    def test_scratch_is_what_an_operation_takes_beside_its_results(self) -> None:
        """A draw from a state puts the generator's state aside meanwhile."""
        like = Like((256,), (1,), torch.float32, torch.device("cpu"))
        add = Call(torch.ops.aten.add.Tensor, (like, like), {})
        into = Call(torch.ops.aten.add.out, (like, like), {"out": like})
        replay = torch.ops.higher_order.run_with_rng_state
        state = Like((GENERATOR,), (1,), torch.uint8, torch.device("cpu"))
        again = Call(replay, (state, torch.ops.aten.bernoulli.p, like, 0.5), {})
        before = torch.get_rng_state()
        scratch = Scratch()
        self.assertEqual(scratch.of([add, into, add]), [1024, 0, 1024])
        self.assertGreaterEqual(scratch.of([again])[0], 1024 + GENERATOR)
        self.assertTrue(torch.equal(before, torch.get_rng_state()), "something was drawn")


if __name__ == "__main__":
    unittest.main()
