"""What a word reads, and who reads it: of one head, of a layer, or of all layers.

The formulas are those of `jumok.lens.sources`. A row of weights is quick; the share that a query
takes from a word needs, norm-weighted, the sum over all keys of its row, and so one pass over the
layer, which is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace, device

from jumok.lens.attention_map import AttentionMap
from jumok.lens.threads import in_threads, useful_threads
from jumok.lens.tiles import Tile, Tiles
from jumok.lens.value_notes import norms_to_weigh_with
from jumok.view.stopping import Kept, Stop

__all__ = ["Reading", "Shares", "Strongest"]

Numbers = np.ndarray[Any, np.dtype[Any]]
Side = Literal["reads", "read_by"]

_MOST_HEADS = 5


@dataclass(frozen=True)
class Strongest:
    """A head that looks hard at one token."""

    map: int
    head: int
    token: int
    weight: float


@dataclass(frozen=True, eq=False)
class Reading:
    """Shares of one word.

    Attributes:
        shares: float32 (keys,) of what it reads, or (queries,) of who reads it.
        measure: "raw" or "norm".
        note: what was measured.
        seen: boolean, which of them the mask lets it see (or lets see it).
        strongest: heads with the largest weights.
    """

    shares: Numbers
    measure: Literal["raw", "norm"]
    note: str
    seen: Numbers
    strongest: tuple[Strongest, ...]


class Shares:
    """Shares of the words of one recording.

    Args:
        maps: the recording.
        kept: where sums of rows are kept; `key` sets this recording's apart.
        key: names the recording.
    """

    def __init__(self, maps: Sequence[AttentionMap], kept: Kept, key: Any = None) -> None:
        self._maps = maps
        self._kept = kept
        self._key = key

    def of(
        self,
        maps: Sequence[int],
        batch: int,
        places: Sequence[int],
        side: Side,
        *,
        head: int | None = None,
        norm: bool = False,
        apart: Sequence[int] = (),
        stop: Stop | None = None,
    ) -> Reading:
        """The mean over some maps of the same shape.

        Args:
            maps: which.
            batch: which sequence.
            places: rows of the word (``reads``), or its columns (``read_by``).
            side: what the word reads, or who reads it.
            head: only this one, of a single map.
            norm: weigh with the norms of the values.
            apart: columns that the strongest heads are not asked for.
            stop: says when nobody waits any more.
        """
        stop = stop or Stop()
        found = [self._maps[number] for number in maps]
        norms, note = norms_to_weigh_with(found, raw=not norm)
        heads = slice(None) if head is None else slice(head, head + 1)

        def one(at: int) -> tuple[Numbers, Numbers, list[Strongest]]:
            stop.check()
            own = None if norms is None else _wide(norms[at][batch])[heads]
            if side == "reads":
                return self._row(maps[at], batch, places, heads, own, apart)
            return self._column(maps[at], batch, places, heads, own, stop)

        count = min(useful_threads(found[0].call.q), len(maps))
        parts = in_threads(
            lambda thread: [one(at) for at in range(thread, len(maps), count)], count
        )
        answers = [answer for part in parts for answer in part]
        shares = sum(share for share, _, _ in answers) / len(maps)
        strongest = [head for _, _, heads in answers for head in heads]
        strongest.sort(key=lambda one: (-one.weight, one.map, one.head))
        return Reading(
            np.asarray(shares, np.float32),
            "raw" if norms is None else "norm",
            note if norm else "attention weights",
            np.logical_or.reduce([seen for _, seen, _ in answers]),
            tuple(strongest[:_MOST_HEADS]),
        )

    def _row(
        self,
        number: int,
        batch: int,
        rows: Sequence[int],
        heads: slice,
        norms: Numbers | None,
        apart: Sequence[int],
    ) -> tuple[Numbers, Numbers, list[Strongest]]:
        attention = self._maps[number]
        first, stop = rows[0], rows[-1] + 1
        weights = _wide(attention[batch, heads, first:stop])[:, [row - first for row in rows]]
        if norms is None:
            shares = weights.mean((0, 1))
        else:
            brought = weights * norms[:, None]
            total = brought.sum((0, 2), keepdims=True)
            shares = (brought / np.where(total > 0, total, 1)).sum(0).mean(0)
        looks = weights.mean(1)
        seen = np.asarray((looks > 0).any(0))
        looks[:, list(apart)] = 0
        names = range(len(attention.heads))[heads]
        strongest = [
            Strongest(number, head, int(look.argmax()), float(look.max()))
            for head, look in zip(names, looks, strict=True)
            if look.size and look.max() > 0
        ]
        return shares, seen, strongest

    def _column(
        self,
        number: int,
        batch: int,
        columns: Sequence[int],
        heads: slice,
        norms: Numbers | None,
        stop: Stop,
    ) -> tuple[Numbers, Numbers, list[Strongest]]:
        attention = self._maps[number]
        first, end = columns[0], columns[-1] + 1
        inside = [column - first for column in columns]
        weights = _wide(attention[batch, heads, :, first:end])[..., inside]
        seen = np.asarray((weights > 0).any((0, 2)))
        if norms is None:
            return weights.sum(-1).mean(0), seen, []
        brought = (weights * norms[:, None, list(columns)]).sum((0, 2))
        total = self.brought(number, batch, stop)[heads].sum(0, dtype=np.float64)
        return brought / np.where(total > 0, total, 1), seen, []

    def brought(self, number: int, batch: int, stop: Stop) -> Numbers:
        """Σ_j w_ij · norm_j of every head and query, float32 (heads, queries)."""
        return self._kept.get(
            (self._key, "brought", number, batch),
            lambda stop: _brought(self._maps[number], batch, stop),
            stop,
        )


def _brought(attention: AttentionMap, batch: int, stop: Stop) -> Numbers:
    call = attention.call
    _, heads, queries, _ = call.shape
    xp, place = array_namespace(call.q), device(call.q)
    all_norms = attention.value_norms()
    assert all_norms is not None
    norms = xp.asarray(all_norms[batch])
    result = xp.zeros((heads, queries), dtype=xp.float32, device=place)
    tiles = Tiles(call, only=(batch, range(queries)))

    def work(part: Iterator[Tile]) -> None:
        for tile in part:
            stop.check()
            weights = tiles.exp(tile.logs, out=tile.spare)
            found = xp.matmul(weights, norms[tile.heads, tile.columns][..., None])[..., 0]
            result[tile.heads, tile.rows] += found

    tiles.run(work)
    return _numpy(result)


def _numpy(array: Any) -> Numbers:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def _wide(array: Any) -> Numbers:
    return _numpy(array).astype(np.float64)
