"""Models that return their loss, small enough for tests: the families that Rekindle must train as
PyTorch does.

A `Family` makes a module in training mode and a batch for it; the same at every call. Weights are
random, dropout is on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

CLASSES = 10
VOCABULARY = 500


class WithLoss(nn.Module):
    """A classifier and its cross-entropy: a step whose forward ends in a loss, so that nothing
    happens outside.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(inputs), labels)


class LanguageLoss(nn.Module):
    """A Hugging Face model's own loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, labels=labels).loss


class UNet(nn.Module):
    """Two levels down and up, batch norm, concatenated skips."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.block(3, width), self.block(width, 2 * width)])
        self.bottom = self.block(2 * width, 4 * width)
        self.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2),
                nn.ConvTranspose2d(2 * width, width, 2, stride=2),
            ]
        )
        self.join = nn.ModuleList([self.block(4 * width, 2 * width), self.block(2 * width, width)])
        self.head = nn.Conv2d(width, CLASSES, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Sequential:
        layers = []
        for channels in (inputs, outputs):
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        return nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            images = block(images)
            skips.append(images)
            images = nn.functional.max_pool2d(images, 2)
        images = self.bottom(images)
        for up, join, skip in zip(self.up, self.join, reversed(skips), strict=True):
            images = join(torch.cat([up(images), skip], dim=1))
        return self.head(images)


def resnet(depth: int) -> nn.Module:
    import torchvision

    return WithLoss(
        getattr(torchvision.models, f"resnet{depth}")(weights=None, num_classes=CLASSES)
    )


def vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return WithLoss(
        VisionTransformer(
            32, 8, 2, 2, 64, 128, dropout=0.1, attention_dropout=0.1, num_classes=CLASSES
        )
    )


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    return LanguageLoss(BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, **sizes)))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_layer=2, n_head=2)
    )
    # Without it the library looks the loss up by the model's name and logs, which breaks the graph
    # in two.
    model.loss_type = "ForCausalLM"
    return LanguageLoss(model)


def images(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, size, size), torch.randint(CLASSES, (count,))


def pictures(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with a label for every pixel."""
    return torch.randn(count, 3, size, size), torch.randint(CLASSES, (count, size, size))


def tokens(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(VOCABULARY, (count, length)), torch.randint(VOCABULARY, (count, length))


@dataclass(frozen=True)
class Family:
    """A model, its batch and its optimizer."""

    module: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW

    def build(self) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
        torch.manual_seed(1)
        return self.module().train(), self.batch()

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        return self.optimizer(module.parameters(), lr=1e-3)


def momentum(parameters: object, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


FAMILIES = {
    "resnet18": Family(lambda: resnet(18), lambda: images(8, 64), momentum),
    "resnet50": Family(lambda: resnet(50), lambda: images(8, 32), momentum),
    "resnet152": Family(lambda: resnet(152), lambda: images(8, 32), momentum),
    "bert": Family(bert, lambda: tokens(8, 64)),
    "gpt2": Family(gpt2, lambda: tokens(8, 64)),
    "vit": Family(vit, lambda: images(16, 32)),
    "unet": Family(lambda: WithLoss(UNet(8)), lambda: pictures(4, 32)),
}
