"""DistilBERT: BERT without token types and pooler."""

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
from jumok.model.transformer import Encoder

__all__ = ["DISTILBERT"]

_LAYER = "transformer.layer.{i}"
_NAMES = {
    "embedding.weight": stack("embeddings.word_embeddings.weight"),
    "positions.weight": stack("embeddings.position_embeddings.weight"),
    **both("embedding_norm", "embeddings.LayerNorm"),
    **both(
        "layers.{i}.attention.qkv",
        f"{_LAYER}.attention.q_lin",
        f"{_LAYER}.attention.k_lin",
        f"{_LAYER}.attention.v_lin",
    ),
    **both("layers.{i}.attention.output", f"{_LAYER}.attention.out_lin"),
    **both("layers.{i}.attention_norm", f"{_LAYER}.sa_layer_norm"),
    **both("layers.{i}.feed_forward.up", f"{_LAYER}.ffn.lin1"),
    **both("layers.{i}.feed_forward.down", f"{_LAYER}.ffn.lin2"),
    **both("layers.{i}.feed_forward_norm", f"{_LAYER}.output_layer_norm"),
}
_MASKED_NAMES = {
    **both("masked_head.dense", "vocab_transform"),
    **both("masked_head.norm", "vocab_layer_norm"),
    "masked_head.bias": stack("vocab_projector.bias"),
}


def _read_distilbert(settings: Settings) -> Config:
    for key in ("sinusoidal_pos_embds", "tie_weights_", "qa_dropout", "seq_classif_dropout"):
        settings.take(key, None)  # how the table began, and what belongs to heads of tasks
    settings.take("tie_word_embeddings", True)
    settings.expect("pruned_heads", {})
    config = Config(
        vocab_size=settings.need("vocab_size"),
        emb_dim=settings.need("dim"),
        n_layers=settings.need("n_layers"),
        n_heads=settings.need("n_heads"),
        hidden_dim=settings.need("hidden_dim"),
        context=settings.take("max_position_embeddings", 512),
        positions=Learned(),
        norm="layer",
        norm_place="post",
        norm_eps=1e-12,
        feed_forward=settings.choose("activation", "gelu", ACTIVATIONS),
        qkv_bias=True,
        output_bias=True,
        feed_forward_bias=True,
        dropout=settings.take("dropout", 0.1),
        attention_dropout=settings.take("attention_dropout", 0.1),
        init_std=settings.take("initializer_range", 0.02),
        **special_ids(settings, 0),
    )
    settings.finish()
    return config


def _write_distilbert(config: Config) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "dim": config.emb_dim,
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "hidden_dim": config.hidden_dim,
        "max_position_embeddings": config.context,
        "activation": ACTIVATION_NAMES.get(config.feed_forward, config.feed_forward),
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.init_std,
        **write_special_ids(config),
    }


DISTILBERT = Family(
    "distilbert",
    "DistilBertModel",
    Encoder,
    "distilbert.",
    _NAMES,
    _read_distilbert,
    _write_distilbert,
    heads=("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
    copies={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    masked_architecture="DistilBertForMaskedLM",
    masked_names=_MASKED_NAMES,
)
