"""Text in lines."""

from __future__ import annotations

from rich.cells import cell_len

from jumok.view.flow import wrapped


def test_lines_are_as_long_as_cells_allow() -> None:
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("", 7) == [""]
    korean = "보증은 물에 의한 고장을 다루지 않습니다"
    lines = wrapped(korean, 16)
    assert max(map(cell_len, lines)) <= 16
    assert " ".join(lines) == korean


def test_what_is_longer_than_a_line_is_cut() -> None:
    assert wrapped("a bcdefghij k", 4) == ["a", "bcde", "fghi", "j k"]
    assert wrapped("가나다라", 5) == ["가나", "다라"]
