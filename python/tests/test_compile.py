"""What `rekindle.compile` promises beside the numbers: checks, caches, names, reports, refusals."""

import copy
import io
import os
import pickle
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch
from torch import nn

import rekindle
from rekindle import _native, cache
from rekindle.torch import planning
from rekindle.torch.module import runner_of, session_of


class Layers(nn.Module):
    """Wide layers with dropout between, and a loss."""

    def __init__(self, dropout: float = 0.5, depth: int = 6) -> None:
        super().__init__()
        parts = [
            part
            for _ in range(depth)
            for part in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(dropout))
        ]
        self.layers = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


class Chooses(nn.Module):
    """A layer, another one in long steps, and one in none."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.at_times, self.never = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: torch.Tensor, is_long: bool) -> torch.Tensor:
        found = self.always(x).tanh()
        if is_long:
            found = self.at_times(found).tanh()
        return found.square().mean()


class Noise(nn.Module):
    """Scales every number by one that is drawn."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(x.shape)


class Noisy(Layers):
    """What is drawn is as large as what it scales, so that a plan draws it again."""

    def __init__(self) -> None:
        super().__init__()
        parts = [Noise() if isinstance(part, nn.Dropout) else part for part in self.layers]
        self.layers = nn.Sequential(*parts)


class Average(nn.Module):
    """Reads a buffer in the forward, and overwrites it after."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))
        self.register_buffer("average", torch.full((64, 64), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The sine keeps the sum for its gradient, and the sum cannot be made again from a buffer
        # that has moved on.
        scaled = torch.sin(self.weight + self.average)
        result = torch.sin(torch.sin(x @ scaled)) @ scaled
        self.average.mul_(0.9).add_(result.detach().mean(), alpha=0.1)
        return result.square().mean()


class Nested(nn.Module):
    """Takes its input out of containers."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module

    def forward(self, batch: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        return self.inner(batch["x"][0])


class Named(nn.Module):
    """Its parts have the name that a planned module gives its own."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)
        self.module.module = nn.BatchNorm1d(2)
        self.module.module.module = nn.Linear(3, 3)


class Scaled(nn.Module):
    """Multiplies by a number that is an attribute."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


class Counting(nn.Module):
    """Counts its steps in a buffer, and adds noise of its own between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.register_buffer("steps", torch.zeros(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        for layer in self.layers:
            x = torch.tanh(layer(x))
            x = torch.sin(x + torch.randn(x.shape))
        return x.square().mean()


BATCH = 512


def compiled(module: nn.Module, budget: object = 0.6, **options: object) -> rekindle.PlannedModule:
    return rekindle.compile(module, budget, **{"profile": "roofline", "effort": 1, **options})


class Case(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        torch.manual_seed(3)
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(mock.patch.dict(os.environ, REKINDLE_CACHE=self.folder))

    def assert_trains_alike(self, module: nn.Module, planned: nn.Module, x: torch.Tensor) -> None:
        """Two steps from the same state and seed give the same bits."""
        for part in (module, planned):
            torch.manual_seed(9)
            for _ in range(2):
                part.zero_grad()
                part(x).backward()
        for (name, a), (_, b) in zip(
            module.named_parameters(), planned.named_parameters(), strict=True
        ):
            self.assertTrue(torch.equal(a.grad, b.grad), name)
        for (name, a), (_, b) in zip(module.named_buffers(), planned.named_buffers(), strict=True):
            self.assertTrue(torch.equal(a, b), name)


class Numbers(Case):
    def test_a_draw_that_is_made_again_is_the_same(self) -> None:
        module = Noisy()
        planned = compiled(copy.deepcopy(module))
        self.assert_trains_alike(module, planned, torch.randn(BATCH, 32))
        (step,) = session_of(planned).planned
        runs = [node for kind, node in step.plan.steps() if kind == "run"]
        drawn = {step.lowered.index[node] for node in step.lowered.token_of}
        self.assertTrue(any(runs.count(node) > 1 for node in drawn), "no draw was repeated")

    def test_an_overwritten_buffer_is_read_as_it_was(self) -> None:
        module = Average()
        planned = compiled(copy.deepcopy(module), 1.0)
        x = torch.randn(BATCH, 64)
        self.assert_trains_alike(module, planned, x)
        (step,) = session_of(planned).planned
        torch._dynamo.reset()
        budget = int(0.3 * step.graph.floor + 0.7 * step.graph.peak)
        self.assert_trains_alike(Average(), compiled(Average(), budget), x)

    def test_a_buffer_that_is_assigned_counts_what_replaces_it(self) -> None:
        planned, x = compiled(Counting(), 1.0), torch.randn(BATCH, 32)
        with rekindle.measure_peak([*planned.parameters(), *planned.buffers(), x]) as measured:
            planned(x).backward()
        (step,) = session_of(planned).planned
        # AOTAutograd drops what it is handed where it is the input's new content, which no graph
        # says: that much is counted too many.
        self.assertIn(step.peak - measured.peak, (0, planned.steps.untyped_storage().nbytes()))
        self.assertEqual(step.modules.replaced_bytes, 0, "it is handed out too")

    def test_a_draw_with_a_device_is_made_again(self) -> None:
        module, x = Counting(), torch.randn(BATCH, 32)
        planned = compiled(copy.deepcopy(module))
        self.assert_trains_alike(module, planned, x)
        self.assertGreater(rekindle.report(planned).graphs[0].recomputed, 0)

    def test_measuring_draws_nothing(self) -> None:
        torch.manual_seed(4)
        compiled(Layers(), 1.0, profile="measure")(torch.randn(8, 32))
        after = torch.rand(1)
        torch.manual_seed(4)
        Layers()(torch.randn(8, 32))
        self.assertEqual(after.item(), torch.rand(1).item())

    def test_a_hook_that_comes_and_goes(self) -> None:
        module, x = Layers(dropout=0.0), torch.randn(BATCH, 32)
        planned = compiled(copy.deepcopy(module))
        self.assert_trains_alike(module, planned, x)
        hooks = [
            part.layers[0].register_forward_hook(lambda _module, _inputs, result: 2 * result)
            for part in (module, planned)
        ]
        self.assert_trains_alike(module, planned, x)
        for hook in hooks:
            hook.remove()
        self.assert_trains_alike(module, planned, x)
        self.assertEqual(len(rekindle.report(planned).graphs), 2)

    def test_without_gradients_it_runs_as_it_is(self) -> None:
        module = Layers().eval()
        planned = compiled(copy.deepcopy(module))
        x = torch.randn(8, 32)
        with torch.no_grad():
            self.assertTrue(torch.equal(planned(x), module(x)))
        self.assertEqual(session_of(planned).planned, [])

    def test_a_backend_for_torch_compile(self) -> None:
        module, backend = Layers(), rekindle.backend(0.6, profile="roofline", effort=1)
        planned = torch.compile(copy.deepcopy(module), backend=backend, dynamic=False)
        self.assert_trains_alike(module, planned, torch.randn(BATCH, 32))
        self.assertEqual(len(rekindle.report(backend).graphs), 1)


class Checking(Case):
    def test_a_right_plan_passes(self) -> None:
        planned = compiled(Layers(), check=True)
        for _ in range(2):
            planned(torch.randn(BATCH, 32)).backward()

    def test_a_draw_that_is_not_repeated_is_found(self) -> None:
        planned = compiled(Noisy(), check=True)
        forgetful = mock.patch("rekindle.torch.randomness._set_state")
        loss = planned(torch.randn(BATCH, 32))
        with forgetful, self.assertRaisesRegex(rekindle.CheckFailed, "gradient"):
            loss.backward()

    def test_a_module_that_saves_something_else_is_refused(self) -> None:
        with mock.patch.object(planning, "inject", wraps=planning.inject) as inject:
            compiled(Layers())(torch.randn(BATCH, 32)).backward()
        joint, lowered, steps = inject.call_args_list[0].args
        boundary = steps.index(("run", lowered.boundary))
        freed = next(
            s
            for s in steps[boundary:]
            if s[0] == "free" and _made_before(lowered, joint, steps[:boundary], s[1])
        )
        without = [step for step in steps if step != freed]
        never_read = [
            *without[:boundary],
            ("run", lowered.boundary),
            freed,
            *without[boundary + 1 :],
        ]
        with self.assertRaises(rekindle.RekindleError):
            planning.inject(joint, lowered, never_read)


def _made_before(lowered, joint, steps, storage: int) -> bool:
    made = {s.index for kind, n in steps if kind == "run" for s in joint.made(lowered.nodes[n])}
    return storage in made


class Caching(Case):
    def test_a_plan_is_found_again_and_gives_the_same_step(self) -> None:
        x = torch.randn(BATCH, 32)
        first = compiled(Layers(), profile="measure")
        first(x).backward()
        torch._dynamo.reset()
        again = compiled(Layers(), profile="measure")
        again(x).backward()
        (a,), (b,) = session_of(first).planned, session_of(again).planned
        self.assertEqual((a.decided.from_disk, b.decided.from_disk), (False, True))
        self.assertEqual(a.plan.steps(), b.plan.steps())

    def test_another_budget_or_shape_is_another_plan(self) -> None:
        compiled(Layers())(torch.randn(BATCH, 32))
        torch._dynamo.reset()
        for budget, batch in ((0.7, BATCH), (0.6, BATCH + 1)):
            planned = compiled(Layers(), budget)
            planned(torch.randn(batch, 32))
            self.assertFalse(session_of(planned).planned[0].decided.from_disk)

    def test_a_damaged_file_is_said_and_made_anew(self) -> None:
        depth = {"depth": 2}
        compiled(Layers(**depth), 1.0)(torch.randn(BATCH, 32))
        (file,) = Path(self.folder).glob("*.json")
        good = file.read_text()
        for bad in (
            good.replace("peak_bytes", "peek_bytes"),
            "",
            "[]",
            good[:100],
            '{"format": "rekindle.cache/1", "graph": 3, "plan": []}',
        ):
            file.write_text(bad)
            torch._dynamo.reset()
            planned = compiled(Layers(**depth), 1.0)
            with self.assertWarnsRegex(UserWarning, "damaged"):
                planned(torch.randn(BATCH, 32))
            self.assertFalse(session_of(planned).planned[0].decided.from_disk)

    def test_a_file_with_another_plan_is_not_taken(self) -> None:
        entries = []
        for depth, budget in ((2, 1.0), (3, 1.0), (2, 0.9)):
            torch._dynamo.reset()
            compiled(Layers(depth=depth), budget)(torch.randn(BATCH, 32))
            (new,) = set(Path(self.folder).glob("*.json")) - {file for file, _ in entries}
            entries.append((new, new.read_text()))
        for (_, other), why in zip(entries[1:], ("another graph", "its budget"), strict=True):
            entries[0][0].write_text(other)
            torch._dynamo.reset()
            with self.assertWarnsRegex(UserWarning, why):
                compiled(Layers(depth=2), 1.0)(torch.randn(BATCH, 32))

    def test_where_plans_are_kept(self) -> None:
        for given, expected in (
            ("OFF", None),
            ("off", None),
            ("~/plans", Path.home() / "plans"),
            ("/plans", Path("/plans")),
        ):
            with mock.patch.dict(os.environ, REKINDLE_CACHE=given):
                self.assertEqual(cache.folder(), expected)


class Module(Case):
    def test_names_and_states_are_the_modules_own(self) -> None:
        module = Layers()
        planned = compiled(module)
        self.assertEqual(
            [n for n, _ in planned.named_parameters()], [n for n, _ in module.named_parameters()]
        )
        self.assertEqual(list(planned.state_dict()), list(module.state_dict()))
        planned.load_state_dict(Layers().state_dict())
        outer = nn.Sequential(compiled(Layers()))
        self.assertEqual(list(outer.state_dict()), list(nn.Sequential(Layers()).state_dict()))
        outer.load_state_dict(nn.Sequential(Layers()).state_dict())
        self.assertIs(planned.layers, module.layers)

    def test_a_module_that_calls_a_part_module(self) -> None:
        module, prefixed = Named(), Named()
        planned = compiled(module)
        expected = module.state_dict()
        self.assertEqual(list(planned.state_dict()), list(expected))
        self.assertEqual(planned.state_dict()._metadata, expected._metadata)
        planned.load_state_dict(prefixed.state_dict())
        for (name, a), b in zip(
            planned.state_dict().items(), prefixed.state_dict().values(), strict=True
        ):
            self.assertTrue(torch.equal(a, b), name)
        self.assertEqual(
            [n for n, _ in planned.named_parameters("amodule.b")],
            [n for n, _ in module.named_parameters("amodule.b")],
        )
        outer = nn.Sequential(planned)
        outer.load_state_dict(outer.state_dict())
        self.assertEqual(outer.state_dict()._metadata, nn.Sequential(module).state_dict()._metadata)

    def test_what_is_set_is_set_in_the_module(self) -> None:
        module, x = Layers(dropout=0.0), torch.randn(BATCH, 32)
        planned = compiled(copy.deepcopy(module))
        for part in (module, planned):
            part.scale, part.gone, part.training = 1.0, 2.0, False
            part.factor = nn.Parameter(torch.ones(3))
            part.register_buffer("count", torch.zeros(1))
            part.add_module("more", nn.Linear(1, 1))
            part.layers[0] = nn.Identity()
            del part.gone
        self.assertEqual(vars(planned).keys(), vars(module).keys())
        self.assertIs(vars(planned), vars(runner_of(planned).module))
        self.assertEqual(list(planned.state_dict()), list(module.state_dict()))
        self.assertFalse(runner_of(planned).module.training)
        self.assertFalse(hasattr(planned, "gone"))
        planned.train()
        planned.load_state_dict(module.train().state_dict())
        for size in (1.0, 5.0):
            module.layers[1] = planned.layers[1] = Scaled(size)
            self.assertTrue(torch.equal(planned(x), module(x)))

    def test_a_copy_is_planned_anew_in_the_same_budget(self) -> None:
        module, x = Layers(dropout=0.0), torch.randn(BATCH, 32)
        optimizer = torch.optim.Adam(module.parameters())
        planned = compiled(module, 0.7, optimizer=optimizer)
        planned(x).backward()
        file = io.BytesIO()
        torch.save(planned, file)
        file.seek(0)
        copies = [
            copy.deepcopy(planned),
            pickle.loads(pickle.dumps(planned)),
            torch.load(file, weights_only=False),
        ]
        copies.append(torch.optim.swa_utils.AveragedModel(planned).module)
        for other in copies:
            self.assertEqual(session_of(other).planned, [])
            other.zero_grad()
            self.assert_trains_alike(module, other, x)
            self.assertEqual(
                session_of(other).planned[-1].plan.to_json(),
                session_of(planned).planned[0].plan.to_json(),
            )
            self.assertNotEqual(*(next(part.parameters()).data_ptr() for part in (other, planned)))
        self.assertIs(session_of(copies[0]).kept.optimizer, optimizer)
        self.assertIsNone(session_of(copies[1]).kept.optimizer)

    def test_shapes_without_gradients_are_not_compiled(self) -> None:
        planned = compiled(Layers())
        with torch.no_grad():
            for batch in range(1, 6):
                planned(torch.randn(batch, 32))
        planned(torch.randn(BATCH, 32)).backward()
        self.assertEqual(len(runner_of(planned).compiled), 1)

    def test_each_shape_has_its_plan(self) -> None:
        planned = compiled(Layers())
        for batch in (BATCH, 2 * BATCH, BATCH):
            planned.zero_grad()
            planned(torch.randn(batch, 32)).backward()
        self.assertEqual(len(rekindle.report(planned).graphs), 2)

    def test_the_optimizers_state_counts_before_it_is_there(self) -> None:
        module = Layers()
        optimizer = torch.optim.Adam(module.parameters())
        planned = compiled(module, 1.0, optimizer=optimizer)
        planned(torch.randn(BATCH, 32)).backward()
        optimizer.step()
        made = sum(
            value.untyped_storage().nbytes()
            for state in optimizer.state.values()
            for value in state.values()
        )
        self.assertEqual(session_of(planned).held_by_others(), {"optimizer state": made})
        self.assertIn("optimizer state", rekindle.report(planned).graphs[0].bytes_by_role)

    def test_an_optimizer_keeps_nothing_for_what_gets_no_gradient(self) -> None:
        module, x = Chooses(), torch.randn(BATCH, 32)
        optimizer = torch.optim.AdamW(module.parameters())
        planned = compiled(module, 1.0, optimizer=optimizer)
        for is_long in (False, True, False):
            planned.zero_grad()
            planned(x, is_long).backward()
            optimizer.step()
        planned.zero_grad()
        made = [value for state in optimizer.state.values() for value in state.values()]
        # The short step was captured first, when what the long one trains was not known.
        for is_long, report in ((True, 1), (False, 2)):
            with rekindle.measure_peak([*module.parameters(), x, *made]) as measured:
                planned(x, is_long).backward()
            planned.zero_grad()
            self.assertEqual(measured.peak, rekindle.report(planned).graphs[report].plain_peak)

    def test_a_report_is_readable(self) -> None:
        planned = compiled(Layers())
        self.assertIn("nothing planned yet", str(rekindle.report(planned)))
        planned(torch.randn(BATCH, 32)).backward()
        (graph,) = rekindle.report(planned).graphs
        self.assertLess(graph.peak, graph.plain_peak)
        self.assertGreater(graph.overhead, 0.0)
        self.assertEqual(
            sum(graph.bytes_by_role.values()), session_of(planned).planned[0].plan.peak
        )
        for word in ("peak", "recomputes", "kept", "recomputed:"):
            self.assertIn(word, str(graph))
        with self.assertRaisesRegex(rekindle.RekindleError, "not compiled by rekindle"):
            rekindle.report(Layers())


class Refusals(Case):
    def test_a_budget_that_cannot_be_met_is_an_error_with_the_smallest(self) -> None:
        with self.assertRaises(rekindle.InfeasibleBudget) as caught:
            compiled(Layers(), 1000)(torch.randn(BATCH, 32))
        self.assertIsNone(caught.exception.__cause__)
        torch._dynamo.reset()
        compiled(Layers(), caught.exception.smallest)(torch.randn(BATCH, 32)).backward()

    def test_options_that_make_no_sense(self) -> None:
        for budget in (0.0, 1.5, True, None):
            with self.assertRaises(rekindle.InvalidInput):
                compiled(Layers(), budget)
        with self.assertRaises(rekindle.InvalidInput):
            compiled(Layers(), profile="guess")


class Found(Case):
    """What a step finds in memory counts."""

    def test_gradients_of_an_earlier_step(self) -> None:
        module, x = Layers(), torch.randn(BATCH, 32)
        torch.manual_seed(9)
        for _ in range(3):
            module(x).backward()
        other = Layers()
        other.load_state_dict(module.state_dict())
        planned = compiled(other, 470_000)
        torch.manual_seed(9)
        peaks = []
        for _ in range(3):
            there = [part.grad for part in other.parameters() if part.grad is not None]
            with rekindle.measure_peak([*other.parameters(), *there, x]) as measured:
                planned(x).backward()
            peaks.append(measured.peak)
        for part, expected in zip(other.parameters(), module.parameters(), strict=True):
            self.assertTrue(torch.equal(part.grad, expected.grad))
        first, later = session_of(planned).planned
        self.assertEqual(peaks, [first.peak, later.peak, later.peak])
        self.assertLessEqual(max(peaks), 470_000)
        self.assertGreater(later.plan.time, first.plan.time, "less room, more to recompute")
        other.zero_grad()
        planned(x).backward()
        self.assertEqual(len(session_of(planned).planned), 2, "the first plan serves again")

    def test_gradients_of_inputs_and_of_what_was_frozen(self) -> None:
        module, x = Layers(), torch.randn(BATCH, 32, requires_grad=True)
        planned = compiled(Nested(module), 1.0)
        planned({"x": [x]}).backward()
        module.layers[0].requires_grad_(False)
        there = [part.grad for part in (*module.parameters(), x)]
        with rekindle.measure_peak([*module.parameters(), *there, x]) as measured:
            planned({"x": [x]}).backward()
        self.assertEqual(measured.peak, session_of(planned).planned[-1].peak)

    def test_a_backend_refuses_gradients_that_do_not_fit(self) -> None:
        module, x = Layers(), torch.randn(BATCH, 32)
        roomy = compiled(module)
        roomy(x)
        tight = _native.smallest(session_of(roomy).planned[0].graph, effort=1).peak
        step = torch.compile(
            module, backend=rekindle.backend(tight, profile="roofline", effort=1), dynamic=False
        )
        step(x).backward()
        with self.assertRaisesRegex(rekindle.LiveGradients, "zero_grad"):
            step(x)
        module.zero_grad()
        step(x).backward()

    def test_a_forward_that_waits_for_its_backward(self) -> None:
        planned, x = compiled(Layers()), torch.randn(BATCH, 32)
        waiting = planned(x)
        with self.assertWarnsRegex(rekindle.OverBudget, "waits for its backward"):
            planned(x)
        del waiting
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            planned(x).backward()
            planned.zero_grad()
            planned(x).backward()

    def test_parameters_that_are_not_read(self) -> None:
        module, x = Layers(), torch.randn(BATCH, 32)
        module.unread = nn.Parameter(torch.zeros(1000))
        planned = compiled(module)
        with rekindle.measure_peak([*module.parameters(), x]) as measured:
            planned(x).backward()
        self.assertEqual(measured.peak, session_of(planned).planned[0].peak)


if __name__ == "__main__":
    unittest.main()
