"""Masks as kernels take them, read once each: one mask is often shared by all layers.

A model that pads or windows hands every layer the same array of (batch, 1, queries, keys). It is
looked at once, and what it says is kept as a rule, which is linear in the tokens; only what no
rule says is kept as an array, once.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jumok.masks import Dense, Everything, Mask, Packed, Padding, compact

# A key so far below the row's best one has the weight exp(−9000) = 0 whatever its score is. Such
# a number is what libraries hide keys with: −10,000 (as bfloat16: −9,984) or finfo.min.
_HIDES = -9e3

_BLOCK = 1 << 22  # numbers looked at in one go

Read = tuple[Mask | None, Tensor | None]
"""What a mask says: a rule, and a bias that is added to the scores."""


@dataclass(eq=False)
class _Known:
    """What was read from an object, and how to tell that it still says so."""

    source: weakref.ref[Any]
    version: int | None
    copy: Tensor | None
    said: Any

    def holds_for(self, source: Any) -> bool:
        if self.source() is not source:
            return False
        if not isinstance(source, Tensor):
            return True
        if self.copy is not None:  # Nobody counts the writes to an inference tensor.
            return torch.equal(source, self.copy)
        return self.version == source._version


class MaskReader:
    """Reads masks into a rule and a bias, and remembers those it has read."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], _Known] = {}

    def forget(self) -> None:
        """Let go of what has been read."""
        self._known.clear()

    def read(
        self, mask: Tensor | None, n_queries: int | None = None, n_keys: int | None = None
    ) -> Read:
        """A mask as the kernel takes it: booleans, or floats to be added exactly as they are.

        Args:
            mask: broadcasts to (B, H, Tq, Tk), or `None`; what it has of more than `n_keys` keys
                is cut off.
            n_queries: Tq, and
            n_keys: Tk; without them no rule is looked for.
        """
        if mask is None:
            return None, None
        said: Read = self.once(
            mask, (n_queries, n_keys), lambda: _read(mask, n_queries, n_keys, _version(mask) == 0)
        )
        return said

    def lowest(self, mask: Tensor, n_queries: int, n_keys: int) -> Read:
        """Booleans that become the smallest number of a type before they are added to a bias.

        A row of nothing else is uniform, whatever the bias.
        """

        def look() -> Read:
            visible = mask.detach()[..., :n_keys]
            sees = visible.any(dim=-1, keepdim=True)
            rule = _rule(_without_free_slots(visible | ~sees, ~sees), (n_queries, n_keys), True)
            if bool(sees.all()):
                return rule, None
            least = torch.finfo(torch.float32).min
            return rule, torch.zeros(sees.shape, device=mask.device).masked_fill(~sees, least)

        said: Read = self.once(mask, ("lowest", n_queries, n_keys), look)
        return said

    def added(self, mask: Tensor, n_keys: int) -> Tensor:
        """Booleans that were added to the scores, as the numbers 0 and 1."""
        numbers: Tensor = self.once(
            mask, ("added", n_keys), lambda: _at_least_2d(mask.detach()[..., :n_keys].float())
        )
        return numbers

    def padding(self, mask: Tensor, n_keys: int) -> Mask | None:
        """The (B, Tk) mask of flash attention: other than 0 for a real token; `None` for all."""

        def look() -> Mask | None:
            visible = mask.detach()[:, :n_keys] != 0
            return None if bool(visible.all()) else Padding(visible)

        rule: Mask | None = self.once(mask, ("padding", n_keys), look)
        return rule

    def padded_queries(self, mask: Tensor, n_queries: int) -> Mask:
        """By the (B, Tk) mask of flash attention: queries that are padding see no real token."""

        def look() -> Mask:
            return Packed((mask.detach() != 0).to(torch.int32))

        rule: Mask = self.once(mask, ("padded queries", n_queries), look)
        return rule

    def blocks(self, mask: Any, n_queries: int, n_keys: int) -> Mask | None:
        """FlexAttention's BlockMask."""
        from jumok.lens.taps.flex import rule_of_block_mask

        rule: Mask | None = self.once(
            mask,
            ("blocks", n_queries, n_keys),
            lambda: rule_of_block_mask(mask, n_queries, n_keys),
        )
        return rule

    def bias(self, bias: Tensor) -> Tensor:
        """A bias to be added, the same object for the same array: layers often share one."""
        owned: Tensor = self.once(
            bias, ("bias",), lambda: _owned(_at_least_2d(bias.detach()), _version(bias) == 0)
        )
        return owned

    def both(self, one: Tensor | None, other: Tensor | None) -> Tensor | None:
        """The sum of two biases that this reader gave, made once."""
        if one is None or other is None:
            return other if one is None else one
        pair: tuple[Tensor, Tensor] = self.once(
            one, ("both", id(other)), lambda: (other, one + other)
        )
        return pair[1]

    def once(self, source: Any, key: tuple[Any, ...], look: Callable[[], Any]) -> Any:
        """What `look` finds in an object, looked for again only if the object has changed."""
        key = (id(source), *key)
        known = self._known.get(key)
        if known is None or not known.holds_for(source):
            counted = not isinstance(source, Tensor) or not source.is_inference()
            known = _Known(
                weakref.ref(source),
                _version(source) if isinstance(source, Tensor) else None,
                None if counted else source.clone(),
                look(),
            )
            self._known[key] = known
        return known.said


def _read(mask: Tensor, n_queries: int | None, n_keys: int | None, is_untouched: bool) -> Read:
    kept = _at_least_2d(mask.detach())
    if n_keys is not None and kept.shape[-1] > n_keys:
        kept = kept[..., :n_keys]
    sizes = None if n_queries is None or n_keys is None else (n_queries, n_keys)
    if mask.dtype == torch.bool:
        return _rule(kept, sizes, is_untouched), None
    visible, level, is_plain = _visible(kept)
    if is_plain:
        # Very negative is not hidden: a row of nothing else is what its softmax makes of it.
        if visible is not None and level is not None:
            visible = _without_free_slots(visible, level <= _HIDES)
        rows = None if level is None or not bool(level.any()) else _far_down(level)
        return _rule(visible, sizes, True), rows
    rule = None if visible is None or sizes is None else compact(visible, *sizes)
    if isinstance(rule, (Dense, Everything)):
        rule = None
    return rule, _owned(kept, is_untouched)


def _visible(mask: Tensor) -> tuple[Tensor | None, Tensor | None, bool]:
    """Which keys an additive mask leaves to each row, told by the row's largest number.

    Returns:
        Booleans of the mask's shape, `None` if nothing is hidden; the largest number of each
        row, with a last dimension of 1; and whether all visible keys of a row have that number,
        so that the mask does no more than hide.
    """
    if not mask.numel():
        return mask == 0, None, True
    level = mask.amax(dim=-1, keepdim=True)
    visible = torch.empty(mask.shape, dtype=torch.bool, device=mask.device)
    is_plain = True
    step = max(1, _BLOCK * mask.shape[-2] // mask.numel())
    for start in range(0, mask.shape[-2], step):
        rows = slice(start, start + step)
        part, best = mask[..., rows, :], level[..., rows, :]
        hidden = (part < best) & (part <= best + _HIDES) | (part == -math.inf)
        torch.logical_not(hidden, out=visible[..., rows, :])
        is_plain = is_plain and bool(((part == best) | hidden).all())
    level = torch.where(level == -math.inf, torch.zeros_like(level), level)
    return (None if not is_plain and bool(visible.all()) else visible), level, is_plain


def _without_free_slots(visible: Tensor, even: Tensor) -> Tensor:
    """Hide from rows of nothing but hidden keys those behind the last that any other row sees.

    What lies there are slots of a cache that nobody has written yet.

    Args:
        visible: booleans of the mask's shape.
        even: which rows see keys only because they hide them all alike, with a last dimension
            of 1.
    """
    if not bool(even.any()):
        return visible
    others = (visible & ~even).flatten(0, -2).any(dim=0)
    found = others.nonzero()
    stop = int(found[-1]) + 1 if len(found) else visible.shape[-1]
    return visible & (~even | (torch.arange(visible.shape[-1], device=visible.device) < stop))


def _far_down(level: Tensor) -> Tensor:
    """Rows of the smallest number of a type; in float16 that swallows the scores added to it."""
    if level.dtype != torch.float16:
        return level
    least = torch.finfo(torch.float32).min
    return level.float().masked_fill(level == torch.finfo(torch.float16).min, least)


def _rule(visible: Tensor | None, sizes: tuple[int, int] | None, is_own: bool) -> Mask | None:
    assert visible is not None
    rule: Mask = Dense(visible) if sizes is None else compact(visible, *sizes)
    if isinstance(rule, Dense):
        return Dense(_owned(rule.visible, is_own))
    return None if isinstance(rule, Everything) else rule


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _at_least_2d(mask: Tensor) -> Tensor:
    return mask if mask.ndim >= 2 else mask.reshape(1, -1)


def _owned(tensor: Tensor, is_untouched: bool) -> Tensor:
    """A copy, if the memory may be written to again (it has been, or nobody counts writes)."""
    return tensor if is_untouched else tensor.clone()
