"""What cannot be done is said in one clear error, and not in a compiler's trace."""

import os
import random
import subprocess
import sys
import unittest
import unittest.mock
import warnings

import torch
from torch import nn

import rekindle
from rekindle.torch import planning, runner
from rekindle.torch.inductor import require_compiler
from rekindle.torch.joint import Joint
from rekindle.torch.module import session_of
from rekindle.torch.timing import Timing

QUICK = {"effort": 1, "profile": "roofline"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def deep_network() -> nn.Module:
    torch.manual_seed(0)
    parts = [part for _ in range(8) for part in (nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))]
    return nn.Sequential(*parts, nn.Linear(8, 1))


class Scalar(nn.Module):
    """Reads a number in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = network(), nn.Linear(1, 1)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.first(value)
        return self.second(value) * (2.0 if value.sum().item() > 0 else 1.0)


class Stopped(nn.Module):
    """Says something that is not captured, before anything is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return self.inner(value)


def train(module: nn.Module, value: torch.Tensor) -> nn.Module:
    """One step."""
    module(value).sum().backward()
    return module


class Errors(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.enterContext(unittest.mock.patch.dict(os.environ, REKINDLE_CACHE="off"))

    def test_without_torch(self) -> None:
        program = (
            "import sys; sys.modules['torch'] = None\n"
            "import rekindle; rekindle.Graph; rekindle.plan; rekindle.compile"
        )
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertIn(
            "TorchMissing: rekindle.compile needs PyTorch, which is not installed: "
            "pip install torch",
            ended.stderr,
        )

    def test_an_old_torch(self) -> None:
        for version, is_refused in (
            ("2.8.1+cu126", True),
            ("1.13.0", True),
            ("2.9.0", False),
            ("2.15.0", False),
            ("3.0.0a0", False),
        ):
            with unittest.mock.patch.object(torch, "__version__", version):
                if is_refused:
                    with self.assertRaisesRegex(rekindle.UnsupportedTorch, "2.9 or newer"):
                        rekindle.compile(network(), 0.5)
                else:
                    rekindle.compile(network(), 0.5)

    def test_torchs_own_budget(self) -> None:
        with (
            torch._functorch.config.patch(activation_memory_budget=0.5),
            self.assertRaisesRegex(rekindle.ForeignBudget, "0.5"),
        ):
            rekindle.compile(network(), 0.5)

    def test_an_infeasible_budget_is_not_wrapped(self) -> None:
        module = network()
        with self.assertRaises(rekindle.InfeasibleBudget) as caught:
            rekindle.compile(module, 100, **QUICK)(torch.randn(64, 8))
        smallest = caught.exception.smallest
        self.assertIn(str(smallest), str(caught.exception))
        self.assertIsNone(caught.exception.__cause__)
        torch._dynamo.reset()
        rekindle.compile(module, smallest, **QUICK)(torch.randn(64, 8)).sum().backward()

    def test_a_budget_that_is_named_works_with_other_times(self) -> None:
        module, value = deep_network(), torch.randn(64, 8)

        def times(joint: Joint, _profile: str) -> Timing:
            # Another clock in every call.
            return Timing({node: random.uniform(1.0, 1e4) for node in joint.computing()})

        with unittest.mock.patch.object(planning, "time_nodes", times):
            for _ in range(3):
                torch._dynamo.reset()
                with self.assertRaises(rekindle.InfeasibleBudget) as caught:
                    rekindle.compile(module, 100, effort=0)(value)
                torch._dynamo.reset()
                rekindle.compile(module, caught.exception.smallest, effort=0)(value)
            graph = rekindle.profile(module, value).graph
            smallest = rekindle.smallest(graph, effort=0)
            self.assertEqual(rekindle.verify(graph, smallest), [])
            self.assertEqual(smallest.peak, caught.exception.smallest)

    def test_a_number_read_in_the_middle_is_warned_of(self) -> None:
        with self.assertWarnsRegex(rekindle.UnplannedPart, "2 graphs.*item"):
            rekindle.compile(Scalar(), 10**9, **QUICK)(torch.randn(4, 8)).sum().backward()

    def test_a_module_without_gradients(self) -> None:
        module, value = network().requires_grad_(False), torch.randn(4, 8)
        model = rekindle.compile(module, 100, **QUICK)
        self.assertTrue(torch.equal(model(value), module(value)))
        with torch.no_grad():
            self.assertTrue(torch.equal(model(value), module(value)))
        with self.assertRaises(rekindle.InfeasibleBudget):
            model(value.requires_grad_())

    def test_a_compiler_that_is_off(self) -> None:
        model = rekindle.compile(network(), 10**9, **QUICK)
        with (
            torch._dynamo.config.patch(disable=True),
            self.assertRaisesRegex(rekindle.Unplanned, "disabled"),
        ):
            model(torch.randn(4, 8))

    def test_a_hook_that_is_not_captured(self) -> None:
        module = network()
        module[1].register_full_backward_hook(lambda *_: None)
        with self.assertRaisesRegex(rekindle.Unplanned, "1 has a backward hook.*remove it"):
            rekindle.compile(module, 10**9, **QUICK)(torch.randn(4, 8))

    def test_options_are_checked_when_they_are_given(self) -> None:
        budgets = (
            0,
            -1,
            2**63,
            "",
            "lots",
            "8 gigs",
            "-1GiB",
            "101%",
            "0%",
            "9000000TiB",
            float("nan"),
        )
        bad = [{"budget": budget} for budget in budgets]
        bad += [{"effort": effort} for effort in (-1, 11, 1.5, True)]
        bad += [{"time_limit": limit} for limit in (0, -1.0, float("inf"), float("nan"), "1s")]
        bad += [{"strategy": "guess"}, {"profile": "guess"}, {"optimizer": network().parameters()}]
        for options in bad:
            options = {"budget": 0.5, **options}
            with self.subTest(options), self.assertRaises(rekindle.InvalidInput):
                rekindle.compile(network(), **options)
            with self.subTest(options), self.assertRaises(rekindle.InvalidInput):
                rekindle.backend(**options)
        with self.assertRaises(rekindle.InvalidInput):
            rekindle.max_batch(
                network(), lambda _: self.fail("nothing is to be tried"), budget="lots"
            )
        for budget in (1, 2**63 - 1, "100%", " 60 % ", "1.5GiB"):
            rekindle.compile(network(), budget, strategy="blocks", effort=10, time_limit=1)

    def test_modules_that_cannot_be_planned(self) -> None:
        planned = rekindle.compile(network(), 0.5)
        for module, why in (
            (3, "int"),
            (nn.Linear, "class Linear"),
            (planned, "already"),
            (nn.Sequential(planned), "part 0"),
        ):
            with self.assertRaisesRegex(rekindle.InvalidInput, why):
                rekindle.compile(module, 0.5)

    def test_graphs_that_are_not_joint(self) -> None:
        traced = torch.fx.symbolic_trace(nn.Tanh())
        for graph, why in ((3, "GraphModule"), (traced, "tuple")):
            with self.assertRaisesRegex(rekindle.InvalidInput, why):
                rekindle.torch.plan(graph, 0.5, num_forward_outputs=1)

    def test_sparse_gradients(self) -> None:
        model = rekindle.compile(nn.Embedding(10, 8, sparse=True), 10**9, **QUICK)
        with self.assertRaisesRegex(rekindle.UnsupportedGraph, "sparse=False"):
            model(torch.zeros(3, dtype=torch.long))

    def test_a_backends_report_is_that_of_its_function(self) -> None:
        backend = rekindle.backend(100, **QUICK)
        model = torch.compile(network(), backend=backend, dynamic=False)
        with self.assertRaisesRegex(rekindle.RekindleError, "function that rekindle.backend gave"):
            rekindle.report(model)
        with self.assertRaises(torch._dynamo.exc.BackendCompilerFailed) as caught:
            model(torch.randn(64, 8))
        self.assertIsInstance(caught.exception.inner_exception, rekindle.InfeasibleBudget)

    def test_several_planned_parts_are_all_reported(self) -> None:
        model = nn.Sequential(
            *(rekindle.compile(network(), budget, **QUICK) for budget in (10**9, 2 * 10**9)),
            nn.Tanh(),
        )
        model[1](model[0](torch.randn(4, 8)).expand(4, 8)).sum().backward()
        graphs = rekindle.report(model).graphs
        self.assertEqual(
            [(graph.name, graph.budget) for graph in graphs],
            [("0, graph 0", 10**9), ("1, graph 0", 2 * 10**9)],
        )

    def test_a_graph_that_is_kept(self) -> None:
        model = rekindle.compile(network(), 10**9, **QUICK)
        with self.assertRaisesRegex(rekindle.RetainedGraph, "retain_graph"):
            model(torch.randn(4, 8)).sum().backward(retain_graph=True)

    def test_a_gradient_of_a_gradient(self) -> None:
        model, value = (
            rekindle.compile(network(), 10**9, **QUICK),
            torch.randn(4, 8, requires_grad=True),
        )
        with self.assertRaisesRegex(rekindle.RetainedGraph, "gradients of gradients"):
            torch.autograd.grad(model(value).sum(), value, create_graph=True)

    def test_shapes_that_always_change(self) -> None:
        module = network()
        model = rekindle.compile(module, 10**9, **QUICK)
        with unittest.mock.patch.object(runner, "MOST_SHAPES", 3), warnings.catch_warnings():
            warnings.simplefilter("error")
            for rows in (2, 3, 4, 3, 5, 2, 3):
                value = torch.randn(rows, 8)
                found = [part.grad for part in train(model, value).parameters()]
                model.zero_grad()
                expected = [part.grad for part in train(module, value).parameters()]
                self.assertTrue(all(map(torch.equal, found, expected)))
                module.zero_grad()
                self.assertLessEqual(len(session_of(model).planned), 3)
        rows = [graph.name for graph in rekindle.report(model).graphs]
        self.assertEqual(rows, ["graph 1", "graph 3", "graph 4"], "the first two made room")

    def test_arguments_that_do_not_fit(self) -> None:
        model = rekindle.compile(network(), 10**9, **QUICK)
        with self.assertRaisesRegex(
            rekindle.WrongInput, r"0 \[4, 7\].*reduction dim|mat1"
        ) as caught:
            model(torch.randn(4, 7))
        self.assertLess(len(str(caught.exception)), 400)
        self.assertIsInstance(caught.exception, RuntimeError)

    def test_a_model_without_contents(self) -> None:
        with torch.device("meta"):
            module = network()
        with self.assertRaisesRegex(rekindle.InvalidInput, "0.weight is on the device meta"):
            rekindle.compile(module, 0.5)

    def test_a_gpu_that_is_not_there(self) -> None:
        with (
            unittest.mock.patch.object(torch.cuda, "is_available", return_value=False),
            self.assertRaisesRegex(rekindle.CompilerMissing, "this machine has none"),
        ):
            require_compiler([torch.device("cuda")])

    def test_one_graph_is_not_called_several(self) -> None:
        with self.assertWarnsRegex(rekindle.UnplannedPart, "^a part of the step is planned"):
            rekindle.compile(Stopped(), 10**9, **QUICK)(torch.randn(4, 8)).sum().backward()

    def test_an_outer_graph_that_must_be_whole(self) -> None:
        planned = rekindle.compile(network(), 1.0, **QUICK)
        for outer in (planned, nn.Sequential(planned)):
            torch._dynamo.reset()
            whole = torch.compile(outer, backend="aot_eager", fullgraph=True)
            with self.assertRaisesRegex(rekindle.InvalidInput, "leave fullgraph=True out"):
                whole(torch.randn(2, 8))

    def test_a_planned_module_inside_a_compiled_one(self) -> None:
        module, value = network(), torch.randn(4, 8)
        planned = rekindle.compile(module, 10**9, **QUICK)
        expected = [part.grad.clone() for part in train(module, value).parameters()]
        for model in (
            torch.compile(planned, backend="aot_eager"),
            torch.compile(nn.Sequential(planned), backend="aot_eager"),
        ):
            module.zero_grad()
            train(model, value)
            found = [part.grad for part in module.parameters()]
            self.assertTrue(all(map(torch.equal, found, expected)))
        self.assertEqual(len(session_of(planned).planned), 1)


if __name__ == "__main__":
    unittest.main()
