"""Vocabularies of GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jumok.tokens import Tokenizer, words
from jumok.tokens.characters import BYTE_OF_SIGN
from small_tokenizers import gguf_file


def gpt2_file(path: Path, **fields: Any) -> Path:
    tokens = ["<s>", "</s>", "<pad>", *BYTE_OF_SIGN, "Ġa", "12"]
    kinds = [3, 3, 4, *[1] * (len(tokens) - 3)]
    options = {
        "model": "gpt2",
        "pre": "smollm",
        "merges": ["Ġ a", "1 2"],
        "token_types": kinds,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    return gguf_file(path, tokens, **{**options, **fields})


def test_a_byte_level_vocabulary_from_gguf(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(gpt2_file(tmp_path / "v.gguf", chat_template="hello"))
    assert tokenizer.labels(tokenizer.encode("12 a</s>")) == ["1", "2", "␣a", "</s>"]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.chat_template == "hello"
    text = "한 a 12\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_only_some_vocabularies_keep_digits_together(tmp_path: Path) -> None:
    together = Tokenizer.from_gguf(gpt2_file(tmp_path / "v.gguf", pre="gpt-2"))
    assert together.labels(together.encode("12")) == ["12"]


def test_gguf_says_whether_a_text_begins_with_bos(tmp_path: Path) -> None:
    for name, wanted in (("a", True), ("b", False)):
        path = gpt2_file(tmp_path / name, add_bos_token=wanted)
        assert (Tokenizer.from_gguf(path).encode("1")[0] == 0) is wanted
    assert Tokenizer.from_gguf(gpt2_file(tmp_path / "c", pre="llama-bpe")).encode("1")[0] == 0


def test_a_sentencepiece_vocabulary_from_gguf(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "h", "e", "y", "he", "ey", "▁he", "▁hey", "a"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * 9]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0, -9.0]
    path = gguf_file(
        tmp_path / "v.gguf",
        pieces,
        model="llama",
        scores=scores,
        token_types=kinds,
        bos_token_id=1,
        eos_token_id=2,
        unk_token_id=0,
    )
    tokenizer = Tokenizer.from_gguf(path)
    # "ey" has the best score, so it is joined first, and "▁he" can't be had any more.
    assert tokenizer.labels(tokenizer.encode("hey")) == ["<s>", "␣", "h", "ey"]
    ids = tokenizer.encode("he 한")
    assert tokenizer.labels(ids) == ["<s>", "␣he", "␣", "한₁", "한₂", "한₃"]
    assert tokenizer.decode(ids) == "he 한"
    assert [word.text for word in words(tokenizer, ids)] == ["<s>", "he", " ", "한"]
    stream = tokenizer.stream(before=ids)
    assert stream.push(ids[1]) == " he"


def test_vocabularies_that_are_not_known_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rule 'klingon'"):
        Tokenizer.from_gguf(gpt2_file(tmp_path / "a", pre="klingon"))
    with pytest.raises(ValueError, match="kind 'bert'"):
        Tokenizer.from_gguf(gpt2_file(tmp_path / "b", model="bert"))
