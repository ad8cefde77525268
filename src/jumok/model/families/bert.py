"""BERT and RoBERTa."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jumok.model.config import Config, FeedForwardKind, Learned
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
from jumok.model.families.settings import Settings
from jumok.model.transformer import Encoder

__all__ = ["BERT", "ROBERTA"]

_NAMES = {
    "embedding.weight": stack("embeddings.word_embeddings.weight"),
    "positions.weight": stack("embeddings.position_embeddings.weight"),
    "token_types.weight": stack("embeddings.token_type_embeddings.weight"),
    **both("embedding_norm", "embeddings.LayerNorm"),
    **both(
        "layers.{i}.attention.qkv",
        "encoder.layer.{i}.attention.self.query",
        "encoder.layer.{i}.attention.self.key",
        "encoder.layer.{i}.attention.self.value",
    ),
    **both("layers.{i}.attention.output", "encoder.layer.{i}.attention.output.dense"),
    **both("layers.{i}.attention_norm", "encoder.layer.{i}.attention.output.LayerNorm"),
    **both("layers.{i}.feed_forward.up", "encoder.layer.{i}.intermediate.dense"),
    **both("layers.{i}.feed_forward.down", "encoder.layer.{i}.output.dense"),
    **both("layers.{i}.feed_forward_norm", "encoder.layer.{i}.output.LayerNorm"),
    **both("pooler", "pooler.dense"),
}
_BERT_MASKED_NAMES = {
    **both("masked_head.dense", "cls.predictions.transform.dense"),
    **both("masked_head.norm", "cls.predictions.transform.LayerNorm"),
    "masked_head.bias": stack("cls.predictions.bias"),
}
_ROBERTA_MASKED_NAMES = {
    **both("masked_head.dense", "lm_head.dense"),
    **both("masked_head.norm", "lm_head.layer_norm"),
    "masked_head.bias": stack("lm_head.bias"),
}


def _read_bert_like(settings: Settings, pad_id: int, numbered_from_pad: bool) -> Config:
    settings.expect("position_embedding_type", "absolute")
    settings.expect("is_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.take("tie_word_embeddings", True)  # of the head that is not part of an encoder
    special = special_ids(settings, pad_id)
    context = settings.take("max_position_embeddings", 512)
    positions = Learned()
    if numbered_from_pad:
        if special["pad_id"] is None:
            raise ValueError(f"{settings.source}: pad_token_id is missing")
        positions, context = Learned(special["pad_id"]), context - special["pad_id"] - 1
    config = {
        "vocab_size": settings.need("vocab_size"),
        "emb_dim": settings.need("hidden_size"),
        "n_layers": settings.need("num_hidden_layers"),
        "n_heads": settings.need("num_attention_heads"),
        "hidden_dim": settings.need("intermediate_size"),
        "context": context,
        "positions": positions,
        "norm": "layer",
        "norm_place": "post",
        "norm_eps": settings.take("layer_norm_eps", 1e-12),
        "feed_forward": settings.choose("hidden_act", "gelu", ACTIVATIONS),
        "qkv_bias": True,
        "output_bias": True,
        "feed_forward_bias": True,
        "token_types": settings.take("type_vocab_size", 2),
        "dropout": settings.take("hidden_dropout_prob", 0.1),
        "attention_dropout": settings.take("attention_probs_dropout_prob", 0.1),
        "init_std": settings.take("initializer_range", 0.02),
        **special,
    }
    settings.finish()
    return Config(**config)


def _write_bert_like(config: Config) -> dict[str, Any]:
    first = 0
    if isinstance(config.positions, Learned) and config.positions.pad_id is not None:
        first = config.positions.pad_id + 1
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.emb_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.hidden_dim,
        "max_position_embeddings": config.context + first,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": ACTIVATION_NAMES.get(config.feed_forward, config.feed_forward),
        "type_vocab_size": config.token_types,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": config.init_std,
        **write_special_ids(config),
    }


def _read_bert(settings: Settings) -> Config:
    return _read_bert_like(settings, pad_id=0, numbered_from_pad=False)


def _read_roberta(settings: Settings) -> Config:
    return _read_bert_like(settings, pad_id=1, numbered_from_pad=True)


def _family(
    name: str,
    architecture: str,
    read: Callable[[Settings], Config],
    masked_names: dict[str, Piece],
    head: str,
    activation: FeedForwardKind | None = None,
) -> Family:
    return Family(
        name,
        f"{architecture}Model",
        Encoder,
        f"{name}.",
        _NAMES,
        read,
        _write_bert_like,
        without_weights=("embeddings.position_ids", "embeddings.token_type_ids"),
        heads=("cls.", "classifier.", "qa_outputs.", "lm_head."),
        copies={
            f"{head}.decoder.weight": "embeddings.word_embeddings.weight",
            f"{head}.decoder.bias": f"{head}.bias",
        },
        masked_architecture=f"{architecture}ForMaskedLM",
        masked_names=masked_names,
        masked_activation=activation,
    )


BERT = _family("bert", "Bert", _read_bert, _BERT_MASKED_NAMES, "cls.predictions")
ROBERTA = _family("roberta", "Roberta", _read_roberta, _ROBERTA_MASKED_NAMES, "lm_head", "gelu")
