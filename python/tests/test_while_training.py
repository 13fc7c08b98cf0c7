"""Training begins with the first plan; the better one, and plans for other shapes, come later."""

import copy
import gc
import os
import unittest
import unittest.mock

import torch
from torch import nn

import rekindle
from rekindle.torch import better_plan, planning
from rekindle.torch.module import session_of

ROWS, WIDTH = 512, 32
SHARE = 0.7


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = [
            part
            for _ in range(5)
            for part in (nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.5), nn.Tanh())
        ]
        self.layers = nn.Sequential(*parts)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.layers(value).square().mean()


class Case(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.enterContext(unittest.mock.patch.dict(os.environ, REKINDLE_CACHE="off"))
        self.enterContext(unittest.mock.patch.object(planning, "LONG_SEARCH", 0))
        torch.manual_seed(0)
        self.module = Network()

    def plan(self, **options: object) -> nn.Module:
        module = copy.deepcopy(self.module)
        return rekindle.compile(module, SHARE, **{"profile": "roofline", "effort": 3, **options})

    def assert_step(self, planned: nn.Module, rows: int = ROWS) -> int:
        """A step gives eager's gradients; gives its peak."""
        value = torch.randn(rows, WIDTH)
        torch.manual_seed(rows)
        with rekindle.measure_peak([*planned.parameters(), value]) as measured:
            planned(value).backward()
        torch.manual_seed(rows)
        self.module(value).backward()
        for ours, theirs in zip(planned.parameters(), self.module.parameters(), strict=True):
            self.assertTrue(torch.equal(ours.grad, theirs.grad))
        planned.zero_grad()
        self.module.zero_grad()
        return measured.peak

    def finish(self, planned: nn.Module) -> None:
        """Waits for the better plans. They take their places in the next call."""
        for better in session_of(planned)._better.values():
            better._wait()


class Better(Case):
    def test_it_takes_the_first_ones_place_between_two_steps(self) -> None:
        planned = self.plan()
        peaks, used = [], []
        for _ in range(3):
            peaks.append(self.assert_step(planned))
            used += session_of(planned).planned
            self.finish(planned)
        first, better, same = used
        self.assertEqual(peaks, [step.peak for step in used])
        self.assertTrue(first.decided.better)
        self.assertLess(better.plan.time, first.plan.time)
        self.assertIs(better, same)
        self.assertLessEqual(max(peaks), first.plan.budget)
        waited = self.plan(wait=True)
        self.assert_step(waited)
        self.assertEqual(session_of(waited).planned[0].plan.steps(), better.plan.steps())

    def test_not_while_a_forward_waits_for_its_backward(self) -> None:
        planned, value = self.plan(), torch.randn(ROWS, WIDTH)
        torch.manual_seed(1)
        loss = planned(value)
        self.finish(planned)
        with self.assertWarns(rekindle.OverBudget):
            planned(value)
        self.assertTrue(session_of(planned).planned[0].decided.better)
        loss.backward()
        torch.manual_seed(1)
        self.module(value).backward()
        for ours, theirs in zip(planned.parameters(), self.module.parameters(), strict=True):
            self.assertTrue(torch.equal(ours.grad, theirs.grad))
        planned.zero_grad()
        self.module.zero_grad()
        self.assert_step(planned)
        self.assertFalse(session_of(planned).planned[0].decided.better)

    def test_it_is_checked_like_the_first(self) -> None:
        planned = self.plan(check=True)
        with unittest.mock.patch.object(
            better_plan.BetterPlan, "is_due", lambda self: self._wait() is not None
        ):
            for _ in range(3):
                planned(torch.randn(ROWS, WIDTH)).backward()
                planned.zero_grad()
        self.assertFalse(session_of(planned).planned[0].decided.better)

    def test_a_model_that_is_dropped_is_not_planned_on(self) -> None:
        planned = self.plan(effort=10)
        planned(torch.randn(ROWS, WIDTH)).backward()
        (better,) = session_of(planned)._better.values()
        thread = better._thread
        del planned, better
        torch._dynamo.reset()
        gc.collect()
        thread.join(60.0)
        self.assertFalse(thread.is_alive())


class Gradients(Case):
    """A step that finds gradients has a plan of its own, and is not captured again."""

    def test_accumulation(self) -> None:
        for options in ({"wait": True}, {}):
            planned = self.plan(**options)
            session, value = session_of(planned), torch.randn(ROWS, WIDTH)
            captured, numbers = [], []
            for micro in range(6):
                if micro % 3 == 0:
                    planned.zero_grad()
                    self.module.zero_grad()
                grads = [part.grad for part in planned.parameters() if part.grad is not None]
                torch.manual_seed(micro)
                with rekindle.measure_peak([*planned.parameters(), *grads, value]) as measured:
                    planned(value).backward()
                torch.manual_seed(micro)
                self.module(value).backward()
                for ours, theirs in zip(
                    planned.parameters(), self.module.parameters(), strict=True
                ):
                    self.assertTrue(torch.equal(ours.grad, theirs.grad))
                captured.append(len(session.call.captured))
                (number,) = session.call.runs
                numbers.append(number)
                self.assertEqual(measured.peak, session._running[number].modules.peak_of_storages)
                self.finish(planned)
            self.assertEqual(captured, [1, 0, 0, 0, 0, 0])
            self.assertEqual(numbers, [0, 1, 1, 0, 1, 1])
            without, found = session.planned
            self.assertGreater(found.graph.peak, without.graph.peak)

    def test_a_forward_that_waits_keeps_its_plan(self) -> None:
        planned, value = self.plan(wait=True), torch.randn(ROWS, WIDTH)
        planned(value).backward()
        planned.zero_grad()
        first = planned(value)
        for part in planned.parameters():
            part.grad = torch.zeros_like(part)
        with self.assertWarns(rekindle.OverBudget):
            second = planned(value)
        second.backward()
        first.backward()
        self.assertEqual(len(session_of(planned).planned), 2)


class Shapes(Case):
    def test_a_smaller_one_is_planned_from_a_larger_one(self) -> None:
        planned = self.plan(profile="measure")
        self.assert_step(planned)
        with unittest.mock.patch.object(
            planning, "time_nodes", side_effect=AssertionError("nothing is to be measured")
        ):
            for rows in (ROWS // 2, ROWS - 1, ROWS // 2):
                self.finish(planned)
                peak = self.assert_step(planned, rows)
                self.assertLessEqual(peak, session_of(planned).largest_budget)
        budgets = {step.plan.budget for step in session_of(planned).planned}
        self.assertEqual(len(budgets), 1, "the share is one of the largest step")
        self.assertEqual(len(session_of(planned).planned), 3)

    def test_a_larger_one_is_measured_and_raises_the_budget(self) -> None:
        planned = self.plan(wait=True)
        for rows in (ROWS // 2, ROWS):
            self.assert_step(planned, rows)
        small, large = session_of(planned).planned
        self.assertLess(small.plan.budget, large.plan.budget)
        self.assertEqual(large.plan.budget, int(SHARE * large.graph.peak))


if __name__ == "__main__":
    unittest.main()
