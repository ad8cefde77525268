"""GGUF files (llama.cpp) → our modules; what each architecture is called is in `gguf_names`.

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
from jumok.model.gguf_names import ROPE_FACTORS, Metadata, architecture_of

__all__ = ["open_gguf", "read_gguf"]


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
    architecture = architecture_of(fields, str(path))
    config = architecture.read(Metadata(fields, stored, str(path)))
    assert config.n_kv_heads is not None
    heads = {"attn_q": config.n_heads, "attn_k": config.n_kv_heads}
    tensors: dict[str, Callable[[], Tensor]] = {}
    for name, entry in stored.items():
        if name == ROPE_FACTORS:
            continue
        part = name.split(".")[-2] if "." in name else ""
        turned = heads.get(part, 0) if architecture.is_interleaved else 0
        shift = architecture.norm_offset if part.endswith("_norm") else 0.0
        tensors[name] = _reader(entry, turned, shift, str(path))
    return build(architecture.family, config, tensors, str(path), dtype or torch.float32, device)


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


def _reader(entry: Any, heads: int, shift: float, source: str) -> Callable[[], Tensor]:
    def read() -> Tensor:
        from gguf import dequantize

        try:
            found = dequantize(entry.data, entry.tensor_type)
        except NotImplementedError:
            raise ValueError(
                f"{source}: the tensor {entry.name!r} is stored as {entry.tensor_type.name}, "
                f"which the package gguf can't undo; take a file of another kind, such as Q8_0 or "
                f"Q4_K"
            ) from None
        values = np.ascontiguousarray(found, dtype=np.float32)
        if np.shares_memory(values, entry.data):
            values = values.copy()
        tensor = torch.from_numpy(values)
        if shift:
            tensor -= shift
        # Rows that don't make up heads are left to those who compare shapes.
        return unpermuted(tensor, heads) if heads and not len(tensor) % (2 * heads) else tensor

    return read
