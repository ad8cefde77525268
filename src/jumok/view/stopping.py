"""Work that can be stopped, and results that are computed once for everybody who asks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

__all__ = ["Kept", "Stop", "Stopped"]

Result = TypeVar("Result")

_POLL = 0.02  # seconds between two looks at whether the one who waits has left


class Stopped(Exception):
    """Nobody waits for the result any more."""


class Stop:
    """Says whether somebody still waits for a result."""

    def __init__(self) -> None:
        self._left = False

    def set(self) -> None:
        """Nobody waits."""
        self._left = True

    def is_set(self) -> bool:
        """Whether nobody waits."""
        return self._left

    def check(self) -> None:
        """Raise `Stopped` if nobody waits; cheap enough for every tile."""
        if self.is_set():
            raise Stopped


class _Together(Stop):
    """Is set when all have left."""

    def __init__(self, first: Stop) -> None:
        super().__init__()
        self.stops = [first]

    def is_set(self) -> bool:
        return all(stop.is_set() for stop in self.stops)


class _Work:
    def __init__(self, stop: Stop) -> None:
        self.stop = _Together(stop)
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class Kept:
    """Results by key, each computed once; the oldest go when there is no more room.

    Args:
        room: bytes of all results.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._held = 0
        self._running: dict[Hashable, _Work] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of what is kept."""
        return self._held

    def known(self, key: Hashable) -> Any:
        """The result if it is there, otherwise `None`."""
        with self._lock:
            found = self._results.get(key)
            if found is None:
                return None
            self._results.move_to_end(key)
            return found[0]

    def get(
        self,
        key: Hashable,
        compute: Callable[[Stop], Result],
        stop: Stop,
        size: Callable[[Result], int] = lambda result: int(getattr(result, "nbytes", 0)),
    ) -> Result:
        """The result of a key, from before, from another thread, or computed here.

        Args:
            key: names the result.
            compute: makes it; it is given what to ask whether anybody still waits.
            stop: of the one who asks.
            size: bytes of a result.

        Raises:
            Stopped: the one who asks has left.
        """
        while True:
            stop.check()
            with self._lock:
                found = self._results.get(key)
                if found is not None:
                    self._results.move_to_end(key)
                    return found[0]  # type: ignore[no-any-return]
                work = self._running.get(key)
                mine = work is None
                if work is None:
                    work = self._running[key] = _Work(stop)
                else:
                    work.stop.stops.append(stop)
            if mine:
                return self._compute(key, compute, work, size)
            while not work.done.wait(_POLL):
                stop.check()
            if work.error is None:
                return work.result  # type: ignore[no-any-return]
            if not isinstance(work.error, Stopped):
                raise work.error
            # All others had left before this one came: once more.

    def _compute(
        self,
        key: Hashable,
        compute: Callable[[Stop], Result],
        work: _Work,
        size: Callable[[Result], int],
    ) -> Result:
        try:
            result = work.result = compute(work.stop)
        except BaseException as error:
            work.error = error
            with self._lock:
                del self._running[key]
            work.done.set()
            raise
        with self._lock:
            del self._running[key]
            self._keep(key, result, size(result))
        work.done.set()
        return result

    def _keep(self, key: Hashable, result: Any, size: int) -> None:
        if size > self._room:
            return
        self._results[key] = (result, size)
        self._held += size
        while self._held > self._room:
            _, (_, old) = self._results.popitem(last=False)
            self._held -= old
