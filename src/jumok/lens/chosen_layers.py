"""Which attention modules are recorded: by number, by range, or by name."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any


class ChosenLayers:
    """What a user wrote as ``layers=…``.

    Args:
        layers: numbers, in the order in which the attention modules are first heard; a range of
            them; or module paths, with or without what comes behind a dot, and with ``*`` and
            ``?``. One of these, or several. `None` is all.

    Raises:
        TypeError: neither a number nor a name.
        ValueError: a number below 0, or nothing at all.
    """

    def __init__(self, layers: Any) -> None:
        self.written = layers
        self._numbers: set[int] = set()
        self._names: list[str] = []
        self.is_everything = layers is None
        single = isinstance(layers, (str, int)) or hasattr(layers, "__index__")
        wanted: Iterable[Any] = () if layers is None else [layers] if single else layers
        for one in wanted:
            if isinstance(one, str):
                self._names.append(one)
            elif isinstance(one, range):
                self._numbers.update(one)
            elif hasattr(one, "__index__") and not isinstance(one, bool):
                self._numbers.add(one.__index__())
            else:
                raise TypeError(
                    f"watch(…, layers={layers!r}): {one!r} is neither a number nor a name; write "
                    f"layers=3, layers=range(0, 4) or layers='model.layers.3'"
                )
        if any(number < 0 for number in self._numbers):
            raise ValueError(
                f"watch(…, layers={layers!r}): numbers count from 0; while the model runs nobody "
                f"knows yet which layer is the last"
            )
        if not (self.is_everything or self._numbers or self._names):
            raise ValueError(f"watch(…, layers={layers!r}) chooses no layer at all")

    def include(self, number: int, name: str) -> bool:
        """Whether the attention module of this number and path is wanted."""
        return (
            self.is_everything
            or number in self._numbers
            or any(
                name == wanted or name.startswith(wanted + ".") or fnmatchcase(name, wanted)
                for wanted in self._names
            )
        )
