"""The arrays and calls of a recording that lies in a file, mapped into memory. NumPy alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jumok.lens.call import Array, AttentionCall
from jumok.lens.rules import read_written_mask
from jumok.masks import Mask

_DTYPES = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype("u1"), "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"), "F64": np.dtype("<f8"),
}  # fmt: skip


class StoredArrays:
    """The arrays of a safetensors file, mapped into memory; bfloat16 is widened to float32."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            self._header = json.loads(file.read(length))
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
        self._shared: dict[str, np.ndarray[Any, Any]] = {}

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        entry = self._header[name]
        start, stop = entry["data_offsets"]
        flat = np.asarray(self._bytes[start:stop]).view(_DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return flat.reshape(entry["shape"])

    def shared(self, name: str) -> np.ndarray[Any, Any]:
        """The same object for the same name: masks that several maps share."""
        return self._shared.setdefault(name, self[name])

    def shape(self, name: str) -> list[int]:
        return list(self._header[name]["shape"])

    def stored_bytes(self, name: str) -> int:
        start, stop = self._header[name]["data_offsets"]
        return int(stop - start)

    def mask(self, tree: Any) -> Mask | None:
        return read_written_mask(tree, self.shared)


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
