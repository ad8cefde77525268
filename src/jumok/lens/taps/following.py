"""What ordinary functions do to scores and weights that are followed: one small rule for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.axes import (
    Axis,
    Dimension,
    Layout,
    Term,
    broadcast,
    fresh,
    leaves,
    regrouped,
    size_of,
    unify,
)
from jumok.lens.taps.by_hand import (
    Attention,
    Exponential,
    HandTap,
    LogTotal,
    LogWeights,
    Opaque,
    Plain,
    Total,
    Value,
    Weights,
    derived,
    is_parameter,
)
from jumok.lens.taps.heard import tensors_in
from jumok.lens.taps.products import PRODUCTS, Products, labelled
from jumok.lens.taps.scores import Scores
from jumok.lens.taps.writes import targets

Rule = Callable[["Follower", Any, Any, Any], Value | None]
"""(follower, args, kwargs, result) → what the result is."""


class Follower:
    """Asks, of each function that ran, what its result is."""

    def __init__(self, tap: HandTap) -> None:
        self._tap = tap
        self.value = tap.value
        self.softmax = tap.softmax
        self._products = Products(tap)

    def step(self, function: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Look at a function that has run; answers with its result, or with what replaces it."""
        whole_name = getattr(function, "__name__", "")
        name = whole_name.strip("_")
        written = targets(whole_name, args, kwargs, result)
        for target in written:
            self._tap.overwrote(target)
        if name in ("setitem", "set"):
            self._tap.written(args[0])
            return result
        if not isinstance(result, Tensor):
            for target in written:
                self._tap.written(target)
            return result
        if any(result is target for target in written):
            self._tap.wrote(result)
        try:
            value = self._value_of(name, function, args, kwargs, result)
        except Exception as error:
            # A function in a form that its rule does not know must not stop the user's model.
            self._tap.listener.unheard(f"a call of `{name}` that could not be read ({error})")
            value = None
        if isinstance(value, Attention):
            return self._tap.listener.emit(value.heard, result, value.by_heads, value.joined)
        if isinstance(value, Scores) and any(self._tap.is_made_of(value, one) for one in written):
            value = Opaque(value.layout, "the scores were written over what they were made of")
        if value is not None:
            self._tap.follow(result, value)
        elif args and result is args[0]:
            self._tap.written(result)
        return result

    def _value_of(
        self, name: str, function: Any, args: Any, kwargs: Any, result: Tensor
    ) -> Value | Attention | None:
        if name in PRODUCTS:
            product = labelled(name, args, kwargs)
            if product is None and name == "einsum":
                return self._several(args, result)
            if product is not None and isinstance(self.value(product.left), Exponential):
                self._tap.listener.unheard("attention by exp and sum is not recorded")
                return None
            value = None if product is None else self._products.hear(product, result)
            if value is None and result.ndim > 2:
                return self._mixed(name, args, kwargs, result)
            beta = float(kwargs.get("beta", 1))
            if isinstance(value, Scores) and name in ("baddbmm", "addmm") and beta:
                return _plus(self, value, args[0], beta)
            return value
        if name in ROOTS and result.is_floating_point():
            return Opaque(fresh(result.shape), ROOTS[name])
        if name == "get":
            return _of_property(self, function, args[0], result)
        if name in OUTER and self.value(args[0]) is None and is_outer(args, result):
            why = "the scores are made of sums, not products, of queries and keys"
            return Opaque(None, why, is_sum=True)
        rule = RULES.get(name)
        found = None if rule is None else rule(self, args, kwargs, result)
        if found is None and name not in ENDS:
            found = self._unknown(name, args, kwargs, result)
        return found

    def _several(self, args: Any, result: Tensor) -> Value | None:
        """An einsum of three tensors or more: scores that are no product of two, or an end."""
        operands = [*tensors_in(args)]
        if any(isinstance(self.value(operand), Weights) for operand in operands):
            self._tap.listener.unheard("a softmax in an einsum of three tensors is not recorded")
            return None
        activations = [one for one in operands if not is_parameter(one)]
        if len(activations) < 2 or result.ndim < 2 or not result.is_floating_point():
            return None
        return Opaque(fresh(result.shape), "the scores are a product of three tensors")

    def _mixed(self, name: str, args: Any, kwargs: Any, result: Tensor) -> Value | None:
        """Scores or weights times a parameter: heads that are mixed, or features summed up."""
        for argument in tensors_in((*args, *kwargs.values())):
            value = self.value(argument)
            if isinstance(value, (Scores, Opaque, Weights)) and argument.ndim > 3:
                return self._unknown(name, args, kwargs, result)
        return None

    def _unknown(self, name: str, args: Any, kwargs: Any, result: Tensor) -> Value | None:
        """After a function that has no rule scores are scores, but nobody knows which."""
        if not result.is_floating_point() or result.ndim < 2:
            return None
        for argument in tensors_in((*args, *kwargs.values())):
            value = self.value(argument)
            if value is None or isinstance(value, Plain):
                continue
            if result.numel() > argument.numel() and name not in GROW:
                return None
            same = result.shape == argument.shape
            if isinstance(value, Weights):
                if not same:
                    return None
                why = f"`{name}` stands between the softmax and the product with the values"
                return (
                    Weights(fresh(result.shape), (), None, why)
                    if not value.keys
                    else (dataclasses.replace(value, reading=None, why=why, ran=None))
                )
            if isinstance(value, Exponential):
                unknown = Opaque(value.layout, f"`{name}` is applied to the scores")
                return Exponential(unknown, value.layout) if same else None
            why = value.why if isinstance(value, Opaque) else f"`{name}` is applied to the scores"
            is_sum = isinstance(value, Opaque) and value.is_sum
            return Opaque(value.layout if same else None, why, is_sum)
        return None


# What may make scores larger: parts of them are repeated or put together.
GROW = frozenset({"cat", "concat", "gather", "take_along_dim", "index_select", "pad"})

# What nothing that is followed survives: it mixes or sums the last dimension, or is no part of
# any attention.
ENDS = frozenset({
    "layer_norm", "group_norm", "batch_norm", "rms_norm", "instance_norm", "embedding", "sum",
    "mean", "var", "std", "norm", "cos", "sin", "gelu", "silu", "sigmoid", "rsqrt", "cumsum",
    "cross_entropy", "conv1d", "conv3d", "scaled_dot_product_attention", "outer", "log_softmax",
    "max", "min", "amax", "amin", "logsumexp", "softmax", "expand", "repeat", "zeros_like",
    "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_empty", "new_full",
})  # fmt: skip


def _with_layout(value: Value, layout: Layout | None, operand: Tensor) -> Value | None:
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


# -- what moves ---------------------------------------------------------------------------------


def _identity(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if value is None or result is args[0] or value.layout is None:
        return value
    return _with_layout(value, value.layout, args[0])


def _regroup(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    tensor = args[0]
    value = follower.value(tensor)
    if value is None:
        return _merged(tensor, result)
    if value.layout is None:
        return value
    if isinstance(value, Scores) and value.sinks is not None:
        return Opaque(None, "a view of scores with sinks")
    return _with_layout(value, regrouped(value.layout, result.shape), tensor)


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


def _swap(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if value is None or value.layout is None:
        return value
    named = [kwargs[key] for key in ("dim0", "dim1", "axis0", "axis1") if key in kwargs]
    one, other = (*args[1:], *named) or (-1, -2)  # Tensor.t has none
    return _with_layout(value, _swapped(value.layout, one, other), args[0])


def _swapped(layout: Layout, one: int, other: int) -> Layout:
    order = list(range(len(layout)))
    order[one], order[other] = order[other], order[one]
    return tuple(layout[place] for place in order)


def _permute(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if value is None or value.layout is None:
        return value
    order = args[1:] or (kwargs["dims"],)
    if len(order) == 1 and isinstance(order[0], (list, tuple)):
        order = tuple(order[0])
    return _with_layout(value, tuple(value.layout[place] for place in order), args[0])


def _move(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if value is None or value.layout is None:
        return value
    # Told by a tensor of which each dimension has another size.
    probe = torch.empty([2 + n for n in range(len(value.layout))], device="meta")
    order = [size - 2 for size in probe.movedim(*args[1:], **kwargs).shape]
    return _with_layout(value, tuple(value.layout[place] for place in order), args[0])


def _of_property(follower: Follower, function: Any, tensor: Tensor, result: Tensor) -> Value | None:
    name = getattr(getattr(function, "__self__", None), "__name__", "")
    value = follower.value(tensor)
    if value is None or result.ndim != tensor.ndim or result is tensor:
        return value if result is tensor else None
    if value.layout is None:
        return value
    if name in ("mT", "mH"):
        return _with_layout(value, _swapped(value.layout, -1, -2), tensor)
    if name in ("T", "H"):
        return _with_layout(value, tuple(reversed(value.layout)), tensor)
    return _with_layout(value, value.layout, tensor) if result.shape == tensor.shape else None


def _index(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
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
    return _with_layout(value, tuple(layout), tensor)


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


# -- what repeats -------------------------------------------------------------------------------


def _expand(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    tensor = args[0]
    value = follower.value(tensor)
    if value is not None:
        if value.layout is None or result.shape == tensor.shape:
            return value
        if isinstance(value, Plain):
            return None
        return _with_layout(value, broadcast(value.layout, result.shape)[0], tensor)
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


def _repeat_interleave(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
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


# -- arithmetic ---------------------------------------------------------------------------------


def _number(x: Any) -> float | None:
    if isinstance(x, (int, float)):
        return float(x)
    if isinstance(x, Tensor) and x.numel() == 1 and x.is_cpu:
        return float(x.detach())
    return None


def _leaf(tensor: Tensor, layout: Layout) -> Term:
    """A tensor that meets scores; what it merely repeats is left out."""
    tensor = tensor.detach()
    own = list(layout)
    for place in range(tensor.ndim):
        if tensor.stride(place) == 0 and tensor.shape[place] > 1:
            tensor = tensor.narrow(place, 0, 1)
            own[place] = ()
    return Term(tensor, tuple(own))


def _operands(args: Any, kwargs: Any) -> tuple[Any, Any]:
    values = (*args, *(kwargs[key] for key in ("input", "other", "exponent") if key in kwargs))
    return (values[0], values[1]) if len(values) > 1 else (values[0], None)


def _multiply(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    one, other = _operands(args, kwargs)
    if follower.value(one) is None:
        one, other = other, one
    return _scaled(follower, one, other, result, inverse=False)


def _divide(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    one, other = _operands(args, kwargs)
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
    follower: Follower, tensor: Any, factor: Any, result: Tensor, inverse: bool
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
    number = _number(factor)
    if number is not None:
        return value.times(1 / number if inverse else number) if number else None
    if not isinstance(factor, Tensor) or follower.value(factor) is not None:
        return None
    layout, own = broadcast(value.layout, factor.shape)
    if not inverse and factor.ndim > 1 and bool(((factor == 0) | (factor == 1)).all()):
        return value.filled(_leaf(factor, own), 0.0, True, layout)  # a mask, which is added later
    term = _leaf(1 / factor if inverse else factor, own)
    return value.times_term(term, layout)


def _add(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    one, other = _operands(args, kwargs)
    alpha = float(kwargs.get("alpha", 1))
    value = follower.value(one)
    if value is None or (isinstance(value, Opaque) and isinstance(follower.value(other), Scores)):
        one, other = other, one
        if alpha != 1:
            return None
        value = follower.value(one)
    return _sum(follower, value, one, other, alpha, result)


def _subtract(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    one, other = _operands(args, kwargs)
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
    follower: Follower, value: Value | None, one: Any, other: Any, factor: float, result: Tensor
) -> Value | None:
    if isinstance(value, Plain):
        return Plain(value.layout) if result.shape == one.shape else None
    if isinstance(value, Scores):
        return _plus(follower, value, other, factor)
    if isinstance(value, Opaque):
        return value if result.shape == one.shape else Opaque(None, value.why)
    return None


def _plus(follower: Follower, value: Scores, other: Any, factor: float) -> Value | None:
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
        value, layout=layout, addends=(*value.addends, (_leaf(other, own), factor))
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


def _tanh(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    return value.tanh() if isinstance(value, Scores) else None


def _clamp(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if not isinstance(value, Scores) or result is args[0] or result.shape != args[0].shape:
        return None
    return value if torch.equal(result, args[0]) else None


# -- masks and sinks ----------------------------------------------------------------------------


def _masked_fill(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    values = (*args, *(kwargs[key] for key in ("mask", "value") if key in kwargs))
    value = follower.value(values[0])
    if isinstance(value, Weights):
        return derived(value, values[0], value.layout)
    return _filled(value, values[0], values[1], values[2], inverted=False)


def _where(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
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
    number = _number(fill)
    if number is None and isinstance(fill, Tensor) and fill.is_floating_point():
        number = float(fill.flatten()[0]) if bool((fill == fill.flatten()[0]).all()) else None
    if number is None:
        return None
    layout, own = broadcast(value.layout, where.shape)
    return value.filled(_leaf(where, own), number, inverted, layout)


def _cat(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
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
            return dataclasses.replace(value, sinks=_leaf(other, own), sink_first=number == 1)
    return None


# -- softmax ------------------------------------------------------------------------------------


def _softmax(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
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


def _softmin(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0] if args else kwargs["input"])
    if not isinstance(value, (Scores, Opaque)):
        return None
    negative = value.times(-1.0) if isinstance(value, Scores) else value
    if negative is None:
        negative = Opaque(value.layout, "`softmin` of scores that are masked")
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return None if dim is None else follower.softmax(negative, None, dim, result)


def _gumbel(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0] if args else kwargs["logits"])
    if not isinstance(value, (Scores, Opaque)):
        return None
    dim = args[4] if len(args) > 4 else kwargs.get("dim", -1)
    noisy = Opaque(value.layout, "`gumbel_softmax` adds noise to the scores")
    return follower.softmax(noisy, None, dim, result)


def _log_softmax(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    if not isinstance(follower.value(_operands(args, kwargs)[0]), (Scores, Opaque)):
        return None
    found = _softmax(follower, args, kwargs, result.detach().exp())
    return LogWeights(found, found.layout) if isinstance(found, Weights) else None


def _exp(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
    value = follower.value(args[0])
    if isinstance(value, LogWeights):
        return value.of
    if isinstance(value, Opaque) or (isinstance(value, Scores) and value.sinks is None):
        return Exponential(value, value.layout)
    return None


def _total(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
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


def _logsumexp(follower: Follower, args: Any, kwargs: Any, result: Tensor) -> Value | None:
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


def _rules() -> dict[str, Rule]:
    named: dict[str, tuple[Rule, str]] = {
        "move": (_identity, "contiguous clone to type type_as float half bfloat16 double detach "
                 "alias requires_grad dropout alpha_dropout"),
        "regroup": (_regroup, "view reshape unsafe_view flatten unflatten squeeze unsqueeze "
                    "view_as reshape_as"),
        "swap": (_swap, "transpose swapaxes swapdims t"),
        "permute": (_permute, "permute"),
        "axis": (_move, "movedim moveaxis"),
        "index": (_index, "getitem"),
        "expand": (_expand, "expand expand_as"),
        "repeat": (_repeat_interleave, "repeat_interleave"),
        "multiply": (_multiply, "mul multiply imul rmul"),
        "divide": (_divide, "div divide true_divide truediv itruediv idiv"),
        "add": (_add, "add iadd radd"),
        "subtract": (_subtract, "sub subtract isub"),
        "tanh": (_tanh, "tanh"),
        "clamp": (_clamp, "clamp clip clamp_min clamp_max max maximum min minimum"),
        "fill": (_masked_fill, "masked_fill"),
        "where": (_where, "where"),
        "cat": (_cat, "cat concat concatenate"),
        "softmax": (_softmax, "softmax special_softmax"),
        "softmin": (_softmin, "softmin"),
        "gumbel": (_gumbel, "gumbel_softmax"),
        "log": (_log_softmax, "log_softmax"),
        "exp": (_exp, "exp"),
        "logsumexp": (_logsumexp, "logsumexp"),
        "sum": (_total, "sum"),
    }  # fmt: skip
    return {name: rule for rule, names in named.values() for name in names.split()}


RULES = _rules()

ROOTS = {"cdist": "the scores are distances, not products"}
"""Other functions that score queries against keys."""

OUTER = frozenset({"add", "sub", "mul"})

Question = Callable[[Any, Any], bool]
"""(args, result) → whether something may begin here."""


def _is_product(args: Any, result: Any) -> bool:
    # Nearly every product of a model is with a parameter; asked by the type, which is fast.
    return len(args) < 2 or type(args[1]) is not torch.nn.Parameter


def _becomes_three(args: Any, result: Any) -> bool:
    return bool(result.ndim == 3)


def _is_repeated(args: Any, result: Any) -> bool:
    return bool(result.ndim > 3)


def question_of(function: Any) -> Question | None:
    """What tells whether a call of a function may begin something; `None` if none does."""
    name = getattr(function, "__name__", "").strip("_")
    if name in OUTER:
        return is_outer
    if name in ("view", "reshape", "flatten", "view_as", "reshape_as"):
        return _becomes_three
    if name in ("expand", "repeat_interleave"):
        return _is_repeated
    return _is_product if name in PRODUCTS or name in ROOTS else None


def is_outer(args: Any, result: Any) -> bool:
    """Whether (…, Tq, 1, E) and (…, 1, Tk, E) were brought together, as in additive attention."""
    if len(args) < 2 or not isinstance(args[1], Tensor) or result.ndim < 4:
        return False
    one = args[0].shape
    if one == result.shape:
        return False
    one, other = one[-3:], args[1].shape[-3:]
    if len(one) != 3 or len(other) != 3 or one[2] != other[2] or one[2] == 1:
        return False
    return bool((one[0] == other[1] == 1 < one[1]) or (one[1] == other[0] == 1 < one[0]))
