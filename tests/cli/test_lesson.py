"""``jumok lesson``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jumok.lessons import CONTENTS

pytest.importorskip("torch")


def test_lessons_are_listed_a_line_each(run: Any) -> None:
    code, out, _ = run("lesson")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == list(CONTENTS)
    _, korean, _ = run("lesson", "--lang", "ko")
    assert "행렬" in korean


def test_a_lesson_runs(run: Any, tmp_path: Path) -> None:
    picture = tmp_path / "steps.png"
    code, out, said = run("lesson", "steps", "--quick", "--png", str(picture))
    assert code == 0
    assert "Verdict: holds" in out
    assert "✓ every row of the weights sums to 1: 1.000000" in out
    assert str(picture) in said
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_lesson_runs_in_korean(run: Any) -> None:
    code, out, _ = run("lesson", "steps", "--quick", "--lang", "ko")
    assert code == 0
    assert "판정: 맞다" in out


def test_a_page_is_written(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("lesson", "steps", "--quick", "--out", str(tmp_path / "book"))
    assert code == 0
    assert out.startswith("steps: holds")
    assert "steps.svg" in (tmp_path / "book/steps.md").read_text()
    assert (tmp_path / "book/steps.svg").exists()
    assert not (tmp_path / "book/index.md").exists()


def test_the_book(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jumok.lessons.CONTENTS", {"steps": CONTENTS["steps"]})
    code, _, said = run("lesson", "--all", "--quick", "--out", str(tmp_path))
    assert code == 0
    assert "index.md" in said
    assert json.loads((tmp_path / "verdicts.json").read_text()) == {"steps": "holds"}
    assert "[steps](steps.md)" in (tmp_path / "index.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["attention"], "there is no lesson 'attention'; there are"),
        (["steps", "--lang", "de"], "--lang de: en or ko"),
        (["steps", "--all"], "one lesson (steps) or --all of them"),
        (["--all"], "name its folder with --out DIR"),
        (["--out", "book"], "which lesson?"),
        (["steps", "--png", "steps.gif"], "must end in .png, .svg, .pdf"),
        (["steps", "--png", "no/such/folder/a.png"], "there is no folder"),
    ],
)
def test_refusals(run: Any, arguments: list[str], said: str) -> None:
    code, out, err = run("lesson", *arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 1
