"""How much each query reads of each group of keys: one pass over the tiles of a call.

Groups need not be contiguous: every key has the number of its group. In each tile the weights
are multiplied by one matrix that says which of its keys are in which group, so that hundreds of
groups cost less than the scores themselves. Memory is O(tokens · groups) a head.

Works alike on PyTorch tensors and NumPy arrays, and imports no PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from jumok.lens.call import Array, AttentionCall
from jumok.lens.tiles import Tile, Tiles

__all__ = ["Masses", "group_masses", "visible_shares"]

Numbers = np.ndarray[Any, np.dtype[Any]]

_ROWS, _COLUMNS = 256, 2048  # of a tile in which visible keys are counted


@dataclass(frozen=True, eq=False)
class Masses:
    """For H heads, Tq queries and C groups of keys, of one text of the batch.

    Attributes:
        raw: Σ_{j in c} w_ij, float32 (H, Tq, C).
        brought: Σ_{j in c} w_ij · norm_j, the same shape; `None` without norms.
    """

    raw: Array
    brought: Array | None


def group_masses(
    call: AttentionCall, groups: Numbers, count: int, norms: Array | None = None, batch: int = 0
) -> Masses:
    """The attention of every query to every group of keys, and the same weighted by norms.

    Args:
        call: the recorded call.
        groups: the group of each key, int (Tk,), from 0 to count − 1.
        count: how many groups there are, C.
        norms: what a head hands over from each key, float32 (H, Tk), such as ‖v_j W_O^(h)‖.
        batch: which text of the batch.
    """
    _, heads, queries, _ = call.shape
    xp, place = array_namespace(call.q), device(call.q)

    def zeros() -> Array:
        return xp.zeros((heads, queries, count), dtype=xp.float32, device=place)

    raw, brought = zeros(), None if norms is None else zeros()
    tiles = Tiles(call)

    def add(part: Iterator[Tile]) -> None:
        features: dict[tuple[int, int, int], tuple[Array, Array]] = {}
        for tile in part:
            if tile.batch != batch:
                continue
            low, high = tile.columns.start, tile.columns.stop
            key = (tile.heads.start, low, high)
            if key not in features:
                here = None if norms is None else norms[tile.heads, low:high]
                features[key] = _features(xp, groups[low:high], here, tile.logs)
            inside, matrix = features[key]
            weights = tiles.exp(tile.logs, out=tile.spare)
            found = xp.matmul(weights, matrix)
            raw[tile.heads, tile.rows, inside] += found[..., : len(inside)]
            if brought is not None:
                brought[tile.heads, tile.rows, inside] += found[..., len(inside) :]

    tiles.run(add)
    return Masses(raw, brought)


def _features(xp: Any, groups: Numbers, norms: Array | None, like: Array) -> tuple[Array, Array]:
    """Which groups are in a tile, and the matrix (1 or heads, keys, groups [· 2]) of its keys."""
    inside = np.unique(groups)
    member = xp.asarray(groups[:, None] == inside, device=device(like))
    matrix = xp.astype(member, xp.float32)[None]
    if norms is not None:
        shape = (norms.shape[0], *matrix.shape[1:])
        weighted = matrix * xp.astype(norms, xp.float32)[..., None]
        matrix = xp.concat([xp.broadcast_to(matrix, shape), weighted], axis=-1)
    return xp.asarray(inside, device=device(like)), matrix


def visible_shares(call: AttentionCall, groups: Numbers, count: int, batch: int = 0) -> Numbers:
    """What every query would read of every group if it read all that it sees evenly.

    Args:
        call: the recorded call; of a mask that differs between heads the mean is taken.
        groups: as in `group_masses`.
        count: likewise.
        batch: likewise.

    Returns:
        float64 (Tq, C): the visible keys of the group over all visible keys; 0 for a query that
        sees nothing.
    """
    _, _, queries, keys = call.shape
    member = (groups[:, None] == np.arange(count)).astype(np.float32)
    shares = np.zeros((queries, count))
    for start in range(0, queries, _ROWS):
        rows = range(start, min(start + _ROWS, queries))
        found, total = np.zeros((len(rows), count)), np.zeros((len(rows), 1))
        seen = range(keys)
        if call.mask is not None:
            seen = call.mask.visible_columns(rows, queries, keys)
        for low in range(seen.start, seen.stop, _COLUMNS):
            columns = range(low, min(low + _COLUMNS, seen.stop))
            part = member[columns.start : columns.stop]
            answer: Any = True
            if call.mask is not None:
                answer = call.mask.tile(rows, columns, queries, keys, call.q)
            if answer is True:
                found += part.sum(axis=0)
                total += len(columns)
            elif answer is not False:
                here = _of_text(answer, batch, (len(rows), len(columns)))
                found += here @ part
                total += here.sum(axis=-1, keepdims=True)
        shares[rows.start : rows.stop] = found / np.where(total > 0, total, 1.0)
    return shares


def _of_text(tile: Array, batch: int, shape: tuple[int, int]) -> Numbers:
    """A boolean tile of one text, the mean over its heads: float32 of this shape."""
    array = tile.cpu() if hasattr(tile, "cpu") else tile
    visible = np.asarray(array)[(None,) * (4 - array.ndim)]
    visible = visible[batch if visible.shape[0] > 1 else 0].astype(np.float32).mean(axis=0)
    return np.broadcast_to(visible, shape)
