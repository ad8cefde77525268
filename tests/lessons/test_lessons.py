"""Every lesson runs in its quick setting, says something about each check, and draws."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jumok.lessons import CONTENTS, find, run
from jumok.lessons.lesson import (
    LANGUAGES,
    VERDICTS,
    Check,
    Findings,
    Lesson,
    Result,
    Running,
    Table,
    Words,
)
from jumok.lessons.showing import contents, markdown, number, picture

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

BOOK = Path(__file__).parents[2] / "docs" / "lessons"


@pytest.fixture(scope="module", params=CONTENTS)
def result(request: pytest.FixtureRequest) -> Result:
    told: list[float] = []
    found = run(find(request.param), Running(quick=True, tell=lambda what, part: told.append(part)))
    assert told == sorted(told)
    assert not told or 0 <= told[0] <= told[-1] <= 1
    return found


def test_the_quick_setting_has_the_verdict_of_the_book(result: Result) -> None:
    verdicts = json.loads((BOOK / "verdicts.json").read_text())
    checks = [(check.statement.en, check.holds, check.figures) for check in result.findings.checks]
    assert result.findings.verdict == verdicts[result.lesson.name], checks


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_can_be_read_and_looked_at(result: Result, language: str, tmp_path: Path) -> None:
    page = markdown(result, language, "figure.png")
    for check in result.findings.checks:
        assert check.statement.in_(language) in page
        assert re.search(r"\d", check.figures), check
    picture(result, language).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5_000
    if language == "ko":
        assert re.search("[가-힣]", result.lesson.claim.ko)
        assert re.search("[가-힣]", result.lesson.setup.ko)


def made_up(*held: bool) -> Result:
    words = Words("a claim | with a bar", "주장")
    checks = tuple(
        Check(Words(f"part {n}", f"부분 {n}"), one, "1 ↔ 2") for n, one in enumerate(held)
    )
    table = Table(words, ("d", Words("loss", "손실")), [(8, 0.5), (16, 1234.5)])
    findings = Findings((table,), checks, lambda figure, language: None, remark=words)
    return Result(Lesson("steps", words, words, lambda running: findings), findings, 61.4, False)


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ((True, True), "holds"),
        ((True, False), "holds partly"),
        ((False, False), "doesn't hold here"),
    ],
)
def test_the_verdict_follows_from_the_checks(held: tuple[bool, ...], verdict: str) -> None:
    result = made_up(*held)
    assert result.findings.verdict == verdict
    for language in LANGUAGES:
        words = VERDICTS[result.findings.verdict].in_(language)
        assert words in markdown(result, language)
        assert "[steps](steps.md) | " in contents({"steps": result.findings.verdict}, language)
        assert words in contents({"steps": result.findings.verdict}, language)


def test_a_page_has_its_numbers_and_its_command() -> None:
    page = markdown(made_up(True, False), "en", "steps.svg")
    assert "| 8 | 0.500 |" in page
    assert "| 16 | 1,234 |" in page or "| 16 | 1,235 |" in page
    assert "a claim | with a bar" in page
    assert "![attention by hand, every matrix shown](steps.svg)" in page
    assert "- ✓ part 0: 1 ↔ 2" in page
    assert "- ✗ part 1: 1 ↔ 2" in page
    assert "$ jumok lesson steps\n" in page
    assert "61 s" in page
    assert "jumok lesson steps --lang ko\n" in markdown(made_up(True), "ko")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.18, "0.180"),
        (8.736, "8.74"),
        (127.3, "127"),
        (12345.6, "12,346"),
        (1e-7, "1.0e-07"),
        (float("nan"), "–"),
        (-0.5, "-0.500"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_listing_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from jumok.lessons import CONTENTS\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_lesson() -> None:
    with pytest.raises(ValueError, match=r"no lesson 'attention'; there are .*scaling"):
        find("attention")


def test_torch_is_as_random_as_before() -> None:
    import torch

    torch.manual_seed(1)
    before = torch.get_rng_state()
    run(find("steps"), Running(quick=True, seed=5))
    assert torch.equal(torch.get_rng_state(), before)
