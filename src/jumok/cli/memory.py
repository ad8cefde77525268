"""How much memory there is."""

from pathlib import Path


def free_memory() -> int | None:
    """Bytes that may still be used, where the system says so (Linux, its containers too)."""

    def table(path: str) -> dict[str, int]:
        lines = (line.split() for line in Path(path).read_text().splitlines())
        return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}

    try:
        free = table("/proc/meminfo")["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        used = int((group / "memory.current").read_text())
        cached = table(str(group / "memory.stat"))["inactive_file"]
        free = min(free, int((group / "memory.max").read_text()) - used + cached)
    except (OSError, KeyError, ValueError):  # no such group, or one without a limit
        pass
    return free
