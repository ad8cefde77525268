"""One attention call as a tap heard it, and how calls of other shapes are brought into its form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.output_map import OutputMap
from jumok.masks import Causal, Mask


@dataclass(eq=False)
class Heard:
    """One attention call as it ran; shapes as in `AttentionCall`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None
    bias: Tensor | None
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    lse: Tensor | None = None
    projection: OutputMap | None = None
    """W_O as (output width, heads · Dv), once it is known what takes the output."""
    projection_version: int | None = None
    projection_note: str = "it is not known yet what takes the attention's output"
    is_followed: bool = True
    """Whether the output is what the weights make of the values, so that W_O may be looked for."""
    stored_because: str | None = None
    """Why the weights themselves had to be kept, as the logarithms in `bias`; see `by_weights`."""


def by_weights(
    weights: Tensor,
    v: Tensor,
    why: str,
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
) -> Heard:
    """A call of which no more is known than its weights: they are kept, T × T.

    Args:
        weights: (B, H, Tq, Tk) as they ran; rows need not sum to 1.
        v: values (B, G, Tk, Dv).
        why: words for the user, which end the sentence "… were stored: ".
        q: queries (B, H, Tq, D) and
        k: keys (B, G, Tk, D), if they are known: they tell which step follows which in a
            decoding loop, and take no part in the scores.
    """
    batch, heads, n_queries, n_keys = weights.shape
    if q is None or k is None:
        q = weights.new_empty(batch, heads, n_queries, 0)
        k = weights.new_empty(batch, v.shape[1], n_keys, 0)
    logs = weights.detach().float().log()
    lse = logs.new_zeros(batch, heads, n_queries)
    return Heard(q, k, v, None, logs, 0.0, lse=lse, stored_because=why)


def top_left(n_queries: int, n_keys: int) -> Mask:
    """torch's ``is_causal``: the first query on the first key."""
    return Causal() if n_queries == n_keys else Causal(offset=0)


def scale_of(scale: float | None, q: Tensor) -> float:
    return 1.0 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)


def autocast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Any, ...]:
    """The arguments as autocast hands them to the kernel."""
    kind = q.device.type
    if not torch.is_autocast_enabled(kind):
        return q, k, v, mask
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        x.to(dtype) if x is not None and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in (q, k, v, mask)
    )


def four_dimensional(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, H, T, D) views of what SDPA takes: any leading dimensions, which may broadcast."""
    if q.is_nested or k.is_nested:
        raise ValueError(
            "attention over nested tensors cannot be recorded; pass a padded batch with its mask"
        )
    size = max(q.ndim, k.ndim, v.ndim, 3)
    q, k, v = (x.reshape(*(1,) * (size - x.ndim), *x.shape) for x in (q, k, v))
    if size == 3:
        q, k, v = q[:, None], k[:, None], v[:, None]
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    heads = (max(q.shape[-3], k.shape[-3]), max(k.shape[-3], v.shape[-3]))
    four = []
    for x, n_heads in ((q, heads[0]), (k, heads[1]), (v, heads[1])):
        x = x.expand(*batch, n_heads, *x.shape[-2:])
        four.append(x if len(batch) == 1 else x.flatten(0, len(batch) - 1))
    return four[0], four[1], four[2]


def four_dimensional_mask(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask of a call whose inputs are not (B, H, T, D), in step with `four_dimensional`."""
    size = max(q.ndim, k.ndim)
    if mask is None or size == 4 or mask.ndim <= 2:
        return mask
    if size == 3:
        return mask[:, None]
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])
    missing = size - mask.ndim
    mask = mask.reshape(*(1,) * missing, *mask.shape)
    return mask.expand(*batch, *mask.shape[-3:]).flatten(0, len(batch) - 1)


def tensors_in(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (item for item in value if isinstance(item, Tensor))
