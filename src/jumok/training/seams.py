"""Where a long text can be cut so that its tokens stay the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jumok.tokens import Tokenizer
from jumok.training.corpus import AHEAD, FRAGMENT, at_a_line_end

__all__ = ["Seams"]

_LINE_ENDS = re.compile(r"(?<=\w)\n")
_WORD_ENDS = re.compile(r"(?<=\w) ")
_TRIES = 8


class Seams:
    """Finds a cut that a tokenizer doesn't notice: the last such line end, or else word end.

    A cut is tried on what is around it: the tokens of both parts must be those of the whole. A
    tokenizer that puts a space before every text (SentencePiece) is cut at a space, which goes.
    Where nothing is found, as in a text without spaces, the cut is at the end of a line or word,
    or anywhere.

    Args:
        tokenizer: whose tokens shall stay.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> tuple[int, int]:
        """Where a fragment of ``text`` stops and where the next one begins."""
        for stop, begin in _places(text):
            around = text[max(0, stop - AHEAD) : stop], text[begin : begin + AHEAD]
            whole = text[max(0, stop - AHEAD) : begin + AHEAD]
            before, after = map(self._ids, around)
            if before + after == self._ids(whole):
                return stop, begin
        return at_a_line_end(text)

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)


def _places(text: str) -> Iterator[tuple[int, int]]:
    for pattern, gaps in ((_LINE_ENDS, (0,)), (_WORD_ENDS, (0, 1))):
        found = [match.start() for match in pattern.finditer(text, FRAGMENT // 2, FRAGMENT)]
        for stop in reversed(found[-_TRIES:]):
            for gap in gaps:
                yield stop, stop + gap
