"""What the user of `jumok.fused` gave, checked and brought into four dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from jumok.masks import (
    Both,
    Causal,
    Dense,
    Mask,
    Packed,
    Padding,
    Prefix,
    Spans,
    join,
    read_mask,
)

Array = Any


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
    heads = _heads_of_what_fits(q, k, v)
    if softcap is not None and not 0 <= softcap < math.inf:
        raise ValueError(f"softcap={softcap}: a softcap is positive; 0 or None switches it off")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout}: a probability from 0 to below 1")
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise ValueError(
            f"sinks of shape {tuple(sinks.shape)}: one logit for each of the {heads} query heads"
        )
    full = (*q.shape[:-1], k.shape[-2])
    rule, added = read_mask(_alike(mask, q))
    bias = _alike(bias, q)
    rules = [_in_four(rule, full)] if rule is not None else []
    if causal:
        rules.append(Causal())
    if bias is not None:
        xp = array_namespace(bias)
        seen = bias > float(xp.finfo(bias.dtype).min) / 2
        if not bool(xp.all(seen)):
            rules.append(_in_four(Dense(seen), full))
            bias = xp.where(seen, bias, xp.zeros_like(bias))
        added = bias if added is None else _sum_of(added, bias)
    if added is not None:
        added = in_four_dimensions(added, full)
    joined = join(*rules) if rules else None
    return Call(
        in_four_dimensions(q, None),
        in_four_dimensions(k, None),
        in_four_dimensions(v, None),
        joined,
        added,
        (1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0) if scale is None else float(scale),
        float(softcap) if softcap else None,
        sinks,
        dropout,
    )


def _heads_of_what_fits(q: Array, k: Array, v: Array) -> int:
    """The number of query heads of arrays that belong together."""

    def shapes() -> str:
        return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"

    if not (q.ndim == k.ndim == v.ndim >= 2):
        raise ValueError(
            f"q, k and v must have the same number of dimensions, 2 or more: {shapes()}"
        )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have the same last dimension (head_dim): {shapes()}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v must agree in heads and tokens (all but the last): {shapes()}")
    if q.shape[:-3] != k.shape[:-3]:
        raise ValueError(f"q and k must have the same batch dimensions: {shapes()}")
    heads, key_heads = (q.shape[-3], k.shape[-3]) if q.ndim > 2 else (1, 1)
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ValueError(
            f"{heads} query heads cannot share {key_heads} key heads: the number of query heads "
            f"must be a multiple of the number of key heads ({shapes()})"
        )
    if not (q.dtype == k.dtype == v.dtype):
        raise TypeError(
            f"q, k and v must have one dtype; got q {q.dtype}, k {k.dtype}, v {v.dtype}: cast them"
        )
    return int(heads)


def _sum_of(mask: Array, bias: Array) -> Array:
    """Both in float32 at least: half precision would round what neither of them is."""
    xp = array_namespace(mask, bias)
    return xp.astype(mask, xp.result_type(mask.dtype, xp.float32)) + bias


def in_four_dimensions(array: Array, full: tuple[int, ...] | None) -> Array:
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
        return Dense(in_four_dimensions(rule.visible, full))
    by_batch = _by_batch(rule)
    if by_batch is None or (by_batch.shape[0] == 1 and not isinstance(rule, Padding)):
        return rule
    if len(full) != 4:  # heads or several dimensions where the rule has its batch
        return Dense(in_four_dimensions(rule.dense(full[-2], full[-1], by_batch), full))
    if by_batch.shape[0] not in (1, full[0]):
        raise ValueError(f"{rule!r} is of {by_batch.shape[0]} batch elements, q has {full[0]}")
    if isinstance(rule, Padding) and by_batch.shape[1] != full[-1]:
        raise ValueError(
            f"Padding of shape {tuple(by_batch.shape)} does not fit (batch, keys) = "
            f"{(full[0], full[-1])}"
        )
    return rule


def _by_batch(rule: Mask) -> Array | None:
    """The array of a rule whose first dimension is the batch."""
    if isinstance(rule, Padding):
        return rule.visible
    if isinstance(rule, Packed):
        return rule.documents
    if isinstance(rule, Spans):
        return rule.start
    return rule.length if isinstance(rule, Prefix) and not isinstance(rule.length, int) else None


def _alike(array: Any, q: Array) -> Any:
    """A mask or bias of any library, or nested lists, in the library of ``q``."""
    if array is None or isinstance(array, (Mask, type(q))):
        return array
    if isinstance(q, np.ndarray):
        return np.asarray(array)
    xp = array_namespace(q)
    if is_array_api_obj(array) and array_namespace(array) is xp:
        return array
    return xp.asarray(array, device=device(q))


def part_of(array: Array, rows: slice, columns: slice) -> Array:
    """The tile of an array of which each of the last two dimensions is full or 1."""
    array = array[..., rows, :] if array.shape[-2] > 1 else array
    return array[..., columns] if array.shape[-1] > 1 else array
