"""Generated tasks: right answers, checked in another way than they are made."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterator

import pytest

from jumok.training.tasks import Task, number_words


def examples(task: str) -> Iterator[tuple[str, str]]:
    made = Task(task, 500, pairs=True)
    return (made.example(number) for number in range(500))


def test_copy_and_reversal() -> None:
    assert all(source == target for source, target in examples("copy"))
    assert all(source == "".join(reversed(target)) for source, target in examples("reversal"))


def test_induction_asks_for_what_followed() -> None:
    for source, target in examples("induction"):
        *letters, asked = source.split()
        assert len(set(letters)) == len(letters)
        assert dict(itertools.pairwise(letters))[asked] == target


def test_sums() -> None:
    for source, target in examples("sums"):
        first, second = source.split("+")
        assert int(first) + int(second) == int(target)


def test_dates() -> None:
    forms = set()
    for source, target in examples("dates"):
        day = datetime.date.fromisoformat(target)
        numbers = [int(number) for number in re.findall(r"\d+", source)]
        assert day.year in numbers
        assert day.day in numbers
        words = re.findall(r"[A-Z]\w+", source)
        named = [day.strftime(form) for form in ("%A", "%B", "%b")]
        assert all(word in named for word in words)
        assert words or day.month in numbers
        forms.add(re.sub(r"\d+", "9", re.sub(r"[A-Z]\w+", "A", source)))
    assert len(forms) >= 8


def test_dates_tell_day_and_month_apart() -> None:
    """5/7/2020 is the month first, 5.7.2020 the day first, as it is written there."""
    for source, target in examples("dates"):
        for sign, month_first in (("/", True), (".", False)):
            if sign in source:
                first, second, year = map(int, source.split(sign))
                month, day = (first, second) if month_first else (second, first)
                assert target == f"{year:04}-{month:02}-{day:02}"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (342, "three hundred forty-two"),
        (1000, "one thousand"),
        (999_999, "nine hundred ninety-nine thousand nine hundred ninety-nine"),
    ],
)
def test_number_words(number: int, words: str) -> None:
    assert number_words(number) == words


def test_numbers_differ_in_words() -> None:
    assert len({number_words(number) for number in range(20_000)}) == 20_000
    assert all(number_words(int(target)) == source for source, target in examples("numbers"))


def test_an_example_depends_on_its_number_and_seed_alone() -> None:
    assert Task("copy", 5).example(3) == Task("copy", 50).example(3)
    assert Task("copy", 5).example(3) != Task("copy", 5, seed=1).example(3)
    assert Task("copy", 5).fingerprint != Task("copy", 6).fingerprint
    assert Task("copy", 5).fingerprint != Task("copy", 5, seed=1).fingerprint
    assert Task("copy", 5).fingerprint != Task("copy", 5, pairs=True).fingerprint
