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
    assert "entropy" in out.lower()
