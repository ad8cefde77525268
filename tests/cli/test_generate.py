"""``jumok generate``."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")


def test_generate_streams_the_prompt_and_what_follows(run: Any, folders: dict[str, str]) -> None:
    arguments = ("generate", "an", "-m", folders["gpt"], "--tokens", "5", "--seed", "3")
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert out.startswith("an")
    assert out.endswith("\n")
    assert run(*arguments)[1] == out
