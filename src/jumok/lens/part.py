"""A part of one head of a call, as a call of its own: some queries and some keys.

What works on calls (tiles, measures) then works on just that part, in the memory of the part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device

from jumok.lens.call import LOST_IN_ROUNDING, Array, AttentionCall, read_heads
from jumok.masks import Mask
from jumok.masks.rule import as_tile

__all__ = ["part_of_head", "rows_keep_digits"]


@dataclass(frozen=True, eq=False)
class _PartOfMask(Mask):
    """A rule seen from some rows and columns of one head.

    Args:
        rule: over the whole plane of the call.
        batch: which sequence.
        head: which query head.
        rows: which queries, rising.
        columns: which keys, a range with step 1.
        queries: number of queries of the whole plane.
        keys: number of keys of the whole plane.
    """

    rule: Mask
    batch: int
    head: int
    rows: Sequence[int]
    columns: range
    queries: int
    keys: int

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        if not rows:
            return range(0)
        whole = range(self.rows[rows[0]], self.rows[rows[-1]] + 1)
        seen = self.rule.visible_columns(whole, self.queries, self.keys)
        start = max(seen.start, self.columns.start) - self.columns.start
        stop = min(seen.stop, self.columns.stop) - self.columns.start
        return range(start, max(start, stop))

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        there = range(columns.start + self.columns.start, columns.stop + self.columns.start)
        answers: list[bool | Array] = []
        lengths: list[int] = []
        for run in _runs(self.rows[rows.start : rows.stop]):
            found = self.rule.tile(run, there, self.queries, self.keys, like)
            answers.append(found if isinstance(found, bool) else self._own(found))
            lengths.append(len(run))
        if len(answers) == 1:
            return answers[0]
        for single in (True, False):
            if all(answer is single for answer in answers):
                return single
        xp = array_namespace(like)
        return xp.concat(
            [
                xp.broadcast_to(as_tile(answer, like), (length, len(there)))
                for answer, length in zip(answers, lengths, strict=True)
            ],
            axis=0,
        )

    def _own(self, tile: Array) -> Array:
        """Of a tile (batch, heads, rows, columns), any of which may be missing or 1, its head's."""
        if tile.ndim == 4:
            tile = tile[self.batch if tile.shape[0] > 1 else 0]
        if tile.ndim == 3:
            tile = tile[self.head if tile.shape[0] > 1 else 0]
        return tile


def part_of_head(
    call: AttentionCall, batch: int, head: int, rows: Sequence[int], columns: range
) -> AttentionCall:
    """Some rows and columns of one head, as a call (1, 1, rows, columns) without values.

    Its lse is that of the whole rows, so that its weights are the weights of the whole map.

    Args:
        call: the recorded call, with its lse.
        batch: which sequence.
        head: which query head, its place along the axis.
        rows: query indices, rising.
        columns: key indices, step 1.
    """
    assert call.lse is not None
    xp, place = array_namespace(call.q), device(call.q)
    _, _, queries, keys = call.shape
    hull = range(rows[0], rows[-1] + 1) if len(rows) else range(0)
    q = read_heads(call.q, batch, [head], hull)
    lse = call.lse[batch, head, hull.start : hull.stop]
    if len(hull) > len(rows):
        chosen = xp.asarray([row - hull.start for row in rows], dtype=xp.int64, device=place)
        q, lse = xp.take(q, chosen, axis=1), xp.take(lse, chosen, axis=0)
    bias = call.bias
    if bias is not None:
        bias = bias[(None,) * (4 - bias.ndim)]
        bias = bias[batch if bias.shape[0] > 1 else 0, head if bias.shape[1] > 1 else 0]
        if bias.shape[0] > 1:
            bias = xp.concat([bias[run.start : run.stop] for run in _runs(rows)], axis=0)
        if bias.shape[1] > 1:
            bias = bias[:, columns.start : columns.stop]
        bias = bias[None, None]
    mask: Any = call.mask
    if mask is not None:
        mask = _PartOfMask(mask, batch, head, rows, columns, queries, keys)
    return dataclasses.replace(
        call,
        q=q[None],
        k=read_heads(call.k, batch, [head // call.group], columns)[None],
        v=None,
        mask=mask,
        bias=bias,
        sinks=None,  # they are in the lse
        lse=xp.astype(lse, xp.float32)[None, None],
    )


def rows_keep_digits(call: AttentionCall, batch: int, head: int, rows: range) -> bool:
    """Whether every row's lse is small enough that ``score − lse`` keeps its digits.

    Rows that a mask of finfo.min hides everything from do not: their weights have to be
    normalised by whole rows (`AttentionCall.weights`).
    """
    xp = array_namespace(call.q)
    assert call.lse is not None
    lse = call.lse[batch, head, rows.start : rows.stop]
    return not bool(xp.any((lse < LOST_IN_ROUNDING) & (lse > -xp.inf)))


def _runs(rows: Sequence[int]) -> Iterator[range]:
    """Rising numbers as ranges of neighbours."""
    if isinstance(rows, range) and rows.step == 1:
        if rows:
            yield rows
        return
    start = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1:
            yield range(rows[start], rows[place - 1] + 1)
            start = place
