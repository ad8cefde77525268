"""``jumok report``: one row for each head."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jumok.cli.ending import Refusal
from jumok.cli.inputs import Model, given_text
from jumok.cli.printing import show
from jumok.cli.reader import Reader

if TYPE_CHECKING:
    from jumok.lens.recording import Recording
    from jumok.lens.report import Report

ALL = "all"

REPORT_LEGEND = (
    "entropy in nats: 0 reads one token, ln T reads T tokens evenly; distance in tokens; first, "
    "itself, previous: weight on the first token, on the token itself, on the one before it; most "
    "read: the token that receives most, and its part of all weight. Layers, heads and positions "
    "count from 0."
)
FURTHER_LEGENDS = {
    "sink_rate": "in what part of the texts the first token receives more than 0.3 on average",
    "concentration": "0 all positions receive alike, towards 1 one has it all (Gini)",
    "confidence": "the largest weight of a query",
    "positional": "how often the largest weight lies at the commonest relative position",
    "positional_offset": "which that is, -1 the token before",
    "window": "keys less than so many tokens away hold 90 % of all weight",
    "duplicate": "weight on earlier occurrences of the same token",
    "induction": "weight on the tokens right after those",
    "prefix_matching": "the same, over the queries whose token has occurred before",
    "special": "weight on special tokens",
}


def report(
    source: Annotated[
        str | None,
        typer.Argument(help="A recording's file, or a text to read.", show_default=False),
    ] = None,
    model: Model = "minilm",
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Read the text from a file; - is stdin.")
    ] = None,
    measures: Annotated[
        str | None,
        typer.Option(
            help="Further columns: names with commas between, such as induction,window; or all."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list with an object for each head.")
    ] = False,
) -> None:
    """One row for each head: entropy, distance, what it reads most."""
    from jumok.lens.recording import open_recording
    from jumok.lens.report import report as made

    wanted = _named(measures)  # refused before a model is loaded
    if source is not None and file is None and _is_recording(source):
        try:
            recording = open_recording(source)
        except ValueError as error:
            if source.endswith(".safetensors"):
                raise
            raise Refusal(
                f"{source} is no recording; to read a text from a file: --file {source}"
            ) from error
        found, read = _of_file(source, recording, measures), f"the recording {source}"
    else:
        from jumok.tokens import printable, shortened

        text = given_text(source, file)
        reader = Reader(model)
        found = made(reader.read(text), reader.tokenizer, wanted)
        read = f"the text “{printable(shortened(text))}”, read by {reader.name}"
    if as_json:
        print(json.dumps(list(found), ensure_ascii=False, indent=2))
        return
    from rich.console import Group
    from rich.text import Text

    further = [
        f"{name.replace('_', ' ')}: {said}"
        for name, said in FURTHER_LEGENDS.items()
        if name in found.columns
    ]
    legend = " ".join([REPORT_LEGEND, *([f"{'; '.join(further)}."] if further else [])])
    show(Group(Text(f"{read[0].upper()}{read[1:]}", "bold"), "", found, "", Text(legend, "dim")))


def _named(measures: str | None) -> tuple[str, ...]:
    """Names of measures, with commas between."""
    from jumok.lens.heads import MEASURES

    if measures is None:
        return ()
    names = tuple(name.strip().replace(" ", "_") for name in measures.split(","))
    if names == (ALL,):
        return MEASURES
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise Refusal(
            f"--measures {measures}: no measure is called {', '.join(map(repr, unknown))}; there "
            f"are {', '.join(MEASURES)}, or all"
        )
    return names


def _of_file(source: str, recording: "Recording", measures: str | None) -> "Report":
    """The report of a recording in a file, which has no tokenizer and may have no ids."""
    from jumok.lens.heads import NEED_IDS
    from jumok.lens.report import report as made

    unknown = set(NEED_IDS) if recording.ids is None else {"special"}
    names = _named(measures)
    missing = [name for name in names if name in unknown]
    if measures != ALL and missing:
        what = "token ids" if recording.ids is None else "tokenizer, which knows special tokens"
        raise Refusal(
            f"--measures {measures}: {source} holds no {what}; leave out {', '.join(missing)}"
        )
    return made(recording, measures=[name for name in names if name not in unknown])


def _is_recording(text: str) -> bool:
    try:
        return Path(text).suffix == ".safetensors" or Path(text).is_file()
    except OSError:  # a text longer than a path may be
        return False
