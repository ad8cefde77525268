"""Level-of-detail tiles of an attention map, as a street map has them.

A tile has at most 256 × 256 cells; at level L a cell is 2^L × 2^L weights. Level 0 is the weights
themselves. A cell's ``max`` is the largest weight in it, its ``mean`` the mean of all of them,
hidden keys counted as the zeros they are. Nothing is estimated, unless a draft is asked for.

Fine tiles are computed when they are asked for. What would touch too many weights for that comes
from a pyramid: one pass over the head in blocks of rows gives the largest weight and the sum of
every cell of one level, and all coarser levels follow from it. Pyramids are kept in bounded memory,
and, where a pass took long, in a folder beside the recording.

NumPy on all cores for a recording from a file; for a live one, the library of its arrays.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from jumok.lens.attention_map import AttentionMap
from jumok.lens.call import Array, AttentionCall
from jumok.lens.part import part_of_head, rows_keep_digits
from jumok.lens.tiles import HIDDEN, Tile, Tiles
from jumok.view.stopping import Kept, Stop

__all__ = [
    "TILE",
    "Head",
    "Pyramid",
    "SmallMaps",
    "TileFolder",
    "TileMaker",
    "levels",
    "small_maps",
]

Numbers = np.ndarray[Any, np.dtype[Any]]
How = Literal["max", "mean"]

TILE = 256
"""Cells along each side of a tile."""

_DIRECT = 4  # up to this level a tile (4,096 × 4,096 weights) is computed when it is asked for
_MOST_CELLS = 2048  # along each side of the finest level of a pyramid
_ROWS = 512  # of one head that are worked on at once
_ROWS_OF_MANY = 128  # of up to a dozen heads
_ROW_BLOCK = 1024  # rows whose largest weights are found together
_DRAFT = 1 << 26  # weights that a draft may read
_SMALL = 1 << 31  # weights of one map that are read for small maps; beyond that, some rows


class Head(NamedTuple):
    """One head of one sequence of one map."""

    map: int
    batch: int
    head: int


def levels(queries: int, keys: int) -> int:
    """How many levels there are; the last is a single tile."""
    return max(0, -(-max(queries, keys, 1) // TILE) - 1).bit_length() + 1


@dataclasses.dataclass(frozen=True, eq=False)
class Pyramid:
    """Cells of one level, from which those of all coarser levels follow.

    Attributes:
        level: of the cells.
        shape: (queries, keys) of the map.
        cells: float32 (2, rows, columns), the largest weight and the sum of each cell.
    """

    level: int
    shape: tuple[int, int]
    cells: Numbers

    @property
    def nbytes(self) -> int:
        """Bytes of the cells."""
        return int(self.cells.nbytes)

    def tile(self, level: int, x: int, y: int, how: How) -> Numbers:
        """A tile of this level or a coarser one, float32 (rows, columns)."""
        step = 1 << (level - self.level)
        part = self.cells[
            0 if how == "max" else 1,
            y * TILE * step : (y + 1) * TILE * step,
            x * TILE * step : (x + 1) * TILE * step,
        ]
        reduce = np.maximum if how == "max" else np.add
        for axis in (1, 0):
            part = reduce.reduceat(part, range(0, part.shape[axis], step), axis=axis)
        if how == "max":
            return part
        rows = _lengths(self.shape[0], level, y, part.shape[0])
        columns = _lengths(self.shape[1], level, x, part.shape[1])
        mean: Numbers = part / (rows[:, None] * columns)
        return mean


class TileFolder:
    """Pyramids on disk, in a folder beside a recording.

    Whatever cannot be written or read is computed again; a file is whole or not there.

    Args:
        path: the folder; it is made when something is kept.
        fingerprint: of the recording: a file of another is never read.
        room: bytes of all files; the oldest go first.
    """

    def __init__(self, path: Path, fingerprint: str, room: int = 2 << 30) -> None:
        self.path = path
        self._fingerprint = fingerprint
        self._room = room

    def read(self, key: str, shape: tuple[int, ...]) -> Numbers | None:
        """The cells of a key, mapped into memory, or `None`."""
        file = self._file(key)
        try:
            found: Numbers = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError):
            return None
        return found if found.shape == shape and found.dtype == np.float32 else None

    def write(self, key: str, cells: Numbers) -> None:
        """Keep the cells of a key."""
        name = None
        try:
            self.path.mkdir(exist_ok=True)
            self._make_room(cells.nbytes)
            handle, name = tempfile.mkstemp(prefix=".", dir=self.path)
            with os.fdopen(handle, "wb") as file:
                np.save(file, cells, allow_pickle=False)
            os.replace(name, self._file(key))
        except OSError:
            if name is not None:
                Path(name).unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.path / f"{self._fingerprint}-{key}.npy"

    def _make_room(self, size: int) -> None:
        files = sorted(self.path.glob("*.npy"), key=lambda file: file.stat().st_mtime)
        held = size + sum(file.stat().st_size for file in files)
        for file in files:
            if held <= self._room and file.name.startswith(self._fingerprint):
                continue
            held -= file.stat().st_size
            file.unlink(missing_ok=True)


class TileMaker:
    """Tiles of the maps of one recording.

    Args:
        maps: the recording.
        kept: where results are kept; `key` sets this recording's apart.
        key: names the recording.
        folder: where pyramids that took long are kept on disk; `None` for nowhere.
    """

    def __init__(
        self,
        maps: Sequence[AttentionMap],
        kept: Kept,
        key: Any = None,
        folder: TileFolder | None = None,
    ) -> None:
        self._maps = maps
        self._kept = kept
        self._key = key
        self._folder = folder

    def is_direct(self, head: Head, level: int) -> bool:
        """Whether a tile of this level is computed at once, without a pyramid."""
        return level < self._base(head)

    def tile(
        self,
        head: Head,
        level: int,
        x: int,
        y: int,
        how: How = "max",
        *,
        scaled: bool = False,
        draft: bool = False,
        stop: Stop | None = None,
    ) -> tuple[Numbers, bool]:
        """One tile.

        Args:
            head: which map.
            level: a cell is 2^level × 2^level weights.
            x: which tile along the keys.
            y: which tile along the queries.
            how: largest or mean weight of each cell.
            scaled: divide each row by its largest weight first.
            draft: if the tile is not known and would take long, let some rows of each cell stand
                for all of them.
            stop: says when nobody waits any more.

        Returns:
            float32 (rows, columns), smaller at the lower and right edge; whether it is exact.

        Raises:
            IndexError: there is no such tile.
            Stopped: nobody waits.
        """
        stop = stop or Stop()
        _, _, queries, keys = self._maps[head.map].shape
        rows = _covered(y, level, queries)
        columns = _covered(x, level, keys)
        if not (0 <= level < levels(queries, keys) and rows and columns):
            raise IndexError(
                f"there is no tile {x}, {y} at level {level}: the map has {queries:,} queries and "
                f"{keys:,} keys, levels 0 to {levels(queries, keys) - 1} and "
                f"{_tiles_along(keys, level)} × {_tiles_along(queries, level)} tiles there"
            )
        if level == 0:
            weights = self._weights(head, rows, columns)
            if scaled:
                weights = weights / self._divisors(head, rows, stop)[:, None]
            return weights, True
        if self.is_direct(head, level):
            key = (self._key, "cells", head, level, x, y, scaled)
            pair = self._kept.get(
                key, lambda stop: self._cells(head, level, rows, columns, scaled, stop), stop
            )
            return self._of(pair, how, len(rows), len(columns), level), True
        call = self._maps[head.map].call
        if (
            draft
            and self._kept.known(self._pyramid_key(head, scaled)) is None
            and rows_keep_digits(call, head.batch, head.head, rows)
        ):
            return self._draft(head, level, rows, columns, how, scaled, stop), False
        return self.pyramid(head, scaled=scaled, stop=stop).tile(level, x, y, how), True

    def pyramid(self, head: Head, *, scaled: bool = False, stop: Stop | None = None) -> Pyramid:
        """The coarse levels of one head, computed once."""
        return self._kept.get(
            self._pyramid_key(head, scaled),
            lambda stop: self._make_pyramid(head, scaled, stop),
            stop or Stop(),
        )

    def _pyramid_key(self, head: Head, scaled: bool) -> Any:
        return self._key, "pyramid", head, scaled

    def _base(self, head: Head) -> int:
        """The finest level of the pyramid."""
        longest = max(self._maps[head.map].shape[2:])
        return max(_DIRECT + 1, max(0, -(-longest // _MOST_CELLS) - 1).bit_length())

    def _make_pyramid(self, head: Head, scaled: bool, stop: Stop) -> Pyramid:
        _, _, queries, keys = self._maps[head.map].shape
        level = self._base(head)
        shape = (2, -(-queries // (1 << level)), -(-keys // (1 << level)))
        name = f"{head.map}-{head.batch}-{head.head}{'-scaled' * scaled}-{level}"
        if self._folder is not None:
            found = self._folder.read(name, shape)
            if found is not None:
                return Pyramid(level, (queries, keys), found)
        start = time.monotonic()
        cells = self._cells(head, level, range(queries), range(keys), scaled, stop)
        if self._folder is not None and time.monotonic() - start > 1:
            self._folder.write(name, cells)
        return Pyramid(level, (queries, keys), cells)

    def _weights(self, head: Head, rows: range, columns: range) -> Numbers:
        found = self._maps[head.map]
        return _numpy(
            found[head.batch, head.head, rows.start : rows.stop, columns.start : columns.stop]
        )

    def _cells(
        self, head: Head, level: int, rows: range, columns: range, scaled: bool, stop: Stop
    ) -> Numbers:
        """Largest weight and sum of every cell of some rows and columns (2, rows, columns)."""
        call = self._maps[head.map].call
        summed_anew = len(columns) == call.shape[3] and not scaled
        if not (summed_anew or rows_keep_digits(call, head.batch, head.head, rows)):
            return self._cells_of_weights(head, level, rows, columns, scaled, stop)
        part = part_of_head(call, head.batch, head.head, rows, columns)
        if scaled:
            part = _divided(part, self._divisors(head, rows, stop))
        cell = 1 << level
        largest, sums = _pool(part, 0, cell, cell, stop)
        return np.stack([_numpy(largest)[0], _numpy(sums)[0]])

    def _cells_of_weights(
        self, head: Head, level: int, rows: range, columns: range, scaled: bool, stop: Stop
    ) -> Numbers:
        """The same from whole weights, where the logarithms have lost their digits."""
        cell = 1 << level
        height = max(cell, _ROWS // cell * cell)
        width = max(cell, 4 * _ROWS // cell * cell)
        made = np.empty((2, -(-len(rows) // cell), -(-len(columns) // cell)), np.float32)
        for top in range(0, len(rows), height):
            some = rows[top : top + height]
            divisors = self._divisors(head, some, stop)[:, None] if scaled else 1.0
            for left in range(0, len(columns), width):
                stop.check()
                there = columns[left : left + width]
                weights = self._weights(head, some, there) / divisors
                at = (slice(top // cell, -(-(top + len(some)) // cell)),
                      slice(left // cell, -(-(left + len(there)) // cell)))  # fmt: skip
                for number, reduce in enumerate((np.maximum, np.add)):
                    found = reduce.reduceat(weights, range(0, len(there), cell), axis=1)
                    made[number][at] = reduce.reduceat(found, range(0, len(some), cell), axis=0)
        return made

    @staticmethod
    def _of(pair: Numbers, how: How, rows: int, columns: int, level: int) -> Numbers:
        if how == "max":
            largest: Numbers = pair[0]
            return largest
        counts = _lengths(rows, level, 0, pair.shape[1])[:, None] * _lengths(
            columns, level, 0, pair.shape[2]
        )
        mean: Numbers = pair[1] / counts
        return mean

    def _divisors(self, head: Head, rows: range, stop: Stop) -> Numbers:
        """The largest weight of each row, float32 (rows,); 1 for a row that sees nothing."""
        first = rows.start // _ROW_BLOCK
        blocks = [
            self._kept.get(
                (self._key, "largest", head, block),
                lambda stop, block=block: self._largest(head, block, stop),  # type: ignore[misc]
                stop,
            )
            for block in range(first, -(-rows.stop // _ROW_BLOCK))
        ]
        begin = rows.start - first * _ROW_BLOCK
        found: Numbers = np.concatenate(blocks)[begin : begin + len(rows)]
        return found

    def _largest(self, head: Head, block: int, stop: Stop) -> Numbers:
        call = self._maps[head.map].call
        _, _, queries, keys = call.shape
        rows = range(block * _ROW_BLOCK, min((block + 1) * _ROW_BLOCK, queries))
        part = part_of_head(call, head.batch, head.head, rows, range(keys))
        return _largest_of_rows(part, stop)

    def _draft(
        self, head: Head, level: int, rows: range, columns: range, how: How, scaled: bool,
        stop: Stop,
    ) -> Numbers:  # fmt: skip
        """A tile from some rows of each cell."""
        cell = 1 << level
        each = max(1, min(cell, _DRAFT // (-(-len(rows) // cell) * len(columns))))
        each = 1 << (each.bit_length() - 1)
        chosen = _spread(rows, cell, each)
        call = self._maps[head.map].call
        part = part_of_head(call, head.batch, head.head, chosen, columns)
        if scaled:
            whole = part_of_head(call, head.batch, head.head, chosen, range(call.shape[3]))
            part = _divided(part, _largest_of_rows(whole, stop))
        largest, sums = _pool(part, 0, each, cell, stop)
        if how == "max":
            return np.asarray(_numpy(largest)[0])
        read = np.array([min(each, len(chosen) - start) for start in range(0, len(chosen), each)])
        counts = read[:, None] * _lengths(len(columns), level, 0, sums.shape[2])
        mean: Numbers = (_numpy(sums)[0] / counts).astype(np.float32)
        return mean


@dataclasses.dataclass(frozen=True, eq=False)
class SmallMaps:
    """All heads of one map, small.

    Attributes:
        values: float32 (heads, rows, columns) of cells.
        cell: tokens along each side of a cell.
        rows_read: how many queries were read.
        exact: whether that was all of them.
    """

    values: Numbers
    cell: int
    rows_read: int
    exact: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return int(self.values.nbytes)


def small_maps(
    call: AttentionCall, batch: int, size: int, how: How = "max", stop: Stop | None = None
) -> SmallMaps:
    """Every head of a call shrunk to at most size × size square cells, in one pass.

    Of a very long text some rows of each cell stand for all of them.
    """
    stop = stop or Stop()
    _, heads, queries, keys = call.shape
    cell = 1 << max(0, -(-max(queries, keys, 1) // size) - 1).bit_length()
    columns = -(-keys // cell)
    if heads * queries * keys <= _SMALL:
        largest, sums = _pool(call, batch, cell, cell, stop)
        counts = np.minimum(cell, queries - cell * np.arange(sums.shape[1]))
        read = queries
        pairs = [(_numpy(largest), _numpy(sums))]
    else:
        rows = -(-queries // cell)
        each = max(1, min(cell, _DRAFT // 2 // (rows * keys)))
        chosen = _spread(range(queries), cell, each := 1 << (each.bit_length() - 1))
        counts = np.array([min(each, len(chosen) - at) for at in range(0, len(chosen), each)])
        read = len(chosen)
        pairs = []
        for head in range(heads):
            part = part_of_head(call, batch, head, chosen, range(keys))
            largest, sums = _pool(part, 0, each, cell, stop)
            pairs.append((_numpy(largest), _numpy(sums)))
    if how == "max":
        values = np.concatenate([largest for largest, _ in pairs])
    else:
        wide = np.minimum(cell, keys - cell * np.arange(columns))
        values = np.concatenate([sums for _, sums in pairs]) / (counts[:, None] * wide)
    return SmallMaps(values.astype(np.float32, copy=False), cell, read, read == queries)


# -- the pass ---------------------------------------------------------------------------------


def _pool(call: AttentionCall, batch: int, tall: int, wide: int, stop: Stop) -> tuple[Array, Array]:
    """Largest weight and sum of the weights of every cell, each (heads, rows, columns).

    Args:
        call: a recorded call, or a part of one.
        batch: which sequence.
        tall: rows of a cell, a power of two.
        wide: columns of a cell, a power of two.
        stop: asked before each tile.
    """
    _, heads, queries, keys = call.shape
    xp, place = array_namespace(call.q), device(call.q)
    shape = (heads, -(-queries // tall), -(-keys // wide))
    largest = xp.full(shape, HIDDEN, dtype=xp.float32, device=place)
    sums = xp.zeros(shape, dtype=xp.float32, device=place)
    # A tile holds whole cells, or lies inside one row or column of cells; all are powers of two.
    height = _ROWS if heads == 1 else _ROWS_OF_MANY if heads <= 12 or call.group <= 12 else 32
    width = 128 if call.is_numpy else 512
    align = min(tall, height), min(wide, width)
    tiles = Tiles(
        call,
        rows=height,
        columns=width,
        align=align,
        only=(batch, range(queries)),
        together=max(1, tall // height),  # nobody else adds to the same cells
    )

    def work(part: Iterator[Tile]) -> None:
        for tile in part:
            stop.check()
            n_heads, n_rows, n_columns = tile.logs.shape
            high, broad = n_rows // align[0], n_columns // align[1]
            first, left = tile.rows.start // tall, tile.columns.start // wide
            at = (tile.heads, slice(first, first + high), slice(left, left + broad))
            split, cells = (n_heads, high, align[0], n_columns), (n_heads, high, broad, align[1])
            strips = xp.max(xp.reshape(tile.logs, split), axis=2)
            found = xp.max(xp.reshape(strips, cells), axis=-1)
            largest[at] = xp.maximum(largest[at], found)
            weights = tiles.exp(tile.logs, out=tile.spare)
            strips = xp.sum(xp.reshape(weights, split), axis=2)
            sums[at] += xp.sum(xp.reshape(strips, cells), axis=-1)

    tiles.run(work)
    return tiles.exp(largest), sums


def _largest_of_rows(call: AttentionCall, stop: Stop) -> Numbers:
    """The largest weight of each row of a part, float32 (rows,); 1 for one that sees nothing."""
    tiles = Tiles(call)
    xp = array_namespace(call.q)
    logs = np.full(call.shape[2], HIDDEN, np.float32)

    def work(part: Iterator[Tile]) -> None:
        for tile in part:
            stop.check()
            here = logs[tile.rows]
            found = _numpy(xp.max(tile.logs[0], axis=-1))
            np.maximum(here, found[: len(here)], out=here)

    tiles.run(work)
    result: Numbers = np.exp(logs * np.float32(tiles.unit))
    result[result == 0] = 1
    return result


def _divided(part: AttentionCall, divisors: Numbers) -> AttentionCall:
    """A part (1, 1, rows, columns) whose rows are divided by these."""
    xp = array_namespace(part.q)
    logs = xp.asarray(np.log(divisors), dtype=xp.float32, device=device(part.q))
    return dataclasses.replace(part, lse=part.lse + logs)


def _spread(rows: range, cell: int, each: int) -> list[int]:
    """So many rows of each cell, evenly spread; of a short last cell at most all."""
    chosen: list[int] = []
    for start in range(rows.start, rows.stop, cell):
        length = min(cell, rows.stop - start)
        count = min(each, length)
        chosen += [start + (2 * place + 1) * length // (2 * count) for place in range(count)]
    return chosen


def _covered(tile: int, level: int, total: int) -> range:
    """The rows or columns that a tile covers."""
    if tile < 0 or level < 0 or level > 64:
        return range(0)
    return range(min(total, tile * TILE << level), min(total, (tile + 1) * TILE << level))


def _tiles_along(total: int, level: int) -> int:
    return -(-total // (TILE << min(max(level, 0), 64)))


def _lengths(total: int, level: int, tile: int, count: int) -> Numbers:
    """How many rows or columns each cell of a tile has, float32 (count,)."""
    starts = (np.arange(count) + tile * TILE) << level
    lengths: Numbers = np.minimum(1 << level, total - starts).astype(np.float32)
    return lengths


def _numpy(array: Array) -> Numbers:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)
