"""The rule of a call that no longer had all keys: a windowed cache drops the old ones."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace, device

from jumok.masks.rule import Array, Mask, among, as_tile


@dataclass(frozen=True, eq=False)
class Tail(Mask):
    """A rule over the keys from ``first`` on; nobody sees those before.

    Args:
        first: number of keys that had been dropped when the call ran.
        among: who sees whom among the others, counted from the first of them.
    """

    first: int
    among: Mask

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        seen = self.among.visible_columns(rows, n_queries, n_keys - self.first)
        return range(seen.start + self.first, seen.stop + self.first)

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        return self.among.is_causal(n_queries, n_keys - self.first)

    def seen_keys(self, n_keys: int, like: Array) -> Array | None:
        seen = self.among.seen_keys(n_keys - self.first, like)
        return among(seen, range(self.first, n_keys), n_keys, like)

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        later = range(max(columns.start, self.first), max(columns.stop, self.first))
        if not later:
            return not (rows and columns)
        there = range(later.start - self.first, later.stop - self.first)
        tile = self.among.tile(rows, there, n_queries, n_keys - self.first, like)
        if tile is False or len(later) == len(columns):
            return tile
        xp = array_namespace(like)
        wide = as_tile(tile, like)
        leading = tuple(wide.shape[:-2])
        dropped = xp.zeros(
            (*leading, len(rows), len(columns) - len(later)), dtype=xp.bool, device=device(like)
        )
        shown = xp.broadcast_to(wide, (*leading, len(rows), len(later)))
        return xp.concat([dropped, shown], axis=-1)
