"""What tokenizers put around a text, and which of their tokens end one."""

from __future__ import annotations

import pytest
from tokenizers import processors

from jumok.tokens import Tokenizer
from jumok.training.special import ends_of, frame_of, special_id
from small_tokenizers import byte_level, word_piece


def framed(single: str) -> Tokenizer:
    backend = byte_level()
    backend.add_special_tokens(["<s>", "</s>"])
    tokens = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize(
    ("single", "begin", "end"),
    [
        ("$A", [], []),
        ("<s> $A", [257], []),
        ("<s> $A </s>", [257], [258]),
        ("$A </s>", [], [258]),
    ],
)
def test_the_frame_of_a_text(single: str, begin: list[int], end: list[int]) -> None:
    tokenizer = framed(single)
    assert frame_of(tokenizer) == (begin, end)
    assert ends_of(tokenizer, "gpt") == (begin, [258])
    assert ends_of(tokenizer, "seq2seq") == (begin, [258])
    assert ends_of(tokenizer, "bert") == ([], [258])


def test_berts_separator_ends_its_documents() -> None:
    tokenizer = Tokenizer(word_piece(), {"sep_token": "[SEP]"})
    assert ends_of(tokenizer, "bert") == ([], [3])
    assert ends_of(tokenizer, "gpt") == ([2], [3])


def test_tokens_are_found_by_name_or_spelling() -> None:
    unnamed = Tokenizer(word_piece())
    assert special_id(unnamed, "pad_token") == 0
    assert special_id(unnamed, "mask_token", "cls_token") == 2
    assert special_id(unnamed, "mask_token") is None
    assert special_id(Tokenizer(byte_level(), {"eos_token": "<end>"}), "eos_token") == 256


def test_a_tokenizer_without_an_end_is_told() -> None:
    with pytest.raises(ValueError, match="no token that ends a text: name one"):
        ends_of(Tokenizer(byte_level()), "gpt")
