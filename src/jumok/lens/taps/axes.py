"""Axes that are followed through views, so that scores of any layout can be read.

Hand-written attention keeps its scores as (B, H, Tq, Tk), as (B · H, Tq, Tk), as (B, Tq, H, Tk),
and goes from one to the other. Every dimension of such a tensor is a product of axes; a view
regroups them, and an axis that a view cuts in two is cut wherever it occurs. At the end each
tensor is brought into (batch, heads, queries, keys) by the axes it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor


class Axis:
    """One axis; `parts` are what it was cut into, or the axis that it turned out to be."""

    __slots__ = ("parts", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: tuple[Axis, ...] = ()

    def leaves(self) -> list[Axis]:
        """The axes it consists of now, the outermost first."""
        if not self.parts:
            return [self]
        return [leaf for part in self.parts for leaf in part.leaves()]


Dimension = tuple[Axis, ...]
"""The axes of one dimension, the outermost first; none where the tensor has size 1 only."""
Layout = tuple[Dimension, ...]


def fresh(shape: Iterable[int]) -> Layout:
    """New axes, one for each dimension."""
    return tuple((Axis(size),) for size in shape)


def leaves(dimension: Iterable[Axis]) -> list[Axis]:
    """The axes of a dimension, or of several, as they are cut now."""
    axes = list(dimension)
    for axis in axes:
        if axis.parts:
            return [leaf for axis in axes for leaf in axis.leaves()]
    return axes


def all_leaves(layout: Layout) -> list[Axis]:
    """The axes of all dimensions."""
    return leaves([axis for dimension in layout for axis in dimension])


def size_of(dimension: Dimension) -> int:
    """The length of a dimension."""
    return math.prod(axis.size for axis in dimension)


def copied(*layouts: Layout) -> list[Layout]:
    """The same layouts with new axes, one and the same where they share one."""
    new: dict[int, Axis] = {}

    def copy(axis: Axis) -> Axis:
        return new.setdefault(id(axis), Axis(axis.size))

    return [
        tuple(tuple(copy(leaf) for leaf in leaves(dimension)) for dimension in layout)
        for layout in layouts
    ]


def regrouped(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """The layout after a view or reshape to `shape`; `None` if it cuts across the axes."""
    axes = all_leaves(layout)
    at = 0
    result: list[Dimension] = []
    for size in shape:
        taken: list[Axis] = []
        have = 1
        while at < len(axes) and (have < size or (size == 1 and not taken and axes[at].size == 1)):
            need = size // have
            axis = axes[at]
            if axis.size > need:
                if need == 0 or axis.size % need:
                    return None
                axis.parts = (Axis(need), Axis(axis.size // need))
                axes[at : at + 1] = axis.parts
                axis = axes[at]
            taken.append(axis)
            have *= axis.size
            at += 1
        if have != size:
            return None
        result.append(tuple(taken))
    if result and at < len(axes):
        result[-1] += tuple(axes[at:])  # of size 1, all of them
    return tuple(result)


def unify(one: Dimension, other: Dimension) -> Dimension | None:
    """Make two dimensions that are multiplied or contracted with each other the same axes.

    Returns:
        The axes of the result, which are those of the longer one if the other has size 1;
        `None` if they are cut differently.
    """
    if size_of(one) != size_of(other):
        return one if size_of(other) == 1 else other
    left, right = leaves(one), leaves(other)
    # Where only one of the two knows of axes of size 1, the other gets none of them.
    if len(left) != len(right):
        left = [axis for axis in left if axis.size > 1]
        right = [axis for axis in right if axis.size > 1]
    while left and right:
        a, b = left[0], right[0]
        if a is b:
            pass
        elif a.size == b.size:
            b.parts = (a,)
        else:
            small, large, rest = (a, b, right) if a.size < b.size else (b, a, left)
            if large.size % small.size:
                return None
            large.parts = (Axis(small.size), Axis(large.size // small.size))
            rest[:1] = large.parts
            continue
        left, right = left[1:], right[1:]
    return one if len(leaves(one)) >= len(leaves(other)) else other


def broadcast(layout: Layout, shape: Sequence[int]) -> tuple[Layout, Layout]:
    """How a tensor of `shape` meets one of `layout` in a pointwise function.

    Returns:
        The layout of the result, and that of the tensor, which shares its axes.
    """
    rank = max(len(layout), len(shape))
    padded = ((),) * (rank - len(layout)) + tuple(layout)
    sizes = (1,) * (rank - len(shape)) + tuple(shape)
    met: list[tuple[Dimension, Dimension]] = []
    for dimension, size in zip(padded, sizes, strict=True):
        if size == 1:
            met.append((dimension, ()))
        elif size_of(dimension) == 1:
            new = (Axis(size),)
            met.append((new, new))
        else:
            met.append((dimension, dimension))
    result = tuple(both for both, _ in met)
    return result, tuple(own for _, own in met)[rank - len(shape) :]


@dataclass(eq=False)
class Term:
    """A tensor and what its dimensions mean."""

    tensor: Tensor
    layout: Layout

    def has(self, axis: Axis) -> bool:
        """Whether the tensor differs along an axis."""
        own = all_leaves(self.layout)
        return any(part is leaf for part in axis.leaves() for leaf in own)

    def arranged(self, groups: Sequence[Sequence[Axis]], full: Sequence[bool]) -> Tensor:
        """The tensor with one dimension for each group of axes.

        Args:
            groups: the axes of each dimension of the result, the outermost first.
            full: for each, whether it has its whole length even where the tensor has none of
                its axes; otherwise it has size 1 there.

        Raises:
            ValueError: the tensor has an axis that is in no group.
        """
        axes = all_leaves(self.layout)
        tensor = self.tensor.reshape([axis.size for axis in axes])
        place = {id(axis): number for number, axis in enumerate(axes)}
        wanted = [leaves(group) for group in groups]
        known = {id(axis) for group in wanted for axis in group}
        for axis in axes:
            if id(axis) not in known:
                if axis.size > 1:
                    raise ValueError("an axis of the tensor has no place in the result")
                tensor = tensor.squeeze(place.pop(id(axis)))
                left = [other for other in axes if id(other) in place]
                place = {id(other): number for number, other in enumerate(left)}
                axes = left
        order = [place[id(axis)] for group in wanted for axis in group if id(axis) in place]
        tensor = tensor.permute(order)
        sizes, shape = [], []
        at = 0
        for group, whole in zip(wanted, full, strict=True):
            whole = whole or any(id(axis) in place and axis.size > 1 for axis in group)
            length = 1
            for axis in group:
                if id(axis) not in place:
                    tensor = tensor.unsqueeze(at)
                size = axis.size if whole else 1
                sizes.append(size)
                length *= size
                at += 1
            shape.append(length)
        return tensor.expand(sizes).reshape(shape)
