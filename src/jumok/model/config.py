"""What a Transformer is made of: one frozen `Config`.

V vocab_size, L layers, E emb_dim, H heads, D head_dim, F hidden_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from jumok.positions import Scaling

__all__ = ["Config", "Learned", "Rotary"]

Norm = Literal["rms", "layer"]
NormPlace = Literal["pre", "post"]
FeedForwardKind = Literal["swiglu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class Rotary:
    """Queries and keys are turned by their position (Su et al. 2021), half-split layout.

    Args:
        theta: base of the frequencies.
        scaling: how they are changed for a longer context, see `jumok.positions`.
    """

    theta: float = 10_000.0
    scaling: Scaling | None = None


@dataclass(frozen=True)
class Learned:
    """A learned vector for each position is added to the embeddings.

    Args:
        pad_id: if given, the numbering of RoBERTa: tokens with this id are no position, and the
            first other token is number ``pad_id + 1``.
    """

    pad_id: int | None = None


@dataclass(frozen=True)
class Config:
    """What a Transformer is made of.

    Args:
        vocab_size: number of token ids V.
        emb_dim: width E of the residual stream.
        n_layers: number of blocks L.
        n_heads: number of query heads H.
        n_kv_heads: number of key and value heads. `None`: H.
        head_dim: width D of a head. `None`: E / H.
        hidden_dim: width F inside the feed-forward network. `None`: 4 E.
        context: number of positions. With learned positions no text can be longer.
        positions: `Rotary` or `Learned`; `None` for no positions at all.
        norm: "rms" or "layer".
        norm_place: "pre": ``x + f(norm(x))``; "post": ``norm(x + f(x))``.
        norm_eps: added to the variance.
        feed_forward: "swiglu" (gated), "gelu" (exact), "gelu_tanh" or "relu".
        head_norm: an RMSNorm on each query and key head (Qwen3).
        qkv_bias: whether the qkv projections have biases.
        output_bias: whether the output projection of attention has one.
        feed_forward_bias: whether the feed-forward maps have biases.
        tied_head: logits are made with the embedding table.
        windows: for each layer, how many keys a query sees, its own included, or `None` for all
            keys. ``()``: all keys in every layer.
        inverse_layer_scale: scores of layer i (from 1) are also divided by i (GPT-2's option).
        token_types: number of token types that are embedded too (BERT), 0 for none.
        pooler: an encoder has BERT's pooler, see `Encoder.pooled`.
        dropout: probability of dropping a component of embeddings and of what blocks add.
        attention_dropout: probability of dropping an attention weight.
        init_std: standard deviation of fresh weights.
        bos_id: id that begins a text, if there is one.
        eos_ids: ids that end a text; `generate` stops at them.
        pad_id: id that fills a batch.

    Raises:
        ValueError: values that don't fit together.
    """

    vocab_size: int
    emb_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int | None = None
    head_dim: int | None = None
    hidden_dim: int | None = None
    context: int = 1024
    positions: Rotary | Learned | None = Rotary()
    norm: Norm = "rms"
    norm_place: NormPlace = "pre"
    norm_eps: float = 1e-5
    feed_forward: FeedForwardKind = "swiglu"
    head_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    tied_head: bool = True
    windows: tuple[int | None, ...] = ()
    inverse_layer_scale: bool = False
    token_types: int = 0
    pooler: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_std: float = 0.02
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

        settle("n_kv_heads", self.n_heads)
        settle("hidden_dim", 4 * self.emb_dim)
        if all(window is None for window in self.windows):
            object.__setattr__(self, "windows", ())
        for name in ("vocab_size", "emb_dim", "n_layers", "n_heads", "context", "hidden_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"Config({name}={getattr(self, name)}): at least 1")
        if self.head_dim is None and self.emb_dim % self.n_heads:
            raise ValueError(
                f"Config(emb_dim={self.emb_dim}, n_heads={self.n_heads}): emb_dim is not a "
                f"multiple of n_heads; change one of them or give head_dim"
            )
        settle("head_dim", self.emb_dim // self.n_heads)
        if len(self.windows) not in (0, self.n_layers):
            raise ValueError(
                f"Config(windows={self.windows}): {len(self.windows)} windows for "
                f"n_layers={self.n_layers}"
            )
        for name, value, known in (
            ("norm", self.norm, get_args(Norm)),
            ("feed_forward", self.feed_forward, get_args(FeedForwardKind)),
            ("norm_place", self.norm_place, get_args(NormPlace)),
        ):
            if value not in known:
                raise ValueError(f"Config({name}={value!r}): one of {', '.join(known)}")

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The window of each layer, `None` for all keys."""
        return self.windows or (None,) * self.n_layers
