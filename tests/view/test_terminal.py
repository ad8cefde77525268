"""What `jumok look` prints."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from jumok.view.terminal import compare, look, overview
from jumok.view.wording import not_compared, source_names
from known_sources import GPT, KOREAN, ORANGE, PHONE, every_word, made


def printed(renderable: RenderableType, width: int = 80, color: str | None = None) -> list[str]:
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system=color,  # type: ignore[arg-type]
        force_terminal=color is not None,
        highlight=False,
    )
    console.print(renderable)
    output = console.file
    assert isinstance(output, io.StringIO)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.strip().startswith(name))


def test_bars_are_ordered_and_say_percent() -> None:
    lines = printed(look(ORANGE))
    places = [lines.index(row(lines, name)) for name in ("orange", "an  ", "and  ", "itself")]
    assert places == sorted(places)
    assert "18.1 %" in row(lines, "orange")
    assert row(lines, "itself").count("█") == 44
    assert row(lines, "orange").count("█") == int(44 * 0.181 / 0.246)
    assert row(lines, "and").count("█") == int(44 * 0.175 / 0.246)
    assert "24.6 %" in row(lines, "itself")
    assert "10.3 %" in row(lines, "[SEP]")


def test_all_bars_are_on_one_scale() -> None:
    lines = printed(look(made("a b c", 1, [0.9, 0.01, 0.09, 0.0, 0.0])))
    assert row(lines, "[CLS]").count("█") == 44
    assert row(lines, "b").count("█") == int(44 * 0.09 / 0.9)
    first = made("a b", 1, [0.8, 0.0, 0.2, 0.0])
    lines = printed(compare(first, made("a b", 1, [0.4, 0.0, 0.6, 0.0])))
    both = next(line for line in lines if line.count("[CLS]") == 2)
    assert both.count("█", 0, 40) == pytest.approx(2 * both.count("█", 40), abs=1)


def test_a_lead_under_one_point_is_named() -> None:
    said = "“orange” leads “an” and “and” by less than a point: read them as equal."
    assert f"  {said}" in printed(look(ORANGE))
    clear = made("an apple and orange", 2, [0.1, 0.1, 0.2, 0.2, 0.3, 0.1])
    assert not any("leads" in line for line in printed(look(clear)))


def test_a_gpt_says_what_it_cannot_see() -> None:
    text = " ".join(printed(look(GPT)))
    assert "“bank” cannot see “was” and “here” in a GPT; try --model minilm." in text
    assert "The (first token)" in text
    assert "sink" in text
    assert "cannot see" not in " ".join(printed(look(ORANGE)))


def test_the_sentence_is_marked_below_without_colour() -> None:
    lines = printed(look(ORANGE))
    place = lines.index("  an apple and orange")
    assert lines[place + 1] == "  ██ ^^^^^ ███ ██████"


def test_the_sentence_is_shaded_with_colour() -> None:
    lines = printed(look(PHONE), color="truecolor")
    assert any("48;2;31;78;140mapple" in line for line in lines)  # the query word, blue
    assert any("48;2;245;124;0mphone" in line for line in lines)  # the deepest shade
    assert not any("^^^^^" in line for line in lines)


def test_a_terminal_without_blocks_gets_signs_it_has() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    Console(file=file, width=80, color_system=None, highlight=False).print(look(ORANGE))
    file.seek(0)
    lines = file.read().splitlines()
    assert row(lines, "orange").rstrip().endswith("  " + "#" * 32)
    assert lines[lines.index(row(lines, "an apple and orange")) + 1].rstrip() == (
        "  88 ^^^^^ 888 888888"
    )


def test_wide_letters_stay_aligned() -> None:
    lines = printed(look(KOREAN))
    place = lines.index("  나는 사과와 오렌지를 먹었다")
    assert lines[place + 1] == "  ▇▇▇▇ ^^^^^^ ████████ ▃▃▃▃▃▃"
    columns = {cell_len(line[: line.index("%")]) for line in lines if "█" in line and "%" in line}
    assert len(columns) == 1


@pytest.mark.parametrize("width", [20, 40, 55, 56, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = made(" ".join(["word"] * 30), 3, [1 / 32] * 32)
    for data in (ORANGE, PHONE, KOREAN, GPT, long, made("x" * 99 + " 한" * 9, 2, [1 / 12] * 12)):
        for shown in (look(data), overview(every_word(data)), compare(data, data)):
            assert max(cell_len(line) for line in printed(shown, width)) <= width


def test_repeated_words_are_numbered() -> None:
    data = made("the bank the bank", 4, [0.1] * 6)
    names = source_names(data.queries[0])
    assert [names[place] for place in range(1, 5)] == [
        "the (1st)", "bank (1st)", "the (2nd)", "bank (2nd)",
    ]  # fmt: skip
    assert "Where bank (2nd) takes its meaning from" in printed(look(data))[0]


@pytest.mark.parametrize("width", [3, 10, 20])
def test_however_narrow_something_is_shown(width: int) -> None:
    for shown in (look(ORANGE), overview(every_word(ORANGE)), compare(ORANGE, PHONE)):
        assert printed(shown, width)


@pytest.mark.parametrize("width", range(39, 60))
def test_no_line_begins_with_a_percent_sign(width: int) -> None:
    for shown in (look(ORANGE), overview(every_word(ORANGE)), compare(ORANGE, PHONE)):
        assert not any(line.lstrip().startswith("%") for line in printed(shown, width))


def test_a_token_is_named_with_its_word() -> None:
    query = replace(PHONE.queries[0], word="##ple", tokens=(7,))
    lines = printed(look(replace(PHONE, queries=(query,))))
    assert lines[0].startswith("Where ##ple (in apple) takes its meaning from")


def test_pieces_are_marked_where_they_stand() -> None:
    data = made("straw berries are", 2, [0.1, 0.2, 0.3, 0.3, 0.1])
    spans = [(0, 0), (0, 5), (5, 12), (13, 16), (16, 16)]
    words = [replace(w, start=a, end=b) for w, (a, b) in zip(data.words, spans, strict=True)]
    lines = printed(look(replace(data, text="strawberries are", words=tuple(words))))
    assert lines[lines.index("  strawberries are") + 1] == "  ▆▆▆▆▆^^^^^^^ ███"


def test_of_pieces_of_one_sign_the_query_is_marked() -> None:
    data = made("x y", 2, [0.2, 0.4, 0.2, 0.2])
    words = [replace(w, start=0, end=1, special=False) for w in data.words[:3]]
    shown = replace(data, text="한", words=(*words, replace(data.words[3], start=1, end=1)))
    lines = printed(look(shown))
    assert lines[lines.index("  한") + 1] == "  ^^"


def test_no_terminal_command_comes_through() -> None:
    data = made("a\x1b[31m \x1b]0;X\x07 b", 2, [0.2] * 5)
    for shown in (look(data), overview(every_word(data)), compare(data, data)):
        text = "\n".join(printed(shown))
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\\u{1b}[31m" in text


def test_giant_words_are_cut() -> None:
    data = made(f"{'x' * 100_000}y b", 2, [0.1, 0.5, 0.3, 0.1])
    for shown in (look(data), overview(every_word(data)), compare(data, data)):
        lines = printed(shown)
        assert len(lines) < 50
        assert any("xxx…xxx" in line for line in lines)
        assert any("xxy" in line for line in lines)


def test_many_occurrences_are_counted_not_shown() -> None:
    data = made(" ".join(["river", "x"] * 12), 1, [1 / 26] * 26)
    queries = tuple(replace(data.queries[0], position=n, tokens=(n,)) for n in range(1, 25, 2))
    lines = printed(look(replace(data, queries=queries)))
    assert sum("takes its meaning from" in line for line in lines) == 10
    assert "… 2 more occurrences; --json has all." in lines
    assert not any("more occurrences" in line for line in printed(look(data)))


def test_an_overview_says_of_how_many_words_it_shows_the_first() -> None:
    data = every_word(ORANGE)
    assert not any("The first" in line for line in printed(overview(data)))
    part = replace(data, queries=data.queries[:2])
    assert "The first 2 of 4 words." in printed(overview(part))


def test_many_words_are_summed_up() -> None:
    data = made(" ".join(f"w{n}" for n in range(20)), 1, [0.0] + [0.04] * 20 + [0.2])
    assert "  … 9 more words: 36.0 % together" in printed(look(data))


def test_a_long_text_is_shown_around_the_word() -> None:
    data = made(" ".join(f"w{n}" for n in range(300)), 200, [0.003] * 302)
    lines = printed(look(data))
    shown = " ".join(lines)
    assert "w199" in shown
    assert "… w153" in shown
    assert "w222 …" in shown
    assert " w60 " not in shown


def test_the_heads_that_look_most() -> None:
    lines = printed(look(ORANGE))
    assert "  The heads that look most from “apple” at each (counted from 0):" in lines
    heads = next(line for line in lines if line.startswith("  orange") and "head" in line)
    assert heads == "  orange  layer 2 head 11: 50 %   layer 0 head 3: 25 %"


def test_the_numbers_are_explained_in_a_line() -> None:
    text = " ".join(printed(look(ORANGE)))
    assert "weight × length of the value it hands over, all heads, mean of layers 0–2" in text
    assert "by itself it doesn't explain" in text
    raw = replace(ORANGE, measure="raw", note="plain attention weights: a gate stands between")
    text = " ".join(printed(look(raw)))
    assert "A number is the attention weight" in text
    assert "a gate stands between" in text


def test_unknown_words_are_named() -> None:
    data = replace(PHONE, tokens=("[CLS]", "apple", "[UNK]", "[SEP]"))
    assert "Not in this model's vocabulary, so it read a blank: “phone”." in printed(look(data))
    assert not any("vocabulary" in line for line in printed(look(PHONE)))


@pytest.mark.parametrize(
    ("layers", "said"), [((3,), "layer 3"), ((1, 2, 3), "layers 1–3"), ((0, 2), "layers 0, 2")]
)
def test_layers_are_named(layers: tuple[int, ...], said: str) -> None:
    assert f"read by toy, {said}" in printed(look(replace(ORANGE, layers=layers)))[0]


def test_an_overview_has_a_line_for_each_word() -> None:
    lines = printed(overview(every_word(PHONE)))
    assert "phone 40 %" in row(lines, "apple")
    assert "apple 24 %" in row(lines, "phone")


def test_markup_in_a_text_is_only_text() -> None:
    text = "[bold]x[/bold] </script> a<b&c"
    data = made(text, 1, [0.2] * 5)
    assert f"  {text}" in printed(look(data))


def test_line_ends_of_the_text_are_kept() -> None:
    data = made("a = 1\nb = 2", 1, [0.1] * 7)  # "1\nb" is one word here
    lines = printed(look(data))
    assert "  a = 1" in lines
    assert "  b = 2" in lines


# -- two texts -------------------------------------------------------------------------------


def test_two_texts_stand_side_by_side_on_one_scale() -> None:
    lines = printed(compare(ORANGE, PHONE))
    assert any("an apple and orange" in line and "apple phone" in line for line in lines)
    first = next(line for line in lines if "39.6 %" in line and "18.1 %" in line)
    assert first.count("█", 0, 40) == pytest.approx(first.count("█", 40) * 0.181 / 0.396, abs=1)


def test_the_difference_is_in_points() -> None:
    lines = printed(compare(ORANGE, PHONE))
    table = lines[lines.index(next(line for line in lines if "first text" in line)) :]
    assert row(table, "[SEP]").endswith("+13.4")
    assert row(table, "itself").endswith("−0.4")
    assert row(table, "phone").split() == ["phone", "–", "39.6", "%"]


def test_two_texts_number_what_occurs_again_and_name_what_is_left_out() -> None:
    twice = made("bank or bank", 1, [0.2] * 5)
    queries = tuple(replace(twice.queries[0], position=place, tokens=(place,)) for place in (1, 3))
    twice = replace(twice, queries=queries)
    lines = printed(compare(twice, twice))
    titles = [line for line in lines if "in two texts" in line]
    assert [title.split(" takes")[0] for title in titles] == [
        "Where bank (1st)", "Where bank (2nd)",
    ]  # fmt: skip
    assert not not_compared(twice, twice)

    once = made("a bank", 2, [0.25] * 4)
    said = "Not compared, as the other text has fewer: “bank (1st)” of the first text."
    lines = printed(compare(twice, once))
    assert said in lines
    assert lines[0].startswith(
        "Where bank (2nd) and, in the second text, bank take their meaning from"
    )
    assert not_compared(once, twice) == [said.replace("first text", "second text")]


def test_the_table_of_two_texts_numbers_words_as_the_bars_do() -> None:
    first, second = (
        made("an x an y", 2, [0.1, 0.2, 0.3, 0.1, 0.1, 0.2]),
        made("x b b", 1, [0.2] * 5),
    )
    lines = printed(compare(first, second))
    table = lines[lines.index(next(line for line in lines if "first text" in line)) :]
    for name in ("an (1st)  ", "an (2nd)  ", "y  ", "b (1st)  ", "b (2nd)  ", "itself  "):
        assert sum(line.startswith(f"  {name}") for line in table) == 1


def test_two_texts_stand_one_above_the_other_where_there_is_no_room() -> None:
    lines = printed(compare(ORANGE, PHONE), 55)
    above, below = lines.index("first text:"), lines.index("second text:")
    assert above < lines.index("  an apple and orange") < below < lines.index("  apple phone")
    assert "first text:" not in printed(compare(ORANGE, PHONE), 56)
