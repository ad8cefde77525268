"""Marian: the Transformer of 2017, as OPUS-MT's translation models have it."""

from __future__ import annotations

import math
from typing import Any

from jumok.model.config import Config, EncoderDecoderConfig, Sinusoidal
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    Family,
    Piece,
    both,
    special_ids,
    stack,
    write_special_ids,
)
from jumok.model.families.settings import NotSupportedError, Settings

__all__ = ["MARIAN"]


def _side(name: str) -> dict[str, Piece]:
    ours, theirs = f"{name}.layers.{{i}}", f"model.{name}.layers.{{i}}"
    return {
        **both(
            f"{ours}.attention.qkv",
            f"{theirs}.self_attn.q_proj",
            f"{theirs}.self_attn.k_proj",
            f"{theirs}.self_attn.v_proj",
        ),
        **both(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj"),
        **both(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm"),
        **both(f"{ours}.feed_forward.up", f"{theirs}.fc1"),
        **both(f"{ours}.feed_forward.down", f"{theirs}.fc2"),
        **both(f"{ours}.feed_forward_norm", f"{theirs}.final_layer_norm"),
    }


_CROSS, _THEIR_CROSS = "decoder.layers.{i}.cross_attention", "model.decoder.layers.{i}.encoder_attn"
_NAMES = {
    **_side("encoder"),
    **_side("decoder"),
    **both(f"{_CROSS}.q", f"{_THEIR_CROSS}.q_proj"),
    **both(f"{_CROSS}.kv", f"{_THEIR_CROSS}.k_proj", f"{_THEIR_CROSS}.v_proj"),
    **both(f"{_CROSS}.output", f"{_THEIR_CROSS}.out_proj"),
    **both("decoder.layers.{i}.cross_attention_norm", f"{_THEIR_CROSS}_layer_norm"),
    "head.weight": stack("lm_head.weight"),
    "head_bias": Piece(("final_logits_bias",), as_row=True),
}


def _tables(config: EncoderDecoderConfig) -> dict[str, Piece]:
    """One table for both languages, or one for each."""
    if config.shared_embedding:
        return {"encoder.embedding.weight": stack("model.shared.weight")}
    return {
        "encoder.embedding.weight": stack("model.encoder.embed_tokens.weight"),
        "target_embedding.weight": stack("model.decoder.embed_tokens.weight"),
    }


def _read_marian(settings: Settings) -> EncoderDecoderConfig:
    one_table = settings.take("share_encoder_decoder_embeddings", True)
    settings.expect("normalize_before", False)
    settings.expect("add_final_layer_norm", False)
    settings.expect("normalize_embedding", False)
    settings.expect("static_position_embeddings", True)
    settings.expect("add_bias_logits", False)
    for key in ("extra_pos_embeddings", "classif_dropout", "_num_labels"):
        settings.take(key, None)  # left over from a larger family
    emb_dim, vocab_size = settings.need("d_model"), settings.need("vocab_size")
    target_size = settings.count_or_none("decoder_vocab_size") or vocab_size
    if one_table and target_size != vocab_size:
        raise NotSupportedError(
            f"{settings.source}: vocab_size = {vocab_size} and decoder_vocab_size = {target_size}, "
            "though share_encoder_decoder_embeddings says that there is one table for both"
        )
    settings.take("num_hidden_layers", None)
    for name in ("encoder", "decoder"):  # whole layers are dropped in training only
        settings.take(f"{name}_layerdrop", 0.0)
    settings.take("is_decoder", False)
    ids = special_ids(settings, 58100)
    ids["bos_id"] = settings.take_or_none("decoder_start_token_id", 58100)
    shared = {
        "emb_dim": emb_dim,
        "context": settings.take("max_position_embeddings", 1024),
        "positions": Sinusoidal("halves"),
        "norm": "layer",
        "norm_place": "post",
        "embedding_norm": False,
        "embedding_scale": math.sqrt(emb_dim) if settings.take("scale_embedding", False) else 1.0,
        "feed_forward": settings.choose("activation_function", "gelu", ACTIVATIONS),
        "qkv_bias": True,
        "output_bias": True,
        "feed_forward_bias": True,
        "tied_head": settings.take("tie_word_embeddings", True),
        "dropout": settings.take("dropout", 0.1),
        "attention_dropout": settings.take("attention_dropout", 0.0),
        "feed_forward_dropout": settings.take("activation_dropout", 0.0),
        "init_std": settings.take("init_std", 0.02),
        **ids,
    }

    def side_of(name: str, vocab_size: int) -> Config:
        return Config(
            vocab_size=vocab_size,
            n_layers=settings.take(f"{name}_layers", 12),
            n_heads=settings.take(f"{name}_attention_heads", 16),
            hidden_dim=settings.take(f"{name}_ffn_dim", 4096),
            **shared,
        )

    config = EncoderDecoderConfig(
        side_of("encoder", vocab_size),
        side_of("decoder", target_size),
        shared_embedding=bool(one_table),
    )
    settings.finish()
    return config


def _write_marian(config: EncoderDecoderConfig) -> dict[str, Any]:
    side = config.decoder
    settings: dict[str, Any] = {
        "is_encoder_decoder": True,
        "vocab_size": config.encoder.vocab_size,
        "decoder_vocab_size": side.vocab_size,
        "share_encoder_decoder_embeddings": config.shared_embedding,
        "d_model": side.emb_dim,
        "max_position_embeddings": side.context,
        "scale_embedding": side.embedding_scale != 1.0,
        "activation_function": ACTIVATION_NAMES.get(side.feed_forward, side.feed_forward),
        "tie_word_embeddings": side.tied_head,
        "dropout": side.dropout,
        "attention_dropout": side.attention_dropout,
        "activation_dropout": side.feed_forward_dropout,
        "init_std": side.init_std,
        **write_special_ids(side),
        "bos_token_id": None,
        "decoder_start_token_id": side.bos_id,
        "forced_eos_token_id": None,
    }
    for name, part in (("encoder", config.encoder), ("decoder", config.decoder)):
        settings[f"{name}_layers"] = part.n_layers
        settings[f"{name}_attention_heads"] = part.n_heads
        settings[f"{name}_ffn_dim"] = part.hidden_dim
    return settings


MARIAN = Family(
    "marian",
    "MarianMTModel",
    EncoderDecoder,
    "model.",
    _NAMES,
    _read_marian,
    _write_marian,
    without_weights=("embed_positions.weight",),
    varying=_tables,
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
)
