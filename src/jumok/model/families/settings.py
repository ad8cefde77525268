"""Reading a config.json to its last key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NotSupportedError", "Settings"]

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


# The kind of a default → the kinds that a value may have.
_KINDS: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (float, int)}
_KIND_NAMES = {bool: "true or false", int: "an integer", float: "a number"}


class NotSupportedError(ValueError):
    """A model that is in order, but that jumok doesn't build itself."""


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
        """The value of ``key``; ``default`` if it is not there, or null where a number is due.

        Raises:
            ValueError: a value of another kind than the default's.
        """
        self._known.add(key)
        value = self.values.get(key, default)
        kinds = _KINDS.get(type(default))
        if kinds is None:
            return value
        if value is None:
            return default
        if not isinstance(value, kinds) or isinstance(value, bool) is not (kinds == (bool,)):
            raise ValueError(
                f"{self.source}: {key} = {value!r}, where {_KIND_NAMES[kinds[0]]} is due"
            )
        return value

    def take_or_none(self, key: str, default: Any) -> Any:
        """The value of ``key``, ``default`` if it is not there, and `None` if it is null."""
        return None if self.values.get(key, default) is None else self.take(key, default)

    def count_or_none(self, key: str) -> int | None:
        """The positive integer under ``key``; `None` if it is not there."""
        self._known.add(key)
        return None if self.values.get(key) is None else int(self.need(key))

    def need(self, key: str) -> Any:
        """The value of a key that must be there: a positive integer."""
        if self.values.get(key) is None:
            self._known.add(key)
            raise ValueError(f"{self.source} has no {key!r}; the model cannot be built without it")
        if self.take(key, 0) < 1:
            raise ValueError(f"{self.source}: {key} = {self.values[key]}, which must be at least 1")
        return self.values[key]

    def expect(self, key: str, *allowed: Any) -> None:
        """Refuse any value but these; a key that is not there is fine."""
        self._known.add(key)
        value = self.values.get(key, allowed[0])
        if value not in allowed:
            raise NotSupportedError(
                f"{self.source}: {key} = {value!r} is not supported "
                f"(only {' or '.join(map(repr, allowed))})"
            )

    def choose(self, key: str, default: str, table: Mapping[str, Any]) -> Any:
        """What ``table`` says about the value of ``key``."""
        value = self.take(key, default)
        if value not in table:
            raise NotSupportedError(
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
            raise NotSupportedError(
                f"{self.source} has settings that are not known here and may change what the "
                f"model computes: {listed}. Delete from a copy of the file what has no effect."
            )
