"""Steps for devices that are not here: the same graph from `meta`, the predicted peak measured, and
what a GPU runs in place of the host's operations against PyTorch's own rules for it.
"""

import copy
import os
import pickle
import tempfile
import unittest
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import rekindle
import torch
from planned_models import FAMILIES
from rekindle.torch import allow_atomics, trace
from rekindle.torch.capture import capture
from rekindle.torch.effects import Effect, effect_of
from rekindle.torch.joint import Joint
from rekindle.torch.lower import lower
from rekindle.torch.module import session_of
from rekindle.torch.target.attention import Options
from rekindle.torch.target.autocast import HOST_ONLY, KERNELS
from rekindle.torch.target.carry_over import SUBSTITUTIONS, autocast_on
from rekindle.torch.target.devices import DEVICES, device_named
from rekindle.torch.target.interfaces import autocast_of, without_contents
from rekindle.torch.target.scratch import scratch_of
from test_compile import BATCH, Layers
from torch import nn
from torch.nn import functional as F

HALF = torch.bfloat16


class Attends(nn.Module):
    """A block of a transformer with everything that a GPU runs otherwise."""

    def __init__(self, dropout: float = 0.1, is_causal: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.norm, self.rms = nn.LayerNorm(64), nn.RMSNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.drop = nn.Dropout(dropout)
        self.is_causal = is_causal

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.norm(self.embed(tokens))
        sizes = (*tokens.shape, 3, 4, 16)
        query, key, value = self.qkv(found).view(sizes).permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        found = found + self.drop(self.out(self.rms(seen.transpose(1, 2).reshape(found.shape))))
        shares = F.softmax(found, -1, dtype=torch.float32).square().mean()
        scores = found @ self.embed.weight.t()
        return shares + F.log_softmax(scores, -1, dtype=torch.float32).mean()


class Wide(nn.Module):
    """Layers that are large beside the allocator's segments."""

    def __init__(self) -> None:
        super().__init__()
        parts = [part for _ in range(8) for part in (nn.Linear(512, 512), nn.GELU())]
        self.layers = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


class Recurs(nn.Module):
    """A recurrent cell, which a GPU has as one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = (x[0], x[0])
        for row in x:
            state = self.cell(row, state)
        return state[0].square().mean()


class Returns(nn.Module):
    """A layer, and what becomes of it a loss."""

    def __init__(self, layer: nn.Module, loss: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.loss = layer, loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.layer, x)


class Groups(nn.Module):
    """Convolutions with group and batch norms."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3)]
        self.layers = nn.Sequential(*layers, nn.BatchNorm2d(8), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def tokens() -> torch.Tensor:
    return torch.randint(100, (4, 32))


MODELS = {
    **{name: FAMILIES[name].build for name in ("resnet18", "bert", "gpt2", "vit", "unet")},
    "layers": lambda: (Layers(), (torch.randn(BATCH, 32),)),
    "attends": lambda: (Attends(), (tokens(),)),
    "plain attends": lambda: (Attends(0.0, is_causal=False), (tokens(),)),
    "recurs": lambda: (Recurs(), (torch.randn(5, 4, 16),)),
    "groups": lambda: (Groups(), (torch.randn(4, 3, 12, 12),)),
}
"""Ten."""


def on_meta(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to("meta")


class TargetCase(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(3)
        environment = mock.patch.dict(os.environ, REKINDLE_CACHE="off")
        environment.start()
        self.addCleanup(environment.stop)


class TheHost(TargetCase):
    def test_a_graph_needs_no_contents_and_the_peak_is_then_measured(self) -> None:
        for name, make in MODELS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model, batch = make()
                # Moving a model to `meta` would untie its weights; it is made there.
                with torch.device("meta"):
                    empty, _ = make()
                step, hollow = trace(model, batch), trace(empty, batch)
                self.assertEqual(step.graph, hollow.graph)
                budget = (hollow.graph.floor + hollow.graph.peak) // 2
                plan = hollow.plan(budget, effort=1)
                file = plan.save(Path(folder) / "plan.json")
                planned = rekindle.compile(model, plan=file, check=True)
                # The first step also compares with eager, which makes numbers of its own.
                planned(*batch).backward()
                # A call that may be compared copies the buffers before it begins.
                session_of(planned).check = False
                model.zero_grad()
                there = [*model.parameters(), *model.buffers(), *batch]
                with rekindle.measure_peak(there) as measured:
                    planned(*batch).backward()
                self.assertEqual(measured.peak, plan.live, "predicted and measured")
                self.assertLessEqual(measured.peak, budget)

    def test_an_optimizer_keeps_nothing_for_what_is_frozen(self) -> None:
        model, x = on_meta(Layers()), torch.randn(BATCH, 32)
        first, *_, last = model.parameters()
        for part in (first, last):
            part.requires_grad_(False)
        trained = [part for part in model.parameters() if part.requires_grad]
        every, some = (
            trace(model, x, optimizer=torch.optim.AdamW(parts)).graph
            for parts in (model.parameters(), trained)
        )
        self.assertEqual(every, some)

    def test_an_optimizer_keeps_nothing_for_what_is_not_read(self) -> None:
        model, x = Layers(), torch.randn(BATCH, 32)
        model.idle = nn.Linear(10, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        model(x).backward()
        optimizer.step()
        model.zero_grad()
        made = [value for state in optimizer.state.values() for value in state.values()]
        peak = trace(on_meta(model), x).graph.peak + sum(value.nbytes for value in made)
        fresh = on_meta(model)
        step = trace(fresh, x, optimizer=torch.optim.AdamW(fresh.parameters()))
        self.assertEqual(step.graph.peak, peak)
        found = rekindle.max_batch(
            fresh,
            lambda n: torch.randn(n, 32),
            budget=peak,
            optimizer=torch.optim.AdamW(fresh.parameters()),
        )
        self.assertEqual(found.plain_size, BATCH)

    def test_the_largest_batch_of_a_model_without_contents(self) -> None:
        budget = 200_000
        known = rekindle.max_batch(Layers(), lambda n: torch.randn(n, 32), budget=budget)
        hollow = rekindle.max_batch(
            on_meta(Layers()), lambda n: torch.randn(n, 32, device="meta"), budget=budget
        )
        self.assertEqual(known, hollow)
        found = trace(on_meta(Layers()), torch.randn(4, 32)).max_batch(budget)
        self.assertEqual((found.plain, found.planned), (known.plain_size, known.size))
        self.assertIsNone(found.offload)
        self.assertIn("prediction", str(found))

    def test_the_largest_batch_where_memory_grows_with_its_square(self) -> None:
        """As in a contrastive loss, every row meets every other."""
        rows = lambda layer, x: (layer(x) @ layer(x).t()).logsumexp(-1).mean()  # noqa: E731
        model = on_meta(Returns(nn.Linear(32, 32), rows))
        captured = []
        make = lambda n: captured.append(n) or torch.randn(n, 32)  # noqa: E731
        for budget in (30_000, 300_000, 30_000_000):
            with self.subTest(budget):
                captured.clear()
                found = trace(model, torch.randn(4, 32), make_batch=make).max_batch(budget)
                self.assertLess(len(captured), 32, "sizes follow from others")
                sizes = ((found.plain, "plain"), (found.planned, "planned"))
                for size, way in sizes:
                    for count, fits in ((size, True), (size + 1, False)):
                        fit = trace(model, make(count)).fits(budget)
                        self.assertEqual(getattr(fit, way).fits, fits, f"{way}, {count}")

    def test_another_step_is_refused_by_what_differs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            step = trace(Layers(), torch.randn(BATCH, 32))
            file = step.plan(step.graph.peak).save(Path(folder) / "plan.json")
            planned = rekindle.compile(Layers(), plan=file)
            with self.assertRaisesRegex(rekindle.AnotherGraph, "was planned with 65536 bytes"):
                planned(torch.randn(BATCH // 2, 32))
            again = pickle.loads(pickle.dumps(planned))
            again(torch.randn(BATCH, 32)).backward()
            self.assertIn("data sheet of cpu", str(rekindle.report(again)))
            file.write_text(file.read_text().replace("rekindle.step/1", "rekindle.step/9"))
            with self.assertRaisesRegex(rekindle.InvalidInput, "format"):
                rekindle.compile(Layers(), plan=file)
        with self.assertRaisesRegex(rekindle.InvalidInput, "a budget, or a plan"):
            rekindle.compile(Layers())

    def test_measured_times_take_the_place_of_the_data_sheet(self) -> None:
        model, x = Layers(), torch.randn(BATCH, 32)
        step = trace(model, x)
        measured = rekindle.profile(model, x).graph
        timed = step.with_times(measured, "a profile")
        self.assertEqual(timed.graph.time, measured.time)
        self.assertIn("measured: a profile", timed.costs)
        with self.assertRaisesRegex(rekindle.InvalidInput, "not that of this step"):
            step.with_times(trace(model, x[:8]).graph, "another")


class AGpu(TargetCase):
    def names(self, device: str, **options: object) -> list[str]:
        joint = capture(on_meta(Attends()), tokens(), device_named(device), **options)
        return [str(node.target) for node in joint.computing()]

    def test_each_device_has_its_own_attention(self) -> None:
        for device, dtype, kernel in (
            ("H100-80GB", HALF, "_scaled_dot_product_cudnn_attention"),
            ("A100-80GB", HALF, "_scaled_dot_product_flash_attention"),
            ("A100-80GB", None, "_scaled_dot_product_efficient_attention"),
            ("T4", torch.float16, "_scaled_dot_product_efficient_attention"),
            ("MI300X", HALF, "_scaled_dot_product_flash_attention"),
        ):
            with self.subTest(f"{device}, {dtype}"):
                names = self.names(device, dtype=dtype)
                self.assertIn(f"aten.{kernel}.default", names)
                self.assertIn(f"aten.{kernel}_backward.default", names)
                self.assertIn("aten.native_dropout.default", names)
                self.assertIn("aten._fused_rms_norm_backward.default", names)
                self.assertFalse([name for name in names if "for_cpu" in name])

    def test_attention_is_chosen_as_pytorch_chooses(self) -> None:
        """Sizes are batch, heads, heads of keys, rows, columns and the size of a head."""
        usual = (2, 4, 4, 16, 16, 64)
        for device, dtype, sizes, options, kernel in (
            ("H100-80GB", HALF, usual, {}, "cudnn"),
            ("H100-80GB", HALF, (2, 4, 4, 16, 16, 60), {}, "flash"),
            ("H100-80GB", HALF, (2, 4, 4, 16, 1, 64), {}, "flash"),
            ("H100-80GB", HALF, (70_000, 4, 4, 16, 16, 8), {}, "flash"),
            ("H100-80GB", HALF, usual, {"dropout": 0.1}, "flash"),
            ("H100-80GB", HALF, usual, {"dropout": 0.125}, "cudnn"),
            ("H100-80GB", HALF, (2, 4, 2, 16, 16, 64), {"is_grouped": True}, "cudnn"),
            ("H100-80GB", HALF, (2, 4, 1, 16, 16, 64), {}, "cudnn"),
            ("A100-80GB", HALF, (2, 4, 2, 16, 16, 64), {"is_grouped": True}, "flash"),
            ("A100-80GB", HALF, (2, 4, 2, 16, 16, 64), {}, "math"),
            ("A100-80GB", HALF, (2, 4, 1, 16, 16, 64), {}, "flash"),
            ("A100-80GB", HALF, (2, 4, 3, 16, 16, 64), {"is_grouped": True}, "math"),
            (
                "A100-80GB",
                HALF,
                (2, 4, 2, 16, 16, 64),
                {"is_grouped": True, "mask": 1},
                "efficient",
            ),
            ("A100-80GB", HALF, usual, {"mask": 1}, "efficient"),
            ("A100-80GB", HALF, (2, 4, 4, 16, 8, 64), {"is_causal": True}, "efficient"),
            ("A100-80GB", HALF, (2, 4, 4, 16, 16, 264), {}, "efficient"),
            ("A100-80GB", HALF, (2, 4, 4, 16, 16, 260), {}, "math"),
            ("A100-80GB", torch.float32, (2, 4, 4, 16, 16, 62), {}, "math"),
            ("A100-80GB", torch.float64, usual, {}, "math"),
            ("T4", torch.float32, (2, 4, 4, 16, 16, 62), {}, "efficient"),
            ("T4", torch.float16, usual, {}, "efficient"),
            ("T4", torch.float16, (2, 4, 4, 16, 16, 62), {}, "math"),
            ("T4", HALF, usual, {}, "math"),
            ("RTX4090", HALF, (2, 4, 4, 16, 16, 200), {}, "efficient"),
            ("RTX4090", HALF, (2, 4, 4, 16, 16, 232), {}, "flash"),
            ("RTX4090", HALF, (2, 4, 4, 16, 16, 232), {"dropout": 0.1}, "efficient"),
            ("MI300X", HALF, usual, {}, "flash"),
            ("MI300X", HALF, (2, 4, 2, 16, 16, 64), {"is_grouped": True, "mask": 1}, "math"),
        ):
            batch, heads, groups, rows, columns, size = sizes
            made = partial(torch.empty, dtype=dtype, device="meta")
            tensors = (
                made(batch, heads, rows, size),
                made(batch, groups, columns, size),
                made(batch, groups, columns, size),
            )
            mask = made(rows, columns) if "mask" in options else None
            found = Options(
                device_named(device),
                mask,
                options.get("dropout", 0.0),
                options.get("is_causal", False),
                options.get("is_grouped", False),
            )
            ways = ("cudnn", "flash", "efficient")
            chosen = [way for way in ways if getattr(found, f"{way}_runs")(*tensors)]
            with self.subTest(f"{device}, {dtype}, {sizes}, {options}"):
                self.assertEqual([*chosen, "math"][0], kernel)

    def test_what_is_saved_is_what_the_meta_functions_of_cuda_say(self) -> None:
        joint = capture(on_meta(Attends()), tokens(), device_named("A100-80GB"), HALF)
        found = {str(node.target): node for node in joint.computing()}
        for node in found.values():
            for tensor in torch.utils._pytree.tree_leaves(node.meta["val"]):
                if isinstance(tensor, torch.Tensor):
                    self.assertEqual(tensor.device.type, "cuda", node.name)
        _, mean, _ = found["aten.native_layer_norm.default"].meta["val"]
        self.assertEqual(mean.dtype, torch.float32, "a host keeps it in the input's type")
        _, mask = found["aten.native_dropout.default"].meta["val"]
        self.assertEqual(mask.dtype, torch.bool)
        flash = found["aten._scaled_dot_product_flash_attention.default"].meta["val"]
        self.assertEqual((flash[1].shape, flash[1].dtype), ((4, 4, 32), torch.float32))
        backward = found["aten._scaled_dot_product_flash_attention_backward.default"]
        # Sums for 128 rows of heads of 32, and one number more for each row.
        self.assertEqual(scratch_of(backward), 4 * 4 * 128 * 33 * 4)

    def test_the_table_is_what_cuda_does(self) -> None:
        """Substitutions are compared with PyTorch's own dispatch for CUDA when a step is captured:
        without one, the comparison refuses the step. Attention and fused norms it cannot see.
        """
        device = device_named("A100-80GB")
        for gone in SUBSTITUTIONS[1:-1]:
            self.assertIn("aten/src/ATen/native", gone.source)
            left = tuple(s for s in SUBSTITUTIONS if s is not gone)
            with (
                self.subTest(str(gone.operation)),
                mock.patch("rekindle.torch.target.carry_over.SUBSTITUTIONS", left),
                self.assertRaisesRegex(rekindle.CannotCarryOver, "no substitution is known"),
            ):
                capture(on_meta(Attends()), tokens(), device, torch.float16)

    def test_convolutions_in_bfloat16_are_laid_out_as_in_half_precision(self) -> None:
        """PyTorch asks the device whether its library has them."""
        loss = lambda layer, x: layer(x).contiguous().square().mean()  # noqa: E731
        layer = nn.Conv2d(32, 32, 3).to(memory_format=torch.channels_last)
        model, x = on_meta(Returns(layer, loss)), torch.randn(2, 32, 8, 8)
        for name in ("A100-80GB", "MI300X"):
            single, half, brain = (
                trace(model, x, device=name, dtype=dtype).graph
                for dtype in (torch.float32, torch.float16, HALF)
            )
            copies = [sum("clone" in n.op for n in g.nodes) for g in (single, half, brain)]
            self.assertEqual(copies, [1, 1, 1], "there is a copy to rows of channels")
            self.assertEqual(half.storages, brain.storages)
        with self.assertRaisesRegex(rekindle.CannotCarryOver, "contiguous"):
            trace(model, x, device="T4", dtype=HALF)

    def test_what_cannot_be_carried_over_is_named(self) -> None:
        with self.assertRaisesRegex(rekindle.CannotCarryOver, "^lstm_cell .*another way on a GPU"):
            trace(Recurs(), torch.randn(5, 4, 16), device="H100-80GB")

    def test_constants_are_made_where_they_are_wanted(self) -> None:
        """Without a driver PyTorch makes them on the host, and copies them."""
        two = partial(torch.tensor, 2.0)
        doubled = lambda layer, x: (layer(x) * two(device=x.device)).mean()  # noqa: E731
        model, x = on_meta(Returns(nn.Linear(4, 4), doubled)), torch.randn(3, 4)
        there = trace(model, x, device="A100-80GB").graph
        self.assertEqual([n.op for n in there.nodes], [n.op for n in trace(model, x).graph.nodes])

    def test_an_index_from_the_host_is_refused_where_it_is_computed_with(self) -> None:
        model, x = Attends(), tokens()
        asks = lambda layer, x: layer(x + 1 if -1 in x[:, [-1, 0]] else x)  # noqa: E731
        decided = trace(on_meta(Returns(model, asks)), x, device="A100-80GB").graph
        self.assertEqual(len(decided), len(trace(on_meta(model), x, device="A100-80GB").graph))
        for name, loss in (
            ("getitem", lambda layer, x: layer(x)[:, [0, 2]].mean()),
            ("to", lambda layer, x: (layer(x) * torch.arange(4).to(x.device)).mean()),
        ):
            with (
                self.subTest(name),
                self.assertRaisesRegex(rekindle.CannotCarryOver, f"^{name} .*host's memory.*devic"),
            ):
                model = on_meta(Returns(nn.Linear(4, 4), loss))
                trace(model, torch.randn(3, 4), device="A100-80GB")

    def test_what_pytorch_says_of_a_gpu_is_one_sentence(self) -> None:
        for layer, loss, x, said in (
            (
                nn.EmbeddingBag(10, 4, mode="sum"),
                lambda layer, x: layer(x).mean(),
                torch.zeros(3, 2, dtype=torch.long),
                r"^_embedding_bag.* gives .* on a GPU, .* device itself$",
            ),
            (
                nn.Linear(4, 4),
                lambda layer, x: F.binary_cross_entropy(layer(x).sigmoid(), x),
                torch.rand(3, 4),
                "^binary_cross_entropy .* PyTorch says: .*unsafe to autocast. If .* device itself$",
            ),
        ):
            model = on_meta(Returns(layer, loss))
            with self.assertRaisesRegex(rekindle.CannotCarryOver, said) as refused:
                trace(model, x, device="A100-80GB", autocast=HALF)
            self.assertNotIn("\n", str(refused.exception))

    def test_recurrent_layers_are_refused_by_name(self) -> None:
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            layer = kind(16, 16, 2)
            model = Returns(layer, lambda layer, x: layer(x)[0].square().mean())
            with self.subTest(kind.__name__):
                name = f"{kind.__name__}.*on a GPU.*device itself"
                with self.assertRaisesRegex(rekindle.CannotCarryOver, name):
                    trace(on_meta(model), torch.randn(5, 4, 16), device="H100-80GB")
                with self.assertRaisesRegex(rekindle.UnsupportedGraph, "RNN.*rekindle.compile"):
                    trace(model, torch.randn(5, 4, 16))

    def test_devices_have_many_names(self) -> None:
        for name, known in (
            ("h100-80gb", "H100-80GB"),
            ("NVIDIA H100 80GB HBM3", "H100-80GB"),
            ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
            ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
            ("Tesla T4", "T4"),
            ("NVIDIA GeForce RTX 4090", "RTX4090"),
            ("4090", "RTX4090"),
            ("Tesla V100-SXM2-16GB", "V100-16GB"),
            ("AMD Instinct MI300X", "MI300X"),
            ("CPU", "cpu"),
        ):
            self.assertEqual(device_named(name).name, known, name)
        for name, said in (
            ("H100", "H100-80GB or H100-80GB-PCIe"),
            ("L40", "L40S"),
            ("A100", "A100-40GB or A100-80GB or A100-80GB-PCIe"),
            ("H100-79GB", "no data sheet.*did you mean H100-80GB"),
            ("cuda:0", "does not say which GPU"),
            ("", "does not say which GPU"),
            ("abacus", "there are cpu, V100-16GB"),
        ):
            with self.assertRaisesRegex(rekindle.InvalidInput, said):
                device_named(name)

    def test_a_budget_holds_for_what_is_reserved(self) -> None:
        step = trace(on_meta(Wide()), torch.randn(40_000, 512), device="H100-80GB", dtype=HALF)
        plain = rekindle._native.footprint(step.graph)
        self.assertGreaterEqual(plain.allocated, step.graph.peak)
        self.assertGreaterEqual(plain.reserved, plain.allocated)
        self.assertEqual(plain.fragmentation, plain.reserved - plain.allocated)
        budget = step.margin_bytes + plain.reserved * 3 // 4
        plan = step.plan(budget, effort=1)
        self.assertLessEqual(plan.needed, budget)
        self.assertLessEqual(plan.live, plan.footprint.allocated)
        for word in ("prediction", "reserved", "cuBLAS", "data sheet"):
            self.assertIn(word, str(plan))
        for shown in (step, plan, plan.footprint, step.fits(budget), step.fits(budget).plain):
            self.assertIn("predict", repr(shown))
        fit = step.fits(budget)
        self.assertEqual((fit.plain.fits, fit.planned.fits, bool(fit)), (False, True, True))
        with self.assertRaisesRegex(rekindle.DoesNotFit, "^prediction for .* margins"):
            step.plan(step.margin_bytes + plain.reserved // 10, effort=1)
        with self.assertRaises(rekindle.DoesNotFit):
            rekindle._native.footprint(step.graph, limit=plain.reserved // 4)

    def test_operations_that_do_not_repeat_are_kept_unless_allowed(self) -> None:
        joint = capture(on_meta(Attends()), tokens(), device_named("A100-80GB"), HALF)
        node = next(n for n in joint.computing() if "embedding_dense_backward" in str(n.target))
        self.assertIs(effect_of(node), Effect.ONCE)
        self.addCleanup(allow_atomics, False)
        allow_atomics()
        self.assertIs(effect_of(node), Effect.PURE)
        host = capture(Attends(), tokens())
        allow_atomics(False)
        node = next(n for n in host.computing() if "embedding_dense_backward" in str(n.target))
        self.assertIs(effect_of(node), Effect.PURE)

    def test_a_step_that_leaves_its_stream_is_refused(self) -> None:
        joint = capture(Layers(), torch.randn(BATCH, 32))
        with joint.graph.inserting_before(joint.output):
            joint.graph.call_function(
                torch.ops.aten.record_stream.default, (joint.primals[0], None)
            )
        with self.assertRaisesRegex(rekindle.UnsupportedGraph, "record_stream.* on one stream"):
            Joint(joint.module, len(joint.forward_outputs), ())

    def test_a_generators_state_counts_where_it_lies(self) -> None:
        for device, size in (("A100-80GB", 0), ("cpu", torch.get_rng_state().nbytes)):
            joint = capture(on_meta(Attends()), tokens(), device_named(device))
            self.assertEqual(lower(joint, "attends").state_bytes, size, device)

    def test_data_sheets(self) -> None:
        for device in DEVICES.values():
            self.assertTrue(device.source)
            self.assertGreater(device.bandwidth, 0)
            if device.is_gpu:
                self.assertGreaterEqual(device.rate(HALF), device.rate(torch.float32))
                rekindle._native.parse_store(device.store)


AUTOCAST_CALLS = {
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "softmax.int": lambda x: x.softmax(-1),
    "log_softmax.int": lambda x: x.log_softmax(-1),
    "sum": lambda x: x.sum(),
    "sum.dim_IntList": lambda x: x.sum(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "prod": lambda x: x.prod(),
    "exp": lambda x: x.exp(),
    "log": lambda x: x.log(),
    "rsqrt": lambda x: x.rsqrt(),
    "reciprocal": lambda x: x.reciprocal(),
    "pow.Tensor_Scalar": lambda x: x.pow(2),
    "softplus": lambda x: F.softplus(x),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "linalg_vector_norm": lambda x: torch.linalg.vector_norm(x),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "mv": lambda x: x.mv(x[0]),
    "addcmul": lambda x: x.addcmul(x.float(), x),
    "atan2": lambda x: x.atan2(x.float()),
    "index_put": lambda x: x.index_put((x[:, 0].long(),), x.float()),
    "cat": lambda x: torch.cat([x, x.float()]),
    "stack": lambda x: torch.stack([x, x.float()]),
    "cross_entropy_loss": lambda x: F.cross_entropy(x, x[:, 0].long()),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "linear": lambda x: F.linear(x.float(), x.float()),
    "gelu": lambda x: F.gelu(x),
}
"""Operations that autocast treats, and one that it leaves alone."""


class Autocast(TargetCase):
    def test_its_rules_are_those_of_cuda(self) -> None:
        device = device_named("A100-80GB")
        self.assertTrue(set(HOST_ONLY) and KERNELS)
        for name, call in AUTOCAST_CALLS.items():
            with self.subTest(name), without_contents():
                with autocast_of("cuda", HALF):
                    there = call(torch.empty(8, 8, dtype=HALF, device="cuda"))
                with autocast_on(device, HALF):
                    here = call(torch.empty(8, 8, dtype=HALF))
                self.assertEqual((here.dtype, here.shape), (there.dtype, there.shape))

    def test_a_step_in_mixed_precision(self) -> None:
        x = tokens()
        half = trace(on_meta(Attends()), x, device="A100-80GB", autocast=HALF).graph
        single = trace(on_meta(Attends()), x, device="A100-80GB").graph
        self.assertNotEqual(half.digest, single.digest)


if __name__ == "__main__":
    unittest.main()
