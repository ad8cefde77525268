"""``jumok report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch

import jumok
from jumok.cli.report import FURTHER_LEGENDS
from jumok.lens.heads import DEFAULT, MEASURES


def test_a_report_says_what_its_columns_mean(run: Any, folders: dict[str, str]) -> None:
    _, out, _ = run("report", "an apple", "-m", folders["encoder"])
    legend = " ".join(out.split())
    for said in ("entropy in nats", "distance in tokens", "weight on the first token"):
        assert said in legend
    assert max(map(len, out.splitlines())) <= 80


def test_a_report_as_json_of_a_text_in_a_file(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("an apple\n")
    _, out, _ = run("report", "--file", str(file), "-m", folders["gpt"], "--json")
    rows = json.loads(out)
    assert [(row["layer"], row["head"]) for row in rows] == [
        (a, b) for a in range(3) for b in (0, 1)
    ]
    assert list(rows[0])[-3:] == ["most_read", "most_read_token", "most_read_share"]
    assert rows[0]["first"] == pytest.approx(
        jumok.report(_recorded("an apple", folders["gpt"])).columns["first"][0]
    )


def _recorded(text: str, folder: str) -> Any:
    model, tokens = jumok.load(folder)
    with torch.inference_mode(), jumok.watch(model) as recording:
        model(torch.tensor([tokens.encode(text)]))
    return recording


def test_a_report_of_a_text(run: Any, folders: dict[str, str]) -> None:
    code, out, _ = run("report", "an apple", "-m", folders["encoder"])
    assert code == 0
    assert out.startswith("The text “an apple”, read by ")
    assert "entropy" in out.lower()


@pytest.mark.parametrize("width", [80, 110])
def test_further_columns_are_readable_and_explained(
    run: Any, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = "an apple an apple"
    code, out, _ = run("report", text, "-m", folders["encoder"], "--measures", "all")
    assert code == 0
    assert max(map(len, out.splitlines())) <= width
    assert width > 80 or "…" not in out  # only paths of modules, in wide tables, are cut off
    words = " ".join(out.split())
    for name in FURTHER_LEGENDS:
        assert f"{name.replace('_', ' ')}: " in words
    assert set(FURTHER_LEGENDS) == set(MEASURES) - set(DEFAULT)


def test_chosen_measures_are_those_of_the_library(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    text, chosen = "an apple an apple", ["induction", "window"]
    options = ("--measures", " induction,window", "--json")
    _, out, _ = run("report", text, "-m", folders["gpt"], *options)
    recording = _recorded(text, folders["gpt"])
    expected = jumok.report(recording, measures=chosen)
    path = tmp_path / "run.safetensors"
    recording.save(path)
    _, of_file, _ = run("report", str(path), *options)
    for rows in (json.loads(out), json.loads(of_file)):
        for name in chosen:
            found = [row[name] for row in rows]
            assert found == pytest.approx(expected.columns[name].tolist(), abs=1e-6)


def test_measures_that_are_not_there(run: Any, folders: dict[str, str], tmp_path: Path) -> None:
    code, _, err = run("report", "an apple", "-m", "nowhere", "--measures", "entropy,indction")
    assert code == 2
    assert "no measure is called 'indction'; there are entropy," in " ".join(err.split())
    recording = _recorded("an apple", folders["gpt"])
    path = tmp_path / "run.safetensors"
    recording.save(path)
    code, _, err = run("report", str(path), "--measures", "window,special")
    assert code == 2
    assert "leave out special" in " ".join(err.split())
    recording.ids = None
    recording.save(path)
    code, _, err = run("report", str(path), "--measures", "induction")
    assert code == 2
    assert "holds no token ids; leave out induction" in " ".join(err.split())
    code, out, _ = run("report", str(path), "--measures", "all", "--json")
    assert code == 0
    assert "window" in json.loads(out)[0]
    assert "induction" not in json.loads(out)[0]
