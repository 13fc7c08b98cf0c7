"""The engine trains as PyTorch does: the same weights and data, three steps, every number compared.

`cargo xtask test python` builds the Rust half (`engine_peer`) and says in ENGINE_PEER where it is.
"""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tolerance import excess
from torch_models import CASES, Case
from torch_steps import STEPS, state, train

torch.set_num_threads(os.cpu_count() or 1)

PEERS = 3
"""How often PyTorch computes the steps of a network of ReLUs in float32."""


def for_engine(case: Case, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch under the names of the engine's inputs; images with their channels last."""
    inputs, labels = batch
    inputs = inputs.permute(0, 2, 3, 1) if inputs.is_floating_point() else inputs
    return {case.input_name: inputs.contiguous(), "labels": labels.contiguous()}


def replay(case: Case, weights: dict, batch: tuple, folder: Path) -> dict[str, torch.Tensor]:
    """What our engine makes of the same weights and data, named as in `torch_steps.train`."""
    save_file(weights, folder / "weights.safetensors")
    save_file(for_engine(case, batch), folder / "data.safetensors")
    words = [os.environ["ENGINE_PEER"], "replay", *case.words(), f"steps={STEPS}", "threads=2"]
    words += [
        f"weights={folder}/weights.safetensors",
        f"data={folder}/data.safetensors",
        f"out={folder}",
    ]
    lines = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    gradients = load_file(folder / "gradients.safetensors")
    final = load_file(folder / "final.safetensors")
    return (
        {"loss": torch.tensor([float(line) for line in lines], dtype=torch.float64)}
        | {f"gradient/{name}": tensor for name, tensor in gradients.items()}
        | {f"final/{name}": tensor for name, tensor in final.items()}
    )


def pick(record: dict[str, torch.Tensor], kind: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in record.items() if name.startswith(kind)}


class Engine(unittest.TestCase):
    def check(self, case: Case):
        module, batch = case.build()
        exact = train(case, module, batch, torch.float64)
        count = PEERS if batch[0].is_floating_point() else 1
        peers = [train(case, module, batch, torch.float32, nudge) for nudge in range(count)]
        with tempfile.TemporaryDirectory() as folder:
            ours = replay(case, state(module), batch, Path(folder))
        # The losses and the gradients are those of the weights that all begin with.
        for kind, judges in (("loss", peers[:1]), ("gradient/", peers[:1]), ("final/", peers)):
            self.assertTrue(pick(exact, kind), f"nothing to compare for {kind}")
            judges = [pick(peer, kind) for peer in judges]
            found = excess(pick(exact, kind), judges, pick(ours, kind))
            self.assertEqual(found, [])
        print(f"{case.name}: {len(exact)} tensors agree")

    def test_every_number_is_as_good_as_pytorchs(self):
        for case in CASES:
            with self.subTest(case.name):
                self.check(case)
