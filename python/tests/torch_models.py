"""The models that the engine is compared with, built in PyTorch with random weights.

A `Case` says how a model is built, which batch it gets and which optimizer trains it. The same cases serve the
comparison of numbers (small sizes, no dropout) and the benchmark (full sizes, dropout on).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

IGNORED_LABEL = -100
MASKED_SHARE = 0.15
"""The share of tokens that BERT's masked-language-model objective predicts."""


class SeedTransformer(nn.Module):
    """Token and learned position embeddings, post-norm encoder layers with ReLU, a linear head."""

    def __init__(self, *, vocabulary=30_000, sequence=128, width=512, layers=6, heads=8, inner=2048, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(sequence, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, inner, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens) + self.position))


def resnet(depth: int) -> nn.Module:
    import torchvision

    return getattr(torchvision.models, f"resnet{depth}")(weights=None)


def bert(**overrides) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**overrides))


def image_batch(batch: int, size: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    images = torch.randn(batch, 3, size, size, generator=generator)
    return {"input": images, "labels": torch.randint(1000, (batch,), generator=generator)}


def token_batch(batch: int, sequence: int, vocabulary: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    tokens, labels = (torch.randint(vocabulary, (batch, sequence), generator=generator) for _ in range(2))
    return {"input": tokens, "labels": labels}


def masked_token_batch(
    batch: int, sequence: int, vocabulary: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    data = token_batch(batch, sequence, vocabulary, generator)
    predicted = torch.rand(batch, sequence, generator=generator) < MASKED_SHARE
    data["labels"][~predicted] = IGNORED_LABEL
    return data


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


@dataclass(frozen=True)
class Case:
    """A model, its batch and its optimizer."""

    name: str
    module: Callable[[], nn.Module]
    data: Callable[[torch.Generator], dict[str, torch.Tensor]]
    optimizer: Callable[..., torch.optim.Optimizer]
    arguments: tuple[str, ...]
    """How `replay_steps` is told the same model."""

    def build(self) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        """The module in training mode and its batch, the same at every call."""
        torch.manual_seed(1)
        return self.module().train(), self.data(torch.Generator().manual_seed(2))


def loss_of(module: nn.Module, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """The cross-entropy of one batch, the mean over the labels that count."""
    output = module(data["input"])
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), data["labels"].reshape(-1), ignore_index=IGNORED_LABEL
    )
