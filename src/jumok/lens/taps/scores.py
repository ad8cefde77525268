"""How a tensor of scores came about: products of queries and keys, and what was done to them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from jumok.lens.taps.axes import Axis, Layout, Term, all_leaves


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
    after: int = 0
    """How many of the addends had been added before."""


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

    def filled(self, where: Term, value: float, inverted: bool, layout: Layout) -> Scores:
        """The scores with some of them replaced by one number."""
        fill = Fill(where, value, inverted, after=len(self.addends))
        return dataclasses.replace(self, layout=layout, fills=(*self.fills, fill))
