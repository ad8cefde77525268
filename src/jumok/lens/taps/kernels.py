"""The log-sum-exp that a fused kernel computes anyway and PyTorch throws away."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from jumok.lens.taps.heard import Heard
from jumok.masks import Causal, Mask

aten = torch.ops.aten

# Position of the log-sum-exp in what each kernel returns: always the second.
_KERNELS_WITH_LSE = {
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}


class LseReader(TorchDispatchMode):
    """Pushed around one call: keeps the log-sum-exp of the kernel that runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lse: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, classes: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten.scaled_dot_product_attention.default:
            # Under inference_mode the composite operator arrives whole.
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _KERNELS_WITH_LSE:
            self.lse = result[1]
        return result


def _sees_itself(mask: Mask, heard: Heard) -> bool:
    """Whether every query sees a key, by the kind of the rule alone."""
    n_queries, n_keys = heard.q.shape[2], heard.k.shape[2]
    return type(mask) is Causal and mask.offset is None and n_queries <= n_keys


def lse_of_empty_rows(lse: Tensor, heard: Heard) -> Tensor:
    """−inf for rows that see nothing, where a kernel says 0 (torch's CPU flash kernel does)."""
    if heard.bias is None and (heard.mask is None or _sees_itself(heard.mask, heard)):
        return lse
    suspects = lse == 0
    if not bool(suspects.any()):
        return lse
    n_queries, n_keys = heard.q.shape[2], heard.k.shape[2]
    sees = torch.zeros_like(suspects)
    step = max(1, (1 << 24) // max(n_keys, 1))
    for start in range(0, n_queries, step):
        rows = range(start, min(start + step, n_queries))
        tile: Any = True
        if heard.mask is not None:
            tile = heard.mask.tile(rows, range(n_keys), n_queries, n_keys, lse)
        if heard.bias is not None:
            bias = heard.bias
            part = bias if bias.shape[-2] == 1 else bias[..., rows.start : rows.stop, :]
            tile = (part > -math.inf) & tile
        if isinstance(tile, bool):
            sees[..., rows.start : rows.stop] = tile
        else:
            sees[..., rows.start : rows.stop] = tile.any(-1)
    return lse.masked_fill(suspects & ~sees, -math.inf)
