"""Small tasks that examples can be made of without end: for lessons, tests and first runs.

Example number i of a task is a function of (task, seed, i) alone.
"""

from __future__ import annotations

import datetime
import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from jumok.training.corpus import Corpus, Cut, Fragment, Place, Tell, fragments_of

__all__ = ["TASKS", "Task", "number_words"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_EXAMPLES = 20_000
# Not those of `calendar`, which speaks the language of the system.
# fmt: off
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)
# fmt: on
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def _copy(random: random.Random) -> tuple[str, str]:
    word = _letters(random, 4, 12)
    return word, word


def _reversal(random: random.Random) -> tuple[str, str]:
    word = _letters(random, 4, 12)
    return word, word[::-1]


def _induction(random: random.Random) -> tuple[str, str]:
    """Every letter comes once, then one of them again: what came after it?"""
    letters = random.sample(_LETTERS, random.randint(6, 16))
    asked = random.randrange(len(letters) - 1)
    return " ".join([*letters, letters[asked]]), letters[asked + 1]


def _dates(random: random.Random) -> tuple[str, str]:
    day = datetime.date(1900, 1, 1) + datetime.timedelta(days=random.randrange(200 * 365))
    month, weekday = _MONTHS[day.month - 1], _WEEKDAYS[day.weekday()]
    form = random.choice(
        (
            "{day} {month} {year}",
            "{month} {day}, {year}",
            "{weekday}, {month} {nth}, {year}",
            "the {nth} of {month} {year}",
            "{short} {day} {year}",
            "{weekday} {day} {short} {year}",
            "{number}/{day}/{year}",
            "{day}.{number}.{year}",
        )
    )
    text = form.format(
        day=day.day,
        month=month,
        short=month[:3],
        year=day.year,
        weekday=weekday,
        nth=_nth(day.day),
        number=day.month,
    )
    return text, day.isoformat()


def _sums(random: random.Random) -> tuple[str, str]:
    first, second = (random.randrange(10 ** random.randint(1, 4)) for _ in range(2))
    return f"{first}+{second}", str(first + second)


def _numbers(random: random.Random) -> tuple[str, str]:
    number = random.randrange(10 ** random.randint(1, 6))
    return number_words(number), str(number)


TASKS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "copy": _copy,
    "reversal": _reversal,
    "induction": _induction,
    "dates": _dates,
    "sums": _sums,
    "numbers": _numbers,
}
"""Each makes a (source, target) pair: letters, and the same; letters, and backwards; letters of
which one comes again, and what followed it; a date as people write it, and as ISO 8601 does; a
sum of two numbers, and its value; a number in words, and in digits."""


class Task(Corpus):
    """Examples of a task: pairs, or lines of text "source = target".

    Args:
        task: one of `TASKS`.
        examples: how many.
        seed: of the examples.
        pairs: give (source, target); otherwise each document is ``source = target``.
    """

    def __init__(
        self, task: str, examples: int = _EXAMPLES, seed: int = 0, pairs: bool = False
    ) -> None:
        if task not in TASKS:
            raise ValueError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
        if examples < 1:
            raise ValueError(f"task:{task} with {examples} examples: at least 1")
        self.task, self.examples, self.seed, self.pairs = task, examples, seed, pairs
        self.name = f"task:{task}:{examples}:{seed}"
        first = [sum(map(len, self.example(i))) for i in range(min(100, examples))]
        self.n_bytes = examples * sum(first) // len(first)

    @classmethod
    def named(cls, name: str, pairs: bool) -> Task:
        """A task from its name: "task:copy", "task:copy:5000", "task:copy:5000:1"."""
        _, task, *numbers = name.split(":")
        if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
            raise ValueError(
                f"{name}: a task is task:NAME, task:NAME:EXAMPLES or task:NAME:EXAMPLES:SEED"
            )
        examples, seed = [*map(int, numbers), *(_EXAMPLES, 0)[len(numbers) :]]
        return cls(task, examples, seed, pairs)

    def example(self, number: int) -> tuple[str, str]:
        """(source, target) of an example."""
        return TASKS[self.task](random.Random(f"{self.task}/{self.seed}/{number}"))

    def fragments(self, start: Place | None = None, cut: Cut | None = None) -> Iterator[Fragment]:
        for number in range(start.offset if start else 0, self.examples):
            source, target = self.example(number)
            document = (source, target) if self.pairs else f"{source} = {target}"
            yield from fragments_of(document, Place(0, number + 1), cut)

    def digest(self, known: dict[str, list[Any]] | None = None, tell: Tell | None = None) -> str:
        first = [self.example(number) for number in range(min(100, self.examples))]
        text = repr((self.name, self.pairs, first))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def number_words(number: int) -> str:
    """A number from 0 to 999,999 in English words: 342 → "three hundred forty-two"."""
    if number >= 1000:
        rest = f" {number_words(number % 1000)}" if number % 1000 else ""
        return f"{number_words(number // 1000)} thousand{rest}"
    if number >= 100:
        rest = f" {number_words(number % 100)}" if number % 100 else ""
        return f"{_ONES[number // 100]} hundred{rest}"
    if number >= 20:
        return _TENS[number // 10 - 2] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    return _ONES[number]


# fmt: off
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)
# fmt: on
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def _letters(random: random.Random, least: int, most: int) -> str:
    return "".join(random.choice(_LETTERS) for _ in range(random.randint(least, most)))


def _nth(day: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day % 10 if day not in (11, 12, 13) else 0, "th")
    return f"{day}{ending}"
