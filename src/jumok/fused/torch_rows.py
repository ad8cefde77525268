"""PyTorch: blocks of rows, for what no kernel can do."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from jumok.fused.reading import Call, part_of
from jumok.masks import as_tile

TILE = 1 << 22  # numbers in one tile of scores or of a mask: 16 MB in float32


def attention_in_blocks(call: Call) -> tuple[Tensor, Tensor]:
    """Blocks of rows in plain PyTorch, recomputed in the backward pass to stay linear."""
    batch, heads, queries, _ = call.q.shape
    keys = call.k.shape[2]
    step = max(16, TILE // max(1, batch * heads * keys))
    blocks = []
    for start in range(0, max(queries, 1), step):
        rows = range(start, min(start + step, queries))
        if torch.is_grad_enabled() and queries > step:
            blocks.append(checkpoint(_rows, call, rows, use_reentrant=False))
        else:
            blocks.append(_rows(call, rows))
    if len(blocks) == 1:
        output, lse = blocks[0]
        return output, lse
    return torch.cat([out for out, _ in blocks], dim=2), torch.cat(
        [one for _, one in blocks], dim=2
    )


def _rows(call: Call, rows: range) -> tuple[Tensor, Tensor]:
    """Some rows, from their whole scores."""
    q, kind = call.q, score_type(call.q)
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
        scores = scores + part_of(call.bias, part, columns)
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


def score_type(array: Tensor) -> Any:
    """The dtype in which scores are computed."""
    return torch.float64 if array.dtype == torch.float64 else torch.float32
