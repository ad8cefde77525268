"""ModernBERT (Warner et al. 2024): rotary positions, GeGLU, no biases, local and global layers."""

from __future__ import annotations

from typing import Any

from jumok.model.config import Config, Rotary
from jumok.model.families.family import Family, special_ids, stack, write_special_ids
from jumok.model.families.rotary import read_scaling, write_rotary
from jumok.model.families.settings import NotSupportedError, Settings
from jumok.model.transformer import Encoder

__all__ = ["MODERNBERT"]

_NAMES = {
    "embedding.weight": stack("embeddings.tok_embeddings.weight"),
    "embedding_norm.weight": stack("embeddings.norm.weight"),
    "layers.{i}.attention_norm.weight": stack("layers.{i}.attn_norm.weight"),
    "layers.{i}.attention.qkv.weight": stack("layers.{i}.attn.Wqkv.weight"),
    "layers.{i}.attention.output.weight": stack("layers.{i}.attn.Wo.weight"),
    "layers.{i}.feed_forward_norm.weight": stack("layers.{i}.mlp_norm.weight"),
    "layers.{i}.feed_forward.up.weight": stack("layers.{i}.mlp.Wi.weight"),
    "layers.{i}.feed_forward.down.weight": stack("layers.{i}.mlp.Wo.weight"),
    "norm.weight": stack("final_norm.weight"),
}
_MASKED_NAMES = {
    "masked_head.dense.weight": stack("head.dense.weight"),
    "masked_head.norm.weight": stack("head.norm.weight"),
    "masked_head.bias": stack("decoder.bias"),
}
# Of training, of heads for tasks, or of how it is computed.
_WITHOUT_EFFECT = (
    "cls_token_id",
    "classifier_pooling",
    "deterministic_flash_attn",
    "initializer_cutoff_factor",
    "layer_norm_eps",
    "position_embedding_type",
    "reference_compile",
    "repad_logits_with_grad",
    "sparse_pred_ignore_index",
    "sparse_prediction",
    "tie_word_embeddings",
)
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def _read_rotary(settings: Settings) -> Rotary:
    context = settings.take("max_position_embeddings", 8192)
    thetas = {
        _GLOBAL: settings.take("global_rope_theta", None) or 160_000.0,
        _LOCAL: settings.take("local_rope_theta", None) or 10_000.0,
    }
    ropes = settings.take("rope_parameters", None) or {}
    settings.expect("rope_scaling", None)
    scalings = []
    for kind in (_GLOBAL, _LOCAL):
        rope = ropes.get(kind) or {}
        thetas[kind] = float(rope.get("rope_theta") or thetas[kind])
        scalings.append(read_scaling(settings, rope, context))
    if scalings[0] != scalings[1]:
        raise NotSupportedError(f"{settings.source}: two kinds of rotary scaling are not supported")
    return Rotary(thetas[_GLOBAL], scalings[0], thetas[_LOCAL])


def _read_windows(settings: Settings) -> tuple[int | None, ...]:
    n_layers = settings.need("num_hidden_layers")
    every = settings.take("global_attn_every_n_layers", 3)
    kinds = settings.take("layer_types", None)
    if kinds is None:
        kinds = [_LOCAL if i % every else _GLOBAL for i in range(n_layers)]
    unknown = sorted(set(kinds) - {_GLOBAL, _LOCAL})
    if unknown:
        raise NotSupportedError(f"{settings.source}: layer_types {unknown} are not supported")
    window = settings.take("local_attention", 128) // 2 + 1  # so many on each side, and itself
    return tuple(window if kind == _LOCAL else None for kind in kinds)


def _read_modernbert(settings: Settings) -> Config:
    for key in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"):
        settings.expect(key, False)
    for key in ("hidden_activation", "classifier_activation"):
        settings.expect(key, "gelu")
    settings.expect("decoder_bias", True)
    for key in _WITHOUT_EFFECT:
        settings.take(key, None)
    dropout = settings.take("embedding_dropout", 0.0)
    config = Config(
        vocab_size=settings.need("vocab_size"),
        emb_dim=settings.need("hidden_size"),
        n_layers=settings.need("num_hidden_layers"),
        n_heads=settings.need("num_attention_heads"),
        hidden_dim=settings.need("intermediate_size"),
        context=settings.take("max_position_embeddings", 8192),
        positions=_read_rotary(settings),
        norm="layer_without_bias",
        norm_eps=settings.take("norm_eps", 1e-5),
        embedding_norm=True,
        feed_forward="geglu",
        windows=_read_windows(settings),
        dropout=dropout,
        attention_dropout=settings.take("attention_dropout", 0.0),
        feed_forward_dropout=settings.take("mlp_dropout", 0.0),
        init_std=settings.take("initializer_range", 0.02),
        **special_ids(settings, 50283),
    )
    settings.finish()
    return config


def _write_modernbert(config: Config) -> dict[str, Any]:
    if not isinstance(config.positions, Rotary):
        return {}
    rope = write_rotary(config)["rope_parameters"]
    local = config.positions.local_theta or config.positions.theta
    sizes = {window for window in config.layer_windows if window is not None}
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.emb_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.hidden_dim,
        "max_position_embeddings": config.context,
        "rope_parameters": {_GLOBAL: rope, _LOCAL: {**rope, "rope_theta": local}},
        "layer_types": [_LOCAL if window else _GLOBAL for window in config.layer_windows],
        "local_attention": 2 * (min(sizes) - 1) if sizes else 128,
        "norm_eps": config.norm_eps,
        "embedding_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "mlp_dropout": config.feed_forward_dropout,
        "initializer_range": config.init_std,
        **write_special_ids(config),
    }


MODERNBERT = Family(
    "modernbert",
    "ModernBertModel",
    Encoder,
    "model.",
    _NAMES,
    _read_modernbert,
    _write_modernbert,
    heads=("head.", "classifier."),
    copies={"decoder.weight": "embeddings.tok_embeddings.weight"},
    masked_architecture="ModernBertForMaskedLM",
    masked_names=_MASKED_NAMES,
)
