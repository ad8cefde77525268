"""``jumok look``: where each word of a text takes its meaning from."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jumok.cli.ending import Refusal
from jumok.cli.files import check_picture, check_writable, draw, kept_options, save_recording
from jumok.cli.inputs import check_text, given_text, layer_range, named, quoted
from jumok.cli.look_segments import look_segments
from jumok.cli.look_translation import look_translation
from jumok.cli.page import PageWish
from jumok.cli.printing import show
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
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="minilm (for words), smollm2 (for segments), a model's folder or a .gguf file.",
            show_default=False,
        ),
    ] = None,
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
    keep: Annotated[
        str | None,
        typer.Option(
            help="With --save: qk leaves out the values; all that look shows is there still.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="With --save: bfloat16 or float16, half the size; weights are then rounded."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, nothing else.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Plain attention weights.")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="Tokens instead of words.")] = False,
    segments: Annotated[
        str | None,
        typer.Option(
            "--segments",
            "-s",
            help="Which passage read which: paragraphs, lines, chat, or a file that names them.",
        ),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate", "-g", help="With --segments: let the model write so many tokens first."
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="With --segments: put the text into the model's chat template."
        ),
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="With --segments: print Markdown for a report.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="For a model with encoder and decoder: the target, instead of what it writes.",
            show_default=False,
        ),
    ] = None,
    leave_out: Annotated[
        bool,
        typer.Option(
            "--leave-out",
            help="With --generate: read once more without each passage, to see if it mattered.",
        ),
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Walk through the maps on a local page; Ctrl-C ends it.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="With --serve: the page's port; 0 takes a free one.")
    ] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="With --serve: open the page in the browser.")
    ] = True,
    html: Annotated[
        Path | None, typer.Option(help="Write the page into one file, which needs no server.")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(help="With --html: heads whose single weights it holds first: 3.1,12.4."),
    ] = None,
) -> None:
    """Show where each word of a text takes its meaning from, in a real model.

    Shares are fractions of everything that attention brings to the word: weight times the length
    of what is handed over (Kobayashi et al. 2020). With --segments, the same for the passages of
    a long text: which passage did the answer read?
    """
    text = given_text(text, file)
    kept = kept_options(keep, dtype, save)
    page = PageWish(html, heads, serve, port, open_browser)
    page.check()
    if segments is not None:
        for name, chosen_word in (("--against", against), ("--word", word), ("--token", token),
                            ("--pieces", pieces or None), ("--target", target)):  # fmt: skip
            if chosen_word is not None:
                raise Refusal(f"--segments shows passages, {name} words; choose one of them")
        look_segments(
            text,
            segments,
            model=model or "smollm2",
            generate=generate,
            chat=chat,
            layers=layers,
            raw=raw,
            png=png,
            save=save,
            kept=kept,
            as_json=as_json,
            markdown=markdown,
            leave_out=leave_out,
            page=page,
        )
        return
    for name, wanted in (("--generate", generate is not None), ("--chat", chat),
                         ("--markdown", markdown), ("--leave-out", leave_out)):  # fmt: skip
        if wanted:
            raise Refusal(f"{name} goes with --segments, such as --segments paragraphs")
    if against is not None:
        check_text(against, "the text after --against")
    if target is not None:
        check_text(target, "the text after --target")
    if against is not None and token is not None:
        raise Refusal("--token can't be compared between two texts; choose a --word")
    if word is not None and token is not None:
        raise Refusal(f"choose --word {word} or --token {token}, not both")
    chosen = None if layers is None else layer_range(layers)
    if png is not None:
        check_picture(png)
    check_writable(png, save)

    reader = Reader(model or "minilm", kept, translators=True)
    if reader.translator is not None:
        for name, given in (("--against", against), ("--token", token),
                            ("--pieces", pieces or None)):  # fmt: skip
            if given is not None:
                raise Refusal(f"{name} is not for {reader.name}, which has encoder and decoder")
        look_translation(
            text,
            reader,
            target=target,
            word=word,
            layers=chosen,
            raw=raw,
            kept=kept,
            png=png,
            save=save,
            as_json=as_json,
            page=page,
        )
        return
    if target is not None:
        raise Refusal(f"--target is for models with encoder and decoder; {reader.name} has one")

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
    recordings = [recording]
    if save is not None or page:
        reader.label(recording, text)
    if save is not None:
        save_recording(recording, save)
    other = None
    if against is None:
        data = found(text, recording)
    else:
        with named("in the first text"):
            data = found(text, recording)
        with named("in the second text (--against)"):
            recordings.append(reader.read(against))
            other = found(against, recordings[1])
        if page:
            reader.label(recordings[1], against)
        if word is None:
            data, other = _shared_words(data, other)
    if png is not None:
        from jumok.view.figure import picture

        draw(picture(data, other), png)
    page.write(recordings, [text] if against is None else [text, against])
    if page.serve:
        page.show(recordings, [text] if against is None else [text, against])
        return
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
