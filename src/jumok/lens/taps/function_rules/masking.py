"""Masks that are filled in, and sinks that are put beside the scores."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from jumok.lens.taps.axes import broadcast
from jumok.lens.taps.by_hand import Plain, Value, Weights, derived
from jumok.lens.taps.function_rules.asking import Asker, as_number, term_of
from jumok.lens.taps.scores import Scores


def fill(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    values = (*args, *(kwargs[key] for key in ("mask", "value") if key in kwargs))
    value = follower.value(values[0])
    if isinstance(value, Weights):
        return derived(value, values[0], value.layout)
    return _filled(value, values[0], values[1], values[2], inverted=False)


def choose(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    values = (*args, *(kwargs[key] for key in ("condition", "input", "other") if key in kwargs))
    if len(values) != 3:
        return None
    condition, one, other = values
    if isinstance(args[0], Tensor) and follower.value(args[0]) is not None:
        one, condition = args[0], values[1]  # Tensor.where(condition, other)
    if isinstance(follower.value(one), Scores):
        return _filled(follower.value(one), one, condition, other, inverted=True)
    return _filled(follower.value(other), other, condition, one, inverted=False)


def _filled(
    value: Value | None, tensor: Any, where: Any, fill: Any, inverted: bool
) -> Value | None:
    if not isinstance(value, Scores) or value.sinks is not None or not isinstance(where, Tensor):
        return None
    number = as_number(fill)
    if number is None and isinstance(fill, Tensor) and fill.is_floating_point():
        number = float(fill.flatten()[0]) if bool((fill == fill.flatten()[0]).all()) else None
    if number is None:
        return None
    layout, own = broadcast(value.layout, where.shape)
    return value.filled(term_of(where, own), number, inverted, layout)


def join(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    parts = args[0] if args else kwargs["tensors"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    if len(parts) != 2 or dim not in (-1, result.ndim - 1):
        return None
    for number in (0, 1):
        value, other = follower.value(parts[number]), parts[1 - number]
        if isinstance(value, Scores) and other.shape[-1] == 1 and value.sinks is None:
            if not isinstance(follower.value(other), (Plain, type(None))) or other.ndim != len(
                value.layout
            ):
                return None
            _, own = broadcast(value.layout, other.shape)
            return dataclasses.replace(value, sinks=term_of(other, own), sink_first=number == 1)
    return None
