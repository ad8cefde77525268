"""The free slots of a static cache: keys at the end that nobody has written and nobody may see."""

from __future__ import annotations

import dataclasses
from typing import Any

from jumok.lens.call import AttentionCall
from jumok.masks import (
    Both,
    Causal,
    Chunked,
    Dense,
    Mask,
    Packed,
    Padding,
    Prefix,
    Window,
    join,
)


def without_free_slots(call: AttentionCall) -> AttentionCall:
    """The call without keys at its end that are all zero and hidden from every query."""
    _, _, n_queries, n_keys = call.shape
    mask = call.mask
    if mask is None or n_keys <= n_queries or (type(mask) is Causal and mask.offset is None):
        return call  # the last query sees the last key
    if bool(call.k[:, :, -1].any()):
        return call
    stop = mask.visible_columns(range(n_queries), n_queries, n_keys).stop
    if stop == n_keys:
        # The rule does not know by itself; so look which keys are zero, and ask.
        stop = _written(call.k)
    elif bool((rest := call.k[:, :, stop:]).any()):
        stop += _written(rest)
    tile: Any = mask.tile(range(n_queries), range(stop, n_keys), n_queries, n_keys, call.q)
    if tile is True or (tile is not False and bool(tile.any())):
        return call
    bias = call.bias
    if bias is not None and bias.shape[-1] > 1:
        bias = bias[..., :stop]
    return dataclasses.replace(
        call,
        k=call.k[:, :, :stop],
        v=None if call.v is None else call.v[:, :, :stop],
        mask=_first_keys(mask, stop, n_queries, n_keys),
        bias=bias,
    )


def _written(keys: Any) -> int:
    """How many keys there are up to the last that is not all zero."""
    found = keys.ne(0).any(dim=-1).any(dim=0).any(dim=0).nonzero()
    return int(found[-1]) + 1 if len(found) else 0


def _first_keys(mask: Mask, stop: int, n_queries: int, n_keys: int) -> Mask:
    """The rule over the first `stop` of its keys, where the others are hidden from all."""
    if isinstance(mask, Both):
        return join(*(_first_keys(rule, stop, n_queries, n_keys) for rule in mask.rules))
    if isinstance(mask, Padding):
        return Padding(mask.visible[:, :stop])
    if isinstance(mask, Dense):
        return mask if mask.visible.shape[-1] == 1 else Dense(mask.visible[..., :stop])
    if not isinstance(mask, (Causal, Window, Chunked, Prefix, Packed)):
        return mask
    offset: int | None = n_keys - n_queries if mask.offset is None else mask.offset
    if offset == stop - n_queries:
        offset = None
    if isinstance(mask, Causal):
        return Causal(offset)
    if isinstance(mask, Window):
        return Window(mask.size, mask.ahead, offset)
    if isinstance(mask, Chunked):
        return Chunked(mask.size, offset)
    if isinstance(mask, Prefix):
        return Prefix(mask.length, offset)
    return Packed(mask.documents[:, :stop], offset)
