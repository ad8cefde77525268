"""Weights that are read off one by one: a diagonal, in time and memory linear in the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from array_api_compat import array_namespace, device

from jumok.lens.call import LOST_IN_ROUNDING, Array, AttentionCall, read_heads
from jumok.lens.threads import in_threads, useful_threads

_NUMBERS = 1 << 20  # of q, widened to float32, that are looked at in one go
_SQUARE = 256  # rows and columns of the tiles whose diagonal a mask is asked for


def diagonal(call: AttentionCall, offset: int) -> Array:
    """Weight of each query on the key `offset` away from its own position.

    Args:
        call: the recorded call, with its lse.
        offset: query i is paired with key ``i + Tk − Tq + offset``.

    Returns:
        float32 (B, H, Tq); 0 where there is no such key.
    """
    batch, heads, queries, keys = call.shape
    xp, place = array_namespace(call.q), device(call.q)
    result = xp.zeros((batch, heads, queries), dtype=xp.float32, device=place)
    shift = keys - queries + offset
    # Rows whose key is there.
    start, stop = max(0, -shift), min(queries, keys - shift)
    step = max(_SQUARE, _NUMBERS // max(int(call.q.shape[3]) * call.group, 1))
    blocks = [
        (b, key_head, range(low, min(low + step, stop)))
        for b in range(batch)
        for key_head in range(int(call.k.shape[1]))
        for low in range(start, stop, step)
    ]
    count = min(useful_threads(call.q), len(blocks))

    def work(number: int) -> None:
        for b, key_head, rows in blocks[number::count]:
            these = range(key_head * call.group, (key_head + 1) * call.group)
            found = _block(call, b, these, key_head, rows, shift)
            result[b, these.start : these.stop, rows.start : rows.stop] = found

    if blocks:
        in_threads(work, count)
    return result


def _block(
    call: AttentionCall, batch: int, heads: range, key_head: int, rows: range, shift: int
) -> Array:
    """Weights of some rows of the query heads of one key head, (heads, rows)."""
    xp = array_namespace(call.q)
    columns = range(rows.start + shift, rows.stop + shift)
    q = read_heads(call.q, batch, heads, rows)
    q *= read_heads(call.k, batch, [key_head], columns)
    scores = xp.sum(q, axis=-1) * call.scale
    if call.softcap is not None:
        scores = call.softcap * xp.tanh(scores / call.softcap)
    assert call.lse is not None
    lse = xp.astype(call.lse[batch, heads.start : heads.stop, rows.start : rows.stop], xp.float32)
    for part, there in _squares(rows, columns):
        at = slice(part.start - rows.start, part.stop - rows.start)
        if call.bias is not None:
            bias = call.bias
            if bias.shape[-2] > 1:
                bias = bias[..., part.start : part.stop, :]
            if bias.shape[-1] > 1:
                bias = bias[..., there.start : there.stop]
            scores[:, at] += xp.astype(_of_heads(bias, batch, heads, part), xp.float32)
        if call.mask is not None:
            seen: Any = call.mask.tile(part, there, call.shape[2], call.shape[3], call.q)
            if seen is False:
                scores[:, at] = -xp.inf
            elif seen is not True:
                scores[:, at] = xp.where(
                    _of_heads(seen, batch, heads, part), scores[:, at], -xp.inf
                )
    sees = lse > -xp.inf
    weights = xp.exp(scores - xp.where(sees, lse, xp.zeros_like(lse)))
    weights = xp.where(sees, weights, xp.zeros_like(weights))
    lost = sees & (lse < LOST_IN_ROUNDING)
    if bool(xp.any(lost)):  # so large that score − lse has no digits left
        for number, head in enumerate(heads):
            for place, row in enumerate(rows):
                if bool(lost[number, place]):
                    one, key = range(row, row + 1), range(row + shift, row + shift + 1)
                    weights[number, place] = call.weights([batch], [head], one, key)[0, 0, 0, 0]
    return weights


def _squares(rows: range, columns: range) -> Iterator[tuple[range, range]]:
    for start in range(0, len(rows), _SQUARE):
        yield rows[start : start + _SQUARE], columns[start : start + _SQUARE]


def _of_heads(tile: Array, batch: int, heads: range, rows: range) -> Array:
    """The diagonal of a tile (B, H, rows, rows), any of which may be 1: (heads or 1, rows or 1)."""
    tile = tile[(None,) * (4 - tile.ndim)]
    tile = tile[batch if tile.shape[0] > 1 else 0]
    if tile.shape[0] > 1:
        tile = tile[heads.start : heads.stop]
    if tile.shape[-2] == 1:
        return tile[:, 0]
    if tile.shape[-1] == 1:
        return tile[:, :, 0]
    return tile.diagonal(0, 1, 2)
