"""What a person sees of a text."""

from __future__ import annotations

import pytest

from jumok.tokens import has_words, printable, shortened


def test_what_steers_a_terminal_is_written_out() -> None:
    text = "a\x1b[31m b\x07\x9b\u202e c\r\n\t👩\u200d🚀 é"
    assert printable(text) == "a\\u{1b}[31m b\\u{7}\\u{9b}\\u{202e} c\n\t👩\u200d🚀 é"


def test_long_words_keep_their_ends() -> None:
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 10) == "abcde…hijk"
    assert len(shortened("a" * 1_000_000)) == 40


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", False), (" \n", False), ("\u200b\x01\0", False), ("a", True), ("😊", True)],
)
def test_whether_there_is_something_to_see(text: str, wanted: bool) -> None:
    assert has_words(text) is wanted
