"""Trains a small BERT, dropout on, to fill masked words, in a third of the activations' memory.

    pip install . torch transformers
    python python/examples/language.py

A sentence counts upwards from a random word, so every masked word follows from its neighbours.
Dropout draws the same mask when an activation is recomputed: the losses are those of the plain
model.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

import rekindle

WORDS = 100
MASK = 1
"""The word that stands for a hidden one; sentences are made of words above it."""
IGNORED = -100
"""A label that the loss does not count."""


class MaskedLanguageModel(nn.Module):
    """A BERT that returns its loss and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=WORDS,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
        )
        self.bert = BertForMaskedLM(config)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        return self.bert(input_ids=words, labels=labels).loss


def batches(size: int, length: int, steps: int):
    """Sentences that count, with every seventh word hidden on average."""
    for _ in range(steps):
        start = torch.randint(2, WORDS - length, (size, 1))
        sentence = start + torch.arange(length)
        hidden = torch.rand(size, length) < 0.15
        yield sentence.masked_fill(hidden, MASK), sentence.masked_fill(~hidden, IGNORED)


def a_third(model: nn.Module, batch: tuple[Tensor, Tensor]) -> int:
    """A budget: what stays for the whole step, and a third of what the plain step has above it."""
    plain = rekindle.profile(model, batch, profile="roofline").graph.peak
    lasting = sum(
        tensor.nbytes
        for tensor in [*model.parameters(), *model.parameters(), *model.buffers(), *batch]
    )
    return lasting + (plain - lasting) // 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=64, help="words in a sentence")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = MaskedLanguageModel()
    data = list(batches(options.batch_size, options.length, options.steps))
    planned = rekindle.compile(model, budget=a_third(model, data[0]))
    optimizer = torch.optim.AdamW(planned.parameters(), lr=1e-3)
    for step, (words, labels) in enumerate(data, start=1):
        optimizer.zero_grad()
        loss = planned(words, labels)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    print(rekindle.report(planned))


if __name__ == "__main__":
    main()
