"""The Python that the documents show runs as it stands, with a small model for the user's."""

import contextlib
import os
import re
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import torch
from torch import nn

import rekindle

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Model(nn.Module):
    """Returns its loss, as the documents ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(inputs), labels)


def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 8), torch.randint(3, (size,))


def snippets() -> dict[str, str]:
    return {
        f"{document.name} {number}": text
        for document in DOCUMENTS
        for number, text in enumerate(FENCE.findall(document.read_text()))
    }


class Snippets(unittest.TestCase):
    def test_each_runs(self) -> None:
        self.enterContext(unittest.mock.patch.dict(os.environ, REKINDLE_CACHE="off"))
        self.enterContext(contextlib.chdir(self.enterContext(tempfile.TemporaryDirectory())))
        for name, text in snippets().items():
            with self.subTest(name), unittest.mock.patch("builtins.print") as shown:
                data = [make_batch(4) for _ in range(2)]
                scope = {"torch": torch, "model": Model(), "data": data}
                scope |= {"make_model": Model, "make_batch": make_batch}
                exec(compile(text, name, "exec"), scope)
                shown.assert_called()
                if "rekindle.compile(" in text:
                    self.assertIsInstance(scope["model"], rekindle.PlannedModule)

    def test_the_documents_have_some(self) -> None:
        names = {name.split()[0] for name in snippets()}
        self.assertLessEqual({"README.md", "pytorch.md"}, names)

    def test_both_places_have_the_same_objects(self) -> None:
        both = (set(rekindle.torch.__all__) & set(rekindle.__all__)) - {"plan"}
        self.assertLessEqual({"compile", "max_batch", "profile", "report"}, both)
        for name in both:
            self.assertIs(getattr(rekindle, name), getattr(rekindle.torch, name))


if __name__ == "__main__":
    unittest.main()
