"""The one pass: all visible tiles of a call's weights, as logarithms, one after the other.

The lse of each row is known, so ``score − lse`` is the logarithm of the weight, with no maximum
and no second look. −lse rides in the product as one more column of q against a column of ones
in k; query heads that share a key head are folded into its rows. Everything is float32, also for
recordings in half precision, whose k is widened for a few heads at a time.

Works alike on PyTorch tensors and NumPy arrays, and imports no PyTorch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from array_api_compat import array_namespace, device

from jumok.lens.call import LOST_IN_ROUNDING, Array, AttentionCall
from jumok.lens.threads import in_threads, useful_threads

Result = TypeVar("Result")

# The log-weight of a hidden key: exp gives 0, and 0 times it is 0, where −inf would give NaN.
HIDDEN = -1e30

# Of 32…512 rows × 128…2,048 keys, on 2 cores with 1 MB of second-level cache each, 64 and 128 rows
# × 9 heads × 512 keys were the fastest within 2 %: larger tiles fall out of the cache, smaller
# ones pay for the calls. The larger of the two wins clearly on a busy machine, where the threads
# of every single operation wait for each other.
_HEADS_AND_ROWS = 1536
_HEADS = 12
_COLUMNS = 512
_EDGE = 128  # columns that are masked at once
# The OpenBLAS of NumPy's wheels starts threads above this many multiplications, which costs more
# than it brings for products of this size; so a tile is a stack of smaller ones.
_NUMPY_COLUMNS = 128
_SMALL_PRODUCT = 1 << 18
_SMALL = 1 << 20  # weights that are computed before threads have started


@dataclass(frozen=True, eq=False)
class Tile:
    """The logarithms of the weights of some query heads, rows and columns.

    Attributes:
        batch: index into the batch.
        heads: query heads.
        rows: queries.
        columns: keys.
        logs: float32 (heads, rows, columns), at least; filled up with `HIDDEN` to the alignment
            asked for. Yours to overwrite until the next tile.
        spare: free space of the same shape.
    """

    batch: int
    heads: slice
    rows: slice
    columns: slice
    logs: Array
    spare: Array


class Tiles:
    """All tiles in which anything is visible, rows outermost: ``for tile in tiles``, or `run`.

    Args:
        call: the recorded call.
        rows: rows of a tile; `None` for what is fastest.
        columns: columns of a tile; likewise.
        align: tiles start and end at multiples of these (rows, columns).
        only: a sequence of the batch and the rows of it that are wanted; `None` for everything.
        all_heads: a tile has all heads.
        together: so many tiles, one below the other, are walked through by the same thread.
        scores: give scores instead of logarithms of weights, −inf where hidden.

    Attributes:
        unit: what a difference of 1 between logarithms is in nats: they are to base 2 where that
            is the faster exponential.
    """

    def __init__(
        self,
        call: AttentionCall,
        *,
        rows: int | None = None,
        columns: int | None = None,
        align: tuple[int, int] = (1, 1),
        only: tuple[int, range] | None = None,
        all_heads: bool = False,
        together: int = 1,
        scores: bool = False,
    ) -> None:
        self.call = call
        self._xp = array_namespace(call.q)
        self._numpy = call.is_numpy
        # PyTorch's exp takes three times as long as its exp2; NumPy has it the other way round.
        # A bias may be too large to be multiplied.
        binary = not self._numpy and call.bias is None
        self.unit = math.log(2) if binary else 1.0
        self._exp = self._xp.exp2 if binary else self._xp.exp
        self._only = only
        self._key_heads = max(1, min(int(call.k.shape[1]), _HEADS // max(call.group, 1)))
        if all_heads:
            self._key_heads = max(1, int(call.k.shape[1]))
        heads = self._key_heads * call.group
        fast = 16
        while 2 * fast * heads <= _HEADS_AND_ROWS:
            fast *= 2
        self.rows = rows or max(fast // align[0] * align[0], align[0])
        self.columns = columns or max(
            (_NUMPY_COLUMNS if self._numpy else _COLUMNS) // align[1] * align[1], align[1]
        )
        self._align = align
        self._together = together
        self._hidden = -math.inf if scores else HIDDEN
        self._shifts: list[Array] = [] if scores else self._subtracted()
        # A softcap bends the bare score, so there the lse is subtracted afterwards.
        self._folded = self._shifts.pop(0) if self._shifts and call.softcap is None else None
        # The products of a stack are dealt out to the cores whole: of three, two would go to one
        # of two cores. Alone, each is shared.
        self._one_by_one = (
            not self._numpy
            and str(device(call.q)) == "cpu"
            and self._key_heads % int(self._xp.get_num_threads()) != 0
        )
        self._lock = threading.Lock()
        self._turned: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()

    def exp(self, logs: Array, out: Array | None = None) -> Array:
        """From logarithms, as tiles have them, to weights."""
        return self._exp(logs, out=out)

    def run(self, work: Callable[[Iterator[Tile]], Result]) -> list[Result]:
        """Share the tiles out among threads.

        Args:
            work: walks through the tiles it is given. No two of them have rows in common; which
                they are depends on nothing but the call and the number of threads.

        Returns:
            What each returned.
        """
        bundles = self._bundles()
        _, heads, queries, keys = self.call.shape
        size = heads * queries * keys
        count = min(useful_threads(self.call.q), len(bundles)) if size > _SMALL else 1
        return in_threads(lambda number: work(self._walk(bundles[number::count])), count)

    def __iter__(self) -> Iterator[Tile]:
        return self._walk(self._bundles())

    def _bundles(self) -> list[tuple[int, int, range]]:
        """Batch, first key head, rows: from the last rows, which see most."""
        batches, rows = range(self.call.shape[0]), range(self.call.shape[2])
        if self._only is not None:
            batches, rows = range(self._only[0], self._only[0] + 1), self._only[1]
        height = self.rows * self._together
        return [
            (b, first, range(start, min(start + height, rows.stop)))
            for b in batches
            for first in range(0, int(self.call.k.shape[1]), self._key_heads)
            for start in range(rows.start, rows.stop, height)[::-1]
        ]

    def _subtracted(self) -> list[Array]:
        """What is subtracted from the scores, (B, H, Tq) each: the lse, mostly."""
        xp, call = self._xp, self.call
        lse = log_normalizers(call) if call.lse is None else xp.astype(call.lse, xp.float32)
        empty = lse == -math.inf
        lost = (lse < LOST_IN_ROUNDING) & ~empty
        lse = xp.where(empty, -HIDDEN, lse / self.unit)
        if not bool(xp.any(lost)):
            return [lse]
        # So large that score − lse has no digits left: the row's maximum and its sum apart.
        top, total = _maximum_and_sum(call)
        zero = xp.zeros_like(lse)
        return [
            xp.where(lost, zero, lse),
            xp.where(lost, top, zero),
            xp.where(lost, xp.log(total) / self.unit, zero),
        ]

    def _keys(self, batch: int, first: int) -> Array:
        """k of some heads, turned, widened and with a row of ones (heads, D + 1, keys)."""
        xp, call = self._xp, self.call
        with self._lock:
            found = self._turned.get((batch, first))
            if found is None:
                k = call.k[batch, first : first + self._key_heads]
                n, keys, width = k.shape
                length = _up(keys, self._align[1])
                found = xp.zeros((n, width + 1, length), dtype=xp.float32, device=device(k))
                found[:, :width, :keys] = xp.matrix_transpose(k)
                found[:, width, :keys] = 1.0
                self._turned[batch, first] = found
            return found

    def _queries(self, batch: int, heads: slice, rows: range) -> Array:
        """q of a tile, scaled and with −lse as its last component (key heads, rows, D + 1)."""
        xp, call = self._xp, self.call
        q = call.q[batch, heads, rows.start : rows.stop]
        n, count, width = q.shape
        scale = call.scale / (self.unit if call.softcap is None else call.softcap)
        result = xp.zeros(
            (n, _up(count, self._align[0]), width + 1), dtype=xp.float32, device=device(q)
        )
        result[:, :count, :width] = q
        result *= scale
        if self._folded is not None:
            result[:, :count, width] = -self._folded[batch, heads, rows.start : rows.stop]
        return xp.reshape(result, (-1, call.group * int(result.shape[1]), width + 1))

    def _walk(self, bundles: list[tuple[int, int, range]]) -> Iterator[Tile]:
        xp, call = self._xp, self.call
        _, n_all, queries, keys = call.shape
        row_align, column_align = self._align
        widest = min(self.columns, _up(keys, column_align))
        height = min(self.rows, _up(queries, row_align))
        size = min(self._key_heads * call.group, n_all) * height * widest
        space = xp.empty(size, dtype=xp.float32, device=device(call.q))
        spare = xp.empty(size, dtype=xp.float32, device=device(call.q))
        for batch, first, bundle in bundles:
            turned = self._keys(batch, first)
            heads = slice(first * call.group, (first + int(turned.shape[0])) * call.group)
            n_heads = heads.stop - heads.start
            for start in range(bundle.start, bundle.stop, self.rows):
                rows = range(start, min(start + self.rows, bundle.stop))
                seen = range(keys)
                if call.mask is not None:
                    seen = call.mask.visible_columns(rows, queries, keys)
                if not seen:
                    continue
                q = self._queries(batch, heads, rows)
                n_rows = _up(len(rows), row_align)
                low = seen.start // column_align * column_align
                for left in range(low, seen.stop, self.columns):
                    right = min(left + self.columns, _up(seen.stop, column_align))
                    columns = range(left, min(right, keys))
                    visible = self._visible(rows, columns)
                    if not visible:
                        continue
                    shape = (n_heads, n_rows, right - left)
                    logs = xp.reshape(space[: math.prod(shape)], shape)
                    self._product(q, turned[:, :, left:right], logs)
                    self._finish(logs, batch, heads, rows, columns, visible)
                    yield Tile(
                        batch,
                        heads,
                        slice(rows.start, rows.stop),
                        slice(left, columns.stop),
                        logs,
                        xp.reshape(spare[: math.prod(shape)], shape),
                    )

    def _visible(self, rows: range, columns: range) -> list[tuple[range, bool | Array]]:
        """What the mask says of the parts of a tile; empty if nothing is visible.

        Asked part by part, so that a wide tile is masked at its edges only.
        """
        call = self.call
        if call.mask is None:
            return [(columns, True)]
        _, _, queries, keys = call.shape
        said = call.mask.tile(rows, columns, queries, keys, call.q)
        if isinstance(said, bool) or len(columns) <= _EDGE:
            return [(columns, said)] if said is not False else []
        parts = [columns[start : start + _EDGE] for start in range(0, len(columns), _EDGE)]
        answers = [(part, call.mask.tile(rows, part, queries, keys, call.q)) for part in parts]
        return answers if any(answer is not False for _, answer in answers) else []

    def _product(self, q: Array, turned: Array, out: Array) -> None:
        n, rows, width = q.shape
        columns = turned.shape[-1]
        if not self._numpy:
            out = self._xp.reshape(out, (n, rows, columns))
            if self._one_by_one:
                for head in range(n):
                    self._xp.matmul(q[head], turned[head], out=out[head])
            else:
                self._xp.matmul(q, turned, out=out)
            return
        small = 1 << max(0, (_SMALL_PRODUCT // (columns * width)).bit_length() - 1)
        small = math.gcd(rows, small)
        stack = (n, rows // small, small)
        np.matmul(q.reshape(*stack, width), turned[:, None], out=out.reshape(*stack, columns))

    def _finish(
        self,
        logs: Array,
        batch: int,
        heads: slice,
        rows: range,
        columns: range,
        visible: list[tuple[range, bool | Array]],
    ) -> None:
        """From products to logarithms, in place."""
        xp, call = self._xp, self.call
        real = logs[:, : len(rows), : len(columns)]
        if call.softcap is not None:
            xp.tanh(real, out=real)
            real *= call.softcap / self.unit
        if call.bias is not None:
            real += xp.astype(_of_heads(_cut(call.bias, rows, columns), batch, heads), xp.float32)
        for shift in self._shifts:
            real -= shift[batch, heads, rows.start : rows.stop][..., None]
        for part, answer in visible:
            here = real[:, :, part.start - columns.start : part.stop - columns.start]
            if answer is False:
                here[...] = self._hidden
            elif answer is not True:
                _hide(here, ~_of_heads(answer, batch, heads), self._hidden)
        if call.bias is not None and self._hidden == HIDDEN:
            _hide(real, real < HIDDEN, HIDDEN)
        if real.shape[1] < logs.shape[1]:
            logs[:, len(rows) :] = self._hidden
        if real.shape[2] < logs.shape[2]:
            logs[:, :, len(columns) :] = self._hidden


def log_normalizers(call: AttentionCall) -> Array:
    """The lse of every row, ``ln Σ_j exp(score_ij)``, with the sink: float32 (B, H, Tq).

    −inf for a row that sees nothing and has no sink.
    """
    xp = array_namespace(call.q)
    top, total = _maximum_and_sum(call)
    empty = total == 0
    lse = xp.log(xp.where(empty, xp.ones_like(total), total)) + top * Tiles(call, scores=True).unit
    return xp.where(empty, -math.inf, lse)


def _maximum_and_sum(call: AttentionCall) -> tuple[Array, Array]:
    """Of each row the largest score (0 if there is none) and ``Σ_j exp(score_ij − largest)``.

    The score is in the unit of the tiles.
    """
    xp, place = array_namespace(call.q), device(call.q)
    shape = call.shape[:3]
    tiles = Tiles(call, scores=True)
    top = xp.full(shape, -math.inf, dtype=xp.float32, device=place)
    total = xp.zeros(shape, dtype=xp.float32, device=place)
    if call.sinks is not None:
        top = total + xp.astype(call.sinks, xp.float32)[None, :, None] / tiles.unit
        total = total + 1

    def work(part: Iterator[Tile]) -> None:
        for tile in part:
            here = (tile.batch, tile.heads, tile.rows)
            old = top[here]
            new = xp.maximum(old, xp.max(tile.logs, axis=-1))
            shift = xp.where(new == -math.inf, xp.zeros_like(new), new)
            tile.logs[...] -= shift[..., None]
            tiles.exp(tile.logs, out=tile.logs)
            total[here] = total[here] * tiles.exp(old - shift) + xp.sum(tile.logs, axis=-1)
            top[here] = new

    tiles.run(work)
    return xp.where(top == -math.inf, xp.zeros_like(top), top), total


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def _hide(array: Array, where: Array, value: float) -> None:
    if isinstance(array, np.ndarray):
        np.copyto(array, value, where=where)
    else:
        array.masked_fill_(where, value)


def _cut(array: Array, rows: range, columns: range) -> Array:
    """The tile of an array of which each of the last two dimensions is full or 1."""
    array = array[..., rows.start : rows.stop, :] if array.shape[-2] > 1 else array
    return array[..., columns.start : columns.stop] if array.shape[-1] > 1 else array


def _of_heads(array: Array, batch: int, heads: slice) -> Array:
    """Of an array that broadcasts to (B, H, rows, columns): one batch, some heads."""
    if array.ndim == 4:
        array = array[batch if array.shape[0] > 1 else 0]
    return array[heads] if array.ndim == 3 and array.shape[0] > 1 else array
