"""What GGUF files call their settings and tensors, for each architecture that we can build.

The names are those of the specification:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jumok.model.config import Config, Learned, Rotary
from jumok.model.families import FAMILIES, Family, Piece
from jumok.model.families.family import both, read_ids, stack
from jumok.positions import LinearScaling, Llama3Scaling, Scaling, YarnScaling, rotary_frequencies

__all__ = ["ROPE_FACTORS", "Architecture", "Metadata", "architecture_of"]

ROPE_FACTORS = "rope_freqs.weight"
# What Llama 3.1 and 3.2 were scaled with; a GGUF file holds only the resulting factors.
_LLAMA3_SCALINGS = tuple(Llama3Scaling(factor, 1.0, 4.0, 8192) for factor in (8.0, 32.0))

_SHARED_NAMES = {
    "embedding.weight": stack("token_embd.weight"),
    **both("norm", "output_norm"),
    "head.weight": stack("output.weight"),
    **both("layers.{i}.attention_norm", "blk.{i}.attn_norm"),
    **both("layers.{i}.attention.output", "blk.{i}.attn_output"),
    **both("layers.{i}.feed_forward_norm", "blk.{i}.ffn_norm"),
    **both("layers.{i}.feed_forward.down", "blk.{i}.ffn_down"),
}
_LLAMA_NAMES = {
    **_SHARED_NAMES,
    **both("layers.{i}.attention.qkv", *(f"blk.{{i}}.attn_{part}" for part in "qkv")),
    "layers.{i}.attention.q_norm.weight": stack("blk.{i}.attn_q_norm.weight"),
    "layers.{i}.attention.k_norm.weight": stack("blk.{i}.attn_k_norm.weight"),
    **both("layers.{i}.feed_forward.up", "blk.{i}.ffn_gate", "blk.{i}.ffn_up"),
}
_GPT2_NAMES = {
    **_SHARED_NAMES,
    "positions.weight": stack("position_embd.weight"),
    **both("layers.{i}.attention.qkv", "blk.{i}.attn_qkv"),
    **both("layers.{i}.feed_forward.up", "blk.{i}.ffn_up"),
}


class Metadata:
    """The settings of a GGUF file, which must be understood to the last key.

    Args:
        fields: names → values.
        stored: names of tensors → their entries.
        source: the file, for error messages.
    """

    def __init__(self, fields: Mapping[str, Any], stored: Mapping[str, Any], source: str) -> None:
        self.fields, self.stored, self.source = fields, stored, source
        self.architecture = str(fields.get("general.architecture"))
        self._known = {f"{self.architecture}.vocab_size"}

    def take(self, key: str, default: Any = None) -> Any:
        """The architecture's setting ``key``, or ``default`` if it is not there."""
        self._known.add(f"{self.architecture}.{key}")
        return self.fields.get(f"{self.architecture}.{key}", default)

    def need(self, key: str) -> Any:
        """A setting that must be there."""
        value = self.take(key)
        if value is None:
            raise ValueError(
                f"{self.source} has no {self.architecture}.{key}; the model cannot be built "
                f"without it"
            )
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; a list, one for each layer, must be of one value."""
        value = self.need(key) if default is None else self.take(key, default)
        if isinstance(value, list) and value and value == value[:1] * len(value):
            value = value[0]
        if isinstance(value, list):
            raise ValueError(
                f"{self.source}: {self.architecture}.{key} = {value} differs from layer to layer, "
                f"which is not supported"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{self.source}: {self.architecture}.{key} = {value!r}, where a positive integer "
                f"is due"
            )
        return value

    def decimal(self, key: str, default: float | None = None) -> float:
        """A number that was written as float32: 9.999999747378752e-06 as 1e-05."""
        value = self.need(key) if default is None else self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(
                f"{self.source}: {self.architecture}.{key} = {value!r}, where a number is due"
            )
        return float(str(np.float32(value)))

    def expect(self, key: str, only: Any) -> None:
        """Refuse any value but this one; a setting that is not there is fine."""
        if self.take(key, only) != only:
            raise ValueError(
                f"{self.source}: {self.architecture}.{key} = {self.take(key)} is not supported"
            )

    def finish(self) -> None:
        """Refuse settings that nobody asked for."""
        mine = f"{self.architecture}."
        unknown = sorted(k for k in self.fields if k.startswith(mine) and k not in self._known)
        if unknown:
            listed = ", ".join(f"{key} = {self.fields[key]!r}" for key in unknown)
            raise ValueError(f"{self.source} has settings that are not known here: {listed}")

    def shared(self) -> dict[str, Any]:
        """What every architecture says alike."""
        if "token_embd.weight" not in self.stored:
            raise ValueError(f"{self.source} lacks the tensor 'token_embd.weight'")
        shape = self.stored["token_embd.weight"].shape
        if len(shape) != 2:
            raise ValueError(f"{self.source}: token_embd.weight has the shape {shape.tolist()}")
        ids = {
            name: next(
                iter(read_ids(self.fields, f"tokenizer.ggml.{name}_token_id", self.source)), None
            )
            for name in ("bos", "eos", "eot", "padding")
        }
        return {
            "vocab_size": int(shape[1]),
            "emb_dim": self.count("embedding_length"),
            "n_layers": self.count("block_count"),
            "n_heads": self.count("attention.head_count"),
            "hidden_dim": self.count("feed_forward_length"),
            "context": self.count("context_length"),
            "qkv_bias": self.has("attn_q.bias") or self.has("attn_qkv.bias"),
            "output_bias": self.has("attn_output.bias"),
            "feed_forward_bias": self.has("ffn_up.bias"),
            "tied_head": "output.weight" not in self.stored,
            "bos_id": ids["bos"],
            "eos_ids": tuple(
                dict.fromkeys(id for id in (ids["eos"], ids["eot"]) if id is not None)
            ),
            "pad_id": ids["padding"],
        }

    def has(self, part: str) -> bool:
        """Whether the layers have this tensor."""
        return f"blk.0.{part}" in self.stored


def _read_llama_like(metadata: Metadata, **special: Any) -> Config:
    shared = metadata.shared()
    head_dim = metadata.count("attention.key_length", shared["emb_dim"] // shared["n_heads"])
    metadata.expect("attention.value_length", head_dim)
    metadata.expect("rope.dimension_count", head_dim)
    metadata.expect("expert_count", 0)
    metadata.expect("expert_used_count", 0)
    theta = metadata.decimal("rope.freq_base", 10_000.0)
    config = Config(
        **shared,
        n_kv_heads=metadata.count("attention.head_count_kv", shared["n_heads"]),
        head_dim=head_dim,
        positions=Rotary(theta, _read_scaling(metadata, head_dim, theta)),
        norm_eps=metadata.decimal("attention.layer_norm_rms_epsilon"),
        **special,
    )
    metadata.finish()
    return config


def _read_qwen3(metadata: Metadata) -> Config:
    return _read_llama_like(metadata, head_norm=True)


def _read_gemma(metadata: Metadata) -> Config:
    return _read_llama_like(
        metadata,
        norm="unit_offset_rms",
        feed_forward="geglu_tanh",
        embedding_scale=math.sqrt(metadata.count("embedding_length")),
    )


def _read_gpt2(metadata: Metadata) -> Config:
    shared = metadata.shared()
    metadata.expect("attention.head_count_kv", shared["n_heads"])
    config = Config(
        **shared,
        positions=Learned(),
        norm="layer",
        norm_eps=metadata.decimal("attention.layer_norm_epsilon"),
        feed_forward="gelu_tanh",
    )
    metadata.finish()
    return config


def _read_scaling(metadata: Metadata, head_dim: int, theta: float) -> Scaling | None:
    kind = metadata.take("rope.scaling.type", "none")
    factor = metadata.decimal("rope.scaling.factor", 0.0)
    original = metadata.take("rope.scaling.original_context_length")
    metadata.take("rope.scaling.finetuned")
    if ROPE_FACTORS in metadata.stored:
        divided = np.asarray(metadata.stored[ROPE_FACTORS].data, dtype=np.float32).reshape(-1)
        plain = rotary_frequencies(head_dim, theta)
        for scaling in _LLAMA3_SCALINGS:
            if np.allclose(
                plain / rotary_frequencies(head_dim, theta, scaling), divided, rtol=1e-4
            ):
                return scaling
        raise ValueError(f"{metadata.source}: the factors of {ROPE_FACTORS} are none of Llama 3's")
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn" and original:
        return YarnScaling(factor, int(original))
    raise ValueError(
        f"{metadata.source}: {metadata.architecture}.rope.scaling.type = {kind!r} is not supported"
    )


@dataclass(frozen=True)
class Architecture:
    """How one architecture is stored.

    Args:
        family: of the model, with the names that tensors have in GGUF files.
        read: settings → `Config`.
        is_interleaved: rows of W_Q and W_K are in the order of the interleaved rotary layout.
        norm_offset: what was added to the weights of norms.
    """

    family: Family
    read: Callable[[Metadata], Config]
    is_interleaved: bool = False
    norm_offset: float = 0.0


def _stored(name: str, names: Mapping[str, Piece]) -> Family:
    return replace(FAMILIES[name], prefix="", names=names, without_weights=())


_ARCHITECTURES = {
    "llama": Architecture(_stored("llama", _LLAMA_NAMES), _read_llama_like, is_interleaved=True),
    "qwen2": Architecture(_stored("qwen2", _LLAMA_NAMES), _read_llama_like),
    "qwen3": Architecture(_stored("qwen3", _LLAMA_NAMES), _read_qwen3),
    "gemma": Architecture(_stored("gemma", _LLAMA_NAMES), _read_gemma, norm_offset=1.0),
    "gpt2": Architecture(_stored("gpt2", _GPT2_NAMES), _read_gpt2),
}


def architecture_of(fields: Mapping[str, Any], source: str) -> Architecture:
    """How the model of a file with these settings is stored.

    Raises:
        ValueError: an architecture that is not known here.
    """
    name = fields.get("general.architecture")
    if name not in _ARCHITECTURES:
        raise ValueError(
            f"{source} has the architecture {name!r}; known are {', '.join(_ARCHITECTURES)}"
        )
    return _ARCHITECTURES[name]
