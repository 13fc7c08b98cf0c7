"""Modules that do not run their plan are refused, and the error names what is wrong."""

import unittest
from collections.abc import Callable

import torch
from test_compile import BATCH, Case, Noisy
from torch import fx

import rekindle
from rekindle.settings import Settings
from rekindle.torch import planning, randomness
from rekindle.torch.capture import capture
from rekindle.torch.inject import ORIGIN, inject
from rekindle.torch.joint import outputs_of
from rekindle.torch.lower_back import check_modules

Damage = Callable[[fx.Graph, fx.Graph], str]
"""Changes the forward or the backward, and gives a word that the error must have."""


def named(graph: fx.Graph, target: object) -> list[fx.Node]:
    return list(graph.find_nodes(op="call_function", target=target))


class Modules(Case):
    def setUp(self) -> None:
        super().setUp()
        joint = capture(Noisy(), torch.randn(BATCH, 32))
        settings = Settings(0.6, "roofline", effort=1)
        self.planned = planning.plan_joint(joint, settings)
        self.outputs = len(joint.forward_outputs)

    def check(self, damage: Damage | None = None) -> None:
        step = self.planned
        forward, backward = inject(step.joint, step.lowered, step.plan.steps())
        if damage is None:
            check_modules(step.joint, step.lowered, step.graph, step.plan, (forward, backward))
            return
        word = damage(forward.graph, backward.graph)
        with self.assertRaisesRegex(rekindle.RekindleError, word):
            check_modules(step.joint, step.lowered, step.graph, step.plan, (forward, backward))

    def test_what_was_built_passes(self) -> None:
        self.check()
        again = self.planned.modules.as_run
        self.assertEqual(again.peak, self.planned.peak)
        runs = [number for kind, number in self.planned.plan.steps() if kind == "run"]
        ran = [node for node in again.nodes if node.phase != "input"]
        self.assertEqual(len(ran), len(runs) + 1, "the tangents come behind the boundary")

    def test_a_swapped_operand(self) -> None:
        def swap(_: fx.Graph, backward: fx.Graph) -> str:
            node = named(backward, torch.ops.aten.gelu_backward.default)[0]
            node.args = (node.args[1], node.args[0], *node.args[2:])
            return f"rewritten graph: backward.{node.name}.* reads"

        self.check(swap)

    def test_a_recomputation_from_the_wrong_source(self) -> None:
        def rewire(_: fx.Graph, backward: fx.Graph) -> str:
            first, second = named(backward, torch.ops.aten.addmm.default)[:2]
            early, late = sorted((first, second))
            late.replace_input_with(late.args[1], early.args[1])
            return f"rewritten graph: backward.{late.name}.* reads"

        self.check(rewire)

    def test_a_saved_value_that_is_dropped(self) -> None:
        def drop(forward: fx.Graph, _: fx.Graph) -> str:
            forward.output_node().args = (outputs_of(forward)[:-1],)
            return "the forward saves [0-9]+ values, and the backward takes [0-9]+"

        self.check(drop)

    def test_saved_values_that_change_places(self) -> None:
        def exchange(forward: fx.Graph, _: fx.Graph) -> str:
            outputs = outputs_of(forward)
            own, saved = outputs[: self.outputs], outputs[self.outputs :]
            forward.output_node().args = ([*own, *reversed(saved)],)
            return "backward.* takes .*where .* takes"

        self.check(exchange)

    def test_a_value_that_is_saved_for_nothing(self) -> None:
        def save(forward: fx.Graph, backward: fx.Graph) -> str:
            outputs = outputs_of(forward)
            forward.output_node().args = ([*outputs, outputs[0]],)
            tangent = backward.find_nodes(op="placeholder")[-1]
            with backward.inserting_before(tangent):
                backward.placeholder("saved_for_nothing")
            return "takes saved_for_nothing and never reads it"

        self.check(save)

    def test_another_operation_or_number(self) -> None:
        def change_operation(_: fx.Graph, backward: fx.Graph) -> str:
            node = named(backward, torch.ops.aten.addmm.default)[0]
            node.target = torch.ops.aten.baddbmm.default
            return f"backward.{node.name} calls aten.baddbmm.default"

        def change_number(forward: fx.Graph, _: fx.Graph) -> str:
            node = named(forward, torch.ops.aten.pow.Tensor_Scalar)[0]
            node.args = (node.args[0], 3)
            return f"forward.{node.name} takes .*3.*where"

        self.check(change_operation)
        self.check(change_number)

    def test_a_view_that_is_another(self) -> None:
        def change(forward: fx.Graph, _: fx.Graph) -> str:
            views = named(forward, torch.ops.aten.t.default)
            views = views or named(forward, torch.ops.aten.permute.default)
            views[0].meta[ORIGIN] = views[1].meta[ORIGIN]
            return f"forward.{views[0].name} takes"

        self.check(change)

    def test_a_draw_from_another_draws_state(self) -> None:
        def mix(_: fx.Graph, backward: fx.Graph) -> str:
            node = named(backward, randomness.replay)[0]
            others = [n for n in backward.nodes if n.name.startswith("saved_getitem")]
            state = next(n for n in others if n.meta["val"].dtype is torch.uint8)
            other = next(n for n in backward.find_nodes(op="placeholder") if n is not state)
            node.args = (node.args[0], other, *node.args[2:])
            return f"backward.{node.name} does not draw from the state of its own draw"

        self.check(mix)

    def test_a_gradient_in_the_wrong_place(self) -> None:
        def exchange(_: fx.Graph, backward: fx.Graph) -> str:
            gradients = outputs_of(backward)
            backward.output_node().args = (list(reversed(gradients)),)
            return "the backward gives"

        self.check(exchange)

    def test_a_value_of_nobodys(self) -> None:
        def forget(forward: fx.Graph, _: fx.Graph) -> str:
            node = named(forward, torch.ops.aten.gelu.default)[0]
            del node.meta[ORIGIN]
            return f"forward.{node.name} stands for nothing"

        self.check(forget)


if __name__ == "__main__":
    unittest.main()
