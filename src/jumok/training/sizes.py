"""From the settings of a training to the model that it begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from jumok.model.config import Config, EncoderDecoderConfig, Learned
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.loading import load
from jumok.model.transformer import Decoder, Encoder
from jumok.tokens import Tokenizer
from jumok.training.settings import SIZES, Training

__all__ = ["Model", "describe", "family_of", "load_base", "new_model", "row_length"]

Model = Decoder | Encoder | EncoderDecoder

_FAMILIES: dict[type[nn.Module], str] = {Decoder: "gpt", Encoder: "bert", EncoderDecoder: "seq2seq"}
_NAMES = {"gpt": "GPT", "bert": "BERT", "seq2seq": "encoder-decoder"}
_LONGEST_ROW = 512  # of a base, where nothing else is said: its whole context may be long


def new_model(training: Training, tokenizer: Tokenizer) -> Model:
    """A model with fresh weights, which `torch.manual_seed` settles.

    "gpt" is a decoder as Llama's (Touvron et al. 2023), "bert" an encoder as BERT's (Devlin et
    al. 2019), "seq2seq" the Transformer of 2017; transformers loads each of them.

    Raises:
        ValueError: sizes that don't fit together, or a tokenizer without a special token that the
            family needs.
    """
    size = SIZES[training.size]
    emb_dim = training.emb_dim or size.emb_dim
    n_heads = training.n_heads or size.n_heads
    n_layers = training.n_layers or size.n_layers
    ids: dict[str, Any] = {"bos_id": tokenizer.bos_id, "pad_id": tokenizer.pad_id}
    ids["eos_ids"] = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
    shared: dict[str, Any] = {"context": training.context or size.context, **ids}
    vocab_size = _vocabulary(tokenizer)
    if training.family == "seq2seq":
        if tokenizer.bos_id is None:
            raise ValueError(
                "this tokenizer has no token that begins a text, which a seq2seq model needs; "
                "take another one, or tokenizer='bpe'"
            )
        config = EncoderDecoderConfig.vaswani(
            vocab_size,
            emb_dim,
            training.n_layers or max(1, size.n_layers // 2),
            n_heads,
            dropout=training.dropout,
            **shared,
        )
        return EncoderDecoder(config)
    if training.family == "bert":
        return Encoder(
            Config(
                vocab_size,
                emb_dim,
                n_layers,
                n_heads,
                positions=Learned(),
                norm="layer",
                norm_place="post",
                norm_eps=1e-12,
                feed_forward="gelu",
                qkv_bias=True,
                output_bias=True,
                feed_forward_bias=True,
                token_types=2,
                masked_head=True,
                dropout=training.dropout,
                **shared,
            )
        )
    gated = -(-8 * emb_dim // 3 // 64) * 64  # as many weights as an ungated network of 4 E
    return Decoder(
        Config(
            vocab_size,
            emb_dim,
            n_layers,
            n_heads,
            hidden_dim=gated,
            dropout=training.dropout,
            **shared,
        )
    )


def load_base(training: Training) -> tuple[Model, Tokenizer]:
    """The model that ``training.base`` names, in float32, and its tokenizer.

    Raises:
        ValueError: a model that jumok doesn't build itself, that cannot learn here, or has no
            tokenizer.
    """
    assert training.base is not None
    model, tokenizer = load(training.base, dtype=torch.float32)
    if not isinstance(model, (Decoder, Encoder, EncoderDecoder)):
        raise ValueError(f"{training.base} is run by transformers, and is not trained here")
    if tokenizer is None:
        raise ValueError(f"{training.base} has no tokenizer beside it")
    if isinstance(model, Encoder) and model.masked_head is None:
        raise ValueError(
            f"{training.base} has no head that guesses masked tokens, by which an encoder learns"
        )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = training.dropout
    if isinstance(model, Encoder) and model.pooler is not None:
        model.pooler.requires_grad_(False)  # no masked token's loss comes through it
    for parameter in model.parameters():  # not the file's own pages, which are read-only
        parameter.data = parameter.data.clone()
    return model, tokenizer


def family_of(model: Model) -> str:
    """ "gpt", "bert" or "seq2seq"."""
    return _FAMILIES[type(model)]


def row_length(training: Training, model: Model) -> int:
    """How many tokens T a row has."""
    config = model.config.decoder if isinstance(model, EncoderDecoder) else model.config
    if training.base is None:
        return config.context
    context = min(config.context, _LONGEST_ROW) if training.context is None else training.context
    if context > config.context:
        raise ValueError(
            f"context={context}: {training.base} was made for {config.context} tokens at most"
        )
    return context


def describe(model: Model) -> str:
    """What a model is, in one line for people."""
    config = model.config.decoder if isinstance(model, EncoderDecoder) else model.config
    n_weights = sum(parameter.numel() for parameter in model.parameters())
    layers = f"{config.n_layers} layer{'s' if config.n_layers > 1 else ''}"
    if isinstance(model, EncoderDecoder):
        layers = f"{model.config.encoder.n_layers} + {config.n_layers} layers"
    return (
        f"{_NAMES[family_of(model)]} of {_short(n_weights)} parameters: {layers}, "
        f"{config.n_heads} heads, width {config.emb_dim}, vocabulary {config.vocab_size:,}"
    )


def plain(config: Config | EncoderDecoderConfig) -> Any:
    """A configuration without dropout, which only training needs and not every family can say."""
    if isinstance(config, EncoderDecoderConfig):
        return replace(config, encoder=plain(config.encoder), decoder=plain(config.decoder))
    return replace(config, dropout=0.0, attention_dropout=0.0, feed_forward_dropout=0.0)


def _vocabulary(tokenizer: Tokenizer) -> int:
    """Ids in all: the largest may lie above their number where some are missing."""
    return max(tokenizer.vocab_size, *(id + 1 for id in tokenizer.special_ids), 1)


def _short(number: float) -> str:
    for unit in ("", " thousand", " million"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} billion"
