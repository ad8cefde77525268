"""A recording: the attention calls of a model, in order, and how they are kept in a file.

The file is safetensors: the arrays of every call, and one JSON object under the metadata key
``jumok`` that says what they are. It opens with NumPy alone; arrays stay in the file, mapped
into memory, until they are asked for.
"""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from jumok.lens.attention_map import AttentionMap, readable_bytes
from jumok.lens.call import Array, AttentionCall
from jumok.masks import Both, Causal, Dense, Everything, Mask, Padding, Steps, Window

FORMAT = 1
"""Version of the file's JSON object."""


class Recording(Sequence[AttentionMap]):
    """The attention maps of a model's run, in the order of the calls.

    ``recording[3]`` is the fourth map, ``recording["layers.3.attention"]`` the one of that
    module (``name#1``, ``name#2`` for further calls of the same module).

    Attributes:
        model_name: class name of the model, or what it was called.
        ids: token ids the model was given, NumPy (batch, tokens), those of later decode steps
            appended; `None` if it was given none.
    """

    def __init__(self, model_name: str, maps: Sequence[AttentionMap] = ()) -> None:
        self.model_name = model_name
        self.ids: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self._maps = list(maps)

    def __len__(self) -> int:
        return len(self._maps)

    @overload
    def __getitem__(self, index: int | str) -> AttentionMap: ...

    @overload
    def __getitem__(self, index: slice) -> list[AttentionMap]: ...

    def __getitem__(self, index: int | str | slice) -> AttentionMap | list[AttentionMap]:
        if isinstance(index, str):
            for found in self._maps:
                if found.name == index:
                    return found
            near = difflib.get_close_matches(index, self.names, n=3, cutoff=0.3)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise KeyError(f"no attention named {index!r} was recorded.{hint}")
        if not isinstance(index, slice) and not -len(self) <= index < len(self):
            raise IndexError(f"recording[{index}]: the recording has {len(self)} maps")
        return self._maps[index]

    def append(self, found: AttentionMap) -> None:
        """Add a map at the end; `jumok.watch` does this while the model runs."""
        self._maps.append(found)

    @property
    def names(self) -> list[str]:
        """Names of the maps, in order."""
        return [found.name for found in self._maps]

    @property
    def nbytes(self) -> int:
        """Bytes that all weights would take in float32. None of them are held."""
        return sum(found.nbytes for found in self._maps)

    @property
    def held_bytes(self) -> int:
        """Bytes that are really held; a mask shared by several maps counts once."""
        shared: dict[int, int] = {}
        total = 0
        for found in self._maps:
            total += found.held_bytes
            for array in _shared_arrays(found.call):
                shared[id(array)] = _array_bytes(array)
        return total + sum(shared.values())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(title=f"{self.model_name}: {len(self)} attention maps", title_justify="left")
        for heading, justify in (
            ("", "right"), ("layer", "left"), ("batch", "right"), ("heads", "right"),
            ("queries", "right"), ("keys", "right"), ("held", "right"), ("as weights", "right"),
        ):  # fmt: skip
            table.add_column(heading, justify=justify, no_wrap=heading != "layer")  # type: ignore[arg-type]
        for number, found in enumerate(self._maps):
            table.add_row(
                str(number),
                found.name,
                *map(str, found.shape),
                readable_bytes(found.held_bytes),
                readable_bytes(found.nbytes),
            )
        table.add_section()
        table.add_row(
            "", "all", "", "", "", "", readable_bytes(self.held_bytes), readable_bytes(self.nbytes)
        )
        yield table

    def __repr__(self) -> str:
        console = Console(width=100, no_color=True, highlight=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to one safetensors file, which `jumok.open` opens without torch.

        The file appears under its name only when it is complete. Output projections are not
        written; the norms of the values through them are, so that norm-weighted shares can
        still be had.
        """
        writer = _Writer()
        maps = [writer.entry(found) for found in self._maps]
        header = {"format": FORMAT, "model": self.model_name, "maps": maps}
        if self.ids is not None:
            header["ids"] = writer.add("ids", self.ids)
        writer.write(Path(path), json.dumps(header, ensure_ascii=False))


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording that `Recording.save` wrote. Needs no torch.

    The arrays stay in the file until a map is used; weights come out as NumPy arrays.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a whole safetensors file, or not a recording.
    """
    file = Path(path)
    if not file.is_file():
        what = "that is a folder" if file.is_dir() else "there is no such file"
        raise FileNotFoundError(f"no recording at {os.fspath(path)!r}: {what}")
    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
    except SafetensorError as error:
        raise ValueError(
            f"{os.fspath(path)!r} is not a whole safetensors file ({error}); was it cut off, or is "
            f"it something else?"
        ) from None
    if "jumok" not in metadata:
        raise ValueError(
            f"{os.fspath(path)!r} is a safetensors file but not a recording; record a model with "
            f"jumok.watch and write it with recording.save(path)"
        )
    try:
        header = json.loads(metadata["jumok"])
        version = int(header["format"])
        if version <= FORMAT:
            return _read(header, _Arrays(file))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(
            f"{os.fspath(path)!r}: the description of the recording is damaged "
            f"({type(error).__name__}: {error}); record the model again"
        ) from None
    raise ValueError(
        f"{os.fspath(path)!r} was written by a newer jumok (format {version}, this one reads up to "
        f"{FORMAT}); update jumok to open it"
    )


def _read(header: dict[str, Any], arrays: _Arrays) -> Recording:
    sources = [_Stored(entry, arrays) for entry in header["maps"]]
    for source in sources:
        source.check()
    recording = Recording(str(header["model"]), [AttentionMap(source) for source in sources])
    if "ids" in header:
        recording.ids = np.array(arrays[header["ids"]])
    return recording


# -- writing ----------------------------------------------------------------------------------


class _Writer:
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
            self._arrays[name] = _to_numpy(array)
        return known

    def entry(self, found: AttentionMap) -> dict[str, Any]:
        call = found.call
        prefix = found.name
        entry: dict[str, Any] = {
            "name": found.name,
            "shape": list(found.shape),
            "scale": call.scale,
            "softcap": call.softcap,
            "mask": self._mask(call.mask, f"{prefix}.mask"),
            "value_note": found.value_note,
        }
        arrays = {"q": call.q, "k": call.k, "v": call.v, "lse": call.lse, "bias": call.bias,
                  "sinks": call.sinks, "value_norms": found.value_norms()}  # fmt: skip
        for kind, array in arrays.items():
            if array is not None:
                entry[kind] = self.add(f"{prefix}.{kind}", array)
        return entry

    def _mask(self, mask: Mask | None, name: str) -> dict[str, Any] | None:
        if mask is None or isinstance(mask, Everything):
            return None
        if isinstance(mask, Causal):
            return {"rule": "causal", "offset": mask.offset}
        if isinstance(mask, Window):
            return {"rule": "window", "size": mask.size, "ahead": mask.ahead,
                    "offset": mask.offset}  # fmt: skip
        if isinstance(mask, (Padding, Dense)):
            kind = "padding" if isinstance(mask, Padding) else "dense"
            return {"rule": kind, "visible": self.add(name, mask.visible)}
        if isinstance(mask, Both):
            rules = [self._mask(rule, f"{name}.{n}") for n, rule in enumerate(mask.rules)]
            return {"rule": "both", "rules": rules}
        if isinstance(mask, Steps):
            parts = [
                [self._mask(rule, f"{name}.{n}"), queries, keys]
                for n, (rule, queries, keys) in enumerate(mask.parts)
            ]
            return {"rule": "steps", "parts": parts}
        raise TypeError(
            f"a mask rule of type {type(mask).__name__} cannot be saved; use the rules of "
            f"jumok.masks, or Dense(rule.dense(…))"
        )

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
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _to_numpy(array: Array) -> tuple[np.ndarray[Any, Any], str]:
    """A contiguous NumPy array and the name of its type, bfloat16 as its bits."""
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


# -- reading ----------------------------------------------------------------------------------

_DTYPES = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype("u1"), "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"), "F64": np.dtype("<f8"),
}  # fmt: skip


class _Arrays:
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

    def mask(self, tree: dict[str, Any] | None) -> Mask | None:
        if tree is None:
            return None
        rule = tree["rule"]
        if rule == "causal":
            return Causal(tree["offset"])
        if rule == "window":
            return Window(tree["size"], tree["ahead"], tree["offset"])
        if rule in ("padding", "dense"):
            visible = self.shared(tree["visible"])
            return Padding(visible) if rule == "padding" else Dense(visible)
        if rule == "both":
            rules = (self.mask(part) for part in tree["rules"])
            return Both(tuple(part for part in rules if part is not None))
        if rule != "steps":
            raise KeyError(rule)
        return Steps(
            tuple((self.mask(part), queries, keys) for part, queries, keys in tree["parts"])
        )


@dataclass(eq=False)
class _Stored:
    """The source of a map that lies in a file."""

    entry: dict[str, Any]
    arrays: _Arrays
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


# -- bytes ------------------------------------------------------------------------------------


def _shared_arrays(call: AttentionCall) -> Iterator[Array]:
    """Arrays of a call that other calls may share: masks and biases."""
    if call.bias is not None:
        yield call.bias
    if call.mask is not None:
        yield from mask_arrays(call.mask)


def mask_arrays(mask: Mask) -> Iterator[Array]:
    """The arrays that a rule holds."""
    if isinstance(mask, (Padding, Dense)):
        yield mask.visible
    elif isinstance(mask, Both):
        for rule in mask.rules:
            yield from mask_arrays(rule)
    elif isinstance(mask, Steps):
        for part, _, _ in mask.parts:
            if part is not None:
                yield from mask_arrays(part)


def _array_bytes(array: Array) -> int:
    return int(array.nbytes)
