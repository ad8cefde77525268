"""What the rules share: whom they ask what a tensor is, and how they read their arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from jumok.lens.taps.axes import Layout, Term
from jumok.lens.taps.by_hand import Opaque, Plain, Value, Weights, derived


class Asker(Protocol):
    """Knows what the tensors are that have been followed so far."""

    @property
    def value(self) -> Callable[[Any], Value | None]:
        """What a tensor is; `None` if it is nothing that is followed."""
        ...

    @property
    def softmax(self) -> Callable[[Value, Tensor | None, int, Tensor], Weights]:
        """(scores, their tensor, dimension, result) → what the softmax of scores is."""
        ...


Rule = Callable[[Asker, Any, Any, Any], Value | None]
"""(asker, args, kwargs, result) → what the result is."""


def with_layout(value: Value, layout: Layout | None, operand: Tensor) -> Value | None:
    if layout is None:
        if isinstance(value, Plain):
            return None
        if isinstance(value, Weights):
            return None
        return Opaque(None, "a view cuts across batch, heads and tokens")
    if isinstance(value, Weights):
        return derived(value, operand, layout)
    if isinstance(value, Plain) and value.source is not None:
        return Plain(layout, value.source)
    return dataclasses.replace(value, layout=layout)


def as_number(x: Any) -> float | None:
    if isinstance(x, (int, float)):
        return float(x)
    if isinstance(x, Tensor) and x.numel() == 1 and x.is_cpu:
        return float(x.detach())
    return None


def term_of(tensor: Tensor, layout: Layout) -> Term:
    """A tensor that meets scores; what it merely repeats is left out."""
    tensor = tensor.detach()
    own = list(layout)
    for place in range(tensor.ndim):
        if tensor.stride(place) == 0 and tensor.shape[place] > 1:
            tensor = tensor.narrow(place, 0, 1)
            own[place] = ()
    return Term(tensor, tuple(own))


def operands(args: Any, kwargs: Any) -> tuple[Any, Any]:
    values = (*args, *(kwargs[key] for key in ("input", "other", "exponent") if key in kwargs))
    return (values[0], values[1]) if len(values) > 1 else (values[0], None)
