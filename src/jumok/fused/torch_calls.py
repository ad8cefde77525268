"""PyTorch: which way a call goes: straight to one kernel, to several, or in blocks of rows."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from jumok.fused import torch_rows
from jumok.fused.reading import in_four_dimensions, read_call
from jumok.fused.torch_kernels import (
    SHORT,
    attention_by_kernels,
    cpu_kernel,
    has_empty_rows,
    numbers_of,
    rows_that_see,
    without_empty_rows,
)
from jumok.fused.torch_rows import attention_in_blocks, score_type
from jumok.masks import Both, Causal, Mask, Padding, Window, join, read_mask


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
        return cpu_kernel(q, k, v, diagonal, None, scale)
    added = _added(mask, q, keys) if bias is None else _added(bias, q, keys, is_bias=True)
    if added is None:
        return None
    output, lse = cpu_kernel(q, k, v, diagonal, added, scale)
    if has_empty_rows(lse, mask is not None and mask.dtype == torch.bool):
        return without_empty_rows(output, lse, rows_that_see(added, diagonal, queries))
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
        elif queries * keys > SHORT:
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
        added = numbers_of(mask, q) if mask.numel() <= torch_rows.TILE else None
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
    return attention_by_kernels(call, added[0] + added[1] if added[1:] else (*added, None)[0])


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
