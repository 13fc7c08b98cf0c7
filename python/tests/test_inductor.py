"""`inductor=True`: the plan's modules compiled by Inductor train as well as eager, and save what
the plan saves.
"""

import copy
import unittest
from unittest import mock

import torch
from test_compile import BATCH, Case, Layers, compiled
from tolerance import excess
from torch import fx, nn

import rekindle
from rekindle.torch.capture import capture
from rekindle.torch.execute import boxed
from rekindle.torch.inductor import compile_half
from rekindle.torch.inject import ORIGIN
from rekindle.torch.joint import outputs_of
from rekindle.torch.measure import Meter
from rekindle.torch.module import session_of

STEPS = 3


def numbers(module: nn.Module, step: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The losses and gradients of a few steps, with dropout on."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.manual_seed(9)
    found = {}
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = step(x)
        loss.backward()
        found[f"{number}: loss"] = loss.detach()
        found.update(
            (f"{number}: {name}", part.grad.clone()) for name, part in module.named_parameters()
        )
        optimizer.step()
    return found


class Inductor(Case):
    def test_it_trains_as_well_as_eager_and_keeps_the_plan(self) -> None:
        """Both doors: the second finds the first one's kernels, so it costs little."""
        module, x = Layers(), torch.randn(BATCH, 32)
        eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
        planned = compiled(copy.deepcopy(module), 0.6, inductor=True)
        ours = numbers(planned, planned, x)
        exact, eager = numbers(exact, exact, x.double()), numbers(eager, eager, x)
        self.assertEqual(excess(exact, [eager], ours), [])
        self.assert_keeps_the_plan(planned)

        torch._dynamo.reset()
        backend = rekindle.backend(0.6, profile="roofline", effort=1, inductor=True)
        other = copy.deepcopy(module)
        self.assertEqual(
            excess(
                exact,
                [eager],
                numbers(other, torch.compile(other, backend=backend, dynamic=False), x),
            ),
            [],
        )
        self.assert_keeps_the_plan(backend)

    def assert_keeps_the_plan(self, planned: object) -> None:
        (step,) = session_of(planned).planned
        runs = [node for kind, node in step.plan.steps() if kind == "run"]
        drawn = {step.lowered.index[node] for node in step.lowered.token_of}
        self.assertTrue(any(runs.count(node) > 1 for node in drawn), "no draw was repeated")
        (report,) = rekindle.report(planned).graphs
        self.assertEqual(report.measured_saved, report.saved)
        self.assertEqual(report.measured_peak, report.peak)
        self.assertLessEqual(report.peak, report.budget)
        self.assertLess(report.budget, report.plain_peak)
        self.assertIn("as Inductor runs it", str(report))

    def test_without_a_compiler(self) -> None:
        with (
            mock.patch("shutil.which", return_value=None),
            self.assertRaisesRegex(rekindle.CompilerMissing, "apt install"),
        ):
            compiled(Layers(), inductor=True)

    def test_bits_cannot_be_compared(self) -> None:
        with self.assertRaisesRegex(rekindle.InvalidInput, "rounds differently"):
            compiled(Layers(), inductor=True, check=True)


class MadeAgain(Case):
    def test_what_is_recomputed_has_the_bits_of_the_first_time(self) -> None:
        """In half precision too, where a fused kernel would round less often."""
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                pairs = self.made_twice(dtype)
                self.assertGreater(len(pairs), 3)
                for name, first, again in pairs:
                    self.assertTrue(torch.equal(first, again), f"{name} is not the same")

    def made_twice(self, dtype: torch.dtype) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """Every value that both modules of a plan compute, by name."""
        model, x = Normed().to(dtype), torch.randn(64, 32, dtype=dtype)
        joint = capture(model, x)
        static = [at for at, node in enumerate(joint.primals) if node in joint.parameters]
        count = len(joint.forward_outputs)
        planned = rekindle.torch.plan(
            joint.module, 0.6, num_forward_outputs=count, static_inputs=static, profile="roofline"
        )
        modules = planned.modules
        names = sorted(made_by(modules.forward).keys() & made_by(modules.backward).keys())
        saved = len(outputs_of(modules.forward.graph))
        gradients = len(outputs_of(modules.backward.graph))
        for module in (modules.forward, modules.backward):
            made, output = made_by(module), module.graph.output_node()
            output.args = ([*outputs_of(module.graph), *(made[name] for name in names)],)
        forward = compile_half(modules.forward, is_backward=False)
        backward = compile_half(modules.backward, is_backward=True)
        forward.compile_kernels()
        backward.compile_kernels()
        parameters = iter(model.parameters())
        arguments = [next(parameters) if node in joint.parameters else x for node in joint.primals]
        with torch.no_grad():
            results = list(forward.run(arguments))
            again = backward.run([*results[count:saved], torch.ones((), dtype=dtype)])
        return list(zip(names, results[saved:], again[gradients:], strict=True))


def made_by(module: fx.GraphModule) -> dict[str, fx.Node]:
    """What a module computes, by the names of the joint graph."""
    return {
        node.meta[ORIGIN]: node
        for node in module.graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)
    }


class Normed(nn.Module):
    """Layers with norms and activations between, which are cheap to make again."""

    def __init__(self) -> None:
        super().__init__()
        parts = [p for _ in range(3) for p in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())]
        self.layers = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


class Metering(Case):
    def test_the_allocator_agrees_with_the_prediction(self) -> None:
        """Run operation by operation, a step of layers whose operations need no scratch takes the
        predicted peak to the byte.
        """
        model, x = Layers(dropout=0.0), torch.randn(BATCH, 32)
        joint = capture(model, x)
        static = [at for at, node in enumerate(joint.primals) if node in joint.parameters]
        outputs = len(joint.forward_outputs)
        planned = rekindle.torch.plan(
            joint.module, 0.6, num_forward_outputs=outputs, static_inputs=static, profile="roofline"
        )
        meter = Meter(planned)
        modules = planned.modules
        forward, backward = boxed(modules.forward), boxed(modules.backward)
        parameters = iter(model.parameters())
        arguments = [next(parameters) if node in joint.parameters else x for node in joint.primals]
        with torch.no_grad():
            results = meter.forward(forward)(arguments)
            saved, kept = results[outputs:], results[:outputs]
            del results
            arguments = [*saved, torch.ones(())]
            del saved
            gradients = meter.backward(backward)(arguments)
        self.assertEqual(len(kept), outputs)
        self.assertTrue(any(gradient is not None for gradient in gradients))
        self.assertEqual(planned.measured_peak, planned.peak)
        self.assertEqual(planned.measured_saved, modules.saved_bytes)


if __name__ == "__main__":
    unittest.main()
