"""What a Transformer is made of: one frozen `Config`, or two for an encoder-decoder.

V vocab_size, L layers, E emb_dim, H heads, D head_dim, F hidden_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from jumok.positions import Scaling

__all__ = ["Config", "EncoderDecoderConfig", "Learned", "Relative", "Rotary", "Sinusoidal"]

Norm = Literal["rms", "unit_offset_rms", "layer", "layer_without_bias"]
NormPlace = Literal["pre", "post"]
FeedForwardKind = Literal[
    "swiglu", "geglu", "geglu_tanh", "reglu", "gelu", "gelu_tanh", "relu", "silu"
]


@dataclass(frozen=True)
class Rotary:
    """Queries and keys are turned by their position (Su et al. 2021), half-split layout.

    Args:
        theta: base of the frequencies.
        scaling: how they are changed for a longer context, see `jumok.positions`.
        local_theta: base in the layers that have a window (ModernBERT). `None`: ``theta``.
    """

    theta: float = 10_000.0
    scaling: Scaling | None = None
    local_theta: float | None = None

    def __post_init__(self) -> None:
        if self.local_theta == self.theta:  # said twice
            object.__setattr__(self, "local_theta", None)


@dataclass(frozen=True)
class Learned:
    """A learned vector for each position is added to the embeddings.

    Args:
        pad_id: if given, the numbering of RoBERTa: tokens with this id are no position, and the
            first other token is number ``pad_id + 1``.
    """

    pad_id: int | None = None


@dataclass(frozen=True)
class Sinusoidal:
    """Sines and cosines are added to the embeddings (Vaswani et al. 2017, section 3.5).

    Args:
        layout: "interleaved", as in the paper, or "halves": all sines, then all cosines (Marian).
    """

    layout: Literal["interleaved", "halves"] = "interleaved"

    def __post_init__(self) -> None:
        if self.layout not in ("interleaved", "halves"):
            raise ValueError(f"Sinusoidal(layout={self.layout!r}): 'interleaved' or 'halves'")


@dataclass(frozen=True)
class Relative:
    """A learned bias for each head and distance is added to the scores of every layer (T5).

    Args:
        n_buckets: how many biases a head has, see `jumok.positions.t5_buckets`.
        max_distance: distances from here on share the last of them.
    """

    n_buckets: int = 32
    max_distance: int = 128


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
        positions: `Rotary`, `Learned`, `Sinusoidal` or `Relative`; `None` for no positions at all.
        norm: "rms", "layer", "layer_without_bias", or "unit_offset_rms", whose factors are
            1 + weight (Gemma).
        norm_place: "pre": ``x + f(norm(x))``; "post": ``norm(x + f(x))``.
        norm_eps: added to the variance.
        embedding_norm: an encoder normalises its embeddings; with "pre" that takes the place of
            the first block's first norm (ModernBERT). `None`: where norms are "post" (BERT).
        embedding_scale: factor of the embedded tokens, √E in Vaswani et al. 2017, section 3.4.
        feed_forward: gated "swiglu", "geglu", "geglu_tanh" or "reglu", or plain "gelu" (exact),
            "gelu_tanh", "relu" or "silu".
        head_norm: an RMSNorm on each query and key head (Qwen3).
        qkv_bias: whether the qkv projections have biases.
        output_bias: whether the output projection of attention has one.
        feed_forward_bias: whether the feed-forward maps have biases.
        attention_scale: factor of the scores. `None`: 1 / √D.
        tied_head: logits are made with the embedding table.
        windows: for each layer, how many keys a query sees, its own included, or `None` for all
            keys. ``()``: all keys in every layer. An encoder's queries see as many keys after
            themselves as before, so a window of w is 2w − 1 keys wide.
        inverse_layer_scale: scores of layer i (from 1) are also divided by i (GPT-2's option).
        token_types: number of token types that are embedded too (BERT), 0 for none.
        pooler: an encoder has BERT's pooler, see `Encoder.pooled`.
        masked_head: an encoder has a head that guesses masked tokens, see `Encoder.logits`.
        dropout: probability of dropping a component of embeddings and of what blocks add.
        attention_dropout: probability of dropping an attention weight.
        feed_forward_dropout: probability of dropping a component inside the feed-forward network.
        init_std: standard deviation of fresh weights.
        bos_id: id that begins a text, if there is one.
        eos_ids: ids that end a text; `generate` stops at them.
        pad_id: id that fills a batch.
        suppressed_ids: ids that `generate` never chooses.

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
    positions: Rotary | Learned | Sinusoidal | Relative | None = Rotary()
    norm: Norm = "rms"
    norm_place: NormPlace = "pre"
    norm_eps: float = 1e-5
    embedding_norm: bool | None = None
    embedding_scale: float = 1.0
    feed_forward: FeedForwardKind = "swiglu"
    head_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    attention_scale: float | None = None
    tied_head: bool = True
    windows: tuple[int | None, ...] = ()
    inverse_layer_scale: bool = False
    token_types: int = 0
    pooler: bool = False
    masked_head: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    init_std: float = 0.02
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    suppressed_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

        settle("n_kv_heads", self.n_heads)
        settle("hidden_dim", 4 * self.emb_dim)
        settle("embedding_norm", self.norm_place == "post")
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


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """What an encoder-decoder is made of: a `Config` for each side.

    Of the decoder's are: the id that begins every target (``bos_id``), those that end one, and
    whether the head is tied to the target's embeddings.

    Args:
        encoder: of the side that reads the source.
        decoder: of the side that writes the target.
        shared_embedding: both sides embed tokens with one table, the encoder's.
        head_bias: one more number is added to each logit (Marian).
        logit_scale: factor of the logits before it (T5 with a tied head: 1 / √E).

    Raises:
        ValueError: the two sides don't fit together.
    """

    encoder: Config
    decoder: Config
    shared_embedding: bool = True
    head_bias: bool = False
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("emb_dim", *(("vocab_size",) if self.shared_embedding else ())):
            one, other = getattr(self.encoder, name), getattr(self.decoder, name)
            if one != other:
                reason = "" if name == "emb_dim" else " while they share their embedding"
                raise ValueError(
                    f"encoder and decoder must have one {name}{reason}; got {one} and {other}"
                )
        if self.decoder.bos_id is None:
            raise ValueError("decoder.bos_id is None: it is the id that begins every target")

    @classmethod
    def vaswani(
        cls,
        vocab_size: int,
        emb_dim: int = 512,
        n_layers: int = 6,
        n_heads: int = 8,
        hidden_dim: int | None = None,
        dropout: float = 0.1,
        *,
        bos_id: int,
        eos_ids: tuple[int, ...] = (),
        pad_id: int | None = None,
        context: int = 1024,
    ) -> EncoderDecoderConfig:
        """The Transformer of Vaswani et al. 2017; the defaults are its base model (table 3).

        Sinusoidal positions (sines first, as in the authors' program), post-norm, ReLU, and one
        table for source, target and logits, whose rows are multiplied by √E (section 3.4).
        """
        side = Config(
            vocab_size,
            emb_dim,
            n_layers,
            n_heads,
            hidden_dim=hidden_dim,
            context=context,
            positions=Sinusoidal("halves"),
            norm="layer",
            norm_place="post",
            embedding_norm=False,
            embedding_scale=math.sqrt(emb_dim),
            feed_forward="relu",
            qkv_bias=True,
            output_bias=True,
            feed_forward_bias=True,
            dropout=dropout,
            init_std=emb_dim**-0.5,
            bos_id=bos_id,
            eos_ids=eos_ids,
            pad_id=pad_id,
        )
        return cls(side, side)

    @property
    def vocab_size(self) -> int:
        """Number of ids that a target can have."""
        return self.decoder.vocab_size

    @property
    def emb_dim(self) -> int:
        """Width E of both residual streams."""
        return self.decoder.emb_dim

    @property
    def context(self) -> int:
        """Number of positions of a source."""
        return self.encoder.context

    @property
    def tied_head(self) -> bool:
        """Whether logits are made with the target's embedding table."""
        return self.decoder.tied_head

    @property
    def bos_id(self) -> int:
        """The id that begins every target."""
        assert self.decoder.bos_id is not None
        return self.decoder.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a target."""
        return self.decoder.eos_ids

    @property
    def pad_id(self) -> int | None:
        """The id that fills a batch."""
        return self.decoder.pad_id

    @property
    def suppressed_ids(self) -> tuple[int, ...]:
        """The ids that `generate` never chooses."""
        return self.decoder.suppressed_ids
