"""Snapshots as files: a folder that is there whole or not at all, with checksums.

    snapshots/step-00000100/snapshot.json         what is not a tensor, and every file's SHA-256
    snapshots/step-00000100/rank-00000.safetensors, rank-00001.safetensors, …

A snapshot is written under a hidden name, flushed to the disk and then renamed. Every process
writes the tensors, or the parts of tensors, that `torch.distributed.checkpoint` gives it to
write, and any number of processes read them again: each part says where in its tensor it lies,
as ``torch.distributed.checkpoint.HuggingFaceStorageReader`` expects. PyTorch's own file format
keeps that in a pickle, which can run any program when it is opened; here are safetensors and
JSON alone, as everywhere in jumok.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

__all__ = [
    "DamagedError",
    "Entry",
    "PartsWriter",
    "best_entry",
    "bytes_of",
    "check",
    "commit",
    "entries",
    "is_whole",
    "newest_whole",
    "read_manifest",
    "sweep",
    "temporary_for",
    "thin_out",
    "write_manifest",
]

MANIFEST = "snapshot.json"
_NAME = re.compile(r"step-(\d{8,})")
_FORMAT = 1
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class DamagedError(ValueError):
    """A snapshot that is not what was written."""


@dataclass(frozen=True)
class Entry:
    """A snapshot in its folder, as far as its name tells."""

    path: Path
    step: int


# The folder of snapshots ----------------------------------------------------------------------


def entries(folder: Path) -> list[Entry]:
    """The snapshots of a run, oldest first; whether they are whole is not looked at."""
    if not folder.is_dir():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir()]
    named = [Entry(path, int(name[1])) for name, path in found if name is not None]
    return sorted(named, key=lambda entry: entry.step)


def newest_whole(folder: Path) -> Path | None:
    """The newest snapshot whose every file is what was written; a word about damaged ones.

    Raises:
        DamagedError: there are snapshots, and none of them is whole.
    """
    there = entries(folder)
    for entry in reversed(there):
        try:
            check(entry.path)
        except DamagedError as error:
            warnings.warn(f"{error}; looking for the one before", stacklevel=2)
        else:
            return entry.path
    if there:
        raise DamagedError(
            f"every snapshot in {folder} is damaged: delete that folder to begin anew"
        )
    return None


def check(snapshot: Path) -> None:
    """See that every file is what was written.

    Raises:
        DamagedError: one is not.
    """
    _check_files(snapshot, read_manifest(snapshot))


def is_whole(snapshot: Path) -> bool:
    """Whether every file is what was written."""
    try:
        check(snapshot)
    except DamagedError:
        return False
    return True


def best_entry(folder: Path) -> Entry | None:
    """The snapshot with the lowest validation loss, if any has one."""
    scored = []
    for entry in entries(folder):
        try:
            score = read_manifest(entry.path)["validation"]
        except DamagedError:
            continue
        if score is not None and score == score:  # not NaN
            scored.append((score, -entry.step, entry))
    return min(scored)[2] if scored else None


def thin_out(folder: Path, keep: int) -> None:
    """Delete all but the newest ``keep`` snapshots and the best."""
    there = entries(folder)
    best = best_entry(folder)
    for entry in there[:-keep]:
        if entry != best:
            _delete(entry.path)


def sweep(folder: Path) -> None:
    """Delete what a process that was killed has left half-written or half-deleted."""
    if folder.is_dir():
        for path in folder.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)


def temporary_for(folder: Path, step: int) -> Path:
    """An empty folder, under a hidden name, to write the snapshot of a step into."""
    path = folder / f".step-{step:08d}.part"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def commit(temporary: Path) -> Path:
    """Give a finished snapshot its name."""
    path = temporary.with_name(temporary.name.removeprefix(".").removesuffix(".part"))
    if path.exists():  # found damaged when the run began
        _delete(path)
    _flush_folder(temporary)
    temporary.rename(path)
    _flush_folder(path.parent)
    return path


def _delete(path: Path) -> None:
    """Delete a snapshot such that nobody ever sees half of it."""
    hidden = path.with_name(f".{path.name}.gone")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


# The manifest ---------------------------------------------------------------------------------


def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
    """Write ``snapshot.json``, the last file of a snapshot."""
    content = {"format": _FORMAT, **values}
    text = json.dumps({**content, "checksum": _checksum(content)})
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(snapshot: Path) -> dict[str, Any]:
    """What ``snapshot.json`` says.

    Raises:
        DamagedError: it is not there, or not what was written.
    """
    path = snapshot / MANIFEST
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DamagedError(f"the snapshot {snapshot} has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path} cannot be read ({error})") from None
    if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
        raise DamagedError(f"{path} is not what was written")
    if content["format"] != _FORMAT:
        raise ValueError(
            f"{path} has format {content['format']}, which is not that of this jumok "
            f"({_FORMAT}): go on with the version that has written it"
        )
    return content


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_files(snapshot: Path, manifest: dict[str, Any]) -> None:
    for name, written in manifest["files"].items():
        path = snapshot / name
        try:
            size = path.stat().st_size
            if size != written["bytes"]:
                raise DamagedError(
                    f"{path} has {size:,} bytes, and {written['bytes']:,} were written"
                )
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DamagedError(f"{path} cannot be read ({error.strerror})") from None
        if found != written["sha256"]:
            raise DamagedError(f"{path} is not what was written: its checksum differs")


# Tensors --------------------------------------------------------------------------------------


class PartsWriter(StorageWriter):
    """Writes what each process holds into a safetensors file of its own, tensor by tensor.

    For ``torch.distributed.checkpoint.save``. Nothing is held twice in memory.

    Args:
        folder: an empty folder that all processes see.

    Attributes:
        files: in the main process, afterwards: name → bytes and SHA-256 of each file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        names = [f"rank-{rank:05d}.safetensors" for rank in range(len(plans))]
        return [replace(plan, storage_data=name) for plan, name in zip(plans, names, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        # The largest numbers first, so that every tensor is aligned. A part without numbers, of a
        # process that has no rows of a tensor, needs no place.
        items = [i for i in plan.items if i.tensor_data and i.tensor_data.chunk.sizes.numel()]
        items.sort(key=lambda item: -item.tensor_data.properties.dtype.itemsize)  # type: ignore[union-attr]
        if not items:
            done.set_result([])
            return done
        header: dict[str, Any] = {}
        places, end = {}, 0
        for item in items:
            assert item.tensor_data is not None
            chunk, dtype = item.tensor_data.chunk, item.tensor_data.properties.dtype
            if dtype not in _DTYPES:
                raise ValueError(f"cannot save {item.index.fqn}: no safetensors of {dtype}")
            start, end = end, end + chunk.sizes.numel() * dtype.itemsize
            header[item.index.fqn] = {
                "dtype": _DTYPES[dtype],
                "shape": list(chunk.sizes),
                "data_offsets": [start, end],
            }
            places[item.index.fqn] = {"saved_offsets": list(chunk.offsets)}
        header["__metadata__"] = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(places)}
        start_of_file = json.dumps(header).encode()
        start_of_file += b" " * (-len(start_of_file) % 8)

        digest = hashlib.sha256()
        path = self.folder / plan.storage_data
        with path.open("wb") as file:

            def put(part: bytes | memoryview) -> None:
                file.write(part)
                digest.update(part)

            put(len(start_of_file).to_bytes(8, "little"))
            put(start_of_file)
            for item in items:
                put(bytes_of(planner.resolve_data(item)))  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        written = (path.name, size, digest.hexdigest())
        done.set_result([WriteResult(item.index, 0, written) for item in items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        for of_one in results:
            for result in of_one[:1]:
                name, size, digest = result.storage_data
                self.files[name] = {"bytes": size, "sha256": digest}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's numbers as they lie in memory, row after row."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().data


def _flush_folder(folder: Path) -> None:
    """See that the names in a folder are on the disk, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
