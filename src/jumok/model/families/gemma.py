"""Gemma, the first: Llama with scaled embeddings, GeGLU, and norms whose factors are 1 + weight."""

from __future__ import annotations

import math
from typing import Any

from jumok.model.config import Config
from jumok.model.families.llama import llama_family, read_llama_like, write_llama_like
from jumok.model.families.settings import Settings

__all__ = ["GEMMA"]


def _read_gemma(settings: Settings) -> Config:
    # "gelu" stands in the first files and was always meant to be the approximation.
    settings.expect("hidden_act", "gelu_pytorch_tanh", "gelu")
    settings.expect("hidden_activation", None, "gelu_pytorch_tanh")
    settings.expect("use_bidirectional_attention", None, False)
    bias = settings.take("attention_bias", False)
    return read_llama_like(
        settings,
        context=8192,
        norm="unit_offset_rms",
        feed_forward="geglu_tanh",
        embedding_scale=math.sqrt(settings.need("hidden_size")),
        head_dim=settings.count_or_none("head_dim") or 256,
        n_kv_heads=settings.take("num_key_value_heads", 16),
        tied_head=settings.take("tie_word_embeddings", True),
        qkv_bias=bias,
        output_bias=bias,
    )


def _write_gemma(config: Config) -> dict[str, Any]:
    return {
        **write_llama_like(config),
        "hidden_act": "gelu_pytorch_tanh",
        "attention_bias": config.qkv_bias,
    }


GEMMA = llama_family("gemma", "GemmaForCausalLM", _read_gemma, _write_gemma)
