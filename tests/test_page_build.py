"""The page as it was built into the package."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "src" / "jumok" / "view" / "assets"
# Names of XML dialects and pages that an error may speak of; nobody asks them for anything.
NAMED = {"www.w3.org", "svelte.dev"}


@pytest.fixture
def build(tmp_path: Path) -> Any:
    """ui/build.py of a copy of the sources."""
    ui = tmp_path / "ui"
    shutil.copytree(ROOT / "ui", ui, ignore=shutil.ignore_patterns("node_modules"))
    spec = importlib.util.spec_from_file_location("page_build", ui / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_script_and_one_style_sheet() -> None:
    names = {path.name for path in ASSETS.iterdir()}
    assert names == {"viewer.js", "viewer.css", "built-from.txt"}


def test_the_page_asks_no_third_party_and_evaluates_nothing() -> None:
    script = (ASSETS / "viewer.js").read_text(encoding="utf-8")
    style = (ASSETS / "viewer.css").read_text(encoding="utf-8")
    hosts = set(re.findall(r"https?://([\w.-]+)", script + style))
    assert hosts <= NAMED
    assert not re.search(r"\beval\(|new Function\b", script)
    assert not re.search(r"@import|url\((?!data:|#)", style)


def test_the_script_may_stand_inside_a_page() -> None:
    script = (ASSETS / "viewer.js").read_text(encoding="utf-8").lower()
    assert "</script" not in script
    assert "<!--" not in script or "<script" not in script


def test_every_rule_stays_inside_the_page() -> None:
    """A notebook around the widget keeps its own look."""
    style = re.sub(
        r"/\*.*?\*/", "", (ASSETS / "viewer.css").read_text(encoding="utf-8"), flags=re.S
    )
    style = re.sub(r"@keyframes[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", style)
    style = re.sub(r"@media[^{]*\{", "", style)
    for selectors in re.findall(r"([^{}]+)\{", style):
        for selector in re.split(r",(?![^()]*\))", selectors):
            inside = re.search(r"\.jumok|\.svelte-|#jumok-viewer", selector)
            assert inside, f"{selector!r} would reach outside the page"


def test_a_changed_source_is_noticed(build: Any) -> None:
    before = build.sources()
    words = build.UI / "src" / "words" / "map.ts"
    words.write_bytes(words.read_bytes().replace(b"\n", b"\r\n"))
    assert build.sources() == before  # the same text with the line ends of another system
    words.write_bytes(words.read_bytes() + b"// changed\n")
    assert build.sources() != before
    assert not build.is_built()


def test_npms_refusal_is_told(build: Any) -> None:
    (build.UI / "package-lock.json").write_text("{}", encoding="utf-8")
    with pytest.raises(build.BuildError, match=r"npm ci in .* failed"):
        build.build()
