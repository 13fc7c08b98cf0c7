"""`compile(…, offload=…)`: activations are moved, the bits are eager's, and the peak is the
predicted one, below what recomputation alone can reach.
"""

import copy
import ctypes
import errno
import functools
import gc
import mmap
import os
import pickle
import random
import tempfile
import time
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch
from planned_models import FAMILIES
from stand_in import StandIn
from test_compile import Average, Case, Layers, Noisy
from test_families import digest
from torch import fx, nn

import rekindle
from rekindle.settings import Settings
from rekindle.torch import file_store, planning, stores, transfers
from rekindle.torch.capture import capture
from rekindle.torch.file_store import FileStore
from rekindle.torch.host_store import HostStore
from rekindle.torch.inject import inject
from rekindle.torch.lower_back import check_modules
from rekindle.torch.module import session_of
from rekindle.torch.transfers import Transfers

STORE = "out=2GB/s,in=2GB/s,latency=20us"
PLACES = tempfile.TemporaryDirectory()
"""The store, and the plans: those of one model serve many tests."""
FAMILY_NAMES = ("bert", "gpt2", "resnet18")


@functools.cache
def smallest(name: str) -> tuple[int, int]:
    """The smallest budgets of a model, by recomputation alone and with a store. Of BERT they are
    the same, because one operation needs as much: a higher one is taken for the first.
    """
    module, batch = build(name)
    joint = capture(module, batch)
    settings = Settings(1.0, "roofline", effort=1)
    graph = planning.plan_joint(joint, settings).graph
    alone = rekindle.smallest(graph, effort=1).peak
    moving = rekindle.smallest(graph, effort=1, store=f"{STORE},activations").peak
    return (alone + graph.peak // 4 if name == "bert" else alone), moving


def build(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    if name in FAMILIES:
        return FAMILIES[name].build()
    return {"layers": Layers, "noisy": Noisy, "average": Average}[name](), (
        torch.randn(512, 64 if name == "average" else 32),
    )


def steps(module: nn.Module, batch: tuple[torch.Tensor, ...], count: int = 2) -> list[str]:
    """The digest of every number of a few steps."""
    torch.manual_seed(5)
    found = []
    for _ in range(count):
        module.zero_grad()
        loss = module(*batch)
        loss.backward()
        found.append(digest(loss))
        found += [digest(p.grad) for p in module.parameters() if p.grad is not None]
    return found + [digest(buffer) for buffer in module.buffers()]


def peak_of(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> int:
    """The measured peak of a step."""
    module.zero_grad()
    there = [*module.parameters(), *module.buffers(), *batch]
    with rekindle.measure_peak(there) as measured:
        module(*batch).backward()
    return measured.peak


class Offloading(Case):
    def setUp(self) -> None:
        super().setUp()
        self.store_folder, plans = (str(Path(PLACES.name) / name) for name in ("store", "plans"))
        Path(self.store_folder).mkdir(exist_ok=True)
        os.environ["REKINDLE_CACHE"] = plans

    def compiled(self, name: str, share: float = 0.5, **options: object):
        """A planned model, in a budget between the smallest of both kinds."""
        alone, moving = smallest(name)
        self.assertLess(moving, alone)
        module, batch = build(name)
        options = {"offload": self.store_folder, "store": STORE, "wait": True, **options}
        budget = int(moving + share * (alone - moving))
        planned = rekindle.compile(module, budget, profile="roofline", effort=1, **options)
        return planned, batch

    def held(self, model: nn.Module) -> int:
        """Bytes in the store."""
        gc.collect()
        return session_of(model)._transfers.store.held

    def check(self, name: str, **options: object) -> nn.Module:
        """Two steps are eager's, and the peak is the predicted one."""
        plain, batch = build(name)
        expected = steps(plain, batch)
        model, _ = self.compiled(name, **options)
        self.assertEqual(steps(model, batch), expected)
        (planned,) = session_of(model).planned
        kinds = {kind for kind, _ in planned.plan.steps()}
        self.assertLessEqual({"offload", "fetch"}, kinds)
        self.assertEqual(peak_of(model, batch), planned.peak)
        self.assertLessEqual(planned.peak, planned.plan.budget)
        self.assertEqual(self.held(model), 0, "every copy is gone behind its step")
        return model


class Files(Offloading):
    """With a file."""

    def test_nothing_is_left_in_the_folder(self) -> None:
        model, batch = self.compiled("layers")
        model(*batch)
        self.assertEqual(os.listdir(self.store_folder), [])

    def test_what_is_drawn_again_and_what_is_overwritten(self) -> None:
        self.check("noisy")
        self.check("average")

    def test_at_the_smallest_budget(self) -> None:
        self.check("layers", share=0.0)

    def test_without_direct_input_and_output(self) -> None:
        with mock.patch.object(file_store, "_make_direct", lambda _: False):
            self.check("layers")

    def test_under_random_delays(self) -> None:
        dice = random.Random(3)

        def late(real):
            def call(*args: object) -> int:
                time.sleep(dice.random() * 2e-3)
                return real(*args)

            return call

        with (
            mock.patch.object(os, "pwrite", late(os.pwrite)),
            mock.patch.object(os, "preadv", late(os.preadv)),
        ):
            self.check("noisy")

    def test_a_write_in_pieces(self) -> None:
        real = os.pwrite
        with mock.patch.object(os, "pwrite", lambda fd, view, at: real(fd, view[:4096], at)):
            self.check("layers")

    def test_check_and_copies(self) -> None:
        model = self.check("layers", check=True)
        x = build("layers")[1][0]
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch._dynamo.reset()
            self.assertEqual(steps(other, (x,)), steps(model, (x,)))
            self.assertIsNot(session_of(other)._transfers.store, session_of(model)._transfers.store)

    def test_the_bytes_of_a_file_are_not_memory_in_disguise(self) -> None:
        if filesystem(self.store_folder) in ("tmpfs", "ramfs"):
            print("NOT RUN: the temporary folder is memory, and there is no other")
            return
        size = 3 * file_store.REQUEST + 12_345
        value = torch.randint(256, (size,), dtype=torch.uint8)
        for is_direct in (True, False):
            moving = Transfers(FileStore(self.store_folder, is_direct=is_direct))
            token = moving.offload(value)
            moving.wait(value, token)
            file = moving.store._file.disk.descriptor
            self.assertEqual(cached_pages(file), 0)
            back = moving.wait(moving.fetch(token))
            self.assertTrue(torch.equal(value, back))
            self.assertEqual(cached_pages(file), 0)


def filesystem(folder: str) -> str:
    """The type of the file system that a folder is in."""
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    here = [line for line in lines if Path(folder).resolve().is_relative_to(line[1])]
    return max(here, key=lambda line: len(line[1]))[2]


def cached_pages(file: int) -> int:
    """How many pages of a file are in memory."""
    size = os.fstat(file).st_size
    with mmap.mmap(file, size) as pages:
        first = ctypes.c_char.from_buffer(pages)
        found = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mincore(ctypes.byref(first), ctypes.c_size_t(size), found) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        del first
    return sum(page & 1 for page in found)


class Orders(Offloading):
    """Forwards and backwards in other orders than one after the other."""

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(warnings.catch_warnings())
        warnings.simplefilter("ignore", rekindle.OverBudget)

    def gradients(self, module: nn.Module, order: str) -> list[str]:
        """Two forwards on different inputs, then their backwards."""
        torch.manual_seed(8)
        module.zero_grad()
        losses = [module(torch.randn(512, 32)) for _ in range(2)]
        for loss in losses if order == "first" else reversed(losses):
            loss.backward()
        return [digest(p.grad) for p in module.parameters()]

    def test_two_forwards_and_then_two_backwards(self) -> None:
        model, _ = self.compiled("noisy")
        for order in ("first", "last"):
            self.assertEqual(self.gradients(model, order), self.gradients(build("noisy")[0], order))
        self.assertEqual(self.held(model), 0)

    def test_gradients_add_up(self) -> None:
        model, batch = self.compiled("layers", share=1.0)
        found = []
        for module in (model, build("layers")[0]):
            torch.manual_seed(2)
            module.zero_grad()
            for _ in range(3):
                module(*batch).backward()
            found.append([digest(p.grad) for p in module.parameters()])
        self.assertEqual(*found)

    def test_a_forward_whose_backward_never_comes(self) -> None:
        model, batch = self.compiled("layers")
        loss = model(*batch)
        self.assertGreater(self.held(model), 0)
        del loss
        self.assertEqual(self.held(model), 0)

    def test_a_retained_graph_is_refused(self) -> None:
        model, batch = self.compiled("layers")
        with self.assertRaises(rekindle.RetainedGraph):
            model(*batch).backward(retain_graph=True)

    def test_without_gradients_nothing_moves(self) -> None:
        model, batch = self.compiled("layers")
        with torch.no_grad():
            model.eval()(*batch)
        self.assertEqual(session_of(model).planned, [])

    def test_shapes_share_the_store(self) -> None:
        model, batch = self.compiled("layers")
        module = build("layers")[0]
        for size in (512, 300, 512):
            x = batch[0][:size]
            self.assertEqual(steps(model, (x,)), steps(module, (x,)))
        self.assertEqual(len(session_of(model).planned), 2)

    def test_a_limit_that_two_forwards_exceed(self) -> None:
        model, batch = self.compiled("layers", offload_limit="512KiB")
        loss = model(*batch)
        self.assertIn(",limit=512KiB,", session_of(model).planned[0].plan.store)
        with self.assertRaisesRegex(rekindle.StoreFailed, "larger offload_limit"):
            for _ in range(3):
                loss = loss + model(*batch)
        del loss
        self.assertEqual(steps(model, batch), steps(build("layers")[0], batch))


def raising(number: int, text: str):
    def call(*_: object) -> int:
        raise OSError(number, text)

    return call


class Faults(Offloading):
    """What a disk can do. The error names the folder, and the next step trains on."""

    def check_fault(self, name: str, fault: object, words: str) -> None:
        model, batch = self.compiled("layers")
        with mock.patch.object(os, name, fault):
            with self.assertRaisesRegex(rekindle.StoreFailed, words) as raised:
                model(*batch).backward()
        self.assertIn(self.store_folder, str(raised.exception))
        self.assertIsInstance(raised.exception, OSError)
        del raised
        self.assertEqual(self.held(model), 0)
        model.zero_grad()
        self.assertEqual(steps(model, batch), steps(build("layers")[0], batch))

    def test_no_space(self) -> None:
        full = raising(errno.ENOSPC, "No space left on device")
        self.check_fault("pwrite", full, "cannot write.*make room there")

    def test_an_error_of_the_disk(self) -> None:
        broken = raising(errno.EIO, "Input/output error")
        self.check_fault("pwrite", broken, "cannot write.*check the disk")
        self.check_fault("preadv", broken, "cannot read.*check the disk")

    def test_a_short_write_and_a_short_read(self) -> None:
        nothing = mock.Mock(return_value=0)
        self.check_fault("pwrite", nothing, "only 0 of [0-9]+ bytes were written")
        self.check_fault("preadv", nothing, "only 0 of [0-9]+ bytes were read")

    def test_an_error_between(self) -> None:
        """An operation raises while copies are under way."""
        model, batch = self.compiled("layers")
        model(*batch).backward()
        real, calls = Transfers.fetch, []

        def interrupted(self: Transfers, token: torch.Tensor) -> torch.Tensor:
            calls.append(token)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(self, token)

        with mock.patch.object(Transfers, "fetch", interrupted):
            torch._dynamo.reset()
            again, _ = self.compiled("layers")
            with self.assertRaises(KeyboardInterrupt):
                again(*batch).backward()
        calls.clear()
        self.assertEqual(self.held(again), 0)


class HostMemory(Offloading):
    """The store of a GPU, with a stand-in for its streams: all but the copies runs as there."""

    def shaken(self, seed: int, kind: type[Transfers] = Transfers) -> StandIn:
        """From now on, plans run with streams that this seed shakes."""
        streams = StandIn(seed)
        moving = kind(HostStore(streams))
        self.enterContext(mock.patch("rekindle.torch.session.transfers_for", lambda *_: moving))
        return streams

    def test_bits_and_peak_whatever_the_order(self) -> None:
        for seed in range(3):
            torch._dynamo.reset()
            streams = self.shaken(seed)
            self.check("noisy")
            self.assertGreater(min(streams.done), 0)
            self.assertEqual(streams.given_back, 0)

    def test_a_family(self) -> None:
        streams = self.shaken(7)
        self.check("bert")
        self.assertEqual(streams.given_back, 0)

    def test_who_does_not_wait_for_an_arrival_reads_something_else(self) -> None:
        class Hasty(Transfers):
            def wait(self, value: torch.Tensor, *tokens: torch.Tensor) -> torch.Tensor:
                return super().wait(value, *tokens) if tokens else value

        self.shaken(1, Hasty)
        model, batch = self.compiled("noisy")
        self.assertNotEqual(steps(model, batch), steps(build("noisy")[0], batch))

    def test_who_does_not_wait_for_a_copy_frees_under_it(self) -> None:
        class Hasty(Transfers):
            def wait(self, value: torch.Tensor, *tokens: torch.Tensor) -> torch.Tensor:
                return super().wait(value)

        streams = self.shaken(1, Hasty)
        model, batch = self.compiled("noisy")
        steps(model, batch)
        self.assertGreater(streams.given_back, 0)

    def test_an_order_between_streams_is_kept(self) -> None:
        """A fetch right behind its offload comes behind it."""
        for seed in range(20):
            moving = Transfers(HostStore(StandIn(seed, haste=0.0)))
            value = torch.randn(64)
            values = [value + i for i in range(3)]
            tokens = [moving.offload(some) for some in values]
            found = [moving.fetch(token) for token in tokens]
            self.assertTrue(all(torch.isnan(some).all() for some in found))
            for some, expected in zip(reversed(found), reversed(values), strict=True):
                self.assertTrue(torch.equal(moving.wait(some), expected))

    def test_a_limit(self) -> None:
        moving = Transfers(HostStore(StandIn(0), limit=1000))
        token = moving.offload(torch.zeros(200))
        with self.assertRaisesRegex(rekindle.StoreFailed, "may hold 1000"):
            moving.offload(torch.zeros(200))
        self.assertEqual(moving.store.held, 800)
        del token
        gc.collect()
        self.assertEqual(moving.store.held, 0)


class Checked(Offloading):
    """Modules with a transfer that is damaged are refused, by name."""

    def setUp(self) -> None:
        super().setUp()
        alone, moving = smallest("noisy")
        module, batch = build("noisy")
        joint = capture(module, batch)
        settings = Settings((alone + moving) // 2, "roofline", effort=1, store=STORE)
        self.planned = planning.plan_joint(joint, settings.with_store(STORE))

    def check_damage(self, damage, words: str) -> None:
        step = self.planned
        halves = inject(step.joint, step.lowered, step.plan.steps())
        check_modules(step.joint, step.lowered, step.graph, step.plan, halves)
        damage(*(half.graph for half in halves))
        with self.assertRaisesRegex(rekindle.RekindleError, words):
            check_modules(step.joint, step.lowered, step.graph, step.plan, halves)

    @staticmethod
    def nodes(target: object, *graphs: fx.Graph) -> list[fx.Node]:
        return [
            node for graph in graphs for node in graph.find_nodes(op="call_function", target=target)
        ]

    def test_a_wait_for_an_arrival_is_dropped(self) -> None:
        def drop(_: fx.Graph, backward: fx.Graph) -> None:
            node = next(n for n in self.nodes(transfers.wait, backward) if n.users)
            node.replace_all_uses_with(node.args[0])
            backward.erase_node(node)

        self.check_damage(drop, "nobody has waited for it")

    def test_a_wait_for_a_copy_is_dropped(self) -> None:
        def drop(*graphs: fx.Graph) -> None:
            node = next(n for n in self.nodes(transfers.wait, *graphs) if len(n.args) == 2)
            node.graph.erase_node(node)

        self.check_damage(drop, "a wait for its transfers must be its last use")

    def test_a_value_is_read_behind_its_wait(self) -> None:
        def move(*graphs: fx.Graph) -> None:
            for node in self.nodes(transfers.wait, *graphs):
                value = node.args[0]
                earlier = [user for user in value.users if user is not node]
                if len(node.args) == 2 and earlier:
                    max(earlier).prepend(node)
                    return

        self.check_damage(move, "its last use")

    def test_a_fetch_of_another_copy(self) -> None:
        def exchange(_: fx.Graph, backward: fx.Graph) -> None:
            first, second = self.nodes(transfers.fetch, backward)[:2]
            first.args, second.args = second.args, first.args

        self.check_damage(exchange, "is no fetch of")

    def test_a_fetch_is_dropped(self) -> None:
        def drop(_: fx.Graph, backward: fx.Graph) -> None:
            node = self.nodes(transfers.fetch, backward)[0]
            node.replace_all_uses_with(node.args[0])
            backward.erase_node(node)

        self.check_damage(drop, "is no wait of|which is in the store")

    def test_an_offload_is_dropped(self) -> None:
        def drop(forward: fx.Graph, _: fx.Graph) -> None:
            node = self.nodes(transfers.offload, forward)[0]
            node.replace_all_uses_with(node.args[0])
            forward.erase_node(node)

        self.check_damage(drop, "is no (wait|fetch) of")

    def test_a_token_is_read(self) -> None:
        def read(forward: fx.Graph, _: fx.Graph) -> None:
            token = self.nodes(transfers.offload, forward)[0]
            value = token.args[0]
            reader = next(
                user for user in reversed(value.users) if user.target is not transfers.wait
            )
            token.append(reader) if reader < token else None
            reader.replace_input_with(value, token)

        self.check_damage(read, "in the store and not in memory|is no")


class Asked(Offloading):
    """What a user can ask for, and what is refused."""

    def test_refusals(self) -> None:
        layers = Layers()
        for options, word in (
            ({"offload": True}, "offload is a folder"),
            ({"offload": "/nowhere"}, "/nowhere is neither"),
            ({"offload": self.store_folder, "offload_limit": 0}, "above zero"),
            ({"offload": self.store_folder, "offload_limit": "much"}, "much"),
            ({"offload_limit": "1GiB"}, "give that, too"),
            ({"store": STORE}, "say where activations go"),
            ({"offload": self.store_folder, "store": "fast"}, "fast"),
            ({"offload": self.store_folder, "store": f"{STORE},limit=1GiB"}, "offload_limit"),
        ):
            with self.assertRaisesRegex(rekindle.InvalidInput, word):
                rekindle.compile(layers, 0.5, **options)
        with self.assertRaisesRegex(rekindle.UnsupportedOption, "models on a GPU"):
            rekindle.compile(layers, 0.5, offload="host")
        with self.assertRaisesRegex(rekindle.UnsupportedOption, "Inductor"):
            rekindle.compile(layers, 0.5, offload=self.store_folder, inductor=True)

    def test_the_smallest_budget_with_and_without_the_store(self) -> None:
        alone, moving = smallest("layers")
        module, batch = build("layers")
        with self.assertRaises(rekindle.InfeasibleBudget) as raised:
            rekindle.compile(module, moving // 2, profile="roofline", effort=1)(*batch)
        self.assertEqual(raised.exception.smallest, alone)
        words = rf"with a store for activations alone: .*\({moving} bytes\)"
        self.assertRegex(str(raised.exception), words)
        torch._dynamo.reset()
        options = {"profile": "roofline", "effort": 1, "store": STORE}
        with self.assertRaises(rekindle.InfeasibleBudget) as raised:
            rekindle.compile(module, moving // 2, offload=Path(self.store_folder), **options)(
                *batch
            )
        self.assertEqual(raised.exception.smallest, moving)
        self.assertRegex(str(raised.exception), rf"without the store: .*\({alone} bytes\)")

    def test_the_report_says_what_moves(self) -> None:
        model, batch = self.compiled("layers")
        model(*batch).backward()
        (graph,) = rekindle.report(model).graphs
        self.assertGreater(graph.transfers.moved_in, 0)
        self.assertTrue(any(decision.moved for decision in graph.decisions))
        text = str(graph)
        for word in ("moves", "waited for", "2GB/s", "moved:"):
            self.assertIn(word, text)

    def test_a_plan_is_kept_with_its_store(self) -> None:
        os.environ["REKINDLE_CACHE"] = self.folder
        model, batch = self.compiled("layers")
        model(*batch).backward()
        self.assertFalse(session_of(model).planned[0].decided.from_disk)
        other = self.enterContext(tempfile.TemporaryDirectory())
        for folder, is_known in ((self.store_folder, True), (other, False)):
            torch._dynamo.reset()
            again, _ = self.compiled("layers", offload=folder)
            again(*batch).backward()
            self.assertIs(session_of(again).planned[0].decided.from_disk, is_known)

    def test_a_store_is_measured_once(self) -> None:
        os.environ["REKINDLE_CACHE"] = "off"
        stores._speed.cache_clear()
        with mock.patch.object(stores, "measure", wraps=stores.measure) as measure:
            for _ in range(2):
                torch._dynamo.reset()
                model, batch = self.compiled("layers", store=None)
                model(*batch).backward()
        self.assertEqual(measure.call_count, 1)
        self.assertRegex(session_of(model).planned[0].plan.store, "^out=.*B/s,in=.*,activations$")

    def test_a_larger_batch_fits(self) -> None:
        module = Layers()
        options = {"offload": self.store_folder, "store": STORE}
        alone, moving = (
            rekindle.max_batch(module, lambda n: torch.randn(n, 32), budget="300KiB", **some)
            for some in ({}, options)
        )
        self.assertGreater(moving.size, alone.size)

    def test_a_step_of_several_graphs(self) -> None:
        class Broken(Layers):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.layers[:9](x)
                torch._dynamo.graph_break()
                x = self.layers[9:](x)
                return x.square().mean()

        torch.manual_seed(1)
        module, x = Broken(), torch.randn(512, 32)
        options = {"profile": "roofline", "effort": 1, "offload": self.store_folder}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = rekindle.compile(module, "600KiB", store=STORE, **options)
            self.assertEqual(steps(model, (x,), 3), steps(module, (x,), 3))
            planned = session_of(model).planned
            self.assertEqual(len(planned), 2)
            self.assertTrue(all(graph.plan.store for graph in planned))
            self.assertLessEqual(peak_of(model, (x,)), 600 << 10)
            tight = rekindle.compile(module, "300KiB", store=STORE, **options)
            tight(x)
            with self.assertRaisesRegex(rekindle.InfeasibleBudget, "without the store: [0-9]+"):
                tight(x)


for _name in FAMILY_NAMES:
    setattr(Files, f"test_{_name}", lambda self, name=_name: self.check(name) and None)


if __name__ == "__main__":
    unittest.main()
