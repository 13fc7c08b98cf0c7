"""The contenders of `inductor_contest.py`: a training step that Inductor compiles, in one process
each.

`torch.compile` with its `activation_memory_budget`, checkpointed blocks that are compiled, and
Rekindle with `inductor=True`. Draws are eager's for all (`fallback_random`), so that gradients can
be compared with those of the same step in double precision.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from complaints import LENGTH, ROWS, WIDTH, Network
from contenders import SEED, Kind, Trained, run_at_orders
from full_models import Case, UNet, images, masked, segmented, shifted, vision
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import rekindle
from rekindle.torch.allocator import allocations
from rekindle.torch.module import session_of

LAYERS, NARROW, HEADS = 6, 384, 6
"""The transformers here: large enough for activations to be most of the memory, small enough for
Inductor to compile a dozen variants of each.
"""
HALF = "-bf16"
"""What the names of cases end with that run in bfloat16 where autocast says so."""


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": NARROW, "intermediate_size": 4 * NARROW, "num_attention_heads": HEADS}
    return BertForMaskedLM(BertConfig(num_hidden_layers=LAYERS, **sizes))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=LAYERS, n_embd=NARROW, n_head=HEADS, use_cache=False)
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=NARROW,
        intermediate_size=4 * NARROW,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(128, 16, LAYERS, HEADS, NARROW, 4 * NARROW, dropout=0.1)


def tiny_bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    return BertForMaskedLM(BertConfig(num_hidden_layers=2, **sizes))


CASES = {
    "bert": Case(bert, "BertLayer", masked, 8, 128),
    "gpt2": Case(gpt2, "GPT2Block", shifted, 8, 128),
    "llama": Case(llama, "LlamaDecoderLayer", shifted, 8, 128),
    "resnet50": Case(vision("resnet50"), "Bottleneck", images, 8, 160),
    "convnext": Case(vision("convnext_tiny"), "CNBlock", images, 8, 128),
    "vit": Case(vit, "EncoderBlock", images, 16, 128),
    "unet": Case(lambda: UNet(32), "DoubleConvolution", segmented, 2, 128),
    # To try the benchmark itself.
    "bert-tiny": Case(tiny_bert, "BertLayer", masked, 2, 32),
}
PASSES = {"one-pass": 1, "two-passes": 2}
"""Blocks that are passed through twice, checkpointed (pytorch#193193) or selectively checkpointed
with each block compiled (pytorch#161889); and once, beside them.
"""


def build(name: str, kind: Kind) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The step and its batch: the same in every process."""
    if name in PASSES:
        torch.manual_seed(1)
        is_checkpointed = kind.way == "checkpoint"
        module = Network(0.1, passes=PASSES[name], is_checkpointed=is_checkpointed).train()
        if kind.way == "selective":
            for number, block in enumerate(module.blocks):
                module.blocks[number] = Selective(block)
        return module, (torch.randn(ROWS, LENGTH, WIDTH),)
    module, batch = CASES[name.removesuffix(HALF)].build()
    return module, batch


class Selective(nn.Module):
    """A compiled block of which products of matrices are kept and the rest is made again."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = torch.compile(block, dynamic=False)

    def forward(self, value: Tensor) -> Tensor:
        return checkpoint(self.block, value, use_reentrant=False, context_fn=_contexts)


def _contexts() -> object:
    products = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}

    def policy(_context: object, operation: object, *_args: object, **_kwargs: object) -> object:
        must = operation in products
        return CheckpointPolicy.MUST_SAVE if must else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Contender:
    """The step in one way, and what it showed."""

    def __init__(self, name: str, kind: Kind) -> None:
        self.kind, self.is_half = kind, name.endswith(HALF)
        self.module, self.batch = build(name, kind)
        self.trained = Trained(self.there())
        self.step = self.compiled(kind.budget)

    def there(self) -> int:
        """Bytes that are there before and after a step."""
        return sum(
            t.nbytes for t in [*self.module.parameters(), *self.module.buffers(), *self.batch]
        )

    def compiled(self, budget: float | int | None) -> Callable[..., Tensor]:
        if self.kind.way == "rekindle":
            assert isinstance(budget, int)
            self.trained.budget = budget
            return rekindle.compile(self.module, budget, inductor=True)
        if self.kind.way == "selective":
            return self.module
        if self.kind.way == "eager":
            return self.module
        return torch.compile(self.module, dynamic=False)

    def run(self, seed: int = SEED) -> Tensor:
        """One step. The gradients of the step before are gone by then."""
        self.module.zero_grad(set_to_none=True)
        torch.manual_seed(seed)
        half = torch.autocast("cpu", torch.bfloat16) if self.is_half else nullcontext()
        with half:
            loss = self.step(*self.batch)
        loss.backward()
        return loss.detach()

    def show(self, exact: Path) -> None:
        """The first call, the gradients' distance from double precision, and the peak of a step by
        the allocator's events.
        """
        begin = time.perf_counter()
        try:
            self.run()
        except rekindle.InfeasibleBudget as refused:
            self.step = self.compiled(refused.smallest)
            self.run()
        self.trained.first_call = time.perf_counter() - begin
        self.trained.error = self.error(exact)
        self.module.zero_grad(set_to_none=True)
        gc.collect()
        self.run()
        self.module.zero_grad(set_to_none=True)
        gc.collect()
        with allocations() as counted:
            self.run()
        self.trained.peak = self.trained.lasting + counted.peak
        if self.kind.way == "rekindle":
            (planned,) = session_of(self.step).planned
            self.trained.predicted, self.trained.planning = planned.peak, planned.seconds

    def error(self, exact: Path) -> float:
        """The distance of all gradients from those in double precision, as a share of their length.
        Single gradients may be zero but for rounding.
        """
        expected = torch.load(exact, mmap=True)
        found = dict(self.module.named_parameters())
        named = {name.replace("block._orig_mod.", ""): part.grad for name, part in found.items()}
        pairs = [(named[name].double(), value) for name, value in expected.items()]
        apart = sum((ours - value).square().sum().item() for ours, value in pairs)
        return (apart / sum(value.square().sum().item() for _, value in pairs)) ** 0.5


def write_exact(name: str, file: Path) -> None:
    """The gradients of the step in double precision, with the same draws."""
    module, batch = build(name, Kind("eager"))
    module = module.double()
    batch = tuple(part.double() if part.is_floating_point() else part for part in batch)
    torch.manual_seed(SEED)
    module(*batch).backward()
    parts = module.named_parameters()
    torch.save({name: part.grad for name, part in parts if part.grad is not None}, file)


def serve(orders: Connection, name: str, kind: Kind, exact: Path) -> None:
    """The process of a contender: runs, tells what that showed, then runs a step at each order
    until there is nobody to give one.
    """
    torch.set_num_threads(1)
    share = kind.budget if kind.way == "torch" else 1.0
    if kind.way == "exact":
        write_exact(name, exact)
        orders.send(Trained(0))
        return
    with (
        functorch_config.patch(activation_memory_budget=share),
        inductor_config.patch(fallback_random=True),
    ):
        contender = Contender(name, kind)
        contender.show(exact)
        orders.send(contender.trained)
        run_at_orders(orders, contender.run, contender.module)
