"""Ids that come one at a time, as text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jumok.tokens.characters import NO_CHARACTER

if TYPE_CHECKING:
    from jumok.tokens.tokenizer import Tokenizer

__all__ = ["StreamDecoder"]

_STREAM_CONTEXT = 8  # tokens that are decoded again with the next one; a character has at most 4


class StreamDecoder:
    """Turns ids into text one at a time; bytes of an unfinished character wait.

    Bytes that are no character have no text: it never holds ``�``.
    """

    def __init__(self, tokenizer: "Tokenizer", before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = ""  # what of their text was given out
        self._keep([int(id) for id in before])

    def push(self, id: int) -> str:
        """Take the next id; the text that is now certain, often one piece, sometimes ``""``."""
        self._ids.append(int(id))
        text = self._tokenizer.decode(self._ids)
        whole = text.rstrip(NO_CHARACTER)  # at the end it may be a character that is not finished
        if whole == text or len(self._ids) > 8 * _STREAM_CONTEXT:
            new = text[len(self._given) :]
            self._keep(self._ids)
        else:
            new = whole[len(self._given) :]
            self._given += new
        return new.replace(NO_CHARACTER, "")

    def finish(self) -> str:
        """The text that still waits when no more ids come."""
        new = self._tokenizer.decode(self._ids)[len(self._given) :]
        self._keep([])
        return new.replace(NO_CHARACTER, "")

    def _keep(self, ids: list[int]) -> None:
        # Some context keeps the space that a piece has only after another piece.
        self._ids = ids[-_STREAM_CONTEXT:]
        self._given = self._tokenizer.decode(self._ids)
