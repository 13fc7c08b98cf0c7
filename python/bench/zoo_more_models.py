"""More models for `cargo xtask bench zoo`, made like those of `zoo_models`: models that nothing in
Rekindle was developed with. Each is trained by one plan.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from zoo_models import (
    CLASSES,
    EXPERTS,
    GROUPED,
    SIZES,
    SPECIAL,
    VOCABULARY,
    WIDTH,
    Arguments,
    Build,
    Built,
    classes,
    detector,
    diffusion,
    hugging_face,
    language,
    noisy,
    pixels,
    text,
    timm_model,
    vision,
)

from rekindle.torch.interfaces import pytree

TOWER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH,
}
PICTURE: dict[str, Any] = {**TOWER, "image_size": 32, "patch_size": 8}
BY_HEADS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 4,
}  # fmt: skip
BOTH_SIDES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH, "decoder_start_token_id": 2, **SPECIAL,
}  # fmt: skip
AUTOENCODER: dict[str, Any] = {
    "block_out_channels": (16, 32), "layers_per_block": 1, "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 8,
}  # fmt: skip

Inputs = Callable[[], Arguments]


def without(sizes: dict[str, Any], name: str) -> dict[str, Any]:
    """The sizes without one, which the model has by another name or not at all."""
    return {other: size for other, size in sizes.items() if other != name}


def with_inputs(kind: str, inputs: Inputs, **sizes: Any) -> Build:
    """A Hugging Face model, and what it is called with."""
    return lambda: (hugging_face(kind, **sizes), inputs())


def pictures(kind: str, count: int = 4, size: int = 32, **sizes: Any) -> Build:
    """A Hugging Face model that tells pictures apart."""

    def build() -> Built:
        model = hugging_face(kind, **sizes, num_labels=CLASSES)
        return model, {"pixel_values": pixels(count, size), "labels": classes(count)}

    return build


class Squares(nn.Module):
    """A model whose loss is the mean squares of all that it gives."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves(self.model(*args, **kwargs))
        numbers = [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]
        return sum(value.float().square().mean() for value in numbers)


def squared(where: str, kind: str, inputs: Inputs, **options: Any) -> Build:
    """A model of a library, with a loss of all that it gives."""

    def build() -> Built:
        return Squares(getattr(importlib.import_module(where), kind)(**options)), inputs()

    return build


def seen(*shape: int) -> Inputs:
    """A batch of pictures or films."""
    return lambda: {"x": torch.randn(*shape)}


def sample() -> Arguments:
    return {
        "sample": torch.randn(2, 3, 32, 32), "return_dict": False,
        "target": torch.randn(2, 3, 32, 32),
    }  # fmt: skip


def boxes() -> torch.Tensor:
    """Corners of the boxes of words on a page."""
    return torch.randint(0, 100, (8, 64, 4)).sort(-1).values


MORE: dict[str, Build] = {
    "bigbird": language(
        "BigBirdForMaskedLM", **SIZES, attention_type="block_sparse", block_size=8,
        num_random_blocks=1,
    ),
    "jamba": language(
        "JambaForCausalLM", **SIZES, num_key_value_heads=2, num_experts=2, num_experts_per_tok=1,
        attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
        mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False,
    ),
    "longformer": language(
        "LongformerForMaskedLM", **{**SIZES, "max_position_embeddings": 130},
        attention_window=16, **SPECIAL,
    ),
    "falcon": language("FalconForCausalLM", **without(SIZES, "intermediate_size")),
    "phi3": language("Phi3ForCausalLM", **SIZES, **SPECIAL),
    "olmo": language("OlmoForCausalLM", **SIZES),
    "olmo2": language("Olmo2ForCausalLM", **SIZES),
    "olmoe": language("OlmoeForCausalLM", **SIZES, num_experts=4, num_experts_per_tok=2),
    "stablelm": language("StableLmForCausalLM", **SIZES, num_key_value_heads=4),
    "bloom": language("BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=2,
                      n_head=4),
    "xlnet": language("XLNetLMHeadModel", vocab_size=VOCABULARY, d_model=WIDTH, n_layer=2,
                      n_head=4, d_inner=2 * WIDTH),
    "albert": language("AlbertForMaskedLM", **SIZES, embedding_size=32),
    "mpt": language("MptForCausalLM", vocab_size=VOCABULARY, d_model=WIDTH, n_layers=2, n_heads=4,
                    max_seq_len=128),
    "gpt-bigcode": language("GPTBigCodeForCausalLM", **BY_HEADS, n_positions=128),
    "gptj": language("GPTJForCausalLM", **BY_HEADS, n_positions=128, rotary_dim=8),
    "gpt-neo": language(
        "GPTNeoForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=2, num_heads=4,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=128, window_size=16,
    ),
    "codegen": language("CodeGenForCausalLM", **BY_HEADS, n_positions=128, rotary_dim=8),
    "dbrx": language(
        "DbrxForCausalLM", vocab_size=VOCABULARY, d_model=WIDTH, n_layers=2, n_heads=4,
        max_seq_len=128, ffn_config={"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
    ),
    "gemma3": language("Gemma3ForCausalLM", **GROUPED, sliding_window=16),
    "granite": language("GraniteForCausalLM", **SIZES, num_key_value_heads=2),
    "granite-moe": language(
        "GraniteMoeForCausalLM", **SIZES, num_key_value_heads=2, num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "cohere": language("CohereForCausalLM", **SIZES, num_key_value_heads=2, **SPECIAL),
    "starcoder2": language("Starcoder2ForCausalLM", **SIZES, num_key_value_heads=2),
    "glm": language("GlmForCausalLM", **GROUPED, **SPECIAL),
    "deepseek-v3": language(
        "DeepseekV3ForCausalLM", **SIZES, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, moe_intermediate_size=32, kv_lora_rank=16, q_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, first_k_dense_replace=1,
        n_shared_experts=1,
    ),
    "mamba2": language(
        "Mamba2ForCausalLM", vocab_size=VOCABULARY, hidden_size=32, state_size=8,
        num_hidden_layers=2, num_heads=8, head_dim=8, n_groups=1, chunk_size=16, expand=2,
    ),
    "rwkv": language("RwkvForCausalLM", vocab_size=VOCABULARY, hidden_size=32,
                     num_hidden_layers=2, attention_hidden_size=32, context_length=128),
    "qwen3-next": language(
        "Qwen3NextForCausalLM", **EXPERTS, num_experts=4, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=16, linear_value_head_dim=16,
        layer_types=["linear_attention", "full_attention"],
    ),
    "mpnet": language("MPNetForMaskedLM", **SIZES, **SPECIAL),
    "funnel": language(
        "FunnelForMaskedLM", vocab_size=VOCABULARY, block_sizes=[1, 1], d_model=WIDTH, n_head=4,
        d_head=16, d_inner=2 * WIDTH, num_decoder_layers=1,
    ),
    "convbert": language("ConvBertForMaskedLM", **SIZES, embedding_size=WIDTH),
    "fnet": language("FNetForMaskedLM", **without(SIZES, "num_attention_heads")),
    "nystromformer": language("NystromformerForMaskedLM", **SIZES, num_landmarks=8,
                              segment_means_seq_len=64),
    "squeezebert": language("SqueezeBertForMaskedLM", **SIZES, embedding_size=WIDTH),
    "pegasus": language("PegasusForConditionalGeneration", **BOTH_SIDES,
                        max_position_embeddings=128),
    "m2m100": language("M2M100ForConditionalGeneration", **BOTH_SIDES, max_position_embeddings=128),
    "led": language("LEDForConditionalGeneration", **BOTH_SIDES, attention_window=16,
                    max_encoder_position_embeddings=130, max_decoder_position_embeddings=130),
    "prophetnet": language(
        "ProphetNetForConditionalGeneration", vocab_size=VOCABULARY, hidden_size=WIDTH,
        encoder_ffn_dim=2 * WIDTH, decoder_ffn_dim=2 * WIDTH, num_encoder_layers=2,
        num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4,
        max_position_embeddings=128, decoder_start_token_id=2, **SPECIAL,
    ),
    "layoutlm": with_inputs(
        "LayoutLMForMaskedLM",
        lambda: {"input_ids": text(), "labels": text(), "bbox": boxes()},
        **SIZES, max_2d_position_embeddings=128,
    ),
    "swinv2": pictures("Swinv2ForImageClassification", size=64, image_size=64, embed_dim=32,
                       depths=[1, 1], num_heads=[2, 4], window_size=4),
    "beit": pictures("BeitForImageClassification", **PICTURE),
    "deit": pictures("DeiTForImageClassification", **PICTURE),
    "dinov2": pictures("Dinov2ForImageClassification", **{**PICTURE}),
    "convnextv2": pictures("ConvNextV2ForImageClassification", size=64, hidden_sizes=[16, 32, 48,
                           64], depths=[1, 1, 1, 1]),
    "levit": pictures("LevitForImageClassification", size=64, image_size=64, hidden_sizes=[32, 48,
                      64], num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8]),
    "mobilevit": pictures(
        "MobileViTForImageClassification", size=64, image_size=64, hidden_sizes=[32, 48, 64],
        neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64], num_attention_heads=4,
    ),
    "poolformer": pictures("PoolFormerForImageClassification", size=64, depths=[1, 1, 1, 1],
                           hidden_sizes=[16, 32, 48, 64]),
    "pvt": pictures("PvtV2ForImageClassification", size=64, image_size=64,
                    hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1],
                    num_attention_heads=[1, 2, 3, 4]),
    "focalnet": pictures("FocalNetForImageClassification", size=64, image_size=64,
                                embed_dim=16, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 128]),
    "vit-mae": with_inputs(
        "ViTMAEForPreTraining", lambda: {"pixel_values": torch.randn(4, 3, 32, 32)}, **PICTURE,
        decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_num_attention_heads=4,
        decoder_intermediate_size=64,
    ),
    "videomae": with_inputs(
        "VideoMAEForVideoClassification",
        lambda: {"pixel_values": torch.randn(2, 4, 3, 32, 32), "labels": torch.tensor([0, 1])},
        **PICTURE, num_frames=4,
    ),
    "dpt": with_inputs(
        "DPTForSemanticSegmentation",
        lambda: {"pixel_values": pixels(2, 32), "labels": torch.randint(10, (2, 32, 32))},
        **{**PICTURE, "num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 16, 16, 16], fusion_hidden_size=16, num_labels=10, is_hybrid=False,
    ),
    "blip": with_inputs(
        "BlipForConditionalGeneration",
        lambda: {"pixel_values": torch.randn(4, 3, 32, 32),
         "input_ids": torch.randint(3, VOCABULARY, (4, 16)),
         "labels": torch.randint(3, VOCABULARY, (4, 16))},
        text_config={**TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
                     "encoder_hidden_size": WIDTH, "bos_token_id": 1, "sep_token_id": 2,
                     "pad_token_id": 0},
        vision_config=PICTURE,
    ),
    "siglip": with_inputs(
        "SiglipModel",
        lambda: {"pixel_values": torch.randn(8, 3, 32, 32),
         "input_ids": torch.randint(3, VOCABULARY, (8, 16)), "return_loss": True},
        text_config={**TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 16},
        vision_config=PICTURE,
    ),
    "llava": with_inputs(
        "LlavaForConditionalGeneration",
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32),
         "input_ids": torch.tensor([[1] + [511] * 16 + [5] * 15] * 2),
         "labels": torch.randint(3, VOCABULARY, (2, 32))},
        text_config={"model_type": "llama", **GROUPED}, image_token_id=511,
        vision_config={"model_type": "clip_vision_model", **PICTURE, "projection_dim": 32},
    ),
    "hubert": with_inputs(
        "HubertForCTC",
        lambda: {"input_values": torch.randn(2, 4000), "labels": torch.randint(1, 32, (2, 8))},
        vocab_size=32, **TOWER, conv_dim=[16, 16, 16], conv_stride=[5, 4, 4],
        conv_kernel=[10, 4, 4], num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0, layerdrop=0.0, ctc_loss_reduction="mean", pad_token_id=0,
    ),
    "speecht5": with_inputs(
        "SpeechT5ForTextToSpeech",
        lambda: {"input_ids": torch.randint(3, 81, (2, 16)), "labels": torch.randn(2, 20, 16),
         "speaker_embeddings": torch.randn(2, 32)},
        vocab_size=81, hidden_size=WIDTH, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=16, speaker_embedding_dim=32,
        speech_decoder_prenet_units=32, speech_decoder_postnet_units=32,
        encoder_layerdrop=0.0, decoder_layerdrop=0.0, use_guided_attention_loss=False,
    ),
    "ast": with_inputs(
        "ASTForAudioClassification",
        lambda: {"input_values": torch.randn(4, 64, 16), "labels": torch.tensor([0, 1, 0, 1])},
        **TOWER, patch_size=8, max_length=64, num_mel_bins=16, frequency_stride=8, time_stride=8,
    ),
    "patchtst": with_inputs(
        "PatchTSTForPrediction",
        lambda: {"past_values": torch.randn(4, 32, 3), "future_values": torch.randn(4, 8, 3)},
        num_input_channels=3, context_length=32, prediction_length=8, patch_length=8,
        patch_stride=8, d_model=32, num_attention_heads=4, num_hidden_layers=2, ffn_dim=64,
    ),
    "timm-nfnet": timm_model("nfnet_l0", count=2),
    "timm-resnest": timm_model("resnest14d"),
    "timm-coatnet": timm_model("coatnet_pico_rw_224", img_size=64),
    "timm-eva": timm_model("eva02_tiny_patch14_224", size=56, img_size=56, depth=2),
    "timm-xcit": timm_model("xcit_nano_12_p16_224", depth=2),
    "timm-visformer": timm_model("visformer_tiny", img_size=64),
    "timm-ghostnet": timm_model("ghostnet_050"),
    "timm-repvgg": timm_model("repvgg_a0"),
    "timm-hrnet": timm_model("hrnet_w18_small"),
    "timm-edgenext": timm_model("edgenext_xx_small"),
    "timm-fastvit": timm_model("fastvit_t8"),
    "timm-mixer": timm_model("mixer_s32_224", size=64, img_size=64),
    "timm-dpn": timm_model("dpn48b", count=2),
    "timm-halonet": timm_model("halonet26t", size=256, count=1),
    "timm-lambda": timm_model("lambda_resnet26t", size=64),
    "timm-volo": timm_model("volo_d1_224", size=64, img_size=64, layers=(1, 1, 1, 1),
                            embed_dims=(24, 48, 48, 48), num_heads=(2, 4, 4, 4)),
    "timm-rexnet": timm_model("rexnet_100", size=64),
    "timm-inception-next": timm_model("inception_next_tiny", size=64, depths=(1, 1, 1, 1),
                                 dims=(16, 32, 48, 64)),
    "timm-twins": timm_model("twins_svt_small", size=64, img_size=64),
    "timm-hiera": timm_model("hiera_tiny_224", size=64, img_size=(64, 64), stages=(1, 1, 1, 1)),
    "squeezenet": vision("squeezenet1_1"),
    "shufflenet": vision("shufflenet_v2_x0_5"),
    "mnasnet": vision("mnasnet0_5"),
    "efficientnet-v2": vision("efficientnet_v2_s", count=2),
    "mobilenet-v2": vision("mobilenet_v2"),
    "swin-v2": vision("swin_v2_t", count=2),
    "inception": squared(
        "torchvision.models", "inception_v3", seen(2, 3, 96, 96), num_classes=CLASSES,
        init_weights=False,
    ),
    "googlenet": squared(
        "torchvision.models", "googlenet", seen(2, 3, 64, 64), num_classes=CLASSES,
        init_weights=False,
    ),
    "r3d": squared("torchvision.models.video", "r3d_18", seen(1, 3, 4, 32, 32),
                   num_classes=CLASSES),
    "raft": squared(
        "torchvision.models.optical_flow", "raft_small",
        lambda: {"image1": torch.randn(1, 3, 128, 128), "image2": torch.randn(1, 3, 128, 128),
                 "num_flow_updates": 2},
    ),
    "lraspp": squared(
        "torchvision.models.segmentation", "lraspp_mobilenet_v3_large",
        lambda: {"input": torch.randn(2, 3, 64, 64)}, weights_backbone=None, num_classes=CLASSES,
    ),
    "retinanet": detector("retinanet_resnet50_fpn"),
    "fcos": detector("fcos_resnet50_fpn"),
    "unet2d": diffusion(
        "UNet2DModel", lambda: {**sample(), "timestep": torch.tensor([10, 500])}, sample_size=32,
        block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    "autoencoder-kl": diffusion("AutoencoderKL", sample, **AUTOENCODER),
    "vq-model": diffusion("VQModel", sample, **AUTOENCODER, num_vq_embeddings=32),
    "pixart": diffusion(
        "PixArtTransformer2DModel", noisy(4, 16, encoder_hidden_states=torch.randn(2, 8, 32)),
        num_attention_heads=4, attention_head_dim=16, in_channels=4, out_channels=4,
        num_layers=2, sample_size=16, patch_size=2, cross_attention_dim=64, caption_channels=32,
        use_additional_conditions=False,
    ),
    "sana": diffusion(
        "SanaTransformer2DModel", noisy(4, 16, encoder_hidden_states=torch.randn(2, 8, 32)),
        in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=16,
        num_layers=2, num_cross_attention_heads=4, cross_attention_head_dim=16,
        cross_attention_dim=64, caption_channels=32, sample_size=16, patch_size=1,
    ),
    "cogvideox": diffusion(
        "CogVideoXTransformer3DModel",
        lambda: {"hidden_states": torch.randn(1, 2, 4, 16, 16), "timestep": torch.tensor([10]),
                 "encoder_hidden_states": torch.randn(1, 8, 32), "return_dict": False,
                 "target": torch.randn(1, 2, 4, 16, 16)},
        num_attention_heads=4, attention_head_dim=16, in_channels=4, out_channels=4,
        time_embed_dim=8, text_embed_dim=32, num_layers=2, sample_width=16, sample_height=16,
        sample_frames=5, patch_size=2, max_text_seq_length=8,
    ),
    "controlnet": squared(
        "diffusers", "ControlNetModel",
        lambda: {"sample": torch.randn(2, 4, 16, 16), "timestep": torch.tensor([10, 500]),
                 "encoder_hidden_states": torch.randn(2, 8, 32), "return_dict": False,
                 "controlnet_cond": torch.randn(2, 3, 32, 32)},
        block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), norm_num_groups=8,
        attention_head_dim=8, conditioning_embedding_out_channels=(8, 16),
    ),
}  # fmt: skip
