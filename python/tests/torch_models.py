"""The models that the engine is compared with, built in PyTorch with random weights.

A `Case` is a model with its sizes and its optimizer. Small ones without dropout serve the
comparison of numbers (`CASES`), full ones with dropout the benchmark.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

IGNORED_LABEL = -100
MASKED_SHARE = 0.15
"""The share of tokens that a masked language model predicts."""
RESIDUAL_GAIN = 0.2
"""Scale of a residual branch at the start. At 1 the rounding error of a random ResNet-50 grows to 1
% of the gradient.
"""


class SeedTransformer(nn.Module):
    """Token and learned position embeddings, post-norm encoder layers with ReLU, a linear head."""

    VOCABULARY = 30_000
    WIDTH = 512

    def __init__(self, sequence: int, dropout: float):
        super().__init__()
        self.embed = nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.pos = nn.Parameter(torch.randn(sequence, self.WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(self.WIDTH, 8, 2048, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(self.WIDTH, self.VOCABULARY)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens) + self.pos))


def resnet(depth: int) -> nn.Module:
    import torchvision

    module = getattr(torchvision.models, f"resnet{depth}")(weights=None)
    last = "bn3" if depth >= 50 else "bn2"
    for name, part in module.named_modules():
        if name.endswith(last):
            nn.init.constant_(part.weight, RESIDUAL_GAIN)
    return module


def bert(dropout: float, **sizes) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **sizes)
    return BertForMaskedLM(config)


def bert_tiny(dropout: float) -> nn.Module:
    return bert(
        dropout, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )


def image_batch(case: "Case", random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(case.batch, 3, case.image_size, case.image_size, generator=random)
    return images, torch.randint(1000, (case.batch,), generator=random)


def token_batch(case: "Case", random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens from 1: token 0 is padding, whose embedding Hugging Face does not train."""
    shape = (case.batch, case.sequence)
    tokens, labels = (
        torch.randint(1, SeedTransformer.VOCABULARY, shape, generator=random) for _ in range(2)
    )
    return tokens, labels


def masked_token_batch(case: "Case", random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, labels = token_batch(case, random)
    predicted = torch.rand(labels.shape, generator=random) < MASKED_SHARE
    return tokens, labels.where(predicted, IGNORED_LABEL)


OPTIMIZERS = {
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
    "adam": lambda parameters, rate: torch.optim.Adam(parameters, lr=rate),
}


@dataclass(frozen=True)
class Case:
    """A model, its sizes and its optimizer."""

    name: str
    """What our engine calls the model."""
    module: Callable[[], nn.Module]
    make_batch: Callable[["Case", torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    input_name: str
    """What our engine calls the input."""
    optimizer: str
    learning_rate: float
    batch: int
    image_size: int = 224
    sequence: int = 128
    seed: int = 2
    """Of the batch."""

    def build(self) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
        """The module in training mode and its batch (input and labels), the same at every call."""
        torch.manual_seed(1)
        return self.module().train(), self.make_batch(
            self, torch.Generator().manual_seed(self.seed)
        )

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer](module.parameters(), self.learning_rate)

    def words(self) -> list[str]:
        """How our programs are told the same case."""
        keys = ("batch", "image_size", "sequence", "optimizer", "learning_rate")
        return [self.name, *(f"{key}={getattr(self, key)}" for key in keys)]


# The seeds are chosen so that in the first step no value before a ReLU is within rounding of zero;
# see tolerance.py.
CASES = (
    Case(
        "resnet18",
        lambda: resnet(18),
        image_batch,
        "images",
        "sgd",
        1e-4,
        batch=4,
        image_size=64,
        seed=7,
    ),
    Case(
        "resnet50",
        lambda: resnet(50),
        image_batch,
        "images",
        "sgd",
        1e-4,
        batch=4,
        image_size=64,
        seed=7,
    ),
    Case(
        "transformer",
        lambda: SeedTransformer(64, 0.0),
        token_batch,
        "tokens",
        "adam",
        1e-4,
        batch=2,
        sequence=64,
    ),
    Case(
        "bert-tiny",
        lambda: bert_tiny(0.0),
        masked_token_batch,
        "input_ids",
        "adam",
        1e-4,
        batch=4,
        sequence=32,
    ),
)


def loss_of(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The cross-entropy of one batch, the mean over the labels that count."""
    inputs, labels = batch
    output = module(inputs)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    if logits.dim() == 4:  # A class for each pixel.
        logits = logits.movedim(1, -1)
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=IGNORED_LABEL
    )
