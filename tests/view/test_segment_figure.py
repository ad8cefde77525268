"""The picture of segments."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from jumok.lens.segments import Segments
from jumok.view.segment_figure import segment_figure
from known_segments import ALONE, KOREAN, LONG, POLICY, SILENT


def test_each_share_is_a_cell_and_what_is_hidden_is_none() -> None:
    axes = segment_figure(POLICY).axes[0]
    shown = axes.images[0].get_array()
    np.testing.assert_allclose(shown[2], [41, 8, 22, 25, 4], atol=1e-4)
    assert np.ma.getmaskarray(shown)[0].tolist() == [False, True, True, False, False]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "1  The warranty covers parts…",
        "2  Returns within 30 days…",
        "3  answer",
    ]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "1", "2", "3", "first", "between",
    ]  # fmt: skip
    numbers = [text.get_text() for text in axes.texts]
    assert numbers[-5:] == ["41", "8", "22", "25", "4"]


def test_the_answer_stands_above() -> None:
    made = segment_figure(POLICY)
    assert made.get_suptitle().startswith("Which passage did the answer read?  ·  toy, 50 tokens")
    assert "took 41.0 % from 1" in made.get_suptitle()


@pytest.mark.parametrize("data", [POLICY, ALONE, SILENT, LONG])
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_it_is_drawn_without_a_warning(data: Segments, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = io.BytesIO()
        segment_figure(data).savefig(file, format=kind)
    assert len(file.getvalue()) > 1000


def test_korean_names(korean_font: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        segment_figure(KOREAN).savefig(io.BytesIO())


def test_labels_of_many_segments_have_room() -> None:
    axes = segment_figure(LONG).axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels[0] == "1"
    assert labels[-1] == "apart"
    assert len(labels) < 60
    assert not axes.texts


def test_no_figure_of_this_width() -> None:
    with pytest.raises(ValueError, match="width"):
        segment_figure(POLICY, width=1)
