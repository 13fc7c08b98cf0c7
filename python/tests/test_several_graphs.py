"""A step of several graphs: the budget holds for all of them together."""

import os
import unittest
import unittest.mock
import warnings

import torch
from torch import nn

import rekindle
from rekindle.settings import Settings
from rekindle.torch.flow import Flow
from rekindle.torch.module import session_of
from rekindle.torch.session import Session
from rekindle.torch.several_graphs import largest_share
from rekindle.torch.states import TRANSITIONS, State


QUICK = {"effort": 1, "profile": "roofline"}
"""What is tested is that plans fit together; with a cost model in place of a clock they are the
same in every run.
"""


class Broken(nn.Module):
    """Two halves between which the graph must break."""

    def __init__(self, layers: int = 6, width: int = 64) -> None:
        super().__init__()
        half = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
        self.first, self.second = (
            nn.Sequential(*half),
            nn.Sequential(
                *(type(p)(width, width) if isinstance(p, nn.Linear) else p for p in half)
            ),
        )

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.first(value)
        torch._dynamo.graph_break()
        return self.second(value).square().mean()


class Apart(Broken):
    """Two halves that are captured apart, although no graph breaks."""

    @torch.compiler.disable(recursive=False)
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.end(self.begin(value))

    def begin(self, value: torch.Tensor) -> torch.Tensor:
        return self.first(value)

    def end(self, value: torch.Tensor) -> torch.Tensor:
        return self.second(value).square().mean()


class Turned(nn.Module):
    """Its second half lays out a picture, and its gradient, in another way than the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 10, 3), nn.LayerNorm(10)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.first(value)
        torch._dynamo.graph_break()
        return self.second(value.permute(0, 2, 3, 1)).tanh().square().mean()


def step(module: nn.Module, batch: torch.Tensor) -> tuple[int, list[torch.Tensor]]:
    """The peak and the gradients of one step."""
    module.zero_grad()
    with rekindle.measure_peak([*module.parameters(), batch]) as measured:
        module(batch).backward()
    return measured.peak, [parameter.grad.clone() for parameter in module.parameters()]


class Together(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.enterContext(unittest.mock.patch.dict(os.environ, REKINDLE_CACHE="off"))
        torch.manual_seed(0)
        self.module, self.batch = Broken(), torch.randn(512, 64)

    def test_the_peak_of_both_halves_holds_from_the_first_step(self) -> None:
        plain_peak, plain = step(self.module, self.batch)
        budget = plain_peak * 6 // 10
        model = rekindle.compile(self.module, budget, **QUICK)
        for _ in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", rekindle.UnplannedPart)
                warnings.simplefilter("error", rekindle.OverBudget)
                peak, gradients = step(model, self.batch)
            self.assertLessEqual(peak, budget)
            for ours, theirs in zip(gradients, plain, strict=True):
                self.assertTrue(torch.equal(ours, theirs))
        session = session_of(model)
        self.assertEqual(len(session.planned), 2)
        self.assertIs(session.state, State.RUNNING)

    def test_a_gradient_crosses_as_eager_lays_it_out(self) -> None:
        module, batch = Turned(), torch.randn(8, 3, 18, 18)
        _, plain = step(module, batch)
        for share in (0.85, 1.0):
            model = rekindle.compile(module, share, **QUICK)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(3):
                    _, gradients = step(model, batch)
                    for ours, theirs in zip(gradients, plain, strict=True):
                        self.assertTrue(torch.equal(ours, theirs))
            self.assertEqual(len(session_of(model).planned), 2)

    def test_halves_that_are_captured_apart(self) -> None:
        """That there are two is seen when both have run: the first step is said to need more, the
        later ones fit.
        """
        module = Apart()
        plain_peak, plain = step(module, self.batch)
        model = rekindle.compile(module, plain_peak * 7 // 10, **QUICK)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                peak, gradients = step(model, self.batch)
                self.assertTrue(
                    all(
                        torch.equal(ours, theirs)
                        for ours, theirs in zip(gradients, plain, strict=True)
                    )
                )
        self.assertLessEqual(peak, plain_peak * 7 // 10)
        self.assertEqual(len(session_of(model).planned), 2)

    def test_room_is_used_once_it_is_known(self) -> None:
        """The first pass saves as little as it can; a budget as large as the plain step's lets the
        second keep everything.
        """
        plain_peak, _ = step(self.module, self.batch)
        model = rekindle.compile(self.module, 2 * plain_peak, **QUICK)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rekindle.UnplannedPart)
            first, _ = step(model, self.batch)
            second, _ = step(model, self.batch)
        self.assertLess(first, second)

    def test_an_infeasible_budget_names_one_that_works(self) -> None:
        model = rekindle.compile(self.module, 300_000, **QUICK)
        with warnings.catch_warnings(), self.assertRaises(rekindle.InfeasibleBudget) as caught:
            warnings.simplefilter("ignore", rekindle.UnplannedPart)
            for _ in range(2):
                step(model, self.batch)
        self.assertIs(session_of(model).state, State.FAILED)
        with self.assertRaises(rekindle.InfeasibleBudget) as again:
            step(model, self.batch)
        self.assertIs(again.exception, caught.exception, "it is said again, and not planned again")
        smallest = caught.exception.smallest
        torch._dynamo.reset()
        model = rekindle.compile(self.module, smallest, **QUICK)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rekindle.UnplannedPart)
            peaks = [step(model, self.batch)[0] for _ in range(2)]
        self.assertLessEqual(peaks[-1], smallest)

    def test_a_first_step_above_the_budget_is_said(self) -> None:
        plain_peak, _ = step(self.module, self.batch)
        model = rekindle.compile(self.module, plain_peak // 3, **QUICK)
        with (
            warnings.catch_warnings(),
            self.assertWarnsRegex(
                rekindle.OverBudget, "may need .* bytes, .* more than the budget"
            ),
        ):
            warnings.simplefilter("ignore", rekindle.UnplannedPart)
            step(model, self.batch)

    def test_a_backend_refuses_a_second_graph(self) -> None:
        model = torch.compile(self.module, backend=rekindle.backend(10**9, **QUICK), dynamic=False)
        with self.assertRaisesRegex(rekindle.SplitStep, "use rekindle.compile.*graph_break"):
            model(self.batch)

    def test_the_warning_says_where_the_graph_breaks(self) -> None:
        with self.assertWarnsRegex(rekindle.UnplannedPart, "2 graphs.*graph_break"):
            step(rekindle.compile(self.module, 10**9, **QUICK), self.batch)


class Handed(unittest.TestCase):
    """What graphs hand to one another."""

    def test_a_value_that_is_given_and_taken_is_one(self) -> None:
        flow, value, other = Flow(), torch.zeros(4), torch.zeros(2)
        first = flow.begin(0, [torch.ones(3)])
        flow.give(first, [value, other, None])
        second = flow.begin(1, [value.view(2, 2)])
        flow.give(second, [torch.zeros(())])
        flow.end({"hidden": [other[:1]]})
        self.assertEqual(list(first.taken.values()), [12])
        self.assertEqual(first.given[0], second.taken)
        self.assertEqual(first.handed_on, {0, 2}, "the caller gets the second")
        self.assertEqual(first.returned, set(first.given[1]))

    def test_a_block_where_another_was_is_another(self) -> None:
        flow = Flow()
        value = torch.zeros(4)
        first = flow.begin(0, [value])
        del value
        second = flow.begin(0, [torch.zeros(4)])
        self.assertTrue(first.taken.keys().isdisjoint(second.taken))

    def test_the_share_is_one_of_the_peak_that_is_there(self) -> None:
        """What two graphs share is counted once, so the plain step is not taken for more than it
        is.
        """
        torch._dynamo.reset()
        module, batch = Broken(), torch.randn(512, 64)
        plain_peak, _ = step(module, batch)
        with (
            unittest.mock.patch.dict(os.environ, REKINDLE_CACHE="off"),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            model = rekindle.compile(module, 0.7, **QUICK)
            peaks = [step(model, batch)[0] for _ in range(2)]
        self.assertLessEqual(peaks[-1], session_of(model).largest_budget)
        self.assertLessEqual(session_of(model).largest_budget, 0.75 * plain_peak)


class States(unittest.TestCase):
    def session(self, *, is_split: bool = False) -> Session:
        session = Session(Settings(0.5))
        session.attach(lambda: (0, 0), is_split=is_split)
        return session

    def test_only_what_is_listed_follows(self) -> None:
        self.assertEqual(set(TRANSITIONS), set(State))
        for before, after in ((b, a) for b in State for a in State):
            session = self.session()
            session.state = before
            if after in TRANSITIONS[before]:
                session._go(after)
                self.assertIs(session.state, after)
            else:
                with self.assertRaises(AssertionError):
                    session._go(after)

    def test_where_a_session_begins(self) -> None:
        self.assertIs(Session(Settings(0.5)).state, State.BACKEND)
        self.assertIs(self.session().state, State.ONE_GRAPH)
        self.assertIs(self.session(is_split=True).state, State.COLLECTING)

    def test_a_second_graph_makes_it_collect_and_an_interruption_leaves_it_there(self) -> None:
        session = self.session()
        session.begin(0)
        session.call.runs += [0, 1]
        session._note_split()
        self.assertIs(session.state, State.COLLECTING)
        with (
            unittest.mock.patch.object(session, "_step", side_effect=KeyboardInterrupt),
            self.assertRaises(KeyboardInterrupt),
        ):
            session.plan_together()
        self.assertIs(session.state, State.COLLECTING)


class Shares(unittest.TestCase):
    def test_the_largest_that_fits_is_found(self) -> None:
        for limit in (0.0, 0.3, 0.5, 1.0):
            found = largest_share(lambda share: share <= limit)
            self.assertLessEqual(found, limit)
            self.assertGreater(found + 1 / 16, limit)
        self.assertIsNone(largest_share(lambda share: False))


if __name__ == "__main__":
    unittest.main()
