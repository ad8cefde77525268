"""Tiny configurations of any architecture of transformers.

The default configuration of a model type is shrunk by the names of its settings: a width is
64, a head 16 wide, there are 4 heads (2 key heads where the original groups them), 2 layers, or
as many as it takes to have one layer of each kind. Windows become shorter than the inputs, so
that they hide something. What cannot be read off the names stands in `EXCEPTIONS`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

WIDTH = 64
HEADS = 4
HEAD_DIM = WIDTH // HEADS
KEY_HEADS = 2
LAYERS = 2
VOCABULARY = 160
FIRST_SPECIAL = 128  # special tokens get the last ids of the vocabulary
IMAGE = 64
PATCH = 16
TOKENS = 11  # of a text


def _at_most(limit: int) -> Callable[[Any], Any]:
    """A rule that lowers whole numbers, also those in lists."""
    return lambda old: _each(old, lambda _, value: min(value, limit) if _is_size(value) else value)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Patterns of the whole name, and the value or a function of the old one. The first that fits
# counts.
RULES: list[tuple[str, Any]] = [
    (r"mamba_n_heads|mamba_num_heads", 8),
    (r"mamba_d_head|mamba_head_dim", HEAD_DIM),
    (r"rotary_dim|qk_rope_head_dim", 8),
    (r".*num_(key_value|kv)_heads", _at_most(KEY_HEADS)),
    (
        r"num_hidden_layers|.*_num_hidden_layers|num_layers|n_layers?|depth|encoder_layers"
        r"|decoder_layers|num_(encoder|decoder)_layers|.*_num_layers|num_blocks|layers"
        r"|encoder_depth|decoder_depth|speech_encoder_layers",
        _at_most(LAYERS),
    ),
    (
        r"depths|num_block_repeats|stage_num_blocks",
        lambda old: _each(old, lambda at, value: min(value, 2 if at < 2 else 1)),
    ),
    (
        r"(.*_)?(num_attention_heads|attention_heads|num_heads|n_heads?|heads)"
        r"|num_attention_heads_per_layer|aggregator_heads",
        lambda old: _each(old, lambda _, value: _heads(value)),
    ),
    (r"num_key_value_heads_per_layer", _at_most(HEADS)),
    (r"qk_nope_head_dim|index_head_dim", 16),
    (r"v_head_dim", 12),
    (
        r"(.*_)?head_dim|d_kv|dim_head|attention_head_size|d_head|kv_channels"
        r"|linear_(key|value)_head_dim|head_size",
        HEAD_DIM,
    ),
    (r"linear_num_(key|value)_heads", HEADS),
    (r"(q|kv|o)_lora_rank", 32),
    (
        r"(.*_)?(hidden_sizes?|hidden_dims?|d_model|embed_dims?|embedding_sizes?|embedding_dims?"
        r"|emb_dim|n_embd|projection_dim|fpn_dim|decoder_hidden_dim|model_dim|output_dim|dim"
        r"|out_dim|entity_emb_size|feature_size|hidden_channels|neck_hidden_sizes"
        r"|output_hidden_size|encoder_hidden_size|decoder_hidden_size|attention_hidden_size"
        r"|lru_width|conv_dim|d_embed|mask_feature_size|channels|fpn_hidden_size"
        r"|output_channels|width|dim_model|embed_dim_per_stage|encoder_hidden_dim|emb_size"
        r"|cross_attention_dim|encoder_in_channels|decoder_in_channels"
        r"|cross_attention_hidden_size|codevector_dim)",
        _at_most(WIDTH),
    ),
    (
        r"(.*_)?(intermediate_sizes?|ffn_dim|mlp_dim|ffn_hidden_size|d_ff|n_inner|inner_dim"
        r"|d_inner|feedforward_dim|dim_feedforward|ffn_intermediate_size|feed_forward_dim)",
        _at_most(WIDTH),
    ),
    (r"(num|n)_(local|routed)?_?experts|moe_num_experts|num_experts", _at_most(4)),
    (
        r"num_experts_per_tok(en)?|moe_(topk|k)|top_k_experts|num_selected_experts|moe_top_k",
        _at_most(2),
    ),
    (r"n_group|num_expert_group", _at_most(2)),
    (r"topk_group", 1),
    (r"vocabulary_size|.*vocab_size", _at_most(VOCABULARY)),
    (r"image_size|img_size|input_size|pretrain_image_size|crop_size|eval_size", _at_most(IMAGE)),
    (r"patch_size", lambda old: _each(old, lambda _, value: PATCH if value >= 12 else value)),
    (
        r"sliding_window(_size)?|local_attention|attention_chunk_size|local_attention_window"
        r"|attention_window_size",
        4,
    ),
    (
        r"window_size",
        lambda old: _each(old, lambda _, value: 32 if value > 100 else min(value, 4)),
    ),
    (r"max_source_positions|num_mel_bins|n_mels|mel_bins|num_mel_bands", _at_most(16)),
    (r"spectrogram_bins", _at_most(16)),
    (
        r"max_position_embeddings|n_positions|max_seq_len|max_target_positions|n_ctx"
        r"|context_length|max_sequence_length|seq_length|.*_max_position_embeddings"
        r"|model_max_length|max_seq_length",
        _at_most(128),
    ),
    (r"num_position_embeddings", 64),
    (
        r"num_queries|num_query_tokens|num_latents|resampler_(n|num)_latents|latent_query_num"
        r"|num_detection_tokens|two_stage_num_proposals",
        _at_most(6),
    ),
    (r"attn_logit_softcapping|final_logit_softcapping", lambda old: 2.0 if old else old),
    (r"state_size|mamba_d_state|ssm_state_size", 8),
    (r"chunk_size|mamba_chunk_size|chunk_length", _at_most(8)),
    (r"num_buckets", _at_most(32)),
    (r"index_topk", 4),
    (r"upsample_groups|codebook_size|num_embeddings", _at_most(64)),
    (r"num_frames|num_image_frames", 2),
    (
        r".*(dropout|drop_rate|layerdrop|drop_path|_pdrop).*",
        lambda old: 0.0 if isinstance(old, float) else old,
    ),
    (r"mask_(time|feature)_prob", 0.0),
    (r"num_conv_pos_embeddings?", _at_most(16)),
    (r"num_conv_pos_embedding_groups", 4),
    (r"image_seq_length|image_seq_len|mm_tokens_per_image", 16),
    (r"first_k_dense_replace", 1),
]
_RULES = [(re.compile(pattern), value) for pattern, value in RULES]

_TOKEN = re.compile(r".*(token_id|token_ids|token_index|_index|_token|_id|_ids)$")
_LAYER_COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "depth",
    "encoder_layers",
)

# What the names do not tell: settings by model type, put in after the rules.
_TWO_ROPES = {
    kind: {"rope_type": "default", "rope_theta": theta}
    for kind, theta in (("full_attention", 1e6), ("sliding_attention", 1e4))
}
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8},
    "swin": {"window_size": 2},
    "donut-swin": {"window_size": 2},
    "maskformer-swin": {"window_size": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "autoformer": {"prediction_length": 8, "context_length": 16, "num_time_features": 1},
    "informer": {"prediction_length": 8, "context_length": 16, "num_time_features": 1},
    "time_series_transformer": {
        "prediction_length": 8,
        "context_length": 16,
        "num_time_features": 1,
    },
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 32},
    "apertus1p5": {"image_token_offset": 32, "audio_token_offset": 96},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "cvt": {"depth": [1, 2, 3]},
    "llava_next": {"image_grid_pinpoints": [[64, 64]]},
    "llava_next_video": {"image_grid_pinpoints": [[64, 64]]},
    "llava_onevision": {"image_grid_pinpoints": [[64, 64]]},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    "voxtral": {"audio_token_id": 150},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 6,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2,
    },
    "mimi": {"vector_quantization_hidden_dimension": 64, "codebook_dim": 64},
    "audio-spectrogram-transformer": {"max_length": 32},
    "bamba": {"attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "blip-2": {"image_token_index": 150},
    "instructblip": {"image_token_index": 150},
    "instructblipvideo": {"video_token_index": 150},
    "chameleon": {"vocabulary_map": {"<image>": 150}},
    "clap_audio_model": {
        "spec_size": 128,
        "num_mel_bins": 32,
        "window_size": 4,
        "hidden_size": 512,
    },
    "clvp_encoder": {"num_attention_heads": 2},
    "cohere_compass_text": {"rope_parameters": _TWO_ROPES},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {"num_key_value_heads": 4},
    "efficientnet": {"hidden_dim": 2560},
    "emu3": {"vocabulary_map": {"<|extra_200|>": 151, "<image>": 150}},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [2, 2, 4],
        },
    },
    "falcon_h1": {"mamba_d_ssm": 128},
    "fastspeech2_conformer_hifigan": {"model_in_dim": 16},
    "speecht5_hifigan": {"model_in_dim": 16},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "intermediate_size": [64] * 4,
    },
    "gemma4_text": {"global_head_dim": 32},
    "diffusion_gemma_text": {
        "global_head_dim": 32,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "gemma4_unified_text": {"global_head_dim": 32},
    "embedding_gemma2_text": {"global_head_dim": 32},
    "glm5_next_text": {"index_topk": 16, "qk_rope_head_dim": 0, "head_dim": 0},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hunyuan_vl_text": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [2, 2, 2, 2],
        },
    },
    "align_vision_model": {"width_coefficient": 1.0},
    "hy_v4_vl_text": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [2, 1, 1],
        },
    },
    "inkling_vision": {"patch_size": 8, "temporal_patch_size": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 96},
    "lw_detr_vit": {"num_windows": 4, "window_block_indices": [0]},
    "llama4_vision_model": {"intermediate_size": 256},
    "superglue": {"gnn_layers_types": ["self", "cross"] * 2},
    "superpoint": {"keypoint_decoder_dim": 65},
    "qwen3_asr_encoder": {"n_window": 8},
    "seggpt": {"image_size": [128, 64]},
    "shieldgemma2": {"yes_token_index": 20, "no_token_index": 21},
    "tvp": {"max_img_size": 64},
    "zoedepth": {"bottleneck_features": 64},
    "depth_pro": {"patch_size": 64},
    "dots3_note_audio_encoder": {"adapter_input_size": 64},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "detr": {"backbone_config": lambda: _resnet(1), "use_timm_backbone": False, "backbone": None},
    "conditional_detr": {"backbone_config": lambda: _resnet(1), "use_timm_backbone": False},
    "dab-detr": {"backbone_config": lambda: _resnet(1), "use_timm_backbone": False},
    "table-transformer": {"backbone_config": lambda: _resnet(1), "use_timm_backbone": False},
    "deformable_detr": {"backbone_config": lambda: _resnet(3), "use_timm_backbone": False},
    "mistral4": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 8,
            "max_position_embeddings": 128,
        },
        "head_dim": 8,
    },
    "moshi_depth": {"num_codebooks": TOKENS, "max_position_embeddings": TOKENS + 1},
    "nemotron3_diarization": {"chunk_length": 340},
    "nemo_speechlm": {"chunk_length": 340},
    "perceiver": {"d_latents": 64, "num_self_attends_per_block": 2, "vocab_size": 100},
    "pix2struct_vision_model": {"patch_embed_hidden_size": 768},
    "kosmos_2_5_vision_model": {"patch_embed_hidden_size": 768},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "sam2_hiera_det_model": {
        "image_size": [64, 64],
        "blocks_per_stage": [1, 1, 2, 1],
        "window_size_per_stage": [8, 4, 4, 4],
        "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [1, 1, 2, 4],
        "hidden_size": 16,
        "global_attention_blocks": [3],
    },
    "sam_vision_model": {"num_pos_feats": 32},
    "sam_hq_vision_model": {"num_pos_feats": 32},
    "sapiens2": {"num_key_value_attention_heads": 2},
    "speech_to_text": {"input_feat_per_channel": 16, "conv_channels": 64},
    "step3p5": {"sliding_window": 4},
    "unlimited_ocr_text": {"num_key_value_heads": 4},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "xlstm": {"chunk_size": 8},
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [4, 8]},
}


def tiny_config(config_class: type, **settings: Any) -> Any:
    """A small configuration of this class, of the same kind in everything but size."""
    return _Shrinking().shrink(config_class(), settings)


def _resnet(outputs: int) -> Any:
    """The backbone in the place of one from timm."""
    from transformers import ResNetConfig

    names = [f"stage{4 - at}" for at in reversed(range(outputs))]
    return tiny_config(ResNetConfig, out_features=names, embedding_size=16)


def is_config(value: Any) -> bool:
    """Whether a setting is a configuration itself."""
    return hasattr(value, "model_type") and hasattr(value, "to_diff_dict")


def _settings(config_class: Any) -> dict[str, Any]:
    """What a configuration can be told, and its defaults; dataclasses since transformers 5."""
    if dataclasses.is_dataclass(config_class):
        return {field.name: field.default for field in dataclasses.fields(config_class)}
    parameters = inspect.signature(config_class.__init__).parameters.values()
    return {
        item.name: item.default for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD
    }


class _Shrinking:
    """One tree of configurations: a special token keeps one id all over it."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def shrink(self, config: Any, settings: dict[str, Any] | None = None) -> Any:
        cls = type(config)
        fields = _settings(cls)
        kept, layers = _one_layer_of_each_kind(config)
        chosen: dict[str, Any] = {}
        for name, old in vars(config).items():
            if name not in fields:
                continue
            default = fields[name]
            if is_config(old):
                part = self.shrink(old)
                chosen[name] = part if dataclasses.is_dataclass(cls) else part.to_dict()
            elif isinstance(old, dict) and name == "rope_parameters":
                chosen[name] = _rope(old)
            elif isinstance(old, (list, tuple)) and kept and len(old) == layers:
                picked = [old[at] for at in kept]
                chosen[name] = [self._value(name, value) for value in picked]
            elif name in _LAYER_COUNTS and kept:
                chosen[name] = len(kept)
            elif (
                name.endswith("num_key_value_heads")
                and old is not None
                and old == vars(config).get(name.replace("key_value", "attention"))
            ):
                chosen[name] = self._value(name.replace("key_value", "attention"), old)
            elif name in _NEEDED and old is None:
                chosen[name] = _NEEDED[name]
            elif default is None and not isinstance(old, (list, tuple)) and old is not None:
                if _TOKEN.fullmatch(name):
                    chosen[name] = self._value(name, old)
            else:
                chosen[name] = self._value(name, old)
        changed = {name: value for name, value in chosen.items() if value is not None}
        changed.update(_outputs(config, changed))
        if config.model_type in _MROPE:
            changed["rope_parameters"] = {
                "rope_type": "default", "rope_theta": 10000.0, **changed.get("rope_parameters", {}),
                "mrope_section": _thirds(changed.get("rope_parameters", {})),
            }  # fmt: skip
        if "qk_rope_head_dim" in changed and "head_dim" in fields:
            rope, whole = changed["qk_rope_head_dim"], config.head_dim
            nope = changed.get("qk_nope_head_dim", 0)
            changed["head_dim"] = rope if whole == config.qk_rope_head_dim else rope + nope
        if "qk_rope_head_dim" in changed and "qk_head_dim" in fields:
            changed["qk_head_dim"] = changed["qk_rope_head_dim"] + changed["qk_nope_head_dim"]
        for name, value in EXCEPTIONS.get(config.model_type, {}).items():
            changed[name] = value() if callable(value) else value
        new = cls(**{**changed, **(settings or {})})
        for name, value in ATTRIBUTES.get(config.model_type or cls.__name__, {}).items():
            setattr(new, name, value)
        for name, value in vars(config).items():  # what is no setting of its own, but is read
            if name not in vars(new) and not name.startswith("_"):
                setattr(new, name, self._value(name, value))
        return new

    def _value(self, name: str, old: Any) -> Any:
        if old is None or isinstance(old, (bool, str)):
            return old
        if _TOKEN.fullmatch(name) and not isinstance(old, float):
            return _each(old, lambda at, value: self._token(value))
        for pattern, new in _RULES:
            if pattern.fullmatch(name):
                return new(old) if callable(new) else new
        return copy.deepcopy(old)

    def _token(self, old: Any) -> Any:
        if not isinstance(old, int) or old < FIRST_SPECIAL // 2:
            return old
        if old not in self._tokens:
            self._tokens[old] = FIRST_SPECIAL + len(self._tokens)
        return self._tokens[old]


def _outputs(config: Any, changed: dict[str, Any]) -> dict[str, Any]:
    """The stages that a backbone hands on, as many as before; with the layers for it."""
    names = vars(config).get("_out_features")
    if not names or not changed:
        return {}
    layers = changed.get("num_hidden_layers", 0)
    if len(vars(config).get("stage_names", ())) != vars(config).get("num_hidden_layers", 0) + 1:
        return {"out_features": list(names)}
    layers = max(layers, len(names))
    wanted = [f"stage{layers - len(names) + 1 + at}" for at in range(len(names))]
    return {"num_hidden_layers": layers, "out_features": wanted}


# What a larger model's configuration tells its parts, and a part alone lacks.
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "moonshine_streaming": {"num_key_value_heads": HEADS},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 32},
    "qwen4_exp_text": {"indexer_budget": 8, "indexer_compress_ratio": 2},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "DbrxAttentionConfig": {"rope_theta": 10000.0},
}

# Their code takes sections of the checkpoints' size where the configuration names none.
_MROPE = {
    "glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text", "qwen2_5_omni_text",
    "qwen2_5_omni_talker", "qwen2_5_vl_text", "qwen2_vl_text", "paddleocr_vl_text", "glm46v_text",
    "ernie4_5_vl_moe_text",
}  # fmt: skip

# Settings that some configurations leave empty for their checkpoints to fill.
_NEEDED = {"head_dim": HEAD_DIM, "num_key_value_heads": KEY_HEADS}


def _each(old: Any, new: Any) -> Any:
    """Apply `new(position, value)` to a number, or to every number of nested lists."""
    if isinstance(old, (list, tuple)):
        return [
            _each(value, new) if isinstance(value, (list, tuple)) else new(at, value)
            for at, value in enumerate(old)
        ]
    return new(0, old)


def _heads(old: int) -> int:
    return next((count for count in (4, 2) if old >= count), old)


def _one_layer_of_each_kind(config: Any) -> tuple[list[int], int]:
    """Which layers to keep of a model that lists its layers, and how many it lists."""
    for name in _LAYER_COUNTS:
        layers = getattr(config, name, None)
        if not isinstance(layers, int) or layers < 2:
            continue
        lists = [
            [str(item) for item in value]
            for key, value in vars(config).items()
            if isinstance(value, (list, tuple)) and len(value) == layers
        ]
        if not lists:
            continue
        kinds = list(zip(*lists, strict=True))
        kept = sorted({kind: at for at, kind in reversed(list(enumerate(kinds)))}.values())
        kept = kept[:5]
        return (kept if len(kept) > 1 else [0, 1]), layers
    return [], 0


def _thirds(rope: dict[str, Any]) -> list[int]:
    """How many of a head's frequencies tell time, height and width."""
    rotary = int(HEAD_DIM * rope.get("partial_rotary_factor", 1.0)) // 2
    third = rotary // 3
    return [rotary - 2 * third, third, third]


def _rope(old: dict[str, Any]) -> dict[str, Any]:
    new = copy.deepcopy(old)
    for part in (new, *(value for value in new.values() if isinstance(value, dict))):
        if "mrope_section" in part:
            part["mrope_section"] = _thirds(part)
        for factor in ("long_factor", "short_factor"):
            if factor in part:
                rotary = int(HEAD_DIM * part.get("partial_rotary_factor", 1.0)) // 2
                part[factor] = part[factor][:rotary]
    return new
