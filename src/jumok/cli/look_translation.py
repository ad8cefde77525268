"""``jumok look`` with an encoder-decoder: which source words does each target word read?"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jumok.cli.ending import Refusal
from jumok.cli.files import draw, save_recording
from jumok.cli.page import PageWish
from jumok.cli.printing import show
from jumok.cli.progress import telling

if TYPE_CHECKING:
    from jumok.cli.reader import Reader
    from jumok.lens.sources import Sources
    from jumok.lens.translation import Translation

MOST_NEW = 200  # tokens of a target that the model writes itself


def look_translation(
    text: str,
    reader: Reader,
    *,
    target: str | None,
    word: str | None,
    layers: list[int] | None,
    raw: bool,
    kept: dict[str, Any],
    png: Path | None,
    save: Path | None,
    as_json: bool,
    page: PageWish,
) -> None:
    """Let the model write a target, or take the given one, and show what its words read."""
    import torch

    from jumok.lens.translation import translation
    from jumok.lens.watch import watch

    model = reader.translator
    assert model is not None
    source = reader.ids(text)
    with telling("writing"):
        ids = _target(reader, source, target)
    with torch.inference_mode(), watch(model, **kept) as recording:
        model(torch.tensor([source]), torch.tensor([ids]), last=1)
    if save is not None or page:
        reader.label(recording, text)
    if save is not None:
        save_recording(recording, save)
    data = translation(recording, reader.tokenizer, source, ids, text=text, layers=layers, raw=raw)
    data = _named(data, reader.name)
    if not data.reads.queries:
        raise Refusal(
            f"{reader.name} wrote no word; give one with --target TEXT" if target is None
            else f"--target {target!r} has no word for {reader.name}"
        )  # fmt: skip
    whole = None
    if word is not None:
        whole, data = data, _of_word(data, word)
    if png is not None:
        from jumok.view.translation import picture

        draw(picture(data if data.reads.queries else whole or data), png)
    page.write([recording], [text])
    if page.serve:
        page.show([recording], [text])
        return
    if as_json:
        print(json.dumps(data.to_dict(), ensure_ascii=False, indent=2))
        return
    from jumok.view.translation import look_translation as shown

    show(shown(data, whole, target is None))


def _target(reader: Reader, source: list[int], target: str | None) -> list[int]:
    """The ids of the target, the one that begins every target first, the one that ends it last."""
    from jumok.model.generate import generate

    model = reader.translator
    assert model is not None
    if target is None:
        return list(generate(model, [source], MOST_NEW, 0.0)[0].tolist())
    begin = model.config.bos_id
    if begin is None:
        raise Refusal(f"{reader.name} doesn't say with which token a target begins")
    return [begin, *reader.tokenizer.target.encode(target)]


def _named(data: Translation, name: str) -> Translation:
    def under(part: Sources) -> Sources:
        return dataclasses.replace(part, model=name)

    return dataclasses.replace(data, reads=under(data.reads), within=under(data.within))


def _of_word(data: Translation, word: str) -> Translation:
    """Only the queries of that word, in the target and in the source."""

    def only(part: Sources) -> Sources:
        wanted = word.strip().casefold()
        queries = tuple(query for query in part.queries if query.word.casefold() == wanted)
        return dataclasses.replace(part, queries=queries)

    found = dataclasses.replace(data, reads=only(data.reads), within=only(data.within))
    if not found.reads.queries and not found.within.queries:
        words = ", ".join(dict.fromkeys(query.word for query in data.reads.queries[:12]))
        raise Refusal(
            f"neither text nor target has a word {word!r}; the words of the target: {words}"
        )
    return found
