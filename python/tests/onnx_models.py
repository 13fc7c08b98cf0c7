"""The models that are exported to ONNX and trained by the engine, in sizes for tests.

Each is a model of torchvision or transformers with every kind of layer that it has, narrow or
shallow where its full size would only take time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from torch_models import Case, image_batch

VOCABULARY = 200


class Logits(nn.Module):
    """A language model that takes tokens and gives logits alone, as a file's graph does."""

    def __init__(self, model: nn.Module, **arguments):
        super().__init__()
        self.model = model
        self.arguments = arguments

    def forward(self, tokens):
        return self.model(input_ids=tokens, **self.arguments).logits


def sentence_batch(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (case.batch, case.sequence)
    tokens = torch.randint(1, VOCABULARY, shape, generator=random)
    return tokens, torch.randint(2, (case.batch,), generator=random)


def text_batch(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (case.batch, case.sequence)
    tokens, labels = (torch.randint(1, VOCABULARY, shape, generator=random) for _ in range(2))
    return tokens, labels


def small_vit() -> nn.Module:
    import torchvision

    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128
    )


def distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=64,
        n_layers=2,
        n_heads=4,
        hidden_dim=128,
        max_position_embeddings=64,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
    return Logits(DistilBertForSequenceClassification(config))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return Logits(LlamaForCausalLM(config), use_cache=False)


@dataclass(frozen=True)
class Exported(Case):
    """A case that reaches the engine through a file."""

    loss: str = "cross-entropy"


def image_case(name: str, module: Callable[[], nn.Module]) -> Exported:
    return Exported(name, module, image_batch, "x", "sgd", 1e-4, batch=2, image_size=32)


def token_case(name: str, module: Callable[[], nn.Module], make_batch, loss: str) -> Exported:
    return Exported(name, module, make_batch, "x", "adam", 1e-4, batch=2, sequence=12, loss=loss)


EXPORTED = (
    image_case("vit", small_vit),
    token_case("distilbert", distilbert, sentence_batch, "cross-entropy"),
    token_case("llama", llama, text_batch, "next-token"),
)
