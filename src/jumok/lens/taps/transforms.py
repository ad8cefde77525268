"""Calls inside ``torch.func``: what ``vmap`` and ``grad`` wrap is taken out before it is kept."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.heard import Heard

_functorch: Any = torch._C._functorch


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor lives inside a transform of ``torch.func``."""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def is_batched(tensor: Tensor) -> bool:
    """Whether ``vmap`` runs over a tensor: nothing in it can be looked at then."""
    return is_wrapped(tensor) and bool(_functorch.is_batchedtensor(tensor))


def unwrapped(heard: Heard) -> Heard | None:
    """The same call outside all transforms, what ``vmap`` ran over being part of the batch.

    Returns:
        `None` if that has no form here: masks or biases that differ between what ``vmap`` ran
        over, or several batch elements each with one of its own.
    """
    while True:
        tensors = (heard.q, heard.k, heard.v)
        if not any(is_wrapped(tensor) for tensor in tensors):
            return heard
        sizes = [
            _functorch.get_unwrapped(tensor).shape[_functorch.maybe_get_bdim(tensor)]
            for tensor in tensors
            if is_batched(tensor)
        ]
        extra = [tensor for tensor in (heard.bias, heard.sinks) if tensor is not None]
        if sizes and (heard.mask is not None or extra) and heard.q.shape[0] > 1:
            return None
        if any(is_batched(tensor) for tensor in extra):
            return None
        q, k, v = (_out(tensor, sizes) for tensor in tensors)
        bias = None if heard.bias is None else _out(heard.bias, [])
        sinks = None if heard.sinks is None else _out(heard.sinks, [])
        heard = dataclasses.replace(heard, q=q, k=k, v=v, bias=bias, sinks=sinks, lse=None)


def _out(tensor: Tensor, sizes: list[int]) -> Tensor:
    """One transform less; with what ``vmap`` ran over in the first dimension."""
    place = _functorch.maybe_get_bdim(tensor) if is_batched(tensor) else None
    inner: Tensor = _functorch.get_unwrapped(tensor) if is_wrapped(tensor) else tensor
    if not sizes:
        return inner
    if place is None:
        inner = inner.unsqueeze(0).expand(sizes[0], *inner.shape)
    else:
        inner = inner.movedim(place, 0)
    return inner.flatten(0, 1)
