"""Models that nobody here wrote, as their libraries make them from a configuration: small, with
random weights, in training mode, dropout and all as the library sets it.

`ZOO` has for each name what builds it. A `Build` gives the model and the arguments of its call; the
loss is the model's own where it has one, and otherwise that of `Loss`. Nothing is downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 512
CLASSES = 10
WIDTH = 64
LAYERS = 2
TOKENS = (8, 64)
"""Samples and tokens of a batch of text."""

Arguments = dict[str, Any]
Built = tuple[nn.Module, Arguments]
Build = Callable[[], Built]


class Loss(nn.Module):
    """A model with its loss: the model's own, or a plain one of what it gives and `target`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, target: Tensor | None = None, **inputs: Any) -> Tensor:
        output = self.model(**inputs)
        if target is None:
            losses = output if isinstance(output, dict) else {"loss": output}
            return losses["loss"] if "loss" in losses else sum(losses.values())
        if isinstance(output, dict) and "out" in output:
            output = output["out"]
        scores = output if isinstance(output, Tensor) else output[0]
        if target.dtype.is_floating_point:
            return functional.mse_loss(scores, target)
        return functional.cross_entropy(scores, target)


class Positional(nn.Module):
    """Passes `x` by position: a model whose first argument has another name in each library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


def text() -> Tensor:
    return torch.randint(3, VOCABULARY, TOKENS)


def language(kind: str, **sizes: Any) -> Build:
    """A Hugging Face model of text that predicts every token, with its own loss."""

    def build() -> Built:
        model = hugging_face(kind, **sizes)
        return model, {"input_ids": text(), "labels": text()}

    return build


def hugging_face(kind: str, **sizes: Any) -> nn.Module:
    """The class `kind` with the configuration `config` or the one that it is made from."""
    transformers = importlib.import_module("transformers")
    model = getattr(transformers, kind)
    config = model.config_class(**sizes)
    # The cache of keys and values is for generating text.
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return model(config)


SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH,
    "max_position_embeddings": 128,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 16}
"""Two heads share keys and values."""
EXPERTS = {**GROUPED, "num_hidden_layers": 2, "num_experts_per_tok": 2}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def gpt2() -> Built:
    model = hugging_face(
        "GPT2LMHeadModel", vocab_size=VOCABULARY, n_positions=128, n_embd=WIDTH, n_layer=LAYERS,
        n_head=4,
    )  # fmt: skip
    return model, {"input_ids": text(), "labels": text()}


def t5() -> Built:
    model = hugging_face(
        "T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=WIDTH, d_kv=16,
        d_ff=2 * WIDTH, num_layers=2, num_heads=4, decoder_start_token_id=0,
    )  # fmt: skip
    return model, {"input_ids": text(), "labels": text()}


def bart() -> Built:
    model = hugging_face(
        "BartForConditionalGeneration", vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=2 * WIDTH, decoder_ffn_dim=2 * WIDTH, max_position_embeddings=128,
        decoder_start_token_id=2, forced_eos_token_id=2, **SPECIAL,
    )  # fmt: skip
    return model, {"input_ids": text(), "labels": text()}


def mamba() -> Built:
    model = hugging_face(
        "MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=32, state_size=8,
        num_hidden_layers=2,
    )  # fmt: skip
    tokens = torch.randint(3, VOCABULARY, (2, 16))
    return model, {"input_ids": tokens, "labels": tokens}


def hf_vit() -> Built:
    model = hugging_face(
        "ViTForImageClassification", hidden_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=4, intermediate_size=2 * WIDTH, image_size=32, patch_size=8,
        num_labels=CLASSES,
    )  # fmt: skip
    return model, {"pixel_values": pixels(32, 32), "labels": classes(32)}


def segformer() -> Built:
    model = hugging_face(
        "SegformerForSemanticSegmentation", depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64],
        num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=32, num_labels=CLASSES,
    )  # fmt: skip
    return model, {"pixel_values": pixels(4, 64), "labels": torch.randint(CLASSES, (4, 64, 64))}


def clip() -> Built:
    tower = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 2 * WIDTH,
    }
    model = hugging_face(
        "CLIPModel",
        text_config={
            **tower, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
            "bos_token_id": 1, "eos_token_id": 2,
        },
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=32,
    )  # fmt: skip
    tokens = torch.randint(3, VOCABULARY, (24, 16))
    tokens[:, -1] = 2
    return model, {"input_ids": tokens, "pixel_values": pixels(24, 32), "return_loss": True}


def whisper() -> Built:
    model = hugging_face(
        "WhisperForConditionalGeneration", vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=2 * WIDTH, decoder_ffn_dim=2 * WIDTH, num_mel_bins=16,
        max_source_positions=50, max_target_positions=64, decoder_start_token_id=1, dropout=0.1,
        **SPECIAL,
    )  # fmt: skip
    return model, {
        "input_features": torch.randn(2, 16, 100),
        "labels": torch.randint(3, VOCABULARY, (2, 32)),
    }


def wav2vec2() -> Built:
    # A mask over time is drawn by NumPy, from a generator of its own.
    model = hugging_face(
        "Wav2Vec2ForCTC", vocab_size=32, hidden_size=WIDTH, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=2 * WIDTH, conv_dim=[16, 16, 16],
        conv_stride=[5, 4, 4], conv_kernel=[10, 4, 4], num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, mask_time_prob=0.0, layerdrop=0.0,
        ctc_loss_reduction="mean", pad_token_id=0,
    )  # fmt: skip
    return model, {
        "input_values": torch.randn(2, 4000),
        "labels": torch.randint(1, 32, (2, 8)),
    }


def pixels(count: int, size: int) -> Tensor:
    return torch.randn(count, 3, size, size)


def classes(count: int) -> Tensor:
    return torch.randint(CLASSES, (count,))


def timm_model(kind: str, size: int = 64, count: int = 4, **options: Any) -> Build:
    def build() -> Built:
        timm = importlib.import_module("timm")
        model = timm.create_model(kind, num_classes=CLASSES, **options)
        return Positional(model), {"x": pixels(count, size), "target": classes(count)}

    return build


def vision(kind: str, size: int = 64, count: int = 4, **options: Any) -> Build:
    def build() -> Built:
        models = importlib.import_module("torchvision.models")
        model = getattr(models, kind)(weights=None, num_classes=CLASSES, **options)
        return Positional(model), {"x": pixels(count, size), "target": classes(count)}

    return build


def deeplab() -> Built:
    models = importlib.import_module("torchvision.models.segmentation")
    model = models.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES)
    return Positional(model), {"x": pixels(2, 64), "target": torch.randint(CLASSES, (2, 64, 64))}


class Detection(nn.Module):
    """A detector, whose losses depend on lists of boxes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, boxes: Tensor, labels: Tensor) -> Any:
        targets = [{"boxes": b, "labels": n} for b, n in zip(boxes, labels, strict=True)]
        return self.model(list(images), targets)


def detector(kind: str) -> Build:
    def build() -> Built:
        models = importlib.import_module("torchvision.models.detection")
        model = getattr(models, kind)(
            weights=None, weights_backbone=None, num_classes=CLASSES, min_size=64, max_size=64
        )
        corner = 32 * torch.rand(2, 3, 2)
        boxes = torch.cat([corner, corner + 8 + 16 * torch.rand(2, 3, 2)], dim=2)
        labels = torch.randint(1, CLASSES, (2, 3))
        images = torch.rand(2, 3, 64, 64)
        return Detection(model), {"images": images, "boxes": boxes, "labels": labels}

    return build


def diffusion(kind: str, inputs: Callable[[], Arguments], **sizes: Any) -> Build:
    """A denoiser of diffusers, which predicts the noise."""

    def build() -> Built:
        model = getattr(importlib.import_module("diffusers"), kind)(**sizes)
        return model, inputs()

    return build


def noisy(channels: int, size: int, **others: Tensor) -> Callable[[], Arguments]:
    shape = (2, channels, size, size)
    return lambda: {
        "target": torch.randn(shape), "return_dict": False, "timestep": torch.tensor([10, 500]),
        **{"hidden_states": torch.randn(shape)}, **others,
    }  # fmt: skip


def unet_inputs() -> Arguments:
    return {
        "sample": torch.randn(2, 4, 16, 16), "timestep": torch.tensor([10, 500]),
        "encoder_hidden_states": torch.randn(2, 8, 32), "return_dict": False,
        "target": torch.randn(2, 4, 16, 16),
    }  # fmt: skip


def flux_inputs() -> Arguments:
    return {
        "hidden_states": torch.randn(2, 64, 16), "encoder_hidden_states": torch.randn(2, 8, 32),
        "pooled_projections": torch.randn(2, 32), "timestep": torch.tensor([0.1, 0.5]),
        "img_ids": torch.zeros(64, 3), "txt_ids": torch.zeros(8, 3), "return_dict": False,
        "target": torch.randn(2, 64, 16),
    }  # fmt: skip


ZOO: dict[str, Build] = {
    "llama": language("LlamaForCausalLM", **GROUPED),
    "qwen2": language("Qwen2ForCausalLM", **GROUPED),
    "qwen3": language("Qwen3ForCausalLM", **GROUPED),
    "qwen3-moe": language(
        "Qwen3MoeForCausalLM", **EXPERTS, num_experts=4, moe_intermediate_size=32
    ),
    "mixtral": language("MixtralForCausalLM", **EXPERTS, num_local_experts=4),
    "mistral": language("MistralForCausalLM", **GROUPED),
    "gemma": language("GemmaForCausalLM", **GROUPED),
    "gemma2": language("Gemma2ForCausalLM", **GROUPED),
    "phi": language("PhiForCausalLM", **SIZES),
    "opt": language(
        "OPTForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=4, ffn_dim=2 * WIDTH, max_position_embeddings=128,
        word_embed_proj_dim=WIDTH,
    ),
    "gpt2": gpt2,
    "gpt-neox": language("GPTNeoXForCausalLM", **SIZES),
    "bert": language("BertForMaskedLM", **SIZES),
    "roberta": language("RobertaForMaskedLM", **SIZES),
    "distilbert": language(
        "DistilBertForMaskedLM", vocab_size=VOCABULARY, dim=WIDTH, n_layers=LAYERS, n_heads=4,
        hidden_dim=2 * WIDTH, max_position_embeddings=128,
    ),
    "electra": language("ElectraForMaskedLM", **SIZES, embedding_size=WIDTH),
    "modernbert": language("ModernBertForMaskedLM", **SIZES, **SPECIAL, cls_token_id=1,
                           sep_token_id=2),
    "deberta": language(
        "DebertaV2ForMaskedLM", **SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"],
        position_buckets=32,
    ),
    "t5": t5,
    "bart": bart,
    "vit": hf_vit,
    "clip": clip,
    "whisper": whisper,
    "wav2vec2": wav2vec2,
    "mamba": mamba,
    "segformer": segformer,
    "timm-convnext": timm_model("convnext_atto", count=16, drop_path_rate=0.1),
    "timm-swin": timm_model(
        "swin_tiny_patch4_window7_224", img_size=56, size=56, count=16, embed_dim=24,
        depths=(1, 1, 2, 1),
    ),
    "timm-efficientnet": timm_model("efficientnet_b0", drop_rate=0.2, drop_path_rate=0.1),
    "timm-maxvit": timm_model("maxvit_rmlp_pico_rw_256", count=8, img_size=64),
    "timm-mobilenetv4": timm_model("mobilenetv4_conv_small", count=24),
    "timm-vit-drop-path": timm_model(
        "vit_tiny_patch16_224", count=32, img_size=64, drop_path_rate=0.2, depth=3
    ),
    "resnet18": vision("resnet18", count=16),
    "resnet50": vision("resnet50", count=16),
    "densenet121": vision("densenet121", count=8),
    "mobilenet-v3": vision("mobilenet_v3_small", count=32),
    "regnet": vision("regnet_y_400mf", count=24),
    "deeplabv3": deeplab,
    "faster-rcnn": detector("fasterrcnn_mobilenet_v3_large_320_fpn"),
    "unet2d-condition": diffusion(
        "UNet2DConditionModel", unet_inputs, sample_size=16, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), layers_per_block=1,
        cross_attention_dim=32, attention_head_dim=8, norm_num_groups=8,
    ),
    "sd3": diffusion(
        "SD3Transformer2DModel",
        noisy(4, 16, encoder_hidden_states=torch.randn(2, 8, 32),
              pooled_projections=torch.randn(2, 32)),
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=4, joint_attention_dim=32, caption_projection_dim=64,
        pooled_projection_dim=32, out_channels=4, pos_embed_max_size=16,
    ),
    "dit": diffusion(
        "DiTTransformer2DModel", noisy(4, 16, class_labels=torch.tensor([1, 2])),
        num_attention_heads=4, attention_head_dim=16, in_channels=4, num_layers=2,
        num_embeds_ada_norm=16, sample_size=16,
    ),
    "flux": diffusion(
        "FluxTransformer2DModel", flux_inputs, patch_size=1, in_channels=16, num_layers=1,
        num_single_layers=1, attention_head_dim=16, num_attention_heads=4, joint_attention_dim=32,
        pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    ),
}  # fmt: skip


def build(make: Build) -> tuple[Loss, Arguments]:
    """The model with its loss, and the arguments of its call: the same at every call."""
    torch.manual_seed(1)
    model, arguments = make()
    return Loss(model).train(), arguments
