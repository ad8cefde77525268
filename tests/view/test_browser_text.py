"""The text view in a real browser: the shares that it shows are those that Python computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jumok
import known_pages
from browsing import find, last_token, listed, reads, until_address, words_of

Open = Callable[..., Any]


def _choose(page: Any, word: int) -> None:
    page.locator(f'.reader [role="option"][data-word="{word}"]').click()


def test_a_click_on_a_word_shows_what_it_reads(
    smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    page = open_page(smollm2_url, "view=text&query=12")
    page.wait_for_selector(".side li")
    word = find(smollm2, "deposited")
    _choose(page, word)
    page.wait_for_selector("h2:has-text('deposited')")
    expected = reads(smollm2, word, range(len(smollm2)))
    shown = listed(page)
    plain = expected.copy()
    plain[[0, word]] = 0  # the first token and the word itself stand apart
    assert list(shown) == np.argsort(-plain, kind="stable")[: len(shown)].tolist()
    for place, share in (shown | listed(page, 1)).items():
        assert share == pytest.approx(expected[place], abs=1e-6)
    # Nothing is divided away: the first token has the share that it has.
    assert listed(page, 1)[0] == pytest.approx(expected[0], abs=1e-6)
    assert f"query={last_token(smollm2, word)}" in page.url


def test_one_head_and_one_layer(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    word = find(smollm2, "bank", 1)
    query = last_token(smollm2, word)
    page = open_page(smollm2_url, f"view=text&map=11&head=2&query={query}&text.over=head")
    head = listed(page) | listed(page, 1)
    expected = reads(smollm2, word, [11], 2)
    assert all(share == pytest.approx(expected[w], abs=1e-6) for w, share in head.items())
    page.get_by_text("Layer 11", exact=True).click()
    page.wait_for_selector("section[aria-busy=false] .meaning:has-text('of this layer')")
    layer = listed(page) | listed(page, 1)
    expected = reads(smollm2, word, [11])
    assert all(share == pytest.approx(expected[w], abs=1e-6) for w, share in layer.items())


def test_who_reads_a_word(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    word = find(smollm2, "river")
    columns = list(words_of(smollm2)[word].tokens)
    query = columns[-1]
    page = open_page(
        smollm2_url, f"view=text&map=7&head=4&query={query}&text.over=head&text.side=read_by"
    )
    taken = np.asarray(smollm2[7][0, 4])[:, columns].astype(np.float64).sum(-1)
    expected = [taken[list(other.tokens)].mean() for other in words_of(smollm2)]
    shown = listed(page)
    assert shown
    for reader, share in shown.items():
        assert share == pytest.approx(expected[reader], abs=1e-6)
    assert "don’t add up to 100" in page.locator(".meaning").inner_text()


def test_weights_times_values_are_the_shares_of_look(
    smollm2_file: Any, smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    _, tokenizer = jumok.load("smollm2")
    word = find(smollm2, "clerk")
    (query,) = jumok.sources(smollm2, tokenizer, token=last_token(smollm2, word)).queries
    page = open_page(smollm2_url, f"view=text&query={query.tokens[-1]}&text.measure=norm")
    for place, share in (listed(page) | listed(page, 1)).items():
        assert share == pytest.approx(query.sources[place].share, abs=1e-5)


def test_who_reads_a_word_by_the_values(serve: Callable[..., str], open_page: Open) -> None:
    recording = known_pages.gpt()
    word = find(recording, "bank")
    address = f"view=text&query={last_token(recording, word)}&text.side=read_by&text.measure=norm"
    page = open_page(serve(recording), address)
    page.wait_for_selector(".meaning:has-text('the weight times the length')")
    page.wait_for_selector("section[aria-busy=false] .side li")  # all layers are in
    shown = listed(page)
    for reader, share in shown.items():
        takes = []
        for token in words_of(recording)[reader].tokens:
            (query,) = jumok.sources(recording, known_pages.tokenizer(), token=token).queries
            takes.append(query.sources[word].share)
        assert share == pytest.approx(np.mean(takes), abs=1e-5)


def test_pointing_at_a_word_reads_its_exact_share(
    smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    word, other = find(smollm2, "boat"), find(smollm2, "muddy")
    query = last_token(smollm2, word)
    page = open_page(smollm2_url, f"view=text&map=3&head=1&query={query}&text.over=head")
    page.wait_for_selector("section[aria-busy=false] .side li")
    page.locator(f'[role="option"][data-word="{other}"]').hover()
    shown = page.locator(".readout [data-share]")
    shown.wait_for()
    expected = reads(smollm2, word, [3], 1)[other]
    assert float(shown.get_attribute("data-share")) == pytest.approx(expected, abs=1e-6)
    assert shown.inner_text().split()[0] == f"{float(shown.get_attribute('data-share')):.5g}"


def test_signs_are_shown_as_they_were_written(
    smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    page = open_page(smollm2_url, "view=text&query=60")
    page.wait_for_selector(".reader [role=option]")
    text = page.locator(".reader .box").inner_text()
    for written in ("<b>markup</b>", "</script>", "은행은 월요일에", "😊"):
        assert written.replace(" ", "") in "".join(text.split())
    assert page.locator(".reader b, .reader script").count() <= 1  # the readout's own


def test_the_keyboard_walks_from_word_to_word(
    smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    start = find(smollm2, "boat")
    query = last_token(smollm2, start)
    page = open_page(smollm2_url, f"view=text&query={query}")
    page.wait_for_selector("section[aria-busy=false] .side li")
    box = page.get_by_role("listbox", name="Words of the text")
    box.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    active = page.locator(f"[id='{box.get_attribute('aria-activedescendant')}']")
    assert active.get_attribute("data-word") == str(start + 2)
    assert words_of(smollm2)[start + 2].text in active.get_attribute("aria-label")
    page.keyboard.press("Enter")
    until_address(page, f"query={last_token(smollm2, start + 2)}")
    page.keyboard.press("End")
    last = page.locator(f'[role="option"][data-word="{len(words_of(smollm2)) - 1}"]')
    last.wait_for()
    assert last.is_visible()


def test_the_address_keeps_what_was_chosen(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=text")
    page.wait_for_selector(".side li")
    page.get_by_text("Who reads it", exact=True).click()
    page.get_by_text("Layer 0", exact=True).click()
    _choose(page, find(smollm2, "money", -1))
    until_address(page, "query=")
    before = listed(page)
    page.reload()
    page.wait_for_selector("section[aria-busy=false] .side li")
    assert listed(page) == before
    assert page.locator(".reader h2").inner_text() == "Who reads “money”"


def test_only_lines_in_sight_are_drawn(serve: Callable[..., str], open_page: Open) -> None:
    recording = known_pages.gpt("The money was deposited in the bank. " * 260)
    last = len(words_of(recording)) - 3
    page = open_page(serve(recording), f"view=text&query={last_token(recording, last)}")
    page.wait_for_selector("section[aria-busy=false] .side li")
    chosen = page.locator('.reader [aria-selected="true"]')
    assert chosen.get_attribute("data-word") == str(last)
    assert chosen.is_visible()
    assert len(words_of(recording)) > 3500
    assert 0 < page.locator(".reader [role=option]").count() < 1000
    page.locator(".reader .box").press("Home")
    first = page.locator('[role="option"][data-word="0"]')
    first.wait_for()
    assert first.get_attribute("aria-setsize") == str(len(words_of(recording)))


def test_two_texts_of_cross_attention(serve: Callable[..., str], open_page: Open) -> None:
    recording = known_pages.translated()
    cross = next(n for n, found in enumerate(recording) if "cross" in found.name)
    page = open_page(serve(recording), f"view=text&map={cross}&head=1&query=1&text.over=head")
    page.wait_for_selector("section[aria-busy=false] .side li")
    assert page.get_by_role("listbox").count() == 2
    row = np.asarray(recording[cross][0, 1, 1]).astype(np.float64)
    read = recording.texts["ids"][0].reading.words
    for word, share in listed(page).items():
        assert share == pytest.approx(row[list(read[word].tokens)].sum(), abs=1e-6)


def test_korean(smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=text&query=40", language="ko-KR")
    page.wait_for_selector(".side li")
    text = page.locator("[role=tabpanel]").inner_text()
    assert "가장 많이 읽는 단어" in text
    assert "why it answered" not in text
