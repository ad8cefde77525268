"""The one pass: all visible tiles of a call's weights, as logarithms, one after the other.

The lse of each row is known, so ``score − lse`` is the logarithm of the weight, with no maximum
and no second look. −lse rides in the product as one more column of q against a column of ones
in k; query heads that share a key head are folded into its rows. Everything is float32, also for
recordings in half precision, whose k is widened for a few heads at a time.

Works alike on PyTorch tensors and NumPy arrays, and imports no PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from jumok.lens.call import LOST_IN_ROUNDING, Array, AttentionCall

# The log-weight of a hidden key: exp gives 0, and 0 times it is 0, where −inf would give NaN.
HIDDEN = -1e30

# Of 32…512 rows × 128…2,048 keys, on 2 cores with 1 MB of second-level cache each, 64 and 128 rows
# × 9 heads × 512 keys were the fastest within 2 %: larger tiles fall out of the cache, smaller
# ones pay for the calls. The larger of the two wins clearly on a busy machine, where the threads
# of every single operation wait for each other.
_HEADS_AND_ROWS = 1536
_HEADS = 12
_COLUMNS = 512
# The OpenBLAS of NumPy's wheels starts threads above this many multiplications, which costs more
# than it brings for products of this size; so a tile is a stack of smaller ones.
_NUMPY_COLUMNS = 128
_SMALL_PRODUCT = 1 << 18


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
    """Iterates over all tiles in which anything is visible, rows outermost.

    Args:
        call: the recorded call.
        rows: rows of a tile; `None` for what is fastest.
        columns: columns of a tile; likewise.
        align: tiles start and end at multiples of these (rows, columns).
        scores: give scores instead of logarithms of weights, −inf where hidden.
    """

    def __init__(
        self,
        call: AttentionCall,
        *,
        rows: int | None = None,
        columns: int | None = None,
        align: tuple[int, int] = (1, 1),
        scores: bool = False,
    ) -> None:
        self.call = call
        self._xp = array_namespace(call.q)
        self._numpy = isinstance(call.q, np.ndarray)
        self._key_heads = max(1, min(int(call.k.shape[1]), _HEADS // max(call.group, 1)))
        heads = self._key_heads * call.group
        fast = 16
        while 2 * fast * heads <= _HEADS_AND_ROWS:
            fast *= 2
        self.rows = rows or max(fast // align[0] * align[0], align[0])
        self.columns = columns or max(
            (_NUMPY_COLUMNS if self._numpy else _COLUMNS) // align[1] * align[1], align[1]
        )
        self._align = align
        self._hidden = -math.inf if scores else HIDDEN
        self._shifts: list[Array] = [] if scores else self._subtracted()
        # A softcap bends the bare score, so there the lse is subtracted afterwards.
        self._folded = self._shifts.pop(0) if self._shifts and call.softcap is None else None

    def _subtracted(self) -> list[Array]:
        """What is subtracted from the scores, (B, H, Tq) each: the lse, mostly."""
        xp, call = self._xp, self.call
        lse = log_normalizers(call) if call.lse is None else xp.astype(call.lse, xp.float32)
        empty = lse == -math.inf
        lost = (lse < LOST_IN_ROUNDING) & ~empty
        lse = xp.where(empty, -HIDDEN, lse)
        if not bool(xp.any(lost)):
            return [lse]
        # So large that score − lse has no digits left: the row's maximum and its sum apart.
        top, total = _maximum_and_sum(call)
        zero = xp.zeros_like(lse)
        return [
            xp.where(lost, zero, lse),
            xp.where(lost, top, zero),
            xp.where(lost, xp.log(total), zero),
        ]

    def __iter__(self) -> Iterator[Tile]:
        for batch in range(self.call.shape[0]):
            for first in range(0, int(self.call.k.shape[1]), self._key_heads):
                yield from self._of_heads(batch, first)

    def _of_heads(self, batch: int, first: int) -> Iterator[Tile]:
        xp, call = self._xp, self.call
        _, _, queries, keys = call.shape
        keys_here = call.k[batch, first : first + self._key_heads]
        n = int(keys_here.shape[0])
        heads = slice(first * call.group, (first + n) * call.group)
        n_heads = heads.stop - heads.start
        place = device(call.q)
        row_align, column_align = self._align
        width = int(call.q.shape[-1]) + 1

        def parts(array: Array, count: int, last: Array) -> Array:
            """One more component, and zeros up to a number of tokens."""
            array = xp.concat([xp.astype(array, xp.float32), last], axis=-1)
            if count > array.shape[1]:
                more = (array.shape[0], count - int(array.shape[1]), width)
                array = xp.concat([array, xp.zeros(more, dtype=xp.float32, device=place)], axis=1)
            return array

        ones = xp.ones((n, keys, 1), dtype=xp.float32, device=place)
        turned = xp.matrix_transpose(parts(keys_here, _up(keys, column_align), ones))
        n_rows = min(self.rows, _up(queries, row_align))
        size = n_heads * n_rows * min(self.columns, _up(keys, column_align))
        space = xp.empty(size, dtype=xp.float32, device=place)
        spare = xp.empty(size, dtype=xp.float32, device=place)
        scale = call.scale if call.softcap is None else call.scale / call.softcap

        for start in range(0, queries, self.rows):
            rows = range(start, min(start + self.rows, queries))
            at = slice(rows.start, rows.stop)
            seen = range(keys)
            if call.mask is not None:
                seen = call.mask.visible_columns(rows, queries, keys)
            if not seen:
                continue
            n_rows = _up(len(rows), row_align)
            if self._folded is None:
                last = xp.zeros((n_heads, len(rows), 1), dtype=xp.float32, device=place)
            else:
                last = -self._folded[batch, heads, at][..., None]
            q = xp.astype(call.q[batch, heads, at], xp.float32) * scale
            q = xp.reshape(parts(q, n_rows, last), (n, call.group * n_rows, width))
            for low in range(seen.start // column_align * column_align, seen.stop, self.columns):
                high = min(low + self.columns, _up(seen.stop, column_align))
                columns = range(low, min(high, keys))
                visible = self._visible(rows, columns)
                if not visible:
                    continue
                shape = (n_heads, n_rows, high - low)
                logs = xp.reshape(space[: math.prod(shape)], shape)
                self._product(q, turned[:, :, low:high], logs)
                self._finish(logs, batch, heads, rows, columns, visible)
                yield Tile(
                    batch,
                    heads,
                    at,
                    slice(low, columns.stop),
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
        parts = [columns[start : start + _COLUMNS] for start in range(0, len(columns), _COLUMNS)]
        said = [(part, call.mask.tile(rows, part, queries, keys, call.q)) for part in parts]
        return said if any(answer is not False for _, answer in said) else []

    def _product(self, q: Array, turned: Array, out: Array) -> None:
        n, rows, width = q.shape
        columns = turned.shape[-1]
        if not self._numpy:
            self._xp.matmul(q, turned, out=self._xp.reshape(out, (n, rows, columns)))
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
            real *= call.softcap
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
    lse = xp.log(xp.where(empty, xp.ones_like(total), total)) + top
    return xp.where(empty, -math.inf, lse)


def _maximum_and_sum(call: AttentionCall) -> tuple[Array, Array]:
    """Of each row the largest score (0 if there is none) and ``Σ_j exp(score_ij − largest)``."""
    xp, place = array_namespace(call.q), device(call.q)
    shape = call.shape[:3]
    top = xp.full(shape, -math.inf, dtype=xp.float32, device=place)
    total = xp.zeros(shape, dtype=xp.float32, device=place)
    if call.sinks is not None:
        top = total + xp.astype(call.sinks, xp.float32)[None, :, None]
        total = total + 1
    for tile in Tiles(call, scores=True):
        here = (tile.batch, tile.heads, tile.rows)
        old = top[here]
        new = xp.maximum(old, xp.max(tile.logs, axis=-1))
        shift = xp.where(new == -math.inf, xp.zeros_like(new), new)
        tile.logs[...] -= shift[..., None]
        xp.exp(tile.logs, out=tile.logs)
        total[here] = total[here] * xp.exp(old - shift) + xp.sum(tile.logs, axis=-1)
        top[here] = new
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
