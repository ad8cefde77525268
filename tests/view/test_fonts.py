"""Fonts that have the letters of a text."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from jumok.view import fonts
from jumok.view.figure import picture
from jumok.view.fonts import font_family
from known_sources import made


def test_a_sign_without_a_font_is_named() -> None:
    strange = "\U000e0041\U0001fbff\U00012345"
    with pytest.warns(UserWarning, match="no installed font can draw .*𒍅"):
        font_family("a" + strange)


def test_a_font_is_added_only_when_it_is_needed(korean_font: Path) -> None:
    assert font_family("plain text, ␣ ₁₂") == ["DejaVu Sans"]
    assert len(font_family("사과")) == 2


def test_a_font_installed_after_matplotlib_made_its_list_is_found(
    korean_font: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.font_manager import fontManager, get_font

    def has_hangul(path: str) -> bool:
        try:
            return bool(get_font(path).get_char_index(ord("한")))
        except (OSError, RuntimeError):
            return False

    older = [entry for entry in fontManager.ttflist if not has_hangul(entry.fname)]
    monkeypatch.setattr(fontManager, "ttflist", older)
    fonts._add_font.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(font_family("사과")) == 2


def test_matplotlib_says_nothing_of_missing_signs_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        drawn = picture(made("a \U0001fbff b", 1, [0.2] * 5))
        with fonts.quietly():
            drawn.savefig(io.BytesIO(), format="png")
            drawn.savefig(io.BytesIO(), format="svg")
    assert len(noted) == 1
    assert "no installed font can draw" in str(noted[0].message)
    assert not caplog.records
