"""Attention written by hand: a softmax that becomes the left side of a product."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor

from jumok.lens.taps.outputs import MOVES

if TYPE_CHECKING:
    from jumok.lens.taps.listener import Listener


class SoftmaxTap:
    """Notices softmaxes whose result is multiplied with something."""

    def __init__(self) -> None:
        self._softmaxed: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()

    def __bool__(self) -> bool:
        return bool(self._softmaxed)

    def forget(self) -> None:
        """Remember no softmax any more."""
        self._softmaxed.clear()

    def step(self, listener: Listener, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Look at a function that has run."""
        if name == "softmax" and isinstance(result, Tensor) and result.ndim > 2:
            self._softmaxed[id(result)] = result
        elif self._softmaxed and args and isinstance(args[0], Tensor):
            if self._softmaxed.get(id(args[0])) is not args[0]:
                return
            if name in MOVES or name == "dropout":
                self._softmaxed[id(result)] = result
            elif name in ("matmul", "__matmul__", "bmm"):
                listener.unheard("a softmax and a product by hand")
