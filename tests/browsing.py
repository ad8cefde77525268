"""What the browser tests of the views share: words of a recording, and waiting for the page."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


def words_of(recording: Any) -> tuple[Any, ...]:
    """The words of the text that was read."""
    return tuple(recording.texts["ids"][0].reading.words)


def find(recording: Any, text: str, nth: int = 0) -> int:
    """The number of a word."""
    return [n for n, word in enumerate(words_of(recording)) if word.text == text][nth]


def last_token(recording: Any, word: int) -> int:
    """The token by which the page names a word."""
    return int(words_of(recording)[word].tokens[-1])


def by_words(recording: Any, tokens: Any) -> Floats:
    """Shares of tokens added up to words."""
    return np.array([tokens[list(word.tokens)].sum() for word in words_of(recording)])


def weights(recording: Any, layer: int) -> Floats:
    """All weights of one layer, (heads, queries, keys)."""
    return np.asarray(recording[layer][0]).astype(np.float64)


def reads(recording: Any, word: int, layers: Any, head: int | None = None) -> Floats:
    """What a word reads of each word: the mean over its tokens, the layers and their heads."""
    rows = list(words_of(recording)[word].tokens)
    found = [weights(recording, n)[:, rows] for n in layers]
    chosen = [one if head is None else one[head : head + 1] for one in found]
    return by_words(recording, np.mean([one.mean((0, 1)) for one in chosen], 0))


def until_address(page: Any, *parts: str) -> None:
    """Waits until the address has these parts."""
    for part in parts:
        page.wait_for_function("part => location.hash.includes(part)", arg=part)


def settled(page: Any) -> None:
    """Waits until the view shows the answer to what is chosen."""
    page.wait_for_selector("section[aria-busy=false]")


def listed(page: Any, which: int = 0) -> dict[int, float]:
    """Word → share, of the first list beside the text or of what stands apart."""
    settled(page)
    page.wait_for_selector(".side li[data-word]")
    rows = page.locator(".side ol").nth(which).locator("li").all()
    return {
        int(row.get_attribute("data-word")): float(row.get_attribute("data-share")) for row in rows
    }
