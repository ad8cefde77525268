"""The calculation in a real browser: every number is that of the recording, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from browsing import last_token, settled, until_address

Open = Callable[..., Any]
LAYER, HEAD, QUERY = 9, 4, 143


def _calculated(recording: Any) -> dict[str, Any]:
    call = recording[LAYER].call
    q = np.asarray(call.q)[0, HEAD, QUERY].astype(np.float64)
    group = call.q.shape[1] // call.k.shape[1]
    k = np.asarray(call.k)[0, HEAD // group].astype(np.float64)
    v = np.asarray(call.v)[0, HEAD // group].astype(np.float64)
    product = k @ q
    score = np.where(np.arange(len(k)) <= QUERY, product / np.sqrt(len(q)), -np.inf)
    weight = np.exp(score - score.max())
    weight /= weight.sum()
    return {"product": product, "scale": product / np.sqrt(len(q)), "mask": score,
            "softmax": weight, "q": q, "k": k, "output": weight @ v}  # fmt: skip


def _rows(page: Any, step: str) -> dict[int, float]:
    cells = page.locator(f'tr[data-key] td[data-step="{step}"]').all()
    return {
        int(cell.evaluate("cell => cell.closest('tr').dataset.key")): float(
            cell.get_attribute("data-value")
        )
        for cell in cells
    }


@pytest.fixture
def page(smollm2_url: str, open_page: Open) -> Any:
    found = open_page(smollm2_url, f"view=steps&map={LAYER}&head={HEAD}&query={QUERY}")
    found.wait_for_selector("tr[data-key]")
    settled(found)
    return found


def test_every_step_is_pythons(smollm2: Any, page: Any) -> None:
    expected = _calculated(smollm2)
    assert page.get_by_role("tab", selected=True).last.inner_text().endswith("Vectors")
    for step in ("product", "scale", "mask", "softmax"):
        page.get_by_role("button", name="Next ›").click()
        page.wait_for_selector(f'td.now[data-step="{step}"]')
        shown = _rows(page, step)
        assert len(shown) >= 7
        for key, value in shown.items():
            assert value == pytest.approx(expected[step][key], rel=1e-5, abs=1e-9), (step, key)
    until_address(page, "steps.step=softmax")
    best = np.argsort(-expected["softmax"])[:6]
    assert set(best.tolist()) | {QUERY, QUERY + 1} == set(_rows(page, "softmax"))


def test_what_is_hidden_gets_nothing_and_a_row_makes_100_percent(page: Any) -> None:
    page.get_by_role("tab", name="Softmax").click()
    hidden = page.locator(f'tr[data-key="{QUERY + 1}"]')
    assert hidden.locator('td[data-step="mask"]').inner_text() == "−∞"
    assert hidden.locator('td[data-step="softmax"]').inner_text().strip() == "0.0\u202f%"
    assert "hidden" in hidden.inner_text()
    assert page.locator('td[data-step="sum"]').inner_text() == "100.0\u202f%"
    others = page.locator('td[data-step="others"]').inner_text()
    assert others.endswith("%")


def test_keys_walk_through_the_steps(page: Any) -> None:
    page.get_by_role("tab", name="Vectors").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent").endswith("Scale")
    assert "√64" in page.locator(".sentence").inner_text()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent").endswith("Mix")


def test_the_numbers_of_a_strip(smollm2: Any, page: Any) -> None:
    expected = _calculated(smollm2)
    page.get_by_role("tab", name="Mix").click()
    page.get_by_role("button", name="output of").click()
    numbers = page.locator(".numbers li .number").all_inner_texts()
    shown = [float(text.replace("−", "-")) for text in numbers]
    np.testing.assert_allclose(shown, expected["output"], rtol=1e-3, atol=1e-6)
    page.get_by_role("tab", name="Dot product").click()
    page.get_by_role("button", name="k of").first.click()
    key = int(page.locator("tr[data-key]").first.get_attribute("data-key"))
    said = page.locator(".numbers p").inner_text()
    assert float(said.split("=")[1].replace("−", "-")) == pytest.approx(
        expected["product"][key], rel=1e-4
    )


def test_formulas_are_mathml(page: Any) -> None:
    for name in ("Vectors", "Dot product", "Scale", "Mask", "Softmax", "Mix"):
        page.get_by_role("tab", name=name).click()
        math = page.locator("math")
        assert math.evaluate("math => math.namespaceURI").endswith("MathML")
        assert math.locator("msub").first.evaluate("one => one.namespaceURI").endswith("MathML")
        assert math.bounding_box()["width"] > 40


def test_another_word_in_korean(smollm2: Any, smollm2_url: str, open_page: Open) -> None:
    address = f"view=steps&map={LAYER}&head={HEAD}&query={QUERY}&steps.step=softmax"
    page = open_page(smollm2_url, address, language="ko-KR", width=360)
    page.wait_for_selector("tr[data-key]")
    assert "소프트맥스" in page.locator(".sentence").inner_text()
    option = page.locator(".choose [role=option]").first
    number = int(option.get_attribute("data-word"))
    option.click()
    until_address(page, f"query={last_token(smollm2, number)}")
    settled(page)
    page.wait_for_selector('td[data-step="sum"]:has-text("100.0%")')
