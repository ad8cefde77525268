"""Two recordings in a real browser: shares, maps and heads of both, and their differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jumok
import known_pages
from browsing import find, last_token, reads, until_address

Open = Callable[..., Any]
ORANGE = "In the market I ate an apple and an orange."
PHONE = "In the market I bought an apple phone, and a charger."


@pytest.fixture(scope="module")
def two_texts() -> tuple[Any, Any]:
    model = known_pages.decoder()
    return known_pages.gpt(ORANGE, model=model), known_pages.gpt(PHONE, model=model)


@pytest.fixture(scope="module")
def two_models() -> tuple[Any, Any]:
    """One text, read by a model and by the same without two heads."""
    import torch

    model = known_pages.decoder()
    plain = known_pages.gpt(model=model)
    tokens = known_pages.tokenizer()
    with torch.no_grad(), jumok.ablate(model, [(0, 1), (1, 0)]), jumok.watch(model) as recording:
        model(torch.as_tensor(plain.ids))
    recording.label(tokens)
    return plain, recording


@pytest.fixture(scope="module")
def texts_url(two_texts: tuple[Any, Any], serve: Callable[..., str]) -> str:
    return serve(*two_texts, titles=("orange", "phone"))


@pytest.fixture(scope="module")
def models_url(two_models: tuple[Any, Any], serve: Callable[..., str]) -> str:
    return serve(*two_models, titles=("whole", "without two heads"))


def _rows(page: Any) -> dict[str, tuple[float | None, float | None]]:
    settled_rows = page.locator("tbody tr[data-from], tbody tr[data-to]")
    settled_rows.first.wait_for()
    found = {}
    for row in settled_rows.all():
        pair = [row.get_attribute(f"data-{side}") for side in ("from", "to")]
        first, second = (None if text is None else float(text) for text in pair)
        found[row.locator("b").inner_text()] = (first, second)
    return found


def test_the_same_word_in_two_texts(
    two_texts: tuple[Any, Any], texts_url: str, open_page: Open
) -> None:
    query = last_token(two_texts[0], find(two_texts[0], "apple"))
    page = open_page(texts_url, f"view=compare&query={query}&map=1&head=2&text.over=head")
    page.wait_for_selector("h2:has-text('“apple” in both')")
    rows = _rows(page)
    for number, recording in enumerate(two_texts):
        expected = reads(recording, find(recording, "apple"), [1], 2)
        for word in ("market", "I", "the"):
            share = rows[word][number]
            assert share == pytest.approx(expected[find(recording, word)], abs=1e-6)
    assert rows["ate"][1] is None
    assert rows["bought"][0] is None
    shared = [abs(b - a) for a, b in rows.values() if a is not None and b is not None]
    assert len(shared) >= 4


def test_another_word_of_the_second_text(
    two_texts: tuple[Any, Any], texts_url: str, open_page: Open
) -> None:
    page = open_page(texts_url, "view=compare")
    _rows(page)
    word = find(two_texts[1], "phone")
    page.locator(".card").nth(1).locator(f'[role="option"][data-word="{word}"]').click()
    until_address(page, f"compare.other={last_token(two_texts[1], word)}")


def test_texts_of_other_tokens_have_no_difference(texts_url: str, open_page: Open) -> None:
    page = open_page(texts_url, "view=compare&compare.show=maps")
    page.wait_for_selector("canvas")
    assert page.locator("figure").count() == 2
    assert "not the same token by token" in page.locator("[role=tabpanel]").inner_text()


def test_the_difference_of_two_maps(
    two_models: tuple[Any, Any], models_url: str, open_page: Open
) -> None:
    page = open_page(models_url, "view=compare&compare.show=maps&map=2&head=1")
    difference = page.get_by_role("application", name="Second − first")
    difference.focus()
    for key in ["ArrowDown"] * 9 + ["ArrowRight"] * 4:
        page.keyboard.press(key)
    first, second = (float(np.asarray(one[2])[0, 1, 9, 4]) for one in two_models)
    readout = page.locator(".readout")
    shown = [
        float(readout.locator(f"[data-{name}]").get_attribute(f"data-{name}"))
        for name in ("first", "second", "change")
    ]
    assert np.float32(shown[0]) == np.float32(first)
    assert np.float32(shown[1]) == np.float32(second)
    assert shown[2] == pytest.approx(second - first, abs=1e-8)
    page.keyboard.press("Enter")
    until_address(page, "view=map", "query=9", "key=4")


def test_the_heads_that_differ_most(
    two_models: tuple[Any, Any], models_url: str, open_page: Open
) -> None:
    page = open_page(models_url, "view=compare&compare.show=heads")
    page.wait_for_selector("tr[data-head]")
    page.wait_for_function("() => document.querySelectorAll('tr[data-head]').length === 12")
    entropy = [jumok.report(one).columns["entropy"] for one in two_models]
    change = np.abs(entropy[1] - entropy[0])
    rows = page.locator("tr[data-head]").all()
    shown = [
        abs(float(row.get_attribute("data-to")) - float(row.get_attribute("data-from")))
        for row in rows
    ]
    assert shown == pytest.approx(sorted(change.tolist(), reverse=True), abs=1e-5)
    assert rows[-1].get_attribute("data-head").startswith("0.")  # before what was taken away


def test_models_of_other_shapes_say_so(serve: Callable[..., str], open_page: Open) -> None:
    import torch

    torch.manual_seed(3)
    other = jumok.Decoder(
        jumok.model.config.Config(vocab_size=300, emb_dim=32, n_layers=2, n_heads=2)
    ).eval()
    url = serve(known_pages.gpt(), known_pages.gpt(model=other), titles=("one", "other"))
    page = open_page(url, "view=compare&compare.show=heads")
    page.wait_for_selector("text=do not have the same layers, heads and sizes")
    page.get_by_text("Texts", exact=True).click()
    assert len(_rows(page)) > 3


def test_korean_on_a_phone(texts_url: str, open_page: Open) -> None:
    page = open_page(texts_url, "view=compare", width=360, language="ko-KR")
    _rows(page)
    assert "가장 많이 달라진 단어" in page.locator("[role=tabpanel]").inner_text()
