"""GPT-2."""

from __future__ import annotations

from typing import Any

from jumok.model.config import Config, Learned
from jumok.model.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    Family,
    both,
    special_ids,
    stack,
    write_special_ids,
)
from jumok.model.families.settings import Settings
from jumok.model.transformer import Decoder

__all__ = ["GPT2"]

_NAMES = {
    "embedding.weight": stack("transformer.wte.weight"),
    "positions.weight": stack("transformer.wpe.weight"),
    "head.weight": stack("lm_head.weight"),
    **both("norm", "transformer.ln_f"),
    **both("layers.{i}.attention_norm", "transformer.h.{i}.ln_1"),
    **both("layers.{i}.attention.qkv", "transformer.h.{i}.attn.c_attn", flipped=True),
    **both("layers.{i}.attention.output", "transformer.h.{i}.attn.c_proj", flipped=True),
    **both("layers.{i}.feed_forward_norm", "transformer.h.{i}.ln_2"),
    **both("layers.{i}.feed_forward.up", "transformer.h.{i}.mlp.c_fc", flipped=True),
    **both("layers.{i}.feed_forward.down", "transformer.h.{i}.mlp.c_proj", flipped=True),
}


def _read_gpt2(settings: Settings) -> Config:
    settings.expect("scale_attn_weights", True)
    settings.expect("add_cross_attention", False)
    emb_dim = settings.need("n_embd")
    dropout = settings.take("resid_pdrop", 0.1)
    settings.take("embd_pdrop", dropout)  # we have one dropout, which matters in training only
    config = {
        "vocab_size": settings.need("vocab_size"),
        "emb_dim": emb_dim,
        "n_layers": settings.need("n_layer"),
        "n_heads": settings.need("n_head"),
        "hidden_dim": settings.count_or_none("n_inner") or 4 * emb_dim,
        "context": settings.take("n_positions", 1024),
        "positions": Learned(),
        "norm": "layer",
        "norm_eps": settings.take("layer_norm_epsilon", 1e-5),
        "feed_forward": settings.choose("activation_function", "gelu_new", ACTIVATIONS),
        "qkv_bias": True,
        "output_bias": True,
        "feed_forward_bias": True,
        "tied_head": settings.take("tie_word_embeddings", True),
        "inverse_layer_scale": settings.take("scale_attn_by_inverse_layer_idx", False),
        "dropout": dropout,
        "attention_dropout": settings.take("attn_pdrop", 0.1),
        "init_std": settings.take("initializer_range", 0.02),
        **special_ids(settings),
    }
    settings.finish()
    return Config(**config)


def _write_gpt2(config: Config) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.emb_dim,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.hidden_dim,
        "n_positions": config.context,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": ACTIVATION_NAMES.get(config.feed_forward, config.feed_forward),
        "tie_word_embeddings": config.tied_head,
        "scale_attn_by_inverse_layer_idx": config.inverse_layer_scale,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "initializer_range": config.init_std,
        **write_special_ids(config),
    }


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    Decoder,
    "transformer.",
    _NAMES,
    _read_gpt2,
    _write_gpt2,
    without_weights=(".attn.bias", ".attn.masked_bias"),
)
