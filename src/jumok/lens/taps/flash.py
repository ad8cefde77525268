"""The package flash_attn, called directly: ``flash_attn_func`` and its kind.

Whatever name a model imported, all of them end in one of two operators, which the function mode
sees: ``flash_attn::_flash_attn_forward`` for batches of one length, and
``flash_attn::_flash_attn_varlen_forward`` for sequences laid end to end. Both give their
log-sum-exp. (``flash_attn_with_kvcache`` is no operator of torch, and cannot be heard.)

Conventions of flash_attn 2.1 and later: tensors are (batch, tokens, heads, head_dim); a causal
or windowed mask puts the last query on the last key; a window of (left, right) counts the keys
besides the query's own, −1 for all of them; ALiBi adds ``−slope · |distance|``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jumok.lens.taps.heard import Heard
from jumok.masks import Causal, Mask, Spans, Window

if TYPE_CHECKING:
    from jumok.lens.taps.listener import Listener

_BIAS = "the ALiBi of flash-attention that looks ahead, and was kept as a bias"


def is_flash(function: Any) -> bool:
    """Whether a function is an operator of flash_attn."""
    operator = isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    return operator and str(function).startswith("flash_attn")


def hear_flash(listener: Listener, function: Any, args: Any, kwargs: Any) -> Any:
    """Run and hear an operator of flash_attn; it returns the output, its lse and more."""
    result = function(*args, **kwargs)
    name = str(function).removesuffix(".default")
    if "backward" in name:
        return result
    readers: dict[str, Callable[..., Heard | None]] = {
        "flash_attn._flash_attn_forward": _of_one_length,
        "flash_attn._flash_attn_varlen_forward": _end_to_end,
    }
    read = readers.get(name)
    heard = None if read is None else read(result[1].detach(), *args, **kwargs)
    if heard is None:
        listener.unheard(f"a form of {name} that is not known")
        return result
    output = result[0]
    whole = output if output.ndim == 4 else output[None]
    other = listener.emit(
        heard,
        output,
        whole.transpose(1, 2),
        lambda new: new.transpose(1, 2).reshape(output.shape),
    )
    return result if other is output else (other, *result[1:])


def _of_one_length(
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    *_: Any,
    **__: Any,
) -> Heard:
    """q (B, Tq, H, D), k (B, Tk, G, D), v (B, Tk, G, Dv), lse (B, H, Tq)."""
    right = 0 if causal else window_size_right
    n_queries, n_keys = q.shape[1], k.shape[1]
    heard = Heard(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
        _band(window_size_left, right, n_queries, n_keys), None, softmax_scale,
        softcap=softcap or None, lse=lse[..., :n_queries],
    )  # fmt: skip
    if alibi_slopes is not None:
        slopes = alibi_slopes.float().reshape(-1, q.shape[2], 1, 1)
        place = torch.arange(n_keys, device=q.device)
        if right == 0:
            # Behind the query −|i − j| = j − i; the part of i is the same for the whole row.
            heard.bias = slopes * place
            rows = torch.arange(n_queries, device=q.device) + n_keys - n_queries
            heard.lse = lse[..., :n_queries] + (slopes * rows[:, None])[..., 0]
        else:
            rows = torch.arange(n_queries, device=q.device)[:, None] + n_keys - n_queries
            heard.bias = -slopes * (rows - place).abs()
            heard.stored_because = _BIAS
    return heard


def _band(left: int, right: int, n_queries: int, n_keys: int) -> Mask | None:
    if left < 0 and right < 0:
        return None
    if left < 0 and right == 0:
        return Causal()
    size = left + 1 if left >= 0 else n_queries + n_keys
    return Window(size, ahead=None if right < 0 else right)


def _end_to_end(
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    *_: Any,
    **__: Any,
) -> Heard | None:
    """q (tokens, H, D), k and v (tokens, G, D), lse (H, tokens): recorded as one batch element."""
    if any(x is not None for x in (alibi_slopes, block_table, leftpad_k, seqused_k)):
        return None
    if lse.shape != (q.shape[1], q.shape[0]):
        return None  # flash_attn before 2.6 pads it
    right = 0 if causal else window_size_right
    starts_q, starts_k = cu_seqlens_q.long(), cu_seqlens_k.long()
    token = torch.arange(q.shape[0], device=q.device)
    which = torch.searchsorted(starts_q, token, right=True) - 1
    first, after = starts_k[which], starts_k[which + 1]
    # The last query of a sequence stands on its last key.
    place = token - starts_q[which + 1] + after
    start = first if window_size_left < 0 else torch.maximum(first, place - window_size_left)
    stop = after if right < 0 else torch.minimum(after, place + right + 1)
    stop = torch.maximum(start, stop)
    return Heard(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None],
        Spans(start.int()[None], stop.int()[None]), None, softmax_scale,
        softcap=softcap or None, lse=lse[None],
    )  # fmt: skip
