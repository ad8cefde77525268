"""What a lesson is, what it finds, and how its verdict follows from the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Check", "Findings", "Lesson", "Result", "Running", "Table", "Verdict", "Words", "run"]

Language = Literal["en", "ko"]
LANGUAGES: tuple[Language, ...] = ("en", "ko")
Tell = Callable[[str, float], None]
"""(what is being done, how much of the whole is done, 0 to 1)"""
Cell = "str | int | float | Words"


@dataclass(frozen=True)
class Words:
    """The same text in English and in Korean."""

    en: str
    ko: str

    def in_(self, language: Language) -> str:
        return self.ko if language == "ko" else self.en

    def format(self, **values: Any) -> Words:
        """Both texts with their {fields} filled in."""
        return Words(self.en.format(**values), self.ko.format(**values))


Verdict = Literal["holds", "holds partly", "doesn't hold here"]

VERDICTS: dict[Verdict, Words] = {
    "holds": Words("holds", "맞다"),
    "holds partly": Words("holds partly", "일부만 맞다"),
    "doesn't hold here": Words("doesn't hold here", "여기서는 맞지 않다"),
}


@dataclass(frozen=True)
class Running:
    """How a lesson is run.

    Attributes:
        quick: in seconds instead of minutes; the verdict must come out the same.
        seed: of everything random.
        tell: takes what is being done and how much of the whole is done (0 to 1).
    """

    quick: bool = False
    seed: int = 0
    tell: Tell = field(default=lambda what, part: None)


@dataclass(frozen=True)
class Table:
    """A small table of results.

    Attributes:
        title: what it shows, with units.
        columns: names of the columns.
        rows: texts and numbers; numbers are shown with three significant digits, so give a text
            where that is wrong.
    """

    title: Words
    columns: tuple[Words | str, ...]
    rows: Sequence[Sequence[str | int | float | Words]]


@dataclass(frozen=True)
class Check:
    """One statement of the claim, and whether the numbers bear it out.

    Attributes:
        statement: what is claimed, as a sentence.
        holds: computed from the numbers, never written down.
        figures: the numbers that it was computed from.
    """

    statement: Words
    holds: bool
    figures: str


@dataclass(frozen=True)
class Findings:
    """What a lesson measured.

    Attributes:
        tables: one or more.
        checks: the statements that the claim consists of.
        draw: draws one clear figure on an empty matplotlib figure, in a language.
        remark: what else the numbers say: limits, what rescues the claim, what surprised.
    """

    tables: tuple[Table, ...]
    checks: tuple[Check, ...]
    draw: Callable[[Figure, Language], None]
    remark: Words | None = None

    @property
    def verdict(self) -> Verdict:
        """All checks hold, some, or none."""
        held = [check.holds for check in self.checks]
        if all(held):
            return "holds"
        return "holds partly" if any(held) else "doesn't hold here"


@dataclass(frozen=True)
class Lesson:
    """A claim and the experiment that tests it.

    Attributes:
        name: as in ``jumok lesson NAME``.
        claim: what the textbook says, in our words.
        setup: what is done to test it, in a few sentences.
        run: the experiment.
    """

    name: str
    claim: Words
    setup: Words
    run: Callable[[Running], Findings]


@dataclass(frozen=True)
class Result:
    """A lesson that was run: its findings, and how long they took in seconds."""

    lesson: Lesson
    findings: Findings
    seconds: float
    quick: bool


def run(lesson: Lesson, running: Running | None = None) -> Result:
    """Run a lesson's experiment.

    Torch's random state is as before afterwards.
    """
    import torch

    running = Running() if running is None else running
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(running.seed)
        findings = lesson.run(running)
    return Result(lesson, findings, time.perf_counter() - start, running.quick)
