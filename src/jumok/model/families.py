"""Published model families: how their settings and tensor names map to ours.

Each `Family` holds one table, our names → theirs, which is read one way when a checkpoint is
loaded and the other way when one is written. ``{i}`` stands for the number of a layer.

Settings are read through `Settings`, which remembers what was asked for: whatever is left over
and is not known to be without effect raises an error, so that no checkpoint is computed wrongly
without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jumok.model.config import Config, FeedForwardKind, Learned, Rotary
from jumok.model.transformer import Decoder, Encoder
from jumok.positions import LinearScaling, Llama3Scaling, Scaling, YarnScaling

__all__ = ["FAMILIES", "Family", "Piece", "Settings"]


@dataclass(frozen=True)
class Piece:
    """Where one of our tensors comes from.

    Args:
        theirs: names of the tensors that it is stacked of, along the output dimension.
        flipped: theirs is (in, out), as in GPT-2, and ours (out, in).
    """

    theirs: tuple[str, ...]
    flipped: bool = False


@dataclass(frozen=True)
class Family:
    """One published architecture.

    Args:
        name: ``model_type`` of its config.json.
        architecture: name of the transformers class that reads what we write.
        model: our class.
        prefix: beginning of their names that may be there or not.
        names: our names → where they come from.
        read: settings → `Config`.
        write: `Config` → settings, as far as the family can express it.
        without_weights: endings of tensors that hold no weights.
        heads: beginnings (without prefix) of tensors for tasks that our class doesn't do.
    """

    name: str
    architecture: str
    model: type[Decoder] | type[Encoder]
    prefix: str
    names: Mapping[str, Piece]
    read: Callable[[Settings], Config]
    write: Callable[[Config], dict[str, Any]]
    without_weights: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()

    def expresses(self, config: Config) -> bool:
        """Whether this family can say all that ``config`` says."""
        try:
            said = self.read(Settings(self.write(config), "config"))
        except ValueError:
            return False
        return said == replace(config, pooler=False)  # the pooler is told by its tensors


# Keys of config.json that change nothing in the forward pass.
_WITHOUT_EFFECT = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path
    architectures auto_map bad_words_ids begin_suppress_tokens chunk_size_feed_forward
    classifier_dropout decoder_start_token_id directionality diversity_penalty do_sample
    dtype early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label
    is_encoder_decoder is_llama_config keys_to_ignore_at_inference label2id length_penalty
    max_length min_length model_type n_ctx no_repeat_ngram_size num_beam_groups num_beams
    num_labels num_return_sequences output_attentions output_hidden_states output_past
    output_scores pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type prefix pretraining_tp problem_type
    remove_invalid_values reorder_and_upcast_attn repetition_penalty return_dict
    return_dict_in_generate sep_token_id summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class
    top_k top_p torch_dtype torchscript transformers.js_config transformers_version
    typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache use_return_dict
    """.split()  # noqa: SIM905
)


class Settings:
    """The contents of a config.json, which must be understood to the last key.

    Args:
        values: the keys and values.
        source: the file, for error messages.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = dict(values), source
        self._known = set(_WITHOUT_EFFECT)

    def take(self, key: str, default: Any) -> Any:
        """The value of ``key``, or ``default`` if it is not there."""
        self._known.add(key)
        return self.values.get(key, default)

    def need(self, key: str) -> Any:
        """The value of a key that must be there."""
        self._known.add(key)
        if self.values.get(key) is None:
            raise ValueError(f"{self.source} has no {key!r}; the model cannot be built without it")
        return self.values[key]

    def expect(self, key: str, *allowed: Any) -> None:
        """Refuse any value but these; a key that is not there is fine."""
        self._known.add(key)
        value = self.values.get(key, allowed[0])
        if value not in allowed:
            raise ValueError(
                f"{self.source}: {key} = {value!r} is not supported "
                f"(only {' or '.join(map(repr, allowed))})"
            )

    def choose(self, key: str, default: str, table: Mapping[str, Any]) -> Any:
        """What ``table`` says about the value of ``key``."""
        value = self.take(key, default)
        if value not in table:
            raise ValueError(
                f"{self.source}: {key} = {value!r} is not supported (only {', '.join(table)})"
            )
        return table[value]

    def finish(self) -> None:
        """Refuse keys that nobody asked for."""
        unknown = {
            key: value
            for key, value in self.values.items()
            if key not in self._known and value not in (None, [], {})
        }
        if unknown:
            listed = ", ".join(f"{key} = {value!r}" for key, value in sorted(unknown.items()))
            raise ValueError(
                f"{self.source} has settings that are not known here and may change what the "
                f"model computes: {listed}. Delete from a copy of the file what has no effect."
            )


# Shared by all ------------------------------------------------------------------------------


def _special_ids(settings: Settings, pad_id: int | None = None) -> dict[str, Any]:
    eos = settings.take("eos_token_id", None)
    return {
        "bos_id": settings.take("bos_token_id", None),
        "eos_ids": () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        "pad_id": settings.take("pad_token_id", pad_id),
    }


def _write_special_ids(config: Config) -> dict[str, Any]:
    eos: Any = list(config.eos_ids) if len(config.eos_ids) > 1 else None
    if len(config.eos_ids) == 1:
        eos = config.eos_ids[0]
    return {"bos_token_id": config.bos_id, "eos_token_id": eos, "pad_token_id": config.pad_id}


def _stack(*theirs: str) -> Piece:
    return Piece(theirs)


def _flipped(theirs: str) -> Piece:
    return Piece((theirs,), flipped=True)


def _both(ours: str, *theirs: str, flipped: bool = False) -> dict[str, Piece]:
    """The weight and the bias of one map."""
    return {
        f"{ours}.weight": Piece(tuple(f"{name}.weight" for name in theirs), flipped),
        f"{ours}.bias": Piece(tuple(f"{name}.bias" for name in theirs)),
    }


# Llama, Mistral, Qwen2, Qwen3 -----------------------------------------------------------------

_LLAMA_NAMES = {
    "embedding.weight": _stack("model.embed_tokens.weight"),
    "norm.weight": _stack("model.norm.weight"),
    "head.weight": _stack("lm_head.weight"),
    "layers.{i}.attention_norm.weight": _stack("model.layers.{i}.input_layernorm.weight"),
    **_both(
        "layers.{i}.attention.qkv",
        "model.layers.{i}.self_attn.q_proj",
        "model.layers.{i}.self_attn.k_proj",
        "model.layers.{i}.self_attn.v_proj",
    ),
    **_both("layers.{i}.attention.output", "model.layers.{i}.self_attn.o_proj"),
    "layers.{i}.attention.q_norm.weight": _stack("model.layers.{i}.self_attn.q_norm.weight"),
    "layers.{i}.attention.k_norm.weight": _stack("model.layers.{i}.self_attn.k_norm.weight"),
    "layers.{i}.feed_forward_norm.weight": _stack(
        "model.layers.{i}.post_attention_layernorm.weight"
    ),
    **_both("layers.{i}.feed_forward.gate", "model.layers.{i}.mlp.gate_proj"),
    **_both("layers.{i}.feed_forward.up", "model.layers.{i}.mlp.up_proj"),
    **_both("layers.{i}.feed_forward.down", "model.layers.{i}.mlp.down_proj"),
}


def _read_scaling(settings: Settings, rope: Mapping[str, Any], context: int) -> Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    original = rope.get("original_max_position_embeddings") or context
    scaling: Scaling | None = None
    if kind == "linear":
        known |= {"factor"}
        scaling = LinearScaling(rope["factor"])
    elif kind == "llama3":
        known |= {
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        }
        scaling = Llama3Scaling(
            rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], original
        )
    elif kind == "yarn":
        optional = ("attention_factor", "mscale", "mscale_all_dim")
        known |= {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow"}
        known |= {"truncate", *optional}
        scaling = YarnScaling(
            rope.get("factor") or context / original,
            original,
            beta_fast=rope.get("beta_fast") or 32.0,
            beta_slow=rope.get("beta_slow") or 1.0,
            truncate=rope.get("truncate", True),
            **{name: rope.get(name) for name in optional},
        )
    elif kind != "default":
        raise ValueError(
            f"{settings.source}: rope_type = {kind!r} is not supported "
            f"(only default, linear, llama3, yarn)"
        )
    unknown = {key: value for key, value in rope.items() if key not in known and value is not None}
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        unknown["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if unknown:
        raise ValueError(
            f"{settings.source}: rotary settings {unknown} are not supported with "
            f"rope_type = {kind!r}"
        )
    return scaling


def _read_rotary(settings: Settings) -> Rotary:
    context = settings.take("max_position_embeddings", 2048)
    rope = settings.take("rope_scaling", None) or settings.take("rope_parameters", None) or {}
    settings.take("rope_parameters", None)
    theta = settings.take("rope_theta", None)
    settings.expect("partial_rotary_factor", None, 1.0)
    settings.expect("rope_interleaved", None, False)
    try:
        scaling = _read_scaling(settings, rope, context)
    except KeyError as missing:
        raise ValueError(f"{settings.source}: rotary settings {rope} lack {missing}") from None
    return Rotary(float(rope.get("rope_theta") or theta or 10_000.0), scaling)


def _write_rotary(config: Config) -> dict[str, Any]:
    if not isinstance(config.positions, Rotary):
        return {}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.positions.theta}
    scaling = config.positions.scaling
    if isinstance(scaling, LinearScaling):
        rope |= {"rope_type": "linear", "factor": scaling.factor}
    elif isinstance(scaling, Llama3Scaling):
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    elif isinstance(scaling, YarnScaling):
        rope |= {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_context,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "truncate": scaling.truncate,
        }
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(scaling, name) is not None:
                rope[name] = getattr(scaling, name)
    # The base stands outside too, where readers older than `rope_parameters` look for it.
    return {"rope_parameters": rope, "rope_theta": config.positions.theta}


def _read_llama_like(settings: Settings, **special: Any) -> Config:
    settings.expect("hidden_act", "silu", "swish")
    emb_dim, n_heads = settings.need("hidden_size"), settings.need("num_attention_heads")
    config = {
        "vocab_size": settings.need("vocab_size"),
        "emb_dim": emb_dim,
        "n_layers": settings.need("num_hidden_layers"),
        "n_heads": n_heads,
        "n_kv_heads": settings.take("num_key_value_heads", None),
        "head_dim": settings.take("head_dim", None) or emb_dim // n_heads,
        "hidden_dim": settings.need("intermediate_size"),
        "context": settings.take("max_position_embeddings", 2048),
        "positions": _read_rotary(settings),
        "norm_eps": settings.take("rms_norm_eps", 1e-6),
        "tied_head": settings.take("tie_word_embeddings", False),
        "attention_dropout": settings.take("attention_dropout", 0.0),
        "init_std": settings.take("initializer_range", 0.02),
        **_special_ids(settings),
        **special,
    }
    settings.finish()
    return Config(**config)


def _write_llama_like(config: Config) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.emb_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.hidden_dim,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.init_std,
        **_write_rotary(config),
        **_write_special_ids(config),
    }


def _read_llama(settings: Settings) -> Config:
    bias = settings.take("attention_bias", False)
    if settings.need("hidden_size") % settings.need("num_attention_heads"):
        raise ValueError(
            f"{settings.source}: hidden_size = {settings.values['hidden_size']} is not a multiple "
            f"of num_attention_heads = {settings.values['num_attention_heads']}"
        )
    return _read_llama_like(
        settings,
        qkv_bias=bias,
        output_bias=bias,
        feed_forward_bias=settings.take("mlp_bias", False),
    )


def _write_llama(config: Config) -> dict[str, Any]:
    return {
        **_write_llama_like(config),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.feed_forward_bias,
    }


def _read_mistral(settings: Settings) -> Config:
    window = settings.take("sliding_window", 4096)
    return _read_llama_like(
        settings,
        n_kv_heads=settings.take("num_key_value_heads", 8),
        windows=(window,) * settings.need("num_hidden_layers"),
    )


def _write_mistral(config: Config) -> dict[str, Any]:
    return {**_write_llama_like(config), "sliding_window": config.windows[0]}


def _read_layer_windows(settings: Settings) -> tuple[int | None, ...]:
    """Qwen: the first ``max_window_layers`` layers see everything, unless layers are listed."""
    n_layers = settings.need("num_hidden_layers")
    window = settings.take("sliding_window", None)
    first = settings.take("max_window_layers", 28)
    if not settings.take("use_sliding_window", False):
        window = None
    kinds = settings.take("layer_types", None)
    if kinds is None:
        return tuple(window if i >= first else None for i in range(n_layers))
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown:
        raise ValueError(f"{settings.source}: layer_types {unknown} are not supported")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _write_layer_windows(config: Config) -> dict[str, Any]:
    sizes = {window for window in config.windows if window is not None}
    return {
        "use_sliding_window": bool(sizes),
        "sliding_window": min(sizes, default=None),
        "max_window_layers": config.n_layers,
        "layer_types": [
            "full_attention" if window is None else "sliding_attention" for window in config.windows
        ],
    }


def _read_qwen2(settings: Settings) -> Config:
    return _read_llama_like(settings, qkv_bias=True, windows=_read_layer_windows(settings))


def _write_qwen2(config: Config) -> dict[str, Any]:
    return {**_write_llama_like(config), **_write_layer_windows(config)}


def _read_qwen3(settings: Settings) -> Config:
    bias = settings.take("attention_bias", False)
    return _read_llama_like(
        settings,
        head_norm=True,
        qkv_bias=bias,
        output_bias=bias,
        head_dim=settings.take("head_dim", None) or 128,
        windows=_read_layer_windows(settings),
    )


def _write_qwen3(config: Config) -> dict[str, Any]:
    return {**_write_qwen2(config), "attention_bias": config.qkv_bias}


# GPT-2 ------------------------------------------------------------------------------------------

_GELUS: dict[str, FeedForwardKind] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_GELU_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}

_GPT2_NAMES = {
    "embedding.weight": _stack("transformer.wte.weight"),
    "positions.weight": _stack("transformer.wpe.weight"),
    "head.weight": _stack("lm_head.weight"),
    **_both("norm", "transformer.ln_f"),
    **_both("layers.{i}.attention_norm", "transformer.h.{i}.ln_1"),
    **_both("layers.{i}.attention.qkv", "transformer.h.{i}.attn.c_attn", flipped=True),
    **_both("layers.{i}.attention.output", "transformer.h.{i}.attn.c_proj", flipped=True),
    **_both("layers.{i}.feed_forward_norm", "transformer.h.{i}.ln_2"),
    **_both("layers.{i}.feed_forward.up", "transformer.h.{i}.mlp.c_fc", flipped=True),
    **_both("layers.{i}.feed_forward.down", "transformer.h.{i}.mlp.c_proj", flipped=True),
}


def _read_gpt2(settings: Settings) -> Config:
    settings.expect("scale_attn_weights", True)
    settings.expect("add_cross_attention", False)
    emb_dim = settings.need("n_embd")
    dropout = settings.take("resid_pdrop", 0.1)
    settings.take("embd_pdrop", dropout)  # we have one dropout, which matters in training only
    config = {
        "vocab_size": settings.need("vocab_size"),
        "emb_dim": emb_dim,
        "n_layers": settings.need("n_layer"),
        "n_heads": settings.need("n_head"),
        "hidden_dim": settings.take("n_inner", None) or 4 * emb_dim,
        "context": settings.take("n_positions", 1024),
        "positions": Learned(),
        "norm": "layer",
        "norm_eps": settings.take("layer_norm_epsilon", 1e-5),
        "feed_forward": settings.choose("activation_function", "gelu_new", _GELUS),
        "qkv_bias": True,
        "output_bias": True,
        "feed_forward_bias": True,
        "tied_head": settings.take("tie_word_embeddings", True),
        "inverse_layer_scale": settings.take("scale_attn_by_inverse_layer_idx", False),
        "dropout": dropout,
        "attention_dropout": settings.take("attn_pdrop", 0.1),
        "init_std": settings.take("initializer_range", 0.02),
        **_special_ids(settings),
    }
    settings.finish()
    return Config(**config)


def _write_gpt2(config: Config) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.emb_dim,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.hidden_dim,
        "n_positions": config.context,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": _GELU_NAMES.get(config.feed_forward, config.feed_forward),
        "tie_word_embeddings": config.tied_head,
        "scale_attn_by_inverse_layer_idx": config.inverse_layer_scale,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "initializer_range": config.init_std,
        **_write_special_ids(config),
    }


# BERT, RoBERTa ----------------------------------------------------------------------------------


def _bert_names(prefix: str = "") -> dict[str, Piece]:
    layer = f"{prefix}encoder.layer.{{i}}"
    return {
        "embedding.weight": _stack(f"{prefix}embeddings.word_embeddings.weight"),
        "positions.weight": _stack(f"{prefix}embeddings.position_embeddings.weight"),
        "token_types.weight": _stack(f"{prefix}embeddings.token_type_embeddings.weight"),
        **_both("embedding_norm", f"{prefix}embeddings.LayerNorm"),
        **_both(
            "layers.{i}.attention.qkv",
            f"{layer}.attention.self.query",
            f"{layer}.attention.self.key",
            f"{layer}.attention.self.value",
        ),
        **_both("layers.{i}.attention.output", f"{layer}.attention.output.dense"),
        **_both("layers.{i}.attention_norm", f"{layer}.attention.output.LayerNorm"),
        **_both("layers.{i}.feed_forward.up", f"{layer}.intermediate.dense"),
        **_both("layers.{i}.feed_forward.down", f"{layer}.output.dense"),
        **_both("layers.{i}.feed_forward_norm", f"{layer}.output.LayerNorm"),
        **_both("pooler", f"{prefix}pooler.dense"),
    }


def _read_bert_like(settings: Settings, pad_id: int, numbered_from_pad: bool) -> Config:
    settings.expect("position_embedding_type", "absolute")
    settings.expect("is_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.take("tie_word_embeddings", True)  # of the head that is not part of an encoder
    special = _special_ids(settings, pad_id)
    context = settings.take("max_position_embeddings", 512)
    positions = Learned()
    if numbered_from_pad:
        if special["pad_id"] is None:
            raise ValueError(f"{settings.source}: positions are numbered from pad_token_id: name it")
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
        "feed_forward": settings.choose("hidden_act", "gelu", _GELUS),
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
        "hidden_act": _GELU_NAMES.get(config.feed_forward, config.feed_forward),
        "type_vocab_size": config.token_types,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": config.init_std,
        **_write_special_ids(config),
    }


def _read_bert(settings: Settings) -> Config:
    return _read_bert_like(settings, pad_id=0, numbered_from_pad=False)


def _read_roberta(settings: Settings) -> Config:
    return _read_bert_like(settings, pad_id=1, numbered_from_pad=True)


_BERT_HEADS = ("cls.", "classifier.", "qa_outputs.", "lm_head.", "dropout.")
_POSITION_IDS = ("embeddings.position_ids", "embeddings.token_type_ids")


def _llama_family(
    name: str,
    architecture: str,
    read: Callable[[Settings], Config],
    write: Callable[[Config], dict[str, Any]],
) -> Family:
    return Family(
        name,
        architecture,
        Decoder,
        "model.",
        _LLAMA_NAMES,
        read,
        write,
        without_weights=("rotary_emb.inv_freq",),
    )


# In the order in which `save` asks them whether they can express a model.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _llama_family("llama", "LlamaForCausalLM", _read_llama, _write_llama),
        _llama_family("mistral", "MistralForCausalLM", _read_mistral, _write_mistral),
        _llama_family("qwen2", "Qwen2ForCausalLM", _read_qwen2, _write_qwen2),
        _llama_family("qwen3", "Qwen3ForCausalLM", _read_qwen3, _write_qwen3),
        Family(
            "gpt2",
            "GPT2LMHeadModel",
            Decoder,
            "transformer.",
            _GPT2_NAMES,
            _read_gpt2,
            _write_gpt2,
            without_weights=(".attn.bias", ".attn.masked_bias"),
        ),
        Family(
            "bert",
            "BertModel",
            Encoder,
            "bert.",
            _bert_names(),
            _read_bert,
            _write_bert_like,
            without_weights=_POSITION_IDS,
            heads=_BERT_HEADS,
        ),
        Family(
            "roberta",
            "RobertaModel",
            Encoder,
            "roberta.",
            _bert_names(),
            _read_roberta,
            _write_bert_like,
            without_weights=_POSITION_IDS,
            heads=_BERT_HEADS,
        ),
    )
}
