"""Models that PyTorch exported train in the engine as in PyTorch.

The same weights and data, three steps, many of them in a part of the plain step's memory, every
number compared; the trained weights go back into PyTorch, and the trained file has the loss that
they have there.

`cargo xtask test python` builds the Rust half (`engine_peer`) and says in ENGINE_PEER where it is.
"""

import copy
import logging
import os
import subprocess
import tempfile
import unittest
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from onnx_models import EXPORTED, OTHERS, Exported, Recurrent, text_batch, token_case
from tolerance import excess
from torch_models import loss_of
from torch_steps import STEPS, train

torch.set_num_threads(os.cpu_count() or 1)

PEERS = 3
"""How often PyTorch computes the steps of a network with kinks in float32."""


def export(case: Exported, module: nn.Module, batch: tuple, path: Path) -> None:
    """Writes the model as a user does who wants to train it: nothing folded into anything."""
    words: dict = {"input_names": ["x"], "output_names": ["logits"], "dynamo": case.dynamo}
    if case.dynamo:
        words |= {"optimize": False, "verbose": False}
    else:
        mode = torch.onnx.TrainingMode.TRAINING
        words |= {"opset_version": 17, "training": mode, "do_constant_folding": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(copy.deepcopy(module), (batch[0],), str(path), **words)


def engine(case: Exported, model: Path, folder: Path, *more: str) -> subprocess.CompletedProcess:
    """What our engine says to the file, with the data of the folder."""
    words = [os.environ["ENGINE_PEER"], "replay", str(model), *case.words()[1:], *more]
    words += ["threads=2", f"loss={case.loss}", f"data={folder}/data.safetensors"]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def replay(
    case: Exported, module: nn.Module, batch: tuple, folder: Path
) -> dict[str, torch.Tensor]:
    """What our engine makes of the file and the same data, named as in `torch_steps.train`."""
    inputs, labels = batch
    inputs = inputs.permute(0, 2, 3, 1) if inputs.is_floating_point() else inputs
    data = {"x": inputs.contiguous(), "labels": labels.contiguous()}
    save_file(data, folder / "data.safetensors")
    more = [f"steps={STEPS}", f"out={folder}"]
    if case.share < 1:
        more.append(f"share={case.share}")
    done = engine(case, folder / "model.onnx", folder, *more)
    if done.returncode != 0:
        raise AssertionError(f"{case.name}: {done.stderr}")
    gradients = load_file(folder / "gradients.safetensors")
    final = load_file(folder / "final.safetensors")
    names = first_names(module)
    return (
        {"loss": torch.tensor([float(line) for line in done.stdout.split()]).double()}
        | {f"gradient/{names.get(name, name)}": tensor for name, tensor in gradients.items()}
        | {f"final/{names.get(name, name)}": tensor for name, tensor in final.items()}
    )


def first_names(module: nn.Module) -> dict[str, str]:
    """For each name the first one of the same tensor: a file has a tied one under one name."""
    first: dict[int, str] = {}
    there = module.state_dict(keep_vars=True)
    return {name: first.setdefault(tensor.data_ptr(), name) for name, tensor in there.items()}


def pick(record: dict[str, torch.Tensor], kind: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in record.items() if name.startswith(kind)}


class Onnx(unittest.TestCase):
    def check(self, case: Exported):
        module, batch = case.build()
        exact = train(case, module, batch, torch.float64)
        count = PEERS if batch[0].is_floating_point() else 1
        peers = [train(case, module, batch, torch.float32, nudge) for nudge in range(count)]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            export(case, module, batch, folder / "model.onnx")
            ours = replay(case, module, batch, folder)
            trained = load_file(folder / "final.safetensors")
            self.assertTrue((folder / "final.onnx").stat().st_size > 0)
            self.check_file(folder / "final.onnx", trained)
            self.check_loads(case, module, batch, folder)
        for kind, judges in (("loss", peers[:1]), ("gradient/", peers[:1]), ("final/", peers)):
            # A file has no counter of batches, and no buffer that the graph does not read.
            wanted = {name: t for name, t in pick(exact, kind).items() if name in ours}
            self.assertTrue(wanted, f"nothing to compare for {kind}")
            judges = [{name: peer[name] for name in wanted} for peer in judges]
            self.assertEqual(excess(wanted, judges, ours), [])
        missing = [name for name, p in module.named_parameters() if f"gradient/{name}" not in ours]
        self.assertEqual(missing, [], "parameters that the engine does not train")
        print(f"{case.name}: {len(ours)} tensors agree")

    def check_loads(self, case: Exported, module: nn.Module, batch: tuple, folder: Path):
        """The trained weights are PyTorch's own, by name and shape, and give the trained file's
        loss there.
        """
        trained = load_file(folder / "final.safetensors")
        unknown = sorted(set(trained) - set(module.state_dict()))
        self.assertEqual(unknown, [], "tensors that PyTorch does not know")
        loaded = copy.deepcopy(module)
        loaded.load_state_dict(trained, strict=False)
        theirs = loss_of(loaded, batch).item()
        (folder / "again").mkdir()
        again = engine(case, folder / "final.onnx", folder, "steps=1", f"out={folder}/again")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertLess(abs(float(again.stdout.split()[0]) - theirs), 1e-5 * abs(theirs))

    def check_file(self, path: Path, trained: dict):
        """The exported file holds the trained values under their names."""
        import onnx
        from onnx import numpy_helper

        model = onnx.load(str(path))
        onnx.checker.check_model(model)
        held = {tensor.name: tensor for tensor in model.graph.initializer}
        for name, tensor in trained.items():
            if name in held:
                values = torch.from_numpy(numpy_helper.to_array(held[name]).copy())
                self.assertTrue(torch.equal(values, tensor), name)

    def test_exported_models_train_as_in_pytorch(self):
        logging.disable(logging.WARNING)
        for case in EXPORTED:
            with self.subTest(case.name):
                self.check(case)

    def test_other_models_by_the_other_exporter_train_as_in_pytorch(self):
        logging.disable(logging.WARNING)
        for case in OTHERS:
            with self.subTest(case.name):
                self.check(case)

    def test_what_is_not_supported_is_listed_with_its_nodes(self):
        logging.disable(logging.WARNING)
        case = token_case("recurrent", Recurrent, text_batch)
        module, batch = case.build()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            export(case, module, batch, folder / "model.onnx")
            done = engine(case, folder / "model.onnx", folder, "steps=1", f"out={folder}")
        self.assertNotEqual(done.returncode, 0)
        for word in ("LSTM (`", "GRU (`", "2 nodes"):
            self.assertIn(word, done.stderr)
