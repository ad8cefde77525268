"""The grid of all heads in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jumok

Open = Callable[..., Any]
DRAWN = '[data-head="{}"][data-drawn="true"]'


def test_all_heads_come_into_sight(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=grid")
    page.wait_for_selector(DRAWN.format("0.0"))
    assert page.locator("[data-head]").count() < 270  # only what is in sight exists
    page.get_by_label("Find a head").fill("29.8")
    page.keyboard.press("Enter")
    page.wait_for_selector(DRAWN.format("29.8"))
    page.wait_for_function("() => document.activeElement?.dataset.head === '29.8'")


def test_a_small_map_is_the_pooled_map(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=grid")
    page.wait_for_selector(DRAWN.format("1.3"))
    shown = page.evaluate(
        """() => {
            const canvas = document.querySelector('[data-head="1.3"] canvas');
            const {width, height} = canvas;
            const pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data;
            return {width, height, alpha: [...pixels].filter((_, at) => at % 4 === 3),
                    green: [...pixels].filter((_, at) => at % 4 === 1)};
        }"""
    )
    # 300 tokens in at most 64 cells: 8 in each.
    assert (shown["height"], shown["width"]) == (38, 38)
    weights = np.zeros((304, 304), np.float32)
    weights[:300, :300] = np.asarray(smollm2[1][0, 3])
    cells = weights.reshape(38, 8, 38, 8).max((1, 3))
    np.testing.assert_array_equal(np.reshape(shown["alpha"], (38, 38)) > 0, cells > 0)
    # In light colours more is darker, without exception.
    seen = cells > 1e-3
    order = np.argsort(cells[seen])
    assert (np.diff(np.reshape(shown["green"], (38, 38))[seen][order]) <= 0).all()


def test_ordered_by_a_measure_of_the_report(
    smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    columns = jumok.report(smollm2).columns
    best = int(np.argmax(columns["previous"]))
    page = open_page(smollm2_url, "view=grid")
    page.get_by_label("Number shown").select_option("previous")
    page.get_by_label("Order").select_option("high")
    name = f"{columns['layer'][best]}.{columns['head'][best]}"
    first = page.locator("[data-head]").first
    page.wait_for_function(
        "name => document.querySelector('[data-head]')?.dataset.head === name", arg=name
    )
    assert f"{100 * columns['previous'][best]:.1f}" in first.inner_text()


def test_keys_walk_open_and_back_returns(smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=grid")
    page.wait_for_selector(DRAWN.format("0.0"))
    page.focus('[data-head="0.0"]')
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.activeElement?.dataset.head === '1.1'")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('view=map')")
    assert page.get_by_label("Head", exact=True).input_value() == "1.1"
    page.wait_for_selector('.plot[data-settled="true"]')
    page.go_back()
    page.wait_for_selector(DRAWN.format("1.1"))
    page.go_forward()
    page.wait_for_selector(".plot")


def test_an_unknown_head_is_said(smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=grid")
    page.get_by_label("Find a head").fill("99.1")
    page.keyboard.press("Enter")
    page.get_by_text("There is no head “99.1” in this recording.").wait_for()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_serious_for_axe(
    smollm2_url: str,
    open_page: Open,
    serious_faults: Callable[[Any], list[str]],
    dark: bool,
    width: int,
) -> None:
    page = open_page(
        smollm2_url, "view=grid&grid.value=entropy", width=width, dark=dark, bypass_csp=True
    )
    page.wait_for_selector(DRAWN.format("0.0"))
    assert serious_faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
