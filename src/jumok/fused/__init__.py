"""Attention in linear memory, at the speed of the best kernel the array library has.

    output, lse = attention(q, k, v, mask, causal=True)

computes, for every query row i of every head,

    s_ij   = softcap(scale · q_i·k_j) + bias_ij,     −inf where the mask hides key j
    lse_i  = log Σ_j exp(s_ij)                       (natural log; a sink adds one more term)
    out_i  = Σ_j exp(s_ij − lse_i) v_j

and never holds a (queries, keys) array. PyTorch tensors go to PyTorch's own flash kernels,
which give the lse at no cost; what no kernel can do (softcap, dropout, a bias that learns)
runs in blocks of rows. NumPy arrays run in blocks of rows, on several threads.

Legend: B batch, H query heads, G key heads, T tokens (Tq queries, Tk keys), D head_dim.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from jumok.fused.numpy_rows import numpy_attention
from jumok.fused.reading import Array, Call, read_call
from jumok.masks import Mask

if TYPE_CHECKING:
    from jumok.fused.torch_calls import torch_attention

__all__ = ["Call", "attention", "read_call", "torch_attention"]


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | Array | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
    dropout: float = 0.0,
) -> tuple[Array, Array]:
    """Scaled dot-product attention and the log-sum-exp of its rows, in linear memory.

    Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762); row blocks after Dao et al. 2022
    (https://arxiv.org/abs/2205.14135).

    Args:
        q: queries (…, H, Tq, D); (Tq, D) for one head.
        k: keys (…, G, Tk, D). Query head h reads key head ``h // (H // G)``.
        v: values (…, G, Tk, Dv).
        mask: a rule (`jumok.masks`), booleans or 0/1 integers (`True` = may attend), or floats
            to be added; broadcastable to (…, H, Tq, Tk).
        causal: each query sees its own position and earlier ones; the last query stands on the
            last key. Joined with ``mask``.
        scale: factor of q·k; 1/√D if `None`.
        softcap: scores become ``softcap · tanh(score / softcap)`` before bias and mask.
        bias: added to the scores, broadcastable to (…, H, Tq, Tk).
        sinks: (H,) one logit a head that takes its share of the softmax and has no value.
        dropout: probability with which a weight is dropped (PyTorch only, while training).

    Returns:
        ``(output, lse)``: output (…, H, Tq, Dv) in the dtype of ``q``; lse (…, H, Tq) in float32
        (float64 for float64). A row that sees nothing has output 0 and lse −inf. The lse
        carries no gradient.

    Raises:
        ValueError: shapes that do not fit, a negative softcap, an ambiguous mask.
        TypeError: arrays of the wrong kind.
    """
    if type(q) is not np.ndarray:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(q, torch.Tensor):
            found: tuple[Array, Array] = _torch_calls().torch_attention(
                q,
                k,
                v,
                mask,
                causal=causal,
                scale=scale,
                softcap=softcap,
                bias=bias,
                sinks=sinks,
                dropout=dropout,
            )
            return found
    call = read_call(q, k, v, mask, causal, scale, softcap, bias, sinks, dropout)
    output, lse = numpy_attention(call)
    return output.reshape((*q.shape[:-1], v.shape[-1])), lse.reshape(q.shape[:-1])


@cache
def _torch_calls() -> ModuleType:
    """Loaded when it is first used, and PyTorch with it."""
    from jumok.fused import torch_calls

    return torch_calls


def __getattr__(name: str) -> Any:
    if name == "torch_attention":
        return _torch_calls().torch_attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
