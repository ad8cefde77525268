"""Which tokens a model was given: the ids of a text, and those of an encoder-decoder's target."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Ids = np.ndarray[Any, np.dtype[np.int64]]

_OWN = ("input_ids", "ids", "source_ids")
_TARGET = ("decoder_input_ids", "target_ids", "decoder_ids")


class GivenIds:
    """Keeps the token ids of a recording up to date, forward by forward.

    Args:
        model: the watched model.

    Attributes:
        ids: of the text, (batch, tokens); those of later decode steps appended.
        decoder_ids: of an encoder-decoder's target, likewise.
        new: what the current forward was given in place of `ids`; `None` if nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = _parameters(model)
        self.ids: Ids | None = None
        self.decoder_ids: Ids | None = None
        self.new: Ids | None = None
        self._new_target: Ids | None = None

    def forward(self, args: Any, kwargs: Any) -> None:
        """A forward of the model begins with these arguments."""
        named = dict(zip(self._parameters, args, strict=False)) | kwargs
        self._new_target = next(
            (_ids(named[name]) for name in _TARGET if _ids(named.get(name)) is not None), None
        )
        own = [named.get(name) for name in _OWN]
        if self._new_target is None:  # a model whose parameters are called otherwise
            own += args
        self.new = next((ids for value in own if (ids := _ids(value)) is not None), None)
        if self.ids is None:
            self.ids = self.new
        if self.decoder_ids is None:
            self.decoder_ids = self._new_target

    def encoder(self, args: Any, kwargs: Any) -> None:
        """The encoder is called by itself, as `generate` of an encoder-decoder does."""
        if self.ids is None:
            given = [kwargs.get(name) for name in _OWN] + list(args)
            self.ids = next((ids for value in given if (ids := _ids(value)) is not None), None)

    def go_on(self, queries: int) -> None:
        """A map that ended where the ids end has grown to so many queries: so do the ids."""
        self.ids = _longer(self.ids, self.new, queries)
        self.decoder_ids = _longer(self.decoder_ids, self._new_target, queries)


def _longer(ids: Ids | None, new: Ids | None, queries: int) -> Ids | None:
    if ids is None or new is None or ids.shape[0] != new.shape[0]:
        return ids
    if ids.shape[1] < queries and ids.shape[1] + new.shape[1] == queries:
        return np.concatenate([ids, new], axis=1)
    return ids


def _ids(value: Any) -> Ids | None:
    """Integers (batch, tokens) as NumPy's; `None` for anything else."""
    if not isinstance(value, Tensor) or value.ndim != 2 or value.is_floating_point():
        return None
    return None if value.dtype == torch.bool else value.detach().cpu().numpy().astype(np.int64)


def _parameters(model: nn.Module) -> tuple[str, ...]:
    """Names of the positional parameters of a model's forward."""
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(one.name for one in found if one.kind in positional)
