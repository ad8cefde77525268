"""The Transformer of 2017: an encoder reads a source, a decoder writes a target that reads both.

B batch, T tokens (Ts of the source, Tt of the target), E emb_dim, V vocab_size.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from jumok.masks import Mask, Padding
from jumok.model.attention import KeysValues
from jumok.model.blocks import DecoderBlock
from jumok.model.cache import EncoderDecoderCache
from jumok.model.config import Config, EncoderDecoderConfig
from jumok.model.inputs import LayerRules, embedded, read_inputs
from jumok.model.linear import Linear, linear
from jumok.model.parts import (
    added_positions,
    initialise,
    new_norm,
    relative_bias,
    rotary_tables,
    table,
)
from jumok.model.transformer import Encoder

__all__ = ["EncoderDecoder", "TargetStack"]


class EncoderDecoder(nn.Module):
    """An encoder-decoder (Vaswani et al. 2017): logits for the next token of a target.

    Args:
        config: what it is made of. Weights are fresh: train them, or see `jumok.load`.

    Example:
        >>> config = EncoderDecoderConfig.vaswani(256, emb_dim=64, n_layers=2, n_heads=4, bos_id=0)
        >>> EncoderDecoder(config)(torch.tensor([[5, 6, 7]]), torch.tensor([[0, 1]])).shape
        torch.Size([1, 2, 256])
    """

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.encoder)
        self.decoder = TargetStack(config.decoder)
        vocab_size, emb_dim = config.vocab_size, config.emb_dim
        self.target_embedding = None if config.shared_embedding else table(vocab_size, emb_dim)
        self.head = None if config.tied_head else Linear(emb_dim, vocab_size, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(vocab_size)) if config.head_bias else None
        for part in (self.target_embedding, self.head):
            if part is not None:
                initialise(part, config.decoder)

    def forward(
        self,
        source_ids: Tensor | None,
        target_ids: Tensor,
        source_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        *,
        target_mask: Tensor | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Logits for the token after each token of the target.

        Args:
            source_ids: (B, Ts) token ids. `None`: the source that the cache holds already.
            target_ids: (B, Tt) token ids, the first of them ``config.bos_id``; with a cache,
                those after the ones it has seen.
            source_mask: (B, Ts), True or 1 = real token, False or 0 = padding, on either side.
            cache: from `new_cache`; it is extended. The source is read once, when it comes.
            target_mask: (B, Tt), as ``source_mask``.
            last: give logits for that many last tokens only.

        Returns:
            (B, Tt, V), or (B, last, V). Rows of padding hold numbers without meaning.

        Raises:
            ValueError: shapes, ids or lengths that the model can't take.
        """
        hidden = self.hidden(
            source_ids, target_ids, source_mask, cache, target_mask=target_mask, last=last
        )
        return linear(hidden, self.head_weight, self.head_bias)  # (B, Tt, V)

    def hidden(
        self,
        source_ids: Tensor | None,
        target_ids: Tensor,
        source_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        *,
        target_mask: Tensor | None = None,
        last: int | None = None,
    ) -> Tensor:
        """What logits are made of, (B, Tt, E) or (B, last, E): their scale is in it already.

        Arguments and errors are those of `forward`.
        """
        if source_ids is not None:
            source, rule = self.read(source_ids, source_mask)
            if cache is not None:
                cache.hold(source, rule)
        elif cache is None or cache.source is None:
            raise ValueError("no source: give source_ids, or a cache that has read them before")
        else:
            source, rule = cache.source, cache.source_rule
        hidden = self.decoder(self._embedding, target_ids, source, rule, cache, target_mask, last)
        scale = self.config.logit_scale
        return hidden if scale == 1.0 else hidden * scale  # type: ignore[no-any-return]

    @property
    def head_weight(self) -> Tensor:
        """(V, E): what hidden states are multiplied with to make logits."""
        return self._embedding.weight if self.head is None else self.head.weight

    def read(
        self, source_ids: Tensor, source_mask: Tensor | None = None
    ) -> tuple[list[KeysValues], Mask | None]:
        """The source as the decoder sees it.

        Args:
            source_ids: (B, Ts) token ids.
            source_mask: (B, Ts), True or 1 = real token.

        Returns:
            For each layer of the decoder, keys and values (B, G, Ts, D), and the rule of who
            sees whom, `None` if every token is real.
        """
        states = self.encoder(source_ids, source_mask)  # (B, Ts, E)
        visible = read_inputs(source_ids, source_mask)
        layers = cast("list[DecoderBlock]", list(self.decoder.layers))
        source = [layer.cross_attention.keys_values(states) for layer in layers]
        return source, None if visible is None else Padding(visible)

    def new_cache(self, room: int | None = None) -> EncoderDecoderCache:
        """An empty cache for this model.

        Args:
            room: how many target tokens it will hold, if that is known: nothing is moved then.
        """
        return EncoderDecoderCache(self.config.decoder.layer_windows, room)

    @property
    def _embedding(self) -> nn.Embedding:
        """The table of the target's tokens."""
        return self.encoder.embedding if self.target_embedding is None else self.target_embedding


class TargetStack(nn.Module):
    """The side of an `EncoderDecoder` that writes: causal blocks that also read the source.

    Args:
        config: what it is made of.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.positions = added_positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderBlock(config, i) for i in range(config.n_layers))
        self.norm = new_norm(config) if config.norm_place == "pre" else nn.Identity()
        self.relative_bias = relative_bias(config, both_ways=False)
        self._rotary = rotary_tables(config)
        initialise(self, config)

    def forward(
        self,
        embedding: nn.Embedding,
        ids: Tensor,
        source: list[KeysValues],
        source_rule: Mask | None,
        cache: EncoderDecoderCache | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Hidden states of the target, (B, Tt, E) or those of its ``last`` tokens.

        Args:
            embedding: the table of the target's tokens.
            ids: (B, Tt) token ids.
            source: keys and values of the source for each layer.
            source_rule: who sees whom of the source.
            cache: of earlier target tokens; it is extended.
            mask: (B, Tt), True or 1 = real token.
            last: how many tokens to give at most.
        """
        mask = read_inputs(ids, mask)
        batch, new = ids.shape
        n_sources = source[0][0].shape[0]
        if n_sources != batch:
            raise ValueError(f"{n_sources} sources and {batch} targets: one target for each source")
        past = 0 if cache is None else cache.length
        visible = mask if cache is None else cache.admit(batch, new, mask)  # (B, past + Tt)
        places: range | Tensor = range(past, past + new)
        if visible is not None:
            places = (visible.cumsum(1) - 1).clamp(min=0)[:, past:]  # (B, Tt)
        scale = self.config.embedding_scale
        x = self.dropout(embedded(embedding, ids, scale, self.positions, places))  # (B, Tt, E)
        turns = None if self._rotary is None or not new else [t(places, x) for t in self._rotary]
        rules = LayerRules(visible, self.relative_bias)
        layer_caches = [None] * len(self.layers) if cache is None else cache.layers
        for block, window, layer_cache, keys_values in zip(
            self.layers, self.config.layer_windows, layer_caches, source, strict=True
        ):
            n_keys = new + (0 if layer_cache is None else layer_cache.n_keys)
            x = block(
                x,
                keys_values,
                rules.mask(window, n_keys),
                source_rule,
                None if turns is None else turns[window is not None],
                layer_cache,
                rules.bias(new, n_keys),
            )
        return self.norm(x if last is None else x[:, max(0, new - last) :])  # type: ignore[no-any-return]
