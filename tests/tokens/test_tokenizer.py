"""Labels that can be read, other tokenizers, and folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from jumok.tokens import Tokenizer, as_tokenizer, visible, words
from small_tokenizers import byte_level, word_piece


def test_bytes_of_one_character_are_grouped() -> None:
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.labels(tokenizer.encode("한 a")) == ["한₁", "한₂", "한₃", "␣", "a"]
    assert tokenizer.labels(tokenizer.encode("😊")) == ["😊₁", "😊₂", "😊₃", "😊₄"]


def test_a_token_with_the_end_of_one_character_and_the_next_shows_both() -> None:
    tokenizer = Tokenizer(byte_level([("ľ", "Ġ")]))  # the last byte of 한 and a space
    tokenizer.backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    ids = tokenizer.encode("한 a")
    assert tokenizer.labels(ids) == ["한₁", "한₂", "한₃␣", "a"]
    assert [word.tokens for word in words(tokenizer, ids)] == [(0, 1, 2), (3,)]


def test_bytes_that_are_no_character_are_named() -> None:
    tokenizer = Tokenizer(byte_level())
    broken = tokenizer.encode("한")[:2]
    assert tokenizer.labels(broken) == ["\\xED", "\\x95"]
    for label in tokenizer.labels(range(256)):  # each byte alone
        assert label
        assert "�" not in label


def test_spaces_and_control_characters_are_visible() -> None:
    assert visible(" \n\t\u200d\x07") == "␣⏎⇥\\u{200d}\\u{7}"
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.labels(tokenizer.encode("a\n")) == ["a", "⏎"]


def test_ids_beyond_the_vocabulary_never_fail() -> None:
    tokenizer = Tokenizer(byte_level())
    strange = [tokenizer.vocab_size, 10**9, -1]
    assert tokenizer.labels(strange) == ["‹257›", "‹1000000000›", "‹-1›"]
    assert tokenizer.decode([*strange, *tokenizer.encode("a")]) == "a"
    stream = tokenizer.stream()
    assert "".join(stream.push(id) for id in strange) + stream.finish() == ""
    assert [word.special for word in words(tokenizer, strange)] == [True] * 3


def test_a_vocabulary_may_have_holes() -> None:
    vocabulary = {"an": 0, "[UNK]": 7, "apple": 9}
    backend = Backend(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(backend)
    assert tokenizer.labels([0, 5, 9]) == ["an", "‹5›", "apple"]
    assert tokenizer.decode([0, 5, 9]) == "an apple"


def test_markup_stays_as_it_is() -> None:
    tokenizer = Tokenizer(byte_level())
    for text in ("<s>", "</script>", "a<b&c"):
        assert "".join(tokenizer.labels(tokenizer.encode(text))) == text


def test_jamo_are_shown_as_the_syllable() -> None:
    tokenizer = Tokenizer(word_piece())
    labels = tokenizer.labels(tokenizer.encode("사과 apples"))
    assert labels == ["[CLS]", "사₁", "##사₂", "##과₁", "##과₂", "apple", "##s", "[SEP]"]


def test_no_label_holds_the_sign_for_no_character() -> None:
    assert visible("a\ufffd") == "a\\u{fffd}"


def test_truncation_and_padding_are_off_but_not_in_the_callers_object() -> None:
    backend = word_piece()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = as_tokenizer(backend)
    assert len(tokenizer.encode("an an an an an")) == 7
    assert len(backend.encode("an").ids) == 8


def test_a_transformers_tokenizer_is_read() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_piece(), unk_token="[UNK]", pad_token="[PAD]", eos_token="[SEP]"
    )
    ours = as_tokenizer(theirs)
    assert ours.encode("an apple") == theirs("an apple")["input_ids"]
    assert ours.eos_id == theirs.eos_token_id
    assert ours.pad_id == theirs.pad_token_id
    assert ours.special_ids == set(theirs.all_special_ids) | {2}


def test_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="type dict can't be read"):
        as_tokenizer({})


def test_a_saved_folder_opens_here_and_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = {"eos_token": {"content": "<end>"}, "chat_template": "{{ messages }}"}
    Tokenizer(byte_level([("Ġ", "a")]), config).save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    again = Tokenizer.from_folder(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "한 a\n x<end>"
    assert again.encode(text) == theirs(text)["input_ids"]
    assert again.eos_id == theirs.eos_token_id == 257
    assert again.chat_template == theirs.chat_template == "{{ messages }}"
    assert again.decode(again.encode(text)) == "한 a\n x"
    assert again.decode(again.encode(text), special=True) == text


def test_special_tokens_are_read_from_every_file(tmp_path: Path) -> None:
    word_piece().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "[SEP]"}))
    (tmp_path / "chat_template.jinja").write_text("chat")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.eos_id == 3
    assert tokenizer.chat_template == "chat"


def test_a_folder_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json; save"):
        Tokenizer.from_folder(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for name in ("tokenizer_config.json", "tokenizer.json"):
        Tokenizer(byte_level()).save(tmp_path)
        (tmp_path / name).write_text("{")
        with pytest.raises(ValueError, match=name):
            Tokenizer.from_folder(tmp_path)
