"""Tiny models of transformers with random weights, to compare ours with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

_SIZES: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_GPT2 = {
    "vocab_size": 67,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DISTILBERT = {
    "vocab_size": 67,
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 64,
}
_MODERNBERT = {
    **_SIZES,
    "num_hidden_layers": 4,
    "local_attention": 6,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
_MARIAN = {
    "vocab_size": 67,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 66,
    "eos_token_id": 2,
    "decoder_start_token_id": 66,
    "forced_eos_token_id": None,
}
_T5 = {
    "vocab_size": 67,
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
}


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {**_GROUPED, "rope_parameters": {"rope_type": kind, "rope_theta": 5e5, **values}}


# name → (class of the model, settings of its configuration)
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", _GROUPED),
    "llama-biased": ("LlamaForCausalLM", {**_SIZES, "attention_bias": True, "mlp_bias": True}),
    "llama-narrow": ("LlamaForCausalLM", {**_GROUPED, "head_dim": 4, "tie_word_embeddings": True}),
    "llama-linear": ("LlamaForCausalLM", _rope("linear", factor=4.0)),
    "llama-3": (
        "LlamaForCausalLM",
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama-yarn": (
        "LlamaForCausalLM",
        _rope("yarn", factor=4.0, original_max_position_embeddings=16),
    ),
    "mistral": ("MistralForCausalLM", {**_GROUPED, "sliding_window": 5}),
    "llama-wide": (
        "LlamaForCausalLM",
        {**_GROUPED, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1},
    ),
    "mistral-open": ("MistralForCausalLM", {**_GROUPED, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {**_GROUPED, "tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        {**_GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {**_GROUPED, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-biased": ("Qwen3ForCausalLM", {**_GROUPED, "head_dim": 8, "attention_bias": True}),
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "gpt2-scaled": ("GPT2LMHeadModel", {**_GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gpt2-odd": (
        "GPT2LMHeadModel",
        {**_GPT2, "n_inner": 40, "activation_function": "gelu", "tie_word_embeddings": False},
    ),
    "gemma": (
        "GemmaForCausalLM",
        {**_GROUPED, "head_dim": 16, "num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "gemma-256": ("GemmaForCausalLM", {**_GROUPED, "num_hidden_layers": 1, "head_dim": 256}),
    "bert": ("BertModel", {**_SIZES, "bos_token_id": None, "eos_token_id": None}),
    "bert-tanh": ("BertModel", {**_SIZES, "hidden_act": "gelu_new", "type_vocab_size": 3}),
    "roberta": ("RobertaModel", {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1}),
    "distilbert": ("DistilBertModel", _DISTILBERT),
    "modernbert": ("ModernBertModel", _MODERNBERT),
    "modernbert-odd": (
        "ModernBertModel",
        {
            **_MODERNBERT,
            "local_attention": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 900.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "linear", "rope_theta": 70.0, "factor": 2.0},
            },
        },
    ),
    "bert-masked": ("BertForMaskedLM", {**_SIZES, "hidden_act": "relu"}),
    "roberta-masked": (
        "RobertaForMaskedLM",
        {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    "distilbert-masked": ("DistilBertForMaskedLM", _DISTILBERT),
    "modernbert-masked": ("ModernBertForMaskedLM", _MODERNBERT),
    "marian": ("MarianMTModel", _MARIAN),
    "marian-two-tables": (
        "MarianMTModel",
        {**_MARIAN, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 71},
    ),
    "marian-two-tables-untied": (
        "MarianMTModel",
        {
            **_MARIAN,
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 71,
            "tie_word_embeddings": False,
        },
    ),
    "marian-scaled": (
        "MarianMTModel",
        {
            **_MARIAN,
            "scale_embedding": True,
            "activation_function": "swish",
            "encoder_layers": 1,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 40,
        },
    ),
    "t5": ("T5ForConditionalGeneration", _T5),
    "t5-gated": ("T5ForConditionalGeneration", {**_T5, "feed_forward_proj": "gated-gelu"}),
    "t5-untied": (
        "T5ForConditionalGeneration",
        {
            **_T5,
            "feed_forward_proj": "gated-silu",
            "tie_word_embeddings": False,
            "num_decoder_layers": 2,
        },
    ),
}
MASKED = [name for name in PEERS if name.endswith("-masked")]
ENCODERS = [name for name in PEERS if "bert" in name and name not in MASKED]
ENCODER_DECODERS = [name for name in PEERS if name.startswith(("marian", "t5"))]
DECODERS = [name for name in PEERS if name not in {*MASKED, *ENCODERS, *ENCODER_DECODERS}]


@cache
def peer(name: str) -> Any:
    """The model of transformers, in eval mode, with weights large enough to make heads differ."""
    kind, settings = PEERS[name]
    model_class = getattr(transformers, kind)
    torch.manual_seed(sum(map(ord, name)))
    model = model_class(model_class.config_class(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:  # sines and cosines
                continue
            if parameter.ndim > 1:
                parameter.normal_(0, 0.18)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
        if name == "t5-untied":  # where transformers ties again what the settings say is not
            model.lm_head.weight = torch.nn.Parameter(torch.randn(67, 32) * 0.18)
    return model.eval()


def peer_folder(name: str, root: Path) -> Path:
    """A folder that transformers has written."""
    folder = root / name
    if not folder.is_dir():
        peer(name).save_pretrained(folder)
    return folder


def reopened(name: str, folder: Path) -> Any:
    """What transformers reads from a folder of ours, with nothing missing or left over."""
    kind, _ = PEERS[name]
    automatic = "AutoModelForCausalLM"
    if name in ENCODERS:
        automatic = "AutoModel"
    elif name in MASKED:
        automatic = "AutoModelForMaskedLM"
    elif name in ENCODER_DECODERS:
        automatic = "AutoModelForSeq2SeqLM"
    model, report = getattr(transformers, automatic).from_pretrained(
        folder, output_loading_info=True
    )
    problems = {key: found for key, found in report.items() if found}
    assert not problems, f"{kind}: {problems}"
    return model.eval()


def answer(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, **more: Any) -> Any:
    """Logits or hidden states of a model of transformers."""
    with torch.no_grad():
        output = model(ids, attention_mask=mask, **more)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def random_ids(batch: int, tokens: int, seed: int = 0, low: int = 3, high: int = 67) -> Any:
    return torch.randint(low, high, (batch, tokens), generator=torch.Generator().manual_seed(seed))
