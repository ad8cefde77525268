"""The arrays and calls of a recording that lies in a file. NumPy alone.

The file is mapped into memory, but what is read of q, k and v bit by bit is read, not mapped: the
pages of a map stay with the process, and a column touches all of q.
"""

from __future__ import annotations

import json
import math
import os
import threading
import weakref
from collections.abc import Sequence
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


_CHUNK = 1 << 17  # numbers widened in one go, while they lie in the cache


class OpenFile:
    """A file that is read at any place, by any thread, into memory that is there already."""

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_RDONLY)
        self._own = threading.local()
        weakref.finalize(self, os.close, self._number)

    def __reduce__(self) -> Any:
        return type(None), ()  # A copy, perhaps in another process, has the mapped arrays alone.

    def read(self, out: np.ndarray[Any, Any], offset: int) -> None:
        """Fill a whole array with the bytes from `offset` on."""
        rest = out.reshape(-1).view(np.uint8).data
        while rest:
            count = os.preadv(self._number, [rest], offset)
            if not count:
                raise OSError("the recording's file has become shorter since it was opened")
            rest, offset = rest[count:], offset + count

    def read_wide(self, out: np.ndarray[Any, Any], offset: int) -> None:
        """Fill a float32 array from the bfloat16 numbers from `offset` on."""
        if not hasattr(self._own, "bits"):
            self._own.bits = np.empty(_CHUNK, dtype=_DTYPES["BF16"])
        wide = out.reshape(-1).view(np.uint32)
        for start in range(0, wide.size, _CHUNK):
            part = wide[start : start + _CHUNK]
            bits = self._own.bits[: part.size]
            self.read(bits, offset + start * bits.itemsize)
            part[...] = bits
            part <<= 16


class FileArray:
    """A read-only array in a file; what is asked of it comes as a NumPy array, no more is read.

    Numbers in bfloat16, which NumPy does not have, are widened to float32 as they are read; a
    tensor (B, H, T, …) may have been written in several pieces along T.

    Args:
        pieces: mapped arrays.
        widen: whether they are the bits of bfloat16.
        file: the file, to read some heads and tokens of a tensor (B, H, T, D) past the map, and
        offsets: where in it the pieces begin, in bytes.
    """

    device = "cpu"

    def __init__(
        self,
        pieces: list[np.ndarray[Any, Any]],
        *,
        widen: bool,
        file: OpenFile | None = None,
        offsets: Sequence[int] = (),
    ) -> None:
        self._pieces = pieces
        self._widen = widen
        self._file = file
        self._offsets = tuple(offsets)
        tokens = sum(piece.shape[2] for piece in pieces) if len(pieces) > 1 else None
        first = pieces[0].shape
        self.shape = first if tokens is None else (*first[:2], tokens, *first[3:])
        self.ndim = len(self.shape)
        self.size = math.prod(self.shape)
        self.dtype = np.dtype(np.float32) if widen else pieces[0].dtype
        self.nbytes = sum(int(piece.nbytes) for piece in pieces)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return array_api_compat.numpy

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU; what is read of it is NumPy's

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
        read = self._read(index)
        if read is not None:
            return read
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

    def _read(self, index: Any) -> np.ndarray[Any, Any] | None:
        """``[batch, head or heads, tokens]`` read past the map, `None` for any other index."""
        if self._file is None or self.ndim != 4 or not isinstance(index, tuple):
            return None
        if len(index) not in (2, 3) or not _is_inside(index[0], self.shape[0]):
            return None
        of_heads, of_tokens = (*index[1:], slice(None))[:2]
        single = _is_inside(of_heads, self.shape[1])
        if not (single or _is_run(of_heads)) or not _is_run(of_tokens):
            return None
        n_heads, tokens, width = self.shape[1:]
        batch = int(index[0]) % self.shape[0]
        heads = [int(of_heads) % n_heads] if single else range(*of_heads.indices(n_heads))
        start, stop, _ = of_tokens.indices(tokens)
        result = np.empty((len(heads), max(0, stop - start), width), dtype=self.dtype)
        read = self._file.read_wide if self._widen else self._file.read
        for number, head in enumerate(heads):
            at = 0
            for piece, offset in zip(self._pieces, self._offsets, strict=True):
                length = piece.shape[2]
                low, high = max(start, at), min(stop, at + length)
                if low < high and width:
                    row = (batch * n_heads + head) * length + low - at
                    place = offset + row * width * piece.itemsize
                    read(result[number, low - start : high - start], place)
                at += length
        return result[0] if single else result

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
        self._start = 8 + length
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r", offset=self._start)
        self._file = OpenFile(path) if hasattr(os, "preadv") else None
        self._shared: dict[str, Array] = {}

    def __getitem__(self, names: str | list[str]) -> Array:
        """The array of a name, or the one that lies in several pieces."""
        pieces = [self._raw(name) for name in _listed(names)]
        widen = self._header[_listed(names)[0]]["dtype"] == "BF16"
        return FileArray(pieces, widen=widen) if widen or len(pieces) > 1 else pieces[0]

    def by_heads(self, names: str | list[str]) -> FileArray:
        """A tensor (B, H, T, D) of which some heads and tokens are read at a time."""
        entries = [self._header[name] for name in _listed(names)]
        return FileArray(
            [self._raw(name) for name in _listed(names)],
            widen=entries[0]["dtype"] == "BF16",
            file=self._file,
            offsets=[self._start + entry["data_offsets"][0] for entry in entries],
        )

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


def _is_inside(index: Any, size: int) -> bool:
    if isinstance(index, bool) or not isinstance(index, int | np.integer):
        return False
    return -size <= int(index) < size


def _is_run(index: Any) -> bool:
    return isinstance(index, slice) and index.step in (None, 1)


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
                q=arrays.by_heads(entry["q"]),
                k=arrays.by_heads(entry["k"]),
                v=arrays.by_heads(entry["v"]) if "v" in entry else None,
                mask=arrays.mask(entry["mask"]),
                bias=arrays.shared(entry["bias"]) if "bias" in entry else None,
                scale=entry["scale"],
                softcap=entry["softcap"],
                sinks=arrays.shared(entry["sinks"]) if "sinks" in entry else None,
                lse=arrays[entry["lse"]],
            )
        return self._call
