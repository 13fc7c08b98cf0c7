"""The models that are exported to ONNX and trained by the engine, in sizes for tests.

Each is a model of torchvision or transformers with every kind of layer that it has, narrow or
shallow where its full size would only take time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from torch_models import Case

VOCABULARY = 200
CLASSES = 10


class Logits(nn.Module):
    """A language model that takes tokens and gives logits alone, as a file's graph does."""

    def __init__(self, model: nn.Module, **arguments):
        super().__init__()
        self.model = model
        self.arguments = arguments

    def forward(self, tokens):
        return self.model(input_ids=tokens, **self.arguments).logits


class Hidden(nn.Module):
    """An encoder of transformers with a linear head on each token."""

    def __init__(self, model: nn.Module, width: int):
        super().__init__()
        self.model = model
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.model(input_ids=tokens).last_hidden_state)


class UNet(nn.Module):
    """Two levels of convolutions down and up, with what was there before beside them."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.down3 = double(3, 8), double(8, 16), double(16, 32)
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.up1 = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(16, 8, 1)
        )
        self.join2, self.join1 = double(32, 16), double(16, 8)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, images):
        first = self.down1(images)
        second = self.down2(self.pool(first))
        up = self.up2(self.down3(self.pool(second)))
        up = self.up1(self.join2(torch.cat([up, second], 1)))
        return self.head(self.join1(torch.cat([up, first], 1)))


def double(channels: int, to: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, to, 3, padding=1, bias=False),
        nn.BatchNorm2d(to),
        nn.ReLU(inplace=True),
        nn.Conv2d(to, to, 3, padding=1, bias=False),
        nn.BatchNorm2d(to),
        nn.ReLU(inplace=True),
    )


class Encoder(nn.Module):
    """PyTorch's own transformer, whose tokens of padding are not looked at."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens):
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=tokens == 0)
        return self.head(hidden)


class Layers(nn.Module):
    """Layers that no other model here has."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, padding_mode="reflect")
        self.activations = nn.ModuleList(
            (nn.ELU(), nn.LeakyReLU(0.1), nn.Mish(), nn.PReLU(16), nn.SELU(), nn.CELU(1.5))
            + (nn.Softsign(), nn.LogSigmoid(), nn.Softplus(), nn.Hardshrink(0.1), nn.Tanh())
        )
        self.norms = nn.ModuleList((nn.GroupNorm(4, 16), nn.InstanceNorm2d(16, affine=True)))
        self.groups = nn.Conv2d(16, 16, 3, dilation=2, groups=4)
        self.shuffle = nn.Sequential(nn.Conv2d(16, 32, 1), nn.PixelShuffle(2))
        self.pool = nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)
        self.edge = nn.ReplicationPad2d((1, 2, 0, 1))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images):
        x = self.first(images)
        for activation in self.activations:
            x = x + activation(x)
        for norm in self.norms:
            x = norm(x)
        x = self.pool(self.edge(self.shuffle(self.groups(x))))
        return self.head(torch.einsum("nchw,hw->nc", x, x[0, 0].sigmoid()))


class Recurrent(nn.Module):
    """What the engine does not have."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.gru = nn.GRU(16, VOCABULARY, batch_first=True)

    def forward(self, tokens):
        return self.gru(self.lstm(self.embed(tokens))[0])[0]


def resnet(block: str, **more) -> nn.Module:
    """Its first half; the other has the same layers with more channels."""
    from torchvision.models import resnet

    module = resnet.ResNet(getattr(resnet, block), [2, 2, 1, 1], num_classes=CLASSES, **more)
    module.layer3, module.layer4 = nn.Identity(), nn.Identity()
    module.fc = nn.Linear(512 if block == "Bottleneck" else 128, CLASSES)
    for name, part in module.named_modules():
        if name.endswith("bn3" if block == "Bottleneck" else "bn2"):
            nn.init.constant_(part.weight, 0.2)
    return module


def mobilenet_v2() -> nn.Module:
    from torchvision.models import MobileNetV2

    blocks = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2]]
    return MobileNetV2(CLASSES, 0.5, blocks, dropout=0.0)


def mobilenet_v3() -> nn.Module:
    from torchvision.models.mobilenetv3 import InvertedResidualConfig as Block, MobileNetV3

    blocks = [
        Block(16, 3, 16, 16, True, "RE", 2, 1, 0.5),
        Block(16, 3, 48, 24, False, "RE", 2, 1, 0.5),
        Block(24, 5, 96, 40, True, "HS", 1, 1, 0.5),
        Block(40, 5, 96, 40, True, "HS", 1, 1, 0.5),
    ]
    return MobileNetV3(blocks, 64, CLASSES, dropout=0.0)


def efficientnet() -> nn.Module:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    blocks = [
        MBConvConfig(1, 3, 1, 16, 8, 1, 1.0, 1.0),
        MBConvConfig(6, 3, 2, 8, 12, 2, 1.0, 1.0),
        MBConvConfig(6, 5, 2, 12, 20, 2, 1.0, 1.0),
    ]
    return EfficientNet(blocks, 0.0, stochastic_depth_prob=0.0, num_classes=CLASSES)


def convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(24, 48, 1), CNBlockConfig(48, 64, 1), CNBlockConfig(64, None, 1)]
    return ConvNeXt(blocks, stochastic_depth_prob=0.0, layer_scale=0.5, num_classes=CLASSES)


def torchvision_model(name: str, **arguments) -> nn.Module:
    import torchvision

    return getattr(torchvision.models, name)(num_classes=CLASSES, **arguments)


def squeezenet() -> nn.Module:
    return torchvision_model("squeezenet1_1", dropout=0.0)


def vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, 3, 4, 64, 128, num_classes=CLASSES)


def transformers_model(name: str, config: str, wrapped: Callable = Logits, **sizes) -> nn.Module:
    import transformers

    return wrapped(getattr(transformers, name)(getattr(transformers, config)(**sizes)))


distilbert = partial(
    transformers_model,
    "DistilBertForSequenceClassification",
    "DistilBertConfig",
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
gpt2 = partial(
    transformers_model,
    "GPT2LMHeadModel",
    "GPT2Config",
    partial(Logits, use_cache=False),
    vocab_size=VOCABULARY,
    n_embd=64,
    n_layer=2,
    n_head=4,
    n_positions=64,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)
llama = partial(
    transformers_model,
    "LlamaForCausalLM",
    "LlamaConfig",
    partial(Logits, use_cache=False),
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
t5 = partial(
    transformers_model,
    "T5EncoderModel",
    "T5Config",
    partial(Hidden, width=64),
    vocab_size=VOCABULARY,
    d_model=64,
    d_kv=16,
    d_ff=128,
    num_layers=2,
    num_heads=4,
    dropout_rate=0.0,
)


def picture_batch(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(case.batch, 3, case.image_size, case.image_size, generator=random)
    return images, torch.randint(CLASSES, (case.batch,), generator=random)


def pixel_batch(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A class for each pixel."""
    images, _ = picture_batch(case, random)
    return images, torch.randint(CLASSES, (case.batch, *images.shape[2:]), generator=random)


def sentence_batch(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (case.batch, case.sequence)
    tokens = torch.randint(1, VOCABULARY, shape, generator=random)
    return tokens, torch.randint(2, (case.batch,), generator=random)


def text_batch(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (case.batch, case.sequence)
    tokens, labels = (torch.randint(1, VOCABULARY, shape, generator=random) for _ in range(2))
    return tokens, labels


@dataclass(frozen=True)
class Exported(Case):
    """A case that reaches the engine through a file."""

    loss: str = "cross-entropy"
    dynamo: bool = True
    """Whether the newer exporter writes it; else the one by tracing, for training, opset 17."""
    share: float = 1.0
    """The part of the plain step's memory that it is trained in; parameters are most of some."""


def image_case(
    name: str, module: Callable[[], nn.Module], make_batch=picture_batch, size: int = 32, **more
) -> Exported:
    return Exported(name, module, make_batch, "x", "sgd", 1e-4, batch=4, image_size=size, **more)


def token_case(
    name: str, module: Callable[[], nn.Module], make_batch=sentence_batch, **more
) -> Exported:
    loss = "next-token" if make_batch is text_batch else "cross-entropy"
    words = {"batch": 4, "sequence": 24, "loss": loss, **more}
    return Exported(name, module, make_batch, "x", "adam", 1e-4, **words)


EXPORTED = (
    image_case("resnet18", partial(resnet, "BasicBlock"), size=96, share=0.75),
    image_case("resnet50", partial(resnet, "Bottleneck", width_per_group=16), size=96, share=0.75),
    image_case("mobilenet_v2", mobilenet_v2, share=0.6),
    image_case("mobilenet_v3", mobilenet_v3, share=0.6),
    image_case("efficientnet", efficientnet, share=0.6),
    image_case("convnext", convnext, share=0.85),
    image_case("squeezenet", squeezenet, size=64, share=0.85),
    image_case("vit", vit),
    image_case("unet", UNet, pixel_batch, share=0.75),
    token_case("distilbert", distilbert),
    token_case("gpt2", gpt2, text_batch),
    token_case("llama", llama, text_batch),
)

TRACED = {"dynamo": False}

OTHERS = (
    image_case("layers", Layers, size=16, **TRACED),
    token_case("encoder", Encoder, text_batch, **TRACED),
    token_case("t5", t5, text_batch, **TRACED),
)
"""Models that the engine was not written for, as the older exporter writes them."""
