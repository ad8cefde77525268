"""Files of a checkpoint folder: JSON and safetensors, sharded or not. Pickle is never loaded.

Weights are memory-mapped: a tensor is read when its reader is called.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

__all__ = ["open_safetensors", "read_json", "replace_file", "weight_files"]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object; it holds a {type(values).__name__}")
    return values


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold a folder's weights."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index} is damaged: it has no weight_map of tensors to files")
        names = {str(name) for name in weight_map.values()}
        outside = sorted(name for name in names if Path(name).name != name)
        if outside:
            raise ValueError(f"{index} names {outside[0]!r}, which is no file of that folder")
        shards = sorted(folder / name for name in names)
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise FileNotFoundError(f"{folder} lacks {missing} that {index.name} speaks of")
        return shards
    pickles = sorted(path.name for path in folder.glob("*.bin")) + sorted(
        path.name for path in folder.glob("*.pt*")
    )
    if pickles:
        raise ValueError(
            f"{folder} has its weights in {pickles[0]}, which is a pickle: loading it can run any "
            f"program, so jumok never does. Convert it where you trust it: with transformers, "
            f"AutoModel.from_pretrained(folder).save_pretrained(new_folder) writes safetensors."
        )
    others = sorted(
        one.name for kind in ("*.h5", "*.msgpack", "*.onnx") for one in folder.glob(kind)
    )
    more = f", only {others[0]}, which jumok doesn't read" if others else ""
    raise FileNotFoundError(f"{folder} has no model.safetensors{more}")


def open_safetensors(paths: Iterable[Path]) -> dict[str, Callable[[], Tensor]]:
    """The tensors of all files: name → a function that reads it."""
    readers: dict[str, Callable[[], Tensor]] = {}
    for path in paths:
        with path.open("rb") as opened:
            start = opened.read(64)
        if not start:
            raise ValueError(f"{path} is empty")
        if start.startswith(b"version https://git-lfs"):
            raise ValueError(
                f"{path} is only a pointer of Git LFS, not the weights: run `git lfs pull` there"
            )
        try:
            file = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None
        for name in file.keys():  # type: ignore[no-untyped-call]  # noqa: SIM118
            if name in readers:
                raise ValueError(f"{path}: the tensor {name!r} is in another shard as well")
            readers[name] = _reader(file, name)
    return readers


def _reader(file: Any, name: str) -> Callable[[], Tensor]:
    return lambda: file.get_tensor(name)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
