"""One token of one text through a `Decoder`, in place.

The step that generation takes most. Buffers and the views of them are prepared once, so that what
is left of a layer is the products with its weights and some twenty operations of a microsecond or
two. Weights are not copied: they are looked up at every step. Buffers hold a few rows, less than
a megabyte for models of any usual size.

H heads, G key heads, T tokens, D head_dim, E emb_dim, F hidden_dim, N and K sides of a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from jumok.model.attention import MultiHeadAttention
from jumok.model.blocks import Block
from jumok.model.cache import KeyValueCache, LayerCache
from jumok.model.inputs import embedded
from jumok.model.linear import Linear, linear, shares_of
from jumok.model.parts import FeedForward
from jumok.model.quantised import GROUP, Int4Linear, Int8Linear
from jumok.model.transformer import Decoder

__all__ = ["OneToken"]

Act = Callable[[], Any]
Turn = tuple[Tensor, Tensor, Tensor]  # cosines (1, D), both halves of the sines (1, D/2)
_LINEAR = (Linear, Int8Linear, Int4Linear)
Layer = Callable[[Turn | None, LayerCache], None]


class OneToken:
    """The straight line of one token; see `takes` for which models.

    Args:
        model: a `Decoder` whose blocks normalise with RMSNorm before their parts, whose
            feed-forward networks are gated, and whose positions are turned in or absent.
    """

    def __init__(self, model: Decoder) -> None:
        self._model = model
        with torch.inference_mode(False):  # so that it may be used in and outside of it
            self._stream = torch.zeros(1, model.config.emb_dim)
            self._layers = [_layer(block, self._stream) for block in model.layers]  # type: ignore[arg-type]
            head: nn.Module | None = model.head
            self._last = torch.zeros(1, model.config.emb_dim, dtype=_dtype(head))
            self._normalise = _norm(model.norm, self._stream, self._last)
        self._head = None if head is None else _product(head, self._last)

    @staticmethod
    def takes(model: Decoder) -> bool:
        """Whether a model is made of what is known here."""
        return (
            model.positions is None
            and model.relative_bias is None
            and type(model.norm) is nn.RMSNorm
            and (model.head is None or type(model.head) in _LINEAR)
            and all(_is_known(block) for block in model.layers)
            and all(parameter.is_cpu for parameter in model.parameters())
            and all(
                type(parameter) is nn.Parameter and parameter.dtype == torch.float32
                for parameter in model.parameters()
            )
        )

    def can_take(self, cache: KeyValueCache) -> bool:
        """Whether there is no padding, and the model still is in float32."""
        return cache.visible is None and self._model.embedding.weight.dtype == torch.float32

    def __call__(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """Logits (1, 1, V) of the token after ``ids`` (1, 1), on a warm cache without padding."""
        model, place = self._model, cache.length
        cache.admit(1, 1, None)
        where = range(place, place + 1)
        x = embedded(model.embedding, ids, model.config.embedding_scale, None, where)
        self._stream.copy_(x[0])
        turns = None if model._rotary is None else [_turn(t(where, x)) for t in model._rotary]
        for layer, layer_cache in zip(self._layers, cache.layers, strict=True):
            turn = None if turns is None else turns[layer_cache.window is not None]
            layer(turn, layer_cache)
        self._normalise()
        if self._head is None:
            return linear(self._last[None], model.embedding.weight)
        return self._head().float()[None]


def _is_known(block: nn.Module) -> bool:
    attention, feed_forward = block.attention, block.feed_forward
    return (
        type(block) is Block
        and block.pre_norm
        and type(block.attention_norm) is nn.RMSNorm
        and type(block.feed_forward_norm) is nn.RMSNorm
        and type(attention) is MultiHeadAttention
        and attention.q_norm is None
        and type(feed_forward) is FeedForward
        and feed_forward.gated
        and all(
            type(part) in _LINEAR
            for part in (attention.qkv, attention.output, feed_forward.up, feed_forward.down)
        )
    )


def _turn(turn: tuple[Tensor, Tensor]) -> Turn:
    """Of one position, from (1, 1, 1, D)."""
    cos, sin = turn[0][0, 0], turn[1][0, 0]
    half = cos.shape[-1] // 2
    return cos, sin[:, :half], sin[:, half:]


def _layer(block: Block, stream: Tensor) -> Layer:
    """A function that takes the stream (1, E) through a block."""
    mix = _attention(block.attention, block.attention_norm, stream)
    feed = _feed_forward(block.feed_forward, block.feed_forward_norm, stream)

    def through(turn: Turn | None, cache: LayerCache) -> None:
        mix(turn, cache)
        feed()

    return through


def _attention(attention: MultiHeadAttention, norm: nn.Module, stream: Tensor) -> Layer:
    n_heads, groups, width = attention.n_heads, attention.n_kv_heads, attention.head_dim
    turning, half, share = n_heads + groups, width // 2, n_heads // groups
    scale = attention.scale
    normed = torch.zeros(1, attention.emb_dim, dtype=_dtype(attention.qkv))
    normalise = _norm(norm, stream, normed)
    qkv = torch.zeros(n_heads + 2 * groups, width)
    project = _writing(attention.qkv, normed, qkv.view(1, -1))
    before, turned = qkv[:turning], torch.zeros(turning, width)
    first, second = before[:, :half], before[:, half:]
    turned_first, turned_second = turned[:, :half], turned[:, half:]
    queries = turned[:n_heads].view(groups, share, width)
    key = turned[n_heads:].view(1, groups, 1, width)
    value = qkv[turning:].view(1, groups, 1, width)
    mixed = torch.zeros(groups, share, width)
    flat = mixed.view(1, -1)
    low = _dtype(attention.output) != torch.float32
    source = torch.zeros(flat.shape, dtype=torch.bfloat16) if low else flat
    add = _adding(attention.output, source, stream)

    def mix(turn: Turn | None, cache: LayerCache) -> None:
        normalise()
        project()
        if turn is None:
            turned.copy_(before)
        else:
            cos, lower, upper = turn
            torch.mul(before, cos, out=turned)
            turned_first.addcmul_(second, lower)
            turned_second.addcmul_(first, upper)
        queries.mul_(scale)
        keys, values = cache.extend(key, value)  # (1, G, T, D)
        scores = torch.bmm(queries, keys[0].mT)  # (G, H/G, T)
        torch.bmm(torch.softmax(scores, -1), values[0], out=mixed)
        if low:
            source.copy_(flat)
        add()

    return mix


def _feed_forward(feed_forward: FeedForward, norm: nn.Module, stream: Tensor) -> Act:
    wide = feed_forward.down.in_features
    normed = torch.zeros(1, stream.shape[1], dtype=_dtype(feed_forward.up))
    normalise = _norm(norm, stream, normed)
    both = torch.zeros(1, 2 * wide)
    gate, up = both[:, :wide], both[:, wide:]
    widen = _writing(feed_forward.up, normed, both)
    hidden = torch.zeros(1, wide, dtype=_dtype(feed_forward.down))
    add = _adding(feed_forward.down, hidden, stream)
    activation = feed_forward.activation

    def feed() -> None:
        normalise()
        widen()
        torch.mul(activation(gate), up, out=hidden)
        add()

    return feed


def _norm(norm: nn.Module, x: Tensor, target: Tensor) -> Act:
    """RMSNorm of a row (1, E) into a buffer (1, E) of its own dtype."""
    assert isinstance(norm, nn.RMSNorm)
    own, row, width = norm._parameters, x[0], x.shape[1]
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    none = torch.zeros(())

    def normalise() -> None:
        mean = torch.dot(row, row).item() / width + eps
        factor = 1 / math.sqrt(mean) if mean > 0 else math.inf
        weight = own["weight"]
        if weight is None:
            torch.mul(x, factor, out=target)
        else:
            torch.addcmul(none, x, weight, value=factor, out=target)

    return normalise


# Products with a weight (N, K): of a row (1, K) that lies in a buffer of the dtype it is read in.


def _dtype(module: nn.Module | None) -> torch.dtype:
    return torch.bfloat16 if type(module) in (Int4Linear, Int8Linear) else torch.float32


def _product(module: nn.Module, source: Tensor) -> Callable[[], Tensor]:
    """A function that gives the product (1, N), in the dtype that comes cheapest."""
    own, bias = module._buffers, module.bias
    rows = module.out_features
    if type(module) is Int4Linear and bias is None:
        multiply = torch._weight_int4pack_mm_for_cpu
        return lambda: multiply(source, own["units"], GROUP, own["numbers"])
    if type(module) is Int8Linear and bias is None:
        whole: Any = torch._weight_int8pack_mm
        if len(module.units) == rows:
            return lambda: whole(source, own["units"], own["scale"])
        return lambda: whole(source, own["units"], own["scale"])[:, :rows]
    return lambda: module(source)


def _writing(module: nn.Module, source: Tensor, target: Tensor) -> Act:
    """A function that puts the product into a buffer (1, N)."""
    if type(module) is not Linear:
        product = _product(module, source)
        return lambda: target.copy_(product())
    own, weight, row, parts = module._parameters, *_shared(module, source, target)

    def write() -> None:
        torch.bmm(weight(), row, out=parts)
        if (bias := own["bias"]) is not None:
            target.add_(bias)

    return write


def _adding(module: nn.Module, source: Tensor, stream: Tensor) -> Act:
    """A function that adds the product to the stream (1, N)."""
    if type(module) is not Linear:
        product = _product(module, source)
        return lambda: stream.add_(product())
    own, weight, row, parts = module._parameters, *_shared(module, source, stream)

    def add() -> None:
        parts.baddbmm_(weight(), row)
        if (bias := own["bias"]) is not None:
            stream.add_(bias)

    return add


def _shared(
    module: Linear, source: Tensor, target: Tensor
) -> tuple[Callable[[], Tensor], Tensor, Tensor]:
    """The weight in S shares (S, N/S, K), the row for each (S, K, 1), and the result's shares.

    See `jumok.model.linear`; the shares are those of the threads that there are now.
    """
    own, (rows, width) = module._parameters, module.weight.shape
    shares = shares_of(rows, torch.get_num_threads())
    shape = shares, rows // shares, width
    # The row lies as it does there: with other strides the kernel takes several times as long.
    return (
        lambda: own["weight"].view(shape),  # type: ignore[union-attr]
        source.mT.expand(shares, width, 1),
        target.view(shares, -1, 1),
    )
