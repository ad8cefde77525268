"""The pictures: what is written on them, and with which letters."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("tokenizers")

from jumok.view import figure as module
from jumok.view.figure import figure, picture
from known_maps import Map, Recorded, softmax_rows, tokenizer
from known_sources import GPT, KOREAN, ORANGE, PHONE, every_word, made


class NamedMap(Map):
    name = "layers.0.attention"

    def pooled(self, size: int) -> Any:
        """Not exact: a picture only needs something of the right shape."""
        assert size == 256
        return self.weights[:, :, ::2, ::2]


def recorded(words: int, causal: bool = False) -> tuple[Recorded, Any]:
    tokens = tokenizer()
    ids = tokens.encode(" ".join(["apple", "orange"] * (words // 2)))
    weights = softmax_rows(2, len(ids), len(ids), causal=causal)
    return Recorded([NamedMap(weights, None)], ids), tokens


def written(made_figure: Any) -> list[str]:
    """All texts of a figure, from top to bottom of what was drawn."""
    made_figure.canvas.draw()
    found = []
    for axes in made_figure.axes:
        found += [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
        found += [text.get_text() for text in axes.texts]
        found += [label.get_text() for label in axes.get_xticklabels() + axes.get_yticklabels()]
    return [text for text in found if text]


# -- the picture of look ---------------------------------------------------------------------


def test_a_picture_says_what_the_terminal_says() -> None:
    found = written(picture(ORANGE))
    assert "Where apple takes its meaning from" in found
    assert "read by toy, layers 0–2" in found
    assert found.index("orange") < found.index("18.1 %")
    assert "24.6 %" in found
    assert any("read them as equal" in text for text in found)
    assert any("A share is how much" in text for text in found)


def boxes(made_figure: Any) -> list[tuple[str, float]]:
    from matplotlib.colors import to_hex

    (axes,) = made_figure.axes
    return [(to_hex(patch.get_facecolor()), patch.get_width()) for patch in axes.patches]


def test_bars_are_as_long_as_the_shares() -> None:
    bars = [width for color, width in boxes(picture(ORANGE)) if color == module.SHADES[3]]
    assert [bar / bars[0] for bar in bars[-3:]] == pytest.approx([1, 0.179 / 0.181, 0.175 / 0.181])


def test_the_query_word_is_blue_and_others_are_shaded() -> None:
    colors = [color for color, _ in boxes(picture(PHONE))]
    assert colors[:2] == ["#1f4e8c", module.SHADES[4]]


def test_two_texts_share_one_scale() -> None:
    both = picture(ORANGE, PHONE)
    bars = [width for color, width in boxes(both) if color == module.SHADES[3]]
    assert bars[0] / bars[-1] == pytest.approx(0.181 / 0.396)
    found = written(both)
    assert "+13.4" in found
    assert "first text" in found


def test_every_word_at_once_is_a_table() -> None:
    data = every_word(made("a b c d e", 1, [0.05, 0.1, 0.2, 0.3, 0.15, 0.1, 0.1]))
    found = written(picture(data))
    assert "the word that takes" in found
    assert found.count("30") == 5  # percent of the third word in each of five rows


def test_a_large_table_can_be_read() -> None:
    data = every_word(made(" ".join(f"w{n}" for n in range(120)), 1, [1 / 122] * 122))
    drawn = picture(data)
    drawn.canvas.draw()
    axes, scale = drawn.axes
    (image,) = axes.images
    assert image.get_interpolation() == "nearest"
    assert scale.get_ylabel() == "share in %"
    assert float(image.get_array().max()) == pytest.approx(100 / 122)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert 10 < len(labels) < 120
        assert all(label.get_fontsize() >= 5 for label in labels)
    down = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(down))
    across = [label.get_window_extent().x1 for label in axes.get_xticklabels()]
    between = [(b - a) * 72 / drawn.dpi for a, b in itertools.pairwise(across)]
    assert min(between) * math.sin(math.radians(60)) > 5.5  # points, between words that lean


def test_a_table_of_first_words_has_their_columns_only() -> None:
    data = every_word(made(" ".join(f"w{n}" for n in range(30)), 1, [1 / 32] * 32))
    drawn = picture(replace(data, queries=data.queries[:10]))
    (image,) = drawn.axes[0].images
    assert image.get_array().shape == (10, 11)  # [CLS] too
    assert "The first 10 of 30 words." in drawn.axes[0].get_title()


def test_of_many_occurrences_the_first_four_are_drawn() -> None:
    data = made(" ".join(["x", "river"] * 6), 2, [1 / 14] * 14)
    queries = tuple(replace(data.queries[0], position=n, tokens=(n,)) for n in range(2, 14, 2))
    found = written(picture(replace(data, queries=queries)))
    assert [text for text in found if "takes its meaning" in text] == [
        f"Where river ({nth}) takes its meaning from" for nth in ("1st", "2nd", "3rd", "4th")
    ]
    assert "… 2 more" in found


def test_an_excerpt_says_that_it_is_one() -> None:
    data = made(" ".join(f"w{n}" for n in range(300)), 200, [0.003] * 302)
    assert written(picture(data)).count("…") == 2


def test_no_bar_is_cut() -> None:
    drawn = picture(made("a b", 1, [0.8, 0.1, 0.1, 0.0]))
    bars = [width for color, width in boxes(drawn) if color in ("#c9c9c9", module.SHADES[3])]
    assert bars[0] / bars[2] == pytest.approx(0.1 / 0.8)


def test_giant_words_are_cut_in_pictures_too() -> None:
    data = made(f"{'x' * 50_000}y b", 2, [0.1, 0.5, 0.3, 0.1])
    for drawn in (picture(data), picture(every_word(data)), picture(data, data)):
        assert max(map(len, written(drawn))) < 300


def test_a_gpt_is_drawn_too() -> None:
    found = written(picture(GPT))
    assert "The (first token)" in found
    assert any("cannot see" in text for text in found)


def test_nothing_is_written_outside_the_page() -> None:
    long = made(" ".join(f"word{n}" for n in range(40)) + " " + "x" * 200, 3, [0.02] * 43)
    for data in (ORANGE, long):
        for drawn in (picture(data), picture(data, ORANGE)):
            drawn.canvas.draw()
            renderer = drawn.canvas.get_renderer()
            page = drawn.bbox
            for text in drawn.axes[0].texts:
                extent = text.get_window_extent(renderer)
                assert extent.x0 >= page.x0 - 1
                assert extent.x1 <= page.x1 + 1
                assert extent.y0 >= page.y0 - 1


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_korean_is_drawn(korean_font: Path, tmp_path: Path, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of a glyph that is missing
        drawn = picture(KOREAN)
        drawn.savefig(tmp_path / f"k.{kind}")
    assert (tmp_path / f"k.{kind}").stat().st_size > 5000


@pytest.mark.parametrize(("kind", "image"), [("svg", b"<image"), ("pdf", b"/Subtype /Image")])
def test_svg_and_pdf_hold_no_pixels(tmp_path: Path, kind: str, image: bytes) -> None:
    picture(ORANGE).savefig(tmp_path / f"k.{kind}")
    assert image not in (tmp_path / f"k.{kind}").read_bytes()


def test_mathematical_dollars_are_only_dollars() -> None:
    text = "$a$ costs $5 a_1^2"
    found = written(picture(made(text, 1, [0.15] * 6)))
    assert "$a$" in found


# -- heads -----------------------------------------------------------------------------------


def test_a_head_is_a_map_with_its_tokens() -> None:
    recording, tokens = recorded(4)
    drawn = figure(recording, tokens, 0, 1)
    found = written(drawn)
    assert found[0] == "toy · layers.0.attention, head 1"
    assert [text for text in found if text in ("[CLS]", "apple", "orange", "[SEP]")] == [
        "[CLS]", "apple", "orange", "apple", "orange", "[SEP]",
    ] * 2  # fmt: skip
    (image,) = drawn.axes[0].images
    np.testing.assert_array_equal(np.asarray(image.get_array()), recording[0].weights[0, 1])


def test_hidden_keys_are_grey_not_zero() -> None:
    recording, tokens = recorded(4, causal=True)
    (image,) = figure(recording, tokens, 0, 0).axes[0].images
    np.testing.assert_array_equal(image.get_array().mask, np.triu(np.ones((6, 6), bool), 1))


def test_a_long_map_is_pooled() -> None:
    recording, tokens = recorded(60)
    drawn = figure(recording, tokens, 0, 0)
    (image,) = drawn.axes[0].images
    assert image.get_array().shape == (31, 31)
    found = written(drawn)
    assert "key: the token that is read (position)" in found
    assert "attention weight, the largest in each cell" in found


def test_one_query_is_bars_in_the_order_of_the_text() -> None:
    recording, tokens = recorded(4)
    drawn = figure(recording, tokens, 0, 1, query=-1)
    widths = [patch.get_width() for patch in drawn.axes[0].patches]
    np.testing.assert_allclose(widths, recording[0].weights[0, 1, -1])
    assert "what “[SEP]” reads" in drawn.axes[0].get_title()


def test_the_largest_weights_of_a_long_text() -> None:
    recording, tokens = recorded(60)
    drawn = figure(recording, tokens, 0, 0, query=3)
    row = recording[0].weights[0, 0, 3]
    widths = [patch.get_width() for patch in drawn.axes[0].patches]
    np.testing.assert_allclose(sorted(widths), np.sort(row)[-48:])
    assert "its 48 largest of 62" in drawn.axes[0].get_title()


def test_the_width_is_in_centimetres() -> None:
    recording, tokens = recorded(4)
    for drawn in (figure(recording, tokens, 0, 0, width=8), picture(ORANGE, width=8)):
        assert drawn.get_size_inches()[0] == pytest.approx(8 / 2.54)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": 2}, "no head 2: its weights are"),
        ({"head": 0, "batch": 1}, "no text 1"),
        ({"head": 0, "query": 6}, "no query token 6: the map has 0 to 5"),
        ({"head": 0, "width": 0}, "width=0: a figure is 4 to 100 cm wide"),
        ({"head": 0, "width": float("nan")}, "width=nan: a figure is"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    recording, tokens = recorded(4)
    with pytest.raises(ValueError, match=message):
        figure(recording, tokens, 0, **options)
