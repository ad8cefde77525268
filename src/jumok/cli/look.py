"""``jumok look``: where each word of a text takes its meaning from."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jumok.cli.ending import Refusal
from jumok.cli.files import check_picture, check_writable, write
from jumok.cli.inputs import Model, check_text, given_text, layer_range, named, quoted
from jumok.cli.printing import say, show
from jumok.cli.reader import Reader

if TYPE_CHECKING:
    from jumok.lens.recording import Recording
    from jumok.lens.sources import Sources

MOST_COMPARED = 6


def look(
    text: Annotated[
        str | None, typer.Argument(help="The text to read.", show_default=False)
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="A second text: the same word in both, side by side.")
    ] = None,
    model: Model = "minilm",
    word: Annotated[
        str | None,
        typer.Option(
            "--word",
            "-w",
            help="The word to look at, wherever it occurs; bank finds Bank too, Bank only itself.",
        ),
    ] = None,
    token: Annotated[
        int | None,
        typer.Option(help="Instead of a word: one token's position, from 0; -1 is the last."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="A-B: average these layers only, from 0; one: A.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Read the text from a file; - is stdin.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Draw a picture: a .png, .svg or .pdf file.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Keep the recording: a file that jumok.open reads.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, nothing else.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Plain attention weights.")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="Tokens instead of words.")] = False,
) -> None:
    """Show where each word of a text takes its meaning from, in a real model.

    Shares are fractions of everything that attention brings to the word: weight times the length
    of what is handed over (Kobayashi et al. 2020).
    """
    text = given_text(text, file)
    if against is not None:
        check_text(against, "the text after --against")
    if against is not None and token is not None:
        raise Refusal("--token can't be compared between two texts; choose a --word")
    if word is not None and token is not None:
        raise Refusal(f"choose --word {word} or --token {token}, not both")
    chosen = None if layers is None else layer_range(layers)
    if png is not None:
        check_picture(png)
    check_writable(png, save)

    reader = Reader(model)

    def found(text: str, recording: "Recording") -> "Sources":
        from jumok.lens.sources import sources

        data = sources(
            recording,
            reader.tokenizer,
            word,
            token=token,
            text=text,
            layers=chosen,
            raw=raw,
            pieces=pieces,
        )
        if not data.queries:
            raise Refusal(f"{reader.name} reads no word in {quoted(text)}")
        return dataclasses.replace(data, model=reader.name)

    recording = reader.read(text)
    if save is not None:
        recording.model_name = reader.name
        try:
            recording.save(save)
        except OSError as error:
            raise Refusal(f"can't write {save}: {error.strerror or error}") from error
        say(f"wrote {save}")
    other = None
    if against is None:
        data = found(text, recording)
    else:
        with named("in the first text"):
            data = found(text, recording)
        with named("in the second text (--against)"):
            other = found(against, reader.read(against))
        if word is None:
            data, other = _shared_words(data, other)
    if png is not None:
        from jumok.view.figure import picture
        from jumok.view.fonts import quietly

        drawn = picture(data, other)
        with quietly():
            write(png, lambda path: drawn.savefig(path, format=png.suffix[1:].lower()))
        say(f"wrote {png}")
    if as_json:
        print(json.dumps(_as_dict(data, other), ensure_ascii=False, indent=2))
        return
    from jumok.view import terminal

    if other is not None:
        show(terminal.compare(data, other))
    elif word is None and token is None:
        show(terminal.overview(data))
    else:
        show(terminal.look(data))


def _shared_words(left: "Sources", right: "Sources") -> "tuple[Sources, Sources]":
    """Only the queries whose word is in both texts."""
    inside = {query.word.casefold() for query in left.queries if _is_word(query.word)}
    inside &= {query.word.casefold() for query in right.queries}
    if not inside:
        raise Refusal("the two texts have no word in common; choose texts that share one")
    if len(inside) > MOST_COMPARED:
        names = [q.word for q in left.queries if q.word.casefold() in inside]
        raise Refusal(
            f"the texts share {len(inside)} words; choose one: --word {max(names, key=len)}"
        )

    def kept(data: "Sources") -> "Sources":
        queries = tuple(q for q in data.queries if q.word.casefold() in inside)
        return dataclasses.replace(data, queries=queries)

    return kept(left), kept(right)


def _is_word(text: str) -> bool:
    return any(sign.isalnum() for sign in text)


def _as_dict(data: "Sources", other: "Sources | None") -> dict[str, Any]:
    if other is None:
        return data.to_dict()
    from jumok.lens.sources import difference
    from jumok.view.wording import paired

    return {
        **data.to_dict(),
        "against": other.to_dict(),
        "differences": [
            {
                "word": first.word,
                "position": first.position,
                "against_position": second.position,
                "sources": [
                    {
                        "word": row.word,
                        "kind": row.kind,
                        "share": row.share,
                        "against": row.against,
                        "change": row.change,
                        "position": row.position,
                        "against_position": row.against_position,
                    }
                    for row in difference(first, second)
                ],
            }
            for first, second in paired(data, other)
        ],
    }
