"""A linear map that reads its weights with all threads, also for a single token.

Generating a token multiplies each weight matrix by one vector, which costs as much as reading
the matrix from memory. The float32 kernel that PyTorch takes for that on a CPU uses one thread;
a batch of products, one for each share of the rows, uses all.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

__all__ = ["Linear", "linear", "shares_of"]

_FEW = 4  # vectors; from about twice as many on the usual kernel is as good


class Linear(nn.Linear):
    """``torch.nn.Linear`` by way of `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """(…, in_features) → (…, out_features)"""
        return linear(input, self.weight, self.bias)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``, as ``torch.nn.functional.linear``.

    Args:
        input: (…, K)
        weight: (N, K)
        bias: (N,), or `None`.

    Returns:
        (…, N)
    """
    if has_torch_function((input, weight)):
        heard: Tensor = handle_torch_function(linear, (input, weight), input, weight, bias)
        return heard
    width = input.shape[-1]
    few = 0 < input.numel() <= _FEW * width
    if not (few and input.is_cpu and input.dtype == weight.dtype == torch.float32):
        return F.linear(input, weight, bias)
    shares = shares_of(len(weight), torch.get_num_threads())
    if shares == 1 or torch.is_autocast_enabled("cpu"):
        return F.linear(input, weight, bias)
    vectors = input.reshape(-1, width).mT.expand(shares, width, -1)  # (S, K, M)
    product = torch.bmm(weight.view(shares, -1, width), vectors)  # (S, N/S, M)
    if vectors.shape[2] > 1:
        product = product.view(len(weight), -1).mT.contiguous()
    output = product.view(*input.shape[:-1], len(weight))
    return output if bias is None else output + bias


@cache
def shares_of(rows: int, threads: int) -> int:
    """Into how many equal parts to cut the rows: as many as threads, if that goes."""
    return max(share for share in range(1, min(threads, 16) + 1) if rows % share == 0)
