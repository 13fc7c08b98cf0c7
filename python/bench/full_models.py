"""Training steps at full size, as users have them: unmodified models with random weights, in
training mode.

A `Step` is a module that returns its loss, so that the whole step can be captured. Its `blocks` are
what one would wrap in `torch.utils.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CLASSES = 1000
TOKENS = 30_000
"""Labels and tokens are drawn below this; every vocabulary here is larger."""
MASKED_SHARE = 0.15
"""The share of tokens that a masked language model predicts."""
IGNORED = -100


class DoubleConvolution(nn.Sequential):
    """The block of a U-Net: two convolutions, each normalised."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        )  # fmt: skip


class UNet(nn.Module):
    """Contracts by pooling, expands by transposed convolutions, and joins equal sizes."""

    def __init__(self, width: int = 64, depth: int = 4, classes: int = 21) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(DoubleConvolution(a, b) for a, b in zip([3, *widths], widths))
        pairs = list(zip(reversed(widths[1:]), reversed(widths[:-1])))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(DoubleConvolution(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        value, joined = images, []
        for block in self.down[:-1]:
            joined.append(block(value))
            value = nn.functional.max_pool2d(joined[-1], 2)
        value = self.down[-1](value)
        for grow, block in zip(self.grow, self.up):
            value = block(torch.cat([joined.pop(), grow(value)], dim=1))
        return self.head(value)


class Step(nn.Module):
    """A model with its loss."""

    def __init__(self, model: nn.Module, block: str) -> None:
        super().__init__()
        self.model = model
        self.block = block

    def blocks(self) -> list[nn.Module]:
        """The model's repeated parts, by the name of their class."""
        return [part for part in self.model.modules() if type(part).__name__ == self.block]

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        output = self.model(inputs)
        scores = output if isinstance(output, Tensor) else output.logits
        if scores.dim() == 3:
            scores, labels = scores.flatten(0, 1), labels.flatten()
        return cross_entropy(scores, labels, ignore_index=IGNORED)


def images(batch: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(CLASSES, (batch,))


def segmented(batch: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(21, (batch, size, size))


def masked(batch: int, length: int) -> tuple[Tensor, Tensor]:
    tokens, labels = torch.randint(1, TOKENS, (2, batch, length))
    return tokens, labels.where(torch.rand(batch, length) < MASKED_SHARE, IGNORED)


def shifted(batch: int, length: int) -> tuple[Tensor, Tensor]:
    text = torch.randint(1, TOKENS, (batch, length + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def vision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(weights=None)

    return build


def bert(layers: int = 12) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(num_hidden_layers=layers))


def gpt2(layers: int = 12) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False))


@dataclass(frozen=True)
class Case:
    """A model, its batch, and the class of its repeated part."""

    model: Callable[[], nn.Module]
    block: str
    batch: Callable[[int, int], tuple[Tensor, Tensor]]
    samples: int
    size: int
    """Pixels along an edge, or tokens."""

    def build(self) -> tuple[Step, tuple[Tensor, Tensor]]:
        """The step and its batch: the same at every call."""
        torch.manual_seed(1)
        step = Step(self.model(), self.block).train()
        return step, self.batch(self.samples, self.size)


CASES = {
    "resnet152": Case(vision("resnet152"), "Bottleneck", images, 4, 224),
    "resnet50": Case(vision("resnet50"), "Bottleneck", images, 8, 224),
    "resnet18": Case(vision("resnet18"), "BasicBlock", images, 16, 224),
    "bert-base": Case(bert, "BertLayer", masked, 8, 128),
    "gpt2": Case(gpt2, "GPT2Block", shifted, 4, 256),
    "vit-b16": Case(vision("vit_b_16"), "EncoderBlock", images, 8, 224),
    "unet": Case(UNet, "DoubleConvolution", segmented, 2, 192),
    # To try the benchmark itself.
    "resnet18-small": Case(vision("resnet18"), "BasicBlock", images, 4, 64),
    "bert-small": Case(lambda: bert(2), "BertLayer", masked, 2, 32),
}
