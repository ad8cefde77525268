"""What is compiled runs uncompiled while anybody watches: it would run past the taps.

PyTorch's stance is one for the whole process. Watches in several threads may end in any order, so
they are counted: the last one that ends puts back what was there before the first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class _Stance:
    """Eager as long as somebody watches and nobody has asked for what is compiled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches = 0
        self._asides = 0
        self._eager: Any = None  # the open `set_stance`

    def change(self, watches: int = 0, asides: int = 0) -> None:
        """Count so many more, or fewer."""
        with self._lock:
            self._watches += watches
            self._asides += asides
            # Importing it takes seconds, and where nobody has, nothing is compiled.
            is_wanted = self._watches > 0 and not self._asides and "torch._dynamo" in sys.modules
            if is_wanted and self._eager is None:
                self._eager = torch.compiler.set_stance("force_eager")
            elif not is_wanted and self._eager is not None:
                self._eager.__exit__(None, None, None)
                self._eager = None


_stance = _Stance()


@contextmanager
def uncompiled() -> Iterator[None]:
    """What is compiled runs as it was written."""
    _stance.change(watches=1)
    try:
        yield
    finally:
        _stance.change(watches=-1)


@contextmanager
def compiled() -> Iterator[None]:
    """Inside `uncompiled`: what is compiled runs so, as ever."""
    _stance.change(asides=1)
    try:
        yield
    finally:
        _stance.change(asides=-1)
