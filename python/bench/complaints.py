"""Three public complaints about PyTorch's own ways to save memory, and the same steps planned.

1. A lower `activation_memory_budget` gives a higher peak (pytorch/pytorch#197838).
2. Below a budget of 1, dropout is drawn anew when it is recomputed, so gradients are wrong
   (#190758).
3. The compiled backward of two checkpointed passes through the same blocks needs more than eager
   checkpointing does (#193193).

Prints the tables of `docs/complaints.md`. Every step runs operation by operation on the CPU, and
bytes are counted by storages (`rekindle.measure_peak`), so the numbers are the same in every run.

    python python/bench/complaints.py
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator

import torch
from contenders import difference, torch_budget
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rekindle

SHARES = (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)
WIDTH, HEADS, BLOCKS, ROWS, LENGTH = 128, 4, 6, 8, 128


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.joined = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, value: Tensor) -> Tensor:
        rows, length, _ = value.shape
        parts = self.heads(self.norms[0](value)).chunk(3, dim=-1)
        q, k, v = (p.view(rows, length, HEADS, -1).transpose(1, 2) for p in parts)
        seen = (q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5).softmax(dim=-1) @ v
        value = value + self.dropout(self.joined(seen.transpose(1, 2).flatten(2)))
        wide = nn.functional.gelu(self.wide(self.norms[1](value)))
        return value + self.dropout(self.narrow(wide))


class Network(nn.Module):
    """Blocks, passed through once or more often, each checkpointed or not."""

    def __init__(
        self, dropout: float = 0.0, passes: int = 1, is_checkpointed: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(BLOCKS))
        self.passes, self.is_checkpointed = passes, is_checkpointed

    def forward(self, value: Tensor) -> Tensor:
        losses = []
        for number in range(self.passes):
            passed = value + number
            for block in self.blocks:
                passed = (
                    checkpoint(block, passed, use_reentrant=False)
                    if self.is_checkpointed
                    else block(passed)
                )
            losses.append(passed.square().mean())
        return torch.stack(losses).sum()


def measured(module: nn.Module, step: Callable[[Tensor], Tensor]) -> tuple[int, list[Tensor]]:
    """The peak of a step, and its gradients."""
    value = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    for _ in range(2):  # The first call compiles.
        module.zero_grad()
        torch.manual_seed(2)
        with rekindle.measure_peak([*module.parameters(), value]) as counted:
            step(value).backward()
    return counted.peak, [part.grad for part in module.parameters()]


def by_torch(share: float, **options: object) -> tuple[int, list[Tensor]]:
    """PyTorch's partitioner with its budget."""
    torch._dynamo.reset()
    module = Network(**options)
    return measured(module, torch.compile(module, backend=torch_budget(share), dynamic=False))


def by_plan(budget: int, **options: object) -> tuple[int, list[Tensor]]:
    """Rekindle in so many bytes, or in the smallest number for which it has a plan."""
    torch._dynamo.reset()
    module = Network(**options)
    try:
        planned = rekindle.compile(module, budget, profile="roofline", wait=True)
        return measured(module, planned)
    except rekindle.InfeasibleBudget as refusal:
        return by_plan(refusal.smallest, **options)


def mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


def error(found: list[Tensor], expected: list[Tensor]) -> str:
    largest = max(map(difference, found, expected))
    return f"{largest:.0e}" if largest else "0"


def budgets(dropout: float) -> Iterator[str]:
    """Rows: a share, and the peak and the gradients' error of both."""
    module = Network(dropout)
    eager, expected = measured(module, module)
    yield "| share | PyTorch: peak MiB | gradient error | Rekindle: peak MiB | gradient error |"
    yield "|---|---|---|---|---|"
    yield f"| eager | {mib(eager)} | – | {mib(eager)} | – |"
    for share in SHARES:
        theirs, ours = (
            by_torch(share, dropout=dropout),
            by_plan(max(int(share * eager), 1), dropout=dropout),
        )
        yield (
            f"| {share} | {mib(theirs[0])} | {error(theirs[1], expected)} "
            f"| {mib(ours[0])} | {error(ours[1], expected)} |"
        )


def passes() -> Iterator[str]:
    """Rows: peaks of one and of two passes through the same blocks."""
    yield "| passes | eager | checkpointed | the same compiled | Rekindle in as much as eager's |"
    yield "|---|---|---|---|---|"
    for count in (1, 2):
        plain, blocks = Network(passes=count), Network(passes=count, is_checkpointed=True)
        eager, expected = measured(plain, plain)
        kept, _ = measured(blocks, blocks)
        compiled, _ = by_torch(1.0, passes=count, is_checkpointed=True)
        ours, found = by_plan(kept, passes=count)
        assert error(found, expected) == "0"
        yield f"| {count} | {mib(eager)} | {mib(kept)} | {mib(compiled)} | {mib(ours)} |"


def main() -> None:
    os.environ["REKINDLE_CACHE"] = "off"
    warnings.simplefilter("ignore")
    print("A lower budget:\n", *budgets(0.0), sep="\n")
    print("\nDropout:\n", *budgets(0.1), sep="\n")
    print("\nTwo passes, MiB:\n", *passes(), sep="\n")


if __name__ == "__main__":
    main()
