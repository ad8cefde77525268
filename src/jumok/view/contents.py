"""What a recording holds, for the page: its texts, its maps, and the stacks they form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jumok.lens.labelled import LabelledText
from jumok.lens.measures import real_queries

if TYPE_CHECKING:
    from jumok.lens.attention_map import AttentionMap
    from jumok.lens.recording import Recording

__all__ = ["Contents", "MapPlace", "Stack", "TextTokens"]

Numbers = np.ndarray[Any, np.dtype[Any]]

_CROSS = re.compile(r"cross|encdec|enc_dec|encoder_att|src_att|multihead_attn", re.IGNORECASE)
_DECODER = re.compile(r"decoder", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class TextTokens:
    """The tokens along one side of maps, for every sequence of the batch.

    Attributes:
        tokens: how many.
        ids: (batch, tokens), or `None`.
        labelled: what they say, one for each sequence; empty if nobody knows.
    """

    tokens: int
    ids: Any
    labelled: tuple[LabelledText, ...]

    @property
    def batch(self) -> int:
        """How many sequences."""
        return 1 if self.ids is None else len(self.ids)

    @property
    def labels_are(self) -> Literal["text", "ids", "positions"]:
        """What is known of the tokens."""
        return "text" if self.labelled else "positions" if self.ids is None else "ids"

    def labels(self, batch: int) -> Sequence[str]:
        """A readable name for each token."""
        if self.labelled:
            return self.labelled[batch].reading.labels
        if self.ids is not None:
            return [f"‹{number}›" for number in self.ids[batch].tolist()]
        return [str(number) for number in range(self.tokens)]


@dataclass(frozen=True)
class MapPlace:
    """Where a map stands among the texts and stacks.

    Attributes:
        kind: of which tokens the queries and keys are.
        query_text: whose tokens are the queries; `None` if nobody knows.
        key_text: whose tokens are the keys.
        first_query: token of the first query.
        first_key: token of the first key.
        stack: which stack it belongs to; `None` for cross-attention.
    """

    kind: Literal["self", "cross"]
    query_text: int | None
    key_text: int | None
    first_query: int = 0
    first_key: int = 0
    stack: int | None = None


@dataclass(frozen=True)
class Stack:
    """The self-attention maps of one stack of layers over the same tokens.

    Attributes:
        name: what their paths have in common.
        maps: which maps, from the first layer to the last.
        text: whose tokens.
    """

    name: str
    maps: tuple[int, ...]
    text: int | None


@dataclass(eq=False)
class Contents:
    """A recording and what the page has to know of it before it asks.

    Args:
        recording: with its `texts`, if it was labelled.
        title: what people call it.
        fingerprint: differs where the recording differs.
    """

    recording: Recording
    title: str
    fingerprint: str
    texts: list[TextTokens] = field(init=False)
    places: list[MapPlace] = field(init=False)
    stacks: list[Stack] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = _texts(self.recording)
        places = [_place(found, self.texts) for found in self.recording]
        self.stacks = _stacks(self.recording, places)
        owner = {number: at for at, stack in enumerate(self.stacks) for number in stack.maps}
        self.places = [
            MapPlace(
                place.kind, place.query_text, place.key_text, place.first_query, place.first_key,
                owner.get(number),
            )
            for number, place in enumerate(places)
        ]  # fmt: skip

    def first_token(self, number: int, batch: int) -> int | None:
        """The first real token of a causal map's keys, into which heads pour what is left over.

        Counted in its text.
        """
        found, place = self.recording[number], self.places[number]
        if place.kind == "cross" or not found.is_causal:
            return None
        if place.query_text is None or place.first_query:
            return place.first_key
        return int(np.argmax(self.real(number, batch)))

    def real(self, number: int, batch: int) -> Numbers:
        """Which tokens of a self-attention map's text are no padding, boolean (tokens,)."""
        found, place = self.recording[number], self.places[number]
        size = found.shape[3] if place.query_text is None else self.texts[place.query_text].tokens
        result = np.ones(size, bool)
        queries = real_queries(found.call)
        if queries is not None:
            row = queries[batch]
            row = np.asarray(row.cpu() if hasattr(row, "cpu") else row) > 0
            result[place.first_query : place.first_query + len(row)] = row
        return result


def _texts(recording: Recording) -> list[TextTokens]:
    found = [
        TextTokens(ids.shape[1], ids, tuple(recording.texts.get(name, ())))
        for name, ids in (("ids", recording.ids), ("decoder_ids", recording.decoder_ids))
        if ids is not None
    ]
    if found:
        return found
    # Nobody knows the tokens: positions, of as many as the first maps have.
    sizes = dict.fromkeys(size for one in recording for size in one.shape[2:] if size > 1)
    return [TextTokens(size, None, ()) for size in list(sizes)[:2]]


def _place(found: AttentionMap, texts: Sequence[TextTokens]) -> MapPlace:
    batch, _, queries, keys = found.shape
    fitting = [
        number
        for number, text in enumerate(texts)
        if text.tokens >= max(queries, keys) and (text.ids is None or text.batch == batch)
    ]
    # The path says more than the lengths: a source may be as long as its translation.
    named_cross = bool(_CROSS.search(found.name))
    aligned = queries == keys or (queries < keys and found.is_causal)
    if aligned and not named_cross:
        exact = [number for number in fitting if texts[number].tokens == keys]
        decoder = bool(_DECODER.search(found.name))
        several = exact or fitting
        if not several:
            return MapPlace("self", None, None, keys - queries)
        text = several[-1] if decoder else several[0]
        last = texts[text].tokens
        return MapPlace("self", text, text, last - queries, last - keys)
    reading = [number for number, text in enumerate(texts) if text.tokens == queries]
    read = [number for number, text in enumerate(texts) if text.tokens == keys]
    return MapPlace("cross", reading[-1] if reading else None, read[0] if read else None)


def _stacks(recording: Recording, places: Sequence[MapPlace]) -> list[Stack]:
    groups: dict[Any, list[int]] = {}
    for number, (found, place) in enumerate(zip(recording, places, strict=True)):
        if place.kind == "self":
            path, _, again = found.name.partition("#")
            stem = re.split(r"(?<![^.])\d", path)[0].rstrip(".") if re.search(r"\d", path) else path
            groups.setdefault((stem, again, found.shape), []).append(number)
    # One module that is called for every layer: its calls are the layers.
    shared: dict[Any, list[int]] = {}
    for (stem, again, shape), numbers in groups.items():
        alone = len(numbers) == 1
        shared.setdefault((stem, "" if alone else again, alone, shape), []).extend(numbers)
    return [
        Stack(
            stem + (f" #{again}" if again else ""),
            tuple(numbers),
            places[numbers[0]].query_text,
        )
        for (stem, again, _, _), numbers in shared.items()
    ]
