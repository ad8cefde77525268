"""Scores as they are built up by hand, and what becomes of them in a call that is recorded.

`Scores` says how a tensor of scores came about: products of queries and keys, a scale, a softcap,
what was added, what was hidden. `read` turns that into the q, k, mask and bias of a call, and
compares some rows with the softmax that really ran: what is recorded is what was computed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.axes import Axis, Layout, Term, all_leaves, leaves
from jumok.lens.taps.heard import Heard
from jumok.lens.taps.mask_reader import MaskReader
from jumok.masks import Mask, join

# A fill from here on hides: exp(−9000) is 0 in every type.
_HIDES = -9e3


STORED_BIAS = "a part of the scores is more than q·k, and was kept as a bias"


class CannotRead(Exception):
    """The scores are no q·k with a scale, softcap, bias, mask and sinks; says why."""


@dataclass(frozen=True, eq=False)
class Product:
    """Σ over `contracted` of two tensors, times `scale`."""

    left: Term
    right: Term
    contracted: tuple[Axis, ...]
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Fill:
    """Scores were replaced by `value` where `where` is true (or false, if `inverted`)."""

    where: Term
    value: float
    inverted: bool = False


@dataclass(frozen=True, eq=False)
class Scores:
    """softcap · tanh(Σ products) + Σ addends, some of it filled, with sinks; or without softcap."""

    layout: Layout
    products: tuple[Product, ...]
    softcap: float | None = None
    addends: tuple[tuple[Term, float], ...] = ()
    fills: tuple[Fill, ...] = ()
    sinks: Term | None = None
    sink_first: bool = False
    has_stored_bias: bool = False
    """Whether an addend is itself made of scores: as large as the weights, anew in each call."""

    def is_bare(self) -> bool:
        """Whether it is products and nothing else yet."""
        return self.softcap is None and not self.addends and not self.fills and self.sinks is None

    def times(self, factor: float) -> Scores | None:
        """The scores times a number; `None` where that has no form here."""
        if self.sinks is not None or (self.fills and factor <= 0):
            return None
        products = self.products
        if self.softcap is None:
            products = tuple(
                dataclasses.replace(product, scale=product.scale * factor) for product in products
            )
        return dataclasses.replace(
            self,
            products=products,
            softcap=None if self.softcap is None else self.softcap * factor,
            addends=tuple((term, scale * factor) for term, scale in self.addends),
            fills=tuple(
                dataclasses.replace(fill, value=fill.value * factor) for fill in self.fills
            ),
        )

    def times_term(self, term: Term, layout: Layout) -> Scores | None:
        """The scores times a tensor that differs along the axes of one side only."""
        if not self.is_bare():
            return None
        axes = [axis for axis in all_leaves(term.layout) if axis.size > 1]
        products = []
        for product in self.products:
            for side in ("left", "right"):
                operand: Term = getattr(product, side)
                if all(operand.has(axis) for axis in axes):
                    break
            else:
                return None
            groups = list(operand.layout)
            factor = term.arranged(groups, [False] * len(groups))
            scaled = Term(operand.tensor.detach() * factor.detach(), operand.layout)
            left, right = (scaled, product.right) if side == "left" else (product.left, scaled)
            products.append(dataclasses.replace(product, left=left, right=right))
        return dataclasses.replace(self, products=tuple(products), layout=layout)

    def tanh(self) -> Scores | None:
        """The hyperbolic tangent, the middle of a softcap."""
        return dataclasses.replace(self, softcap=1.0) if self.is_bare() else None


@dataclass(eq=False)
class Reading:
    """A softmax whose scores are understood: all but the values."""

    queries: list[Axis]
    keys: list[Axis]
    batch: list[Axis]
    shared_heads: list[Axis]
    """Axes of the heads that k has as well, the outermost heads."""
    other_heads: list[Axis]
    q: Tensor
    k: Term
    contracted: list[Axis]
    mask: Mask | None
    bias: Tensor | None
    scale: float
    softcap: float | None
    sinks: Tensor | None
    has_stored_bias: bool

    @property
    def groups(self) -> list[list[Axis]]:
        """The axes of (B, H, Tq, Tk)."""
        return [self.batch, self.shared_heads + self.other_heads, self.queries, self.keys]

    def heard(self, v: Term, features: list[Axis]) -> Heard:
        """The call, now that its values are known; k and v keep as few heads as they can."""
        heads = self.shared_heads
        if any(v.has(axis) for axis in self.other_heads if axis.size > 1):
            heads = self.shared_heads + self.other_heads
        values = v.arranged([self.batch, heads, self.keys, features], [True] * 4)
        return Heard(
            self.q, self._keys(heads), values, self.mask, self.bias, self.scale,
            softcap=self.softcap, sinks=self.sinks,
            stored_because=STORED_BIAS if self.has_stored_bias else None,
        )  # fmt: skip

    def _keys(self, heads: list[Axis]) -> Tensor:
        return self.k.arranged([self.batch, heads, self.keys, self.contracted], [True] * 4)

    def agrees_with(self, weights: Term) -> bool:
        """Whether three rows of the softmax that ran are what the record gives back."""
        ran = weights.arranged(self.groups, [True] * 4)[-1]
        n_queries = ran.shape[1]
        rows = sorted({0, n_queries // 2, n_queries - 1})
        scores = self._last_scores(rows)
        usual = torch.where(scores.abs() < 1e3, scores, 0.0).abs().amax(-1, keepdim=True)
        if self.sinks is not None:
            sinks = self.sinks.float()[:, None, None].expand(-1, len(rows), 1)
            scores = torch.cat([scores, sinks], dim=-1)
        found = scores.softmax(-1)[..., : ran.shape[2]].nan_to_num(0.0)
        right = ran[:, rows].float().nan_to_num(0.0)
        # Both errors that a rounding of the scores makes: relative ones, and in the small.
        eps = max(torch.finfo(self.q.dtype).eps, torch.finfo(ran.dtype).eps, 1e-6)
        allowed = 4 * eps * (4 + usual) * (right + 0.1 * right.amax(-1, keepdim=True)) + eps
        return bool(((found - right).abs() <= allowed).all())

    def _last_scores(self, rows: list[int]) -> Tensor:
        """The scores of some queries of the last batch element, float32 (H, rows, Tk)."""
        k = self._keys(self.shared_heads)[-1].float()
        _, n_heads, n_queries, width = self.q.shape
        n_keys = k.shape[1]
        q = self.q[-1][:, rows].float().reshape(k.shape[0], -1, width)
        scores = (q @ k.mT).reshape(n_heads, len(rows), n_keys) * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            bias = self.bias[-1]
            scores = scores + (bias[:, rows] if bias.shape[1] > 1 else bias).float()
        if self.mask is not None:
            for number, row in enumerate(rows):
                part = range(row, row + 1)
                tile = self.mask.tile(part, range(n_keys), n_queries, n_keys, self.q)
                if isinstance(tile, bool):
                    tile = torch.full((1, 1), tile)
                tile = tile[(None,) * (4 - tile.ndim)][-1, :, 0]
                scores[:, number].masked_fill_(~tile, -math.inf)
        return scores


class SeenMasks:
    """Masks and biases by what they say: layers often build one each, and all the same."""

    _KEPT = 4

    def __init__(self) -> None:
        self._arrays: list[Tensor] = []

    def forget(self) -> None:
        """Let go of them."""
        self._arrays.clear()

    def alike(self, array: Tensor) -> Tensor:
        """An equal array that was seen before, or else this one."""
        for other in self._arrays:
            if (
                other.shape == array.shape
                and other.dtype == array.dtype
                and other.device == array.device
                and torch.equal(other, array)
            ):
                return other
        self._arrays = [*self._arrays[1 - self._KEPT :], array]
        return array


def read(
    scores: Scores,
    keys: Sequence[Axis],
    masks: MaskReader,
    seen: SeenMasks,
    softmaxed: Tensor | None,
) -> Reading:
    """What a softmax over the axes `keys` of some scores is, as a call without values.

    Args:
        scores: how they came about.
        keys: the axes that the softmax runs over.
        masks: reads each mask once.
        seen: masks that earlier layers made for themselves.
        softmaxed: the scores themselves, to tell rows that see nothing.

    Raises:
        CannotRead: they are something else.
    """
    keys = leaves(keys)
    sides = [_sides(product, keys) for product in scores.products]
    rest = [axis for axis in all_leaves(scores.layout) if not _among(axis, keys)]
    queries = _queries(scores, sides, rest, keys)
    others = [axis for axis in rest if not _among(axis, queries)]
    batch, heads = others[:1], others[1:]
    in_k = [any(k.has(axis) for _, k, _ in sides) for axis in heads]
    cut = in_k.index(False) if False in in_k else len(heads)
    if any(in_k[cut:]):
        cut = len(heads)  # a group's heads are not side by side: keys are repeated
    shared, other = heads[:cut], heads[cut:]
    q, k, contracted, scale = _joined(sides, batch, shared, other, queries, keys)
    n_queries, n_keys = _length(queries), _length(keys)
    groups = [batch, heads, queries, keys]
    if scores.softcap is not None:
        scale *= scores.softcap
    mask, bias = _masked(scores, groups, n_queries, n_keys, masks, seen, softmaxed)
    sinks = None
    if scores.sinks is not None:
        if any(scores.sinks.has(axis) for axis in (*batch, *queries, *keys) if axis.size > 1):
            raise CannotRead("sinks that differ between queries")
        sinks = scores.sinks.arranged([heads], [True])
    return Reading(
        queries, keys, batch, shared, other, q, k, contracted, mask, bias, scale,
        scores.softcap, sinks, scores.has_stored_bias,
    )  # fmt: skip


def _among(axis: Axis, axes: Sequence[Axis]) -> bool:
    return any(axis is one for one in axes)


def _length(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)


def _sides(product: Product, keys: list[Axis]) -> tuple[Term, Term, Product]:
    """Which operand is q and which is k: the keys are where the softmax runs."""
    left = all(product.left.has(axis) for axis in keys)
    right = all(product.right.has(axis) for axis in keys)
    if left == right:
        raise CannotRead("a softmax that runs over something else than the keys")
    pair = (product.right, product.left) if left else (product.left, product.right)
    if any(pair[0].has(axis) for axis in keys):
        raise CannotRead("a softmax that runs over something else than the keys")
    return *pair, product


def _queries(
    scores: Scores,
    sides: list[tuple[Term, Term, Product]],
    rest: list[Axis],
    keys: list[Axis],
) -> list[Axis]:
    """The axes that count the queries: in q and not in k."""
    q, k, _ = sides[0]
    found = [axis for axis in rest if q.has(axis) and not k.has(axis)]
    if len(found) <= 1:
        return found
    # Heads of queries that share a key head are in q only as well, and are no queries.
    if [axis.size for axis in found] == [axis.size for axis in keys]:
        return found
    marked = [term for term, _ in scores.addends] + [fill.where for fill in scores.fills]
    marked = [term for term in marked if any(term.has(axis) for axis in keys)]
    for chosen in (
        [axis for axis in found if any(term.has(axis) for term in marked)],
        [axis for axis in found if axis.size == _length(keys)],
    ):
        if len(chosen) == 1:
            return chosen
    return found[-1:]


def _joined(
    sides: list[tuple[Term, Term, Product]],
    batch: list[Axis],
    shared: list[Axis],
    other: list[Axis],
    queries: list[Axis],
    keys: list[Axis],
) -> tuple[Tensor, Term, list[Axis], float]:
    """q, k, what they are contracted over, and the scale: several products side by side."""
    parts = []
    for q, k, product in sides:
        contracted = leaves(product.contracted)
        try:
            query = q.arranged([batch, shared + other, queries, contracted], [True] * 4)
            if len(sides) == 1:
                return query, k, contracted, product.scale
            key = k.arranged([batch, shared, keys, contracted], [True] * 4)
        except ValueError:
            raise CannotRead("a product over several axes of the scores") from None
        parts.append((query * product.scale, key))
    width = Axis(sum(key.shape[-1] for _, key in parts))
    together = torch.cat([key for _, key in parts], dim=-1)
    layout = (tuple(batch), tuple(shared), tuple(keys), (width,))
    query = torch.cat([query for query, _ in parts], dim=-1)
    return query.detach(), Term(together.detach(), layout), [width], 1.0


def _masked(
    scores: Scores,
    groups: list[list[Axis]],
    n_queries: int,
    n_keys: int,
    masks: MaskReader,
    seen: SeenMasks,
    softmaxed: Tensor | None,
) -> tuple[Mask | None, Tensor | None]:
    """Rule and bias of all that was added and filled."""
    rule: Mask | None = None
    bias: Tensor | None = None

    def arranged(term: Term) -> Tensor:
        try:
            return term.arranged(groups, [False] * 4).detach()
        except ValueError:
            raise CannotRead("a bias along an axis that the scores don't have") from None

    for term, factor in scores.addends:
        if scores.sinks is None and not any(term.has(axis) for axis in groups[3] if axis.size > 1):
            continue  # the same for all keys of a row: the softmax takes it away

        def look(term: Term = term, factor: float = factor) -> Any:
            added = arranged(term)
            added = added if factor == 1 else added * factor
            return masks.read(seen.alike(added), n_queries, n_keys)

        shape = tuple(_length(group) for group in groups)
        new_rule, new_bias = masks.once(term.tensor, ("by hand", shape, factor), look)
        rule = _joined_rules(rule, new_rule)
        bias = masks.both(bias, new_bias)
    lost = None
    for fill in scores.fills:
        where = arranged(fill.where)
        visible = where.bool() if fill.inverted else ~where.bool()
        if fill.value > _HIDES:
            raise CannotRead(f"scores filled with {fill.value:g}")
        if fill.value > -math.inf:
            if lost is None:
                lost = softmaxed is not None and _has_lost_rows(softmaxed)
            if lost:
                if len(scores.fills) > 1 or rule is not None:
                    raise CannotRead("rows of which all keys are filled, by several masks")
                # A row of nothing but the fill is uniform, whatever the scores were.
                empty = ~visible.any(dim=-1, keepdim=True)
                visible = visible | empty
                lowest = torch.finfo(torch.float32).min
                level = torch.zeros(empty.shape, device=empty.device).masked_fill(empty, lowest)
                bias = masks.both(bias, level)
        new_rule, _ = masks.read(seen.alike(visible), n_queries, n_keys)
        rule = _joined_rules(rule, new_rule)
    return rule, bias


def _joined_rules(one: Mask | None, other: Mask | None) -> Mask | None:
    return one if other is None else other if one is None else join(one, other)


def _has_lost_rows(softmaxed: Tensor) -> bool:
    """Whether there are rows of which all scores are so low that they must have been filled."""
    top = softmaxed.detach().amax(dim=-1)
    return bool(((top < _HIDES) & (top > -math.inf)).any())
