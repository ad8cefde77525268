"""The arrays and calls of a recording that lies in a file, mapped into memory. NumPy alone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import array_api_compat.numpy
import numpy as np

from jumok.lens.call import Array, AttentionCall
from jumok.lens.rules import read_written_mask
from jumok.masks import Mask

_DTYPES = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype("u1"), "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"), "F64": np.dtype("<f8"),
}  # fmt: skip
TYPE_NAMES = {dtype.name: name for name, dtype in _DTYPES.items()} | {"bfloat16": "BF16"}
"""The format's name of each type of numbers."""


class FileArray:
    """A read-only array in a file; what is asked of it comes as a NumPy array, no more is read.

    For what NumPy cannot map as it is: numbers in bfloat16, which are widened to float32 as they
    are read, and a tensor (B, H, T, …) that was written in several pieces along T.

    Args:
        pieces: mapped arrays.
        widen: whether they are the bits of bfloat16.
    """

    device = "cpu"

    def __init__(self, pieces: list[np.ndarray[Any, Any]], *, widen: bool) -> None:
        self._pieces = pieces
        self._widen = widen
        tokens = sum(piece.shape[2] for piece in pieces) if len(pieces) > 1 else None
        first = pieces[0].shape
        self.shape = first if tokens is None else (*first[:2], tokens, *first[3:])
        self.ndim = len(self.shape)
        self.size = math.prod(self.shape)
        self.dtype = np.dtype(np.float32) if widen else pieces[0].dtype
        self.nbytes = sum(int(piece.nbytes) for piece in pieces)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return array_api_compat.numpy

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("an array in a file is copied as it is read; leave out copy=False")
        whole = self[...]
        return whole if dtype is None else whole.astype(dtype)

    def astype(self, dtype: Any, copy: bool = True) -> np.ndarray[Any, Any]:
        return self.__array__(dtype)

    def bits(self) -> tuple[np.ndarray[Any, Any], str]:
        """All of it as it is stored, and the name of its type."""
        whole = self._pieces[0]
        if len(self._pieces) > 1:
            whole = np.concatenate(self._pieces, axis=2)
        return np.ascontiguousarray(whole), "bfloat16" if self._widen else whole.dtype.name

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        if len(self._pieces) == 1:
            return self._numbers(self._pieces[0][index])
        parts = index if isinstance(index, tuple) else (index,)
        along = parts[2] if len(parts) > 2 and Ellipsis not in parts[:3] else None
        if not isinstance(along, slice) or along.step not in (None, 1):
            everything = np.concatenate([self._numbers(piece) for piece in self._pieces], axis=2)
            found: np.ndarray[Any, Any] = everything[index]
            return found
        start, stop, _ = along.indices(self.shape[2])
        found_parts: list[np.ndarray[Any, Any]] = []
        at = 0
        for piece in self._pieces:
            low, high = max(start - at, 0), min(stop - at, piece.shape[2])
            if low < high or not (found_parts or start < stop):
                part = piece[(*parts[:2], slice(low, max(low, high)), *parts[3:])]
                found_parts.append(self._numbers(part))
            at += piece.shape[2]
        axis = sum(isinstance(part, slice) for part in parts[:2])
        return found_parts[0] if len(found_parts) == 1 else np.concatenate(found_parts, axis=axis)

    def _numbers(self, bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not self._widen:
            return bits
        wide = bits.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)


class StoredArrays:
    """The arrays of a safetensors file, mapped into memory.

    What cannot be mapped as it is comes as a `FileArray`.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            self._header = json.loads(file.read(length))
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
        self._shared: dict[str, Array] = {}

    def __getitem__(self, names: str | list[str]) -> Array:
        """The array of a name, or the one that lies in several pieces."""
        pieces = [self._raw(name) for name in _listed(names)]
        widen = self._header[_listed(names)[0]]["dtype"] == "BF16"
        return FileArray(pieces, widen=widen) if widen or len(pieces) > 1 else pieces[0]

    def _raw(self, name: str) -> np.ndarray[Any, Any]:
        entry = self._header[name]
        start, stop = entry["data_offsets"]
        flat = np.asarray(self._bytes[start:stop]).view(_DTYPES[entry["dtype"]])
        return flat.reshape(entry["shape"])

    def shared(self, name: str) -> Array:
        """The same object for the same name: masks that several maps share."""
        if name not in self._shared:
            self._shared[name] = self[name]
        return self._shared[name]

    def shape(self, names: str | list[str]) -> list[int]:
        shapes = [list(self._header[name]["shape"]) for name in _listed(names)]
        if len(shapes) > 1:
            shapes[0][2] = sum(shape[2] for shape in shapes)
        return shapes[0]

    def stored_bytes(self, names: str | list[str]) -> int:
        offsets = [self._header[name]["data_offsets"] for name in _listed(names)]
        return int(sum(stop - start for start, stop in offsets))

    def mask(self, tree: Any) -> Mask | None:
        return read_written_mask(tree, self.shared)


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


@dataclass(eq=False)
class StoredCall:
    """The source of a map that lies in a file."""

    entry: dict[str, Any]
    arrays: StoredArrays
    _call: AttentionCall | None = None

    @property
    def name(self) -> str:
        return str(self.entry["name"])

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, keys = self.entry["shape"]
        return batch, heads, queries, keys

    @cached_property
    def heads(self) -> tuple[int, ...]:
        return tuple(self.entry.get("heads") or range(self.shape[1]))

    @property
    def measured(self) -> None:
        return None

    @property
    def held_bytes(self) -> int:
        return sum(
            self.arrays.stored_bytes(self.entry[kind])
            for kind in ("q", "k", "v", "lse", "value_norms")
            if kind in self.entry
        )

    @property
    def value_note(self) -> str:
        return str(self.entry["value_note"])

    @property
    def has_value_norms(self) -> bool:
        return "value_norms" in self.entry

    def check(self) -> None:
        """Raise a `KeyError` or `TypeError` where the entry and the arrays don't fit."""
        entry, arrays = self.entry, self.arrays
        batch, heads, queries, keys = self.shape
        q, k = arrays.shape(entry["q"]), arrays.shape(entry["k"])
        if (
            q[:3] != [batch, heads, queries]
            or k != [batch, k[1], keys, q[3]]
            or arrays.shape(entry["lse"]) != [batch, heads, queries]
        ):
            raise TypeError(f"{self.name} of shape {self.shape} has q {q} and k {k}")
        for kind in ("v", "bias", "sinks", "value_norms"):
            if kind in entry:
                arrays.shape(entry[kind])
        float(entry["scale"])
        arrays.mask(entry["mask"])
        str(entry["softcap"]), str(entry["value_note"])
        if len(self.heads) != heads:
            raise TypeError(f"{self.name} has {heads} heads, numbered {self.heads}")

    def value_norms(self) -> Array | None:
        return self.arrays[self.entry["value_norms"]] if self.has_value_norms else None

    def call(self) -> AttentionCall:
        if self._call is None:
            entry, arrays = self.entry, self.arrays
            self._call = AttentionCall(
                q=arrays[entry["q"]],
                k=arrays[entry["k"]],
                v=arrays[entry["v"]] if "v" in entry else None,
                mask=arrays.mask(entry["mask"]),
                bias=arrays.shared(entry["bias"]) if "bias" in entry else None,
                scale=entry["scale"],
                softcap=entry["softcap"],
                sinks=arrays.shared(entry["sinks"]) if "sinks" in entry else None,
                lse=arrays[entry["lse"]],
            )
        return self._call
