"""The parameters of a question: strings from outside, read strictly."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from jumok.tokens import printable, shortened
from jumok.view.answers import Unanswered

__all__ = ["Asked"]

_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_LONGEST = 100_000  # characters of one parameter


class Asked:
    """One question and its parameters, each of which may be read once it is known what it is.

    Args:
        name: of the question.
        parameters: as they came.
        known: names that the question has.

    Raises:
        Unanswered: a parameter that the question does not have.
    """

    def __init__(self, name: str, parameters: Mapping[str, str], known: Sequence[str]) -> None:
        self.name = name
        self._parameters = parameters
        for given, value in parameters.items():
            if given not in known:
                among = f"it takes {', '.join(known)}" if known else "it takes none"
                raise self.wrong(f"there is no parameter {_shown(given)}: {among}")
            if not isinstance(value, str) or len(value) > _LONGEST:
                raise self.wrong(f"{given} is no text of reasonable length")

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def wrong(self, text: str) -> Unanswered:
        """What to raise where the question is malformed."""
        return Unanswered("question", f"{self.name}: {text}")

    def whole(
        self, name: str, stop: int, default: int | None = None, start: int = 0, what: str = ""
    ) -> int:
        """A whole number from `start` to below `stop`."""
        value = self._parameters.get(name)
        if value is None:
            if default is None:
                raise self.wrong(f"{name} is missing: {_range(start, stop, what)}")
            return default
        number = _whole(value)
        if number is None or not start <= number < stop:
            raise self.wrong(f"{name}={_shown(value)}: {_range(start, stop, what)}")
        return number

    def wholes(self, name: str, stop: int, most: int, what: str = "") -> list[int]:
        """Different whole numbers below `stop` with commas between, sorted; [] without any."""
        value = self._parameters.get(name, "")
        if not value:
            return []
        found = [_whole(part) for part in value.split(",")]
        numbers = sorted({number for number in found if number is not None and number < stop})
        if len(numbers) < len(found) or len(numbers) > most:
            raise self.wrong(
                f"{name}={_shown(value)}: at most {most:,} different numbers with commas between, "
                f"each {_range(0, stop, what)}"
            )
        return numbers

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A number from `low` to `high`."""
        value = self._parameters.get(name)
        if value is None:
            return default
        found = float(value) if _NUMBER.fullmatch(value) else math.nan
        if not low <= found <= high:
            raise self.wrong(f"{name}={_shown(value)}: a number from {low:g} to {high:g}")
        return found

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of several words; without a default the first."""
        value = self._parameters.get(name, choices[0] if default is None else default)
        if value not in choices:
            raise self.wrong(f"{name}={_shown(value)}: choose {', '.join(choices)}")
        return value


def _whole(text: str) -> int | None:
    plain = text.isascii() and text.isdigit() and len(text) < 19
    return int(text) if plain else None


def _range(start: int, stop: int, what: str) -> str:
    if stop <= start:
        return f"there is no {what}" if what else "there is none"
    return f"a number from {start} to {stop - 1}" + (f", {what}" if what else "")


def _shown(text: str) -> str:
    return repr(printable(shortened(text)))
