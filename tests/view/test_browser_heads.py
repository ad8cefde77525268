"""The heads in a real browser: the report's numbers, sorted, filtered, plotted and marked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jumok
from browsing import until_address

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def report(smollm2: Any) -> Any:
    return jumok.report(smollm2, measures=["induction", "window"]).columns


def _loaded(page: Any, heads: int = 270) -> None:
    page.wait_for_selector(f"text=/(^|of ){heads} heads$/")


def _heads(page: Any) -> list[str]:
    return page.locator("tr[data-head]").evaluate_all("rows => rows.map(row => row.dataset.head)")


def _name(report: Any, row: int) -> str:
    return f"{report['layer'][row]}.{report['head'][row]}"


def test_the_table_is_the_report(report: Any, smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=heads&heads.sort=-entropy")
    _loaded(page)
    order = np.argsort(-report["entropy"], kind="stable")
    shown = _heads(page)
    assert shown[:10] == [_name(report, row) for row in order[:10]]
    for row in order[:10]:
        cells = page.locator(f'tr[data-head="{_name(report, row)}"]')
        for column in ("entropy", "distance", "first", "itself", "previous"):
            value = cells.locator(f'[data-column="{column}"]').get_attribute("data-value")
            assert float(value) == pytest.approx(float(report[column][row]), rel=1e-5, abs=1e-7)
    assert page.get_by_role("columnheader", name="entropy").get_attribute("aria-sort") == (
        "descending"
    )


def test_filters_and_further_measures(report: Any, smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=heads")
    _loaded(page)
    limit = float(np.sort(report["induction"])[-12])
    page.get_by_role("searchbox").fill(f"induction > {limit!r} and layer < 20")
    wanted = [
        _name(report, row)
        for row in range(270)
        if report["induction"][row] > limit and report["layer"][row] < 20
    ]
    page.wait_for_selector(f"text=/^{len(wanted)} of 270 heads$/")
    assert _heads(page) == wanted
    page.get_by_role("searchbox").fill("indction > 0.4")
    page.wait_for_selector("text=There is no column “indction”")


def test_marks_go_to_the_grid(smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=heads")
    _loaded(page)
    page.get_by_role("checkbox", name="Mark head 0.1", exact=True).check()
    page.get_by_role("checkbox", name="Mark head 0.3", exact=True).check()
    until_address(page, "marked=0.1%2C0.3")
    page.get_by_role("searchbox").fill("marked")
    page.wait_for_selector("text=/^2 of 270 heads$/")
    assert _heads(page) == ["0.1", "0.3"]
    page.get_by_role("button", name="See them in the Grid").click()
    until_address(page, "marked=0.1%2C0.3")


def test_a_frame_in_the_plot_marks_heads(report: Any, smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=heads&heads.x=layer&heads.y=first")
    _loaded(page)
    plot = page.get_by_role("img", name="Scatter plot of 270 heads")
    assert plot.locator("circle:not(.look)").count() == 270
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 14)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + box["height"] - 44, steps=3)
    page.mouse.up()
    page.wait_for_selector("text=270 heads marked")
    page.get_by_role("button", name="Unmark all").click()
    page.wait_for_selector("text=0 heads marked")


def test_a_head_is_chosen_for_all_views(smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=heads&heads.filter=layer = 4")
    page.wait_for_selector("text=/^9 of 270 heads$/")
    page.get_by_role("button", name="4.5", exact=True).click()
    until_address(page, "map=4", "head=5")
    page.get_by_role("button", name="Steps", exact=True).click()
    until_address(page, "view=steps", "map=4", "head=5")


def test_korean_names_filter_too(report: Any, smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=heads&heads.filter=첫 토큰 > 50%", language="ko-KR")
    count = int((report["first"] > 0.5).sum())
    page.wait_for_selector(f"text=헤드 270개 중 {count}개")
    page.get_by_text("열의 뜻").click()
    assert page.get_by_text("토큰이 자기 자신에게 준 가중치.").is_visible()
