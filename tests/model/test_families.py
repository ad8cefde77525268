"""Settings of published checkpoints, as their config.json files have them."""

from __future__ import annotations

from typing import Any

import pytest

from jumok.model.config import Config, Learned, Rotary
from jumok.model.families import FAMILIES, Settings
from jumok.positions import Llama3Scaling, YarnScaling

GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
LLAMA_3_1 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 128256,
}
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
BERT = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "label2id": {"LABEL_0": 0},
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
ROBERTA = {
    "architectures": ["RobertaForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "roberta",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
PUBLISHED = [GPT2, LLAMA_3_1, SMOLLM2, MISTRAL, QWEN2, QWEN3, BERT, ROBERTA]


def read(values: dict[str, Any]) -> Config:
    return FAMILIES[values["model_type"]].read(Settings(values, "config.json"))


@pytest.mark.parametrize("values", PUBLISHED, ids=lambda values: values["model_type"])
def test_published_settings_are_understood_and_can_be_written(values: dict[str, Any]) -> None:
    config = read(values)
    family = FAMILIES[values["model_type"]]
    assert family.expresses(config)
    written = family.write(config)
    for key in ("vocab_size", "hidden_size", "n_embd", "max_position_embeddings", "rms_norm_eps"):
        assert written.get(key) == values.get(key)


def test_what_they_mean() -> None:
    assert read(GPT2).positions == Learned()
    assert (read(GPT2).hidden_dim, read(GPT2).eos_ids) == (3072, (50256,))
    llama = read(LLAMA_3_1)
    assert llama.positions == Rotary(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert llama.eos_ids == (128001, 128008, 128009)
    assert (llama.head_dim, llama.n_kv_heads, llama.tied_head) == (128, 8, False)
    smollm = read(SMOLLM2)
    assert (smollm.tied_head, smollm.head_dim, smollm.positions) == (True, 64, Rotary(1e5))
    assert read(MISTRAL).layer_windows == (4096,) * 32
    qwen2 = read(QWEN2)
    assert (qwen2.windows, qwen2.qkv_bias, qwen2.output_bias) == ((), True, False)
    qwen3 = read(QWEN3)
    assert (qwen3.head_norm, qwen3.head_dim, qwen3.qkv_bias) == (True, 128, False)
    assert qwen3.positions == Rotary(1e6, YarnScaling(4.0, 32768))
    assert (read(BERT).norm_eps, read(BERT).norm_place, read(BERT).token_types) == (
        1e-12,
        "post",
        2,
    )
    roberta = read(ROBERTA)
    assert (roberta.positions, roberta.context, roberta.token_types) == (Learned(1), 512, 1)


def test_settings_that_are_missing_have_the_defaults_of_their_family() -> None:
    def without(values: dict[str, Any], *keys: str) -> Config:
        return read({key: value for key, value in values.items() if key not in keys})

    assert without(MISTRAL, "sliding_window").layer_windows == (4096,) * 32
    assert without(MISTRAL, "num_key_value_heads").n_kv_heads == 8
    assert read({**MISTRAL, "sliding_window": None}).windows == ()
    assert without(LLAMA_3_1, "num_key_value_heads").n_kv_heads == 32
    assert without(QWEN3, "head_dim").head_dim == 128
    assert without(GPT2, "tie_word_embeddings").tied_head
    assert not without(QWEN2, "tie_word_embeddings").tied_head


def test_every_unknown_key_is_named_with_its_value() -> None:
    with pytest.raises(ValueError, match=r"config\.json.*logit_scale = 0\.5, partial = \[1\]"):
        read({**LLAMA_3_1, "partial": [1], "logit_scale": 0.5, "nothing": None})


def test_pruned_heads_are_not_ignored() -> None:
    with pytest.raises(ValueError, match="pruned_heads"):
        read({**BERT, "pruned_heads": {"0": [1]}})
