"""`python -m rekindle.torch verify`, its records, margins and recorded histories of an allocator.
What asks a GPU stands behind a meter; another takes its place here.
"""

import contextlib
import io
import json
import os
import pickle
import subprocess
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from test_compile import Layers

import rekindle
from rekindle.torch import read_snapshot, trace
from rekindle.torch.__main__ import main
from rekindle.torch.randomness import draw
from rekindle.torch.target.devices import device_named
from rekindle.torch.target.margins import CONTEXT, default_margins, replaced_margins
from rekindle.torch.target.record import (
    HostMeter,
    Measured,
    compare,
    load,
    meter_here,
    verify,
)
from rekindle.torch.target.saved import SavedStep

MIB = 1 << 20
EXAMPLE = Path(__file__).parent.parent / "examples" / "train_step.py"
SCRIPT = """
import torch
from test_compile import Layers

def make_model():
    torch.manual_seed(0)
    return Layers(depth=3)

def make_batch():
    torch.manual_seed(1)
    return torch.randn(64, 32)

def make_optimizer(model):
    return torch.optim.AdamW(model.parameters())
"""


class StandIn(HostMeter):
    """A device that also tells what a GPU would."""

    name = "stand-in"

    def measure(self, step: Callable[[], Any], there: list[torch.Tensor]) -> Measured:
        found = super().measure(step, there)
        return Measured(found.live, found.live, 2 * MIB, 300 * MIB)


class Records(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.script = self.folder / "train_step.py"
        self.script.write_text(SCRIPT)
        environment = mock.patch.dict(os.environ, REKINDLE_CACHE="off")
        environment.start()
        self.addCleanup(environment.stop)

    def save(self) -> Path:
        model = Layers(depth=3)
        optimizer = torch.optim.AdamW(model.parameters())
        step = trace(model.to("meta"), torch.randn(64, 32), optimizer=optimizer)
        budget = (step.graph.floor + step.graph.peak) // 2
        return step.plan(budget, effort=1).save(self.folder / "plan.json")

    def test_predicted_is_measured_and_all_bits_are_the_same(self) -> None:
        plan, record = self.save(), self.folder / "record.json"
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = main(["verify", str(plan), str(self.script), "--record", str(record)])
        self.assertEqual(code, 0, said.getvalue())
        self.assertIn("measured (equal)", said.getvalue())
        self.assertIn("bits: all the same", said.getvalue())
        found = json.loads(record.read_text())
        self.assertEqual(found["format"], "rekindle.record/1")
        self.assertEqual(found["planned"]["live"], found["predicted"]["live"])
        # Eager's Python holds some values for longer than the captured step does.
        self.assertGreaterEqual(found["plain"]["live"], found["predicted"]["plain_live"])
        self.assertEqual(found["versions"]["torch"], torch.__version__)
        self.assertIsNone(found["planned"]["reserved"], "the host reserves nothing")

    def test_the_example_is_measured_as_it_was_predicted(self) -> None:
        example = load(EXAMPLE)
        with torch.device("meta"):
            model = example.make_model()
        optimizer = example.make_optimizer(model)
        step = trace(model, example.make_batch(2), optimizer=optimizer)
        path = step.plan(step.graph.peak * 7 // 10, effort=1).save(self.folder / "plan.json")
        example.make_batch.__defaults__ = (2,)
        record = compare(SavedStep.read(path), path, example, HostMeter())
        self.assertEqual(record.planned.live, record.predicted["live"])
        self.assertEqual(record.bits, [])

    def test_a_record_of_a_device_replaces_margins(self) -> None:
        record = verify(self.save(), self.script, StandIn())
        self.assertEqual(record.margins, {CONTEXT: 300 * MIB})
        self.assertIn("reserved: not predicted", "\n".join(record.lines()))
        path = record.write(self.folder / "gpu.json")
        declared = default_margins(device_named("A100-80GB"), [], ranks=2)
        self.assertEqual([line.is_measured for line in declared], [False] * 3)
        lines = replaced_margins(declared, path)
        self.assertEqual((lines[0].bytes, lines[0].is_measured), (300 * MIB, True))
        self.assertIn("measured", str(lines[0]))
        self.assertIn("declared", str(lines[1]))
        named = replaced_margins(declared, {"NCCL buffers": "1GiB"})
        self.assertEqual(named[2].bytes, 1 << 30)
        for wrong in ({"no such": 1}, self.script):
            with self.assertRaises(rekindle.InvalidInput):
                replaced_margins(declared, wrong)
        self.assertEqual(default_margins(device_named("cpu"), ["convolution"], 8), [])

    def test_what_is_wrong_is_said(self) -> None:
        plan = self.save()
        self.script.write_text("def make_model(): pass")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(main(["verify", str(plan), str(self.script)]), 2)
            self.assertEqual(main(["verify", str(self.script), str(self.script)]), 2)
            if not torch.cuda.is_available():
                self.assertEqual(main(["verify", "a", "b", "--device", "cuda"]), 2)
        self.assertIn("make_batch", said.getvalue())
        self.assertIn("no saved plan", said.getvalue())
        self.assertEqual(meter_here("cpu").kind, "cpu")

    def test_every_wrong_thing_is_an_error_by_name(self) -> None:
        plan = self.save()
        good, saved = SCRIPT, json.loads(plan.read_text())
        step = trace(Layers(depth=3).to("meta"), torch.randn(64, 32), device="H100-80GB")
        gpu = step.plan(effort=1).save(self.folder / "gpu.json")
        damaged = self.folder / "damaged.json"
        damaged.write_text(json.dumps(saved | {"dtype": "float0"}))
        for path, script, error in (
            (gpu, good, "a plan for H100-80GB, and this would run on .* verify it there"),
            (damaged, good, "no saved plan: PyTorch has no type 'float0'"),
            (self.folder, good, "no saved plan"),
            (plan, "def make_model(:", "does not run: SyntaxError"),
            (plan, "import no_such_library", "does not run: ModuleNotFoundError"),
            (plan, good.replace("torch.randn", "torch.rand_"), "fails: AttributeError"),
            (plan, good.replace("depth=3", "depth=4"), "AnotherGraph: .*were planned and"),
            (plan, good.replace("64, 32", "32, 32"), "AnotherGraph: .*was planned with"),
            (plan, good.replace("AdamW", "SGD"), "AnotherGraph: .*were planned and"),
            (plan, good.replace("(depth=3)", "(depth=3).half()"), "without a plan: RuntimeError"),
        ):
            self.script.write_text(script)
            with self.subTest(error), contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(main(["verify", str(path), str(self.script)]), 2)
                self.assertRegex(said.getvalue(), error)
        self.script.write_text(good)
        nowhere = str(self.folder / "no" / "record.json")
        with (
            contextlib.redirect_stderr(io.StringIO()) as said,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            code = main(["verify", str(plan), str(self.script), "--record", nowhere])
        self.assertEqual(code, 2)
        self.assertIn("record cannot be written", said.getvalue())

    def test_a_step_runs_in_the_precision_that_it_was_planned_in(self) -> None:
        """The script says nothing of it: the plan does."""
        for options in ({"dtype": torch.bfloat16}, {"autocast": torch.bfloat16}):
            with self.subTest(str(options)):
                model = Layers(depth=3)
                optimizer = torch.optim.AdamW(model.parameters())
                step = trace(model.to("meta"), torch.randn(64, 32), optimizer=optimizer, **options)
                budget = (step.graph.floor + step.graph.peak) // 2
                path = step.plan(budget, effort=1).save(self.folder / "half.json")
                record = verify(path, self.script)
                self.assertEqual(record.planned.live, record.predicted["live"])
                self.assertEqual(record.bits, [])

    def test_a_draw_in_a_cuda_graph_is_refused(self) -> None:
        with (
            mock.patch("torch.cuda.is_current_stream_capturing", return_value=True),
            self.assertRaisesRegex(rekindle.UnsupportedOption, "CUDA graph"),
        ):
            draw(torch.device("cuda"), torch.ops.aten.native_dropout.default)


AT, FAR, SMALL = 0x7F1000000000, 0x7F0000000000, 0x7F2000000000
"""Where segments lie: of 20 MiB, another of 20 MiB that is taken and given back, and of 2 MiB."""


def event(action: str, address: int, size: int, stream: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": stream, "frames": []}


def freed(address: int, size: int) -> list[dict[str, Any]]:
    return [event("free_requested", address, size), event("free_completed", address, size)]


def segment(address: int, *blocks: tuple[int, bool], kind: str = "large") -> dict[str, Any]:
    """With sizes of blocks, and whether somebody has them."""
    return {
        "device": 0,
        "address": address,
        "total_size": sum(size for size, _ in blocks),
        "segment_type": kind,
        "is_expandable": False,
        "blocks": [
            {"size": size, "state": "active_allocated" if used else "inactive"}
            for size, used in blocks
        ],
    }


class Histories(unittest.TestCase):
    def history(self) -> dict[str, Any]:
        """It begins with 4 MiB free, two blocks of 5 MiB and 6 MiB free, and a small block."""
        events = [
            event("alloc", AT, 4 * MIB),
            event("alloc", AT + 14 * MIB, 2 * MIB - 100),
            event("segment_alloc", FAR, 20 * MIB),
            event("alloc", FAR, 5 * MIB),
            *freed(AT + 4 * MIB, 5 * MIB),
            event("alloc", AT + 4 * MIB, 5 * MIB),
            *freed(FAR, 5 * MIB),
            event("segment_free", FAR, 20 * MIB),
            *freed(SMALL, 700),
        ]
        sizes = [(4 * MIB, True), (5 * MIB, True), (5 * MIB, True), (2 * MIB, True)]
        large = segment(AT, *sizes, (4 * MIB, False))
        return {
            "device_traces": [events],
            "segments": [segment(SMALL, (2 * MIB, False), kind="small"), large],
        }

    def write(self, data: bytes) -> Path:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "snapshot"
        path.write_bytes(data)
        return path

    def test_a_history_begins_where_it_began_and_has_its_addresses(self) -> None:
        for data in (pickle.dumps(self.history()), json.dumps(self.history()).encode()):
            found = read_snapshot(self.write(data))
            used = [(part.address, part.used) for part in found.there]
            both = ((AT + 4 * MIB, 5 * MIB), (AT + 9 * MIB, 5 * MIB))
            self.assertEqual(used, [(AT, both), (SMALL, ((SMALL, 1024),))])
            self.assertEqual(found.reserved, 42 * MIB)
            replayed = found.replayed()
            self.assertEqual(replayed.footprint.reserved, found.reserved)
            self.assertEqual(replayed.footprint.allocated, 21 * MIB + 1024)
            counts = (replayed.blocks, replayed.elsewhere, replayed.otherwise)
            self.assertEqual(counts, (4, 0, 0))
            self.assertIn("0 of 4 blocks elsewhere, predicted", repr(replayed))

    def test_another_allocator_is_told_from_ours(self) -> None:
        """One that serves a request from the larger of two gaps."""
        history = self.history()
        history["device_traces"] = [[event("alloc", AT + 14 * MIB, 4 * MIB)]]
        sizes = [(4 * MIB, False), (5 * MIB, True), (5 * MIB, True), (4 * MIB, True)]
        history["segments"] = [segment(AT, *sizes, (2 * MIB, False))]
        replayed = read_snapshot(self.write(json.dumps(history).encode())).replayed()
        self.assertEqual((replayed.elsewhere, replayed.otherwise), (1, 0))

    def test_a_rest_that_is_no_block_belongs_to_the_one_before(self) -> None:
        events = freed(AT, 29 * MIB + 4)
        data = {"device_traces": [events], "segments": [segment(AT, (30 * MIB, False))]}
        found = read_snapshot(self.write(json.dumps(data).encode()))
        self.assertEqual(found.there[0].used, ((AT, 30 * MIB),))

    def test_a_history_without_its_segments_begins_with_what_it_gives_back(self) -> None:
        history = self.history() | {"segments": []}
        found = read_snapshot(self.write(json.dumps(history).encode()))
        self.assertEqual(found.there, [])
        early = [("alloc", AT + 4 * MIB, 5 * MIB), ("alloc", SMALL, 700)]
        self.assertEqual(found.events[:2], early)
        self.assertEqual(found.replayed().blocks, 6)

    def test_histories_that_cannot_be_are_refused(self) -> None:
        twice = [event("alloc", AT, MIB), event("alloc", AT, MIB)]
        wrong = {"device_traces": [twice], "segments": [segment(AT, (20 * MIB, True))]}
        streams = {"device_traces": [[event("alloc", AT, MIB), event("alloc", FAR, MIB, 7)]]}
        for data, why in ((wrong, "handed out twice"), (streams, "2 streams")):
            with self.assertRaisesRegex(rekindle.InvalidInput, why):
                read_snapshot(self.write(json.dumps(data).encode()))
        with self.assertRaisesRegex(rekindle.InvalidInput, "No such file"):
            read_snapshot("no such snapshot")

    def test_our_own_histories_have_their_recorded_peaks(self) -> None:
        """A plan's requests, written as PyTorch writes them, read back and replayed."""
        model = Layers(depth=4).to("meta")
        step = trace(model, torch.randn(2048, 32), device="A100-80GB", dtype=torch.bfloat16)
        live, events, address = {}, [], 1
        sizes = [size for size, _ in step.graph.storages]
        for node in step.graph.nodes:
            for storage in node.writes:
                if sizes[storage]:
                    live[storage] = address
                    events.append(event("alloc", address, sizes[storage]))
                    address += 1
        for storage, at in live.items():
            events.append(event("free_requested", at, sizes[storage]))
        path = self.write(json.dumps({"device_traces": [events], "segments": []}).encode())
        found = read_snapshot(path)
        self.assertEqual(found.allocated, sum(sizes))
        replayed = found.replayed().footprint
        rounded = sum(-(-size // 512) * 512 for size in sizes)
        self.assertGreaterEqual(replayed.allocated, rounded)
        self.assertGreaterEqual(replayed.reserved, replayed.allocated)

    def test_a_pickle_that_could_run_something_is_refused(self) -> None:
        class Harmful:
            def __reduce__(self) -> Any:
                return subprocess.call, (["false"],)

        path = self.write(pickle.dumps({"device_traces": [Harmful()]}))
        with (
            mock.patch("subprocess.call") as called,
            self.assertRaisesRegex(rekindle.InvalidInput, "subprocess"),
        ):
            read_snapshot(path)
        called.assert_not_called()
        for data in (b"", b"{", pickle.dumps([1]), pickle.dumps({"device_traces": []})):
            with self.assertRaises(rekindle.InvalidInput):
                read_snapshot(self.write(data))


if __name__ == "__main__":
    unittest.main()
