"""The page and the curves of a run: what they say, and that nothing in a text can harm them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jumok.training.log import Row
from jumok.training.report import Facts, page, write_page

FACTS = Facts(
    model="GPT of 1 million parameters: 2 layers",
    vocab_size=100,
    lines={"Corpus": "a<b & c.txt, 10 tokens"},
    command="jumok train 'a<b.txt' --out runs/x",
    finished=True,
    folder="runs/x",
    family="gpt",
)
ROWS: list[Row] = [
    {"step": 1, "loss": 4.6, "learning_rate": 0.1, "tokens_per_second": 10.0},
    {"step": 2, "validation": 4.0, "samples": [("<b>given</b>", "</script>made & more")]},
    {
        "step": 3,
        "loss": 3.5,
        "learning_rate": 0.2,
        "tokens_per_second": 20.0,
        "tokens": 1234,
        "seconds": 75.0,
        "share_of_peak": 0.25,
    },
    {"step": 3, "validation": 4.5},
]


def test_a_page_says_what_came_out() -> None:
    shown = page(FACTS, ROWS, b"picture")
    assert "4.5000 nats per token (perplexity 90.0)" in shown
    assert "4.0000, at step 2" in shown
    assert "3.5000 nats per token" in shown
    assert "3, 1,234 tokens read" in shown
    assert "1:15 min, 20.0 tokens a second, 25% of the machine" in shown
    assert "data:image/png;base64,cGljdHVyZQ==" in shown
    assert "not finished" not in shown
    assert "not finished" in page(dataclasses.replace(FACTS, finished=False), ROWS, None)


def test_text_is_shown_and_never_run() -> None:
    shown = page(FACTS, ROWS, None)
    assert "&lt;b&gt;given&lt;/b&gt;" in shown
    assert "&lt;/script&gt;made &amp; more" in shown
    assert "a&lt;b &amp; c.txt" in shown
    assert "<script" not in shown
    assert "//" not in shown.replace("base64", "")


def test_a_run_without_rows_has_a_page(tmp_path: Path) -> None:
    write_page(FACTS, [], tmp_path / "none.png", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_curves_have_the_numbers_of_the_log() -> None:
    pytest.importorskip("matplotlib")
    from jumok.training.curves import draw_curves

    upper, rate, speed = draw_curves(ROWS, FACTS).axes
    loss, validation = upper.lines[:2]
    assert list(loss.get_xdata()) == [0.5, 2.0]  # each is a mean over the steps before it
    assert list(loss.get_ydata()) == [4.6, 3.5]
    assert list(validation.get_xdata()) == [2, 3]
    assert list(validation.get_ydata()) == [4.0, 4.5]
    assert list(rate.lines[0].get_ydata()) == [0.1, 0.2]
    assert list(speed.lines[0].get_ydata()) == [10.0, 20.0]
    assert draw_curves([], FACTS).axes
