"""The log of a run: what is torn is mended, what can't be written waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jumok.training.log import Log, read_rows


def test_rows_come_back(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add({"step": 1, "loss": 2.5})
    log.add({"step": 2, "samples": [("given\n", "made “한”")]})
    log.close()
    assert read_rows(tmp_path / "log.jsonl") == [
        {"step": 1, "loss": 2.5},
        {"step": 2, "samples": [["given\n", "made “한”"]]},
    ]


def test_going_on_drops_later_rows_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    log = Log(tmp_path, step=2)
    assert [row["step"] for row in log.rows] == [1, 2]
    log.add({"step": 3})
    log.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_a_full_disk_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line is written before the disk is full; later there is room again."""
    path, full = tmp_path / "log.jsonl", True
    opened = Path.open

    class Full:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, line: str) -> None:
            with opened(path, "a", encoding="utf-8") as file:
                file.write(line[:5])
            raise OSError(28, "No space left on device")

    log = Log(tmp_path)
    log.add({"step": 1})
    monkeypatch.setattr(
        Path,
        "open",
        lambda self, *a, **k: Full() if full and "a" in a else opened(self, *a, **k),
    )
    log.add({"step": 2})
    assert any("No space left" in note for note in log.notes)
    assert read_rows(path) == [{"step": 1}]
    full = False
    log.add({"step": 3})
    log.close()
    assert path.read_text() == "".join(json.dumps({"step": n}) + "\n" for n in (1, 2, 3))
