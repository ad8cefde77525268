"""The passages of a text: where they are, and which of them reads which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from jumok.lens.segment_layout import ANSWER
from jumok.lens.segment_tables import measure_passages
from jumok.lens.value_notes import norms_to_weigh_with
from jumok.view.contents import Contents, TextTokens
from jumok.view.stopping import Kept, Stop

__all__ = ["Layout", "PassageTables", "layout", "modes", "passage_tables"]

Numbers = np.ndarray[Any, np.dtype[Any]]

EVEN = "even"
_PARTS = 16


@dataclass(frozen=True, eq=False)
class Layout:
    """Which token is in which passage.

    Attributes:
        how: the mode.
        segments: (name, first token, stop, how many tokens) of each.
        apart: (kind, how many tokens) of what stands apart.
        groups: of each token the number of its column.
        answered: whether the last passage is what the model wrote.
    """

    how: str
    segments: tuple[tuple[str, int, int, int], ...]
    apart: tuple[tuple[Literal["first", "special", "between"], int], ...]
    groups: Numbers
    answered: bool

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "how": self.how,
            "segments": [
                {"name": name, "first": first, "stop": stop, "count": count}
                for name, first, stop, count in self.segments
            ],
            "apart": [{"kind": kind, "count": count} for kind, count in self.apart],
        }


def modes(text: TextTokens) -> list[str]:
    """What ways there are to cut a text; the first is shown unless asked otherwise."""
    if not text.labelled:
        return [EVEN]
    first = text.labelled[0].passages
    several = [how for how, found in first.items() if len(found) > 1]
    several.sort(key=lambda how: how != "chat")  # the turns of a chat say most
    return [*several, EVEN]


def layout(text: TextTokens, how: str, batch: int, first: int | None) -> Layout:
    """The passages of one text.

    Args:
        text: the tokens.
        how: one of `modes`.
        batch: which sequence.
        first: the token that is set apart, or `None`.
    """
    size = text.tokens
    special = np.zeros(size, bool)
    named: Sequence[tuple[str, int, int]]
    answered = False
    if text.labelled:
        one = text.labelled[batch]
        special[list(one.special)] = True
        answered = one.prompt < size
    if how == EVEN or not text.labelled:
        count = min(_PARTS, size)
        edges = [size * number // count for number in range(count + 1)]
        named = [(f"{low}–{high - 1}", low, high) for low, high in pairwise(edges)]
        answered = False
    else:
        named = text.labelled[batch].passages.get(how, ())
        answered = answered and bool(named) and named[-1][0] == ANSWER
    groups = np.full(size, -1)
    for number, (_, low, high) in enumerate(named):
        groups[low:high] = number
    is_first = np.arange(size) == (-1 if first is None else first)
    between = (groups < 0) & ~special & ~is_first
    apart: list[tuple[Literal["first", "special", "between"], int]] = []
    sets: list[tuple[Literal["first", "special", "between"], Numbers]] = [
        ("first", is_first), ("special", special & ~is_first), ("between", between),
    ]  # fmt: skip
    for kind, where in sets:
        if where.any():
            groups[where] = len(named) + len(apart)
            apart.append((kind, int(where.sum())))
    segments = tuple(
        (name, low, high, int((groups == number).sum()))
        for number, (name, low, high) in enumerate(named)
    )
    return Layout(how, segments, tuple(apart), groups, answered)


@dataclass(frozen=True, eq=False)
class PassageTables:
    """Which passage reads which, of every head of some maps.

    Attributes:
        heads: of each map (H, S, C), what the passages read.
        added: whether heads are parts of a whole (norm-weighted), or averaged.
        even: (S, C), what even readers would read.
        measure: "raw" or "norm".
        note: what was measured.
    """

    heads: tuple[Numbers, ...]
    added: bool
    even: Numbers
    measure: Literal["raw", "norm"]
    note: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return sum(table.nbytes for table in self.heads)

    def table(self, at: int | None, head: int | None) -> Numbers:
        """Of all maps, of one, or of one head of it; float32 (S, C)."""
        join = np.sum if self.added else np.mean
        if at is None:
            layers = [join(table, axis=0, dtype=np.float64) for table in self.heads]
            return np.asarray(np.mean(layers, axis=0), np.float32)
        if head is None:
            return np.asarray(join(self.heads[at], axis=0, dtype=np.float64), np.float32)
        return np.asarray(self.heads[at][head], np.float32)


def passage_tables(
    contents: Contents,
    which: tuple[int, int],
    batch: int,
    found: Layout,
    norm: bool,
    kept: Kept,
    stop: Stop,
) -> PassageTables:
    """One pass over every layer of a stack, which is kept.

    Args:
        contents: the recording.
        which: number of the recording, and of the stack of layers.
        batch: which sequence.
        found: the passages.
        norm: weigh with the norms of the values where these are known.
        kept: where tables are kept.
        stop: says when nobody waits any more.
    """
    numbers = contents.stacks[which[1]].maps
    maps = [(number, contents.recording[number]) for number in numbers]
    norms, note = norms_to_weigh_with([attention for _, attention in maps], raw=not norm)
    key = (which, "passages", batch, found.how)

    def compute(stop: Stop) -> tuple[PassageTables, PassageTables]:
        known, _ = norms_to_weigh_with([attention for _, attention in maps])
        groups, columns = found.groups, len(found.segments) + len(found.apart)
        real = contents.real(numbers[0], batch)
        readers = [
            np.flatnonzero((groups == number) & real) for number in range(len(found.segments))
        ]
        if found.answered:  # each token was written by the position before it
            readers[-1] = readers[-1] - 1
        measured = measure_passages(
            maps, known, groups, columns, readers, batch, lambda done, all: stop.check()
        )
        even = np.asarray(measured.even, np.float32)
        raw = PassageTables(measured.raw.heads, False, even, "raw", "attention weights")
        if known is None:
            return raw, raw
        return raw, PassageTables(measured.share.heads, True, even, "norm", "")

    raw, weighed = kept.get(key, compute, stop, lambda pair: pair[0].nbytes + pair[1].nbytes)
    chosen = raw if norms is None else weighed
    return PassageTables(
        chosen.heads, chosen.added, chosen.even, chosen.measure, note if norm else chosen.note
    )
