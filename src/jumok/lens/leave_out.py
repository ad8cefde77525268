"""Leave a passage out and ask again: what the answer could do without.

An attention weight says what was read, not what mattered. Here the model reads the prompt once
more without each passage, and the same answer becomes more or less likely: leave-one-out
attribution (Li, Monroe & Jurafsky 2016, "Understanding neural networks through representation
erasure"). One forward for each passage.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LeftOut:
    """How likely an answer is with and without each passage of its prompt.

    Attributes:
        log_probability: of the answer after the whole prompt, in nats: the sum over its tokens.
        without: the same with one passage left out, for each passage; `None` for one that has no
            tokens in the prompt, or all of them.
        tokens: how many tokens the answer has.
    """

    log_probability: float
    without: tuple[float | None, ...]
    tokens: int

    @property
    def losses(self) -> tuple[float | None, ...]:
        """What the answer loses without each passage, in nats: above 0 where it had helped."""
        return tuple(None if one is None else self.log_probability - one for one in self.without)


def leave_out(
    model: torch.nn.Module,
    ids: Sequence[int] | Tensor,
    prompt: int,
    passages: Sequence[tuple[int, int]],
    *,
    progress: Progress | None = None,
) -> LeftOut:
    """The log-probability of an answer, with and without each passage of the prompt.

    A passage is left out as if it had never been written: its tokens are taken away and the rest
    moves together. What follows it may read differently then; that is part of the answer.

    Args:
        model: a decoder that takes ids (1, tokens) and returns logits (1, tokens, vocabulary),
            or an object with ``.logits``.
        ids: (tokens,), the prompt and the answer.
        prompt: how many of them are the prompt.
        passages: (start, stop) of each passage in tokens. What lies after the prompt stays.
        progress: called with (forwards that are done, all of them).

    Raises:
        ValueError: no prompt or no answer, passages outside the ids; the model returns no logits.

    Example:
        >>> jumok.leave_out(model, ids, prompt=150, passages=[(0, 60), (60, 140)]).losses
        (0.4, 11.8)
    """
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    tokens = torch.as_tensor(ids, device=place)
    if tokens.ndim != 1 or not 0 < prompt < len(tokens):
        raise ValueError(
            f"ids of shape {tuple(tokens.shape)} with prompt={prompt}: give (tokens,) ids of which "
            f"the first `prompt` are the prompt and at least one is the answer"
        )
    for start, stop in passages:
        if not 0 <= start <= stop <= len(tokens):
            raise ValueError(
                f"a passage ({start}, {stop}) does not lie within the {len(tokens)} tokens"
            )
    was_training = model.training
    model.eval()
    found: list[float | None] = []
    try:
        with torch.no_grad():
            whole = _log_probability(model, tokens, prompt)
            for number, (start, stop) in enumerate(passages):
                if progress is not None:
                    progress(number + 1, len(passages) + 1)
                stop = min(stop, prompt)
                if not 0 < stop - start < prompt:
                    found.append(None)
                    continue
                shorter = torch.cat([tokens[:start], tokens[stop:]])
                found.append(_log_probability(model, shorter, prompt - (stop - start)))
    finally:
        model.train(was_training)
    return LeftOut(whole, tuple(found), len(tokens) - prompt)


def _log_probability(model: torch.nn.Module, ids: Tensor, prompt: int) -> float:
    needed = len(ids) - prompt + 1
    known = inspect.signature(model.forward).parameters
    # Where the model can be asked for the last logits only: those of a long prompt are large.
    name = next((name for name in ("last", "logits_to_keep") if name in known), None)
    output: Any = model(ids[None], **({} if name is None else {name: needed}))
    logits = getattr(output, "logits", output)
    expected = (1, len(ids) if name is None else needed)
    if not isinstance(logits, Tensor) or logits.shape[:2] != expected:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the model returned {found}, not logits (1, tokens, vocabulary) = (1, {expected[1]}, "
            f"…): a passage can be left out for a model that writes"
        )
    predicted = logits[0, -needed:-1].float().log_softmax(dim=-1)
    return float(predicted.gather(1, ids[prompt:, None]).sum())
