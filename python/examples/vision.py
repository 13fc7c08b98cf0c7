"""Trains a ResNet on generated images in a third of the activations' memory.

    pip install . torch torchvision
    python python/examples/vision.py

The images of a class share a pattern under noise, so the loss falls within a few steps. Any module
that returns its loss can take the place of `Classifier`; nothing else changes for Rekindle.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

import rekindle

CLASSES = 10


class Classifier(nn.Module):
    """A network and its loss: what the module computes is what the budget covers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = resnet18(num_classes=CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(images), labels)


def batches(size: int, side: int, steps: int):
    """Patterns under noise."""
    patterns = torch.randn(CLASSES, 3, side, side)
    for _ in range(steps):
        labels = torch.randint(CLASSES, (size,))
        yield patterns[labels] + torch.randn(size, 3, side, side), labels


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
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--side", type=int, default=96, help="of the images, in pixels")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = Classifier()
    data = list(batches(options.batch_size, options.side, options.steps))
    planned = rekindle.compile(model, budget=a_third(model, data[0]))
    optimizer = torch.optim.SGD(planned.parameters(), lr=0.01, momentum=0.9)
    for step, (images, labels) in enumerate(data, start=1):
        optimizer.zero_grad()
        loss = planned(images, labels)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    print(rekindle.report(planned))


if __name__ == "__main__":
    main()
