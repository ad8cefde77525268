"""What a rule is, and how rules are put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

Array = Any


class Mask:
    """The rule that says which keys each query may attend to."""

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        """Visibility of the tile ``rows`` × ``columns``.

        Args:
            rows: query indices, a range with step 1 inside ``range(n_queries)``.
            columns: key indices, likewise inside ``range(n_keys)``.
            n_queries: number of queries of the whole plane.
            n_keys: number of keys of the whole plane.
            like: any array of the kind (library and device) that the answer should have.

        Returns:
            `True`, `False`, or a boolean array that broadcasts to
            (batch, heads, rows, columns).
        """
        raise NotImplementedError

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        """The smallest known range of keys outside which no query of ``rows`` sees anything."""
        return range(n_keys)

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        """Whether the rule by itself keeps every query from all keys after its own position."""
        return False

    def seen_keys(self, n_keys: int, like: Array) -> Array | None:
        """Which keys some query sees: boolean (batch or 1, heads or 1, keys); `None` for all.

        Bands and documents let every position see itself, so they say all.
        """
        return None

    def dense(self, n_queries: int, n_keys: int, like: Array) -> Array:
        """The whole plane as a boolean array of two or four dimensions.

        This is the T×T array that rules are there to avoid: for the definition and for tests.
        """
        tile = self.tile(range(n_queries), range(n_keys), n_queries, n_keys, like)
        if isinstance(tile, bool):
            xp = array_namespace(like)
            return xp.full((n_queries, n_keys), tile, dtype=xp.bool, device=device(like))
        return tile

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return join(self, other)


@dataclass(frozen=True)
class Everything(Mask):
    """Every query sees every key."""

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        return True


@dataclass(frozen=True, eq=False)
class Both(Mask):
    """What all of several rules let through. Made by ``a & b``."""

    rules: tuple[Mask, ...]

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        answer: bool | Array = True
        for rule in self.rules:
            tile = rule.tile(rows, columns, n_queries, n_keys, like)
            if tile is False:
                return False
            if tile is not True:
                answer = tile if answer is True else answer & tile
        return answer

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        parts = [rule.visible_columns(rows, n_queries, n_keys) for rule in self.rules]
        low, high = max(part.start for part in parts), min(part.stop for part in parts)
        return range(low, max(low, high))

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        return any(rule.is_causal(n_queries, n_keys) for rule in self.rules)

    def seen_keys(self, n_keys: int, like: Array) -> Array | None:
        seen = None
        for rule in self.rules:
            part = rule.seen_keys(n_keys, like)
            if part is not None:
                seen = part if seen is None else seen & part
        return seen


@dataclass(frozen=True, eq=False)
class Steps(Mask):
    """The rules of successive calls over one growing sequence of keys, one below the other.

    Args:
        parts: (rule or `None`, number of queries, number of keys) of each call, in order. Keys
            that a call did not have yet are hidden from its queries.
    """

    parts: tuple[tuple[Mask | None, int, int], ...]

    def _pieces(self, rows: range) -> Iterator[tuple[Mask, range, int, int]]:
        start = 0
        for rule, n_queries, n_keys in self.parts:
            low, high = max(rows.start, start), min(rows.stop, start + n_queries)
            if low < high:
                yield rule or Everything(), range(low - start, high - start), n_queries, n_keys
            start += n_queries

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        parts = [
            rule.visible_columns(piece, part_queries, part_keys)
            for rule, piece, part_queries, part_keys in self._pieces(rows)
        ]
        parts = [part for part in parts if part]
        if not parts:
            return range(0)
        return range(min(part.start for part in parts), max(part.stop for part in parts))

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        start = n_keys - n_queries
        for rule, part_queries, part_keys in self.parts:
            start += part_queries
            # The part's last query stands on its last key, and sees nothing that came later.
            causal = part_queries == 1 or (
                rule is not None and rule.is_causal(part_queries, part_keys)
            )
            if start != part_keys or not causal:
                return False
        return True

    def seen_keys(self, n_keys: int, like: Array) -> Array | None:
        found = None
        # The last call often knows every key; before it, a windowed cache may have dropped some.
        for rule, _, part_keys in reversed(self.parts):
            seen = None if rule is None else rule.seen_keys(part_keys, like)
            if part_keys < n_keys or seen is not None:
                seen = among(seen, range(part_keys), n_keys, like)
            if seen is None:
                return None
            found = seen if found is None else found | seen
        return found

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        xp = array_namespace(like)
        answers: list[bool | Array] = []
        heights: list[int] = []
        for rule, piece, part_queries, part_keys in self._pieces(rows):
            known = range(columns.start, max(columns.start, min(columns.stop, part_keys)))
            tile = rule.tile(piece, known, part_queries, part_keys, like) if known else False
            if tile is not False and len(known) < len(columns):
                wide = as_tile(tile, like)
                shape = (*wide.shape[:-2], len(piece), len(known))
                later = (*wide.shape[:-2], len(piece), len(columns) - len(known))
                tile = xp.concat(
                    [
                        xp.broadcast_to(wide, shape),
                        xp.zeros(later, dtype=xp.bool, device=device(like)),
                    ],
                    axis=-1,
                )
            answers.append(tile)
            heights.append(len(piece))
        for single in (True, False):
            if all(answer is single for answer in answers):
                return single
        arrays = [as_tile(answer, like) for answer in answers]
        leading = np.broadcast_shapes(*(tuple(array.shape[:-2]) for array in arrays))
        return xp.concat(
            [
                xp.broadcast_to(array, (*leading, height, len(columns)))
                for array, height in zip(arrays, heights, strict=True)
            ],
            axis=-2,
        )


def join(*masks: Mask | None) -> Mask:
    """All of the rules at once; `None` and `Everything` add nothing."""
    flat: list[Mask] = []
    for mask in masks:
        if mask is None or isinstance(mask, Everything):
            continue
        flat.extend(mask.rules if isinstance(mask, Both) else [mask])
    if not flat:
        return Everything()
    return flat[0] if len(flat) == 1 else Both(tuple(flat))


def among(seen: Array | None, part: range, n_keys: int, like: Array) -> Array:
    """Which of all keys are seen, if of a part of them these are (or all, if `None`)."""
    xp, place = array_namespace(like), device(like)
    if seen is None:
        seen = xp.ones((1, 1, len(part)), dtype=xp.bool, device=place)
    if len(part) == n_keys:
        return seen
    before = xp.zeros((*seen.shape[:2], part.start), dtype=xp.bool, device=place)
    after = xp.zeros((*seen.shape[:2], n_keys - part.stop), dtype=xp.bool, device=place)
    return xp.concat([before, seen, after], axis=-1)


def as_tile(tile: bool | Array, like: Array) -> Array:
    """A tile's answer as a boolean array (0-dimensional for `True` and `False`)."""
    if isinstance(tile, bool):
        xp = array_namespace(like)
        return xp.asarray(tile, dtype=xp.bool, device=device(like))
    return tile
