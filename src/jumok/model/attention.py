"""Multi-head attention as a layer: projections around `jumok.fused.torch_attention`.

B batch, H heads, G key heads, T tokens (Tq, Tk), D head_dim, E emb_dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from jumok import fused, positions
from jumok.model.linear import Linear, linear

if TYPE_CHECKING:
    from jumok.masks import Mask
    from jumok.model.cache import LayerCache

Turn = tuple[Tensor, Tensor]
KeysValues = tuple[Tensor, Tensor]

_HAS_AMX = torch.cpu._is_amx_tile_supported()

__all__ = ["CrossAttention", "KeysValues", "MultiHeadAttention", "RotaryTable", "Turn"]


class MultiHeadAttention(nn.Module):
    """Attention in several heads: ``concat_h softmax(q_h k_hᵀ · scale) v_h · W_O``.

    Queries, keys and values come out of one fused linear map (Vaswani et al. 2017, section
    3.2.2). With fewer key heads than query heads, query head h reads key head ``h // (H // G)``
    (Ainslie et al. 2023).

    Args:
        emb_dim: width E of the input and of the output.
        n_heads: number of query heads H.
        n_kv_heads: number of key and value heads G; H is a multiple of it. `None`: H.
        head_dim: width D of a head. `None`: E / H.
        causal: a token sees itself and earlier tokens only; the last query stands on the last
            key.
        bias: whether the qkv projection has a bias.
        output_bias: whether the output projection has one. `None`: as ``bias``.
        scale: factor of the scores. `None`: 1 / √D.
        head_norm_eps: if given, each query and key head goes through an RMSNorm of its own
            before positions are applied (Qwen3).
        dropout: probability of dropping a weight while training.

    Raises:
        ValueError: the numbers of heads or widths don't fit.

    Example:
        >>> layer = MultiHeadAttention(emb_dim=64, n_heads=4, causal=True)
        >>> layer(torch.zeros(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        emb_dim: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = False,
        bias: bool = True,
        output_bias: bool | None = None,
        scale: float | None = None,
        head_norm_eps: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        n_kv_heads, head_dim = _check_heads(emb_dim, n_heads, n_kv_heads, head_dim, dropout)
        self.emb_dim, self.n_heads, self.n_kv_heads = emb_dim, n_heads, n_kv_heads
        self.head_dim, self.causal, self.dropout = head_dim, causal, dropout
        self.scale = head_dim**-0.5 if scale is None else scale
        self.qkv = Linear(emb_dim, (n_heads + 2 * n_kv_heads) * head_dim, bias=bias)
        self.output = Linear(
            n_heads * head_dim, emb_dim, bias=bias if output_bias is None else output_bias
        )
        normed = head_norm_eps is not None
        self.q_norm = nn.RMSNorm(head_dim, eps=head_norm_eps) if normed else None
        self.k_norm = nn.RMSNorm(head_dim, eps=head_norm_eps) if normed else None

    def forward(
        self,
        x: Tensor,
        mask: Mask | Any | None = None,
        *,
        context: Tensor | None = None,
        turn: Turn | None = None,
        cache: LayerCache | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Mix the values of the tokens that each token attends to.

        Args:
            x: (B, Tq, E); queries come from it.
            mask: who sees whom: a rule of `jumok.masks`, booleans or 0/1 integers that
                broadcast to (B, H, Tq, Tk), True = may attend, or floats to be added to the
                scores. A mask and ``causal`` intersect.
            context: (B, Tk, E) that keys and values come from (cross-attention). `None`: x.
            turn: cosines and sines from `RotaryTable`, applied to queries and keys.
            cache: earlier keys and values of this layer; the new ones are added to it.
            bias: added to the scores, broadcastable to (B, H, Tq, Tk).

        Returns:
            (B, Tq, E)
        """
        q, k, v = self._project(x, context)  # (B, T, H, D), (B, Tk, G, D), (B, Tk, G, D)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if turn is not None:
            q, k = _turned(q, turn), _turned(k, turn)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
        if cache is not None:
            k, v = cache.extend(k, v)
        mixed, _ = fused.torch_attention(
            q,
            k,
            v,
            mask,
            causal=self.causal,
            scale=self.scale,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
        )  # (B, H, Tq, D)
        return self.output(_joined(mixed))  # type: ignore[no-any-return]

    def _project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        _check_width(x, self.emb_dim)
        n_q, n_kv, d = self.n_heads, self.n_kv_heads, self.head_dim
        if context is None:
            qkv = _as_learned(self.qkv(x)).view(*x.shape[:2], n_q + 2 * n_kv, d)
            # One split: its gradient is one concatenation, where slices would fill and add three.
            q, k, v = qkv.split((n_q, n_kv, n_kv), dim=2)
            return q, k, v
        weight, bias, cut = self.qkv.weight, self.qkv.bias, n_q * d
        q = linear(x, weight[:cut], None if bias is None else bias[:cut])
        kv = linear(context, weight[cut:], None if bias is None else bias[cut:])
        kv = kv.view(*context.shape[:2], 2 * n_kv, d)
        return q.view(*x.shape[:2], n_q, d), kv[:, :, :n_kv], kv[:, :, n_kv:]

    def extra_repr(self) -> str:
        return (
            f"n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, head_dim={self.head_dim}, "
            f"causal={self.causal}"
        )


class CrossAttention(nn.Module):
    """Attention from one text to another: queries of the target, keys and values of the source.

    The source's keys and values are the same for every token of the target: form them once with
    `keys_values` (Vaswani et al. 2017, section 3.2.3, "encoder-decoder attention").

    Args:
        emb_dim: width E of both streams.
        n_heads: number of query heads H.
        n_kv_heads: number of key and value heads G; H is a multiple of it. `None`: H.
        head_dim: width D of a head. `None`: E / H.
        bias: whether the projections of queries, keys and values have biases.
        output_bias: whether the output projection has one. `None`: as ``bias``.
        scale: factor of the scores. `None`: 1 / √D.
        dropout: probability of dropping a weight while training.

    Raises:
        ValueError: the numbers of heads or widths don't fit.

    Example:
        >>> layer = CrossAttention(emb_dim=64, n_heads=4)
        >>> source = layer.keys_values(torch.zeros(2, 7, 64))
        >>> layer(torch.zeros(2, 10, 64), source).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        emb_dim: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        n_kv_heads, head_dim = _check_heads(emb_dim, n_heads, n_kv_heads, head_dim, dropout)
        self.emb_dim, self.n_heads, self.n_kv_heads = emb_dim, n_heads, n_kv_heads
        self.head_dim, self.dropout = head_dim, dropout
        self.scale = head_dim**-0.5 if scale is None else scale
        self.q = Linear(emb_dim, n_heads * head_dim, bias=bias)
        self.kv = Linear(emb_dim, 2 * n_kv_heads * head_dim, bias=bias)
        self.output = Linear(
            n_heads * head_dim, emb_dim, bias=bias if output_bias is None else output_bias
        )

    def keys_values(self, source: Tensor) -> KeysValues:
        """Keys and values of the source, (B, Tk, E) → (B, G, Tk, D) each."""
        _check_width(source, self.emb_dim)
        kv = _as_learned(self.kv(source)).view(
            *source.shape[:2], 2 * self.n_kv_heads, self.head_dim
        )
        keys, values = kv.transpose(1, 2).chunk(2, dim=1)
        return keys, values

    def forward(self, x: Tensor, source: KeysValues, mask: Mask | Any | None = None) -> Tensor:
        """Mix the values of the source's tokens that each target token attends to.

        Args:
            x: (B, Tq, E), the target.
            source: from `keys_values`.
            mask: who sees whom, as in `MultiHeadAttention.forward`.

        Returns:
            (B, Tq, E)
        """
        _check_width(x, self.emb_dim)
        q = _as_learned(self.q(x)).view(*x.shape[:2], self.n_heads, self.head_dim).transpose(1, 2)
        mixed, _ = fused.torch_attention(
            q, *source, mask, scale=self.scale, dropout=self.dropout if self.training else 0.0
        )  # (B, H, Tq, D)
        return self.output(_joined(mixed))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, head_dim={self.head_dim}"


def _check_heads(
    emb_dim: int, n_heads: int, n_kv_heads: int | None, head_dim: int | None, dropout: float
) -> tuple[int, int]:
    """The number of key heads and the width of a head, settled."""
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    if n_heads < 1:
        raise ValueError(f"n_heads={n_heads}: at least 1")
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(
            f"n_heads={n_heads} must be a positive multiple of n_kv_heads={n_kv_heads}"
        )
    if head_dim is None:
        if emb_dim % n_heads:
            raise ValueError(
                f"emb_dim={emb_dim} is not a multiple of n_heads={n_heads}; "
                f"change one of them or give head_dim"
            )
        head_dim = emb_dim // n_heads
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout}: a probability from 0 to below 1")
    return n_kv_heads, head_dim


def _check_width(x: Tensor, emb_dim: int) -> None:
    if x.ndim != 3 or x.shape[-1] != emb_dim:
        raise ValueError(f"this layer takes (batch, tokens, {emb_dim}); got {tuple(x.shape)}")


def _as_learned(projected: Tensor) -> Tensor:
    """In float32 where autocast has made it bfloat16 on a CPU, and gradients will flow.

    Without AMX the gradient of PyTorch's CPU kernel takes half as long again in bfloat16 as in
    float32. Keys, values and queries are the same numbers; scores and mixes are sums in float32.
    """
    if (
        projected.dtype == torch.bfloat16
        and projected.is_cpu
        and projected.requires_grad
        and torch.is_autocast_enabled("cpu")
        and not _HAS_AMX
    ):
        return projected.float()
    return projected


def _joined(mixed: Tensor) -> Tensor:
    """The heads of one token side by side: (B, H, T, D) → (B, T, H·D)"""
    batch, _, tokens, _ = mixed.shape
    return mixed.transpose(1, 2).reshape(batch, tokens, mixed.shape[1] * mixed.shape[3])


class RotaryTable:
    """Cosines and sines of rotary positions (half-split layout), kept for the tokens seen so far.

    Formed in float32 once and grown by doubling, so a decode step only slices. The sine has the
    sign of the pair's partner folded in: ``x·cos + swapped(x)·sin`` is `jumok.positions.rotate`.

    Args:
        head_dim: width D of a head.
        theta: the base of the frequencies.
        scaling: how they are changed for longer contexts, see `jumok.positions`.
    """

    def __init__(self, head_dim: int, theta: float, scaling: positions.Scaling | None) -> None:
        self.frequencies = positions.rotary_frequencies(head_dim, theta, scaling)
        self.magnitude = 1.0 if scaling is None else scaling.magnitude
        self._cos = self._sin = torch.empty(0, head_dim)

    def __call__(self, places: range | Tensor, like: Tensor) -> Turn:
        """Phases for token positions.

        Args:
            places: a range, or integers (B, T).
            like: a tensor of the dtype and on the device that is wanted.

        Returns:
            ``(cos, sin)``, each (1 or B, T, 1, D).
        """
        end = places.stop if isinstance(places, range) else int(places.max()) + 1
        cos = self._cos
        if end > len(cos) or cos.dtype != like.dtype or cos.device != like.device:
            self._grow(end, like)
        if isinstance(places, range):
            part = slice(places.start, places.stop)
            return self._cos[None, part, None], self._sin[None, part, None]
        return self._cos[places][:, :, None], self._sin[places][:, :, None]

    def _grow(self, end: int, like: Tensor) -> None:
        size = max(256, 1 << (end - 1).bit_length())
        # Made outside inference mode, so that a later training step may use the table too.
        with torch.inference_mode(False):
            places = torch.arange(size, device=like.device)
            cos, sin = positions.rotary_phases(places, self.frequencies, self.magnitude)
            self._cos = torch.cat([cos, cos], dim=-1).to(like.dtype)
            self._sin = torch.cat([-sin, sin], dim=-1).to(like.dtype)


def _turned(x: Tensor, turn: Turn) -> Tensor:
    cos, sin = turn
    if cos.dtype != x.dtype:  # autocast
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
    return torch.addcmul(x * cos, swapped, sin)
