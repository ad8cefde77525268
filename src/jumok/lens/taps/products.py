"""Matrix products in all their spellings, as labelled dimensions: where scores are born and end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from jumok.lens.taps.axes import (
    Axis,
    Dimension,
    Layout,
    Term,
    copied,
    fresh,
    leaves,
    size_of,
    unify,
)
from jumok.lens.taps.by_hand import Attention, HandTap, Opaque, Plain, Value, Weights, is_parameter
from jumok.lens.taps.scores import Product, Scores


@dataclass(frozen=True)
class Labelled:
    """A product of two tensors, one letter for each dimension."""

    left: Tensor
    right: Tensor
    left_labels: str
    right_labels: str
    labels: str
    factor: float = 1.0


def labelled(name: str, args: Any, kwargs: Any) -> Labelled | None:
    """Read the arguments of a function that multiplies two tensors."""
    if name == "einsum":
        return _einsum(*args, **kwargs)
    if name in ("baddbmm", "addmm"):
        named = ("batch1", "batch2", "mat1", "mat2")
        operands = (*args[1:], *(kwargs[key] for key in named if key in kwargs))
        return _matmul(operands[0], operands[1], float(kwargs.get("alpha", 1)))
    values = (
        *args,
        *(kwargs[key] for key in ("input", "other", "mat2", "weight") if key in kwargs),
    )
    if len(values) < 2:
        return None
    left, right = values[:2]
    if name == "rmatmul":
        left, right = right, left
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return None
    if name == "inner":
        n, m = _letters(left.ndim - 1), _letters(right.ndim - 1).lower()
        return Labelled(left, right, n + "z", m + "z", n + m)
    if name == "linear":
        if (len(values) > 2 and values[2] is not None) or kwargs.get("bias") is not None:
            return None
        lead = _letters(left.ndim - 1)
        b = "kd" if right.ndim == 2 else "d"
        return Labelled(left, right, lead + "d", b, lead + b[:-1])
    return _matmul(left, right)


def _letters(count: int) -> str:
    return "ABCDEFGHIJ"[10 - count :] if count else ""


def _matmul(left: Tensor, right: Tensor, factor: float = 1.0) -> Labelled:
    n, m = left.ndim, right.ndim
    a = _letters(n - 2) + "qd" if n > 1 else "d"
    b = _letters(m - 2) + "dk" if m > 1 else "d"
    lead = _letters(max(n, m, 2) - 2)
    return Labelled(
        left, right, a, b, lead + ("q" if n > 1 else "") + ("k" if m > 1 else ""), factor
    )


def _einsum(equation: Any, *operands: Any) -> Labelled | None:
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    left, right = operands
    equation = equation.replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    parts = inputs.split(",")
    if not arrow or len(parts) != 2:
        return None
    labels = []
    dots = 0
    for part, operand in zip(parts, (left, right), strict=True):
        if "..." in part:
            missing = operand.ndim - len(part) + 3
            dots = max(dots, missing)
            part = part.replace("...", _dots(missing))
        labels.append(part)
    output = output.replace("...", _dots(dots))
    if any(len(set(part)) != len(part) for part in labels):
        return None  # a diagonal
    return Labelled(left, right, labels[0], labels[1], output)


def _dots(count: int) -> str:
    """Letters that no equation has, for the dimensions that an ellipsis stands for."""
    return "αβγδεζηθ"[8 - count :] if count else ""


class Products:
    """Hears products: of two activations (scores?), and of weights with values."""

    def __init__(self, tap: HandTap) -> None:
        self._tap = tap

    def hear(self, product: Labelled, result: Tensor) -> Value | Attention | None:
        """What the result is."""
        left, right = product.left, product.right
        if not (left.is_floating_point() and right.is_floating_point()) or not result.numel():
            return None
        values = self._tap.value(left), self._tap.value(right)
        for at, operand in enumerate((left, right)):
            found = values[at]
            if isinstance(found, Weights):
                other = (right, left)[at]
                return self._with_weights(found, operand, other, product, at == 0, result)
        if is_parameter(right) or result.ndim < 2:
            return None
        return self._born(product, values)

    def _born(self, product: Labelled, values: tuple[Value | None, Value | None]) -> Value | None:
        left = _term(product.left, values[0])
        right = _term(product.right, values[1])
        met = _meet(product, left[1], right[1])
        if met is None:
            return Opaque(None, "a product whose axes are not understood")
        layout, contracted = met
        if not contracted:
            return Opaque(None, "an outer product")
        return Scores(layout, (Product(left[0], right[0], contracted, product.factor),))

    def _with_weights(
        self,
        weights: Weights,
        operand: Tensor,
        other: Tensor,
        product: Labelled,
        is_left: bool,
        result: Tensor,
    ) -> Value | Attention | None:
        if is_parameter(other):
            return None
        term, whole = _term(other, self._tap.value(other))
        own, others = (weights.layout, whole) if is_left else (whole, weights.layout)
        met = _meet(product, own, others)
        if met is None or weights.sink is not None:
            self._tap.listener.unheard("a softmax and a product whose axes are not understood")
            return None
        layout, contracted = met
        keys = [axis for axis in leaves(weights.keys) if axis.size > 1]
        summed = [axis for axis in leaves(contracted) if axis.size > 1]
        if {id(axis) for axis in keys} != {id(axis) for axis in summed}:
            if is_left:
                self._tap.listener.unheard(
                    "a softmax whose product runs over another axis than the softmax"
                )
            return None
        mine = leaves(axis for dimension in weights.layout for axis in dimension)
        features = [
            axis
            for dimension in term.layout
            for axis in leaves(dimension)
            if not any(axis is one for one in (*mine, *keys))
        ]
        try:
            return self._tap.attend(weights, operand, term, features, result, layout)
        except ValueError:
            self._tap.listener.unheard("a softmax and a product whose axes are not understood")
            return None


def _term(tensor: Tensor, value: Value | None) -> tuple[Term, Layout]:
    """An operand with axes of its own, and its whole layout if it repeats a smaller tensor."""
    if isinstance(value, Plain):
        if value.source is None:
            (layout,) = copied(value.layout)
            return Term(tensor.detach(), layout), layout
        layout, inner = copied(value.layout, value.source.layout)
        return Term(value.source.tensor, inner), layout
    layout = fresh(tensor.shape)
    return Term(tensor.detach(), layout), layout


def _meet(product: Labelled, left: Layout, right: Layout) -> tuple[Layout, tuple[Axis, ...]] | None:
    """Make the axes of a product's operands one; the result's layout, and what is contracted."""
    if len(left) != len(product.left_labels) or len(right) != len(product.right_labels):
        return None
    dimensions: dict[str, Dimension] = dict(zip(product.left_labels, left, strict=True))
    contracted: list[Axis] = []
    for label, dimension in zip(product.right_labels, right, strict=True):
        if label not in dimensions:
            dimensions[label] = dimension
            continue
        if label not in product.labels and size_of(dimension) != size_of(dimensions[label]):
            return None
        met = unify(dimensions[label], dimension)
        if met is None:
            return None
        dimensions[label] = met
        if label not in product.labels:
            contracted += met
    alone = set(product.left_labels) ^ set(product.right_labels)
    if any(label not in product.labels for label in alone):
        return None
    return tuple(dimensions[label] for label in product.labels), tuple(contracted)


PRODUCTS = frozenset({
    "matmul", "rmatmul", "linalg_matmul", "mm", "bmm", "einsum", "baddbmm", "addmm", "linear",
    "inner",
})  # fmt: skip
