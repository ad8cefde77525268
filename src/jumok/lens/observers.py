"""What else can be read off the tiles of the one pass, each thing an object that sees them all.

An observer is given every tile of weights once, and fills in what it keeps: numbers per row, or a
table per head. Memory grows with the number of tokens. Shapes: B batch, H query heads, T tokens.
Query i stands at key position ``p_i = i + Tk − Tq``.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, device

from jumok.lens.call import Array, AttentionCall
from jumok.lens.tiles import Tile

__all__ = ["ByDistance", "Largest", "Observer", "OnKeys", "OnTokens"]


class Observer(Protocol):
    """Sees every tile of weights once; several threads may show it tiles of different rows."""

    def see(self, weights: Array, tile: Tile) -> None:
        """Take in one tile: weights (heads, rows, columns), not to be changed.

        ``tile.logs`` is free space.
        """
        ...


def _rows(call: AttentionCall, kind: str, value: float = 0) -> Array:
    xp = array_namespace(call.q)
    return xp.full(call.shape[:3], value, dtype=getattr(xp, kind), device=device(call.q))


class OnKeys:
    """The weight of every row on some keys.

    Args:
        call: the recorded call.
        chosen: boolean (B, Tk), a NumPy array.

    Attributes:
        masses: float32 (B, H, Tq).
    """

    def __init__(self, call: AttentionCall, chosen: np.ndarray[Any, Any]) -> None:
        xp = array_namespace(call.q)
        self._xp = xp
        self._chosen = xp.asarray(chosen.astype(np.float32), device=device(call.q))
        self.masses = _rows(call, "float32")

    def see(self, weights: Array, tile: Tile) -> None:
        chosen = self._chosen[tile.batch, tile.columns]
        here = self.masses[tile.batch, tile.heads, tile.rows]
        here += self._xp.matmul(weights, chosen)


class OnTokens:
    """The weight of every row on keys that some earlier token makes interesting.

    Args:
        call: a call whose queries and keys are tokens of one sequence.
        ids: token ids of the keys (B, Tk), a NumPy array.
        shift: 0: the earlier occurrences of the query's own token, ``id_j = id_{p_i}``, j < p_i;
            1: the tokens that followed them, ``id_{j−1} = id_{p_i}``, j ≤ p_i.

    Attributes:
        masses: float32 (B, H, Tq).
        matches: boolean (B, Tq), a NumPy array: whether there is such a key at all.
    """

    def __init__(self, call: AttentionCall, ids: np.ndarray[Any, Any], shift: int) -> None:
        _, _, queries, keys = call.shape
        self._xp, self._place = array_namespace(call.q), device(call.q)
        self._behind = keys - queries
        own = ids[:, max(keys - queries, 0) :]
        shown = np.full(ids.shape, -1, np.int64)  # no token has this id
        shown[:, shift:] = ids[:, : keys - shift]
        self._own = self._xp.asarray(own.astype(np.int64), device=self._place)
        self._shown = self._xp.asarray(shown, device=self._place)
        self._strict = shift == 0
        self.masses = _rows(call, "float32")
        self.matches = np.zeros((ids.shape[0], queries), bool)
        for row, sequence in enumerate(ids):
            known: set[int] = set()
            for at, token in enumerate(sequence.tolist()):
                if at >= keys - queries:
                    self.matches[row, at - (keys - queries)] = token in known
                known.add(token)

    def see(self, weights: Array, tile: Tile) -> None:
        xp, rows, columns = self._xp, tile.rows, tile.columns
        last = rows.stop - 1 + self._behind
        if columns.start >= last + (0 if self._strict else 1):
            return
        own, shown = self._own[tile.batch, rows], self._shown[tile.batch, columns]
        same = own[:, None] == shown
        if columns.stop > rows.start + self._behind:
            place = xp.arange(rows.start, rows.stop, device=self._place)[:, None] + self._behind
            key = xp.arange(columns.start, columns.stop, device=self._place)
            same = same & (key < place if self._strict else key <= place)
        xp.multiply(weights, same, out=tile.logs)
        here = self.masses[tile.batch, tile.heads, rows]
        here += xp.sum(tile.logs, axis=-1)


class Largest:
    """The largest weight of every row, and where it lies.

    Attributes:
        weights: float32 (B, H, Tq), 0 where a row sees nothing.
        keys: int64 (B, H, Tq), the first of equals; −1 where a row sees nothing.
    """

    def __init__(self, call: AttentionCall) -> None:
        self._xp = array_namespace(call.q)
        self.weights = _rows(call, "float32")
        self.keys = _rows(call, "int64", -1)

    def see(self, weights: Array, tile: Tile) -> None:
        xp, at = self._xp, (tile.batch, tile.heads, tile.rows)
        best, key = xp.max(weights, axis=-1), xp.argmax(weights, axis=-1) + tile.columns.start
        better = best > self.weights[at]
        self.keys[at] = xp.where(better, key, self.keys[at])
        self.weights[at] = xp.where(better, best, self.weights[at])


class ByDistance:
    """How much attention goes how far: Σ of w_ij over the real queries with ``|p_i − j| = d``.

    Args:
        call: the recorded call.
        real: which queries count, (B, Tq) of 0 and 1, or `None` for all.

    Attributes:
        masses: float64 (H, distances), a NumPy array.
    """

    def __init__(self, call: AttentionCall, real: Array | None) -> None:
        _, heads, queries, keys = call.shape
        self._real, self._numpy = real, call.is_numpy
        self._xp, self._place = array_namespace(call.q), device(call.q)
        self._behind = keys - queries
        self._lock = threading.Lock()
        self.masses = np.zeros((heads, max(keys, queries, 1)))

    def see(self, weights: Array, tile: Tile) -> None:
        xp = self._xp
        n_heads, n_rows, n_columns = weights.shape
        # Diagonals become columns: with room on the left, and rows read one place further each.
        width = n_rows + n_columns
        wide = xp.zeros((n_heads, n_rows * width + n_rows), dtype=xp.float32, device=self._place)
        rows = xp.reshape(wide[:, : n_rows * width], (n_heads, n_rows, width))
        if self._real is None:
            rows[:, :, n_rows:] = weights
        else:
            rows[:, :, n_rows:] = weights * self._real[tile.batch, tile.rows][:, None]
        turned = self._strided(wide, n_heads, n_rows, width)
        found = xp.sum(turned, axis=1)
        found = np.asarray(found if self._numpy else found.cpu(), np.float64)
        nearest = tile.columns.start - (tile.rows.stop - 1 + self._behind)
        distance = np.abs(np.arange(nearest, nearest + width - 1))
        with self._lock:
            masses = self.masses[tile.heads]
            inside = distance < masses.shape[1]
            np.add.at(masses.T, distance[inside], found[:, inside].T)

    def _strided(self, wide: Array, heads: int, rows: int, width: int) -> Array:
        """A view (heads, rows, width − 1): row r starts r + 1 places into its row."""
        if self._numpy:
            step = wide.itemsize
            return np.lib.stride_tricks.as_strided(
                wide[:, 1:], (heads, rows, width - 1), (wide.strides[0], step * (width + 1), step)
            )
        return wide.as_strided((heads, rows, width - 1), (wide.shape[1], width + 1, 1), 1)
