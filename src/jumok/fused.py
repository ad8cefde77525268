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
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from jumok.masks import Causal, Dense, Mask, Padding, join, read_mask

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
class _Call:
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


def _read(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | Array | None,
    causal: bool,
    scale: float | None,
    softcap: float | None,
    bias: Array | None,
    sinks: Array | None,
    dropout: float,
) -> _Call:
    """Check what the user gave, and bring it into four dimensions."""
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
    if softcap is not None and not softcap >= 0:
        raise ValueError(f"softcap={softcap}: a softcap is positive; 0 or None switches it off")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout}: a probability from 0 to below 1")
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise ValueError(
            f"sinks of shape {tuple(sinks.shape)}: one logit for each of the {heads} query heads"
        )
    full = (*lead, heads, q.shape[-2], k.shape[-2])
    rule, added = read_mask(mask)
    rules = [_in_four(rule, full)] if rule is not None else []
    if causal:
        rules.append(Causal())
    if bias is not None:
        lowest = sys.modules["torch"].finfo if not isinstance(bias, np.ndarray) else np.finfo
        seen = bias > float(lowest(bias.dtype).min) / 2
        if not bool(seen.all()):
            rules.append(_in_four(Dense(seen), full))
            bias = bias * 0 if not bool(seen.any()) else _zero_where_hidden(bias, seen)
        added = bias if added is None else added + bias
    if added is not None:
        added = _array_in_four(added, full)
    joined = join(*rules) if rules else None
    return _Call(
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


def _zero_where_hidden(bias: Array, seen: Array) -> Array:
    if isinstance(bias, np.ndarray):
        return np.where(seen, bias, np.zeros_like(bias))
    return bias.masked_fill(~seen, 0.0)


def _array_in_four(array: Array, full: tuple[int, ...] | None) -> Array:
    """(…, H, T, D) as (B, H, T, D); an array that broadcasts to ``full``, likewise."""
    if full is not None:
        shape = tuple(array.shape)
        if len(shape) > len(full) or any(
            have not in (1, want) for have, want in zip(shape[::-1], full[::-1], strict=False)
        ):
            raise ValueError(
                f"a mask or bias of shape {shape} does not broadcast to "
                f"(…, heads, queries, keys) = {full}"
            )
    if array.ndim < 4:
        return array.reshape((1,) * (4 - array.ndim) + tuple(array.shape))
    if array.ndim == 4:
        return array
    if full is not None:
        whole = (*full[:-3], *array.shape[-3:])
        expand = np.broadcast_to if isinstance(array, np.ndarray) else array.__class__.expand
        array = expand(array, whole)
    return array.reshape((math.prod(array.shape[:-3]), *array.shape[-3:]))


def _in_four(rule: Mask, full: tuple[int, ...]) -> Mask:
    """A rule whose arrays have been checked and broadcast to (B, H, Tq, Tk)."""
    if isinstance(rule, Dense):
        return Dense(_array_in_four(rule.visible, full))
    if isinstance(rule, Padding):
        batch = math.prod(full[:-3])
        if tuple(rule.visible.shape) not in ((batch, full[-1]), (1, full[-1])):
            raise ValueError(
                f"Padding of shape {tuple(rule.visible.shape)} does not fit (batch, keys) = "
                f"{(batch, full[-1])}"
            )
    parts = getattr(rule, "rules", None)
    return join(*[_in_four(part, full) for part in parts]) if parts else rule


def _part(array: Array, rows: slice, columns: slice) -> Array:
    """The tile of an array of which each of the last two dimensions is full or 1."""
    array = array[..., rows, :] if array.shape[-2] > 1 else array
    return array[..., columns] if array.shape[-1] > 1 else array


# NumPy -------------------------------------------------------------------------------------

_TILE = 1 << 18  # scores of one tile: 1 MB in float32, the size of a core's second-level cache


def _numpy_attention(q: Array, k: Array, v: Array, *rest: Any) -> tuple[Array, Array]:
    q, k, v = (np.asarray(array) for array in (q, k, v))
    call = _read(q, k, v, *rest)
    if call.dropout:
        raise ValueError("dropout is for training, which needs PyTorch tensors; NumPy has none")
    kind = np.float64 if q.dtype == np.float64 else np.float32
    batch, heads, queries, width = call.q.shape
    key_heads, keys = call.k.shape[1:3]
    group = heads // key_heads if key_heads else 1
    output = np.zeros((batch, heads, queries, v.shape[-1]), dtype=q.dtype)
    lse = np.full((batch, heads, queries), -np.inf, dtype=kind)
    if call.sinks is not None:
        lse[...] = call.sinks[:, None]
    step = max(16, _TILE // max(1, keys * group))
    for b in range(batch):
        for g in range(key_heads):
            mine = slice(g * group, (g + 1) * group)
            key, value = call.k[b, g].astype(kind), call.v[b, g].astype(kind)
            for start in range(0, queries, step):
                rows = range(start, min(start + step, queries))
                part = slice(rows.start, rows.stop)
                seen = range(keys)
                if call.rule is not None:
                    seen = call.rule.visible_columns(rows, queries, keys)
                if not seen:
                    continue
                columns = slice(seen.start, seen.stop)
                folded = (call.q[b, mine, part].astype(kind) * call.scale).reshape(-1, width)
                scores = (folded @ key[columns].T).reshape(group, len(rows), len(seen))
                if call.softcap is not None:
                    scores = np.tanh(scores / call.softcap) * call.softcap
                if call.bias is not None:
                    scores = scores + _heads(_part(call.bias, part, columns), b, mine)
                if call.rule is not None:
                    tile = call.rule.tile(rows, seen, queries, keys, q)
                    if tile is False:
                        continue
                    if tile is not True:
                        scores = np.where(_heads(tile, b, mine), scores, -np.inf)
                top = scores.max(axis=-1, keepdims=True)
                if call.sinks is not None:
                    sink = call.sinks[mine].astype(kind)[:, None, None]
                    top = np.maximum(top, sink)
                top[top == -np.inf] = 0
                scores -= top
                np.exp(scores, out=scores)
                total = scores.sum(axis=-1, keepdims=True)
                if call.sinks is not None:
                    total += np.exp(sink - top)
                with np.errstate(divide="ignore"):
                    lse[b, mine, part] = (np.log(total) + top)[..., 0]
                total[total == 0] = 1
                scores /= total
                output[b, mine, part] = scores @ value[columns]
    return output.reshape((*q.shape[:-1], v.shape[-1])), lse.reshape(q.shape[:-1])


def _heads(tile: Array, batch: int, heads: slice) -> Array:
    """Of an array that broadcasts to (B, H, rows, columns): one batch, some heads."""
    if tile.ndim < 3:
        return tile
    if tile.ndim == 4:
        tile = tile[batch if tile.shape[0] > 1 else 0]
    return tile[heads] if tile.shape[0] > 1 else tile


# PyTorch -----------------------------------------------------------------------------------


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
    call = _read(q, k, v, mask, causal, scale, softcap, bias, sinks, dropout)
    batch, heads, queries, _ = call.q.shape
    keys = call.k.shape[2]
    plain = call.softcap is None and call.sinks is None and not dropout and call.bias is None
    if (
        plain
        and call.q.is_cpu
        and queries
        and keys
        and (call.rule is None or (causal and mask is None and queries == keys))
        and q.shape[-1] == v.shape[-1]
    ):
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            call.q, call.k, call.v, 0.0, call.rule is not None, scale=call.scale
        )
    else:
        step = max(16, (_TILE * 16) // max(1, batch * heads * keys))
        outputs, lses = [], []
        for start in range(0, max(queries, 1), step):
            part_output, part_lse = _torch_rows(
                torch, call, range(start, min(start + step, queries))
            )
            outputs.append(part_output)
            lses.append(part_lse)
        output, lse = torch.cat(outputs, dim=2), torch.cat(lses, dim=2)
    return output.reshape((*q.shape[:-1], v.shape[-1])), lse.reshape(q.shape[:-1])


def _torch_rows(torch: Any, call: _Call, rows: range) -> tuple[Array, Array]:
    """Some rows, from their whole scores."""
    q, k, v = call.q, call.k, call.v
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    batch, heads, queries, width = q.shape
    key_heads, keys = k.shape[1:3]
    part, everything = slice(rows.start, rows.stop), slice(0, keys)
    folded = (q[:, :, part].to(kind) * call.scale).reshape(
        batch, key_heads, heads // max(key_heads, 1) * len(rows), width
    )
    scores = (folded @ k.to(kind).mT).reshape(batch, heads, len(rows), keys)
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if call.bias is not None:
        scores = scores + _part(call.bias, part, everything)
    if call.rule is not None:
        tile = call.rule.tile(rows, range(keys), queries, keys, q)
        if tile is False:
            scores = torch.full_like(scores, -math.inf)
        elif tile is not True:
            scores = scores.masked_fill(~tile, -math.inf)
    if keys == 0:
        top = scores.new_full((batch, heads, len(rows), 1), -math.inf)
    else:
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
    output = weights.reshape(batch, key_heads, -1, keys) @ v.to(kind)
    return output.reshape(batch, heads, len(rows), v.shape[-1]).to(q.dtype), lse
