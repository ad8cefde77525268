"""Attention in linear memory, at the speed of the best kernel the array library has.

    output, lse = attention(q, k, v, mask, causal=True)

computes, for every query row i of every head,

    s_ij   = softcap(scale · q_i·k_j) + bias_ij,     −inf where the mask hides key j
    lse_i  = log Σ_j exp(s_ij)                       (natural log; a sink adds one more term)
    out_i  = Σ_j exp(s_ij − lse_i) v_j

and never holds a (queries, keys) array. PyTorch tensors go to PyTorch's own flash kernels,
which give the lse at no cost; what no kernel can do (softcap, dropout, a bias that learns)
runs in blocks of rows. NumPy arrays run in blocks of rows, on several threads.

Legend: B batch, H query heads, G key heads, T tokens (Tq queries, Tk keys), D head_dim.
"""

from __future__ import annotations

import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from jumok.masks import Both, Causal, Dense, Mask, Padding, Window, as_tile, join, read_mask

Array = Any


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | Array | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
    dropout: float = 0.0,
) -> tuple[Array, Array]:
    """Scaled dot-product attention and the log-sum-exp of its rows, in linear memory.

    Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762); row blocks after Dao et al. 2022
    (https://arxiv.org/abs/2205.14135).

    Args:
        q: queries (…, H, Tq, D); (Tq, D) for one head.
        k: keys (…, G, Tk, D). Query head h reads key head ``h // (H // G)``.
        v: values (…, G, Tk, Dv).
        mask: a rule (`jumok.masks`), booleans or 0/1 integers (`True` = may attend), or floats
            to be added; broadcastable to (…, H, Tq, Tk).
        causal: each query sees its own position and earlier ones; the last query stands on the
            last key. Joined with ``mask``.
        scale: factor of q·k; 1/√D if `None`.
        softcap: scores become ``softcap · tanh(score / softcap)`` before bias and mask.
        bias: added to the scores, broadcastable to (…, H, Tq, Tk).
        sinks: (H,) one logit a head that takes its share of the softmax and has no value.
        dropout: probability with which a weight is dropped (PyTorch only, while training).

    Returns:
        ``(output, lse)``: output (…, H, Tq, Dv) in the dtype of ``q``; lse (…, H, Tq) in float32
        (float64 for float64). A row that sees nothing has output 0 and lse −inf. The lse
        carries no gradient.

    Raises:
        ValueError: shapes that do not fit, a negative softcap, an ambiguous mask.
        TypeError: arrays of the wrong kind.
    """
    if type(q) is not np.ndarray:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(q, torch.Tensor):
            return torch_attention(
                q,
                k,
                v,
                mask,
                causal=causal,
                scale=scale,
                softcap=softcap,
                bias=bias,
                sinks=sinks,
                dropout=dropout,
            )
    return _numpy_attention(q, k, v, mask, causal, scale, softcap, bias, sinks, dropout)


@dataclass(frozen=True)
class Call:
    """A call in four dimensions with everything about it decided."""

    q: Array  # (B, H, Tq, D)
    k: Array  # (B, G, Tk, D)
    v: Array  # (B, G, Tk, Dv)
    rule: Mask | None
    bias: Array | None  # four dimensions, each full or 1
    scale: float
    softcap: float | None
    sinks: Array | None  # (H,)
    dropout: float


def read_call(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
    dropout: float = 0.0,
) -> Call:
    """Check what the user gave to `attention`, and bring it into four dimensions.

    The lens reads a call that it has heard with this too.
    """
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not (q.ndim == k.ndim == v.ndim >= 2):
        raise ValueError(f"q, k and v must have the same number of dimensions, 2 or more: {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have the same last dimension (head_dim): {shapes}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v must agree in heads and tokens (all but the last): {shapes}")
    lead = tuple(q.shape[:-3])
    if lead != tuple(k.shape[:-3]):
        raise ValueError(f"q and k must have the same batch dimensions: {shapes}")
    heads, key_heads = (q.shape[-3], k.shape[-3]) if q.ndim > 2 else (1, 1)
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ValueError(
            f"{heads} query heads cannot share {key_heads} key heads: the number of query heads "
            f"must be a multiple of the number of key heads ({shapes})"
        )
    if not (q.dtype == k.dtype == v.dtype):
        raise TypeError(
            f"q, k and v must have one dtype; got q {q.dtype}, k {k.dtype}, v {v.dtype}: cast them"
        )
    if softcap is not None and not 0 <= softcap < math.inf:
        raise ValueError(f"softcap={softcap}: a softcap is positive; 0 or None switches it off")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout}: a probability from 0 to below 1")
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise ValueError(
            f"sinks of shape {tuple(sinks.shape)}: one logit for each of the {heads} query heads"
        )
    full = (*lead, heads, q.shape[-2], k.shape[-2]) if q.ndim > 2 else (q.shape[-2], k.shape[-2])
    rule, added = read_mask(_alike(mask, q))
    bias = _alike(bias, q)
    rules = [_in_four(rule, full)] if rule is not None else []
    if causal:
        rules.append(Causal())
    if bias is not None:
        lowest = np.finfo(bias.dtype).min if isinstance(bias, np.ndarray) else _lowest(bias)
        seen = bias > float(lowest) / 2
        if not bool(seen.all()):
            rules.append(_in_four(Dense(seen), full))
            bias = _zero_where_hidden(bias, seen)
        added = bias if added is None else _sum_of(added, bias)
    if added is not None:
        added = _array_in_four(added, full)
    joined = join(*rules) if rules else None
    return Call(
        _array_in_four(q, None),
        _array_in_four(k, None),
        _array_in_four(v, None),
        joined,
        added,
        (1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0) if scale is None else float(scale),
        float(softcap) if softcap else None,
        sinks,
        dropout,
    )


def _sum_of(mask: Array, bias: Array) -> Array:
    """Both in float32 at least: half precision would round what neither of them is."""
    if isinstance(bias, np.ndarray):
        return mask + bias.astype(np.result_type(mask.dtype, bias.dtype, np.float32))
    return mask.to(_kind(mask)) + bias


def _zero_where_hidden(bias: Array, seen: Array) -> Array:
    if isinstance(bias, np.ndarray):
        return np.where(seen, bias, np.zeros_like(bias))
    return bias.masked_fill(~seen, 0.0)


def _array_in_four(array: Array, full: tuple[int, ...] | None) -> Array:
    """(…, H, T, D) as (B, H, T, D); likewise an array that broadcasts to ``full``."""
    if full is not None:
        given = tuple(array.shape)
        if len(full) == 3 and array.ndim == 4 and array.shape[1] == 1:
            array = array[:, 0]  # made for (batch, 1, queries, keys); here batch takes its place
        while array.ndim > len(full) and array.shape[0] == 1:
            array = array[0]
        pairs = zip(reversed(array.shape), reversed(full), strict=False)
        if array.ndim > len(full) or any(have not in (1, want) for have, want in pairs):
            raise ValueError(
                f"a mask or bias of shape {given} does not broadcast to "
                f"(…, heads, queries, keys) = {full}"
            )
    if array.ndim < 4:
        return array.reshape((1,) * (4 - array.ndim) + tuple(array.shape))
    if array.ndim == 4:
        return array
    if full is not None:
        whole = (*full[:-3], *array.shape[-3:])
        array = (
            np.broadcast_to(array, whole) if isinstance(array, np.ndarray) else array.expand(whole)
        )
    return array.reshape((math.prod(array.shape[:-3]), *array.shape[-3:]))


def _in_four(rule: Mask, full: tuple[int, ...]) -> Mask:
    """A rule whose arrays have been checked and have four dimensions."""
    if isinstance(rule, Both):
        return join(*[_in_four(part, full) for part in rule.rules])
    if isinstance(rule, Dense):
        return Dense(_array_in_four(rule.visible, full))
    if isinstance(rule, Padding):
        if len(full) != 4:
            return Dense(_array_in_four(rule.visible[:, None, None, :], full))
        if rule.visible.shape[0] not in (1, full[0]) or rule.visible.shape[1] != full[-1]:
            raise ValueError(
                f"Padding of shape {tuple(rule.visible.shape)} does not fit (batch, keys) = "
                f"{(full[0], full[-1])}"
            )
    return rule


def _alike(array: Any, q: Array) -> Any:
    """A mask or bias of any library, or nested lists, in the library of ``q``."""
    if array is None or isinstance(array, (Mask, type(q))):
        return array
    if isinstance(q, np.ndarray):
        return np.asarray(array)
    import torch

    return array if isinstance(array, torch.Tensor) else torch.as_tensor(array, device=q.device)


def _part(array: Array, rows: slice, columns: slice) -> Array:
    """The tile of an array of which each of the last two dimensions is full or 1."""
    array = array[..., rows, :] if array.shape[-2] > 1 else array
    return array[..., columns] if array.shape[-1] > 1 else array


# NumPy -------------------------------------------------------------------------------------

# Threads over row blocks pay, but only while the BLAS stays out of it: the OpenBLAS inside
# NumPy's wheels takes its own threads for a product above this many multiplications, and two
# sets of threads on the same cores stall each other (measured: 100 times slower on a busy
# machine). So each product is a stack of small ones, which also keeps a tile in the cache.
_SMALL_PRODUCT = 1 << 18
_COLUMNS = 128
_ROWS = 512
# exp(x) of |x| below this neither overflows float32 nor loses digits, summed over 1e9 keys.
_SAFE_EXPONENT = 60.0


def _numpy_attention(q: Array, k: Array, v: Array, *rest: Any) -> tuple[Array, Array]:
    call = read_call(q, k, v, *rest)
    if call.dropout:
        raise ValueError(
            f"dropout={call.dropout}: dropout is for training, which needs PyTorch tensors"
        )
    kind = np.float64 if q.dtype == np.float64 else np.float32
    batch, heads, queries, _ = call.q.shape
    key_heads, keys, width = call.v.shape[1:]
    group = heads // key_heads if key_heads else 1
    output = np.empty((batch, heads, queries, width), dtype=q.dtype)
    lse = np.empty((batch, heads, queries), dtype=kind)
    k = call.k.astype(kind, copy=False)
    v = np.concatenate(  # the column of ones sums each row of weights in the same product
        [call.v.astype(kind, copy=False), np.ones((*call.v.shape[:-1], 1), dtype=kind)], axis=-1
    )
    longest = np.sqrt(np.max(np.einsum("bgkd,bgkd->bgk", k, k), axis=-1, initial=0.0))

    def rows_of(job: tuple[int, int, int]) -> None:
        b, h, start = job
        g, rows = h // group, range(start, min(start + _ROWS, queries))
        part = slice(rows.start, rows.stop)
        total, top = _numpy_rows(call, b, h, rows, k[b, g], v[b, g], float(longest[b, g]))
        sums = total[:, -1:]
        with np.errstate(divide="ignore"):
            lse[b, h, part] = (np.log(sums) + top)[:, 0]
        output[b, h, part] = total[:, :-1] / np.where(sums == 0, 1, sums)

    jobs = [(b, h, r) for b in range(batch) for h in range(heads) for r in range(0, queries, _ROWS)]
    if len(jobs) > 1 and keys > _COLUMNS:
        with ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
            list(pool.map(rows_of, jobs))
    else:
        for job in jobs:
            rows_of(job)
    return output.reshape((*q.shape[:-1], width)), lse.reshape(q.shape[:-1])


def _numpy_rows(
    call: Call, b: int, h: int, rows: range, k: Array, v: Array, longest: float
) -> tuple[Array, Array | float]:
    """Σ_j exp(s_ij − top_i) · [v_j, 1] of some rows, and top_i."""
    _, _, queries, width = call.q.shape
    keys, kind = k.shape[0], k.dtype
    small = max(1, _SMALL_PRODUCT // (_COLUMNS * max(width, v.shape[1])))
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
        np.matmul(q.reshape(stacks, small, width), k[part].T, out=stack)
        if call.softcap is not None:
            np.divide(scores, call.softcap, out=scores)
            np.tanh(scores, out=scores)
            np.multiply(scores, call.softcap, out=scores)
        real = scores[: len(rows)]
        if call.bias is not None:
            real += _of_head(_part(call.bias, slice(rows.start, rows.stop), part), b, h)
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


# PyTorch -----------------------------------------------------------------------------------

_TILE = 1 << 22  # numbers in one tile of scores or of a mask: 16 MB in float32


def torch_attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | Array | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
    dropout: float = 0.0,
) -> tuple[Array, Array]:
    """`attention` on PyTorch tensors: the ``func`` that a ``TorchFunctionMode`` hears.

    Arguments and results as in `attention`.
    """
    import torch
    from torch.overrides import handle_torch_function, has_torch_function

    if has_torch_function((q, k, v)):
        heard: tuple[Array, Array] = handle_torch_function(
            torch_attention,
            (q, k, v),
            q,
            k,
            v,
            mask,
            causal=causal,
            scale=scale,
            softcap=softcap,
            bias=bias,
            sinks=sinks,
            dropout=dropout,
        )
        return heard
    bare = mask is None and bias is None and sinks is None and not softcap and not dropout
    if bare and q.is_cpu and _kernel_takes(q, k, v):
        rows = q.shape[2]
        if not causal or rows == 1 or rows == k.shape[2]:
            plain: tuple[Array, Array] = torch._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, causal and rows > 1, scale=scale
            )
            return plain
    learns = torch.is_grad_enabled() and any(
        array is not None and array.requires_grad
        for array in (bias, mask, *((q, k, v, sinks) if sinks is not None else ()))
        if isinstance(array, torch.Tensor)
    )
    in_blocks = (
        learns
        or bool(softcap)
        or bool(dropout)
        or q.device.type not in ("cpu", "cuda")
        or 0 in q.shape[:-1]
        or 0 in k.shape[:-1]
        or 0 in v.shape
    )
    if in_blocks:
        call = read_call(q, k, v, mask, causal, scale, softcap, bias, sinks, dropout)
        output, lse = _torch_blocks(call)
    else:
        # The kernel adds a float mask as it is; only what is left of it is looked at here.
        floats = isinstance(mask, torch.Tensor) and mask.is_floating_point()
        if isinstance(mask, torch.Tensor) and floats and bool(mask.amax() == 1):
            read_mask(mask)  # raises if it is a 0/1 mask in disguise
        rule = None if floats else mask
        call = read_call(q, k, v, rule, causal, scale, softcap, None, sinks, dropout)
        full = (*q.shape[:-1], k.shape[-2])
        added = [
            _array_in_four(_wide(array, q), full)
            for array in (mask if floats else None, bias)
            if array is not None
        ]
        output, lse = _torch_kernels(call, added[0] + added[1] if added[1:] else (*added, None)[0])
    if q.ndim == 4:
        return output, lse
    return output.reshape((*q.shape[:-1], v.shape[-1])), lse.reshape(q.shape[:-1])


def _kernel_takes(q: Array, k: Array, v: Array) -> bool:
    """Whether PyTorch's CPU kernel takes these as they are (it crashes on empty ones)."""
    if q.ndim != 4 or k.shape != v.shape or k.ndim != 4 or not q.dtype == k.dtype == v.dtype:
        return False
    batch, heads, queries, width = q.shape
    key_batch, key_heads, keys, key_width = k.shape
    fits: bool = batch == key_batch and width == key_width and q.is_floating_point()
    full = batch and heads and queries and width and key_heads and keys
    rows = q.stride(3) == k.stride(3) == v.stride(3) == 1
    return fits and rows and bool(full) and heads % key_heads == 0


def _wide(added: Array, q: Array) -> Array:
    """An additive mask in a type that the kernels take."""
    import torch

    kind = _kind(q)
    if not isinstance(added, torch.Tensor):
        added = torch.as_tensor(added, device=q.device)
    if added.dtype != kind:  # what hides is measured by the mask's own lowest number
        return added.to(kind).masked_fill(added <= _lowest(added) / 2, -math.inf)
    return added


def _torch_kernels(call: Call, added: Array | None) -> tuple[Array, Array]:
    """PyTorch's own kernels, with the smallest masks they need."""
    import torch

    q, k, v = call.q, call.k, call.v
    if v.shape[-1] != q.shape[-1]:  # the kernels want one width: zeros change nothing
        width = max(q.shape[-1], v.shape[-1])
        q, k, v = (torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    queries, keys = q.shape[2], k.shape[2]
    rule, diagonal = _without_diagonal(call.rule, added, queries, keys, q)

    def part(rows: range, columns: range) -> tuple[Array, Array]:
        tile = rule.tile(rows, columns, queries, keys, q) if rule is not None else True
        at, to = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        extra, sees = _additive(tile, None if added is None else _part(added, at, to), q)
        if diagonal and sees is not None:
            sees = _seen_below_diagonal(extra, queries)
        whole = len(columns) == keys
        output, lse = _kernel(
            q if len(rows) == queries else q[:, :, at],
            k if whole else k[:, :, to],
            v if whole else v[:, :, to],
            diagonal,
            extra,
            call.scale,
        )
        if sees is not None and not (sees.is_cpu and bool(sees.all())):
            # Kernels differ on rows that see nothing: 0, uniform, NaN; ours are 0 and −inf.
            output = output.masked_fill(~sees[..., None], 0.0)
            lse = lse.masked_fill(~sees, -math.inf)
        return output, lse

    step = _rows_at_once(rule, added, q, keys)
    if diagonal or step >= queries:
        seen = range(keys) if rule is None else rule.visible_columns(range(queries), queries, keys)
        parts = [part(range(queries), seen)] if seen else []
    else:
        parts = []
        for start in range(0, queries, step):
            rows = range(start, min(start + step, queries))
            seen = range(keys) if rule is None else rule.visible_columns(rows, queries, keys)
            # Rows that see nothing still need an answer: one hidden column gives it.
            parts.append(part(rows, seen or range(1)))
    if not parts:
        parts = [part(range(queries), range(1))]
    output, lse = parts[0]
    if len(parts) > 1:
        output = torch.cat([out for out, _ in parts], dim=2)
        lse = torch.cat([one for _, one in parts], dim=2)
    output = output[..., : call.v.shape[-1]]
    if call.sinks is not None:
        sinks = call.sinks.to(lse.dtype)[:, None]
        output = output * torch.sigmoid(lse - sinks)[..., None].to(output.dtype)
        lse = torch.logaddexp(lse, sinks)
    return output, lse


def _without_diagonal(
    rule: Mask | None, added: Array | None, queries: int, keys: int, like: Array
) -> tuple[Mask | None, bool]:
    """The rule without what a kernel can do itself: PyTorch's top-left ``is_causal``."""
    if rule is None:
        return None, False
    rest: list[Mask] = []
    diagonal = False
    for part in rule.rules if isinstance(rule, Both) else (rule,):
        if isinstance(part, (Causal, Window)):
            # A band that hides nothing in its first and last row hides nothing.
            ends = (range(1), range(queries - 1, queries))
            if all(part.tile(row, range(keys), queries, keys, like) is True for row in ends):
                continue
        offset = getattr(part, "offset", None)
        if isinstance(part, Causal) and (keys - queries if offset is None else offset) == 0:
            diagonal = True
        else:
            rest.append(part)
    one_row = (added is None or added.shape[-2] == 1) and all(map(_same_for_all_rows, rest))
    # The kernels for CUDA disagree about what is_causal means when queries ≠ keys.
    if diagonal and not (one_row and (like.is_cpu or queries == keys)):
        rest.append(Causal(offset=0))
        diagonal = False
    return join(*rest) if rest else None, diagonal


def _same_for_all_rows(rule: Mask) -> bool:
    if isinstance(rule, Both):
        return all(map(_same_for_all_rows, rule.rules))
    return isinstance(rule, Padding) or (isinstance(rule, Dense) and rule.visible.shape[-2] == 1)


def _rows_at_once(rule: Mask | None, added: Array | None, q: Array, keys: int) -> int:
    """How many rows one call of a kernel takes: no more mask than needed, or than _TILE."""
    queries = q.shape[2]
    if rule is None or (_same_for_all_rows(rule) and added is None):
        return int(queries)
    middle = range(queries // 2, queries // 2 + 1)
    width = len(rule.visible_columns(middle, queries, keys))
    if width < keys:  # a band: few rows at once, so that few hidden columns are computed
        return max(64, min(512, width // 4 // 64 * 64))
    tile = rule.tile(middle, range(keys), queries, keys, q)
    size = keys if isinstance(tile, bool) else tile.numel()
    return int(max(64, _TILE // max(size, keys if added is None else added[..., :1, :].numel())))


def _additive(tile: bool | Array, added: Array | None, q: Array) -> tuple[Array | None, Any]:
    """The float mask of four dimensions that a kernel adds, and which rows see anything."""
    import torch

    if tile is True and added is None:
        return None, None
    if added is None:
        visible = as_tile(tile, q)
        visible = visible[(None,) * (4 - visible.ndim)]
        zero = torch.zeros((), dtype=_kind(q), device=q.device)
        return torch.where(visible, zero, -math.inf), visible.any(dim=-1)
    if tile is not True:
        added = torch.where(as_tile(tile, q), added, -math.inf)
    return added, added.amax(dim=-1) > _lowest(added) / 2


def _seen_below_diagonal(extra: Array, queries: int) -> Array:
    """Which rows see a key at or before their own place: (B, H, 1, Tk) → (B, H, Tq)."""
    import torch

    visible = (extra > _lowest(extra) / 2)[:, :, 0]
    so_far = visible.to(torch.uint8).cummax(dim=-1).values.bool()
    place = torch.arange(queries, device=extra.device).clamp(max=so_far.shape[-1] - 1)
    return so_far[..., place]


def _kind(array: Array) -> Any:
    """The dtype in which scores are computed."""
    import torch

    return torch.float64 if array.dtype == torch.float64 else torch.float32


def _lowest(array: Array) -> float:
    import torch

    return float(torch.finfo(array.dtype).min)


def _kernel(
    q: Array, k: Array, v: Array, diagonal: bool, extra: Array | None, scale: float
) -> tuple[Array, Array]:
    """One call of a kernel that gives its lse. ``diagonal``: row i sees keys up to i."""
    import torch

    # The kernels take it for granted that the numbers of one row lie side by side.
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    if q.is_cpu:
        on_cpu: tuple[Array, Array] = torch._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, diagonal, attn_mask=extra, scale=scale
        )
        return on_cpu
    aten = torch.ops.aten
    width, queries, keys = v.shape[-1], q.shape[2], k.shape[2]
    if q.dtype == torch.float64 or width > 256:
        visible = Causal(offset=0) if diagonal else None
        call = Call(q, k, v, visible, extra, scale, None, None, 0.0)
        return _torch_blocks(call)
    if width % 8:
        q, k, v = (torch.nn.functional.pad(x, (0, -width % 8)) for x in (q, k, v))
    if extra is None and q.dtype != torch.float32:
        output, lse = aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, diagonal, False, scale=scale
        )[:2]
    else:
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        if extra is not None:  # in q's dtype, rows aligned to 16 bytes
            full = extra.to(q.dtype).expand(*q.shape[:3], keys)
            extra = torch.nn.functional.pad(full, (0, -keys % 8))[..., :keys]
        output, lse = aten._scaled_dot_product_efficient_attention(
            q, k, v, extra, True, 0.0, diagonal, scale=scale
        )[:2]
    return output[..., :width], lse[..., :queries]


def _torch_blocks(call: Call) -> tuple[Array, Array]:
    """Blocks of rows in plain PyTorch, recomputed in the backward pass to stay linear."""
    import torch
    from torch.utils.checkpoint import checkpoint

    batch, heads, queries, _ = call.q.shape
    keys = call.k.shape[2]
    step = max(16, _TILE // max(1, batch * heads * keys))
    blocks = []
    for start in range(0, max(queries, 1), step):
        rows = range(start, min(start + step, queries))
        if torch.is_grad_enabled() and queries > step:
            blocks.append(checkpoint(_torch_rows, call, rows, use_reentrant=False))
        else:
            blocks.append(_torch_rows(call, rows))
    if len(blocks) == 1:
        output, lse = blocks[0]
        return output, lse
    return torch.cat([out for out, _ in blocks], dim=2), torch.cat(
        [one for _, one in blocks], dim=2
    )


def _torch_rows(call: Call, rows: range) -> tuple[Array, Array]:
    """Some rows, from their whole scores."""
    import torch

    q, kind = call.q, _kind(call.q)
    batch, heads, queries, width = q.shape
    keys = call.k.shape[2]
    seen = range(keys)
    if call.rule is not None:
        seen = call.rule.visible_columns(rows, queries, keys)
    part, columns = slice(rows.start, rows.stop), slice(seen.start, seen.stop)
    k, v = call.k[:, :, columns].to(kind), call.v[:, :, columns].to(kind)
    key_heads, value_width = v.shape[1], v.shape[-1]
    # Query heads of one key head are folded into its rows.
    folded_rows = heads // max(key_heads, 1) * len(rows)
    folded = (q[:, :, part].to(kind) * call.scale).reshape(batch, key_heads, folded_rows, width)
    scores = (folded @ k.mT).reshape(batch, heads, len(rows), len(seen))
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if call.bias is not None:
        scores = scores + _part(call.bias, part, columns)
    if call.rule is not None:
        tile = call.rule.tile(rows, seen, queries, keys, q)
        if tile is not True:
            scores = scores.masked_fill(~as_tile(tile, q), -math.inf)
    top = torch.full((batch, heads, len(rows), 1), -math.inf, dtype=kind, device=q.device)
    if seen:
        top = scores.detach().amax(dim=-1, keepdim=True)
    if call.sinks is not None:
        sink = call.sinks.to(kind)[:, None, None]
        top = torch.maximum(top, sink.detach())
    top = top.masked_fill(top == -math.inf, 0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    if call.sinks is not None:
        total = total + torch.exp(sink - top)
    lse = (torch.log(total.detach()) + top)[..., 0]
    weights = weights / total.masked_fill(total == 0, 1.0)
    if call.dropout:
        weights = torch.nn.functional.dropout(weights, call.dropout)
    output = weights.reshape(batch, key_heads, folded_rows, len(seen)) @ v
    return output.reshape(batch, heads, len(rows), value_width).to(q.dtype), lse
