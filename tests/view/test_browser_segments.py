"""The segments in a real browser: the table's numbers, and the way to the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import known_pages
from browsing import settled, until_address, weights

Open = Callable[..., Any]


def _expected(recording: Any, layers: range, head: int | None = None) -> tuple[Any, list[Any]]:
    """Shares (S, S) by paragraphs, the first token apart; and the segments."""
    from jumok.view.questions import Questions

    found = Questions([recording]).answer("passages", {"how": "paragraphs"}).fields["segments"]
    groups = [range(max(1, one["first"]), one["stop"]) for one in found]
    means = []
    for layer in layers:
        every = weights(recording, layer)
        means.append(every.mean(0) if head is None else every[head])
    mean = np.mean(means, 0)
    table = [[mean[list(a)][:, list(b)].sum(1).mean() for b in groups] for a in groups]
    return np.array(table), found


def test_the_table_is_pythons(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    expected, segments = _expected(smollm2, range(len(smollm2)))
    page = open_page(smollm2_url, "view=segments")
    page.wait_for_selector("[data-cell]")
    settled(page)
    for row in range(1, len(segments)):  # the first holds the first token, which stands apart
        for column in range(1, len(segments)):
            cell = page.locator(f'[data-cell="{row},{column}"]')
            share = float(cell.get_attribute("data-share"))
            assert share == pytest.approx(expected[row, column], abs=1e-5)
            if column <= row:
                assert cell.inner_text() == f"{100 * share:.1f}"
            else:
                assert cell.inner_text() == "–"


def test_one_head(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    expected, _ = _expected(smollm2, range(8, 9), 3)
    page = open_page(smollm2_url, "view=segments&map=8&head=3&segments.over=head&segments.cell=3,2")
    shown = page.locator("dd[data-share]")
    shown.wait_for()
    settled(page)
    assert float(shown.get_attribute("data-share")) == pytest.approx(expected[3, 2], abs=1e-5)


def test_a_cell_leads_to_the_text(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    _, segments = _expected(smollm2, range(1))
    page = open_page(smollm2_url, "view=segments")
    page.locator('[data-cell="3,1"]').click()
    until_address(page, "segments.cell=3%2C1")
    # Arrow keys walk from cell to cell.
    page.keyboard.press("ArrowLeft")
    until_address(page, "segments.cell=3%2C0")
    page.keyboard.press("ArrowRight")
    until_address(page, "segments.cell=3%2C1")
    page.get_by_role("button", name="Show both in the text").click()
    until_address(
        page, "view=text", f"query={segments[3]['stop'] - 1}", f"key={segments[1]['first']}"
    )
    page.wait_for_selector(".reader .pinned")
    assert page.locator(".reader .pinned").is_visible()


def test_many_segments_are_a_picture(serve: Callable[..., str], open_page: Open) -> None:
    recording = known_pages.gpt("\n\n".join(f"the bank {n}" for n in range(40)))
    page = open_page(serve(recording), "view=segments&segments.cell=20,10")
    picture = page.get_by_role("application", name="Heat map of 40 × 40 segments")
    picture.focus()
    page.keyboard.press("ArrowUp")
    until_address(page, "segments.cell=19%2C10")
    expected, _ = _expected(recording, range(len(recording)))
    page.wait_for_selector("h2:has-text('the bank 19')")
    share = float(page.locator("dd[data-share]").get_attribute("data-share"))
    assert share == pytest.approx(expected[19, 10], abs=1e-5)


def test_korean_on_a_phone(smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=segments", width=360, language="ko-KR")
    page.wait_for_selector("[data-cell]")
    assert "따로 보이는 것까지" in page.locator("[role=tabpanel]").inner_text()
