"""Rules that hold arrays, because what they say depends on the input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, to_device

from jumok.masks.rule import Array, Mask


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Some keys are no real tokens: nobody sees them.

    Args:
        visible: boolean (batch, keys), `True` for a real token.
    """

    visible: Array

    def __post_init__(self) -> None:
        if self.visible.ndim != 2:
            raise ValueError(
                f"Padding takes a (batch, keys) boolean array; got shape "
                f"{tuple(self.visible.shape)}. For a mask of each query use Dense."
            )

    def __repr__(self) -> str:
        return f"Padding(visible of shape {tuple(self.visible.shape)})"

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        if self.visible.shape[-1] != n_keys:
            raise ValueError(
                f"the padding mask has {self.visible.shape[-1]} keys, shape "
                f"{tuple(self.visible.shape)}, but there are {n_keys} keys"
            )
        return self.visible[:, None, None, columns.start : columns.stop]

    def seen_keys(self, n_keys: int, like: Array) -> Array | None:
        return self.visible[:, None, :]


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """Any boolean array that broadcasts to (batch, heads, queries, keys), `True` = visible."""

    visible: Array

    def __repr__(self) -> str:
        return f"Dense(visible of shape {tuple(self.visible.shape)})"

    def seen_keys(self, n_keys: int, like: Array) -> Array | None:
        whole = self.visible[(None,) * (4 - self.visible.ndim)]
        return array_namespace(whole).any(whole, axis=-2)

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        found = tuple(self.visible.shape[-2:])
        if len(found) < 2 or any(
            have not in (1, want) for have, want in zip(found, (n_queries, n_keys), strict=True)
        ):
            raise ValueError(
                f"the mask has shape {tuple(self.visible.shape)}; its last two dimensions must be "
                f"(queries, keys) = ({n_queries}, {n_keys}), or 1 to repeat"
            )
        part = self.visible if found[0] == 1 else self.visible[..., rows.start : rows.stop, :]
        return part if found[1] == 1 else part[..., columns.start : columns.stop]


@dataclass(frozen=True, eq=False)
class Spans(Mask):
    """Each query sees one unbroken run of keys.

    Causal, windowed, chunked, prefixed and packed attention are all of this kind, in any
    mixture and differently for each batch element, in memory that is linear in the queries.

    Args:
        start: integers (batch, queries), either of them full or 1: the first visible key.
        stop: likewise, one past the last visible key; nothing is visible where it is not above
            ``start``.
    """

    start: Array
    stop: Array

    def __post_init__(self) -> None:
        if self.start.ndim != 2 or tuple(self.start.shape) != tuple(self.stop.shape):
            raise ValueError(
                f"Spans takes start and stop as two (batch, queries) integer arrays; got shapes "
                f"{tuple(self.start.shape)} and {tuple(self.stop.shape)}"
            )

    def __repr__(self) -> str:
        return f"Spans(start and stop of shape {tuple(self.start.shape)})"

    @cached_property
    def _bounds(self) -> tuple[Array, Array, Array, Array]:
        """Of each query over the batch: lowest and highest start, lowest and highest stop."""
        start, stop = on_host(self.start), on_host(self.stop)
        sees = start < stop
        never = np.iinfo(start.dtype).max
        start = np.where(sees, start, never)
        stop = np.where(sees, stop, 0)
        return start.min(axis=0), start.max(axis=0), stop.min(axis=0), stop.max(axis=0)

    def _rows(self, rows: range, n_queries: int) -> slice:
        found = self.start.shape[1]
        if found not in (1, n_queries):
            raise ValueError(
                f"the spans are of {found} queries, shape {tuple(self.start.shape)}, but there are "
                f"{n_queries} queries"
            )
        return slice(0, 1) if found == 1 else slice(rows.start, rows.stop)

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        part = self._rows(rows, n_queries)
        low, _, _, high = self._bounds
        if not rows or not low.size:
            return range(0)
        start, stop = max(int(low[part].min()), 0), min(int(high[part].max()), n_keys)
        return range(start, stop) if start < stop else range(0)

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        high = self._bounds[3]
        return bool((high <= np.arange(n_queries) + (n_keys - n_queries + 1)).all())

    def seen_keys(self, n_keys: int, like: Array) -> Array | None:
        start, stop = on_host(self.start), on_host(self.stop)
        edges = np.zeros((start.shape[0], n_keys + 1), dtype=np.int64)
        batch = np.broadcast_to(np.arange(start.shape[0])[:, None], start.shape)
        stop = np.clip(stop, 0, n_keys)
        start = np.minimum(np.clip(start, 0, n_keys), stop)
        np.add.at(edges, (batch, start), 1)
        np.add.at(edges, (batch, stop), -1)
        return alike(edges.cumsum(axis=-1)[:, None, :-1] > 0, self.start)

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        part = self._rows(rows, n_queries)
        if not rows or not columns:
            return True
        low_start, high_start, low_stop, high_stop = (bound[part] for bound in self._bounds)
        if high_start.max() <= columns.start and columns.stop <= low_stop.min():
            return True
        if columns.stop <= low_start.min() or high_stop.max() <= columns.start:
            return False
        xp = array_namespace(like)
        key = xp.arange(columns.start, columns.stop, dtype=xp.int64, device=device(like))
        start, stop = self.start[:, None, part, None], self.stop[:, None, part, None]
        return (start <= key) & (key < stop)


@dataclass(frozen=True, eq=False)
class Packed(Mask):
    """Several documents lie in one row: each query sees only keys of its own.

    Usually joined with `Causal`.

    Args:
        documents: integers (batch, keys): which document a position belongs to.
        offset: as in `Causal`: query i belongs to the document of key ``i + offset``, and sees
            nothing where there is no such key.
    """

    documents: Array
    offset: int | None = None

    def __post_init__(self) -> None:
        if self.documents.ndim != 2:
            raise ValueError(
                f"Packed takes a (batch, keys) integer array, the document of each position; got "
                f"shape {tuple(self.documents.shape)}"
            )

    def __repr__(self) -> str:
        return f"Packed(documents of shape {tuple(self.documents.shape)})"

    @cached_property
    def _reach(self) -> tuple[Array, Array]:
        """Of each position over the batch: the first and the last key of its documents."""
        documents = on_host(self.documents)
        first, last = np.empty_like(documents, np.int64), np.empty_like(documents, np.int64)
        for row, low, high in zip(documents, first, last, strict=True):
            _, at, which = np.unique(row, return_index=True, return_inverse=True)
            _, end = np.unique(row[::-1], return_index=True)
            low[:], high[:] = at[which], row.size - 1 - end[which]
        return first.min(axis=0), last.max(axis=0)

    def _places(self, rows: range, n_queries: int, n_keys: int) -> range:
        """The positions of some queries."""
        found = self.documents.shape[1]
        if found != n_keys:
            raise ValueError(
                f"the documents are of {found} keys, shape {tuple(self.documents.shape)}, but "
                f"there are {n_keys} keys"
            )
        offset = n_keys - n_queries if self.offset is None else self.offset
        return range(rows.start + offset, rows.stop + offset)

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        places = self._places(rows, n_queries, n_keys)
        there = slice(max(places.start, 0), max(min(places.stop, n_keys), 0))
        first, last = (reach[there] for reach in self._reach)
        return range(int(first.min()), int(last.max()) + 1) if first.size else range(0)

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        places = self._places(rows, n_queries, n_keys)
        if not rows or not columns:
            return True
        seen = self.visible_columns(rows, n_queries, n_keys)
        if columns.stop <= seen.start or seen.stop <= columns.start:
            return False
        xp, place = array_namespace(like), device(like)
        keys = self.documents[:, None, None, columns.start : columns.stop]
        if places.start >= 0 and places.stop <= n_keys:
            return self.documents[:, None, places.start : places.stop, None] == keys
        query = xp.arange(places.start, places.stop, dtype=xp.int64, device=place)
        there = (query >= 0) & (query < n_keys)
        own = xp.take(self.documents, xp.clip(query, 0, n_keys - 1), axis=1)
        return (own[:, None, :, None] == keys) & there[:, None]


def lies_in_main_memory(array: Array) -> bool:
    return isinstance(array, np.ndarray) or "cpu" in str(device(array)).lower()


def on_host(array: Array) -> np.ndarray[Any, Any]:
    """An array of any library and device as NumPy's; no copy if it lies in the main memory."""
    return np.asarray(array if lies_in_main_memory(array) else to_device(array, "cpu"))


def alike(array: np.ndarray[Any, Any], like: Array) -> Array:
    """A NumPy array in the library and on the device of another."""
    if isinstance(like, np.ndarray):
        return array
    return array_namespace(like).asarray(array, device=device(like))
