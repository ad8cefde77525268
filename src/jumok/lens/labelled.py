"""What the tokens of a recording say: labels, words and passages, kept with it and in its file.

A tokenizer is needed once. After that the recording names its tokens by itself, so that a saved
file shows words on a machine that has neither the model nor its tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jumok.lens.segment_layout import Layout
from jumok.tokens import Reading, Word, as_tokenizer, read
from jumok.tokens.passages import MODES

__all__ = ["LabelledText", "Passages", "labelled", "read_written_text", "written_text"]

Passages = tuple[tuple[str, int, int], ...]
"""(name, first token, token after the last) of each passage."""


@dataclass(frozen=True)
class LabelledText:
    """One text of a recording.

    Attributes:
        reading: text, labels, words and spans of its tokens.
        passages: by mode ("paragraphs", "lines", "chat") those that were found.
        prompt: how many tokens the prompt has, if the model went on; otherwise all of them.
    """

    reading: Reading
    passages: dict[str, Passages]
    prompt: int

    @property
    def special(self) -> tuple[int, ...]:
        """Positions of the special tokens."""
        return tuple(token for word in self.reading.words if word.special for token in word.tokens)


def labelled(
    tokenizer: Any, ids: Sequence[int], text: str | None = None, prompt: int | None = None
) -> LabelledText:
    """Read the ids of one text.

    Args:
        tokenizer: ours, a ``tokenizers.Tokenizer`` or a transformers tokenizer.
        ids: token ids.
        text: the text they were made from, that of the prompt alone if the model went on; without
            it, it is rebuilt from the ids.
        prompt: how many of the ids are the prompt; all of them by default.

    Raises:
        ValueError: ``text`` has other ids.
    """
    tokenizer = as_tokenizer(tokenizer)
    ids = [int(id) for id in ids]
    size = len(ids)
    length = size if prompt is None else prompt
    if not 0 < length <= size:
        raise ValueError(f"prompt={prompt}: the text has {size} tokens")
    reading = read(tokenizer, ids, text if length == size else None)
    passages = {}
    for how in MODES:
        try:
            layout = Layout(tokenizer, ids, length, how, text)
        except ValueError:  # no chat, or more passages than anybody can look at
            continue
        passages[how] = tuple(
            (name, place.start, place.stop)
            for name, place in zip(layout.names, layout.places, strict=True)
        )
    return LabelledText(reading, passages, length)


def written_text(text: LabelledText) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """As the bytes of a JSON object."""
    reading = text.reading
    tree = {
        "text": reading.text,
        "labels": reading.labels,
        "spans": reading.spans,
        "words": [
            [word.text, word.start, word.end, word.tokens, int(word.special)]
            for word in reading.words
        ],
        "passages": text.passages,
        "prompt": text.prompt,
    }
    data = json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return np.frombuffer(data, np.uint8)


def read_written_text(data: Any) -> LabelledText:
    """From what `written_text` made.

    Raises:
        ValueError: it is damaged.
    """
    try:
        tree = json.loads(np.asarray(data).tobytes())
        reading = Reading(
            str(tree["text"]),
            tuple(map(str, tree["labels"])),
            tuple(
                Word(str(text), int(start), int(end), tuple(map(int, tokens)), bool(special))
                for text, start, end, tokens, special in tree["words"]
            ),
            tuple((int(start), int(end)) for start, end in tree["spans"]),
        )
        passages = {
            str(how): tuple((str(name), int(first), int(stop)) for name, first, stop in found)
            for how, found in tree["passages"].items()
        }
        return LabelledText(reading, passages, int(tree["prompt"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the labels of the recording are damaged ({type(error).__name__}: {error})"
        ) from None
