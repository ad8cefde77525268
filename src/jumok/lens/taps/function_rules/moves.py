"""Functions that move or repeat entries: views, transpositions, indices, expansions."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.axes import Axis, Dimension, Layout, Term, broadcast, fresh, leaves, regrouped
from jumok.lens.taps.by_hand import Opaque, Plain, Value, Weights, derived
from jumok.lens.taps.function_rules.asking import Asker, with_layout
from jumok.lens.taps.scores import Scores


def keep(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if value is None or result is args[0] or value.layout is None:
        return value
    return with_layout(value, value.layout, args[0])


def regroup(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    tensor = args[0]
    value = follower.value(tensor)
    if value is None:
        return _merged(tensor, result)
    if value.layout is None:
        return value
    if isinstance(value, Scores) and value.sinks is not None:
        return Opaque(None, "a view of scores with sinks")
    return with_layout(value, regrouped(value.layout, result.shape), tensor)


def _merged(tensor: Tensor, result: Tensor) -> Value | None:
    """Whether batch and heads become one dimension, which nobody could tell apart later."""
    old, new = tensor.shape, result.shape
    if len(new) != 3 or not 3 <= len(old) <= 4 or old == new or not tensor.is_floating_point():
        return None
    four = len(old) == 4 and old[-1] == new[-1] and new[0] == old[0] * old[1]
    # (T, B, heads · D) as (T, B · heads, D)
    three = len(old) == 3 and old[0] == new[0] and new[1] % max(old[1], 1) == 0 and new[2] < old[2]
    if not result.numel() or not (four or three):
        return None
    layout = regrouped(fresh(old), new)
    return None if layout is None else Plain(layout)


def swap(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if value is None or value.layout is None:
        return value
    named = [kwargs[key] for key in ("dim0", "dim1", "axis0", "axis1") if key in kwargs]
    one, other = (*args[1:], *named) or (-1, -2)  # Tensor.t has none
    return with_layout(value, _swapped(value.layout, one, other), args[0])


def _swapped(layout: Layout, one: int, other: int) -> Layout:
    order = list(range(len(layout)))
    order[one], order[other] = order[other], order[one]
    return tuple(layout[place] for place in order)


def permute(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if value is None or value.layout is None:
        return value
    order = args[1:] or (kwargs["dims"],)
    if len(order) == 1 and isinstance(order[0], (list, tuple)):
        order = tuple(order[0])
    return with_layout(value, tuple(value.layout[place] for place in order), args[0])


def move_axis(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if value is None or value.layout is None:
        return value
    # Told by a tensor of which each dimension has another size.
    probe = torch.empty([2 + n for n in range(len(value.layout))], device="meta")
    order = [size - 2 for size in probe.movedim(*args[1:], **kwargs).shape]
    return with_layout(value, tuple(value.layout[place] for place in order), args[0])


def of_property(follower: Asker, function: Any, tensor: Tensor, result: Tensor) -> Value | None:
    name = getattr(getattr(function, "__self__", None), "__name__", "")
    value = follower.value(tensor)
    if value is None or result.ndim != tensor.ndim or result is tensor:
        return value if result is tensor else None
    if value.layout is None:
        return value
    if name in ("mT", "mH"):
        return with_layout(value, _swapped(value.layout, -1, -2), tensor)
    if name in ("T", "H"):
        return with_layout(value, tuple(reversed(value.layout)), tensor)
    return with_layout(value, value.layout, tensor) if result.shape == tensor.shape else None


def index_into(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    tensor, index = args[0], args[1]
    value = follower.value(tensor)
    if value is None or isinstance(value, Plain):
        return None
    parts = index if isinstance(index, tuple) else (index,)
    if not all(
        part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts
    ):
        return (
            Opaque(None, "the scores are indexed by a tensor")
            if (not isinstance(value, Weights))
            else None
        )
    if value.layout is None:
        return value
    given = sum(part is not None and part is not Ellipsis for part in parts)
    if Ellipsis not in parts:
        parts = (*parts, Ellipsis)
    at = parts.index(Ellipsis)
    everything = (slice(None),) * (tensor.ndim - given)
    layout: list[Dimension] = []
    place = 0
    for part in (*parts[:at], *everything, *parts[at + 1 :]):
        if part is None:
            layout.append(())
            continue
        length = tensor.shape[place]
        if isinstance(part, slice):
            if part.indices(length) != (0, length, 1):
                return _cut(value, tensor, place, part.indices(length), result)
            layout.append(value.layout[place])
        elif length != 1:
            return None
        place += 1
    return with_layout(value, tuple(layout), tensor)


def _cut(
    value: Value, tensor: Tensor, place: int, cut: tuple[int, int, int], result: Tensor
) -> Value | None:
    """A slice that leaves something out: a sink's column of the weights, or something unknown."""
    if not isinstance(value, Weights) or result.ndim != tensor.ndim:
        return None
    layout = value.layout
    size = tensor.shape[place]
    is_sink = value.sink is not None and place == tensor.ndim - 1
    if is_sink and cut == ((0, size - 1, 1) if value.sink else (1, size, 1)):
        return dataclasses.replace(derived(value, tensor, layout), sink=None)
    if value.sink is None and {id(axis) for axis in leaves(layout[place])} == {
        id(axis) for axis in leaves(value.keys)
    }:
        left = (Axis(result.shape[place]),)
        why = "a part of the keys was cut out of the weights"
        return Weights((*layout[:place], left, *layout[place + 1 :]), left, None, why)
    return None


def expand(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    tensor = args[0]
    value = follower.value(tensor)
    if value is not None:
        if value.layout is None or result.shape == tensor.shape:
            return value
        if isinstance(value, Plain):
            return None
        return with_layout(value, broadcast(value.layout, result.shape)[0], tensor)
    shape = result.shape
    if result.ndim < 4 or tensor.shape[-1] != shape[-1] or not tensor.is_floating_point():
        return None
    if tensor.ndim != result.ndim or shape == tensor.shape or not result.numel():
        return None
    layout = fresh(shape)
    inner = tuple(
        own if size == length else ()
        for own, size, length in zip(layout, tensor.shape, shape, strict=True)
    )
    return Plain(layout, Term(tensor.detach(), inner))


def repeat(follower: Asker, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    tensor = args[0]
    times = args[1] if len(args) > 1 else kwargs.get("repeats")
    dim = args[2] if len(args) > 2 else kwargs.get("dim")
    if not isinstance(times, int) or dim is None or result.ndim != 4 or not result.numel():
        return None
    if not tensor.is_floating_point():
        return None
    layout = list(fresh(tensor.shape))
    inner = tuple(layout)
    layout[dim] = (*layout[dim], Axis(times))
    return Plain(tuple(layout), Term(tensor.detach(), inner))
