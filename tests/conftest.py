"""What every test shares."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

# Workers of `pytest -n` share the machine: one thread each. Set before NumPy and torch load.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[_variable] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")
# Only our own zoo may fetch a model; a hub library that tries fails at once instead of waiting.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

# The same examples in every run: a failing test fails for everybody. No time is asserted.
settings.register_profile("jumok", deadline=None, derandomize=True)
settings.load_profile("jumok")


@pytest.fixture(scope="session")
def korean_font() -> Path:
    """A font file that has Hangul, for tests that draw Korean; without one they are skipped."""
    font_manager = pytest.importorskip("matplotlib.font_manager")
    ft2font = pytest.importorskip("matplotlib.ft2font")
    # Asks the system each time: matplotlib's own list may be older than the font.
    for file in sorted(font_manager.findSystemFonts()):
        try:
            font = ft2font.FT2Font(file)
        except RuntimeError:  # a file that FreeType cannot read
            continue
        if font.get_char_index(ord("한")):
            if file not in {entry.fname for entry in font_manager.fontManager.ttflist}:
                font_manager.fontManager.addfont(file)
            return Path(file)
    pytest.skip("no installed font has Hangul (Debian: fonts-noto-cjk)")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The last lines: what was left out for want of something that the system can have."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in sorted(reasons.items()):
        if "Debian" in reason:
            terminalreporter.write_line(f"left out: {count} tests: {reason}", yellow=True)
