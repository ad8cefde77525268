"""From scores to weights: softmax under all its names, and exp with its sum."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from jumok.lens.taps.by_hand import Exponential, LogTotal, LogWeights, Opaque, Total, Value, Weights
from jumok.lens.taps.function_rules.asking import Asker, operands
from jumok.lens.taps.scores import Scores


def softmax(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    values = (*args, *(kwargs[key] for key in ("input", "dim") if key in kwargs))
    tensor = values[0]
    value = follower.value(tensor)
    if isinstance(value, Exponential):
        value = Opaque(value.layout, "`exp` is applied to the scores")
    if not isinstance(value, (Scores, Opaque)):
        return None
    dim = values[1] if len(values) > 1 else None
    if dim is None:
        dim = 0 if tensor.ndim in (0, 1, 3) else 1
    return follower.softmax(value, tensor if result is not tensor else None, dim, result)


def softmin(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0] if args else kwargs["input"])
    if not isinstance(value, (Scores, Opaque)):
        return None
    negative = value.times(-1.0) if isinstance(value, Scores) else value
    if negative is None:
        negative = Opaque(value.layout, "`softmin` of scores that are masked")
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return None if dim is None else follower.softmax(negative, None, dim, result)


def gumbel_softmax(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0] if args else kwargs["logits"])
    if not isinstance(value, (Scores, Opaque)):
        return None
    dim = args[4] if len(args) > 4 else kwargs.get("dim", -1)
    noisy = Opaque(value.layout, "`gumbel_softmax` adds noise to the scores")
    return follower.softmax(noisy, None, dim, result)


def log_softmax(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    if not isinstance(follower.value(operands(args, kwargs)[0]), (Scores, Opaque)):
        return None
    found = softmax(follower, args, kwargs, result.detach().exp())
    return LogWeights(found, found.layout) if isinstance(found, Weights) else None


def exponential(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if isinstance(value, LogWeights):
        return value.of
    if isinstance(value, Opaque) or (isinstance(value, Scores) and value.sinks is None):
        return Exponential(value, value.layout)
    return None


def total(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if isinstance(value, Opaque) and value.is_sum and result.ndim > 2:
        return Opaque(None, value.why, is_sum=True)  # over the features of pairs of rows
    if not isinstance(value, (Exponential, Weights)):
        return None
    found = _one_dimension(args, kwargs)
    if found is None or value.layout is None:
        return None
    layout = list(value.layout)
    summed, layout[found] = layout[found], ()
    return Total(value, tuple(layout), summed)


def logsumexp(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if not isinstance(value, Scores) or value.sinks is not None:
        return None
    found = _one_dimension(args, kwargs)
    if found is None:
        return None
    layout = list(value.layout)
    summed, layout[found] = layout[found], ()
    return LogTotal(value, tuple(layout), summed)


def _one_dimension(args: Any, kwargs: Any) -> int | None:
    """The dimension that a function sums over and keeps with size 1."""
    values = (*args[1:], *(kwargs[key] for key in ("dim", "axis", "keepdim") if key in kwargs))
    if len(values) != 2 or not values[1]:
        return None
    dim = values[0]
    dim = dim[0] if isinstance(dim, (list, tuple)) and len(dim) == 1 else dim
    return dim if isinstance(dim, int) else None
