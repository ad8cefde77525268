"""‖v_j W_O^(h)‖: how much a head can hand over from each key (Kobayashi et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jumok.lens.taps.output_map import OutputMap

_BLOCK = 4096  # keys at once


def value_norms(v: Tensor, projection: OutputMap, heads: Sequence[int], group: int) -> Tensor:
    """Norms of the values through their part of the output projection.

    ``W = R Q`` with orthonormal rows of Q gives ‖v W‖ = ‖v R‖, exactly, and R is only
    head_dim × head_dim.

    Args:
        v: values (B, G, T, Dv).
        projection: W_O (output width, heads · Dv) of all heads of the model.
        heads: the model's numbers of the query heads that `v` serves, H of them.
        group: how many of these read one key head.

    Returns:
        float32 (B, H, T), on the device of `v`.
    """
    batch, _, tokens, width = v.shape
    norms = torch.empty(batch, len(heads), tokens, dtype=torch.float32, device=v.device)
    with torch.no_grad():
        for number, head in enumerate(heads):
            part = projection[:, head * width : (head + 1) * width]
            triangle = torch.linalg.qr(part.double(), mode="r").R.float().to(v.device)
            for start in range(0, tokens, _BLOCK):
                block = v[:, number // group, start : start + _BLOCK].float()
                norms[:, number, start : start + _BLOCK] = (block @ triangle.T).norm(dim=-1)
    return norms
