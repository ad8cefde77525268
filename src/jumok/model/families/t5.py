"""T5 (Raffel et al. 2019): v1.0 with ReLU and a tied head, v1.1 (Flan-T5) with GeGLU without."""

from __future__ import annotations

import math
from typing import Any

from jumok.model.config import Config, EncoderDecoderConfig, Relative
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.families.family import Family, Piece, special_ids, stack, write_special_ids
from jumok.model.families.settings import NotSupportedError, Settings

__all__ = ["T5"]

_FEED_FORWARDS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-relu": "reglu",
    "gated-gelu": "geglu_tanh",
    "gated-silu": "swiglu",
}


def _side(name: str, ff: int) -> dict[str, Piece]:
    ours, theirs = f"{name}.layers.{{i}}", f"{name}.block.{{i}}.layer"
    attention = f"{theirs}.0.SelfAttention"
    return {
        f"{ours}.attention.qkv.weight": stack(*(f"{attention}.{part}.weight" for part in "qkv")),
        f"{ours}.attention.output.weight": stack(f"{attention}.o.weight"),
        f"{ours}.attention_norm.weight": stack(f"{theirs}.0.layer_norm.weight"),
        f"{ours}.feed_forward.down.weight": stack(f"{theirs}.{ff}.DenseReluDense.wo.weight"),
        f"{ours}.feed_forward_norm.weight": stack(f"{theirs}.{ff}.layer_norm.weight"),
        f"{name}.norm.weight": stack(f"{name}.final_layer_norm.weight"),
        f"{name}.relative_bias.weight": stack(
            f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
    }


def _ups(config: EncoderDecoderConfig) -> dict[str, Piece]:
    parts: tuple[str, ...] = ("wi",)
    if config.decoder.feed_forward in ("reglu", "geglu_tanh", "swiglu"):
        parts = ("wi_0", "wi_1")
    return {
        f"{name}.layers.{{i}}.feed_forward.up.weight": stack(
            *(f"{name}.block.{{i}}.layer.{ff}.DenseReluDense.{part}.weight" for part in parts)
        )
        for name, ff in (("encoder", 1), ("decoder", 2))
    }


_CROSS, _THEIR_CROSS = "decoder.layers.{i}.cross_attention", "decoder.block.{i}.layer.1"
_NAMES = {
    "encoder.embedding.weight": stack("shared.weight"),
    **_side("encoder", 1),
    **_side("decoder", 2),
    f"{_CROSS}.q.weight": stack(f"{_THEIR_CROSS}.EncDecAttention.q.weight"),
    f"{_CROSS}.kv.weight": stack(
        f"{_THEIR_CROSS}.EncDecAttention.k.weight", f"{_THEIR_CROSS}.EncDecAttention.v.weight"
    ),
    f"{_CROSS}.output.weight": stack(f"{_THEIR_CROSS}.EncDecAttention.o.weight"),
    f"{_CROSS}_norm.weight": stack(f"{_THEIR_CROSS}.layer_norm.weight"),
    "head.weight": stack("lm_head.weight"),
}


def _read_t5(settings: Settings) -> EncoderDecoderConfig:
    if "T5EncoderModel" in (settings.values.get("architectures") or ()):
        raise NotSupportedError(f"{settings.source}: the encoder of T5 alone is not supported")
    emb_dim = settings.need("d_model")
    n_layers, n_heads = settings.need("num_layers"), settings.need("num_heads")
    for key in ("initializer_factor", "classifier_dropout", "is_decoder", "dense_act_fn"):
        settings.take(key, None)  # of training and of heads for tasks, or said elsewhere again
    settings.take("is_gated_act", None)
    tied = settings.take("tie_word_embeddings", True)
    scaled = settings.take("scale_decoder_outputs", tied)
    ids = special_ids(settings, 0)
    ids["bos_id"] = settings.take_or_none("decoder_start_token_id", ids["pad_id"])
    dropout = settings.take("dropout_rate", 0.1)
    side: dict[str, Any] = {
        "vocab_size": settings.need("vocab_size"),
        "emb_dim": emb_dim,
        "n_heads": n_heads,
        "head_dim": settings.take("d_kv", 64),
        "hidden_dim": settings.take("d_ff", 2048),
        "context": settings.take("n_positions", 512),
        "positions": Relative(
            settings.take("relative_attention_num_buckets", 32),
            settings.take("relative_attention_max_distance", 128),
        ),
        "norm_eps": settings.take("layer_norm_epsilon", 1e-6),
        "feed_forward": settings.choose("feed_forward_proj", "relu", _FEED_FORWARDS),
        "attention_scale": 1.0,
        "tied_head": tied,
        "dropout": dropout,
        "attention_dropout": dropout,
        "feed_forward_dropout": dropout,
        **ids,
    }
    config = EncoderDecoderConfig(
        Config(n_layers=n_layers, **side),
        Config(n_layers=settings.count_or_none("num_decoder_layers") or n_layers, **side),
        logit_scale=1 / math.sqrt(emb_dim) if scaled else 1.0,
    )
    settings.finish()
    return config


def _write_t5(config: EncoderDecoderConfig) -> dict[str, Any]:
    side = config.decoder
    if not isinstance(side.positions, Relative):
        return {}
    names = {ours: theirs for theirs, ours in _FEED_FORWARDS.items()}
    return {
        "is_encoder_decoder": True,
        "vocab_size": side.vocab_size,
        "d_model": side.emb_dim,
        "d_kv": side.head_dim,
        "d_ff": side.hidden_dim,
        "num_layers": config.encoder.n_layers,
        "num_decoder_layers": side.n_layers,
        "num_heads": side.n_heads,
        "n_positions": side.context,
        "relative_attention_num_buckets": side.positions.n_buckets,
        "relative_attention_max_distance": side.positions.max_distance,
        "layer_norm_epsilon": side.norm_eps,
        "feed_forward_proj": names.get(side.feed_forward, side.feed_forward),
        "tie_word_embeddings": side.tied_head,
        "scale_decoder_outputs": config.logit_scale != 1.0,
        "dropout_rate": side.dropout,
        **write_special_ids(side),
        "bos_token_id": None,
        "decoder_start_token_id": side.bos_id,
    }


T5 = Family(
    "t5",
    "T5ForConditionalGeneration",
    EncoderDecoder,
    "",
    _NAMES,
    _read_t5,
    _write_t5,
    without_weights=("layer.1.EncDecAttention.relative_attention_bias.weight",),
    varying=_ups,
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
)
