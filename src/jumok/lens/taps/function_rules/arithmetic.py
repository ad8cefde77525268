"""Sums, products and quotients of scores and weights, and what bends or clamps them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.axes import Axis, Layout, Term, broadcast, leaves, size_of, unify
from jumok.lens.taps.by_hand import (
    Exponential,
    LogTotal,
    LogWeights,
    Opaque,
    Plain,
    Total,
    Value,
    Weights,
    derived,
)
from jumok.lens.taps.function_rules.asking import Asker, as_number, operands, term_of
from jumok.lens.taps.scores import Scores


def multiply(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    one, other = operands(args, kwargs)
    if follower.value(one) is None:
        one, other = other, one
    return _scaled(follower, one, other, result, inverse=False)


def divide(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    one, other = operands(args, kwargs)
    below = follower.value(other)
    above = follower.value(one)
    if above is None or kwargs.get("rounding_mode") is not None:
        return None
    if isinstance(below, Total):
        if below.of is not above:
            return None
        if isinstance(above, Exponential):
            dim = _dimension(above.layout, below.summed)
            return None if dim is None else follower.softmax(above.of, None, dim, result)
        assert isinstance(above, Weights)
        why = "the weights were normalised again after the softmax"
        return Weights(above.layout, below.summed, None, why)
    if isinstance(above, Exponential) and isinstance(other, Tensor) and other.ndim == one.ndim:
        # Divided by more than the sum: 1 + Σ, or Σ + ε.
        pairs = enumerate(zip(one.shape, other.shape, strict=True))
        summed = [number for number, (size, left) in pairs if left == 1 < size]
        if len(summed) == 1:
            return follower.softmax(above.of, None, summed[0], result)
    return _scaled(follower, one, other, result, inverse=True)


def _dimension(layout: Layout | None, axes: tuple[Axis, ...]) -> int | None:
    wanted = {id(leaf) for leaf in leaves(axes)}
    for number, dimension in enumerate(layout or ()):
        if {id(leaf) for leaf in leaves(dimension)} == wanted:
            return number
    return None


def _scaled(
    follower: Asker, tensor: Any, factor: Any, result: Tensor, inverse: bool
) -> Value | None:
    value = follower.value(tensor)
    if value is None:
        return None
    if isinstance(value, Plain):
        return Plain(value.layout) if result.shape == tensor.shape else None
    if isinstance(value, Weights):  # a gate or head mask: the weights are those before it
        if result.shape != tensor.shape:
            return None
        return derived(value, tensor, value.layout) if not inverse else None
    if isinstance(value, (Opaque, Exponential, LogWeights, Total, LogTotal)):
        same = isinstance(value, Opaque) and result.shape == tensor.shape
        return value if same else None
    number = as_number(factor)
    if number is not None:
        return value.times(1 / number if inverse else number) if number else None
    if not isinstance(factor, Tensor) or follower.value(factor) is not None:
        return None
    layout, own = broadcast(value.layout, factor.shape)
    if not inverse and factor.ndim > 1 and bool(((factor == 0) | (factor == 1)).all()):
        return value.filled(term_of(factor, own), 0.0, True, layout)  # a mask, which is added later
    term = term_of(1 / factor if inverse else factor, own)
    return value.times_term(term, layout)


def add(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    one, other = operands(args, kwargs)
    alpha = float(kwargs.get("alpha", 1))
    value = follower.value(one)
    if value is None or (isinstance(value, Opaque) and isinstance(follower.value(other), Scores)):
        one, other = other, one
        if alpha != 1:
            return None
        value = follower.value(one)
    return _sum(follower, value, one, other, alpha, result)


def subtract(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    one, other = operands(args, kwargs)
    value = follower.value(one)
    total = follower.value(other)
    if isinstance(total, LogTotal):
        dim = _dimension(total.of.layout, total.summed)
        if total.of is not value or dim is None:
            return None
        weights = follower.softmax(total.of, one, dim, result.detach().exp())
        return LogWeights(weights, weights.layout)
    return _sum(follower, value, one, other, -float(kwargs.get("alpha", 1)), result)


def _sum(
    follower: Asker, value: Value | None, one: Any, other: Any, factor: float, result: Tensor
) -> Value | None:
    if isinstance(value, Plain):
        return Plain(value.layout) if result.shape == one.shape else None
    if isinstance(value, Scores):
        return plus(follower, value, other, factor)
    if isinstance(value, Opaque):
        return value if result.shape == one.shape else Opaque(None, value.why)
    return None


def plus(follower: Asker, value: Scores, other: Any, factor: float) -> Value | None:
    """Scores and something added."""
    if not isinstance(other, Tensor):
        return value if value.sinks is None else None
    found = follower.value(other)
    if isinstance(found, Scores) and found.is_bare() and value.is_bare() and factor == 1:
        together = _side_by_side(value, found)
        if together is not None:
            return together
    if other.dtype == torch.bool or not other.is_floating_point():
        return None
    if isinstance(found, Scores) or (isinstance(found, Opaque) and not found.is_sum):
        layout, own = broadcast(value.layout, other.shape)
        term = Term(other.detach(), own)
        return dataclasses.replace(
            value, layout=layout, addends=(*value.addends, (term, factor)), has_stored_bias=True
        )
    if value.sinks is not None:
        # The same for a whole row, its sink included, changes no weight.
        return value if other.ndim and other.shape[-1] == 1 else None
    layout, own = broadcast(value.layout, other.shape)
    return dataclasses.replace(
        value, layout=layout, addends=(*value.addends, (term_of(other, own), factor))
    )


def _side_by_side(one: Scores, other: Scores) -> Scores | None:
    """The sum of two products is the product of their operands side by side."""
    if [size_of(axes) for axes in one.layout] != [size_of(axes) for axes in other.layout]:
        return None
    met = [unify(a, b) for a, b in zip(one.layout, other.layout, strict=True)]
    if any(dimension is None for dimension in met):
        return None
    layout = tuple(dimension for dimension in met if dimension is not None)
    return Scores(layout, one.products + other.products)


def bend(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    return value.tanh() if isinstance(value, Scores) else None


def clamp(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if not isinstance(value, Scores) or result is args[0] or result.shape != args[0].shape:
        return None
    return value if torch.equal(result, args[0]) else None
