"""Which token of a text is in which passage, which stands apart, and which positions read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jumok.lens.measures import real_queries
from jumok.tokens import Tokenizer
from jumok.tokens.passages import Beginnings, Passage, cut, read_passages, turns
from jumok.tokens.signs import is_visible

if TYPE_CHECKING:
    from jumok.lens.attention_map import AttentionMap

__all__ = ["Apart", "Layout", "Segment", "read_edges", "real_positions"]

Numbers = np.ndarray[Any, np.dtype[Any]]

MOST_SEGMENTS = 512
ANSWER = "answer"


@dataclass(frozen=True)
class Segment:
    """One passage.

    Attributes:
        name: its beginning, a role, or the name that it was given; "answer" for what the model
            wrote.
        text: its text.
        tokens: where its tokens start and stop.
        count: how many tokens it has, without special ones and the first token.
    """

    name: str
    text: str
    tokens: tuple[int, int]
    count: int


@dataclass(frozen=True)
class Apart:
    """Tokens that are counted apart from the passages.

    Attributes:
        kind: "first" (the first token, in a GPT the sink), "special" (other special tokens) or
            "between" (no passage: blank lines, the marks of a chat template).
        count: how many tokens these are.
    """

    kind: Literal["first", "special", "between"]
    count: int


class Layout:
    """The passages of a text and its tokens, those of the answer last."""

    def __init__(
        self, tokenizer: Tokenizer, ids: list[int], prompt: int, how: Any, text: str | None
    ) -> None:
        self.size, self.prompt = len(ids), prompt
        before = ids[:prompt]
        if text is None and isinstance(how, str):
            text = _marked_text(tokenizer, before)
        self.text, spans = tokenizer.located(before, text)
        stream = tokenizer.stream(before)  # without the bytes of a character that isn't finished
        answer = "".join(map(stream.push, ids[prompt:])) + stream.finish()
        special = tokenizer.special_ids
        self.special = np.array(
            [special for _, _, special in spans] + [id in special for id in ids[prompt:]]
        )
        if _are_bounds(how):
            edges = read_edges(how, prompt)
            places = list(pairwise(edges))
            self.places = [range(low, high) for low, high in places]
            self.texts = [self.text[_span(spans[low:high])] for low, high in places]
            self.names = [f"tokens {low}–{high - 1}" for low, high in places]
        else:
            passages = _passages(how, self.text)
            self.places = _places(passages, spans, self.text)
            self.texts = [self.text[passage.start : passage.end] for passage in passages]
            self.names = [passage.name for passage in passages]
        if prompt < self.size:
            self.text += answer
            self.places.append(range(prompt, self.size))
            self.texts.append(answer.strip())
            self.names.append(ANSWER)
        if len(self.names) > MOST_SEGMENTS:
            raise ValueError(
                f"the text has {len(self.names):,} segments, at most {MOST_SEGMENTS} can be shown; "
                "try paragraphs, or name the passages that matter"
            )

    def grouped(self, first: int | None) -> tuple[Numbers, tuple[Segment, ...], tuple[Apart, ...]]:
        """The group of each token, the passages, and what stands apart."""
        groups = np.full(self.size, -1)
        for number, place in enumerate(self.places):
            groups[place.start : place.stop] = number
        apart: list[Apart] = []

        def set_apart(kind: Literal["first", "special", "between"], where: Numbers) -> None:
            if where.any():
                groups[where] = len(self.places) + len(apart)
                apart.append(Apart(kind, int(where.sum())))

        is_first = np.arange(self.size) == (-1 if first is None else first)
        between = (groups < 0) & ~self.special & ~is_first
        set_apart("first", is_first)
        set_apart("special", self.special & ~is_first)
        set_apart("between", between)
        found = tuple(
            Segment(name, text, (place.start, place.stop), int((groups == number).sum()))
            for number, (name, text, place) in enumerate(
                zip(self.names, self.texts, self.places, strict=True)
            )
        )
        return groups, found, tuple(apart)

    def readers(self, groups: Numbers, count: int, real: Numbers) -> list[Numbers]:
        """The positions that read for each passage, if they are real; the answer's wrote it."""
        found = [np.flatnonzero((groups == number) & real) for number in range(count)]
        if self.prompt < self.size:
            found[-1] = found[-1] - 1
        return found


def _marked_text(tokenizer: Tokenizer, ids: list[int]) -> str | None:
    """The text with its special tokens, if these mark the turns of a chat."""
    text = tokenizer.decode(ids, special=True)
    if not turns(text):
        return None
    try:
        tokenizer.located(ids, text)
    except ValueError:
        return None
    return text


def _passages(how: Any, text: str) -> list[Passage]:
    if isinstance(how, str):
        return cut(text, how)
    return how.passages(text) if isinstance(how, Beginnings) else read_passages(how, text)


def _places(
    passages: Sequence[Passage], spans: Sequence[tuple[int, int, bool]], text: str
) -> list[range]:
    """The tokens of each passage: those whose first visible character stands in it."""
    owner = np.full(len(text) + 1, -1)
    for number, passage in enumerate(passages):
        owner[passage.start : passage.end] = number
    tokens = np.full(len(spans), -1)
    for token, (start, end, special) in enumerate(spans):
        if not special:
            seen = (place for place in range(start, end) if is_visible(text[place]))
            tokens[token] = owner[next(seen, start)]
    places = []
    after = 0
    for number in range(len(passages)):
        inside = np.flatnonzero(tokens == number)
        place = range(inside[0], inside[-1] + 1) if len(inside) else range(after, after)
        places.append(place)
        after = place.stop
    return places


def _span(spans: Sequence[tuple[int, int, bool]]) -> slice:
    return slice(min(start for start, _, _ in spans), max(end for _, end, _ in spans))


def _are_bounds(how: Any) -> bool:
    return (
        isinstance(how, Sequence)
        and not isinstance(how, str)
        and len(how) > 0
        and all(isinstance(bound, (int, np.integer)) for bound in how)
    )


def read_edges(bounds: Sequence[int], size: int) -> list[int]:
    edges = [int(bound) for bound in bounds]
    rising = all(low < high for low, high in pairwise(edges))
    if len(edges) < 2 or not rising or edges[0] < 0 or edges[-1] > size:
        raise ValueError(
            f"segments({list(bounds)}): bounds rise from 0 or more to at most {size}, the number "
            f"of tokens, both ends included, such as [0, {size // 2}, {size}]"
        )
    return edges


def real_positions(attention: AttentionMap, batch: int) -> Numbers:
    """Which positions are no padding, boolean (T,)."""
    real = real_queries(attention.call)
    if real is None:
        return np.ones(attention.shape[2], bool)
    here = real[batch]
    return np.asarray(here.cpu() if hasattr(here, "cpu") else here) > 0
