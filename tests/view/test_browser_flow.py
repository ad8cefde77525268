"""The flow in a real browser: rollout's numbers, and a picture at 16 and at 300 tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jumok
import known_pages
from browsing import by_words, find, last_token, listed, settled, until_address, words_of

Open = Callable[..., Any]


@pytest.mark.parametrize("measure", ["norm", "raw"])
def test_shares_are_those_of_rollout(
    smollm2: Any, smollm2_url: str, open_page: Open, measure: str
) -> None:
    word = find(smollm2, "twice")
    query = last_token(smollm2, word)
    page = open_page(smollm2_url, f"view=flow&query={query}&flow.measure={measure}&flow.to=12")
    shown = listed(page) | listed(page, 1)
    found = jumok.rollout(smollm2, list(words_of(smollm2)[word].tokens),
                          norm_weighted=measure == "norm")  # fmt: skip
    expected = by_words(smollm2, np.asarray(found.layers)[12].mean(0).astype(np.float64))
    assert len(shown) > 10
    for place, share in shown.items():
        assert share == pytest.approx(expected[place], abs=1e-5)


def test_traced_down_to_the_words_that_were_read(
    smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    query = last_token(smollm2, find(smollm2, "twice"))
    page = open_page(smollm2_url, f"view=flow&query={query}")
    listed(page)
    # The rest has run into the sink: the page says so, and goes down on request.
    assert "the first token (the sink)" in page.locator(".picture").inner_text()
    page.get_by_role("button", name="Trace down to the words read").click()
    until_address(page, "flow.to=0")
    settled(page)
    flow = np.asarray(jumok.rollout(smollm2, query, norm_weighted=True).flow)[0]
    apart = listed(page, 1)
    assert apart[0] == pytest.approx(float(flow[0]), abs=1e-5)
    assert page.locator("svg path").count() > 100


def test_residual(serve: Callable[..., str], open_page: Open) -> None:
    recording = known_pages.gpt()
    query = last_token(recording, find(recording, "bank", 1))
    page = open_page(
        serve(recording), f"view=flow&query={query}&flow.residual=0.8&flow.measure=raw&flow.to=0"
    )
    expected = by_words(recording, np.asarray(jumok.rollout(recording, query, 0.8).flow)[0])
    for place, share in (listed(page) | listed(page, 1)).items():
        assert share == pytest.approx(expected[place], abs=1e-5)
    picture = page.get_by_role("img", name="Ribbons through the layers")
    assert "bank" in picture.get_attribute("aria-label")
    # Labels do not lie on each other.
    tops = sorted(box["y"] for box in (
        label.bounding_box() for label in page.locator("svg text.word").all()
    ))  # fmt: skip
    assert len(tops) > 3
    assert min(np.diff(tops)) >= 12


def test_another_target_and_korean(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=flow", width=360, language="ko-KR")
    listed(page)
    other = page.locator(".card [role=option]").first
    number = int(other.get_attribute("data-word"))
    other.click()
    until_address(page, f"query={last_token(smollm2, number)}")
    settled(page)
    name = words_of(smollm2)[number].text
    page.wait_for_selector(f"h2:has-text('마지막 층의 ‘{name}’')")
