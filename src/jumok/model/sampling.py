"""How the next token is chosen from its logits.

B batch, T tokens, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Sampler"]


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen from its logits.

    In this order: repeated tokens are made less likely; logits are divided by the temperature;
    all but the ``top_k`` most likely tokens are dropped; then all but the fewest whose
    probabilities sum to ``top_p``; then those less likely than ``min_p`` times the likeliest;
    one of the rest is drawn.

    Args:
        temperature: 0 takes the most likely token (argmax).
        top_k: how many tokens to keep, clamped to the vocabulary; `None` for all.
        top_p: probability mass to keep, above 0 and at most 1 (Holtzman et al. 2020).
        min_p: share of the highest probability, from 0 to 1 (Nguyen et al. 2024).
        repetition_penalty: logits of tokens that are in the text are divided by it if positive
            and multiplied if negative (Keskar et al. 2019); 1 for none.

    Raises:
        ValueError: a value outside these ranges.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, allowed, meaning in (
            ("temperature", self.temperature >= 0, "0 for the likeliest token, or above"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1, or None"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1, or None"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1, or None"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0; 1 for none"),
        ):
            if not allowed:
                raise ValueError(f"{name}={getattr(self, name)}: {meaning}")

    def __call__(
        self, logits: Tensor, seen: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """The next token of each text.

        Args:
            logits: (B, V)
            seen: (B, T) the tokens so far.
            generator: random numbers; `None` for torch's own.

        Returns:
            (B,) token ids.
        """
        if self.temperature == 0:
            return self._penalised(logits, seen).argmax(dim=-1)
        return torch.multinomial(self.shares(logits, seen), 1, generator=generator)[:, 0]

    def shares(self, logits: Tensor, seen: Tensor) -> Tensor:
        """The probabilities (B, V) to draw from, up to a factor; arguments as in a call."""
        logits = self._penalised(logits, seen).float() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            lowest = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < lowest, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            shares = ordered.softmax(dim=-1)
            # A token stays while those before it have not reached top_p: the first always stays.
            dropped = shares.cumsum(dim=-1) - shares >= self.top_p
            logits = logits.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)
        shares = logits.softmax(dim=-1)
        if self.min_p:
            lowest = self.min_p * shares.amax(dim=-1, keepdim=True)
            shares = shares.masked_fill(shares < lowest, 0.0)
        return shares

    def _penalised(self, logits: Tensor, seen: Tensor) -> Tensor:
        if self.repetition_penalty == 1.0:
            return logits
        found = logits.gather(1, seen)
        penalty = self.repetition_penalty
        return logits.scatter(1, seen, torch.where(found > 0, found / penalty, found * penalty))
