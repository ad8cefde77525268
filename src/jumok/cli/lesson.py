"""``jumok lesson``: run a claim of the textbook on this machine, and judge it by the numbers."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jumok.cli.ending import Refusal
from jumok.cli.files import check_picture, check_writable, draw
from jumok.cli.printing import say, show

if TYPE_CHECKING:
    from jumok.lessons.lesson import Language, Result, Tell


def lesson(
    name: Annotated[str | None, typer.Argument(help="Which; without one, all are listed.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write pages with figures into this folder.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Draw the figure: a .png, .svg or .pdf file.")
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="In seconds, on less data; the same verdict.")
    ] = False,
    lang: Annotated[str, typer.Option(help="en or ko.")] = "en",
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """Run a claim of the textbook: a table, a figure, and a verdict computed from the numbers."""
    from jumok.lessons import CONTENTS
    from jumok.lessons.lesson import LANGUAGES

    if lang not in LANGUAGES:
        raise Refusal(f"--lang {lang}: {' or '.join(LANGUAGES)}")
    language: Language = "ko" if lang == "ko" else "en"
    if name is not None and everything:
        raise Refusal(f"one lesson ({name}) or --all of them")
    if name is None and not everything:
        for option, value in (("--out", out), ("--png", png)):
            if value is not None:
                raise Refusal(
                    f"{option} {value}: which lesson? Name one, as in jumok lesson scaling"
                )
        width = max(map(len, CONTENTS))
        for each, about in CONTENTS.items():
            print(f"{each:{width}}  {about.in_(language)}")
        return
    if name is not None and name not in CONTENTS:
        raise Refusal(f"there is no lesson {name!r}; there are {', '.join(CONTENTS)}")
    if everything and out is None:
        raise Refusal("--all writes a book: name its folder with --out DIR")
    if png is not None and everything:
        raise Refusal(f"--png {png}: --all draws every figure into the folder of --out")
    if png is not None:
        check_picture(png)
        check_writable(png)
    names = list(CONTENTS) if name is None else [name]
    if out is not None:
        _make_folder(out)
        _book(names, out, language, quick, seed, with_contents=everything)
        return

    from jumok.lessons.showing import picture, terminal

    result = _run(names[0], quick, seed)
    show(terminal(result, language))
    if png is not None:
        draw(picture(result, language), png)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--out {out}: {error.strerror}") from None


def _book(
    names: list[str], out: Path, language: "Language", quick: bool, seed: int, with_contents: bool
) -> None:
    from jumok.lessons.lesson import VERDICTS
    from jumok.lessons.showing import contents, write_page

    results = []
    for name in names:
        result = _run(name, quick, seed)
        page = write_page(result, out, language)
        results.append(result)
        print(f"{name}: {VERDICTS[result.findings.verdict].in_(language)}  ({page})", flush=True)
    if with_contents:
        verdicts = {result.lesson.name: result.findings.verdict for result in results}
        (out / "index.md").write_text(contents(verdicts, language), encoding="utf-8")
        (out / "verdicts.json").write_text(json.dumps(verdicts, indent=2) + "\n", encoding="utf-8")
        say(f"the book: {out / 'index.md'}")


def _run(name: str, quick: bool, seed: int) -> "Result":
    from jumok.lessons import find, run
    from jumok.lessons.lesson import Running

    with _telling(name) as tell:
        return run(find(name), Running(quick=quick, seed=seed, tell=tell))


@contextlib.contextmanager
def _telling(name: str) -> "Iterator[Tell]":
    """How far the experiment is, on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, part: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=1.0)
        shown = 0.0

        def tell(what: str, part: float) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown > 0.1:
                shown = now
                progress.update(task, description=f"{name}: {what}", completed=part)

        yield tell
