"""Profiles, the largest batch and plans for other tools: what is captured without running the
model.
"""

import csv
import tempfile
import unittest
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from test_compile import BATCH, Case, Layers, compiled

import rekindle
from rekindle.torch.capture import capture
from rekindle.torch.execute import boxed

NODE_COLUMNS = (
    "rank,node_name,node_type,gtype,median_run_time_s,median_peak_mem_bytes,"
    "median_active_mem_bytes,device"
)


class Profiles(Case):
    def test_the_tables_have_the_profilers_columns_and_every_node(self) -> None:
        step = rekindle.profile(Layers(), torch.randn(BATCH, 32), name="layers")
        self.assertEqual((step.guessed, step.batch_size), ([], BATCH))
        self.assertIn("layers, batch 512", str(step))
        with tempfile.TemporaryDirectory() as folder:
            written = step.save(folder)
            self.assertEqual(len(written), 3 + 2 * 5, "three tables, five pictures as SVG and PNG")
            with open(written[0], newline="") as file:
                self.assertEqual(file.readline().strip(), NODE_COLUMNS)
                file.seek(0)
                rows = list(csv.DictReader(file))
            with open(written[2]) as file:
                again = rekindle.Graph.from_json(file.read())
            self.assertTrue(all(path.stat().st_size > 0 for path in written))
        self.assertEqual(again.to_json(), step.graph.to_json())
        self.assertEqual(max(int(row["median_peak_mem_bytes"]) for row in rows), step.graph.peak)
        time = sum(float(row["median_run_time_s"]) for row in rows)
        self.assertAlmostEqual(time * 1e6, step.graph.time, places=3)

    def test_nothing_runs(self) -> None:
        model = Layers()
        before = torch.get_rng_state()
        with rekindle.measure_peak() as measured:
            rekindle.profile(model, torch.randn(4096, 32), profile="roofline")
        self.assertTrue(all(parameter.grad is None for parameter in model.parameters()))
        self.assertLess(measured.peak, 6 * 4096 * 32 * 4, "the activations were made")
        self.assertFalse(torch.equal(before, torch.get_rng_state()), "the batch is drawn")

    def test_a_step_without_gradients_is_refused(self) -> None:
        with self.assertRaisesRegex(rekindle.UnsupportedGraph, "gradient"):
            rekindle.profile(Layers().requires_grad_(False), torch.randn(8, 32))

    def test_where_a_graph_ends_is_said(self) -> None:
        ones = torch.ones(3, 1).int()
        transcribed = lambda x: F.ctc_loss(x[:, None].log_softmax(-1), *ones)  # noqa: E731

        def asks(x: torch.Tensor) -> torch.Tensor:
            """Told that it is compiled, it raises an exception; but that is not why it ends."""
            known = None if torch.compiler.is_compiling() else x
            return x.mean() if known.mean() > 0 else x.sum()

        for loss, said in (
            (asks, "a branch or a loop depends"),
            (transcribed, "the size of a result depends on the values"),
            (lambda x: x.mean() * np.random.rand(), "NumPy draws random numbers"),
            (lambda x: x.mean() if x.mean() > 0 else x.sum(), "a branch or a loop depends"),
        ):
            with self.assertRaisesRegex(rekindle.UnsupportedGraph, said) as refused:
                rekindle.profile(Loses(loss), torch.randn(8, 32), profile="roofline")
            self.assertRegex(str(refused.exception), r"test_without_running.py., line \d+, in")

    def test_a_model_that_fails_is_said_where_it_fails(self) -> None:
        said = r"fails with this batch, at .*test_without_running.py., line \d+.*RuntimeError"
        with self.assertRaisesRegex(rekindle.InvalidInput, said):
            rekindle.profile(Loses(lambda x: x @ x), torch.randn(8, 32), profile="roofline")


class Loses(nn.Module):
    """A layer and what becomes of it."""

    def __init__(self, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(32, 32), loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.layer(x))


class Mean(nn.Sequential):
    """Layers that return a loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


class Batches(Case):
    def test_the_largest_batch_fits_and_the_next_does_not(self) -> None:
        model, budget = Layers(), 200_000
        largest = rekindle.max_batch(model, lambda n: torch.randn(n, 32), budget=budget)
        self.assertGreater(largest.size, largest.plain_size)
        self.assertLessEqual(largest.peak, budget)
        compiled(model, budget)(torch.randn(largest.size, 32)).backward()
        with self.assertRaises(rekindle.InfeasibleBudget):
            compiled(Layers(), budget)(torch.randn(largest.size + 1, 32))

    def test_parameters_that_are_not_read_count(self) -> None:
        model, x = Layers(depth=2), torch.randn(BATCH, 32)
        before = rekindle.profile(model, x, profile="roofline").graph.peak
        model.unread = torch.nn.Parameter(torch.zeros(1000))
        model.register_buffer("idle", torch.zeros(500))
        self.assertEqual(rekindle.profile(model, x, profile="roofline").graph.peak, before + 6000)
        small = rekindle.max_batch(model, lambda n: torch.randn(n, 32), budget=before)
        self.assertLess(small.plain_size, BATCH)

    def test_weights_without_contents_count(self) -> None:
        """On `meta` every storage has the same address: the answer is the one with weights."""
        size, rows = 512, 952
        make = lambda: Mean(nn.Linear(size, size), nn.GELU(), nn.Linear(size, size))  # noqa: E731
        peak = rekindle.profile(make(), torch.randn(rows, size), profile="roofline").graph.peak
        with torch.device("meta"):
            hollow = make()
        for model, device in ((make(), "cpu"), (hollow, "meta"), (hollow, "cpu")):
            with self.subTest(device):
                found = rekindle.max_batch(
                    model, lambda n, at=device: torch.randn(n, size, device=at), budget=peak
                )
                self.assertEqual(found.plain_size, rows)
        weights = sum(part.nbytes for part in make().parameters())
        none = rekindle.max_batch(
            hollow, lambda n: torch.randn(n, size, device="meta"), budget=weights
        )
        self.assertEqual(none.size, 0, "there is no room for more than the weights")

    def test_a_share_is_refused_and_too_little_is_nothing(self) -> None:
        for budget in (0.5, "50%"):
            with self.assertRaisesRegex(rekindle.InvalidInput, "bytes"):
                rekindle.max_batch(Layers(), lambda n: torch.randn(n, 32), budget=budget)
        none = rekindle.max_batch(Layers(), lambda n: torch.randn(n, 32), budget=1000)
        self.assertEqual((none.size, none.plain_size, none.peak), (0, 0, 0))


class Tools(Case):
    def test_a_joint_graph_of_another_tool(self) -> None:
        model, x = Layers(dropout=0.0), torch.randn(BATCH, 32)
        joint = capture(model, x)
        static = [at for at, node in enumerate(joint.primals) if node in joint.parameters]
        outputs = len(joint.forward_outputs)
        planned = rekindle.torch.plan(
            joint.module, 0.6, num_forward_outputs=outputs, static_inputs=static, profile="roofline"
        )
        self.assertLessEqual(planned.peak, planned.plan.budget)
        modules = planned.modules
        forward, backward = boxed(modules.forward), boxed(modules.backward)
        values = [x if node not in joint.parameters else None for node in joint.primals]
        parameters = iter(model.parameters())
        with torch.no_grad():
            results = forward([next(parameters) if value is None else value for value in values])
            gradients = backward([*results[outputs:], torch.ones(())])
        model(x).backward()
        expected = [p.grad for p in model.parameters()]
        given = [gradient for gradient in gradients if gradient is not None]
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(given, expected, strict=True)))


if __name__ == "__main__":
    unittest.main()
