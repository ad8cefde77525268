"""The documentation is whole, and its programs run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jumok.cli import main
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


@dataclass
class Block:
    """A fenced block of a page, and why it isn't run, if it isn't."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None


def _blocks(path: Path) -> list[Block]:
    found: list[Block] = []
    opened: Block | None = None
    reason, fence = None, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if opened is not None:
            if line.strip() == "```":
                found.append(opened)
                opened = None
            else:
                opened.text += line.removeprefix(fence) + "\n"
        elif line.lstrip().startswith("```"):
            fence = line[: len(line) - len(line.lstrip())]
            name = path.relative_to(ROOT).as_posix()
            opened = Block(name, number, line.strip("` "), "", reason)
            reason = None
        elif mark := re.fullmatch(r"<!-- not run: (.+) -->", line.strip()):
            reason = mark[1]
        elif line.strip():
            reason = None
    assert opened is None, f"{path}: a block that does not end"
    return found


def _commands(block: Block) -> Iterator[tuple[list[str], str]]:
    """Each command of a block and the output that the page shows of it."""
    text = block.text.replace("\\\n", " ")
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield shlex.split(command, comments=True), output


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def _compare(output: str, shown: str, place: str) -> None:
    """The page shows the output; a line "…" stands for what it leaves out."""
    words = re.sub(r"[█▉▊▋▌▍▎▏]+", " ", output).split()
    shapes = [_NUMBER.sub("#", word) for word in words]
    for part in re.split(r"^…$", shown, flags=re.MULTILINE):
        wanted = re.sub(r"[█▉▊▋▌▍▎▏]+", " ", part).split()
        shape = [_NUMBER.sub("#", word) for word in wanted]
        starts = [n for n in range(len(words) + 1) if shapes[n : n + len(shape)] == shape]
        assert starts, f"{place}: not what is put out now:\n{output}"
        found = [_numbers(words[n : n + len(shape)]) for n in starts]
        near = pytest.approx(_numbers(wanted), rel=0.02, abs=0.15)
        assert any(numbers == near for numbers in found), f"{place}: other numbers:\n{output}"


def _numbers(words: list[str]) -> list[float]:
    return [float(one.replace(",", "")) for one in _NUMBER.findall(" ".join(words))]


PROGRAMS = {  # what is run as programs are: README's are the front door, lessons have their tests
    page: [block for block in _blocks(page) if block.language in ("python", "console")]
    for page in [ROOT / "README.md", ROOT / "README.ko.md", *sorted(DOCS.rglob("*.md"))]
    if page.parent.name not in ("lessons", "reference") and "lessons" not in page.parts
}
RUN = [page for page, blocks in PROGRAMS.items() if any(not block.reason for block in blocks)]
_shown: dict[tuple[str, ...], str] = {}  # what README shows, README.ko shows too


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_programs_of_a_page_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One page is one session, in a folder with the texts of docs/; outputs are as they are shown.

    A comment "<!-- not run: why -->" above a block leaves it out.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "docs").symlink_to(DOCS)
    for text in DOCS.glob("*.txt"):
        shutil.copy(text, tmp_path)
    names: dict[str, Any] = {}
    for block in PROGRAMS[page]:
        if block.reason:
            continue
        place = f"{block.page}:{block.line}"
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
            continue
        for command, shown in _commands(block):
            assert command[0] == "jumok", f"{place}: say why {command[0]} is not run"
            output = _shown.get(tuple(command)) if shown else None
            if output is None:
                capsys.readouterr()
                with pytest.raises(SystemExit) as end:
                    main(command[1:])
                output, complaint = capsys.readouterr()
                assert not end.value.code, f"{place}: {complaint}"
            if shown:
                _shown[tuple(command)] = output
                _compare(output, shown, place)


def test_pages_ask_nobody_else() -> None:
    """No page of the documentation loads a script, a style or a picture from elsewhere."""
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"!\[[^\]]*\]\(https?:|<(?:script|link|img|iframe)\b", text), page


def test_the_notebooks_run_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell in the shell that a notebook's kernel is made of; kept without outputs."""
    monkeypatch.chdir(tmp_path)
    notebooks = sorted((ROOT / "examples").glob("*.ipynb"))
    assert notebooks
    for path in notebooks:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
        script = tmp_path / f"{path.stem}.json"
        script.write_text(json.dumps(["".join(cell["source"]) for cell in cells]))
        shell = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(open(sys.argv[1], encoding="utf-8")):
    shell.run_cell(cell).raise_error()
"""
        command = [sys.executable, "-c", shell, str(script)]
        environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "MPLBACKEND": "agg"}
        ran = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
