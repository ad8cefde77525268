"""All views of a text at once: nobody is kept out, and nothing is wider than a phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import known_pages

Open = Callable[..., Any]
VIEWS = {
    "text": ".side li",
    "steps": "tr[data-key]",
    "flow": ".side li",
    "heads": "tr[data-head]",
    "segments": "[data-cell]",
    "compare": "tbody tr",
}


@pytest.fixture(scope="module")
def url(serve: Callable[..., str]) -> str:
    model = known_pages.decoder()
    first = known_pages.gpt(model=model)
    return serve(first, known_pages.gpt("The river bank is near.", model=model))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_serious_fault(
    url: str, open_page: Open, serious_faults: Callable[[Any], list[str]], view: str, dark: bool
) -> None:
    page = open_page(url, f"view={view}&steps.step=mix&marked=0.1", dark=dark, bypass_csp=True)
    page.wait_for_selector(VIEWS[view])
    page.wait_for_load_state("networkidle")
    assert serious_faults(page) == []


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("language", ["en-US", "ko-KR"])
def test_nothing_is_wider_than_a_phone(url: str, open_page: Open, view: str, language: str) -> None:
    page = open_page(url, f"view={view}&steps.step=mix", width=360, height=740, language=language)
    page.wait_for_selector(VIEWS[view])
    page.wait_for_load_state("networkidle")
    wide, screen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= screen
