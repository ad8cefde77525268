"""The documentation is whole, and its programs run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jumok.model.zoo import ZOO

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def _pages(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    else:
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from _pages(entry)


def test_every_page_is_in_the_navigation_and_there() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    listed = sorted(_pages(project["nav"]))
    assert listed == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", ["README.md", "README.ko.md", "CONTRIBUTING.md"])
def test_links_between_files_lead_somewhere(page: str) -> None:
    """Links inside docs/ are checked by its build."""
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


def test_the_house_has_the_rooms_that_contributors_are_told() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = text.split("## The house")[1].split("```")[1]
    rooms = set(re.findall(r"\b\w+(?:/|\.py)", picture))
    source = ROOT / "src" / "jumok"
    there = {f"{path.parent.name}/" for path in source.glob("*/__init__.py")}
    there |= {path.name for path in source.glob("*.py") if not path.name.startswith("_")}
    assert rooms == there


def test_sizes_of_the_embedded_models_are_told() -> None:
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for name, entry in ZOO.items():
        assert re.search(rf"`{name}` .*{entry.sizes}", text)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "README.ko.md",
        "docs/index.md",
        "docs/models.md",
        "docs/corpora.md",
        "docs/training.md",
        "docs/quick-start.md",
        "docs/long-prompts.md",
    ],
)
def test_the_programs_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert programs
    names: dict[str, Any] = {}
    for program in programs:  # one page is one session
        exec(compile(program, page, "exec"), names)
