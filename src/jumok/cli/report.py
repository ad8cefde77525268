"""``jumok report``: one row for each head."""

import json
from pathlib import Path
from typing import Annotated

import typer

from jumok.cli.ending import Refusal
from jumok.cli.inputs import Model, given_text
from jumok.cli.printing import show
from jumok.cli.reader import Reader

REPORT_LEGEND = (
    "entropy in nats: 0 reads one token, ln T reads T tokens evenly; distance in tokens; first, "
    "itself, previous: weight on the first token, on the token itself, on the one before it; most "
    "read: the token that receives most, and its part of all weight. Layers, heads and positions "
    "count from 0."
)


def report(
    source: Annotated[
        str | None,
        typer.Argument(help="A recording's file, or a text to read.", show_default=False),
    ] = None,
    model: Model = "minilm",
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Read the text from a file; - is stdin.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list with an object for each head.")
    ] = False,
) -> None:
    """One row for each head: entropy, distance, what it reads most."""
    from jumok.lens.recording import open_recording
    from jumok.lens.report import report as made

    if source is not None and file is None and _is_recording(source):
        try:
            found = made(open_recording(source))
        except ValueError as error:
            if source.endswith(".safetensors"):
                raise
            raise Refusal(
                f"{source} is no recording; to read a text from a file: --file {source}"
            ) from error
    else:
        text = given_text(source, file)
        reader = Reader(model)
        found = made(reader.read(text), reader.tokenizer)
    if as_json:
        print(json.dumps(list(found), ensure_ascii=False, indent=2))
        return
    from rich.console import Group
    from rich.text import Text

    show(Group(found, "", Text(REPORT_LEGEND, "dim")))


def _is_recording(text: str) -> bool:
    try:
        return Path(text).suffix == ".safetensors" or Path(text).is_file()
    except OSError:  # a text longer than a path may be
        return False
