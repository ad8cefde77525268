"""Short steps of a `Decoder`: the next tokens, in few operations.

A step of one token is many small operations, and most of what it costs beside reading the
weights is the way to them: modules, checks, kernels made for long texts. Here the same
arithmetic is written in a straight line. It is taken for a few tokens on a warm cache, where
nobody listens to the modules that it goes past; `Decoder.forward` is what it equals.

B batch, T tokens, H heads, G key heads, D head_dim, E emb_dim, V vocab_size.
"""

from __future__ import annotations

from operator import is_

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks

from jumok.model.attention import MultiHeadAttention, Turn
from jumok.model.blocks import Block
from jumok.model.cache import KeyValueCache, LayerCache
from jumok.model.inputs import embedded
from jumok.model.linear import Linear, linear
from jumok.model.one_token import OneToken
from jumok.model.parts import FeedForward
from jumok.model.quantised import Int4Linear, Int8Linear
from jumok.model.transformer import Decoder

__all__ = ["ShortSteps"]

FEW = 16  # tokens; longer pieces are as fast through the modules
_PASSED = {
    Decoder,
    Block,
    MultiHeadAttention,
    FeedForward,
    nn.RMSNorm,
    Linear,
    Int8Linear,
    Int4Linear,
}


class ShortSteps:
    """Runs a `Decoder` on a few tokens at a time.

    Args:
        model: of which the modules that are passed by are known now.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._read()

    def _read(self) -> None:
        """Know the model's modules."""
        model = self._model
        passed = [module for module in model.modules() if type(module) in _PASSED]
        self._own = [vars(module) for module in passed]
        self._hooks = [
            hooks
            for module in passed
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        places = [(module._modules, name) for module in model.modules() for name in module._modules]
        self._places = [one[0] for one in places], [one[1] for one in places]
        self._parts = [parts[name] for parts, name in places]
        kinds = {type(block) for block in getattr(model, "layers", ())}
        self._known = type(model) is Decoder and kinds <= {Block}
        if self._known:
            parts = [(type(block.attention), type(block.feed_forward)) for block in model.layers]  # type: ignore[union-attr]
            self._known = set(parts) <= {(MultiHeadAttention, FeedForward)}
        straight = self._known and OneToken.takes(model)  # type: ignore[arg-type]
        self._one = OneToken(model) if straight else None  # type: ignore[arg-type]

    def can_take(self, ids: Tensor, cache: KeyValueCache) -> bool:
        """Whether these tokens (B, T) can go this way: few, on the CPU, and heard by nobody."""
        if not all(map(is_, map(dict.get, *self._places), self._parts)):
            self._read()  # somebody has put another module into the model
        return (
            self._known
            and 0 < ids.shape[1] <= FEW
            and cache.length > 0
            and ids.is_cpu
            and not self._model.training
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and not torch._C._len_torch_function_stack()
            and not module_hooks._has_any_global_hook()
            and not any(self._hooks)
            and not any("forward" in own for own in self._own)
        )

    @torch.no_grad()
    def __call__(self, ids: Tensor, cache: KeyValueCache, last: int | None = None) -> Tensor:
        """Logits (B, T or ``last``, V), as `Decoder.forward` gives them."""
        model = self._model
        assert isinstance(model, Decoder)
        batch, new = ids.shape
        past = cache.length
        if self._one is not None and batch == new == 1 and self._one.can_take(cache):
            return self._one(ids, cache)
        visible = cache.admit(batch, new, None)
        places: range | Tensor = range(past, past + new)
        if visible is not None:
            places = (visible.cumsum(1) - 1).clamp(min=0)[:, past:]
        scale = model.config.embedding_scale
        x = embedded(model.embedding, ids, scale, model.positions, places)  # (B, T, E)
        turns = None if model._rotary is None else [table(places, x) for table in model._rotary]
        added: dict[tuple[int | None, int], Tensor | None] = {}
        for block, window, layer_cache in zip(
            model.layers, model.config.layer_windows, cache.layers, strict=True
        ):
            assert isinstance(block, Block)
            key = window, layer_cache.n_keys + new
            if key not in added:
                added[key] = self._added(x, visible, window, new, key[1])
            turn = None if turns is None else turns[window is not None]
            x = _through(block, x, turn, layer_cache, added[key])
        x = _normed(model.norm, x if last is None else x[:, -last:])
        if model.head is not None:
            return model.head(x)  # type: ignore[no-any-return]
        return linear(x, model.embedding.weight)

    def _added(
        self, x: Tensor, visible: Tensor | None, window: int | None, new: int, n_keys: int
    ) -> Tensor | None:
        """What is added to the scores, broadcastable to (B, H, T, n_keys); `None` for nothing."""
        model = self._model
        assert isinstance(model, Decoder)
        hidden: Tensor | None = None
        if new > 1:
            place = torch.arange(n_keys)
            behind = place[-new:, None] - place  # (T, n_keys)
            hidden = behind < 0
            if window is not None:
                hidden |= behind >= window
        if visible is not None:
            padding = ~visible[:, None, None, visible.shape[1] - n_keys :]
            hidden = padding if hidden is None else hidden | padding
        added = None if model.relative_bias is None else model.relative_bias(new, n_keys)
        if hidden is None:
            return added
        if added is None:
            added = torch.zeros((), dtype=x.dtype)
        return torch.where(hidden, torch.finfo(x.dtype).min, added)


def _through(
    block: Block, x: Tensor, turn: Turn | None, cache: LayerCache, added: Tensor | None
) -> Tensor:
    """`Block.forward`."""
    feed_forward, attention = block.feed_forward, block.attention
    if block.pre_norm:
        x = x + _attended(attention, _normed(block.attention_norm, x), turn, cache, added)
        return x + _fed_forward(feed_forward, _normed(block.feed_forward_norm, x))
    x = _normed(block.attention_norm, x + _attended(attention, x, turn, cache, added))
    return _normed(block.feed_forward_norm, x + _fed_forward(feed_forward, x))


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    if type(norm) is not nn.RMSNorm:
        return norm(x)  # type: ignore[no-any-return]
    eps = norm.eps or torch.finfo(x.dtype).eps
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)  # (B, T, 1)
    factor = torch.rsqrt(torch.addcmul(length.new_full((), eps), length, length, value=_share(x)))
    normed = (wide * factor).to(x.dtype)
    return normed if norm.weight is None else normed.mul_(norm.weight)


def _share(x: Tensor) -> float:
    return 1 / x.shape[-1]


def _attended(
    attention: MultiHeadAttention,
    x: Tensor,
    turn: Turn | None,
    cache: LayerCache,
    added: Tensor | None,
) -> Tensor:
    """`MultiHeadAttention.forward`, the scores of the few rows formed as they are."""
    batch, new, _ = x.shape
    n_heads, groups, width = attention.n_heads, attention.n_kv_heads, attention.head_dim
    qkv = attention.qkv(x).view(batch, new, n_heads + 2 * groups, width)
    if attention.q_norm is not None and attention.k_norm is not None:
        q, k, v = qkv.split([n_heads, groups, groups], dim=2)
        qk = torch.cat([attention.q_norm(q), attention.k_norm(k)], dim=2)
    else:
        qk, v = qkv[:, :, : n_heads + groups], qkv[:, :, n_heads + groups :]
    if turn is not None:
        cos, sin = turn
        qk = torch.addcmul(qk * cos, qk.roll(width // 2, -1), sin)
    keys, values = cache.extend(qk[:, :, n_heads:].transpose(1, 2), v.transpose(1, 2))
    share = n_heads // groups
    q = qk[:, :, :n_heads].transpose(1, 2).reshape(batch * groups, share * new, width)
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # (B·G, Tk, D)
    scores = torch.bmm(q, keys.mT).mul_(attention.scale)  # (B·G, H/G · T, Tk)
    if added is not None:
        wide = scores.view(batch, n_heads, new, -1)
        wide.add_(added)
    mixed = torch.bmm(F.softmax(scores, dim=-1), values)  # (B·G, H/G · T, D)
    mixed = mixed.view(batch, n_heads, new, width).transpose(1, 2).reshape(batch, new, -1)
    return attention.output(mixed)  # type: ignore[no-any-return]


def _fed_forward(feed_forward: FeedForward, x: Tensor) -> Tensor:
    """`FeedForward.forward`."""
    hidden: Tensor = feed_forward.up(x)
    if feed_forward.gated:
        gate, hidden = hidden.chunk(2, dim=-1)
        hidden = feed_forward.activation(gate).mul_(hidden)
    else:
        hidden = feed_forward.activation(hidden)
    return feed_forward.down(hidden)  # type: ignore[no-any-return]
