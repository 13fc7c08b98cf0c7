"""The models that are exported to ONNX and trained by the engine, in sizes for tests.

Each is a model of torchvision or transformers with every kind of layer that it has, narrow or
shallow where its full size would only take time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from torch_models import Case, image_batch, resnet

CLASSES = 1000
VOCABULARY = 200


class Logits(nn.Module):
    """A language model that takes tokens and gives logits alone, as a file's graph does."""

    def __init__(self, model: nn.Module, **arguments):
        super().__init__()
        self.model = model
        self.arguments = arguments

    def forward(self, tokens):
        return self.model(input_ids=tokens, **self.arguments).logits


class UNet(nn.Module):
    """Down and up again: transposed convolution, interpolation, group norm, joined channels."""

    def __init__(self):
        super().__init__()
        self.first = self.block(3, 8)
        self.second = self.block(8, 16)
        self.third = self.block(16, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.back = self.block(32, 16)
        self.last = self.block(24, 8)
        self.head = nn.Conv2d(8, 5, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=2, dilation=2),
            nn.InstanceNorm2d(outputs, affine=True),
            nn.LeakyReLU(0.1),
        )

    def forward(self, images):
        first = self.first(images)
        second = self.second(nn.functional.max_pool2d(first, 2))
        third = self.third(nn.functional.avg_pool2d(second, 2))
        x = self.back(torch.cat([self.up(third), second], 1))
        x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
        scores = self.head(self.last(torch.cat([x, first], 1)))
        return scores.permute(0, 2, 3, 1).flatten(0, 2)


def segment_batch(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(case.batch, 3, case.image_size, case.image_size, generator=random)
    pixels = case.batch * case.image_size * case.image_size
    return images, torch.randint(5, (pixels,), generator=random)


def sentence_batch(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (case.batch, case.sequence)
    tokens = torch.randint(1, VOCABULARY, shape, generator=random)
    return tokens, torch.randint(2, (case.batch,), generator=random)


def text_batch(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (case.batch, case.sequence)
    tokens, labels = (torch.randint(1, VOCABULARY, shape, generator=random) for _ in range(2))
    return tokens, labels


def vision(name: str, **arguments) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(weights=None, **arguments)

    return make


def small_vit() -> nn.Module:
    import torchvision

    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128
    )


def small_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(24, 48, 1), CNBlockConfig(48, 96, 2), CNBlockConfig(96, None, 1)]
    return ConvNeXt(blocks, stochastic_depth_prob=0.0)


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


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return Logits(GPT2LMHeadModel(config), use_cache=False)


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
    share: float = 1.0
    """Of the plain peak, in which the steps run."""
    legacy: bool = False
    """Whether the older exporter writes it."""


def image_case(name: str, module: Callable[[], nn.Module], **more) -> Exported:
    case = Exported(name, module, image_batch, "x", "sgd", 1e-4, batch=2, image_size=64)
    return replace(case, **more)


def token_case(name: str, module: Callable[[], nn.Module], make_batch, loss: str) -> Exported:
    return Exported(name, module, make_batch, "x", "adam", 1e-4, batch=2, sequence=12, loss=loss)


EXPORTED = (
    image_case("resnet18", lambda: resnet(18), batch=4, seed=7),
    image_case("resnet50", lambda: resnet(50), batch=4, seed=7, legacy=True),
    image_case("mobilenet_v2", vision("mobilenet_v2", dropout=0.0), batch=4),
    image_case("mobilenet_v3", vision("mobilenet_v3_small", dropout=0.0), batch=4, legacy=True),
    image_case(
        "efficientnet_b0",
        vision("efficientnet_b0", dropout=0.0, stochastic_depth_prob=0.0),
        batch=4,
    ),
    image_case("convnext", small_convnext),
    image_case("vit", small_vit, image_size=32),
    image_case("squeezenet", vision("squeezenet1_1", dropout=0.0)),
    image_case("unet", UNet, make_batch=segment_batch, image_size=16),
    token_case("distilbert", distilbert, sentence_batch, "cross-entropy"),
    token_case("gpt2", gpt2, text_batch, "next-token"),
    token_case("llama", llama, text_batch, "next-token"),
)
