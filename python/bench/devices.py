"""Well-known models, from their configurations and without weights, planned for GPUs that are not
here.

Each model runs in a process of its own: `python python/bench/devices.py NAME` prints a header and
one line of CSV. All bytes are predictions; processor seconds and the memory
of the process are measured here. `cargo xtask bench devices` archives them.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import rekindle
from rekindle.torch import trace

COLUMNS = (
    "model,setup,device,budget,parameters,nodes,plain_live,plain_reserved,planned_live,"
    "planned_allocated,planned_reserved,margins,overhead,capture_seconds,plan_seconds,process_mib,"
    "published,published_source"
)


@dataclass(frozen=True)
class Case:
    """A model as it is trained somewhere."""

    setup: str
    make: Callable[[], tuple[nn.Module, Any]]
    """The model, on `meta`, and a batch."""
    dtype: torch.dtype | None = None
    autocast: torch.dtype | None = None
    device: str = "H100-80GB"
    budget: str = "72GiB"
    published: str = ""
    """What somebody measured for a step like it, without a plan if nothing else is said."""
    source: str = ""


class Language(nn.Module):
    """A language model that returns its loss alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=tokens, labels=tokens, use_cache=False).loss


class Classified(nn.Module):
    """A classifier of texts that returns its loss alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=tokens, labels=labels).loss


class Pictures(nn.Module):
    """A classifier with its loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.inner(pictures), labels)


class Flow(nn.Module):
    """A diffusion transformer that learns a flow."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self, noisy: torch.Tensor, times: torch.Tensor, text: torch.Tensor, pooled: torch.Tensor
    ) -> torch.Tensor:
        found = self.inner(
            hidden_states=noisy,
            timestep=times,
            encoder_hidden_states=text,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
        return (found - noisy).float().pow(2).mean()


def gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config())
    model.loss_type = "ForCausalLM"
    return Language(model), _tokens(50257, 64, 1024)


def llama3(adapted: list[str], batch: int, length: int, **sizes: Any) -> tuple[nn.Module, Any]:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        rms_norm_eps=1e-5,
        **sizes,
    )
    model: nn.Module = LlamaForCausalLM(config)
    model.loss_type = "ForCausalLM"
    if adapted:
        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=adapted))
    return Language(model), _tokens(128256, batch, length)


LLAMA3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
LLAMA3_3B = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "tie_word_embeddings": True,
}
ATTENTION = ["q_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


def bert_large() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    # As it was in 2022: attention with its scores.
    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )
    return Classified(BertForSequenceClassification(config)), (
        _tokens(30522, 4, 512),
        torch.zeros(4, dtype=torch.long),
    )


def mixtral() -> tuple[nn.Module, Any]:
    from transformers import MixtralConfig, MixtralForCausalLM

    # One of eight stages: four of 32 layers, with all eight experts of each.
    config = MixtralConfig(num_hidden_layers=4, num_local_experts=8)
    config._experts_implementation = "grouped_mm"
    model = MixtralForCausalLM(config)
    model.loss_type = "ForCausalLM"
    return Language(model), _tokens(32000, 4, 4096)


def vit_large() -> tuple[nn.Module, Any]:
    import timm

    model = timm.create_model("vit_large_patch16_224", num_classes=1000)
    return Pictures(model), (torch.empty(256, 3, 224, 224), torch.zeros(256, dtype=torch.long))


def sd3() -> tuple[nn.Module, Any]:
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=128,
        patch_size=2,
        in_channels=16,
        num_layers=24,
        attention_head_dim=64,
        num_attention_heads=24,
        joint_attention_dim=4096,
        caption_projection_dim=1536,
        pooled_projection_dim=2048,
        out_channels=16,
        pos_embed_max_size=192,
    )
    batch = (
        torch.empty(16, 16, 128, 128, dtype=torch.bfloat16),
        torch.zeros(16),
        torch.empty(16, 154, 4096, dtype=torch.bfloat16),
        torch.empty(16, 2048, dtype=torch.bfloat16),
    )
    return Flow(model), batch


def _tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


HALF = torch.bfloat16
CASES = {
    "gpt2": Case("124M; autocast bf16; AdamW; 64 × 1024", gpt2, autocast=HALF),
    "llama3-8b": Case(
        "bf16; LoRA of rank 8; AdamW; 2 × 8192",
        lambda: llama3(ATTENTION, 2, 8192, **LLAMA3_8B),
        dtype=HALF,
    ),
    "llama3-8b-short": Case(
        "bf16; LoRA of rank 8 with MLP; AdamW; 2 × 2048",
        lambda: llama3([*ATTENTION, *MLP], 2, 2048, **LLAMA3_8B),
        dtype=HALF,
        device="L40S",
        budget="44GiB",
        published="30.3 GiB; 16.2 with checkpoints",
        source="torchtune's README: compiled; loss in chunks",
    ),
    "llama3-3b": Case(
        "Llama 3.2; bf16; AdamW in bf16; 2 × 4096",
        lambda: llama3([], 2, 4096, **LLAMA3_3B),
        dtype=HALF,
        device="A100-80GB",
        published="60.0 GiB",
        source="torchtune's README: packed; neither compiled nor with checkpoints",
    ),
    "bert-large": Case(
        "fp32; AdamW; 4 × 512",
        bert_large,
        device="V100-16GB",
        budget="14.5GiB",
        published="14949 MiB of the process",
        source="Hugging Face: Model training anatomy",
    ),
    "mixtral-8x7b": Case(
        "bf16; one of eight pipeline stages; AdamW in bf16; 4 × 4096", mixtral, dtype=HALF
    ),
    "vit-l": Case("304M; autocast bf16; AdamW; 256 × 224²", vit_large, autocast=HALF),
    "sd3": Case("medium; bf16; AdamW in bf16; 16 × 1024²", sd3, dtype=HALF),
}


def row(name: str) -> str:
    """Plans one model."""
    case = CASES[name]
    with torch.device("meta"):
        model, batch = case.make()
    with torch.no_grad():
        batch = torch.utils._pytree.tree_map_only(torch.Tensor, _with_contents, batch)
    trained = [part for part in model.parameters() if part.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    begin = time.process_time()
    step = trace(
        model,
        batch,
        device=case.device,
        dtype=case.dtype,
        autocast=case.autocast,
        optimizer=optimizer,
        name=name,
    )
    captured = time.process_time()
    plan = step.plan(case.budget)
    planned = time.process_time()
    assert plan.footprint is not None
    plain = rekindle._native.footprint(step.graph)
    device = f"{case.device} (predicted)"
    values = [
        name,
        case.setup,
        device,
        plan.budget,
        sum(part.numel() for part in model.parameters()),
        len(step.graph),
        step.graph.peak,
        plain.reserved + step.margin_bytes,
        plan.plan.peak,
        plan.footprint.allocated,
        plan.footprint.reserved,
        step.margin_bytes,
        f"{plan.overhead:.4f}",
        f"{captured - begin:.1f}",
        f"{planned - captured:.1f}",
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        case.published,
        case.source,
    ]
    return ",".join(map(str, values))


def _with_contents(tensor: torch.Tensor) -> torch.Tensor:
    """Batches are made where the model is; whether a mask is full is asked of contents."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor


if __name__ == "__main__":
    print(COLUMNS)
    print(row(sys.argv[1]))
