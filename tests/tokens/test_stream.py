"""Ids that come one at a time."""

from __future__ import annotations

import pytest

from jumok.tokens import Tokenizer
from small_tokenizers import byte_level


@pytest.mark.parametrize("text", ["한글 a 😊!", "plain", "é", ""])
def test_a_stream_gives_whole_characters_and_all_of_them(text: str) -> None:
    tokenizer = Tokenizer(byte_level())
    stream = tokenizer.stream()
    pieces = [stream.push(id) for id in tokenizer.encode(text)]
    assert not any("�" in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text


def test_a_long_stream_equals_decoding_at_once() -> None:
    tokenizer = Tokenizer(byte_level())
    ids = [byte * 7 % 257 for byte in range(600)]  # bytes that are mostly no characters
    stream = tokenizer.stream()
    streamed = "".join(stream.push(id) for id in ids) + stream.finish()
    assert streamed == tokenizer.decode(ids).replace("�", "")


def test_bytes_that_are_no_character_have_no_text() -> None:
    tokenizer = Tokenizer(byte_level())
    whole = tokenizer.encode("한")
    stream = tokenizer.stream()
    ids = [*tokenizer.encode("a"), *whole[:2], *tokenizer.encode("b"), *whole, whole[0]]
    assert [stream.push(id) for id in ids] == ["a", "", "", "b", "", "", "한", ""]
    assert stream.finish() == ""
