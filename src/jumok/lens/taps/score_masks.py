"""Masks and biases in followed scores: read into one rule and one bias, in the order they came."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.axes import Axis, Term
from jumok.lens.taps.mask_reader import MaskReader
from jumok.lens.taps.scores import CannotRead, Scores
from jumok.masks import Mask, join

# A number from here on hides: exp(−9000) is 0 in every type.
_HIDES = -9e3
_LOWEST = torch.finfo(torch.float32).min


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


def read_masks(
    scores: Scores,
    groups: list[list[Axis]],
    n_queries: int,
    n_keys: int,
    masks: MaskReader,
    seen: SeenMasks,
    softmaxed: Tensor | None,
) -> tuple[Mask | None, Tensor | None]:
    """Rule and bias of all that was added and filled.

    Args:
        scores: how they came about.
        groups: the axes of (B, H, Tq, Tk).
        n_queries: Tq.
        n_keys: Tk.
        masks: reads each mask once.
        seen: masks that earlier layers made for themselves.
        softmaxed: the scores themselves, to tell rows of which every key was hidden.

    Raises:
        CannotRead: something else than a mask or a bias was added or filled in.
    """

    def arranged(term: Term) -> Tensor:
        try:
            return term.arranged(groups, [False] * 4).detach()
        except ValueError:
            raise CannotRead("a bias along an axis that the scores don't have") from None

    sizes = tuple(math.prod(axis.size for axis in group) for group in groups)
    read: list[tuple[Mask | None, Tensor | None] | None] = []
    for term, factor in scores.addends:
        if scores.sinks is None and not any(term.has(axis) for axis in groups[3] if axis.size > 1):
            read.append(None)  # the same for all keys of a row: the softmax takes it away
            continue

        def look(term: Term = term, factor: float = factor) -> Any:
            return masks.read(seen.alike(_times(arranged(term), factor)), n_queries, n_keys)

        read.append(masks.once(term.tensor, ("by hand", sizes, factor), look))
    rule: Mask | None
    bias: Tensor | None
    hides = [pair is not None and pair[0] is not None for pair in read]
    lowest = [fill.value for fill in scores.fills if fill.value > -math.inf]
    lost = False
    if softmaxed is not None and (lowest or len(scores.fills) + sum(hides) > 1):
        lost = _has_lost_rows(softmaxed)
    if lost and (len(scores.fills) != 1 or any(hides)):
        if any(value > -1e30 for value in lowest):
            raise CannotRead("rows of which all keys are hidden, by several masks")
        together = _in_order(
            scores, [arranged(term) for term, _ in scores.addends], hides, arranged
        )
        top = together.amax(dim=-1, keepdim=True)
        visible = (together >= top + _HIDES) & (together > -math.inf)
        rule, _ = masks.read(seen.alike(visible), n_queries, n_keys)
        bias = torch.where((top <= _HIDES) & (top > -math.inf), _LOWEST, 0.0)
        for pair, hiding in zip(read, hides, strict=True):
            bias = bias if hiding or pair is None else masks.both(bias, pair[1])
        return rule, bias
    rule = bias = None
    for pair in read:
        if pair is not None:
            rule, bias = _both(rule, pair[0]), masks.both(bias, pair[1])
    for fill in scores.fills:
        where = seen.alike(arranged(fill.where).bool())

        def rule_of(where: Tensor = where, inverted: bool = fill.inverted) -> Mask | None:
            return masks.read(where if inverted else ~where, n_queries, n_keys)[0]

        if fill.value > _HIDES:
            visible = where if fill.inverted else ~where
            added = [_times(arranged(term), factor) for term, factor in scores.addends]
            if lost or not any(bool(((part <= _HIDES) | visible).all()) for part in added):
                raise CannotRead(f"scores filled with {fill.value:g}")
            continue  # and hidden by what was added
        if lost:
            # A row of nothing but the fill is uniform, whatever the scores were.
            visible = where if fill.inverted else ~where
            empty = ~visible.any(dim=-1, keepdim=True)
            visible = visible | empty
            level = torch.zeros(empty.shape, device=empty.device).masked_fill(empty, _LOWEST)
            bias = masks.both(bias, level)
            rule = _both(rule, masks.read(seen.alike(visible), n_queries, n_keys)[0])
        else:
            key = ("filled", fill.inverted, n_queries, n_keys)
            rule = _both(rule, masks.once(where, key, rule_of))
    return rule, bias


def _times(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else tensor * factor


def _in_order(
    scores: Scores,
    added: list[Tensor],
    hides: list[bool],
    arranged: Callable[[Term], Tensor],
) -> Tensor:
    """What several masks, one after the other, make of a score of 0: float32 (B or 1, …, Tk)."""
    whole = torch.zeros((1,) * 4, device=scores.products[0].left.tensor.device)
    for number in range(len(added) + 1):
        for fill in scores.fills:
            if fill.after == number:
                where = arranged(fill.where).bool()
                where = ~where if fill.inverted else where
                whole = torch.where(where, fill.value, whole)
        if number < len(added) and hides[number]:
            whole = whole + _times(added[number], scores.addends[number][1]).float()
    return whole


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    return one if other is None else other if one is None else join(one, other)


def _has_lost_rows(softmaxed: Tensor) -> bool:
    """Whether there are rows of which all scores are so low that they must have been hidden."""
    top = softmaxed.detach().amax(dim=-1)
    return bool(((top < _HIDES) & (top > -math.inf)).any())
