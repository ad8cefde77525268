"""Recordings as safetensors files: the arrays of every call, and one JSON object about them.

Under the metadata key ``jumok`` lies ``{"format", "model", "maps", "ids", "decoder_ids", "texts",
"without_attention"}``; each of ``maps`` says of one call its name, shape, scale, mask and the names
of its arrays. ``texts`` names for each sequence of the ids an array of bytes: JSON, what its tokens
say (`jumok.lens.labelled`).
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import TensorSpec, serialize_file

from jumok.lens.attention_map import AttentionMap
from jumok.lens.call import Array
from jumok.lens.rules import written_mask
from jumok.lens.stored import FileArray

FORMAT = 1
"""Version of the JSON object."""


def described(
    model_name: str,
    maps: list[dict[str, Any]],
    texts: dict[str, Any],
    without_attention: dict[str, str] | None = None,
) -> str:
    """The JSON object of a recording; `texts` names the arrays of its ids and labels."""
    header: dict[str, Any] = {"format": FORMAT, "model": model_name, "maps": maps, **texts}
    if without_attention:
        header["without_attention"] = without_attention
    return json.dumps(header, ensure_ascii=False)


class Writer:
    """Collects arrays, each once, and writes them in one go."""

    def __init__(self) -> None:
        self._arrays: dict[str, tuple[np.ndarray[Any, Any], str]] = {}
        self._names: dict[int, str] = {}
        self._alive: list[Array] = []

    def add(self, name: str, array: Array) -> str:
        known = self._names.get(id(array))
        if known is None:
            known = self._names[id(array)] = name
            self._alive.append(array)
            self._arrays[name] = bare_array(array)
        return known

    def entry(self, found: AttentionMap) -> dict[str, Any]:
        """A map as JSON, its arrays collected."""
        call = found.call
        prefix = found.name
        entry: dict[str, Any] = {
            "name": found.name,
            "shape": list(found.shape),
            "heads": list(found.heads),
            "scale": call.scale,
            "softcap": call.softcap,
            "mask": written_mask(call.mask, f"{prefix}.mask", self.add),
            "value_note": found.value_note,
        }
        arrays = {"q": call.q, "k": call.k, "v": call.v, "lse": call.lse, "bias": call.bias,
                  "sinks": call.sinks, "value_norms": found.value_norms()}  # fmt: skip
        for kind, array in arrays.items():
            if array is not None:
                entry[kind] = self.add(f"{prefix}.{kind}", array)
        return entry

    def write(self, path: Path, header: str) -> None:
        specs = {
            name: TensorSpec(
                dtype=dtype,
                shape=array.shape,
                data_ptr=array.ctypes.data,
                data_len=array.nbytes,
            )
            for name, (array, dtype) in self._arrays.items()
        }
        folder = path.parent
        if path.is_dir():
            raise IsADirectoryError(f"cannot save to {os.fspath(path)!r}: that is a folder")
        if not folder.is_dir():
            raise FileNotFoundError(
                f"cannot save to {os.fspath(path)!r}: no folder {str(folder)!r}"
            )
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
        os.close(handle)
        try:
            serialize_file(specs, temporary, {"jumok": header})
            os.chmod(temporary, free_permissions())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def free_permissions() -> int:
    """What a new file of the user is allowed to be."""
    current = os.umask(0)
    os.umask(current)
    return 0o666 & ~current


def bare_array(array: Array) -> tuple[np.ndarray[Any, Any], str]:
    """A contiguous NumPy array and the name of its type, bfloat16 as its bits."""
    if isinstance(array, FileArray):
        return array.bits()
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array), array.dtype.name
    array = array.detach().cpu().contiguous()
    if "bfloat16" in str(array.dtype):
        return array.view(_int16_of(array)).numpy(), "bfloat16"
    plain: np.ndarray[Any, Any] = array.numpy()
    return plain, plain.dtype.name


def _int16_of(array: Array) -> Any:
    from array_api_compat import array_namespace

    return array_namespace(array).int16
