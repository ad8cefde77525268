"""The rule in an array of booleans.

A model that pads or windows builds its mask as an array of (batch, 1, queries, keys) and hands
it to every layer. What it says can nearly always be said in a few numbers, or in one number a
row, and this finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from jumok.masks.arrays import Dense, Padding, Spans, alike, lies_in_main_memory, on_host
from jumok.masks.bands import Causal, Chunked, Prefix, Window
from jumok.masks.rule import Array, Everything, Mask, join

_Host = np.ndarray[Any, Any]

_BLOCK = 1 << 20  # booleans looked at in one go
_SIZES = 4  # how many sizes of chunks are tried: holes make some of them look smaller


def compact(visible: Array, n_queries: int, n_keys: int) -> Mask:
    """The simplest rule that says exactly what a boolean array says.

    Tried in this order: `Everything`; `Causal`, `Window`, `Chunked` (with or without `Causal`),
    `Prefix`; `Padding`; `Padding` joined with one of those; `Spans`, which is any mask whose rows
    are unbroken, such as packed documents, blocks of image tokens among causal text, and all of
    these differently for each batch element; `Padding` joined with `Spans`; `Dense`, which keeps
    the array. The array is read once, and what else is held is linear in queries and keys.

    The rows of padded queries are taken as seriously as any other, so that a record gives back
    what ran: where they see nothing, `Padding & Causal()` says so; where a library lets them see
    everything instead, so that their softmax is defined, `Spans` says that.

    Args:
        visible: booleans that broadcast to (batch, heads, n_queries, n_keys), `True` = may
            attend; two dimensions at least.
        n_queries: how many queries there are, where ``visible`` has one row for all.
        n_keys: likewise the keys.

    Returns:
        A rule, its arrays of the library and on the device of ``visible``; none of them shares
        memory with it, but for `Dense`.

    Raises:
        ValueError: a shape that does not fit.
    """
    shape = tuple(visible.shape)
    if len(shape) < 2 or shape[-2] not in (1, n_queries) or shape[-1] not in (1, n_keys):
        raise ValueError(
            f"a mask of shape {shape} does not broadcast to (batch, heads, queries, keys) = "
            f"(…, …, {n_queries}, {n_keys})"
        )
    if 0 in shape:
        return Everything()
    one_for_all = shape[-1] == 1 < n_keys
    rows = _rows_of(visible)
    if rows is None:
        return Dense(visible)
    if rows.says(0, rows.keys, rows.all_keys):
        return Everything()
    if one_for_all:
        return Dense(visible)
    if shape[-2] == 1 < n_queries:
        return Padding(alike(rows.seen, visible))
    found = next(_candidates(rows), None)
    if found is None:
        return Dense(visible)
    rule, real = found
    padding = None if real is rows.all_keys else Padding(alike(real.visible, visible))
    return join(padding, _at_home(rule, visible))


@dataclass(eq=False)
class _Keys:
    """Some keys of each batch element, (batch or 1, keys), and how they lie."""

    visible: _Host

    def __post_init__(self) -> None:
        batch, keys = self.visible.shape
        place = np.arange(keys)
        self.before = np.zeros((batch, keys + 1), dtype=np.int64)  # how many lie before a key
        np.cumsum(self.visible, axis=-1, out=self.before[:, 1:])
        self.next = np.full((batch, keys + 1), keys)  # the nearest one from a key on
        self.next[:, :-1] = np.where(self.visible, place, keys)
        self.next = np.minimum.accumulate(self.next[:, ::-1], axis=-1)[:, ::-1]
        self.previous = np.full((batch, keys + 1), -1)  # the nearest one before a key
        self.previous[:, 1:] = np.where(self.visible, place, -1)
        self.previous = np.maximum.accumulate(self.previous, axis=-1)


@dataclass(eq=False)
class _Rows:
    """What is known of each row (batch, queries): enough to say whether a rule is equal to it."""

    first: _Host  # the first visible key
    last: _Host  # the last one
    count: _Host  # how many there are
    seen: _Host  # (batch, keys) which keys any query sees

    def __post_init__(self) -> None:
        self.queries, self.keys = self.first.shape[1], self.seen.shape[1]
        self.sees = self.count > 0
        self.place = np.arange(self.queries)
        self.all_keys = _Keys(np.ones((1, self.keys), dtype=np.bool_))
        self.unbroken = bool(
            (self.count == np.where(self.sees, self.last - self.first + 1, 0)).all()
        )

    def says(self, start: _Host | int, stop: _Host | int, real: _Keys) -> bool:
        """Whether each row is exactly the ``real`` keys from ``start`` up to below ``stop``.

        A row is part of the real keys; so it is all of those in the span, and nothing else, if
        it lies inside and has as many.
        """
        start = np.broadcast_to(np.clip(start, 0, self.keys), self.count.shape)
        stop = np.broadcast_to(np.clip(stop, 0, self.keys), self.count.shape)
        stop = np.maximum(start, stop)
        if not ((self.first >= start) & (self.last < stop))[self.sees].all():
            return False
        batch = np.broadcast_to(np.arange(len(self.count))[:, None], self.count.shape)
        batch = batch if len(real.before) > 1 else np.zeros_like(batch)
        return bool((real.before[batch, stop] - real.before[batch, start] == self.count).all())


def _candidates(rows: _Rows) -> Iterator[tuple[Mask, _Keys]]:
    """Rules that are equal to the rows, the simplest first, and the keys they are joined with."""
    every = rows.all_keys
    if rows.queries > 1 or not rows.sees.all():
        yield from ((rule, every) for rule in _bands(rows, every))
    elif rows.unbroken:
        # A query alone: padding, window or cache, nobody can tell.
        stop = rows.last + 1
        if rows.says(0, int(stop[0, 0]), every):
            yield _causal(int(stop[0, 0]) - 1, rows), every
        yield Spans(rows.first, stop), every
    real = _Keys(rows.seen)
    if rows.says(0, rows.keys, real):
        yield Everything(), real
    yield from ((rule, real) for rule in _bands(rows, real))
    start, stop = np.where(rows.sees, rows.first, 0), np.where(rows.sees, rows.last + 1, 0)
    if rows.unbroken:
        yield Spans(start, stop), every
    if rows.says(start, stop, real):
        yield Spans(start, stop), real


def _bands(rows: _Rows, real: _Keys) -> Iterator[Mask]:
    """Bands that say, together with the real keys, what the rows say."""
    if not rows.sees.any():
        return
    batch, query = np.nonzero(rows.sees)
    first, last = rows.first[batch, query], rows.last[batch, query]
    batch = batch if len(real.next) > 1 else np.zeros_like(batch)
    # Relative to the query, the band ends at `high`: on the last visible key or after it, and
    # before the next real one; it starts at `low`, likewise. No such key: no bound needed.
    following, previous = real.next[batch, last + 1], real.previous[batch, first]
    high = int((last - query).max())
    highest = np.where(following < rows.keys, following - 1 - query, np.iinfo(np.int64).max).min()
    low = int((first - query).min())
    lowest = np.where(previous >= 0, previous + 1 - query, np.iinfo(np.int64).min).max()
    ends, starts = highest < np.iinfo(np.int64).max, lowest > np.iinfo(np.int64).min
    if high <= highest and lowest <= low and (starts or ends):
        start = rows.place + low if starts else 0
        stop = rows.place + high + 1 if ends else rows.keys
        if rows.says(start, stop, real):
            yield _band(low if starts else None, high if ends else None, rows)
    offsets = dict.fromkeys([rows.keys - rows.queries, 0, high])
    sizes = np.unique(np.diff(np.unique(first)))[:_SIZES].tolist()
    for size, offset in product(sizes, offsets):
        start = (rows.place + offset) // size * size
        if rows.says(start, start + size, real):
            yield Chunked(size, _offset(offset, rows))
        if rows.says(start, rows.place + offset + 1, real):
            yield Chunked(size, _offset(offset, rows)) & _causal(offset, rows)
    ahead = np.where(rows.sees, rows.last + 1, rows.keys).min(axis=-1)
    for offset in offsets:
        if rows.says(0, np.maximum(ahead[:, None], rows.place + offset + 1), real):
            same = bool((ahead == ahead[0]).all())
            yield Prefix(int(ahead[0]) if same else ahead, _offset(offset, rows))


def _band(low: int | None, high: int | None, rows: _Rows) -> Mask:
    """The rule by which query i sees the keys from ``i + low`` to ``i + high``."""
    natural = rows.keys - rows.queries
    if low is None:
        assert high is not None
        return _causal(high, rows)
    if high is None:
        offset = max(low, natural)
        return Window(offset - low + 1, ahead=None, offset=_offset(offset, rows))
    offset = natural if low <= natural <= high else high
    return Window(offset - low + 1, high - offset, _offset(offset, rows))


def _causal(offset: int, rows: _Rows) -> Causal:
    return Causal(_offset(offset, rows))


def _offset(offset: int, rows: _Rows) -> int | None:
    return None if offset == rows.keys - rows.queries else offset


def _at_home(rule: Mask, like: Array) -> Mask:
    """The rule with its arrays in the library of ``like``."""
    if isinstance(rule, Spans):
        start, stop = (bound.astype(np.int32) for bound in (rule.start, rule.stop))
        return Spans(alike(start, like), alike(stop, like))
    if isinstance(rule, Prefix) and not isinstance(rule.length, int):
        return Prefix(alike(rule.length, like), rule.offset)
    return rule


# -- reading the array --------------------------------------------------------------------------


def _rows_of(visible: Array) -> _Rows | None:
    """One look at every row; `None` where heads differ."""
    if visible.ndim > 4:
        return None
    if lies_in_main_memory(visible):
        visible = on_host(visible)
    visible = visible[(None,) * (4 - visible.ndim) + (...,)]
    batch, heads, queries, keys = visible.shape
    # What a model has merely repeated (a stride of 0) is looked at once.
    if isinstance(visible, np.ndarray):
        if visible.strides[0] == 0:
            visible, batch = visible[:1], 1
        if visible.strides[1] == 0:
            visible, heads = visible[:, :1], 1
    bits = -(-keys // 8)
    first = np.zeros((batch, heads, queries), dtype=np.int64)
    last, count = np.zeros_like(first), np.zeros_like(first)
    seen = np.zeros((batch, heads, bits), dtype=np.uint8)
    step = max(1, _BLOCK // keys)
    for b, h, top in product(range(batch), range(heads), range(0, queries, step)):
        rows = slice(top, min(top + step, queries))
        packed = _packed(visible[b, h, rows, :])
        filled = packed != 0
        line = np.arange(len(packed))
        left = filled.argmax(axis=-1)
        right = bits - 1 - filled[:, ::-1].argmax(axis=-1)
        first[b, h, rows] = 8 * left + _FIRST_BIT[packed[line, left]]
        last[b, h, rows] = 8 * right + _LAST_BIT[packed[line, right]]
        count[b, h, rows] = np.bitwise_count(packed).sum(axis=-1, dtype=np.int64)
        seen[b, h] |= np.bitwise_or.reduce(packed, axis=0)
    if any((found != found[:, :1]).any() for found in (first, last, count, seen)):
        return None
    columns = np.unpackbits(seen[:, 0], axis=-1, count=keys).astype(np.bool_)
    return _Rows(first[:, 0], last[:, 0], count[:, 0], columns)


def _packed(block: Array) -> _Host:
    """(rows, keys) booleans as (rows, ⌈keys/8⌉) bytes, the first key in the highest bit."""
    if isinstance(block, np.ndarray):
        return np.packbits(block, axis=-1)
    return on_host(_packed_there(block))


def _packed_there(block: Array) -> Array:
    """The same where the booleans are, so that only an eighth of them comes over."""
    xp, place = array_namespace(block), device(block)
    missing = -block.shape[-1] % 8
    if missing:
        rest = xp.zeros((block.shape[0], missing), dtype=xp.bool, device=place)
        block = xp.concat([block, rest], axis=-1)
    weights = xp.asarray([128, 64, 32, 16, 8, 4, 2, 1], dtype=xp.uint8, device=place)
    by_eight = xp.astype(xp.reshape(block, (block.shape[0], -1, 8)), xp.uint8)
    return xp.sum(by_eight * weights, axis=-1, dtype=xp.uint8)


_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=-1)
_FIRST_BIT = _BYTES.argmax(axis=-1)
_LAST_BIT = 7 - _BYTES[:, ::-1].argmax(axis=-1)
