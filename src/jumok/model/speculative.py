"""Speculative decoding: cheap guesses of the next tokens, checked by the model all at once.

Reading five tokens costs a model little more than reading one: its weights are read once either
way. So a draft guesses some tokens, the model reads them, and those are kept that it would have
written itself (Leviathan et al. 2023, https://arxiv.org/abs/2211.17192): with its own likeliest
tokens the text stays the same; a drawn token x, guessed with probability q(x), is kept with
probability min(1, p(x)/q(x)), and where it is not, another is drawn from max(0, p − q), which
makes the probabilities of the text those of the model alone.

V vocab_size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from jumok.model.foreign import ForeignDecoder
from jumok.model.sampling import Sampler
from jumok.model.transformer import Decoder
from jumok.model.writing import Continuation, Translator, Writer, Writing

__all__ = ["Draft", "read_draft", "speculate"]

Guesser = Decoder | ForeignDecoder | Literal["lookup"]

_LONGEST = 8  # guesses at a time
_GRAM = 3  # tokens that "lookup" looks for, or fewer


class Draft:
    """What guesses the next tokens, and how well it did.

    Args:
        guesser: a smaller `Decoder` with the same tokenizer, or "lookup": what followed the last
            tokens earlier in the text. Lookup costs nothing, and pays where a text repeats its
            prompt: summaries, corrections, code.
        length: how many tokens to guess at first; it then follows the luck, up to 8.

    Attributes:
        guessed: how many tokens were guessed.
        kept: how many of them the model kept.
        passes: how many times the model has read.
        written: how many tokens the text has got.

    Raises:
        TypeError: ``guesser`` is neither.
        ValueError: a length below 1.

    Example:
        >>> draft = Draft("lookup")
        >>> ids = generate(model, ids, 64, temperature=0, draft=draft)
        >>> draft.written / draft.passes  # tokens that one pass of the model gives
    """

    def __init__(self, guesser: Guesser, length: int = 4) -> None:
        if guesser != "lookup" and not isinstance(guesser, (Decoder, ForeignDecoder)):
            raise TypeError(
                f"draft={guesser!r}: a Decoder with the same tokenizer, or 'lookup'"
                if isinstance(guesser, str)
                else f"draft takes a Decoder or 'lookup'; got {type(guesser).__name__}"
            )
        if length < 1:
            raise ValueError(f"length={length}: at least 1")
        self.guesser, self.length = guesser, length
        self.guessed = self.kept = self.passes = self.written = 0

    def __repr__(self) -> str:
        name = self.guesser if isinstance(self.guesser, str) else type(self.guesser).__name__
        return (
            f"Draft({name}: kept {self.kept} of {self.guessed} guesses, {self.written} tokens in "
            f"{self.passes} passes)"
        )


def read_draft(draft: Any, model: Writer, batch: int, mask: Tensor | None) -> Draft | None:
    """What a user gave as ``draft``, checked against the model."""
    if draft is None:
        return None
    found = draft if isinstance(draft, Draft) else Draft(draft)
    if batch != 1 or mask is not None:
        raise ValueError(f"a draft guesses for one text without padding; got a batch of {batch}")
    if isinstance(found.guesser, (Decoder, ForeignDecoder)):
        if isinstance(model, Translator):
            raise ValueError("a model drafts for decoders; for this one there is draft='lookup'")
        mine, other = model.config.vocab_size, found.guesser.config.vocab_size
        if mine != other:
            raise ValueError(
                f"the draft has {other} token ids, the model {mine}: both need one tokenizer"
            )
    return found


@torch.no_grad()
def _checked(
    logits: Tensor,
    guesses: list[int],
    shares: Tensor | None,
    seen: Tensor,
    sampler: Sampler,
    generator: torch.Generator | None,
) -> list[int]:
    """The tokens that the model writes: guesses as far as they hold, and one of its own.

    Args:
        logits: (k + 1, V) of the model, after each guess and before the first.
        guesses: k tokens.
        shares: (k, V) probabilities that they were drawn with; `None`: they were not drawn.
        seen: (1, T) the text so far.
        sampler: how the model chooses.
        generator: random numbers.
    """
    written: list[int] = []
    for place in range(len(guesses) + 1):
        row = logits[place : place + 1]
        guess = guesses[place] if place < len(guesses) else None
        if sampler.temperature == 0:
            token = int(sampler(row, seen))
        else:
            own = sampler.shares(row, seen)
            own = own / own.sum()
            if guess is not None:
                chance = 1.0 if shares is None else float(shares[place, guess])
                if float(torch.rand((), generator=generator)) * chance < float(own[0, guess]):
                    token = guess
                else:
                    own = own.clone()
                    if shares is None:
                        own[0, guess] = 0.0
                    else:
                        own = (own - shares[place]).clamp(min=0)
                    if not bool(own.any()):  # p = q, but for rounding
                        own[0, guess] = 1.0
                    token = int(torch.multinomial(own, 1, generator=generator))
            else:
                token = int(torch.multinomial(own, 1, generator=generator))
        written.append(token)
        if token != guess:
            break
        seen = torch.cat([seen, seen.new_tensor([[token]])], dim=1)
    return written


def speculate(
    writing: Writing,
    draft: Draft,
    max_new_tokens: int,
    sampler: Sampler,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """The next tokens (1,) of a text, several of them for each step of the model."""
    text = writing.seen
    guesser = (
        _Lookup() if draft.guesser == "lookup" else _Model(draft.guesser, text, max_new_tokens)
    )
    length, left = draft.length, max_new_tokens
    while left > 0:
        with torch.no_grad():
            guesses, shares = guesser.guess(text, min(length, left - 1), sampler, generator)
            if guesses:
                writing.push(text.new_tensor([guesses]))
            logits = writing.logits(len(guesses) + 1)[0]
            written = _checked(logits, guesses, shares, text, sampler, generator)
        draft.passes += 1
        draft.guessed += len(guesses)
        draft.kept += len(written) - 1
        draft.written += len(written)
        new = text.new_tensor([written])
        text = torch.cat([text, new], dim=1)
        wrong = len(guesses) - (len(written) - 1)
        writing.go_on_from(text, text.shape[1] - 1)
        left -= len(written)
        length = min(_LONGEST, length + 1) if not wrong else max(1, length - 1)
        yield from new[0].split(1)


class _Lookup:
    """Guesses what followed the last tokens earlier in the text (Saxena 2023)."""

    def guess(
        self, text: Tensor, count: int, sampler: Sampler, generator: torch.Generator | None
    ) -> tuple[list[int], None]:
        """At most so many tokens, and no probabilities."""
        ids = text[0].tolist()
        for size in range(min(_GRAM, len(ids) - 1), 0, -1):
            last = ids[-size:]
            for start in range(len(ids) - size - 1, -1, -1):
                if ids[start : start + size] == last:
                    return ids[start + size : start + size + count], None
        return [], None


class _Model:
    """Guesses with a smaller model."""

    def __init__(self, model: Decoder | ForeignDecoder, text: Tensor, max_new_tokens: int) -> None:
        model.eval()
        self._writing = Continuation(model, text, None, max_new_tokens)
        self._read = 0
        self._known = text

    def guess(
        self, text: Tensor, count: int, sampler: Sampler, generator: torch.Generator | None
    ) -> tuple[list[int], Tensor | None]:
        """So many tokens, and the probabilities (count, V) that they were drawn with."""
        self._go_back_to(text)
        guesses: list[int] = []
        rows: list[Tensor] = []
        for _ in range(count):
            logits = self._writing.logits()[:, -1]
            self._read = self._known.shape[1]
            if sampler.temperature == 0:
                token = sampler(logits, self._known)
            else:
                shares = sampler.shares(logits, self._known)
                rows.append(shares / shares.sum())
                token = torch.multinomial(shares, 1, generator=generator)[:, 0]
            guesses.append(int(token))
            self._known = torch.cat([self._known, token[:, None]], dim=1)
            self._writing.push(token[:, None])
        return guesses, torch.cat(rows) if rows else None

    def _go_back_to(self, text: Tensor) -> None:
        """Forget guesses that were wrong, and take up what was written in their place."""
        common = min(self._known.shape[1], text.shape[1])
        same = (self._known[0, :common] == text[0, :common]).long().cumprod(0)
        right = int(same.sum())
        self._writing.go_on_from(text, min(right, self._read, text.shape[1] - 1))
        self._known = text
