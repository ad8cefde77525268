"""What the terminal and the picture both say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jumok.lens.sources import Sources
from jumok.view.wording import paired, shade, shown_differences, source_names
from known_sources import ORANGE, PHONE, made


def test_eleven_twelve_thirteen() -> None:
    names = source_names(made(" ".join(["a"] * 23), 1, [0.01] * 25).queries[0])
    assert names[11] == "a (11th)"
    assert names[13] == "a (13th)"
    assert names[22] == "a (22nd)"


def test_occurrences_are_paired() -> None:
    def with_queries(*names: str) -> Sources:
        query = ORANGE.queries[0]
        queries = tuple(replace(query, word=n, position=p) for p, n in enumerate(names))
        return replace(ORANGE, queries=queries)

    def positions(left: Sources, right: Sources) -> list[tuple[int, int]]:
        return [(a.position, b.position) for a, b in paired(left, right)]

    assert positions(with_queries("bank", "bank"), with_queries("bank", "bank")) == [(0, 0), (1, 1)]
    assert positions(with_queries("bank"), with_queries("bank", "bank")) == [(0, 1)]
    assert positions(with_queries(*["bank"] * 3), with_queries(*["bank"] * 2)) == [(1, 0), (2, 1)]
    assert positions(with_queries("사과와"), with_queries("사과")) == [(0, 0)]
    assert positions(with_queries("Tom", "dog"), with_queries("dog", "tom")) == [(0, 1), (1, 0)]


def test_shown_differences_are_ordered() -> None:
    from jumok.lens.sources import difference

    rows = shown_differences(difference(ORANGE.queries[0], PHONE.queries[0]))
    assert [row.word for row in rows] == [
        "phone", "orange", "an", "and", "[CLS]", "apple", "[SEP]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "level"), [(0.05, None), (0.1, 0), (0.25, 1), (0.99, 4), (1.0, 4), (3.0, 4)]
)
def test_shades(part: float, level: int | None) -> None:
    assert shade(part) == level
