"""The Transformer with one stack of blocks: a decoder (GPT) and an encoder (BERT).

A model reads top to bottom: embed the tokens, send them through the blocks, normalise. What
differs between published families is in `Config`, as values and small objects.

B batch, T tokens, E emb_dim, H heads, D head_dim, F hidden_dim, V vocab_size, L layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from jumok.model.blocks import Block
from jumok.model.cache import KeyValueCache
from jumok.model.config import Config, Learned, Relative, Rotary, Sinusoidal
from jumok.model.inputs import LayerRules, embedded, read_inputs
from jumok.model.linear import Linear, linear
from jumok.model.parts import (
    MaskedHead,
    added_positions,
    initialise,
    new_norm,
    relative_bias,
    rotary_tables,
    table,
)

if TYPE_CHECKING:
    from jumok.model.pooling import SentenceHead

__all__ = ["Config", "Decoder", "Encoder", "Learned", "Relative", "Rotary", "Sinusoidal"]


class Decoder(nn.Module):
    """A GPT: each token sees itself and earlier tokens; logits for the next token.

    Args:
        config: what it is made of. Weights are fresh: train them, or see `jumok.load`.

    Attributes:
        sentence_head: how `jumok.embed` sums a text up, if the model's folder says so.

    Example:
        >>> model = Decoder(Config(vocab_size=256, emb_dim=64, n_layers=2, n_heads=4))
        >>> model(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 256])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        if isinstance(config.positions, Learned) and config.positions.pad_id is not None:
            raise ValueError(f"{config.positions} numbers the tokens of an Encoder, not a Decoder")
        self.config = config
        self.sentence_head: SentenceHead | None = None
        self.embedding = table(config.vocab_size, config.emb_dim)
        self.positions = added_positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, i, causal=True) for i in range(config.n_layers))
        self.norm = new_norm(config) if config.norm_place == "pre" else nn.Identity()
        self.head = (
            None if config.tied_head else Linear(config.emb_dim, config.vocab_size, bias=False)
        )
        self.relative_bias = relative_bias(config, both_ways=False)
        self._rotary = rotary_tables(config)
        initialise(self, config)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        last: int | None = None,
        *,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Logits for the token after each token.

        Args:
            ids: (B, T) token ids; with a cache, those after the ones it has seen.
            mask: (B, T), True or 1 = real token, False or 0 = padding, on either side.
            cache: from `new_cache`; it is extended.
            last: give logits for that many last tokens only.
            documents: (B, T) integers, the document that each token belongs to, where several
                lie in one row and shall not see each other; without a cache only. Positions run
                through the row.

        Returns:
            (B, T, V), or (B, last, V). Rows of padding hold numbers without meaning.

        Raises:
            ValueError: shapes, ids or lengths that the model can't take.
        """
        x = self.hidden(ids, mask, cache, last, documents=documents)
        if self.head is not None:
            return self.head(x)  # type: ignore[no-any-return]
        return linear(x, self.embedding.weight)  # (B, T, V)

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        last: int | None = None,
        *,
        documents: Tensor | None = None,
    ) -> Tensor:
        """What logits are made of: the normalised stream, (B, T, E) or (B, last, E).

        Arguments and errors are those of `forward`.
        """
        mask = read_inputs(ids, mask)
        if documents is not None and (cache is not None or documents.shape != ids.shape):
            raise ValueError(
                f"documents {tuple(documents.shape)}: of the shape of ids {tuple(ids.shape)}, and "
                f"without a cache"
            )
        batch, new = ids.shape
        past = 0 if cache is None else cache.length
        visible = mask if cache is None else cache.admit(batch, new, mask)  # (B, past + T)
        places: range | Tensor = range(past, past + new)
        if visible is not None:
            places = (visible.cumsum(1) - 1).clamp(min=0)[:, past:]  # (B, T)
        scale = self.config.embedding_scale
        x = self.dropout(embedded(self.embedding, ids, scale, self.positions, places))  # (B, T, E)
        turns = None if self._rotary is None or not new else [t(places, x) for t in self._rotary]
        rules = LayerRules(visible, self.relative_bias, documents=documents)
        layer_caches = [None] * len(self.layers) if cache is None else cache.layers
        for block, window, layer_cache in zip(
            self.layers, self.config.layer_windows, layer_caches, strict=True
        ):
            n_keys = new + (0 if layer_cache is None else layer_cache.n_keys)
            turn = None if turns is None else turns[window is not None]
            rule, bias = rules.mask(window, n_keys), rules.bias(new, n_keys)
            x = block(x, rule, turn, layer_cache, bias)  # (B, T, E)
        return self.norm(x if last is None else x[:, max(0, new - last) :])  # type: ignore[no-any-return]

    @property
    def head_weight(self) -> Tensor:
        """(V, E): what hidden states are multiplied with to make logits."""
        return self.embedding.weight if self.head is None else self.head.weight

    def new_cache(self, room: int | None = None) -> KeyValueCache:
        """An empty cache of keys and values for this model.

        Args:
            room: how many tokens it will hold, if that is known: nothing is moved then.
        """
        return KeyValueCache(self.config.layer_windows, room)


class Encoder(nn.Module):
    """A BERT: each token sees all tokens; a hidden state for each.

    Args:
        config: what it is made of. Weights are fresh: train them, or see `jumok.load`.

    Attributes:
        sentence_head: how `jumok.embed` sums a text up, if the model's folder says so.

    Example:
        >>> config = Config(vocab_size=256, emb_dim=64, n_layers=2, n_heads=4)
        >>> Encoder(config)(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 64])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.sentence_head: SentenceHead | None = None
        self.embedding = table(config.vocab_size, config.emb_dim)
        self.positions = added_positions(config)
        self.token_types = table(config.token_types, config.emb_dim) if config.token_types else None
        post = config.norm_place == "post"
        self.embedding_norm = new_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, i, causal=False) for i in range(config.n_layers))
        self.norm = nn.Identity() if post else new_norm(config)
        self.pooler = nn.Linear(config.emb_dim, config.emb_dim) if config.pooler else None
        self.masked_head = MaskedHead(config) if config.masked_head else None
        self.relative_bias = relative_bias(config, both_ways=True)
        self._rotary = rotary_tables(config)
        initialise(self, config)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, *, token_types: Tensor | None = None
    ) -> Tensor:
        """A hidden state for each token.

        Args:
            ids: (B, T) token ids.
            mask: (B, T), True or 1 = real token, False or 0 = padding, on either side.
            token_types: (B, T) ids of token types; 0 everywhere if not given.

        Returns:
            (B, T, E). Rows of padding hold numbers without meaning.

        Raises:
            ValueError: shapes, ids or lengths that the model can't take.
        """
        mask = read_inputs(ids, mask)
        new = ids.shape[1]
        places: range | Tensor = range(new)
        if mask is not None:  # padding on the left is not counted
            first = mask.to(torch.uint8).argmax(dim=1, keepdim=True)
            places = (torch.arange(new, device=ids.device) - first).clamp(min=0)  # (B, T)
        scale = self.config.embedding_scale
        x = embedded(self.embedding, ids, scale, self.positions, places, mask)  # (B, T, E)
        if self.token_types is not None:
            x = x + self.token_types(torch.zeros_like(ids) if token_types is None else token_types)
        elif token_types is not None:
            raise ValueError("this model has no token types (config.token_types is 0)")
        x = self.dropout(self.embedding_norm(x))
        turns = None if self._rotary is None or not new else [t(places, x) for t in self._rotary]
        rules = LayerRules(mask, self.relative_bias, both_ways=True)
        for block, window in zip(self.layers, self.config.layer_windows, strict=True):
            turn = None if turns is None else turns[window is not None]
            x = block(x, rules.mask(window, new), turn, bias=rules.bias(new, new))  # (B, T, E)
        return self.norm(x)  # type: ignore[no-any-return]

    def pooled(self, hidden: Tensor) -> Tensor:
        """BERT's summary of a text: ``tanh(W · first hidden state + b)``, (B, T, E) → (B, E)."""
        if self.pooler is None:
            raise ValueError("this model has no pooler (config.pooler is False)")
        return torch.tanh(self.pooler(hidden[:, 0]))

    def logits(self, hidden: Tensor) -> Tensor:
        """What each token would be if it were masked, (B, T, E) → (B, T, V).

        Raises:
            ValueError: the model was loaded without a head for that.
        """
        if self.masked_head is None:
            raise ValueError(
                "this model has no head that guesses masked tokens (config.masked_head is False)"
            )
        return self.masked_head(hidden, self.embedding.weight)  # type: ignore[no-any-return]
