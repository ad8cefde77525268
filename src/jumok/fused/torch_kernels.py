"""PyTorch: its own kernels, which give the lse at no cost, with the smallest masks they need.

A kernel takes numbers to be added, and differs from the next one in what it makes of a row that
sees nothing. On the CPU such rows are told by the lse that comes back, 0 or as low as a number can
be, so that a mask need not be looked through a second time.
"""

from __future__ import annotations

import math
import weakref
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from jumok.fused import torch_rows
from jumok.fused.reading import Call, in_four_dimensions, part_of, read_call
from jumok.fused.torch_rows import attention_in_blocks, score_type
from jumok.masks import (
    Both,
    Causal,
    Dense,
    Mask,
    Padding,
    Spans,
    Window,
    as_tile,
    join,
    read_mask,
)

_SHORT = 1 << 16  # scores of a head so few that one call of a kernel is cheaper than several


def torch_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """`attention` on PyTorch tensors: the ``func`` that a ``TorchFunctionMode`` hears.

    Arguments and results as in `attention`.
    """
    if has_torch_function((q, k, v)):
        heard: tuple[Tensor, Tensor] = handle_torch_function(
            torch_attention, (q, k, v), q, k, v, mask, **options
        )
        return heard
    direct = _direct(q, k, v, mask, **options)
    if direct is not None:
        return direct
    output, lse = _by_rule(q, k, v, mask, options)
    if q.ndim == 4:
        return output, lse
    return output.reshape((*q.shape[:-1], v.shape[-1])), lse.reshape(q.shape[:-1])


def _direct(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    causal: bool = False,
    scale: float | None = None,
    bias: Any = None,
    **rest: Any,
) -> tuple[Tensor, Tensor] | None:
    """The common call on a CPU, one kernel and little around it; `None` for any other call."""
    for value in rest.values():
        if value is not None and (isinstance(value, Tensor) or value):
            return None
    if not (q.is_cpu and _kernel_takes(q, k, v)) or (mask is not None and bias is not None):
        return None
    queries, keys = q.shape[2], k.shape[2]
    diagonal = causal and queries > 1
    if isinstance(mask, Mask) or (diagonal and queries != keys):
        if bias is not None or not (mask is None or isinstance(mask, Mask)):
            return None
        said = _said(join(mask, Causal() if diagonal else None), queries, keys, q)
        if said is None:
            return None
        mask, diagonal = said
    if mask is None and bias is None:
        return _cpu_kernel(q, k, v, diagonal, None, scale)
    added = _added(mask, q, keys) if bias is None else _added(bias, q, keys, is_bias=True)
    if added is None:
        return None
    output, lse = _cpu_kernel(q, k, v, diagonal, added, scale)
    if _has_empty_rows(lse, mask is not None and mask.dtype == torch.bool):
        return _without_empty_rows(output, lse, _rows_that_see(added, diagonal, queries))
    return output, lse


def _said(rule: Mask, queries: int, keys: int, q: Tensor) -> tuple[Tensor | None, bool] | None:
    """A rule as booleans and PyTorch's ``is_causal``; `None` where that would take much memory."""
    row, diagonal = None, False
    for part in rule.rules if isinstance(rule, Both) else (rule,):
        if isinstance(part, (Causal, Window)) and part.hides_nothing(queries, keys):
            continue
        if isinstance(part, (Causal, Window)) and queries == keys and part.is_plain(queries, keys):
            diagonal = True
        elif isinstance(part, Padding) and row is None:
            row = part.visible[:, None, None]
        elif queries * keys > _SHORT:
            return None
        else:
            tile = rule.tile(range(queries), range(keys), queries, keys, q)
            return None if isinstance(tile, bool) else (tile, False)
    return row, diagonal and queries > 1


def _added(mask: Any, q: Tensor, keys: int, is_bias: bool = False) -> Tensor | None:
    """A plain mask as the numbers that the kernel adds; `None` if it needs a closer look."""
    if not isinstance(mask, Tensor) or not mask.is_cpu or not 2 <= mask.ndim <= 4:
        return None
    batch, heads, queries, _ = q.shape
    *lead, height, width = mask.shape
    fits = height in (1, queries) and width in (1, keys)
    if not fits or any(
        have not in (1, want)
        for have, want in zip(lead, (batch, heads)[2 - len(lead) :], strict=True)
    ):
        return None
    added: Tensor | None = None
    if mask.dtype == torch.bool and not is_bias:
        added = _numbers(mask, q) if mask.numel() <= torch_rows.TILE else None
    elif mask.dtype == score_type(q) and not (mask.requires_grad and torch.is_grad_enabled()):
        if not is_bias:
            _check_is_no_0_or_1(mask)
        added = mask
    return added[None] if added is not None and mask.ndim == 3 else added


_looked_at: dict[int, tuple[weakref.ref[Tensor], int]] = {}


def _check_is_no_0_or_1(mask: Tensor) -> None:
    """Refuse a float mask of only 0 and 1; a mask that many layers share is looked at once."""
    counted = not mask.is_inference()  # nobody counts the writes to an inference tensor
    known = _looked_at.get(id(mask)) if counted else None
    if known is not None and known[0]() is mask and known[1] == mask._version:
        return
    if bool(mask.amax() == 1):
        read_mask(mask)  # raises if there is nothing else in it
    if counted:
        if len(_looked_at) >= 16:
            _looked_at.clear()
        _looked_at[id(mask)] = (weakref.ref(mask), mask._version)


def _by_rule(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    bias, sinks = options.get("bias"), options.get("sinks")
    learns = torch.is_grad_enabled() and any(
        array.requires_grad
        for array in (bias, mask, *((q, k, v, sinks) if sinks is not None else ()))
        if isinstance(array, Tensor)
    )
    in_blocks = (
        learns
        or bool(options.get("softcap"))
        or bool(options.get("dropout"))
        or q.device.type not in ("cpu", "cuda")
        or 0 in q.shape[:-1]
        or 0 in k.shape[:-1]
        or 0 in v.shape
    )
    if in_blocks:
        return attention_in_blocks(read_call(q, k, v, mask, **options))
    # The kernel adds a float mask as it is; only what is left of it is looked at here.
    floats = [mask] if isinstance(mask, Tensor) and mask.is_floating_point() else []
    for array in floats:
        _check_is_no_0_or_1(array)
    call = read_call(q, k, v, None if floats else mask, **{**options, "bias": None})
    full = (*q.shape[:-1], k.shape[-2])
    added = [
        in_four_dimensions(_wide(array, q), full) for array in (*floats, bias) if array is not None
    ]
    return _kernels(call, added[0] + added[1] if added[1:] else (*added, None)[0])


def _kernel_takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether PyTorch's CPU kernel takes these as they are (it crashes on empty ones)."""
    if q.ndim != 4 or k.shape != v.shape or k.ndim != 4 or not q.dtype == k.dtype == v.dtype:
        return False
    batch, heads, queries, width = q.shape
    key_batch, key_heads, keys, key_width = k.shape
    fits: bool = batch == key_batch and width == key_width and q.is_floating_point()
    full = batch and heads and queries and width and key_heads and keys
    rows = q.stride(3) == k.stride(3) == v.stride(3) == 1
    return fits and rows and bool(full) and heads % key_heads == 0


def _wide(added: Any, q: Tensor) -> Tensor:
    """An additive mask in a type that the kernels take."""
    kind = score_type(q)
    if not isinstance(added, Tensor):
        added = torch.as_tensor(added, device=q.device)
    if added.dtype != kind:  # what hides is measured by the mask's own lowest number
        hidden = added <= torch.finfo(added.dtype).min / 2
        added = added.to(kind).masked_fill(hidden, -math.inf)
    wide: Tensor = added
    return wide


def _kernels(call: Call, added: Tensor | None) -> tuple[Tensor, Tensor]:
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
        if extra is not None and (not lse.is_cpu or _has_empty_rows(lse, added is None)):
            sees = _rows_that_see(extra, diagonal, queries)
            return _without_empty_rows(output, lse, sees)
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
        return rule.start.shape[-1] == 1
    return isinstance(rule, Padding) or (isinstance(rule, Dense) and rule.visible.shape[-2] == 1)


def _rows_at_once(rule: Mask | None, added: Tensor | None, q: Tensor, keys: int) -> int:
    """How many rows one call of a kernel takes: no more mask than needed, or than a tile."""
    batch, heads, queries, _ = q.shape
    if rule is None or (_same_for_all_rows(rule) and added is None):
        return queries
    if queries * keys <= _SHORT and batch * heads * queries * keys <= torch_rows.TILE:
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
    return _numbers(visible[(None,) * (4 - visible.ndim)], q)


def _numbers(visible: Tensor, q: Tensor) -> Tensor:
    """0 for a visible key and −inf for a hidden one."""
    numbers, kind = torch.where(visible, 0.0, -math.inf), score_type(q)
    return numbers if numbers.dtype == kind else numbers.to(kind)


def _has_empty_rows(lse: Tensor, is_boolean: bool) -> bool:
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
    return float(_cpu_kernel(q, q, q, False, hidden, None)[1]) == 0


def _rows_that_see(extra: Tensor, diagonal: bool, queries: int) -> Tensor:
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


def _without_empty_rows(output: Tensor, lse: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
    """Kernels differ on rows that see nothing: 0, uniform, NaN; ours are 0 and −inf."""
    return output.masked_fill(~sees[..., None], 0.0), lse.masked_fill(~sees, -math.inf)


def _cpu_kernel(
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
        return _cpu_kernel(q, k, v, diagonal, extra, scale)
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
