"""How much memory is free, so that a recording which cannot fit is refused before it is tried."""

from __future__ import annotations

import ctypes
import functools
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from jumok.lens.attention_map import readable_bytes
from jumok.lens.call import AttentionCall
from jumok.lens.chosen_layers import ChosenLayers
from jumok.lens.keeping import Policy
from jumok.lens.streaming import Stream

_GROUPS = Path("/sys/fs/cgroup")
_LARGE = 256 << 20  # bytes; for less than this nobody looks


class Room:
    """Whether what is left of a forward still fits.

    Args:
        policy: what is kept of each call.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._forward = 0
        self._calls = 0  # of this forward
        self._most = 0  # of any forward before

    def check(
        self,
        call: AttentionCall,
        shared: int,
        module: torch.nn.Module,
        modules: Mapping[torch.nn.Module, str],
        layers: ChosenLayers,
        forward: int,
        stream: Stream | None,
    ) -> None:
        """Look before a call is kept.

        It is taken that the calls still to come are as large. Of them there are as many as an
        earlier forward had; in the first forward, as many as there are modules like this one.

        Args:
            call: about to be kept.
            shared: how many of its keys are held already.
            module: where it runs.
            modules: all modules of the model, and their paths.
            layers: which of them are recorded.
            forward: number of the model's forward.
            stream: where it is kept, if that is a file.

        Raises:
            ValueError: there is not enough free memory, or disk, for all of them.
        """
        if forward != self._forward:
            self._most = max(self._most, self._calls)
            self._forward, self._calls = forward, 0
        self._calls += 1
        size = _kept_bytes(call, shared, self._policy)
        if size * max((self._most or len(modules)) - self._calls + 1, 1) < _LARGE:
            return
        alike = self._most
        if not alike:
            paths = [path for one, path in modules.items() if type(one) is type(module)]
            alike = sum(layers.include(number, path) for number, path in enumerate(paths))
        left = max(alike - self._calls + 1, 1)
        if size * left < _LARGE:
            return
        if stream is not None:
            free: int | None = free_disk(stream.path.parent)
            where = f"on the disk of {str(stream.path.parent)!r}"
        else:
            place = torch.device("cpu") if self._policy.place == "cpu" else call.q.device
            free, where = free_bytes(place), f"in memory ({place})"
        if free is not None and size * left > free:
            raise ValueError(
                f"this forward would add {readable_bytes(size * left)} to the record "
                f"({readable_bytes(size)} for each of {left} more attention calls of "
                f"{call.shape[2]:,} queries), and {readable_bytes(free)} are free {where}. "
                f"{self._advice(call, shared, left)}"
            )

    def _advice(self, call: AttentionCall, shared: int, left: int) -> str:
        options = []
        if self._policy.values:
            smaller = Policy(False, self._policy.dtype, self._policy.place, self._policy.heads)
            size = readable_bytes(left * _kept_bytes(call, shared, smaller))
            options.append(f"keep='qk', without the values ({size})")
        if self._policy.dtype is None and call.q.element_size() > 2:
            smaller = Policy(
                self._policy.values, torch.bfloat16, self._policy.place, self._policy.heads
            )
            size = readable_bytes(left * _kept_bytes(call, shared, smaller))
            options.append(f"dtype=torch.bfloat16 ({size})")
        options += ["layers=[…]", "heads=[…]"]
        if self._policy.place != "disk":
            options.append("to='disk'")
        options.append("measure=['entropy', …], which keeps no tensors")
        return "Smaller is watch(model, …) with " + ", ".join(options)


def _kept_bytes(call: AttentionCall, shared: int, policy: Policy) -> int:
    """What is new of a call and will be kept."""
    batch, heads, queries, width = call.q.shape
    new = call.k.shape[2] - shared
    size = batch * heads * queries * (width * policy.stored_dtype(call.q).itemsize + 4)
    for tensor in (call.k, call.v if policy.values else None):
        if tensor is not None:
            each = tensor.shape[3] * policy.stored_dtype(tensor).itemsize
            size += batch * tensor.shape[1] * new * each
    if not policy.values:
        size += 4 * batch * heads * new  # the norms in their place
    return int(size)


def free_bytes(device: torch.device) -> int | None:
    """Bytes of memory that can still be taken on a device; `None` where nobody can say."""
    if device.type == "cpu":
        return _free_main_memory()
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + kept)
    return None


def release_holes() -> None:
    """Give what lies free inside the heap back to the system.

    A model frees and takes tensors of many megabytes all the time. What a recording keeps among
    them, however small, leaves the heap full of holes into which the next large one does not fit;
    the GNU C library lets go of them only when it is asked.
    """
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.cache
def _c_library() -> Any:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def free_disk(folder: Path) -> int:
    """Bytes free on the disk of a folder."""
    return shutil.disk_usage(folder).free


def _free_main_memory() -> int | None:
    """What the system could hand out, and what the limit of its control group leaves."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None  # not Linux
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limits = found + [room for room in (_room(*pair) for pair in _limits()) if room is not None]
    return min(limits, default=None)


def _limits() -> list[tuple[Path, str, str]]:
    """Files that say the limit and the use of this process' control groups, and of those above."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = _GROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = _GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = root / path.lstrip("/")
        above = [place for place in folder.parents if place.is_relative_to(root)]
        found += [(place, *names) for place in (folder, *above)]
    return found


def _room(folder: Path, limit: str, use: str) -> int | None:
    try:
        most = (folder / limit).read_text().strip()
        used = int((folder / use).read_text())
        statistics = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    if most == "max":
        return None
    # Pages of files that nobody has used for a while are given up first.
    idle = [int(line.split()[1]) for line in statistics if line.startswith("inactive_file ")]
    return max(0, int(most) - used + sum(idle[:1]))
