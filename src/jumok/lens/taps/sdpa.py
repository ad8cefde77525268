"""``F.scaled_dot_product_attention`` in all its forms, and jumok's own `fused.torch_attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import functional as F

from jumok import fused
from jumok.lens.taps.heard import (
    Heard,
    autocast,
    four_dimensional,
    four_dimensional_mask,
    scale_of,
    top_left,
)
from jumok.lens.taps.kernels import LseReader
from jumok.masks import join

if TYPE_CHECKING:
    from jumok.lens.taps.listener import Listener


def hear_sdpa(
    listener: Listener, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Run and hear ``F.scaled_dot_product_attention``."""
    with LseReader() as reader:
        output: Tensor = F.scaled_dot_product_attention(*args, **kwargs)
    q, k, v, attn_mask, is_causal, scale = _arguments(*args, **kwargs)
    q, k, v, attn_mask = autocast(q, k, v, attn_mask)
    mask, bias = listener.masks.read(
        four_dimensional_mask(attn_mask, q, k), q.shape[-2], k.shape[-2]
    )
    if is_causal:
        mask = join(mask, top_left(q.shape[-2], k.shape[-2]))
    q4, k4, v4 = four_dimensional(q, k, v)
    heard = Heard(q4, k4, v4, mask, bias, scale_of(scale, q), lse=reader.lse)
    by_heads = output.reshape(*q4.shape[:3], v4.shape[3])
    return listener.emit(heard, output, by_heads, lambda new: new.reshape(output.shape))


def hear_own(
    listener: Listener, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Run and hear jumok's own attention, which gives its lse."""
    output, lse = fused.torch_attention(*args, **kwargs)
    call = fused.read_call(*args, **kwargs)
    heard = Heard(
        call.q, call.k, call.v, call.rule, call.bias, call.scale, call.softcap, call.sinks, lse
    )
    by_heads = output.reshape(*call.q.shape[:3], call.v.shape[3])
    shape = output.shape
    return listener.emit(heard, output, by_heads, lambda new: new.reshape(shape)), lse


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool, float | None]:
    return query, key, value, attn_mask, is_causal, scale
