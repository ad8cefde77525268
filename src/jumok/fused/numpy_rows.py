"""NumPy: blocks of rows, on several threads."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jumok.fused.reading import Array, Call, part_of

# Threads over row blocks pay, but only while the BLAS stays out of it: the OpenBLAS inside
# NumPy's wheels takes its own threads for a product above this many multiplications, and two
# sets of threads on the same cores stall each other (measured: 100 times slower on a busy
# machine). So each product is a stack of small ones, which also keeps a tile in the cache.
_SMALL_PRODUCT = 1 << 18
_COLUMNS = 128
_ROWS = 512
# exp(x) of |x| below this neither overflows float32 nor loses digits, summed over 1e9 keys.
_SAFE_EXPONENT = 60.0


def numpy_attention(call: Call) -> tuple[Array, Array]:
    """Output (B, H, Tq, Dv) and lse (B, H, Tq) of a call on NumPy arrays."""
    if call.dropout:
        raise ValueError(
            f"dropout={call.dropout}: dropout is for training, which needs PyTorch tensors"
        )
    kind = np.float64 if call.q.dtype == np.float64 else np.float32
    batch, heads, queries, _ = call.q.shape
    key_heads, keys, width = call.v.shape[1:]
    group = heads // key_heads if key_heads else 1
    output = np.empty((batch, heads, queries, width), dtype=call.q.dtype)
    lse = np.empty((batch, heads, queries), dtype=kind)
    k = call.k.astype(kind, copy=False)
    v = np.concatenate(  # the column of ones sums each row of weights in the same product
        [call.v.astype(kind, copy=False), np.ones((*call.v.shape[:-1], 1), dtype=kind)], axis=-1
    )
    longest = np.sqrt(np.max(np.einsum("bgkd,bgkd->bgk", k, k), axis=-1, initial=0.0))
    # A small product by a matrix that lies transposed takes twice as long: turned once, here.
    k = np.ascontiguousarray(k.swapaxes(-1, -2))
    small = max(1, _SMALL_PRODUCT // (_COLUMNS * max(k.shape[2], v.shape[3])))
    step = small * max(1, _ROWS // small)

    def rows_of(job: tuple[int, int, int]) -> None:
        b, h, start = job
        g, rows = h // group, range(start, min(start + step, queries))
        part = slice(rows.start, rows.stop)
        total, top = _rows(call, b, h, rows, small, k[b, g], v[b, g], float(longest[b, g]))
        sums = total[:, -1:]
        with np.errstate(divide="ignore"):
            lse[b, h, part] = (np.log(sums) + top)[:, 0]
        output[b, h, part] = total[:, :-1] / np.where(sums == 0, 1, sums)

    jobs = [(b, h, r) for b in range(batch) for h in range(heads) for r in range(0, queries, step)]
    if len(jobs) > 1 and keys > _COLUMNS:
        with ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
            list(pool.map(rows_of, jobs))
    else:
        for job in jobs:
            rows_of(job)
    return output, lse


def _rows(
    call: Call, b: int, h: int, rows: range, small: int, k: Array, v: Array, longest: float
) -> tuple[Array, Array | float]:
    """Σ_j exp(s_ij − top_i) · [v_j, 1] of some rows, and top_i.

    Args:
        small: rows of one product; several lie in one stack.
        k: (D, Tk).
        v: (Tk, Dv + 1), its last column ones.
        longest: the largest ‖k_j‖.
    """
    _, _, queries, width = call.q.shape
    keys, kind = k.shape[1], k.dtype
    stacks = -(-len(rows) // small)
    q = np.zeros((stacks * small, width), dtype=kind)
    np.multiply(call.q[b, h, rows.start : rows.stop], call.scale, out=q[: len(rows)], dtype=kind)
    total = np.zeros((stacks * small, v.shape[1]), dtype=kind)

    # |q·k| ≤ ‖q‖‖k‖: where that is small no maximum has to be subtracted.
    bound = float(np.sqrt(np.max(np.einsum("id,id->i", q, q)))) * longest
    if call.softcap is not None:
        bound = min(bound, call.softcap)
    sink = float(call.sinks[h]) if call.sinks is not None else -math.inf
    safe = call.bias is None and bound <= _SAFE_EXPONENT and abs(sink) <= _SAFE_EXPONENT
    safe = safe or (call.bias is None and bound <= _SAFE_EXPONENT and call.sinks is None)
    top: Array | float = 0.0 if safe else np.full((stacks * small, 1), sink, dtype=kind)
    if call.sinks is not None:
        total[:, -1] = math.exp(sink) if safe else 1.0

    seen = range(keys)
    if call.rule is not None:
        seen = call.rule.visible_columns(rows, queries, keys)
    space = np.empty(stacks * small * _COLUMNS, dtype=kind)
    product = np.empty((stacks, small, v.shape[1]), dtype=kind)
    for start in range(seen.start, seen.stop, _COLUMNS):
        columns = range(start, min(start + _COLUMNS, seen.stop))
        part = slice(columns.start, columns.stop)
        tile: bool | Array = True
        if call.rule is not None:
            tile = call.rule.tile(rows, columns, queries, keys, k)
        if tile is False:
            continue
        stack = space[: stacks * small * len(columns)].reshape(stacks, small, len(columns))
        scores = stack.reshape(stacks * small, len(columns))
        np.matmul(q.reshape(stacks, small, width), k[:, part], out=stack)
        if call.softcap is not None:
            np.divide(scores, call.softcap, out=scores)
            np.tanh(scores, out=scores)
            np.multiply(scores, call.softcap, out=scores)
        real = scores[: len(rows)]
        if call.bias is not None:
            real += _of_head(part_of(call.bias, slice(rows.start, rows.stop), part), b, h)
        if tile is not True:
            np.copyto(real, -np.inf, where=~_of_head(tile, b, h))
        if not safe:
            higher = np.maximum(top, scores.max(axis=-1, keepdims=True))
            shift = np.where(higher == -np.inf, 0, higher)
            scores -= shift
            total *= np.exp(top - shift)
            top = higher
        np.exp(scores, out=scores)
        np.matmul(stack, v[part], out=product)
        total += product.reshape(total.shape)
    if safe:
        return total[: len(rows)], 0.0
    assert not isinstance(top, float)
    return total[: len(rows)], np.where(top == -np.inf, 0, top)[: len(rows)]


def _of_head(array: Array, b: int, h: int) -> Array:
    """Of an array that broadcasts to (B, H, rows, columns): one batch, one head."""
    if array.ndim == 4:
        array = array[b if array.shape[0] > 1 else 0]
    if array.ndim == 3:
        array = array[h if array.shape[0] > 1 else 0]
    return array
