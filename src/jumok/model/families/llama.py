"""Llama and the families that follow it: Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jumok.model.config import Config
from jumok.model.families.family import Family, both, special_ids, stack, write_special_ids
from jumok.model.families.rotary import read_rotary, write_rotary
from jumok.model.families.settings import NotSupportedError, Settings
from jumok.model.transformer import Decoder

__all__ = ["LLAMA", "MISTRAL", "NAMES", "QWEN2", "QWEN3", "llama_family"]

NAMES = {
    "embedding.weight": stack("model.embed_tokens.weight"),
    "norm.weight": stack("model.norm.weight"),
    "head.weight": stack("lm_head.weight"),
    "layers.{i}.attention_norm.weight": stack("model.layers.{i}.input_layernorm.weight"),
    **both(
        "layers.{i}.attention.qkv",
        "model.layers.{i}.self_attn.q_proj",
        "model.layers.{i}.self_attn.k_proj",
        "model.layers.{i}.self_attn.v_proj",
    ),
    **both("layers.{i}.attention.output", "model.layers.{i}.self_attn.o_proj"),
    "layers.{i}.attention.q_norm.weight": stack("model.layers.{i}.self_attn.q_norm.weight"),
    "layers.{i}.attention.k_norm.weight": stack("model.layers.{i}.self_attn.k_norm.weight"),
    "layers.{i}.feed_forward_norm.weight": stack(
        "model.layers.{i}.post_attention_layernorm.weight"
    ),
    **both(
        "layers.{i}.feed_forward.up",
        "model.layers.{i}.mlp.gate_proj",
        "model.layers.{i}.mlp.up_proj",
    ),
    **both("layers.{i}.feed_forward.down", "model.layers.{i}.mlp.down_proj"),
}


def read_llama_like(settings: Settings, *, context: int = 2048, **special: Any) -> Config:
    """The settings that all families of this kind share.

    Args:
        settings: of the file.
        context: number of positions, if the file doesn't say.
        special: what the families do not share.
    """
    if "feed_forward" not in special:
        settings.expect("hidden_act", "silu", "swish")
    emb_dim, n_heads = settings.need("hidden_size"), settings.need("num_attention_heads")
    config = {
        "vocab_size": settings.need("vocab_size"),
        "emb_dim": emb_dim,
        "n_layers": settings.need("num_hidden_layers"),
        "n_heads": n_heads,
        "n_kv_heads": settings.count_or_none("num_key_value_heads"),
        "head_dim": settings.count_or_none("head_dim") or emb_dim // n_heads,
        "hidden_dim": settings.need("intermediate_size"),
        "context": settings.take("max_position_embeddings", context),
        "positions": read_rotary(settings, context),
        "norm_eps": settings.take("rms_norm_eps", 1e-6),
        "tied_head": settings.take("tie_word_embeddings", False),
        "attention_dropout": settings.take("attention_dropout", 0.0),
        "init_std": settings.take("initializer_range", 0.02),
        **special_ids(settings),
        **special,
    }
    settings.finish()
    return Config(**config)


def write_llama_like(config: Config) -> dict[str, Any]:
    """The settings that all families of this kind share."""
    return {
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.emb_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.hidden_dim,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.init_std,
        **write_rotary(config),
        **write_special_ids(config),
    }


def _read_llama(settings: Settings) -> Config:
    bias = settings.take("attention_bias", False)
    if settings.need("hidden_size") % settings.need("num_attention_heads"):
        raise ValueError(
            f"{settings.source}: hidden_size = {settings.values['hidden_size']} is not a multiple "
            f"of num_attention_heads = {settings.values['num_attention_heads']}"
        )
    return read_llama_like(
        settings,
        qkv_bias=bias,
        output_bias=bias,
        feed_forward_bias=settings.take("mlp_bias", False),
    )


def _write_llama(config: Config) -> dict[str, Any]:
    return {
        **write_llama_like(config),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.feed_forward_bias,
    }


def _read_mistral(settings: Settings) -> Config:
    window = settings.take_or_none("sliding_window", 4096)
    return read_llama_like(
        settings,
        context=131_072,
        n_kv_heads=settings.take_or_none("num_key_value_heads", 8),
        windows=(window,) * settings.need("num_hidden_layers"),
    )


def _write_mistral(config: Config) -> dict[str, Any]:
    return {**write_llama_like(config), "sliding_window": config.layer_windows[0]}


def _read_layer_windows(settings: Settings) -> tuple[int | None, ...]:
    """Qwen: the first ``max_window_layers`` layers see everything, unless layers are listed."""
    n_layers = settings.need("num_hidden_layers")
    window = settings.take_or_none("sliding_window", 4096)
    first = settings.take("max_window_layers", 28)
    if not settings.take("use_sliding_window", False):
        window = None
    kinds = settings.take("layer_types", None)
    if kinds is None:
        return tuple(window if i >= first else None for i in range(n_layers))
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown:
        raise NotSupportedError(f"{settings.source}: layer_types {unknown} are not supported")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _write_layer_windows(config: Config) -> dict[str, Any]:
    sizes = {window for window in config.layer_windows if window is not None}
    return {
        "use_sliding_window": bool(sizes),
        "sliding_window": min(sizes, default=None),
        "max_window_layers": config.n_layers,
        "layer_types": [
            "full_attention" if window is None else "sliding_attention"
            for window in config.layer_windows
        ],
    }


def _read_qwen2(settings: Settings) -> Config:
    return read_llama_like(
        settings, context=32_768, qkv_bias=True, windows=_read_layer_windows(settings)
    )


def _write_qwen2(config: Config) -> dict[str, Any]:
    return {**write_llama_like(config), **_write_layer_windows(config)}


def _read_qwen3(settings: Settings) -> Config:
    bias = settings.take("attention_bias", False)
    return read_llama_like(
        settings,
        context=32_768,
        head_norm=True,
        qkv_bias=bias,
        output_bias=bias,
        head_dim=settings.count_or_none("head_dim") or 128,
        windows=_read_layer_windows(settings),
    )


def _write_qwen3(config: Config) -> dict[str, Any]:
    return {**_write_qwen2(config), "attention_bias": config.qkv_bias}


def llama_family(
    name: str,
    architecture: str,
    read: Callable[[Settings], Config],
    write: Callable[[Config], dict[str, Any]],
) -> Family:
    """A family with the tensor names of Llama."""
    return Family(
        name,
        architecture,
        Decoder,
        "model.",
        NAMES,
        read,
        write,
        without_weights=("rotary_emb.inv_freq",),
    )


LLAMA = llama_family("llama", "LlamaForCausalLM", _read_llama, _write_llama)
MISTRAL = llama_family("mistral", "MistralForCausalLM", _read_mistral, _write_mistral)
QWEN2 = llama_family("qwen2", "Qwen2ForCausalLM", _read_qwen2, _write_qwen2)
QWEN3 = llama_family("qwen3", "Qwen3ForCausalLM", _read_qwen3, _write_qwen3)
