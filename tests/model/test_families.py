"""Settings of published checkpoints, as their config.json files have them."""

from __future__ import annotations

from typing import Any

import pytest

from jumok.model.config import Learned, Relative, Rotary
from jumok.model.families import FAMILIES, NotSupportedError, Settings
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
GEMMA = {
    "architectures": ["GemmaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 16384,
    "max_position_embeddings": 8192,
    "model_type": "gemma",
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.38.0.dev0",
    "use_cache": True,
    "vocab_size": 256000,
}
DISTILBERT = {
    "activation": "gelu",
    "architectures": ["DistilBertForMaskedLM"],
    "attention_dropout": 0.1,
    "dim": 768,
    "dropout": 0.1,
    "hidden_dim": 3072,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "model_type": "distilbert",
    "n_heads": 12,
    "n_layers": 6,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "transformers_version": "4.10.0.dev0",
    "vocab_size": 30522,
}
MODERNBERT = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 50281,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 50281,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 50282,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "reference_compile": True,
    "sep_token_id": 50282,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "transformers_version": "4.47.0.dev0",
    "vocab_size": 50368,
}
MARIAN = {
    "_num_labels": 3,
    "activation_dropout": 0.0,
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0,
    "bad_words_ids": [[58100]],
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "d_model": 512,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 6,
    "decoder_start_token_id": 58100,
    "decoder_vocab_size": 58101,
    "dropout": 0.1,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 6,
    "eos_token_id": 0,
    "extra_pos_embeddings": 58101,
    "forced_eos_token_id": 0,
    "id2label": {"0": "LABEL_0"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "max_length": 512,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "num_beams": 6,
    "num_hidden_layers": 6,
    "pad_token_id": 58100,
    "scale_embedding": True,
    "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True,
    "transformers_version": "4.22.0.dev0",
    "use_cache": True,
    "vocab_size": 58101,
}
T5_SMALL = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"num_beams": 4}},
    "vocab_size": 32128,
}
FLAN_T5_SMALL = {
    **T5_SMALL,
    "d_ff": 1024,
    "feed_forward_proj": "gated-gelu",
    "num_decoder_layers": 8,
    "num_heads": 6,
    "num_layers": 8,
    "relative_attention_max_distance": 128,
    "tie_word_embeddings": False,
}
PUBLISHED = [
    GPT2,
    LLAMA_3_1,
    SMOLLM2,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA,
    BERT,
    ROBERTA,
    DISTILBERT,
    MODERNBERT,
    MARIAN,
    T5_SMALL,
    FLAN_T5_SMALL,
]


def read(values: dict[str, Any]) -> Any:
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


def test_what_those_of_other_kinds_mean() -> None:
    gemma = read(GEMMA)
    assert (gemma.norm, gemma.feed_forward) == ("unit_offset_rms", "geglu_tanh")
    assert (gemma.embedding_scale**2, gemma.head_dim) == (pytest.approx(2048), 256)
    assert gemma.tied_head
    assert (read(DISTILBERT).token_types, read(DISTILBERT).norm_eps) == (0, 1e-12)
    modern = read(MODERNBERT)
    assert modern.positions == Rotary(160_000.0, local_theta=10_000.0)
    assert modern.layer_windows[:4] == (None, 65, 65, None)
    assert modern.embedding_norm
    marian = read(MARIAN)
    assert marian.decoder.embedding_scale**2 == pytest.approx(512)
    assert (marian.decoder.feed_forward, marian.decoder.norm_place) == ("silu", "post")
    assert (marian.bos_id, marian.eos_ids, marian.suppressed_ids) == (58100, (0,), (58100,))
    small, flan = read(T5_SMALL), read(FLAN_T5_SMALL)
    assert (small.logit_scale**-2, flan.logit_scale) == (pytest.approx(512), 1.0)
    assert (small.decoder.feed_forward, flan.decoder.feed_forward) == ("relu", "geglu_tanh")
    assert (flan.encoder.n_layers, flan.decoder.n_layers, flan.decoder.n_heads) == (8, 8, 6)
    assert (small.encoder.positions, flan.tied_head) == (Relative(32, 128), False)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({**MARIAN, "normalize_before": True}, "normalize_before = True"),
        ({**MARIAN, "decoder_vocab_size": 9}, "decoder_vocab_size = 9"),
        ({**T5_SMALL, "feed_forward_proj": "gated-tanh"}, "'gated-tanh'"),
        ({**MODERNBERT, "norm_bias": True}, "norm_bias = True"),
        ({**MODERNBERT, "layer_types": ["linear"] * 22}, "linear"),
        ({**GEMMA, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({**DISTILBERT, "activation": "tanh"}, "'tanh'"),
    ],
)
def test_what_those_cannot_have_is_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(NotSupportedError, match=named):
        read(values)


def test_settings_that_are_missing_have_the_defaults_of_their_family() -> None:
    def without(values: dict[str, Any], *keys: str) -> Any:
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
