"""The Transformer: one configuration, one block, a decoder (GPT) and an encoder (BERT).

A model reads top to bottom: embed the tokens, send them through the blocks, normalise. What
differs between published families is in `Config`, as values and small objects.

B batch, T tokens, E emb_dim, H heads, D head_dim, F hidden_dim, V vocab_size, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok.masks import Mask, Padding, Window, join
from jumok.model.attention import MultiHeadAttention, RotaryTable, Turn
from jumok.model.cache import KeyValueCache, LayerCache
from jumok.model.config import Config, Learned, Rotary
from jumok.model.linear import Linear, linear

__all__ = ["Block", "Config", "Decoder", "Encoder", "Learned", "Rotary"]


class Decoder(nn.Module):
    """A GPT: each token sees itself and earlier tokens; logits for the next token.

    Args:
        config: what it is made of. Weights are fresh: train them, or see `jumok.load`.

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
        self.embedding = _table(config.vocab_size, config.emb_dim)
        self.positions = _learned_positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, i, causal=True) for i in range(config.n_layers))
        self.norm = _norm(config) if config.norm_place == "pre" else nn.Identity()
        self.head = (
            None if config.tied_head else Linear(config.emb_dim, config.vocab_size, bias=False)
        )
        self._rotary = _rotary_table(config)
        _initialise(self, config)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Logits for the token after each token.

        Args:
            ids: (B, T) token ids; with a cache, those after the ones it has seen.
            mask: (B, T), True or 1 = real token, False or 0 = padding, on either side.
            cache: from `new_cache`; it is extended.
            last: give logits for that many last tokens only.

        Returns:
            (B, T, V), or (B, last, V). Rows of padding hold numbers without meaning.

        Raises:
            ValueError: shapes, ids or lengths that the model can't take.
        """
        mask = _read_inputs(ids, mask)
        batch, new = ids.shape
        past = 0 if cache is None else cache.length
        visible = mask if cache is None else cache.admit(batch, new, mask)  # (B, past + T)
        places: range | Tensor = range(past, past + new)
        if visible is not None:
            places = (visible.cumsum(1) - 1).clamp(min=0)[:, past:]  # (B, T)
        x = _embed(self.embedding, ids)  # (B, T, E)
        if self.positions is not None:
            x = x + self.positions(places, ids)
        x = self.dropout(x)
        turn = None if self._rotary is None or not new else self._rotary(places, x)
        layer_caches = [None] * len(self.layers) if cache is None else cache.layers
        masks: dict[tuple[int | None, int], Mask | None] = {}  # one object for all like layers
        for block, window, layer_cache in zip(
            self.layers, self.config.layer_windows, layer_caches, strict=True
        ):
            n_keys = new + (0 if layer_cache is None else layer_cache.n_keys)
            if (window, n_keys) not in masks:
                masks[window, n_keys] = _rule(visible, window, n_keys)
            x = block(x, masks[window, n_keys], turn, layer_cache)  # (B, T, E)
        if last is not None:
            x = x[:, max(0, new - last) :]
        x = self.norm(x)
        if self.head is not None:
            return self.head(x)  # type: ignore[no-any-return]
        return linear(x, self.embedding.weight)  # (B, T, V)

    def new_cache(self) -> KeyValueCache:
        """An empty cache of keys and values for this model."""
        return KeyValueCache(self.config.layer_windows)


class Encoder(nn.Module):
    """A BERT: each token sees all tokens; a hidden state for each.

    Args:
        config: what it is made of. Weights are fresh: train them, or see `jumok.load`.

    Example:
        >>> config = Config(vocab_size=256, emb_dim=64, n_layers=2, n_heads=4)
        >>> Encoder(config)(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 64])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.windows:
            raise ValueError(f"windows={config.windows}: an Encoder sees all tokens in every layer")
        self.config = config
        self.embedding = _table(config.vocab_size, config.emb_dim)
        self.positions = _learned_positions(config)
        self.token_types = (
            _table(config.token_types, config.emb_dim) if config.token_types else None
        )
        post = config.norm_place == "post"
        self.embedding_norm = _norm(config) if post else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, i, causal=False) for i in range(config.n_layers))
        self.norm = nn.Identity() if post else _norm(config)
        self.pooler = nn.Linear(config.emb_dim, config.emb_dim) if config.pooler else None
        self._rotary = _rotary_table(config)
        _initialise(self, config)

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
        mask = _read_inputs(ids, mask)
        new = ids.shape[1]
        places: range | Tensor = range(new)
        if mask is not None:  # padding on the left is not counted
            first = mask.to(torch.uint8).argmax(dim=1, keepdim=True)
            places = (torch.arange(new, device=ids.device) - first).clamp(min=0)  # (B, T)
        x = _embed(self.embedding, ids)  # (B, T, E)
        if self.token_types is not None:
            x = x + self.token_types(torch.zeros_like(ids) if token_types is None else token_types)
        elif token_types is not None:
            raise ValueError("this model has no token types (config.token_types is 0)")
        if self.positions is not None:
            x = x + self.positions(places, ids, mask)
        x = self.dropout(self.embedding_norm(x))
        turn = None if self._rotary is None or not new else self._rotary(places, x)
        rule = _rule(mask, None, new)
        for block in self.layers:
            x = block(x, rule, turn)  # (B, T, E)
        return self.norm(x)  # type: ignore[no-any-return]

    def pooled(self, hidden: Tensor) -> Tensor:
        """BERT's summary of a text: ``tanh(W · first hidden state + b)``, (B, T, E) → (B, E)."""
        if self.pooler is None:
            raise ValueError("this model has no pooler (config.pooler is False)")
        return torch.tanh(self.pooler(hidden[:, 0]))


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
        scale = config.head_dim**-0.5
        self.pre_norm = config.norm_place == "pre"
        self.attention_norm = _norm(config)
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
        self.feed_forward_norm = _norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        turn: Turn | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(B, T, E) → (B, T, E); the arguments are those of `MultiHeadAttention`."""
        if self.pre_norm:
            mixed = self.attention(self.attention_norm(x), mask, turn=turn, cache=cache)
            x = x + self.dropout(mixed)
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))  # type: ignore[no-any-return]
        mixed = self.attention(x, mask, turn=turn, cache=cache)
        x = self.attention_norm(x + self.dropout(mixed))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """``down(act(up(x)))``; gated (SwiGLU, Shazeer 2020): ``down(silu(gate(x)) · up(x))``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        gated, self.activation = _FEED_FORWARDS[config.feed_forward]
        assert config.hidden_dim is not None
        narrow, wide, bias = config.emb_dim, config.hidden_dim, config.feed_forward_bias
        self.gate = Linear(narrow, wide, bias=bias) if gated else None
        self.up = Linear(narrow, wide, bias=bias)
        self.down = Linear(wide, narrow, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) → (B, T, E)"""
        if self.gate is None:
            hidden = self.activation(self.up(x))  # (B, T, F)
        else:
            hidden = self.activation(self.gate(x)) * self.up(x)
        return self.down(hidden)  # type: ignore[no-any-return]


class LearnedPositions(nn.Embedding):
    """The table of learned positions, see `Learned`."""

    def __init__(self, rows: int, emb_dim: int, pad_id: int | None) -> None:
        super().__init__(rows, emb_dim, _weight=torch.empty(rows, emb_dim))
        self.pad_id = pad_id

    def forward(  # type: ignore[override]
        self, places: range | Tensor, ids: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Vectors (1 or B, T, E) for token positions: a range, or integers (B, T)."""
        context = self.num_embeddings - (0 if self.pad_id is None else self.pad_id + 1)
        end = places.stop if isinstance(places, range) else int(places.max()) + 1
        if end > context:
            raise ValueError(
                f"the text has {end} tokens, but this model has only {context} positions: "
                f"shorten the text"
            )
        if self.pad_id is not None:
            real = ids != self.pad_id if mask is None else (ids != self.pad_id) & mask
            places = real.cumsum(1) * real + self.pad_id
        if isinstance(places, range):
            return self.weight[None, places.start : places.stop]
        return F.embedding(places, self.weight)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {
    "rms": nn.RMSNorm,
    "layer": nn.LayerNorm,
}
_FEED_FORWARDS: dict[str, tuple[bool, Callable[[Tensor], Tensor]]] = {  # gated?, activation
    "swiglu": (True, F.silu),
    "gelu": (False, F.gelu),
    "gelu_tanh": (False, _gelu_tanh),
    "relu": (False, F.relu),
}


def _table(rows: int, width: int) -> nn.Embedding:
    """An embedding without the random numbers that `_initialise` would overwrite."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


def _norm(config: Config) -> nn.Module:
    return _NORMS[config.norm](config.emb_dim, eps=config.norm_eps)


def _learned_positions(config: Config) -> LearnedPositions | None:
    if not isinstance(config.positions, Learned):
        return None
    pad_id = config.positions.pad_id
    rows = config.context + (0 if pad_id is None else pad_id + 1)
    return LearnedPositions(rows, config.emb_dim, pad_id)


def _rotary_table(config: Config) -> RotaryTable | None:
    if not isinstance(config.positions, Rotary):
        return None
    assert config.head_dim is not None
    return RotaryTable(config.head_dim, config.positions.theta, config.positions.scaling)


def _initialise(model: nn.Module, config: Config) -> None:
    """Normal weights; what is added to the stream 2L times is smaller by √(2L) (GPT-2)."""
    if torch.empty(0).is_meta:  # weights come from a checkpoint
        return
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            std = config.init_std
            if name.endswith((".attention.output", ".feed_forward.down")):
                std /= math.sqrt(2 * config.n_layers)
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def _rule(visible: Tensor | None, window: int | None, n_keys: int) -> Mask | None:
    """The rule for layers with this window; `None` where it would hide nothing."""
    rules: list[Mask] = []
    if visible is not None:
        rules.append(Padding(visible[:, visible.shape[1] - n_keys :]))
    if window is not None and n_keys > window:
        rules.append(Window(window))
    return join(*rules) if rules else None


def _read_inputs(ids: Tensor, mask: Tensor | None) -> Tensor | None:
    """Check ids and mask; the mask as booleans, or `None` if every token is real."""
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        found = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(
            f"a model takes token ids, an integer tensor (batch, tokens); got {found}. For one "
            f"list of ids: torch.tensor([ids])"
        )
    if mask is None:
        return None
    if tuple(mask.shape) != tuple(ids.shape):
        raise ValueError(
            f"mask {tuple(mask.shape)} must have the shape of ids {tuple(ids.shape)}: True or 1 "
            f"for a real token, False or 0 for padding"
        )
    visible = mask if mask.dtype == torch.bool else mask == 1
    if mask.dtype != torch.bool and not bool((visible | (mask == 0)).all()):
        raise ValueError(
            f"mask holds only 1 (real token) and 0 (padding); got values from {mask.min()} to "
            f"{mask.max()}"
        )
    return None if bool(visible.all()) else visible


def _embed(embedding: nn.Embedding, ids: Tensor) -> Tensor:
    try:
        return embedding(ids)  # type: ignore[no-any-return]
    except IndexError:
        raise ValueError(
            f"token ids must be from 0 to {embedding.num_embeddings - 1}; got {int(ids.min())} to "
            f"{int(ids.max())}. Is it the tokenizer of another model?"
        ) from None
