"""Fair figures on a noisy machine: runs in turns, and peak memory in a child process.

Times of runs in turns are compared pair by pair, so that a slow minute of the machine slows
both sides of a ratio. Memory is the kernel's own high-water mark of resident memory, reset
after everything is loaded, in a process that does nothing else.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Timings:
    """Seconds of every run: ``seconds[name][round]``."""

    seconds: dict[str, list[float]]

    @property
    def medians(self) -> dict[str, float]:
        """Median seconds of each function."""
        return {name: statistics.median(runs) for name, runs in self.seconds.items()}

    def ratio(self, name: str, base: str) -> float:
        """Median over the rounds of ``name``'s time divided by ``base``'s in the same round."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    def difference(self, name: str, base: str) -> float:
        """Median over the rounds of ``name``'s seconds minus ``base``'s in the same round."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return statistics.median(mine - other for mine, other in pairs)


def interleaved(
    functions: Mapping[str, Callable[..., Any]],
    rounds: int,
    *,
    prepare: Callable[[], Any] | None = None,
    repeat: int = 1,
    warm_up: int = 1,
) -> Timings:
    """Time functions in turns: each round runs all of them, in alternating order.

    Args:
        functions: what to time, by name. Called with no argument, or with what ``prepare``
            returned.
        rounds: how many times each runs, after ``warm_up`` rounds that don't count.
        prepare: called before every single run, outside the timing: fresh inputs.
        repeat: calls within one timed run, for functions of microseconds; the time is divided.

    Returns:
        All the times; see `Timings.medians` and `Timings.ratio`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(-warm_up, rounds):
        order = list(functions.items())
        for name, function in order if turn % 2 else reversed(order):
            arguments = () if prepare is None else (prepare(),)
            start = time.perf_counter()
            for _ in range(repeat):
                function(*arguments)
            elapsed = (time.perf_counter() - start) / repeat
            if turn >= 0:
                seconds[name].append(elapsed)
    return Timings(seconds)


def peak_memory(
    prepare: Callable[..., Any], work: Callable[[Any], Any], *arguments: Any
) -> tuple[int, int]:
    """Peak resident memory of ``work(prepare(*arguments))`` in a fresh child process.

    Both functions must be importable (module level), and the script guarded by
    ``if __name__ == "__main__"``. Linux only.

    Returns:
        ``(peak, before)`` in bytes: the highest resident memory while ``work`` ran, and the
        resident memory just before it.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_measured, args=(send, prepare, work, arguments))
    child.start()
    send.close()
    try:
        answer = receive.recv()
    except EOFError:
        child.join()
        raise MemoryError(
            f"the child process that ran {work.__name__} ended with exit code {child.exitcode}"
        ) from None
    child.join()
    peak, before = answer
    return peak, before


def peak_extra_memory(
    prepare: Callable[..., Any], work: Callable[[Any], Any], *arguments: Any
) -> int:
    """Bytes by which ``work(prepare(*arguments))`` rises above what ``prepare`` left resident."""
    peak, before = peak_memory(prepare, work, *arguments)
    return peak - before


def _measured(
    send: Any, prepare: Callable[..., Any], work: Callable[[Any], Any], arguments: tuple[Any, ...]
) -> None:
    state = prepare(*arguments)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to the present resident size
    before = _status("VmRSS")
    kept = work(state)
    peak = _status("VmHWM")
    send.send((peak, before))
    del kept


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}: peak memory is measured on Linux only")
