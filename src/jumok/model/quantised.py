"""Linear maps whose weights are kept in 8 or 4 bits: less to read for every new token.

Only weights are rounded, never what goes through them:

- **int8**: ``w ≈ scale · q``, one scale for each row, q from −127 to 127;
- **int4**: ``w ≈ scale · (q − 8) + zero``, one scale and one zero for each 32 weights of a row, q
  from 0 to 15, which gives back the weights of a Q4_0 or Q4_1 file as they were. The output head
  is int8 then.

The products are PyTorch's own kernels for these formats, in bfloat16 with sums in float32.

N out_features, K in_features, M vectors.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.linear import Linear
from jumok.model.transformer import Decoder, Encoder

__all__ = ["Int4Linear", "Int8Linear", "Weights", "is_quantised", "quantise"]

Weights = Literal["int8", "int4"]

GROUP = 32  # weights that share a scale in int4
_FEW = 16  # vectors; for more of them the weights are widened first


class Int8Linear(nn.Module):
    """``x Wᵀ + b`` with W in int8, one scale a row.

    Args:
        weight: (N, K), K a multiple of 32.
        bias: (N,), or `None`.
    """

    units: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        if self.in_features % GROUP:
            raise ValueError(f"in_features={self.in_features}: a multiple of {GROUP}")
        wide = F.pad(weight.detach().float(), (0, 0, 0, -len(weight) % 16))  # whole blocks of rows
        scale = wide.abs().amax(dim=1).clamp(min=1e-12).div(127).bfloat16()
        units = (wide / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("units", units)  # (N, K)
        self.register_buffer("scale", scale)  # (N,)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @property
    def weight(self) -> Tensor:
        """The weights as they are used, float32 (N, K)."""
        return (self.units.float() * self.scale.float()[:, None])[: self.out_features]

    def forward(self, x: Tensor) -> Tensor:
        """(…, K) → (…, N)"""
        rows = x.reshape(-1, self.in_features)
        if len(rows) <= _FEW:
            y = torch._weight_int8pack_mm(rows.bfloat16(), self.units, self.scale)
            y = y[:, : self.out_features].to(x.dtype)
        else:
            y = F.linear(rows, self.weight.to(x.dtype))
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Int4Linear(nn.Module):
    """``x Wᵀ + b`` with W in 4 bits, a scale and a zero for each 32 weights of a row.

    Args:
        weight: (N, K), N a multiple of 16 and K of 32.
        bias: (N,), or `None`.
    """

    units: Tensor
    numbers: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        n, k = self.out_features, self.in_features = weight.shape
        if not self.takes(weight):
            raise ValueError(f"weight {(n, k)}: multiples of 16 and {GROUP}")
        groups = weight.detach().float().view(n, k // GROUP, GROUP)
        lowest = groups.amin(dim=-1)
        scale = ((groups.amax(dim=-1) - lowest) / 15).clamp(min=1e-12)  # (N, K/32)
        units = ((groups - lowest[..., None]) / scale[..., None]).round().clamp(0, 15)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            units.view(n, k).to(torch.int32), 1
        )
        numbers = torch.stack([scale, lowest + 8 * scale], dim=-1).transpose(0, 1)
        self.register_buffer("units", packed)
        self.register_buffer("numbers", numbers.bfloat16().contiguous())  # (K/32, N, 2)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @staticmethod
    def takes(weight: Tensor) -> bool:
        """Whether the kernel takes a weight of this shape."""
        return weight.shape[0] % 16 == 0 and weight.shape[1] % GROUP == 0

    @property
    def weight(self) -> Tensor:
        """The weights as they are used, float32 (N, K)."""
        return self._product(torch.eye(self.in_features, dtype=torch.bfloat16)).mT.float()

    def _product(self, rows: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu.default(
            rows, self.units, GROUP, self.numbers
        )
        return found

    def forward(self, x: Tensor) -> Tensor:
        """(…, K) → (…, N)"""
        y = self._product(x.reshape(-1, self.in_features).bfloat16()).to(x.dtype)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, group={GROUP}"


def is_quantised(model: nn.Module) -> bool:
    """Whether a model has maps of these kinds."""
    return any(isinstance(part, (Int8Linear, Int4Linear)) for part in model.modules())


def quantise(model: nn.Module, weights: Weights) -> None:
    """Put a model's linear maps into 8 or 4 bits, in place.

    Embeddings, norms and biases stay as they are, and so do maps whose in_features are no
    multiple of 32. What the number of rows does not allow in 4 bits is put into 8.

    Args:
        model: a `Decoder`, `Encoder` or `EncoderDecoder` on the CPU.
        weights: "int8" or "int4".

    Raises:
        TypeError: another model.
        ValueError: other weights, or a model that is not on the CPU.
    """
    if weights not in ("int8", "int4"):
        raise ValueError(f"weights={weights!r}: 'int8' or 'int4'")
    if not isinstance(model, (Decoder, Encoder, EncoderDecoder)):
        raise TypeError(
            f"weights={weights!r} is for models that jumok builds; got {type(model).__name__}"
        )
    if any(not parameter.is_cpu for parameter in model.parameters()):
        raise ValueError(f"weights={weights!r} runs on the CPU; leave out device")
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is Linear and part.in_features % GROUP == 0:
                small = weights == "int4" and name != "head" and Int4Linear.takes(part.weight)
                kind: Any = Int4Linear if small else Int8Linear
                setattr(parent, name, kind(part.weight, part.bias))
    if isinstance(model, Decoder) and model.head is None and model.config.emb_dim % GROUP == 0:
        setattr(model, "head", Int8Linear(model.embedding.weight))  # noqa: B010
    for parameter in model.parameters():
        parameter.requires_grad_(False)
