"""The numbers of a planned step are eager's where tracing has forms of its own: dropout,
interpolation, layers used twice, losses, autocast.
"""

import contextlib
import contextvars
import copy
import operator
import os
import threading
import unittest
from collections.abc import Callable
from unittest import mock

import numpy
import rekindle
import torch
from rekindle.torch import eager_check, eager_route
from rekindle.torch.module import session_of
from rekindle.torch.target import carry_over
from torch import nn
from torch.nn import functional

BATCH = (64, 32)


class Steps(nn.Module):
    """A layer before each of some functions, and a loss."""

    def __init__(self, functions: list[Callable[[torch.Tensor], torch.Tensor]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in functions)
        self.functions = functions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, function in zip(self.layers, self.functions, strict=True):
            x = function(torch.tanh(layer(x)))
        return x.float().square().mean()


class Twice(nn.Module):
    """One norm, used several times in a forward."""

    def __init__(self, uses: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(uses))
        self.norm = norm or nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(self.norm(layer(x)))
        return x.square().mean()


class Shared(nn.Module):
    """One layer, used several times in a forward, as ALBERT does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x + torch.tanh(self.layer(x))
        # A cast of the model's own is not kept.
        weight = self.layer.weight.to(torch.bfloat16)
        return (x.to(torch.bfloat16) @ weight).float().square().mean()


class Casting(nn.Module):
    """A part in its own autocast, twice: what was cast is gone when one ends."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Shared()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            first = self.part(x)
        with torch.autocast("cpu", torch.bfloat16):
            return first + self.part(x + 1)


def images(x: torch.Tensor, mode: str, **options: object) -> torch.Tensor:
    """Interpolates the batch as if it were pictures, and brings it back to its shape."""
    larger = functional.interpolate(x.view(8, 4, 8, 8), size=(13, 11), mode=mode, **options)
    return functional.interpolate(larger, size=(8, 8), mode=mode, **options).reshape(x.shape)


FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: functional.dropout(x, 0.1),
    lambda x: functional.dropout(x, 0.15),
    lambda x: functional.dropout(x, 0.5),
    lambda x: functional.dropout(x.t(), 0.1).t(),
    lambda x: functional.dropout(x.view(8, 8, 32).transpose(0, 1), 0.15).reshape(x.shape),
    lambda x: images(x, "nearest"),
    lambda x: images(x, "bilinear", align_corners=False),
    lambda x: images(x, "bilinear", align_corners=True),
    lambda x: images(x, "bicubic", align_corners=False),
    lambda x: functional.binary_cross_entropy_with_logits(
        x, torch.full_like(x, 0.3), reduction="none"
    ),
    lambda x: torch.matmul(x.view(4, 16, 32), x[:32]).view(x.shape),
]


class Hundredths(nn.Module):
    """A layer before each dropout of a hundredth, side by side, so that each has numbers of its
    own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 8) for _ in range(1, 100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped = [
            functional.dropout(torch.tanh(layer(x)), hundredths / 100)
            for hundredths, layer in enumerate(self.layers, 1)
        ]
        return torch.stack([part.float().square().mean() for part in dropped]).mean()


class Case(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.enterContext(mock.patch.dict(os.environ, REKINDLE_CACHE="off"))

    def assert_alike(
        self,
        module: nn.Module,
        x: torch.Tensor,
        budget: float = 1.0,
        autocast: torch.dtype | None = None,
        *,
        inside: bool = False,
        check: bool = False,
    ) -> rekindle.PlannedModule:
        """A few steps of the planned module leave what those of the module leave."""
        options = {"profile": "roofline", "effort": 1, "check": check}
        planned = rekindle.compile(copy.deepcopy(module), budget, **options)
        for part in (module, planned):
            torch.manual_seed(9)
            for _ in range(3):
                part.zero_grad()
                with torch.autocast("cpu", autocast, enabled=autocast is not None):
                    loss = part(x)
                    if inside:
                        loss.backward()
                if not inside:
                    loss.backward()
        pairs = zip(module.named_parameters(), planned.named_parameters(), strict=True)
        for (name, a), (_, b) in pairs:
            self.assertTrue(torch.equal(a.grad, b.grad), name)
        for (name, a), (_, b) in zip(module.named_buffers(), planned.named_buffers(), strict=True):
            self.assertTrue(torch.equal(a, b), name)
        return planned


class Bits(Case):
    def test_operations(self) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                torch.manual_seed(0)
                x = torch.randn(BATCH, dtype=dtype)
                planned = self.assert_alike(Steps(FUNCTIONS).to(dtype), x)
                # Eager's numbers are no feat where a graph ends and eager runs.
                (step,) = session_of(planned).planned
                layers = {f"primals_{2 * k + 1}" for k in range(len(FUNCTIONS))}
                self.assertLessEqual(layers, {node.name for node in step.graph.nodes})

    def test_autocast(self) -> None:
        torch.manual_seed(0)
        self.assert_alike(Steps(FUNCTIONS), torch.randn(BATCH), autocast=torch.bfloat16)

    def test_dropout_of_every_hundredth(self) -> None:
        for autocast in (None, torch.bfloat16, torch.float16):
            with self.subTest(autocast=autocast):
                torch._dynamo.reset()
                torch.manual_seed(0)
                x = torch.randn(BATCH)
                planned = self.assert_alike(Hundredths(), x, 0.8, autocast)
                (step,) = session_of(planned).planned
                runs = [node for kind, node in step.plan.steps() if kind == "run"]
                self.assertGreater(len(runs), len(set(runs)), "nothing was recomputed")

    def test_autocast_casts_a_parameter_once(self) -> None:
        x = torch.randn(BATCH, generator=torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        for dtype in (torch.bfloat16, torch.float16):
            self.assert_alike(Shared(), x, autocast=dtype)
        self.assert_alike(Casting(), x)

    def test_a_backward_inside_autocast(self) -> None:
        def exactly(x: torch.Tensor) -> torch.Tensor:
            """Its forward is exact, and eager's backward follows the autocast around it."""
            with torch.autocast("cpu", enabled=False):
                return x.float() @ torch.full((32, 32), 0.3)

        def weighted(x: torch.Tensor) -> torch.Tensor:
            """The gradient of the product has a lower precision there than the softmax takes."""
            with torch.autocast("cpu", enabled=False):
                return torch.softmax(x.float(), -1) @ torch.full((32, 32), 0.3)

        for dtype in (torch.bfloat16, torch.float16):
            for check in (False, True):
                torch._dynamo.reset()
                torch.manual_seed(0)
                module = Steps([weighted, FUNCTIONS[0], weighted])
                x = torch.randn(BATCH)
                self.assert_alike(module, x, autocast=dtype, inside=True, check=check)
        torch.manual_seed(0)
        module = Steps([exactly, FUNCTIONS[0], exactly])
        self.assert_alike(module, torch.randn(BATCH), autocast=torch.bfloat16, inside=True)
        module = Steps([exactly, FUNCTIONS[0], exactly])
        self.assert_alike(module, torch.randn(BATCH), autocast=torch.bfloat16)

    def test_a_norm_used_twice(self) -> None:
        """Instance norms with running statistics repeat these for a batch norm, and average what
        it makes of them.
        """
        instances = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
        for uses, norm in ((2, None), (4, None), (4, instances)):
            with self.subTest(uses=uses, norm=norm):
                torch.manual_seed(0)
                x = torch.randn(4, 8, 12, 12)
                module = Twice(uses, norm)
                planned = self.assert_alike(module, x, 0.7)
                planned.zero_grad()
                there = [*planned.parameters(), *planned.buffers(), x]
                with rekindle.measure_peak(there) as measured:
                    planned(x).backward()
                (step,) = session_of(planned).planned
                self.assertEqual(measured.peak, step.peak)
                runs = [node for kind, node in step.plan.steps() if kind == "run"]
                self.assertGreater(len(runs), len(set(runs)), "nothing was recomputed")


class Checks(Case):
    """`check=True` asks eager."""

    def step(self) -> None:
        torch.manual_seed(0)
        module = Steps(FUNCTIONS[1:2])
        planned = rekindle.compile(module, 1.0, profile="roofline", effort=1, check=True)
        x = torch.randn(BATCH)
        for _ in range(2):
            planned(x).backward()

    def test_a_step_that_is_eagers_passes(self) -> None:
        self.step()

    def test_buffers_are_copied_where_something_is_captured(self) -> None:
        planned = rekindle.compile(Twice(2), 1.0, profile="roofline", effort=1, check=True)
        keep, counts = eager_check.EagerCheck.keep_buffers, []
        for rows in (2, 2, 3):
            planned.zero_grad()
            with mock.patch.object(
                eager_check.EagerCheck, "keep_buffers", autospec=True, side_effect=keep
            ) as kept:
                planned(torch.randn(rows, 8, 4, 4)).backward()
            counts.append(kept.call_count)
        self.assertEqual(counts, [1, 0, 1])

    def test_a_capture_that_computes_something_else_is_refused(self) -> None:
        with mock.patch.object(carry_over, "eager_dispatch", contextlib.nullcontext):
            with self.assertRaisesRegex(rekindle.CheckFailed, "differ from eager's"):
                self.step()


class Asking(nn.Module):
    """Computes in another order where it is compiled, or where its input says so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.layer(x))
        if torch.compiler.is_compiling():
            return 2 * x.square().mean()
        if (torch.arange(4) > 1).any() and mask.all():
            return x.square().mean()
        return x[mask].abs().mean() if x.dim() > 2 else (x * mask).square().mean()


class Experts(nn.Module):
    """Two of four layers for each row, as the largest scores say."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(32, 4)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            weights, chosen = self.scores(x).softmax(1).topk(2, dim=1)
            shares = torch.zeros(x.shape[0], 4).scatter(1, chosen, weights)
            x = sum(
                share[:, None] * torch.tanh(layer(x))
                for share, layer in zip(shares.unbind(1), self.layers, strict=True)
            )
        return x.square().mean()


COLLECTED: contextvars.ContextVar[dict[str, torch.Tensor] | None] = contextvars.ContextVar(
    "collected", default=None
)
LOCK = threading.Lock()


class Collecting(nn.Module):
    """Hands a value on in a context variable, as libraries do that record outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def inner(self, x: torch.Tensor) -> None:
        COLLECTED.get()["value"] = self.layer(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: dict[str, torch.Tensor] = {}
        with LOCK:
            token = COLLECTED.set(found)
        try:
            self.inner(x)
        finally:
            COLLECTED.reset(token)
        return found["value"].square().mean()


class Preparing(nn.Module):
    """Registers hooks on its parts in its first forward, as libraries do that record outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.is_prepared = False
        self.last: torch.Tensor | None = None

    def prepare(self) -> None:
        for layer in self.layers:
            layer.register_forward_hook(lambda _module, _args, output: torch.tanh(output))
        self.is_prepared = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.norm(x), 0.5)
        if not self.is_prepared:
            self.prepare()
        for layer in self.layers:
            x = layer(x)
        self.last = x.detach()
        return x.square().mean()


class Padded(nn.Module):
    """Asks whether there is padding in its tokens, as libraries do that warn of it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens)
        return words.square().mean() if 0 in tokens[:, [-1, 0]] else words.abs().mean()


class Masking(nn.Module):
    """Draws a mask with NumPy, as models of speech do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.layers[0](x))
        x = x * torch.from_numpy(numpy.random.randint(0, 2, size=32))
        return self.layers[1](x).square().mean()


class Drawing(nn.Module):
    """Draws numbers that nobody reads, and drops a layer with a probability."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.layer, self.probability = nn.Linear(32, 32), probability

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            torch.rand(5)
            if torch.rand([]) < self.probability:
                continue
            x = functional.dropout(torch.tanh(self.layer(x)), 0.5)
        return x.square().mean()


class Routes(Case):
    def test_a_layer_that_is_never_dropped_ends_no_graph(self) -> None:
        torch.manual_seed(0)
        planned = self.assert_alike(Drawing(0.0), torch.randn(BATCH))
        (step,) = session_of(planned).planned
        draws = [node for node in step.graph.nodes if node.op == "aten.rand.default"]
        self.assertEqual(len(draws), 6, "eager's generator moves on with every draw")

    def test_what_is_drawn_is_compared_with_a_number(self) -> None:
        graph = torch.fx.Graph()
        drawn = graph.call_function(torch.rand, ([],))
        for compare, number, answer in (
            (operator.lt, 0.0, False),
            (operator.lt, 1.0, True),
            (operator.lt, 0.5, None),
            (operator.le, 0.0, None),
            (operator.ge, 0.0, True),
            (operator.gt, 1, False),
            (operator.gt, 0, None),
        ):
            with self.subTest(compare=compare.__name__, number=number):
                node = graph.call_function(compare, (drawn, number))
                self.assertIs(eager_route.whatever_is_drawn(node), answer)
        self.assertIsNone(eager_route.whatever_is_drawn(drawn))

    def test_locks_and_context_variables_end_no_graph(self) -> None:
        torch.manual_seed(0)
        planned = self.assert_alike(Collecting(), torch.randn(BATCH))
        self.assertEqual(len(session_of(planned).planned), 1)
        self.assertIsNone(COLLECTED.get())
        self.assertFalse(LOCK.locked())

    def test_hooks_of_the_first_forward_end_no_graph(self) -> None:
        torch.manual_seed(0)
        planned = self.assert_alike(Preparing(), torch.randn(BATCH))
        (step,) = session_of(planned).planned
        runs = [node.op for node in step.graph.nodes if node.op == "aten.tanh.default"]
        self.assertEqual(len(runs), 2, "each hook is registered once, and planned")
        self.assertEqual([len(layer._forward_hooks) for layer in planned.layers], [1, 1])
        self.assertEqual(planned.norm.num_batches_tracked, 3)

    def test_whether_a_value_is_in_a_tensor_ends_no_graph(self) -> None:
        torch.manual_seed(0)
        module, tokens = Padded(), torch.arange(1, 16).view(5, 3)
        planned = rekindle.compile(copy.deepcopy(module), 1.0, profile="roofline", effort=1)
        for batch in (tokens, tokens - 1, tokens):
            losses = [part(batch) for part in (module, planned)]
            self.assertTrue(torch.equal(*losses))
            for loss in losses:
                loss.backward()
            self.assertTrue(torch.equal(module.words.weight.grad, planned.words.weight.grad))
        self.assertEqual(session_of(planned).ends, set())
        # With gradients of an earlier step there is a plan of its own.
        self.assertEqual(len(session_of(planned).planned), 3, "a plan for each way")

    def test_numpy_draws_what_it_draws_in_eager(self) -> None:
        torch.manual_seed(0)
        module, x = Masking(), torch.randn(BATCH)
        planned = rekindle.compile(copy.deepcopy(module), 1.0, profile="roofline", effort=1)
        losses = []
        for part in (module, planned):
            numpy.random.seed(5)
            losses.append([part(x).item() for _ in range(3)])
        self.assertEqual(*losses)

    def test_a_mistake_of_ours_is_not_taken_for_the_models(self) -> None:
        planned = rekindle.compile(Drawing(0.0), 1.0, profile="roofline", effort=1)
        mistake = mock.Mock(side_effect=TypeError("a mistake"))
        with mock.patch.object(eager_route, "whatever_is_drawn", mistake):
            with self.assertRaisesRegex(rekindle.RekindleError, "Rekindle's own .*a mistake"):
                planned(torch.randn(BATCH))

    def test_experts_are_chosen_once(self) -> None:
        torch.manual_seed(0)
        planned = self.assert_alike(Experts(), torch.randn(BATCH), 0.8)
        (step,) = session_of(planned).planned
        runs = [node for kind, node in step.plan.steps() if kind == "run"]
        chosen = [at for at, node in enumerate(step.graph.nodes) if node.op == "aten.topk.default"]
        self.assertEqual([runs.count(node) for node in chosen], [1, 1])
        self.assertGreater(len(runs), len(set(runs)), "nothing was recomputed")

    def test_the_model_goes_eagers_way(self) -> None:
        torch.manual_seed(0)
        module, x = Asking(), torch.randn(BATCH)
        planned = rekindle.compile(copy.deepcopy(module), 1.0, profile="roofline", effort=1)
        half = torch.arange(32) % 2 == 0
        for mask in (torch.ones(32, dtype=torch.bool), half, torch.ones(32, dtype=torch.bool)):
            module.zero_grad()
            planned.zero_grad()
            losses = [part(x, mask) for part in (module, planned)]
            self.assertTrue(torch.equal(*losses))
            for loss in losses:
                loss.backward()
            self.assertTrue(torch.equal(module.layer.weight.grad, planned.layer.weight.grad))
        self.assertEqual(len(session_of(planned).planned), 2, "a plan for each way")


if __name__ == "__main__":
    unittest.main()
