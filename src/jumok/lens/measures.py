"""What a recorded attention call did, measured without ever holding its weights.

One pass over tiles of (rows, keys) answers every question: a tile is a product and an ``exp``,
and whatever is asked for is read off the same tile while it lies in the cache (`lens.tiles`).
Distances, masses and sums are of the weights that ran, in float32.

Works alike on PyTorch tensors and NumPy arrays, and imports no PyTorch. Shapes: B batch,
H query heads, T tokens (Tq queries, Tk keys). Query i stands at key position ``i + Tk − Tq``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from jumok.lens.call import Array, AttentionCall
from jumok.lens.observers import Observer
from jumok.lens.tiles import HIDDEN, Tile, Tiles, log_normalizers

__all__ = [
    "QUANTITIES",
    "Measures",
    "log_normalizers",
    "measure",
    "pooled",
    "real_queries",
    "segments",
    "top",
]

QUANTITIES = ("entropy", "distance", "received", "columns", "diagonals", "segments")

_BLOCK = 64  # keys whose maximum stands for all of them in the first stage of `top`
_STRIP = 1 << 22  # scores of one strip of whole rows in `top`: 16 MB, in the third-level cache


@dataclass(frozen=True, eq=False)
class Measures:
    """What was asked for in `measure`; `None` for what wasn't. All float32.

    Attributes:
        entropy: −Σ_j w_ij ln w_ij of every row, in nats (B, H, Tq).
        distance: Σ_j w_ij |i + Tk − Tq − j|, in tokens (B, H, Tq).
        received: Σ_i w_ij of every key (B, H, Tk), without queries that are padding.
        columns: by key index, w_ij of all queries (B, H, Tq).
        diagonals: by offset o, the weight on key ``i + Tk − Tq + o`` (B, H, Tq); 0 where there
            is no such key.
        segments: (B, H, S, S), see `segments`.
    """

    entropy: Array | None = None
    distance: Array | None = None
    received: Array | None = None
    columns: dict[int, Array] | None = None
    diagonals: dict[int, Array] | None = None
    segments: Array | None = None


def measure(
    call: AttentionCall,
    *,
    quantities: Sequence[str] = ("entropy", "distance", "received", "columns", "diagonals"),
    columns: Sequence[int] = (0,),
    offsets: Sequence[int] = (0, -1),
    bounds: Sequence[int] | None = None,
    observers: Sequence[Observer] = (),
) -> Measures:
    """Measure several things in one pass.

    Args:
        call: the recorded call.
        quantities: which of `QUANTITIES`; see `Measures`. ``segments`` needs ``bounds``.
        columns: keys of ``columns``; negative ones count from the end.
        offsets: of ``diagonals``: 0 is the token itself, −1 the one before.
        bounds: of ``segments``.
        observers: are shown every tile as well.

    Raises:
        ValueError: an unknown quantity, a key that is not there, bounds that are no segments.
    """
    unknown = [name for name in quantities if name not in QUANTITIES]
    if unknown:
        raise ValueError(f"no such quantity: {unknown}; there are {list(QUANTITIES)}")
    batch, heads, queries, keys = call.shape
    xp, place = array_namespace(call.q), device(call.q)

    def zeros(*shape: int) -> Array:
        return xp.zeros((batch, heads, *shape), dtype=xp.float32, device=place)

    entropy = zeros(queries) if "entropy" in quantities else None
    distances = _Distances(call) if "distance" in quantities else None
    at_keys = {key: zeros(queries) for key in columns} if "columns" in quantities else {}
    diagonals = {o: zeros(queries) for o in offsets} if "diagonals" in quantities else {}
    for key in at_keys:
        if not -keys <= key < keys:
            raise ValueError(f"there is no column {key} among {keys} keys")
    edges = _read_bounds(bounds, keys) if "segments" in quantities else []
    masses = zeros(queries, len(edges) - 1) if edges else None
    real = real_queries(call) if "received" in quantities or edges else None
    shift = keys - queries
    tiles = Tiles(call)

    def work(part: Iterator[Tile]) -> Array | None:
        """Fill in the rows of some tiles; what their keys received is returned."""
        received = zeros(keys) if "received" in quantities else None
        for tile in part:
            at = (tile.batch, tile.heads, tile.rows)
            low, high = tile.columns.start, tile.columns.stop
            logs = tile.logs
            weights = tiles.exp(logs, out=tile.spare)
            for key, result in at_keys.items():
                if low <= key % keys < high:
                    result[at] = weights[:, :, key % keys - low]
            for offset, result in diagonals.items():
                _read_diagonal(weights, tile, shift + offset, result)
            if entropy is not None:
                xp.multiply(logs, weights, out=logs)
                _add(entropy[at], xp.sum(logs, axis=-1))
            # From here on `logs` is free space.
            if distances is not None:
                distances.add(weights, tile)
            for s, (start, stop) in enumerate(pairwise(edges)):
                start, stop = max(start, low), min(stop, high)
                if start < stop:
                    assert masses is not None
                    inside = weights[:, :, start - low : stop - low]
                    _add(masses[(*at, s)], xp.sum(inside, axis=-1))
            for observer in observers:
                observer.see(weights, tile)
            if received is not None:
                if real is not None:
                    xp.multiply(weights, real[tile.batch, tile.rows][:, None], out=weights)
                _add(received[tile.batch, tile.heads, tile.columns], xp.sum(weights, axis=1))
        return received

    received = _added(tiles.run(work))
    if entropy is not None:
        entropy *= -tiles.unit
    return Measures(
        entropy,
        None if distances is None else distances.result(),
        received,
        at_keys if "columns" in quantities else None,
        diagonals if "diagonals" in quantities else None,
        None if masses is None else _mean_by_segment(xp, masses, real, edges, shift),
    )


def segments(call: AttentionCall, bounds: Sequence[int]) -> Array:
    """How much each passage of the text reads of each passage.

    Args:
        call: the recorded call.
        bounds: where the passages start and end, both ends included: ``[0, 120, 800]`` are the
            two passages 0…119 and 120…799, S = 2.

    Returns:
        float32 (B, H, S, S): entry (s, t) is the share of attention that a query of passage s
        gives to all keys of passage t, the mean over the queries that stand in s (padded ones
        left out). 0 where no query stands in s.

    Raises:
        ValueError: bounds that don't rise, or lie outside the keys.
    """
    return measure(call, quantities=("segments",), bounds=bounds).segments


def top(call: AttentionCall, k: int) -> tuple[Array, Array]:
    """The k largest weights of every row.

    Two stages, exact: of every 64 keys the maximum; the k largest weights lie in the k blocks
    with the largest maxima.

    Returns:
        ``(indices, weights)``, (B, H, Tq, k) int64 and float32, sorted from the largest. Where
        fewer than k keys are visible the rest has index −1 and weight 0.

    Raises:
        ValueError: k below 1.
    """
    if not hasattr(k, "__index__") or k < 1:
        raise ValueError(f"top({k!r}): k is a whole number, at least 1")
    batch, heads, queries, keys = call.shape
    xp, place = array_namespace(call.q), device(call.q)
    indices = xp.full((batch, heads, queries, k), -1, dtype=xp.int64, device=place)
    weights = xp.zeros((batch, heads, queries, k), dtype=xp.float32, device=place)
    blocks = -(-keys // _BLOCK)
    rows = max(8, min(64, _STRIP // max(1, min(heads, 12) * keys) // 8 * 8))
    tiles = Tiles(call, rows=rows, columns=blocks * _BLOCK, align=(1, _BLOCK))

    def work(part: Iterator[Tile]) -> None:
        for tile in part:
            at = (tile.batch, tile.heads)
            n_heads, n_rows, width = tile.logs.shape
            logs = xp.reshape(tile.logs, (n_heads, n_rows, width // _BLOCK, _BLOCK))
            maxima = xp.max(logs, axis=-1)
            _, chosen = _largest(maxima, min(k, width // _BLOCK))
            # Positions of all keys of the chosen blocks: (heads, rows, chosen · 64).
            within = xp.arange(_BLOCK, dtype=xp.int64, device=place)
            candidates = xp.reshape(chosen[..., None] * _BLOCK + within, (n_heads, n_rows, -1))
            found = _take(tile.logs, candidates)
            values, order = _largest(found, min(k, int(found.shape[-1])))
            places = _take(candidates, order) + tile.columns.start
            visible = values > HIDDEN / 2
            count = int(values.shape[-1])
            indices[at][:, tile.rows, :count] = xp.where(visible, places, -1)
            weights[at][:, tile.rows, :count] = xp.where(visible, tiles.exp(values), 0.0)

    tiles.run(work)
    return indices, weights


def pooled(call: AttentionCall, size: int, how: str = "max") -> Array:
    """The whole map shrunk to at most size × size cells, exactly.

    Cells are squares or rectangles of ``⌈Tq / size⌉`` rows and ``⌈Tk / size⌉`` columns (rounded
    up to multiples of 64 or of 128 and 512 where they are larger than that); the last of a side
    may be smaller.

    Args:
        call: the recorded call.
        size: largest number of cells on a side.
        how: ``"max"``: the largest weight of each cell; ``"mean"``: the mean, hidden keys
            counted as the zeros they are.

    Returns:
        float32 (B, H, rows, columns) of cells.

    Raises:
        ValueError: size below 1, or another ``how``.
    """
    if not hasattr(size, "__index__") or size < 1 or how not in ("max", "mean"):
        raise ValueError(
            f"pooled({size!r}, {how!r}): size is a whole number, at least 1, and how is 'max' or "
            f"'mean'"
        )
    batch, heads, queries, keys = call.shape
    xp, place = array_namespace(call.q), device(call.q)
    tall, wide = _cell(queries, size, (64,)), _cell(keys, size, (128, 512))
    shape = (batch, heads, -(-queries // tall), -(-keys // wide))
    cells = xp.full(shape, HIDDEN if how == "max" else 0.0, dtype=xp.float32, device=place)
    # A tile holds whole cells, or lies inside one row or column of cells.
    align = (min(tall, 64), min(wide, 128 if call.is_numpy else 512))
    rows = None if tall < 64 else 64
    together = max(1, tall // 64) if rows else 1  # nobody else adds to the same cells
    tiles = Tiles(call, rows=rows, align=align, together=together)

    def work(part: Iterator[Tile]) -> None:
        for tile in part:
            n_heads, n_rows, width = tile.logs.shape
            high, broad = n_rows // align[0], width // align[1]
            first, left = tile.rows.start // tall, tile.columns.start // wide
            here = cells[
                tile.batch, tile.heads, first : first + max(1, high), left : left + max(1, broad)
            ]
            split = (n_heads, high, align[0], width)
            if how == "max":
                strips = xp.max(xp.reshape(tile.logs, split), axis=2)
                found = xp.max(xp.reshape(strips, (n_heads, high, broad, align[1])), axis=-1)
                here[...] = xp.maximum(here, found)
            else:
                weights = tiles.exp(tile.logs, out=tile.spare)
                strips = xp.sum(xp.reshape(weights, split), axis=2)
                here += xp.sum(xp.reshape(strips, (n_heads, high, broad, align[1])), axis=-1)

    tiles.run(work)
    if how == "max":
        return tiles.exp(cells)

    def counts(total: int, step: int) -> Array:
        starts = range(0, total, step)
        lengths = [min(step, total - start) for start in starts]
        return xp.asarray(lengths, dtype=xp.float32, device=place)

    return cells / (counts(queries, tall)[:, None] * counts(keys, wide))


def real_queries(call: AttentionCall) -> Array | None:
    """Which queries are no padding: a query is, whose own key nobody may see.

    Asked only where queries and keys are of one sequence: as many queries as keys, or a causal
    mask.

    Returns:
        float32 (B, Tq), 1 for a real query and 0 for padding; `None` if all are real.
    """
    _, _, queries, keys = call.shape
    xp = array_namespace(call.q)
    one_sequence = queries == keys or (
        call.mask is not None and queries < keys and call.mask.is_causal(queries, keys)
    )
    if not one_sequence:
        return None
    seen = None if call.mask is None else call.mask.seen_keys(keys, call.q)
    if call.bias is not None:
        bias = call.bias[(None,) * (4 - call.bias.ndim)]
        by_bias = xp.any(bias > xp.finfo(bias.dtype).min / 2, axis=-2)
        seen = by_bias if seen is None else seen & by_bias
    if seen is None or bool(xp.all(seen)):
        return None
    own = xp.any(seen, axis=1)[:, -queries:]
    shape = (call.shape[0], queries)
    return xp.astype(xp.broadcast_to(own, shape), xp.float32)


def _read_diagonal(weights: Array, tile: Tile, offset: int, result: Array) -> None:
    """Copy what a tile has of the keys ``row + offset`` into (B, H, Tq)."""
    start = max(tile.rows.start, tile.columns.start - offset)
    stop = min(tile.rows.stop, tile.columns.stop - offset)
    if start < stop:
        place = tile.rows.start + offset - tile.columns.start
        found = weights.diagonal(place, 1, 2)
        skipped = start - max(tile.rows.start, tile.columns.start - offset)
        result[tile.batch, tile.heads, start:stop] = found[:, skipped : skipped + stop - start]


class _Distances:
    """``Σ_j w_ij |p_i − j|`` of every row, added up tile by tile.

    Where all keys lie on one side of the rows that is ``±(p_i Σ_j w_ij − Σ_j w_ij j)``: a sum and
    a product with a vector. Positions are counted from the first row of the tile, so that what is
    subtracted is large only where the distance is.
    """

    def __init__(self, call: AttentionCall) -> None:
        self._xp, place = array_namespace(call.q), device(call.q)
        _, _, queries, keys = call.shape
        self._shift = keys - queries
        self._causal = call.mask is not None and call.mask.is_causal(queries, keys)
        shape = call.shape[:3]
        self._masses = self._xp.zeros(shape, dtype=self._xp.float32, device=place)
        self._moments = self._xp.zeros(shape, dtype=self._xp.float32, device=place)
        # Of each row, how far it lies from the first of its tile.
        self._rows = self._xp.zeros((queries,), dtype=self._xp.float32, device=place)
        self._zero = max(queries, keys)
        self._numbers = self._xp.arange(
            -self._zero, self._zero + 1, dtype=self._xp.float32, device=place
        )

    def _range(self, start: int, stop: int) -> Array:
        return self._numbers[start + self._zero : stop + self._zero]

    def add(self, weights: Array, tile: Tile) -> None:
        """Take in one tile, whose logarithms are overwritten."""
        xp, rows, columns = self._xp, tile.rows, tile.columns
        at = (tile.batch, tile.heads, rows)
        first, last = rows.start + self._shift, rows.stop - 1 + self._shift
        own = self._range(0, rows.stop - rows.start)
        self._rows[rows] = own
        keys = self._range(columns.start - first, columns.stop - first)
        moments = self._moments[at]
        if self._causal or columns.stop - 1 <= first:
            _add(self._masses[at], xp.sum(weights, axis=-1))
            _add(moments, xp.matmul(weights, keys))
        elif columns.start >= last:
            _add(self._masses[at], -xp.sum(weights, axis=-1))
            _add(moments, -xp.matmul(weights, keys))
        else:
            xp.multiply(weights, xp.abs(own[:, None] - keys), out=tile.logs)
            _add(moments, -xp.sum(tile.logs, axis=-1))

    def result(self) -> Array:
        """float32 (B, H, Tq)."""
        return self._rows * self._masses - self._moments


def _add(array: Array, more: Array) -> None:
    """In place; ``array[…] += more`` would also assign the sum to where it is already."""
    array += more


def _added(parts: list[Array | None]) -> Array | None:
    known = [part for part in parts if part is not None]
    return sum(known[1:], start=known[0]) if known else None


def _cell(total: int, size: int, steps: Sequence[int]) -> int:
    """Length of a cell: a multiple of every step that it is longer than."""
    length = -(-total // size) if total else 1
    for step in steps:
        if length > step:
            length = -(-length // step) * step
    return length


def _read_bounds(bounds: Sequence[int] | None, keys: int) -> list[int]:
    edges = [] if bounds is None else [int(bound) for bound in bounds]
    rising = all(low < high for low, high in pairwise(edges))
    if len(edges) < 2 or not rising or edges[0] < 0 or edges[-1] > keys:
        raise ValueError(
            f"segments({bounds}): bounds rise from 0 or more to at most {keys}, the number of "
            f"keys, both ends included, such as [0, {keys // 2}, {keys}]"
        )
    return edges


def _mean_by_segment(
    xp: Any, masses: Array, real: Array | None, edges: list[int], shift: int
) -> Array:
    """(B, H, Tq, S) masses of each row to (B, H, S, S) means over the rows of each segment."""
    queries = int(masses.shape[2])
    means = []
    for low, high in pairwise(edges):
        rows = slice(min(max(low - shift, 0), queries), min(max(high - shift, 0), queries))
        part = masses[:, :, rows]
        if real is None:
            total, count = xp.sum(part, axis=2), max(rows.stop - rows.start, 1)
            means.append(total / count)
        else:
            kept = real[:, None, rows, None]
            number = xp.sum(kept, axis=2)
            means.append(xp.sum(part * kept, axis=2) / xp.where(number == 0, 1.0, number))
    return xp.stack(means, axis=2)


def _largest(array: Array, k: int) -> tuple[Array, Array]:
    """The k largest along the last axis, sorted, and their indices."""
    if not isinstance(array, np.ndarray):
        values, indices = array.topk(k, dim=-1)
        return values, indices
    part = np.argpartition(-array, k - 1, axis=-1)[..., :k]
    values = np.take_along_axis(array, part, axis=-1)
    order = np.argsort(-values, axis=-1, kind="stable")
    return np.take_along_axis(values, order, axis=-1), np.take_along_axis(part, order, axis=-1)


def _take(array: Array, indices: Array) -> Array:
    """Entries along the last axis."""
    if isinstance(array, np.ndarray):
        return np.take_along_axis(array, indices, axis=-1)
    return array.gather(-1, indices)
