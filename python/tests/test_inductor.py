"""`inductor=True`: the plan's modules compiled by Inductor train as well as eager, and save what
the plan saves.
"""

import copy
import unittest
from unittest import mock

import torch
from test_compile import BATCH, Case, Layers, compiled
from tolerance import excess
from torch import nn

import rekindle
from rekindle.torch.capture import capture
from rekindle.torch.execute import boxed
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
