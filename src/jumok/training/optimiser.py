"""AdamW on matrices and the rest, the learning rate of each step, and a mean of the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from jumok.model.losses import warm_up_rate
from jumok.training.settings import Training

__all__ = ["MovingAverage", "new_optimiser", "rate", "set_rate"]

_LOWEST = 0.1  # of the highest rate, at the end of a cosine
_LONGEST_WARM_UP = 2000


def new_optimiser(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) over the parameters that learn.

    Matrices and embeddings decay; biases and norms, which have one dimension, do not.

    Args:
        model: or what `World.wrap` has made of it.
        training: its learning rate, betas and weight decay.
    """
    learn = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in learn if p.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in learn if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=training.highest_rate, betas=training.betas, fused=True)


def rate(training: Training, step: int, steps: int, emb_dim: int) -> float:
    """The learning rate of a step.

    Args:
        training: the highest rate, the schedule, and how long it rises.
        step: from 0.
        steps: of the whole run.
        emb_dim: width E of the model, for the schedule of 2017.
    """
    warm_up = training.warm_up
    if warm_up is None:
        warm_up = min(_LONGEST_WARM_UP, steps // 10)
    if training.schedule == "vaswani":
        return warm_up_rate(step + 1, emb_dim, max(1, warm_up))
    highest = training.highest_rate
    if step < warm_up:
        return highest * (step + 1) / warm_up
    if training.schedule == "constant":
        return highest
    done = min(1.0, (step - warm_up) / max(1, steps - 1 - warm_up))
    return highest * (_LOWEST + (1 - _LOWEST) * (1 + math.cos(math.pi * done)) / 2)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Take this learning rate for the next step."""
    for group in optimiser.param_groups:
        group["lr"] = rate


class MovingAverage:
    """An exponential moving average of the weights that learn.

    ``mean ← decay · mean + (1 − decay) · weight`` after every step, with a smaller decay at
    first, ``(1 + n) / (10 + n)``, so that fresh weights are soon forgotten.

    Args:
        model: or what `World.wrap` has made of it.
        decay: from 0 to below 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._weights = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._means = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of one more step in."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        means = list(self._means.values())
        torch._foreach_lerp_(means, [w.detach() for w in self._weights.values()], 1 - decay)
        self.steps += 1

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights and their means; a second time puts them back."""
        for name, weight in self._weights.items():
            mean = self._means[name]
            kept = weight.detach().clone()
            weight.copy_(mean)
            mean.copy_(kept)

    def state_dict(self) -> dict[str, Tensor | int]:
        """The means, and how many steps are in them."""
        return {**self._means, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Tensor | int]) -> None:
        """Go on from `state_dict`."""
        self.steps = int(state["steps"])
        for name, mean in self._means.items():
            found = state[name]
            assert isinstance(found, Tensor)
            mean.copy_(found)
