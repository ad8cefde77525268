"""Cuts that a tokenizer doesn't notice."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, trainers

from jumok.tokens import Tokenizer
from jumok.training.corpus import Place, Texts, fragments_of
from jumok.training.seams import Seams
from small_tokenizers import word_piece

TEXT = (
    "The bank of the river, e.g. a few words...\n\n   More of them; and\r\n 2026\tnumbers\n" * 4000
)


def trained(**parts: object) -> Tokenizer:
    backend = Backend(models.BPE())
    for name, part in parts.items():
        setattr(backend, name, part)
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False)
    backend.train_from_iterator([TEXT[:2000]], trainer)
    return Tokenizer(backend)


def sentence_piece() -> Tokenizer:
    """A vocabulary as Llama 2's: a space before every text, and no words."""
    backend = trained(pre_tokenizer=pre_tokenizers.Metaspace()).backend  # no piece has two words
    normaliser = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer, backend.normalizer = None, normaliser
    return Tokenizer(backend)


@pytest.mark.parametrize(
    "tokenizer",
    [
        trained(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False)),
        trained(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        trained(pre_tokenizer=pre_tokenizers.Metaspace()),
        sentence_piece(),
        Tokenizer(word_piece()),
    ],
    ids=["bytes", "bytes with a space", "words", "sentences", "word pieces"],
)
@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", " "), "x" + TEXT])
def test_the_parts_have_the_tokens_of_the_whole(tokenizer: Tokenizer, text: str) -> None:
    parts = list(fragments_of(text, Place(), Seams(tokenizer)))
    assert len(parts) > 4
    ids = [id for part in parts for id in tokenizer.encode(part.text, special=False)]
    assert ids == tokenizer.encode(text, special=False)


def test_a_text_without_spaces_is_cut_anywhere() -> None:
    tokenizer = trained(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
    text = "한글" * 100_000
    parts = list(fragments_of(text, Place(), Seams(tokenizer)))
    assert "".join(part.text for part in parts) == text
    assert list(Texts("t", [text]).documents()) == [text]
