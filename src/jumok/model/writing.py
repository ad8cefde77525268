"""Texts that a model is writing: what it reads next, and the cache of what it has read.

B batch, T tokens, V vocab_size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jumok.model.cache import KeyValueCache
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.foreign import ForeignDecoder, ForeignEncoderDecoder
from jumok.model.steps import ShortSteps
from jumok.model.transformer import Decoder

__all__ = ["Continuation", "Translation", "Translator", "Writer", "Writing", "begin", "first_ids"]

Translator = EncoderDecoder | ForeignEncoderDecoder
Writer = Decoder | ForeignDecoder | Translator


class Continuation:
    """Prompts that a `Decoder` goes on with.

    Attributes:
        seen: (B, T) the tokens of each prompt; what stands for padding is one of them.
    """

    def __init__(
        self,
        model: Decoder | ForeignDecoder,
        ids: Tensor,
        mask: Tensor | None,
        max_new_tokens: int,
    ) -> None:
        if mask is not None:  # real tokens to the right, in their order
            order = mask.to(torch.uint8).argsort(dim=1, stable=True)
            ids, mask = ids.gather(1, order), mask.gather(1, order)
        self.seen = ids if mask is None else torch.where(mask, ids, ids[:, -1:])
        self.model: Writer = model
        self._decoder, self._ids, self._mask = model, ids, mask
        self._cache: KeyValueCache = model.new_cache(ids.shape[1] + max_new_tokens)
        self._steps = ShortSteps(model)

    def logits(self, last: int = 1) -> Tensor:
        """Of the tokens after the ``last`` ones, (B, last, V)."""
        suppressed = list(self.model.config.suppressed_ids)
        if self._mask is None and self._steps.can_take(self._ids, self._cache):
            logits = self._steps(self._ids, self._cache, last)
        else:
            logits = self._decoder(self._ids, self._mask, self._cache, last=last)
        self._ids, self._mask = self._ids[:, :0], None
        if suppressed:
            logits[..., suppressed] = -torch.inf
        return logits

    def push(self, tokens: Tensor) -> None:
        """Add tokens (B, T); they are read when the next logits are asked for."""
        self._ids = torch.cat([self._ids, tokens], dim=1)

    def go_on_from(self, text: Tensor, read: int) -> None:
        """Go on with ``text`` (B, T), whose first ``read`` tokens the cache may keep."""
        _keep(self._cache, read)
        self._ids = text[:, self._cache.length :]


class Translation:
    """Sources that an `EncoderDecoder` writes a target for.

    Attributes:
        seen: (B, 1) the beginning of each target.
    """

    def __init__(
        self, model: Translator, ids: Tensor, mask: Tensor | None, max_new_tokens: int
    ) -> None:
        self.seen = first_ids(model, ids)
        self.model: Writer = model
        self._translator, self._ids = model, self.seen
        self._source, self._mask = ids, mask
        self._reads = True
        self._cache: KeyValueCache = model.new_cache(1 + max_new_tokens)

    def logits(self, last: int = 1) -> Tensor:
        """Of the tokens after the ``last`` ones, (B, last, V)."""
        source, mask = (self._source, self._mask) if self._reads else (None, None)
        logits: Tensor = self._translator(source, self._ids, mask, self._cache, last=last)
        self._reads = False  # once
        self._ids = self._ids[:, :0]
        if suppressed := list(self.model.config.suppressed_ids):
            logits[..., suppressed] = -torch.inf
        return logits

    def push(self, tokens: Tensor) -> None:
        """Add tokens (B, T); they are read when the next logits are asked for."""
        self._ids = torch.cat([self._ids, tokens], dim=1)

    def go_on_from(self, text: Tensor, read: int) -> None:
        """Go on with ``text`` (B, T), whose first ``read`` tokens the cache may keep."""
        _keep(self._cache, read)
        self._ids = text[:, self._cache.length :]
        self._reads = not self._cache.length


Writing = Continuation | Translation


def _keep(cache: KeyValueCache, length: int) -> None:
    """Forget all but the first tokens, or all where a window has dropped what they need."""
    if length < cache.length and not cache.truncate(length):
        cache.reset()


def begin(model: Writer, ids: Tensor, mask: Tensor | None, max_new_tokens: int) -> Writing:
    """Prompts (B, T) to go on with, or sources to write targets for."""
    if isinstance(model, Translator):
        return Translation(model, ids, mask, max_new_tokens)
    return Continuation(model, ids, mask, max_new_tokens)


def first_ids(model: Writer, ids: Tensor) -> Tensor:
    """What stands before the new tokens: the prompts, or the beginnings of targets."""
    if not isinstance(model, Translator):
        return ids
    first = model.config.bos_id
    if first is None:
        raise ValueError("this model doesn't say with which id a target begins (config.bos_id)")
    return ids.new_full((len(ids), 1), first)
