"""Segments in the terminal and as Markdown."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from jumok.lens.segments import Segments
from jumok.view.segment_terminal import look_segments, markdown
from known_segments import ALONE, KOREAN, LEFT_OUT, LONG, POLICY, SILENT, made


def shown(data: Segments, width: int = 80) -> str:
    console = Console(width=width, no_color=True, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(look_segments(data))
    return capture.get()


def test_the_answer_then_the_list_then_the_table() -> None:
    out = shown(POLICY)
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "Which passage did the answer read?  ·  read by toy, 50 tokens, layers 0–1"
    assert lines[2] == "  It wrote: “answer and more”"
    assert lines[4].startswith("  The answer took 41.0 % from 1 “The warranty covers parts…”")
    listed = [line.split("  ")[1] for line in lines if re.search(r"×\d", line) and "%" in line]
    assert listed == ["1", "2", "3", "the first token (the sink)", "between the segments"]
    table = lines[lines.index("  Who reads (rows) how much of what (columns), in %:") + 1 :][:4]
    assert table[0].split() == ["1", "2", "3", "first", "between"]
    assert table[1].split()[-5:] == ["60.0", "–", "–", "30.0", "10.0"]
    assert table[3].split() == ["3", "answer", "41.0", "8.0", "22.0", "25.0", "4.0"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("data", [POLICY, LEFT_OUT, KOREAN, ALONE, SILENT, LONG])
def test_lines_stay_within_the_terminal(data: Segments, width: int) -> None:
    assert max(cell_len(line.rstrip()) for line in shown(data, width).splitlines()) <= width


def test_what_was_left_out_is_a_column() -> None:
    lines = shown(LEFT_OUT).splitlines()
    (head,) = [line for line in lines if line.split() == ["share", "times", "tokens", "without"]]
    first = next(line for line in lines if "÷20" in line)
    assert first.index("÷20") + 3 == len(head.rstrip())
    assert "| ÷20 |" in markdown(LEFT_OUT)
    assert "without" not in markdown(POLICY).splitlines()[6]


def test_columns_are_aligned_under_korean_names() -> None:
    out = shown(KOREAN).splitlines()
    bars = [line for line in out if "×" in line and "█" in line]
    places = {cell_len(line[: line.index("×")]) for line in bars}
    assert len(places) == 1


def test_of_many_segments_the_first_are_listed() -> None:
    out = shown(LONG)
    assert "… 107 more segments: 178.3 % together" in out  # these shares are made up
    assert "The whole table has 121 columns: --json, --markdown or --png F.png has it." in out


def test_whole_numbers_where_room_is_short() -> None:
    many = made(
        [f"passage {number}" for number in range(12)],
        [[0.05] * 12 + [0.4] for _ in range(12)],
        apart=("first",),
    )
    assert re.search(r"^  12  passage 11 +5 +5 +5", shown(many), flags=re.MULTILINE)


def test_nothing_but_ascii_where_the_terminal_has_no_more() -> None:
    console = Console(width=80, no_color=True, legacy_windows=False)
    options = console.options.update(width=80)
    options.encoding = "ascii"
    lines = console.render_lines(look_segments(POLICY), options)
    text = "\n".join("".join(segment.text for segment in line) for line in lines)
    assert "█" not in text
    assert "####" in text


def test_markdown_has_both_tables() -> None:
    lines = markdown(POLICY).splitlines()
    assert lines[0] == "**Which passage did the answer read?** (toy, 50 tokens, layers 0–1)"
    assert "> answer and more" in lines
    assert "| 1 The warranty covers parts… | 41.0 % | ×2.1 | 10 |" in lines
    assert "| reads ↓, in % of → | 1 | 2 | 3 | first | between |" in lines
    assert "| 3 answer | 41.0 | 8.0 | 22.0 | 25.0 | 4.0 |" in lines


def test_nothing_of_the_text_becomes_markdown() -> None:
    rude = made(["a | b * <b>c</b>", "[x](y) `z`"], [[0.5, 0.0, 0.5], [0.2, 0.3, 0.5]],
                apart=("first",), answered=False)  # fmt: skip
    text = markdown(rude)
    rows = [line for line in text.splitlines() if line.startswith("| 1")]
    assert all("a \\| b \\* \\<b\\>c\\</b\\>" in row for row in rows)
    assert "\\[x\\](y) \\`z\\`" in text
