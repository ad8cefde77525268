"""The map in a real browser: what it says is what Python computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Open = Callable[..., Any]


def _settled(page: Any) -> None:
    page.wait_for_selector('.plot[data-settled="true"]')


def _pinned(page: Any) -> float:
    """The weight that the card of the pinned cell shows, as the page got it."""
    cell = page.locator(".pinned [data-weight]")
    cell.wait_for()
    return float(cell.get_attribute("data-weight"))


def _number(note: str) -> float:
    """The value at the end of a note, such as "… is 1.548·10⁻⁷."."""
    found = re.search(r"is (\S+)\.(?: |$)", note)
    assert found is not None, note
    powers = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    return float(found[1].replace("·10", "e").translate(powers))


def _hash(page: Any, *parts: str) -> None:
    """Waits until the address has these parts."""
    for part in parts:
        page.wait_for_function("part => location.hash.includes(part)", arg=part)


@pytest.mark.parametrize(
    ("layer", "head", "query", "key"), [(3, 1, 140, 134), (29, 8, 299, 0), (0, 4, 17, 17)]
)
def test_a_single_weight_is_pythons(
    smollm2: Any, smollm2_url: str, open_page: Open, layer: int, head: int, query: int, key: int
) -> None:
    address = f"view=map&map={layer}&head={head}&query={query}&key={key}&map.at={query},{key},40"
    page = open_page(smollm2_url, address)
    _settled(page)
    row = np.asarray(smollm2[layer][0, head, query])
    assert np.float32(_pinned(page)) == row[key]
    visible = row[: query + 1]
    rank = 1 + int((visible > row[key]).sum() + (visible[:key] == row[key]).sum())
    assert f"{rank} of {query + 1} keys it sees" in page.locator(".pinned").inner_text()
    labels = smollm2.texts["ids"][0].reading.labels
    shown = page.locator(".pinned .token").all_inner_texts()[:2]
    assert shown == [labels[query], labels[key]]


def test_the_pointer_reads_the_cell_under_it(
    smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    page = open_page(smollm2_url, "view=map&map=5&head=2&map.at=100.5,90.5,50")
    _settled(page)
    box = page.locator(".plot").bounding_box()
    left, top = 118, 92  # the axes
    x = box["x"] + 1 + left + (box["width"] - 3 - left) / 2
    y = box["y"] + 1 + top + (box["height"] - 3 - top) / 2
    page.mouse.move(x, y)
    shown = page.locator(".tip [data-weight]")
    shown.wait_for()
    page.wait_for_selector(".tip strong")
    assert np.float32(shown.get_attribute("data-weight")) == np.asarray(smollm2[5][0, 2, 100])[90]
    page.mouse.click(x, y)
    _hash(page, "query=100", "key=90")


def test_keys_walk_and_zoom(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=map&map=2&head=3&query=50&key=40&map.at=50,40,20")
    _settled(page)
    page.focus(".plot")
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    _hash(page, "query=52", "key=29")
    page.wait_for_function(
        "() => document.querySelector('.pinned .number')?.textContent.includes('52')"
    )
    weights = np.asarray(smollm2[2][0, 3, 52])
    page.wait_for_function(
        "weight => document.querySelector('.pinned [data-weight]').dataset.weight == weight",
        arg=float(weights[29]),
    )
    page.keyboard.press("+")
    _hash(page, "map.at=")
    page.keyboard.press("0")
    page.wait_for_function("() => !location.hash.includes('map.at')")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('query')")
    assert page.locator(".pinned").count() == 0


def test_a_dot_of_many_weights_is_their_largest_or_their_mean(
    smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    page = open_page(smollm2_url, "view=map&map=7&head=0&query=201&key=60", width=360, height=700)
    _settled(page)
    note = page.locator(".note")
    page.wait_for_function("() => document.querySelector('.note').textContent.includes('2 × 2')")
    block = np.asarray(smollm2[7][0, 0, 200:202])[:, 60:62]
    said = _number(note.inner_text())
    np.testing.assert_allclose(said, block.max(), rtol=1e-3)
    page.get_by_text("the mean", exact=True).click()
    page.wait_for_function("() => document.querySelector('.note').textContent.includes('the mean')")
    _settled(page)
    said = _number(note.inner_text())
    np.testing.assert_allclose(said, block.mean(), rtol=1e-3)


def test_reload_keeps_the_state_and_back_goes_back(smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=map&map=3&head=1&query=140&key=134&map.at=140.5,134.5,40")
    _settled(page)
    weight = _pinned(page)
    page.get_by_text("÷ its largest", exact=True).click()
    page.get_by_text("linear", exact=True).click()
    _hash(page, "normalised=1", "scale=linear")
    before = page.url
    page.reload()
    _settled(page)
    assert page.url == before
    assert _pinned(page) == weight
    assert page.get_by_label("linear").is_checked()
    assert page.get_by_label("÷ its largest").is_checked()
    page.get_by_label("Next head").click()
    _hash(page, "head=2")
    page.get_by_role("tab", name="Text").click()
    _hash(page, "view=text")
    page.go_back()
    _hash(page, "view=map", "head=2")
    page.go_back()
    _hash(page, "head=1")
    assert page.get_by_label("Head", exact=True).input_value() == "3.1"


def test_a_token_is_found_by_its_text(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    labels = smollm2.texts["ids"][0].reading.labels
    places = [at for at, label in enumerate(labels) if "clerk" in label]
    page = open_page(smollm2_url, "view=map&map=3&head=1")
    _settled(page)
    page.get_by_label("Find a token").fill("clerk")
    page.keyboard.press("Enter")
    _hash(page, f"key={places[0]}")
    page.keyboard.press("Enter")
    _hash(page, f"key={places[1]}")
    assert page.get_by_role("status").get_by_text(f"2 of {len(places)}").is_visible()


def test_a_token_that_looks_like_markup_is_text(
    smollm2: Any, smollm2_url: str, open_page: Open
) -> None:
    labels = smollm2.texts["ids"][0].reading.labels
    at = next(at for at, label in enumerate(labels) if "</" in label)
    page = open_page(smollm2_url, f"view=map&query={at}&key={at}&map.at={at},{at},40")
    _settled(page)
    page.wait_for_function(
        "label => document.querySelector('.pinned .token')?.textContent === label", arg=labels[at]
    )


def test_fingers_pin_and_pinch(smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=map", width=360, height=740, has_touch=True, is_mobile=True)
    _settled(page)
    box = page.locator(".plot").bounding_box()
    x, y = box["x"] + 120, box["y"] + box["height"] - 60
    page.touchscreen.tap(x, y)
    _hash(page, "query=", "key=")
    fingers = page.context.new_cdp_session(page)

    def touch(kind: str, *apart: float) -> None:
        points = [{"x": x + side, "y": y, "id": number} for number, side in enumerate(apart)]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", -10, 10)
    for spread in range(10, 90, 10):
        touch("touchMove", -spread, spread)
    touch("touchEnd")
    _hash(page, "map.at=")
    before = page.evaluate("location.hash")
    touch("touchStart", 0)
    for way in range(0, 60, 10):
        touch("touchMove", -way)
    touch("touchEnd")
    page.wait_for_function("before => location.hash !== before", arg=before)


def test_both_languages_and_a_number_explained(smollm2_url: str, open_page: Open) -> None:
    page = open_page(smollm2_url, "view=map", language="ko-KR")
    page.get_by_role("tab", name="지도").wait_for()
    page.get_by_role("button", name="숫자의 뜻").click()
    assert "가중치가 곧 설명은 아닙니다" in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    page.get_by_label("언어").select_option("en")
    page.get_by_role("tab", name="Map").wait_for()
    _hash(page, "lang=en")
    page.reload()
    page.get_by_role("tab", name="Map").wait_for()
    english = open_page(f"{smollm2_url}?lang=ko", "view=map")
    english.get_by_role("tab", name="지도").wait_for()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_serious_for_axe(
    smollm2_url: str,
    open_page: Open,
    serious_faults: Callable[[Any], list[str]],
    dark: bool,
    width: int,
) -> None:
    address = "view=map&map=3&head=1&query=140&key=134&map.segments=paragraphs"
    page = open_page(smollm2_url, address, width=width, dark=dark, bypass_csp=True)
    _settled(page)
    _pinned(page)
    assert serious_faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
