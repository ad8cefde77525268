"""PyTorch: its own kernels, which give the lse at no cost, with the smallest masks they need.

A kernel takes numbers to be added, and differs from the next one in what it makes of a row that
sees nothing. On the CPU such rows are told by the lse that comes back, 0 or as low as a number can
be, so that a mask need not be looked through a second time.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from jumok.fused import torch_rows
from jumok.fused.reading import Call, part_of
from jumok.fused.torch_rows import attention_in_blocks, score_type
from jumok.masks import Both, Causal, Dense, Mask, Padding, Spans, Window, as_tile, join

SHORT = 1 << 16  # scores of a head so few that one call of a kernel is cheaper than several


def attention_by_kernels(call: Call, added: Tensor | None) -> tuple[Tensor, Tensor]:
    """Kernels over blocks of rows, each with the part of the mask that it needs."""
    q, k, v = call.q, call.k, call.v
    if v.shape[-1] != q.shape[-1]:  # the kernels want one width: zeros change nothing
        width = max(q.shape[-1], v.shape[-1])
        q, k, v = (torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    queries, keys = q.shape[2], k.shape[2]
    rule, diagonal = _without_diagonal(call.rule, added, queries, keys, q)

    def part(rows: range, columns: range) -> tuple[Tensor, Tensor]:
        tile = rule.tile(rows, columns, queries, keys, q) if rule is not None else True
        at, to = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        extra = _additive(tile, None if added is None else part_of(added, at, to), q)
        whole = len(columns) == keys
        output, lse = _kernel(
            q if len(rows) == queries else q[:, :, at],
            k if whole else k[:, :, to],
            v if whole else v[:, :, to],
            diagonal,
            extra,
            call.scale,
        )
        if extra is not None and (not lse.is_cpu or has_empty_rows(lse, added is None)):
            sees = rows_that_see(extra, diagonal, queries)
            return without_empty_rows(output, lse, sees)
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
    rule: Mask | None, added: Tensor | None, queries: int, keys: int, like: Tensor
) -> tuple[Mask | None, bool]:
    """The rule without what a kernel can do itself: PyTorch's top-left ``is_causal``."""
    if rule is None:
        return None, False
    rest: list[Mask] = []
    diagonal = False
    for part in rule.rules if isinstance(rule, Both) else (rule,):
        if isinstance(part, (Causal, Window)) and part.hides_nothing(queries, keys):
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
    if isinstance(rule, Spans):
        return bool(rule.start.shape[-1] == 1)
    return isinstance(rule, Padding) or (isinstance(rule, Dense) and rule.visible.shape[-2] == 1)


def _rows_at_once(rule: Mask | None, added: Tensor | None, q: Tensor, keys: int) -> int:
    """How many rows one call of a kernel takes: no more mask than needed, or than a tile."""
    batch, heads, queries, _ = q.shape
    if rule is None or (_same_for_all_rows(rule) and added is None):
        return queries
    if queries * keys <= SHORT and batch * heads * queries * keys <= torch_rows.TILE:
        return queries
    middle = range(queries // 2, queries // 2 + 1)
    width = len(rule.visible_columns(middle, queries, keys))
    if width < keys:  # a band: few rows at once, so that few hidden columns are computed
        return max(64, min(512, width // 4 // 64 * 64))
    tile = rule.tile(middle, range(keys), queries, keys, q)
    numbers = max(
        keys if isinstance(tile, bool) else tile.numel(),
        keys if added is None else added[..., :1, :].numel(),
    )
    return max(64, torch_rows.TILE // numbers)


def _additive(tile: bool | Tensor, added: Tensor | None, q: Tensor) -> Tensor | None:
    """The float mask of four dimensions that a kernel adds."""
    if tile is True:
        return added
    if added is not None:
        return torch.where(as_tile(tile, q), added, -math.inf)
    visible = as_tile(tile, q)
    return numbers_of(visible[(None,) * (4 - visible.ndim)], q)


def numbers_of(visible: Tensor, q: Tensor) -> Tensor:
    """0 for a visible key and −inf for a hidden one."""
    numbers, kind = torch.where(visible, 0.0, -math.inf), score_type(q)
    return numbers if numbers.dtype == kind else numbers.to(kind)


def has_empty_rows(lse: Tensor, is_boolean: bool) -> bool:
    """Whether the CPU's kernel may have met a row that sees nothing.

    Its lse of a row of −inf is exactly 0, and that of a row of finfo.min about as low, which
    booleans cannot say. An lse of 0 can be true as well, so this only says where to look.
    """
    numbers = lse.numpy()
    if np.count_nonzero(numbers) < numbers.size or not _an_empty_row_has_lse_0():
        return True
    return not is_boolean and bool(numbers.min() <= torch.finfo(lse.dtype).min / 2)


@cache
def _an_empty_row_has_lse_0() -> bool:
    """Asked once, because kernels have changed their mind about it."""
    q = torch.zeros(1, 1, 1, 8, device="cpu")
    hidden = torch.full((1, 1), -math.inf, device="cpu")
    return float(cpu_kernel(q, q, q, False, hidden, None)[1]) == 0


def rows_that_see(extra: Tensor, diagonal: bool, queries: int) -> Tensor:
    """Which rows see anything: (B, H, Tq), each full or 1."""
    visible = extra > torch.finfo(extra.dtype).min / 2
    if not diagonal:
        return visible.any(dim=-1)
    if extra.shape[-2] > 1:
        return visible.tril().any(dim=-1)
    # A key at or before their own place: (B, H, 1, Tk) → (B, H, Tq).
    so_far = visible[..., 0, :].to(torch.uint8).cummax(dim=-1).values.bool()
    place = torch.arange(queries, device=extra.device).clamp(max=so_far.shape[-1] - 1)
    return so_far[..., place]


def without_empty_rows(output: Tensor, lse: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
    """Kernels differ on rows that see nothing: 0, uniform, NaN; ours are 0 and −inf."""
    return output.masked_fill(~sees[..., None], 0.0), lse.masked_fill(~sees, -math.inf)


def cpu_kernel(
    q: Tensor, k: Tensor, v: Tensor, diagonal: bool, extra: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = torch._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, diagonal, attn_mask=extra, scale=scale
    )
    return found


def _kernel(
    q: Tensor, k: Tensor, v: Tensor, diagonal: bool, extra: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """One call of a kernel that gives its lse. ``diagonal``: row i sees keys up to i."""
    # The kernels take it for granted that the numbers of one row lie side by side.
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    if q.is_cpu:
        return cpu_kernel(q, k, v, diagonal, extra, scale)
    aten = torch.ops.aten
    width, queries, keys = v.shape[-1], q.shape[2], k.shape[2]
    if q.dtype == torch.float64 or width > 256:
        visible = Causal(offset=0) if diagonal else None
        call = Call(q, k, v, visible, extra, scale, None, None, 0.0)
        return attention_in_blocks(call)
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
