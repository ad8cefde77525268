"""Masks as kernels take them, read once each: one mask is often shared by all layers."""

from __future__ import annotations

import math
import weakref

import torch
from torch import Tensor

from jumok.masks import Dense, Mask


class MaskReader:
    """Reads masks into a rule and a bias, and remembers those it has read."""

    def __init__(self) -> None:
        self._known: dict[
            int, tuple[weakref.ref[Tensor], int | None, Mask | None, Tensor | None]
        ] = {}

    def forget(self) -> None:
        """Let go of what has been read."""
        self._known.clear()

    def read(self, mask: Tensor | None) -> tuple[Mask | None, Tensor | None]:
        """A mask as the kernel takes it: booleans, or floats to be added exactly as they are."""
        if mask is None:
            return None, None
        version = None if mask.is_inference() else mask._version
        known = self._known.get(id(mask))
        if known is not None and known[0]() is mask:
            # Nobody counts the writes to an inference tensor: compare it with the copy.
            same = _reads_as(mask, known[2], known[3]) if version is None else known[1] == version
            if same:
                return known[2], known[3]
        kept = mask.detach()
        rule: Mask | None
        bias: Tensor | None
        if mask.dtype == torch.bool:
            rule, bias = Dense(_owned(_at_least_2d(kept), version)), None
        elif bool(((kept == 0) | (kept == -math.inf)).all()):
            rule, bias = Dense(_at_least_2d(kept == 0)), None
        else:
            # What is merely very negative is not hidden: a row of nothing else is uniform.
            rule, bias = None, _owned(_at_least_2d(kept), version)
        self._known[id(mask)] = (weakref.ref(mask), version, rule, bias)
        return rule, bias


def _at_least_2d(mask: Tensor) -> Tensor:
    return mask if mask.ndim >= 2 else mask.reshape(1, -1)


def _owned(tensor: Tensor, version: int | None) -> Tensor:
    """A copy, if the memory may be written to again (it has been, or nobody counts writes)."""
    return tensor if version == 0 else tensor.clone()


def _reads_as(mask: Tensor, rule: Mask | None, bias: Tensor | None) -> bool:
    """Whether a mask still says what was read from it."""
    mask = _at_least_2d(mask)
    if bias is not None:
        return torch.equal(mask, bias)
    assert isinstance(rule, Dense)
    return torch.equal(mask if mask.dtype == torch.bool else mask == 0, rule.visible)
