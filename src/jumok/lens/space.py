"""How much memory is free, so that a recording which cannot fit is refused before it is tried."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

_GROUPS = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int | None:
    """Bytes of memory that can still be taken on a device; `None` where nobody can say."""
    if device.type == "cpu":
        return _free_main_memory()
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + kept)
    return None


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
