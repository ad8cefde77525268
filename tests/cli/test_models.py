"""``jumok models``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")


def test_models_are_listed(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUMOK_CACHE", str(tmp_path))
    code, out, _ = run("models")
    assert code == 0
    for said in ("minilm", "smollm2", "Apache-2.0", "not fetched yet", "84 MB", str(tmp_path)):
        assert said in out
