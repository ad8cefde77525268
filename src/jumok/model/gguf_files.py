"""GGUF files (llama.cpp) → our modules: the llama architecture.

Quantised weights are dequantised to float32 when the file is read. The format's specification:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jumok.model.checkpoints import Model, build
from jumok.model.config import Config, Rotary
from jumok.model.families import FAMILIES
from jumok.positions import LinearScaling, Llama3Scaling, Scaling, YarnScaling, rotary_frequencies

__all__ = ["open_gguf", "read_gguf"]

# Their tensor names in the order of the llama family's own.
_NAMES = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
# What Llama 3.1 and 3.2 were scaled with; a GGUF file holds only the resulting factors.
_LLAMA3_SCALINGS = tuple(Llama3Scaling(factor, 1.0, 4.0, 8192) for factor in (8.0, 32.0))


def open_gguf(path: str | Path) -> Any:
    """The file as a ``gguf.GGUFReader``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no GGUF file, or a damaged one.
        ModuleNotFoundError: the package gguf is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with path.open("rb") as file:
        start = file.read(64)
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(
            f"{path} is only a pointer of Git LFS, not the weights: run `git lfs pull` there"
        )
    if start[:4] != b"GGUF":
        raise ValueError(f"{path} is no GGUF file (it begins with {start[:4]!r})")
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise _damaged(path) from error


def read_gguf(
    path: str | Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    reader: Any = None,
) -> Model:
    """The model of a GGUF file.

    Args:
        path: the file.
        dtype: of the weights; float32 if `None`, where every dequantised value is exact.
        device: where to put them; the CPU if `None`.
        reader: the file already opened with `open_gguf`.

    Returns:
        A `Decoder` in eval mode.

    Raises:
        ValueError: another architecture, or a setting or tensor that is not known; a damaged
            file.
    """
    path = Path(path)
    reader = open_gguf(path) if reader is None else reader
    try:
        fields = {name: entry.contents() for name, entry in reader.fields.items()}
    except (ValueError, IndexError) as error:  # text that is no UTF-8, places beyond the end
        raise _damaged(path) from error
    stored = {entry.name: entry for entry in reader.tensors}
    config = _read_config(fields, stored, str(path))
    assert config.n_kv_heads is not None
    tensors: dict[str, Callable[[], Tensor]] = {}
    for name, entry in stored.items():
        if name == _ROPE_FACTORS:
            continue
        heads = 0
        if ".attn_q." in name:
            heads = config.n_heads
        elif ".attn_k." in name:
            heads = config.n_kv_heads
        tensors[_canonical(name)] = _reader(entry, heads)
    return build(FAMILIES["llama"], config, tensors, str(path), dtype or torch.float32, device)


def _damaged(path: Path) -> ValueError:
    size = path.stat().st_size
    return ValueError(f"{path} is cut off or damaged ({size:,} bytes): copy or fetch it again")


def unpermuted(rows: Tensor, n_heads: int) -> Tensor:
    """Rows of W_Q or W_K as Hugging Face orders them.

    llama.cpp turns neighbouring components (the interleaved layout), so its files hold the rows
    of each head in the order 0, D/2, 1, D/2 + 1, …

    Args:
        rows: (n_heads · D, …) as stored.
        n_heads: query heads for W_Q, *key* heads for W_K.

    Returns:
        The same shape, half-split layout.
    """
    split = rows.reshape(n_heads, rows.shape[0] // n_heads // 2, 2, *rows.shape[1:])
    return split.transpose(1, 2).reshape(rows.shape)


def _reader(entry: Any, heads: int) -> Callable[[], Tensor]:
    def read() -> Tensor:
        from gguf import dequantize

        values = np.ascontiguousarray(dequantize(entry.data, entry.tensor_type), dtype=np.float32)
        if np.shares_memory(values, entry.data):
            values = values.copy()
        tensor = torch.from_numpy(values)
        return unpermuted(tensor, heads) if heads else tensor

    return read


def _canonical(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    head, _, rest = name.partition(".")
    number, _, part = rest.partition(".")
    kind, _, suffix = part.rpartition(".")
    if head == "blk" and kind in _LAYER_NAMES:
        return f"layers.{number}.{_LAYER_NAMES[kind]}.{suffix}"
    return name  # not known: `build` will say so


def _read_config(fields: dict[str, Any], stored: dict[str, Any], source: str) -> Config:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"{source} has the architecture {architecture!r}; only 'llama' is known")
    known = {"llama.vocab_size"}

    def take(key: str, default: Any = None) -> Any:
        known.add(f"llama.{key}")
        return fields.get(f"llama.{key}", default)

    def need(key: str) -> Any:
        value = take(key)
        if value is None:
            raise ValueError(f"{source} has no llama.{key}; the model cannot be built without it")
        return value

    if "token_embd.weight" not in stored:
        raise ValueError(f"{source} lacks the tensor 'token_embd.weight'")
    emb_dim, n_heads = need("embedding_length"), need("attention.head_count")
    head_dim = take("attention.key_length", emb_dim // n_heads)
    for key, expected in (
        ("attention.value_length", head_dim),
        ("rope.dimension_count", head_dim),
        ("expert_count", 0),
        ("expert_used_count", 0),
    ):
        if take(key, expected) != expected:
            raise ValueError(f"{source}: llama.{key} = {take(key)} is not supported")
    theta = _decimal(take("rope.freq_base", 10_000.0))
    scaling = _read_scaling(take, head_dim, theta, stored, source)
    ids = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot")}
    config = Config(
        vocab_size=int(stored["token_embd.weight"].shape[1]),
        emb_dim=emb_dim,
        n_layers=need("block_count"),
        n_heads=n_heads,
        n_kv_heads=take("attention.head_count_kv", n_heads),
        head_dim=head_dim,
        hidden_dim=need("feed_forward_length"),
        context=need("context_length"),
        positions=Rotary(theta, scaling),
        norm_eps=_decimal(need("attention.layer_norm_rms_epsilon")),
        qkv_bias="blk.0.attn_q.bias" in stored,
        output_bias="blk.0.attn_output.bias" in stored,
        feed_forward_bias="blk.0.ffn_up.bias" in stored,
        tied_head="output.weight" not in stored,
        bos_id=ids["bos"],
        eos_ids=tuple(dict.fromkeys(i for i in (ids["eos"], ids["eot"]) if i is not None)),
        pad_id=fields.get("tokenizer.ggml.padding_token_id"),
    )
    unknown = sorted(key for key in fields if key.startswith("llama.") and key not in known)
    if unknown:
        listed = ", ".join(f"{key} = {fields[key]!r}" for key in unknown)
        raise ValueError(f"{source} has settings that are not known here: {listed}")
    return config


def _read_scaling(
    take: Callable[..., Any], head_dim: int, theta: float, stored: dict[str, Any], source: str
) -> Scaling | None:
    kind = take("rope.scaling.type", "none")
    factor, original = take("rope.scaling.factor"), take("rope.scaling.original_context_length")
    take("rope.scaling.finetuned")
    if _ROPE_FACTORS in stored:
        divided = np.asarray(stored[_ROPE_FACTORS].data, dtype=np.float32).reshape(-1)
        plain = rotary_frequencies(head_dim, theta)
        for scaling in _LLAMA3_SCALINGS:
            if np.allclose(
                plain / rotary_frequencies(head_dim, theta, scaling), divided, rtol=1e-4
            ):
                return scaling
        raise ValueError(f"{source}: the factors of {_ROPE_FACTORS} are none of Llama 3's")
    if kind == "none" or factor in (None, 0.0, 1.0):
        return None
    if kind == "linear":
        return LinearScaling(_decimal(factor))
    if kind == "yarn" and original:
        return YarnScaling(_decimal(factor), int(original))
    raise ValueError(f"{source}: llama.rope.scaling.type = {kind!r} is not supported")


def _decimal(value: float) -> float:
    """9.999999747378752e-06, which is 1e-05 in float32, as 1e-05."""
    return float(str(np.float32(value)))
