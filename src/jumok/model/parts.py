"""What blocks and stacks are put together from: norms, feed-forward networks, positions, tables.

B batch, H heads, T tokens (Tq, Tk), E emb_dim, F hidden_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok import positions
from jumok.model.attention import RotaryTable
from jumok.model.config import Config, Learned, Relative, Rotary, Sinusoidal
from jumok.model.linear import Linear, linear

__all__ = [
    "AddedPositions",
    "FeedForward",
    "LearnedPositions",
    "MaskedHead",
    "RelativeBias",
    "SinusoidalPositions",
    "UnitOffsetRMSNorm",
    "added_positions",
    "initialise",
    "new_norm",
    "relative_bias",
    "rotary_tables",
    "table",
]


# Norms ----------------------------------------------------------------------------------------


class UnitOffsetRMSNorm(nn.Module):
    """``x / √(mean(x²) + eps) · (1 + weight)`` in float32, as Gemma has it."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(…, E) → (…, E)"""
        factors = 1.0 + self.weight.float()
        return F.rms_norm(x.float(), factors.shape, factors, self.eps).to(x.dtype)


def _layer_norm_without_bias(width: int, eps: float) -> nn.Module:
    return nn.LayerNorm(width, eps=eps, bias=False)


_NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "rms": nn.RMSNorm,
    "unit_offset_rms": UnitOffsetRMSNorm,
    "layer": nn.LayerNorm,
    "layer_without_bias": _layer_norm_without_bias,
}


def new_norm(config: Config) -> nn.Module:
    """A norm over the residual stream."""
    return _NORMS[config.norm](config.emb_dim, config.norm_eps)


# Feed-forward ---------------------------------------------------------------------------------


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_FEED_FORWARDS: dict[str, tuple[bool, Callable[[Tensor], Tensor]]] = {  # gated?, activation
    "swiglu": (True, F.silu),
    "geglu": (True, F.gelu),
    "geglu_tanh": (True, _gelu_tanh),
    "reglu": (True, F.relu),
    "gelu": (False, F.gelu),
    "gelu_tanh": (False, _gelu_tanh),
    "relu": (False, F.relu),
    "silu": (False, F.silu),
}


class FeedForward(nn.Module):
    """``down(act(up(x)))``; gated (Shazeer 2020): ``down(act(gate(x)) · up(x))``.

    Gate and up are one linear map: its first half is the gate.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gated, self.activation = _FEED_FORWARDS[config.feed_forward]
        assert config.hidden_dim is not None
        narrow, wide, bias = config.emb_dim, config.hidden_dim, config.feed_forward_bias
        self.up = Linear(narrow, 2 * wide if self.gated else wide, bias=bias)
        self.down = Linear(wide, narrow, bias=bias)
        self.dropout = nn.Dropout(config.feed_forward_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) → (B, T, E)"""
        if self.gated:
            gate, hidden = self.up(x).chunk(2, dim=-1)  # (B, T, F) each
            hidden = self.activation(gate) * hidden
        else:
            hidden = self.activation(self.up(x))
        return self.down(self.dropout(hidden))  # type: ignore[no-any-return]


class MaskedHead(nn.Module):
    """Logits of a masked token: ``norm(act(W x + b))`` against every embedding, and a bias each.

    The activation is that of the model's feed-forward network, without its gate (Devlin et al.
    2019; Warner et al. 2024 have no bias in W).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.emb_dim
        self.dense = Linear(width, width, bias=config.feed_forward_bias)
        self.activation = _FEED_FORWARDS[config.feed_forward][1]
        self.norm = new_norm(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        """(B, T, E) and (V, E) → (B, T, V)"""
        return linear(self.states(hidden), embeddings, self.bias)

    def states(self, hidden: Tensor) -> Tensor:
        """What is held against every embedding: (…, E) → (…, E)"""
        return self.norm(self.activation(self.dense(hidden)))  # type: ignore[no-any-return]


# Positions ------------------------------------------------------------------------------------


class LearnedPositions(nn.Embedding):
    """The table of learned positions, see `Learned`."""

    def __init__(self, rows: int, emb_dim: int, pad_id: int | None) -> None:
        super().__init__(rows, emb_dim, _weight=torch.empty(rows, emb_dim))
        self.pad_id = pad_id

    @property
    def context(self) -> int | None:
        """No text can be longer."""
        return self.num_embeddings - (0 if self.pad_id is None else self.pad_id + 1)

    def forward(  # type: ignore[override]
        self, places: range | Tensor, ids: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Vectors (1 or B, T, E) for token positions: a range, or integers (B, T)."""
        end = places.stop if isinstance(places, range) else int(places.max()) + 1
        assert self.context is not None
        if end > self.context:
            raise ValueError(
                f"the text has {end} tokens, but this model has only {self.context} positions: "
                f"shorten the text"
            )
        if self.pad_id is not None:
            real = ids != self.pad_id if mask is None else (ids != self.pad_id) & mask
            places = real.cumsum(1) * real + self.pad_id
        if isinstance(places, range):
            return self.weight[None, places.start : places.stop]
        return F.embedding(places, self.weight)


class SinusoidalPositions(nn.Module):
    """Sines and cosines of positions, see `Sinusoidal`; grown as longer texts come."""

    context: int | None = None

    def __init__(self, emb_dim: int, layout: str) -> None:
        super().__init__()
        self.emb_dim, self.layout = emb_dim, layout
        self._table = torch.empty(0, emb_dim)

    def forward(self, places: range | Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """float32 (1 or B, T, E) for token positions: a range, or integers (B, T)."""
        end = places.stop if isinstance(places, range) else int(places.max()) + 1
        if end > len(self._table) or self._table.device != ids.device:
            self._grow(end, ids.device)
        if isinstance(places, range):
            return self._table[None, places.start : places.stop]
        return self._table[places]

    def _grow(self, end: int, device: torch.device) -> None:
        size = max(256, 1 << max(0, end - 1).bit_length())
        # Made outside inference mode, so that a later training step may use the table too.
        with torch.inference_mode(False):
            waves = torch.from_numpy(positions.sinusoidal(size, self.emb_dim))
            if self.layout == "halves":
                waves = torch.cat([waves[:, 0::2], waves[:, 1::2]], dim=1)
            self._table = waves.to(device)


AddedPositions = LearnedPositions | SinusoidalPositions


class RelativeBias(nn.Embedding):
    """What T5 adds to the scores for each head and bucket of distances, see `Relative`."""

    def __init__(self, config: Relative, n_heads: int, both_ways: bool) -> None:
        super().__init__(config.n_buckets, n_heads, _weight=torch.empty(config.n_buckets, n_heads))
        self.max_distance, self.both_ways = config.max_distance, both_ways

    def forward(self, n_queries: int, n_keys: int) -> Tensor:  # type: ignore[override]
        """(1, H, Tq, Tk); the last query stands on the last key."""
        place = self.weight.device
        key = torch.arange(n_keys, device=place)
        query = torch.arange(n_keys - n_queries, n_keys, device=place)
        buckets = positions.t5_buckets(
            key - query[:, None], self.both_ways, self.num_embeddings, self.max_distance
        )
        return F.embedding(buckets, self.weight).permute(2, 0, 1)[None]


def added_positions(config: Config) -> AddedPositions | None:
    """What adds positions to embeddings, if anything does."""
    if isinstance(config.positions, Sinusoidal):
        return SinusoidalPositions(config.emb_dim, config.positions.layout)
    if not isinstance(config.positions, Learned):
        return None
    pad_id = config.positions.pad_id
    rows = config.context + (0 if pad_id is None else pad_id + 1)
    return LearnedPositions(rows, config.emb_dim, pad_id)


def relative_bias(config: Config, both_ways: bool) -> RelativeBias | None:
    """What adds positions to scores, if anything does."""
    if not isinstance(config.positions, Relative):
        return None
    return RelativeBias(config.positions, config.n_heads, both_ways)


def rotary_tables(config: Config) -> tuple[RotaryTable, RotaryTable] | None:
    """What turns queries and keys: in layers that see everything, and in those with a window."""
    rotary = config.positions
    if not isinstance(rotary, Rotary):
        return None
    assert config.head_dim is not None
    everywhere = RotaryTable(config.head_dim, rotary.theta, rotary.scaling)
    if rotary.local_theta is None:
        return everywhere, everywhere
    return everywhere, RotaryTable(config.head_dim, rotary.local_theta, rotary.scaling)


# Tables and fresh weights ---------------------------------------------------------------------


def table(rows: int, width: int) -> nn.Embedding:
    """An embedding without the random numbers that `initialise` would overwrite."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


def initialise(model: nn.Module, config: Config) -> None:
    """Normal weights; what is added 2L times and not normalised is smaller by √(2L) (GPT-2).

    Embeddings that are scaled up start smaller, so that they enter the stream with a variance
    of 1.
    """
    if torch.empty(0).is_meta:  # weights come from a checkpoint
        return
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            std = config.init_std
            added = name.endswith((".attention.output", ".cross_attention.output", ".down"))
            if added and config.norm_place == "pre":
                std /= math.sqrt(2 * config.n_layers)
            if type(module) is nn.Embedding and config.embedding_scale > 1:
                std = 1 / config.embedding_scale
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
