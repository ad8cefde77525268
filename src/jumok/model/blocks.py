"""The blocks of a Transformer: attention between tokens, then a feed-forward network on each.

`Block` has self-attention alone; `DecoderBlock` also reads another text, the encoder's, between
the two. What each part adds to the stream is normalised before it (``x + f(norm(x))``) or with
it (``norm(x + f(x))``).

B batch, T tokens, E emb_dim.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from jumok.masks import Mask
from jumok.model.attention import CrossAttention, KeysValues, MultiHeadAttention, Turn
from jumok.model.cache import LayerCache
from jumok.model.config import Config
from jumok.model.parts import FeedForward, new_norm

__all__ = ["Block", "DecoderBlock"]


class Block(nn.Module):
    """Attention between tokens, then a feed-forward network on each, both added to the stream.

    Args:
        config: what it is made of.
        index: number of the layer, from 0.
        causal: whether tokens see only themselves and earlier tokens.
    """

    def __init__(self, config: Config, index: int, causal: bool) -> None:
        super().__init__()
        assert config.head_dim is not None
        scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        self.pre_norm = config.norm_place == "pre"
        # Embeddings that are normalised already are not normalised again.
        first = index == 0 and self.pre_norm and config.embedding_norm and not causal
        self.attention_norm = nn.Identity() if first else new_norm(config)
        self.attention = MultiHeadAttention(
            config.emb_dim,
            config.n_heads,
            config.n_kv_heads,
            config.head_dim,
            causal=causal,
            bias=config.qkv_bias,
            output_bias=config.output_bias,
            scale=scale / (index + 1) if config.inverse_layer_scale else scale,
            head_norm_eps=config.norm_eps if config.head_norm else None,
            dropout=config.attention_dropout,
        )
        self.feed_forward_norm = new_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        turn: Turn | None = None,
        cache: LayerCache | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(B, T, E) → (B, T, E); the arguments are those of `MultiHeadAttention`."""

        def attend(x: Tensor) -> Tensor:
            return self.attention(x, mask, turn=turn, cache=cache, bias=bias)  # type: ignore[no-any-return]

        x = self._add(x, self.attention_norm, attend)
        return self._add(x, self.feed_forward_norm, self.feed_forward)

    def _add(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Let a part add to the stream."""
        if self.pre_norm:
            return x + self.dropout(part(norm(x)))  # type: ignore[no-any-return]
        return norm(x + self.dropout(part(x)))  # type: ignore[no-any-return]


class DecoderBlock(Block):
    """A `Block` that reads the encoder's text after its own (Vaswani et al. 2017, figure 1).

    Args:
        config: what it is made of.
        index: number of the layer, from 0.
    """

    def __init__(self, config: Config, index: int) -> None:
        super().__init__(config, index, causal=True)
        assert config.head_dim is not None
        self.cross_attention_norm = new_norm(config)
        self.cross_attention = CrossAttention(
            config.emb_dim,
            config.n_heads,
            config.n_kv_heads,
            config.head_dim,
            bias=config.qkv_bias,
            output_bias=config.output_bias,
            scale=self.attention.scale,
            dropout=config.attention_dropout,
        )

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        source: KeysValues,
        mask: Mask | None = None,
        source_mask: Mask | None = None,
        turn: Turn | None = None,
        cache: LayerCache | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(B, T, E) → (B, T, E)

        Args:
            x: the target's stream.
            source: keys and values of the source, from ``cross_attention.keys_values``.
            mask: who sees whom within the target.
            source_mask: who sees whom of the source.
            turn: as in `MultiHeadAttention`, for the target.
            cache: of the target's earlier keys and values.
            bias: added to the scores within the target.
        """

        def attend(x: Tensor) -> Tensor:
            return self.attention(x, mask, turn=turn, cache=cache, bias=bias)  # type: ignore[no-any-return]

        def read(x: Tensor) -> Tensor:
            return self.cross_attention(x, source, source_mask)  # type: ignore[no-any-return]

        x = self._add(x, self.attention_norm, attend)
        x = self._add(x, self.cross_attention_norm, read)
        return self._add(x, self.feed_forward_norm, self.feed_forward)
