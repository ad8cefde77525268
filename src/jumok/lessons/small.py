"""Training of models so small that a lesson needs many of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

__all__ = ["fit", "manual", "one_thread", "pieces"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small operations take longer when they are shared out among cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fit(
    model: nn.Module,
    batch: Callable[[], tuple[Tensor, Tensor]],
    steps: int,
    *,
    rate: float = 2e-3,
    warm_up: int = 20,
) -> list[float]:
    """Train with AdamW on fresh batches, its rate warmed up and then constant.

    Args:
        model: ids → logits (…, classes).
        batch: gives ids and right answers (…), −100 where none is asked for.
        steps: how many.
        rate: the learning rate.
        warm_up: steps until it is reached.

    Returns:
        The loss of each step, in nats.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    with one_thread():
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / warm_up)
            ids, answer = batch()
            loss = nn.functional.cross_entropy(model(ids).flatten(0, -2), answer.flatten())
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            losses.append(loss.item())
    return losses


def manual() -> tuple[Tensor, Tensor]:
    """The bytes of Python's reference manual: nine tenths to learn from, the rest is fresh."""
    from pydoc_data.topics import topics

    text = torch.tensor(list("\n".join(topics.values()).encode()))
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def pieces(text: Tensor, count: int, length: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pieces of a text (count, length), and for each token the one after it."""
    starts = torch.randint(len(text) - length - 1, (count, 1), generator=random)
    rows = text[starts + torch.arange(length + 1)]
    return rows[:, :-1], rows[:, 1:]
