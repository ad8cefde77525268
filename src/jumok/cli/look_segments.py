"""``jumok look --segments``: which passage of a long text did the answer read?"""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jumok.cli.ending import Refusal
from jumok.cli.files import check_picture, check_writable, draw, save_recording
from jumok.cli.inputs import file_text, layer_range
from jumok.cli.page import PageWish
from jumok.cli.printing import show
from jumok.cli.progress import Tell, telling
from jumok.cli.reader import Reader

if TYPE_CHECKING:
    from jumok.lens.recording import Recording
    from jumok.lens.segments import Segments
    from jumok.tokens.passages import Passage


def look_segments(
    text: str,
    how: str,
    *,
    model: str,
    generate: int | None,
    chat: bool,
    layers: str | None,
    raw: bool,
    png: Path | None,
    save: Path | None,
    kept: dict[str, Any],
    as_json: bool,
    markdown: bool,
    leave_out: bool,
    page: PageWish,
) -> None:
    """Read the text, let the model go on if asked for, and show who read what."""
    if as_json and markdown:
        raise Refusal("choose --json or --markdown, not both")
    if generate is not None and generate < 1:
        raise Refusal(f"--generate {generate}: at least 1 token")
    if leave_out and generate is None:
        raise Refusal("--leave-out asks what the answer could do without; it goes with --generate")
    chosen = None if layers is None else layer_range(layers)
    described = _described(how)
    if png is not None:
        check_picture(png)
    check_writable(png, save)

    with telling(f"loading {model}"):
        reader = Reader(model, kept)
    if generate is not None:
        reader.decoder()
    text, passages, special = _prompt(text, how if described is None else None, chat, reader,
                                      ask=generate is not None)  # fmt: skip
    ids = reader.ids(text, special, generate or 0)

    from jumok.lens.segments import segments

    with telling(f"reading {len(ids):,} tokens") as tell:
        recording = reader.read_ids(ids) if generate is None else reader.go_on(ids, generate, tell)
        assert recording.ids is not None
        answered = recording.ids.shape[1] > len(ids)
        if save is not None or page:
            reader.label(recording, text, len(ids) if answered else None)
        if save is not None:
            save_recording(recording, save)
        if generate is not None and not answered:
            raise Refusal(
                f"{reader.name} wrote nothing: it ends the text here; leave out --generate"
            )
        data = segments(
            recording,
            reader.tokenizer,
            passages if described is None else described,
            text=text,
            prompt=len(ids) if answered else None,
            layers=chosen,
            raw=raw,
            progress=lambda done, all: tell(f"measuring: layer {done:,} of {all:,}"),
        )
        if leave_out:
            data = dataclasses.replace(data, losses=_losses(reader, recording, data, tell))
    data = dataclasses.replace(data, model=reader.name)
    if png is not None:
        from jumok.view.segment_figure import segment_figure

        draw(segment_figure(data), png)
    page.write([recording], [text])
    if page.serve:
        page.show([recording], [text])
    elif as_json:
        print(json.dumps(data.to_dict(), ensure_ascii=False, indent=2))
    elif markdown:
        from jumok.view.segment_terminal import markdown as as_markdown

        print(as_markdown(data))
    else:
        from jumok.view.segment_terminal import look_segments as shown

        show(shown(data))


def _losses(
    reader: Reader, recording: "Recording", data: "Segments", tell: Tell
) -> tuple[float | None, ...]:
    """What the answer loses without each passage."""
    from jumok.lens.leave_out import leave_out

    assert recording.ids is not None
    *passages, answer = (one.tokens for one in data.segments)
    found = leave_out(
        reader.decoder(),
        recording.ids[0].tolist(),
        answer[0],
        passages,
        progress=lambda done, all: tell(f"leaving out: {done:,} of {all - 1:,} passages"),
    )
    return (*found.losses, None)


def _described(how: str) -> Any:
    """What a file says about segments; None for one of the modes."""
    from jumok.tokens.passages import MODES, read_description

    if how in MODES:
        return None
    if not Path(how).is_file():
        raise Refusal(f"--segments {how}: choose {', '.join(MODES)}; there is no file of that name")
    try:
        return read_description(file_text(how))
    except ValueError as error:
        raise Refusal(f"--segments {how}: {error}") from error


def _prompt(
    text: str, mode: str | None, chat: bool, reader: Reader, ask: bool
) -> "tuple[str, list[Passage], bool]":
    """The text that the model reads, its passages, and whether special tokens must be added."""
    from jumok.tokens.chat import messages_in, render
    from jumok.tokens.passages import cut, turns

    messages = messages_in(text)
    if messages is None and chat:
        if turns(text):
            raise Refusal("the text has the marks of a chat already; leave out --chat")
        messages = [{"role": "user", "content": text}]
    if messages is None:
        return text, [] if mode is None else cut(text, mode), True
    text, said = render(reader.tokenizer, messages, ask)
    found = turns(text)  # those that the template adds, too, such as a system prompt
    known = {(turn.start, turn.end) for turn in found}
    if {_bare(text, turn) for turn in said} <= known:
        said = found
    return text, [] if mode is None else cut(text, mode, said), False


def _bare(text: str, turn: "Passage") -> tuple[int, int]:
    """Where a turn stands without the blanks at its ends."""
    said = text[turn.start : turn.end]
    return turn.start + len(said) - len(said.lstrip()), turn.start + len(said.rstrip())
