"""What a person sees while a run learns, on standard error.

A terminal has a bar that moves; anywhere else there is a line now and then.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

from jumok.tokens import printable, shortened
from jumok.training.log import Row

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Silence", "Terminal", "duration", "rounded"]

_SECONDS_BETWEEN_LINES = 10.0


class Silence:
    """Says nothing: in other processes than the main one, or where nobody wants to know."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """A line that stays."""

    def tell(self, what: str, done: int, total: int | None = None) -> None:
        """How far some work is, before training."""

    def step(self, row: Row, steps: int, seconds_left: float | None) -> None:
        """How training goes."""

    def evaluated(self, row: Row) -> None:
        """A validation loss, and what the model writes."""


class Terminal(Silence):
    """Progress with `rich` where standard error is a terminal, else plain lines."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live: Progress | None = None
        self._task: Any = None
        self._what = ""
        self._last_line = -math.inf
        self._validation: float | None = None

    def __enter__(self) -> Terminal:
        if self._console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[said]}"),
                console=self._console,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        if self._live is not None:
            self._console.print(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def tell(self, what: str, done: int, total: int | None = None) -> None:
        part = f"{done / total:.0%}" if total else f"{done:,}"
        if self._live is not None:
            self._show(what, done, total, part)
        elif what != self._what:
            self._what = what
            self.say(f"{what} …")

    def step(self, row: Row, steps: int, seconds_left: float | None) -> None:
        said = [f"loss {row['loss']:.3f}"]
        if self._validation is not None and self._live is not None:
            said.append(f"validation {self._validation:.3f}")
        said.append(f"{rounded(row['tokens_per_second'])} tokens/s")
        if "share_of_peak" in row:
            said.append(f"{row['share_of_peak']:.0%} of peak")
        if seconds_left is not None:
            said.append(f"{duration(seconds_left)} left")
        text = " · ".join(said)
        if self._live is not None:
            self._show(f"step {row['step']:,} of {steps:,}", row["step"], steps, text)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES or row["step"] == steps:
            self._last_line = time.monotonic()
            self.say(f"step {row['step']:,} of {steps:,} · {text}")

    def evaluated(self, row: Row) -> None:
        if "validation" in row:
            self._validation = row["validation"]
            known = f" · loss {row['loss']:.3f}" if "loss" in row else ""
            self.say(f"step {row['step']:,} · validation loss {row['validation']:.3f}{known}")
        for given, made in row.get("samples", [])[:1]:
            self.say(f"  {_one_line(given)} ▸ {_one_line(made)}")

    def _show(self, what: str, done: int, total: int | None, said: str) -> None:
        assert self._live is not None
        if self._task is None:
            self._task = self._live.add_task(what, total=total, completed=done, said=said)
        self._live.update(self._task, description=what, total=total, completed=done, said=said)


def _one_line(text: str) -> str:
    return shortened(printable(text.strip()).replace("\n", "⏎").replace("\t", "⇥"), 160)


def duration(seconds: float) -> str:
    """A time for people: 42 s, 3:05 min, 2:10 h, 3 days 4 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    if whole < 86400:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def rounded(number: float) -> str:
    """A number with three digits that count: 12,300."""
    if number == 0 or not math.isfinite(number):
        return str(number)
    digits = 2 - math.floor(math.log10(abs(number)))
    return f"{round(number, digits):,.{max(0, digits)}f}"
