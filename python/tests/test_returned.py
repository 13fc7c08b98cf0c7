"""What a module returns beside its loss costs nothing, and is never differentiated wrongly."""

import os
import unittest
import unittest.mock
import warnings
from typing import NamedTuple

import torch
from torch import nn

import rekindle
from rekindle.torch.module import session_of

QUICK = {"effort": 1, "profile": "roofline"}
ROWS, WIDTH = 256, 32


class Returned(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor
    hidden: list[torch.Tensor]
    labels: torch.Tensor


class Opaque:
    """A container that PyTorch does not know."""

    def __init__(self, loss: torch.Tensor, logits: torch.Tensor) -> None:
        self.loss, self.logits = loss, logits


class Network(nn.Module):
    """Returns more than its loss; how, is told by `kind`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        parts = [part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.layers = nn.ModuleList(parts)

    def forward(self, value: torch.Tensor) -> object:
        hidden, labels = [], value
        for layer in self.layers:
            value = layer(value)
            hidden.append(value)
        if self.kind == "broken":
            torch._dynamo.graph_break()
        loss = value.square().mean()
        if self.kind == "opaque":
            return Opaque(loss, value)
        if self.kind == "logits":
            return value
        return loss if self.kind == "loss" else Returned(loss, value, hidden[:1], labels)


def plan(kind: str, budget: object = 1.0, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return rekindle.compile(Network(kind), budget, **QUICK, **options)


class Values(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.enterContext(unittest.mock.patch.dict(os.environ, REKINDLE_CACHE="off"))
        self.value = torch.randn(ROWS, WIDTH)

    def assert_same_gradients(self, model: nn.Module, module: nn.Module) -> None:
        for (name, ours), theirs in zip(model.named_parameters(), module.parameters(), strict=True):
            self.assertTrue(torch.equal(ours.grad, theirs.grad), name)

    def peak(self, kind: str, **options: object) -> int:
        model = plan(kind, **options)
        result = model(self.value)
        (getattr(result, "loss", result) if kind != "logits" else result.sum()).backward()
        (step,) = session_of(model).planned
        return step.peak

    def test_logits_cost_no_gradient(self) -> None:
        size = 4 * ROWS * WIDTH
        alone = self.peak("loss")
        both = self.peak("returned")
        self.assertLessEqual(both - alone, 2 * size, "the two values themselves, and no gradients")
        self.assertGreaterEqual(self.peak("returned", differentiated="all"), both + 2 * size)

    def test_the_peak_is_the_predicted_one(self) -> None:
        model = plan("returned", 0.8)
        with rekindle.measure_peak([*model.parameters(), self.value]) as measured:
            result = model(self.value)
            result.loss.backward()
        self.assertEqual(measured.peak, session_of(model).planned[0].peak)

    def test_the_gradient_of_the_loss_is_eagers(self) -> None:
        for kind in ("returned", "opaque", "broken"):
            torch._dynamo.reset()
            model = plan(kind)
            module = Network(kind)
            module.load_state_dict(model.state_dict())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for part in (model, module):
                    result = part(self.value)
                    self.assertTrue(result.logits.requires_grad)
                    result.loss.backward()
            self.assert_same_gradients(model, module)

    def test_who_differentiates_it_is_told(self) -> None:
        for kind in ("returned", "opaque"):
            for combine in (
                lambda r: r.logits.sum(),
                lambda r: r.loss + r.logits.detach().sum() + r.logits[:1].exp().mean(),
            ):
                torch._dynamo.reset()
                total = combine(plan(kind)(self.value))
                with self.assertRaisesRegex(rekindle.NotDifferentiated, 'differentiated="all"'):
                    total.backward()

    def test_what_a_graph_hands_to_the_next_is_differentiated(self) -> None:
        model, module = plan("broken"), Network("broken")
        module.load_state_dict(model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part in (model, module):
                result = part(self.value)
                (result.loss + result.logits.sum()).backward()
        self.assert_same_gradients(model, module)

    def test_all_can_be_differentiated(self) -> None:
        model = plan("returned", differentiated="all")
        module = Network("returned")
        module.load_state_dict(model.state_dict())
        for part in (model, module):
            result = part(self.value)
            (result.loss + result.logits.sum() + result.hidden[0].mean()).backward()
        self.assert_same_gradients(model, module)
        with self.assertRaisesRegex(rekindle.InvalidInput, "loss, all"):
            plan("loss", differentiated="some")

    def test_without_a_loss_everything_is(self) -> None:
        model = plan("logits")
        model(self.value).sum().backward()
        self.assertTrue(all(part.grad is not None for part in model.parameters()))


if __name__ == "__main__":
    unittest.main()
