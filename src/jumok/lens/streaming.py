"""A safetensors file that is written while a model runs, and is whole only at the end.

The format puts the header before the data and says in it where everything lies; so room for the
header is left at the front and filled last. Until then the file has a temporary name, and it is
deleted if anything goes wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from jumok.lens.call import Array
from jumok.lens.stored import TYPE_NAMES
from jumok.lens.writing import bare_array, free_permissions

_HEADER = 1 << 20  # bytes left for the header; a longer one costs a copy of the file
_ALIGNMENT = 64


class Stream:
    """Arrays on their way into a file.

    Args:
        path: name of the finished file; `None` for a temporary one.

    Raises:
        IsADirectoryError: that is a folder.
        FileNotFoundError: its folder is not there.
    """

    def __init__(self, path: Path | None) -> None:
        self.is_temporary = path is None
        folder = Path(tempfile.gettempdir()) if path is None else path.parent
        if path is not None and path.is_dir():
            raise IsADirectoryError(f"cannot record to {os.fspath(path)!r}: that is a folder")
        if not folder.is_dir():
            raise FileNotFoundError(f"cannot record to {os.fspath(path or folder)!r}: no folder")
        prefix = "jumok-" if path is None else f".{path.name}."
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=".safetensors", dir=folder)
        self._file = os.fdopen(handle, "wb")
        self._unfinished: Path | None = Path(name)
        self.path = Path(name) if path is None else path
        self._entries: dict[str, dict[str, Any]] = {}
        self._names: dict[int, str] = {}
        self._alive: list[Array] = []
        self._size = 0
        self._file.write(b" " * (8 + _HEADER))

    def put(self, name: str, array: Array) -> np.ndarray[Any, Any]:
        """Write an array; the same bytes come back, mapped from the file."""
        assert self._unfinished is not None
        bare, kind = bare_array(array)
        self._align()
        start = self._size
        self._write(name, bare, TYPE_NAMES[kind], bare.shape)
        self._file.flush()
        if bare.nbytes == 0:
            return bare.reshape(-1).view(np.uint8)
        # Private: nobody's writes go to the file, and torch takes it without a warning.
        return np.memmap(
            self._unfinished,
            dtype=np.uint8,
            mode="c",
            offset=8 + _HEADER + start,
            shape=(bare.nbytes,),
        )

    def put_shared(self, name: str, array: Array) -> str:
        """Write an array that several calls may share, once; its name comes back."""
        known = self._names.get(id(array))
        if known is None:
            known = self._names[id(array)] = name
            self._alive.append(array)
            self.put(name, array)
        return known

    def finish(self, description: str) -> None:
        """Write the header, and give the file its name."""
        assert self._unfinished is not None
        header = {"__metadata__": {"jumok": description}, **self._entries}
        text = json.dumps(header, ensure_ascii=False).encode()
        if len(text) > _HEADER:
            self._make_room(len(text))
        room = max(_HEADER, len(text))
        self._file.seek(0)
        self._file.write(room.to_bytes(8, "little") + text + b" " * (room - len(text)))
        self._file.close()
        os.chmod(self._unfinished, free_permissions())
        if not self.is_temporary:
            os.replace(self._unfinished, self.path)
        self._unfinished = None

    def abandon(self) -> None:
        """Delete what has been written, if it is not finished."""
        if self._unfinished is not None:
            self._file.close()
            self._unfinished.unlink(missing_ok=True)
            self._unfinished = None

    def delete(self) -> None:
        """Delete the file, finished or not."""
        self.abandon()
        self.path.unlink(missing_ok=True)

    def _align(self) -> None:
        """Begin at a multiple of 64 bytes. The format knows no holes, so they are tensors."""
        missing = -self._size % _ALIGNMENT
        if missing:
            filler = np.zeros(missing, np.uint8)
            self._write(f".fill.{len(self._entries)}", filler, "U8", filler.shape)

    def _write(self, name: str, array: np.ndarray[Any, Any], kind: str, shape: Any) -> None:
        start, self._size = self._size, self._size + array.nbytes
        self._entries[name] = {
            "dtype": kind,
            "shape": list(shape),
            "data_offsets": [start, self._size],
        }
        self._file.write(array.reshape(-1).view(np.uint8).data)

    def _make_room(self, length: int) -> None:
        """Copy the data into another file, with so much room before it."""
        assert self._unfinished is not None
        self._file.close()
        handle, name = tempfile.mkstemp(suffix=".safetensors", dir=self._unfinished.parent)
        wider = os.fdopen(handle, "wb")
        try:
            wider.write(b" " * (8 + length))
            with self._unfinished.open("rb") as old:
                old.seek(8 + _HEADER)
                shutil.copyfileobj(old, wider, 1 << 24)
        except BaseException:
            wider.close()
            os.unlink(name)
            raise
        self._unfinished.unlink()
        self._file, self._unfinished = wider, Path(name)
        if self.is_temporary:
            self.path = self._unfinished
