"""Ctrl-C while a run learns: the first one asks, the second one ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Stop"]


class Stop:
    """Whether somebody wants the run to stop: Ctrl-C, or a scheduler's polite SIGTERM.

    Args:
        say: tells the person that it was heard.

    Attributes:
        asked: it was heard.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self._say = say

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, a first signal only asks; a second one raises KeyboardInterrupt at once."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals come to the main thread alone
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._hear) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("finishing this step and saving; once more Ctrl-C ends at once")
