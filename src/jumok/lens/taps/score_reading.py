"""What followed scores are in a call that is recorded: its q, k, mask, bias and scale.

Some rows are compared with the softmax that really ran: what is recorded is what was computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jumok.lens.taps.axes import Axis, Term, all_leaves, leaves
from jumok.lens.taps.heard import Heard
from jumok.lens.taps.mask_reader import MaskReader
from jumok.lens.taps.score_masks import SeenMasks, read_masks
from jumok.lens.taps.scores import CannotRead, Product, Scores
from jumok.masks import Mask

STORED_BIAS = "a part of the scores is more than q·k, and was kept as a bias"


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
        """Whether some rows of the softmax that ran are what the record gives back."""
        whole = weights.arranged(self.groups, [True] * 4)
        keys = self._keys(self.shared_heads)
        last, n_queries = whole.shape[0] - 1, whole.shape[2]
        # Three rows of the last batch element, and one of two others.
        sample = {0: [n_queries // 2], last // 2: [n_queries - 1]}
        sample[last] = sorted({0, n_queries // 2, n_queries - 1})
        return all(self._agrees(b, rows, keys[b], whole[b]) for b, rows in sample.items())

    def _agrees(self, b: int, rows: list[int], k: Tensor, ran: Tensor) -> bool:
        """Whether rows of a batch element are those that ran; k (G, Tk, D), ran (H, Tq, Tk)."""
        scores = self._scores(b, rows, k)
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

    def _scores(self, b: int, rows: list[int], k: Tensor) -> Tensor:
        """The scores of some queries of a batch element, float32 (H, rows, Tk)."""
        k = k.float()
        _, n_heads, n_queries, width = self.q.shape
        n_keys = k.shape[1]
        q = self.q[b][:, rows].float().reshape(k.shape[0], -1, width)
        scores = (q @ k.mT).reshape(n_heads, len(rows), n_keys) * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            bias = self.bias[b if self.bias.shape[0] > 1 else 0]
            scores = scores + (bias[:, rows] if bias.shape[1] > 1 else bias).float()
        if self.mask is not None:
            for number, row in enumerate(rows):
                part = range(row, row + 1)
                tile = self.mask.tile(part, range(n_keys), n_queries, n_keys, self.q)
                if isinstance(tile, bool):
                    tile = torch.full((1, 1), tile)
                tile = tile[(None,) * (4 - tile.ndim)]
                tile = tile[b if tile.shape[0] > 1 else 0][:, 0]
                scores[:, number].masked_fill_(~tile, -math.inf)
        return scores


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
    mask, bias = read_masks(scores, groups, n_queries, n_keys, masks, seen, softmaxed)
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
