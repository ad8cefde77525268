"""The text that a model adds, as it grows: whole characters only, and where it has to stop."""

from __future__ import annotations

from collections.abc import Sequence

from jumok.tokens import Tokenizer

__all__ = ["AddedText", "read_strings"]


class AddedText:
    """The text of what is added to one prompt, and whether a stop string has appeared in it.

    Text that may be the beginning of a stop string is kept back.
    """

    def __init__(self, tokenizer: Tokenizer, strings: tuple[str, ...]) -> None:
        self._decoder = tokenizer.target.stream()
        self._strings = strings
        self._text = ""  # not given out yet
        self.stopped = False

    def push(self, token: int) -> None:
        self._add(self._decoder.push(token))

    def take(self) -> str:
        """Text that is certain by now."""
        keep = 0
        if not self.stopped:
            for string in self._strings:
                for length in range(min(len(string) - 1, len(self._text)), keep, -1):
                    if self._text.endswith(string[:length]):
                        keep = length
                        break
        cut = len(self._text) - keep
        piece, self._text = self._text[:cut], self._text[cut:]
        return piece

    def finish(self) -> str:
        """The rest, without bytes that never became a character."""
        if not self.stopped:
            self._add(self._decoder.finish().rstrip("�"))
        piece, self._text = self._text, ""
        return piece

    def _add(self, piece: str) -> None:
        if self.stopped:
            return
        self._text += piece
        found = [self._text.find(string) for string in self._strings if string in self._text]
        if found:
            self._text, self.stopped = self._text[: min(found)], True


def read_strings(stop_strings: str | Sequence[str]) -> tuple[str, ...]:
    """Stop strings as users write them: one, or several."""
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
    if "" in strings:
        raise ValueError("a stop string must not be empty")
    return strings
