"""A step for `python -m rekindle.torch verify`: planned here, run where the device is.

`python python/examples/train_step.py [DEVICE] [PLAN]` plans it for a device of
`rekindle.torch.DEVICES` (the host, if none is named) without weights, and writes the plan. On the
device, `python -m rekindle.torch verify PLAN python/examples/train_step.py` compares what was
predicted with what is measured.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from rekindle.torch import trace

WIDTH, HEADS, LAYERS, WORDS = 256, 4, 6, 2000
BATCH, LENGTH = 8, 256


class Language(nn.Module):
    """A small transformer that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.5, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        values = self.embed(words)
        for layer in self.layers:
            values = layer(values)
        return nn.functional.cross_entropy(self.head(values).flatten(0, 1), words.flatten())


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Language()


def make_batch(size: int = BATCH) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(WORDS, (size, LENGTH))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


if __name__ == "__main__":
    device, path = (*sys.argv[1:3], *("cpu", "plan.json")[len(sys.argv) - 1 :])
    with torch.device("meta"):
        model = make_model()
    step = trace(model, make_batch(), device=device, optimizer=make_optimizer(model))
    plain = step.fits(step.device.memory or "64GiB").plain.needed
    plan = step.plan(step.margin_bytes + (plain - step.margin_bytes) * 6 // 10)
    print(plan)
    plan.save(path)
