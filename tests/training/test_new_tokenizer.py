"""New tokenizers: every text comes back, and transformers reads the same from the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from jumok.model.loading import _read_tokenizer
from jumok.tokens import Tokenizer
from jumok.training.corpus import Texts, read_corpus
from jumok.training.new_tokenizer import new_tokenizer

TOPICS = read_corpus("topics")
TEXTS = [
    "Hello, 2026 world!\n\n  def f(x):\r\n\treturn x",
    "한국어 텍스트 😊",
    " a  b ",
    "\x00\x7f",
]


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Path:
    folder = tmp_path_factory.mktemp(kind)
    new_tokenizer(kind, TOPICS, 600, folder)
    return folder


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(folder: Path, text: str) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_transformers_reads_the_same(folder: Path, text: str) -> None:
    ours = _read_tokenizer(folder)
    assert ours is not None
    theirs: Any = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert theirs.encode(text) == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == ours.decode(ours.encode(text)) == text
    assert (theirs.eos_token_id, theirs.bos_token_id) == (ours.eos_id, ours.bos_id)
    assert theirs.pad_token_id == ours.pad_id != ours.eos_id
    assert len(theirs) == ours.vocab_size


def test_bytes_are_their_own_ids(tmp_path: Path) -> None:
    tokenizer = new_tokenizer("bytes", TOPICS, 0, tmp_path)
    every = bytes(range(256)).decode("latin1")
    assert tokenizer.encode(every) == list(every.encode())
    assert {tokenizer.encode(chr(code))[0] for code in range(128)} == set(range(128))
    assert tokenizer.vocab_size == 258


def test_a_bpe_has_the_size_that_was_asked_for(tmp_path: Path) -> None:
    tokenizer = new_tokenizer("bpe", TOPICS, 600, tmp_path)
    assert tokenizer.vocab_size == 600
    assert sorted(tokenizer.backend.get_vocab().values()) == list(range(600))
    assert len(tokenizer.encode("The following statement")) < 8
    assert len(tokenizer.encode("2026")) == 4  # a digit is a token


@pytest.mark.parametrize(
    ("family", "ids", "names"),
    [
        ("gpt", [1], {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}),
        ("bert", [1, 1, 1], {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}),
        ("seq2seq", [1, 1], {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}),
    ],
)
def test_families_have_their_special_tokens(
    tmp_path: Path, family: str, ids: list[int], names: dict[str, str]
) -> None:
    tokenizer = new_tokenizer("bytes", TOPICS, 0, tmp_path, family=family)
    theirs: Any = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert len(tokenizer.encode("a")) == len(ids)
    assert theirs.encode("a") == tokenizer.encode("a")
    for name, token in names.items():
        assert getattr(theirs, name) == token
        assert theirs.convert_tokens_to_ids(token) in tokenizer.special_ids
    assert tokenizer.decode(tokenizer.encode("a")) == "a"


def test_it_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_tokenizer("bpe", TOPICS, 600, tmp_path)
    monkeypatch.setattr("jumok.training.new_tokenizer._bpe", None)
    again = new_tokenizer("bpe", TOPICS, 600, tmp_path)
    assert again.backend.to_str() == first.backend.to_str()


def test_half_of_one_is_made_anew(tmp_path: Path) -> None:
    """As if the process had been killed between two of its files."""
    first = new_tokenizer("bpe", TOPICS, 600, tmp_path)
    (tmp_path / "tokenizer_origin.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    again = new_tokenizer("bpe", TOPICS, 600, tmp_path)
    assert again.backend.to_str() == first.backend.to_str()
    assert again.eos_id is not None


@pytest.mark.parametrize(
    ("kind", "vocab_size", "family", "corpus", "said"),
    [
        ("bpe", 700, "gpt", ["a"], "vocab_size was 600, is 700"),
        ("bpe", 600, "bert", ["a"], "family was 'gpt', is 'bert'"),
        ("bpe", 600, "gpt", ["b"], "the corpus has changed"),
        ("bytes", 0, "gpt", ["a"], "kind was 'bpe', is 'bytes'"),
    ],
)
def test_another_tokenizer_in_the_folder_is_told(
    tmp_path: Path, kind: str, vocab_size: int, family: str, corpus: list[str], said: str
) -> None:
    new_tokenizer("bpe", Texts("t", ["a"]), 600, tmp_path)
    with pytest.raises(ValueError, match=said):
        new_tokenizer(kind, Texts("t", corpus), vocab_size, tmp_path, family=family)


def test_a_folder_is_a_tokenizer(tmp_path: Path) -> None:
    new_tokenizer("bpe", TOPICS, 600, tmp_path / "one")
    other = new_tokenizer(str(tmp_path / "one"), TOPICS, 0, tmp_path / "two")
    assert Tokenizer.from_folder(tmp_path / "two").encode(TEXTS[0]) == other.encode(TEXTS[0])


@pytest.mark.parametrize(
    ("kind", "vocab_size", "said"),
    [
        ("bpe", 257, "a BPE has at least 258 ids, the 256 bytes and 2 special tokens"),
        ("nowhere", 0, "there is no tokenizer 'nowhere': give bytes, bpe, minilm, smollm2"),
        (".", 0, "has no tokenizer.json"),
    ],
)
def test_what_is_no_tokenizer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, vocab_size: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        new_tokenizer(kind, TOPICS, vocab_size, tmp_path / "t")
