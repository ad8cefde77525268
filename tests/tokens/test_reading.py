"""The words that a person sees."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from jumok.tokens import Tokenizer, Word, read, words
from small_tokenizers import byte_level, word_piece


def texts(found: list[Word]) -> list[str]:
    return [word.text for word in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("an apple, and orange", ["an", "apple", ",", "and", "orange"]),
        ("don't can’t 'quoted'", ["don't", "can’t", "'", "quoted", "'"]),
        ("사과와 오렌지를", ["사과와", "오렌지를"]),
        ("def f(x): x2", ["def", "f", "(", "x", ")", ":", "x2"]),
        ("hi 👨‍👩‍👧 🇰🇷 👍🏽!", ["hi", "👨‍👩‍👧", "🇰🇷", "👍🏽", "!"]),
        ("cafe\u0301 हिन्दी", ["cafe\u0301", "हिन्दी"]),
    ],
)
def test_what_a_word_is(text: str, expected: list[str]) -> None:
    tokenizer = Tokenizer(byte_level())
    ids = tokenizer.encode(text)
    plain = [word for word in words(tokenizer, ids, text) if word.text.strip()]
    assert texts(plain) == expected
    assert all(text[word.start : word.end] == word.text for word in plain)


def test_every_token_belongs_to_exactly_one_word() -> None:
    tokenizer = Tokenizer(byte_level([("Ġ", "a"), (")", ":")]))
    text = "f(a): a  a\n한 😊"
    found = words(tokenizer, tokenizer.encode(text), text)
    assert sorted(place for word in found for place in word.tokens) == list(
        range(len(tokenizer.encode(text)))
    )


def test_a_token_belongs_to_the_word_of_its_first_visible_character() -> None:
    tokenizer = Tokenizer(byte_level([("Ġ", "a"), (")", ":")]))
    found = words(tokenizer, tokenizer.encode("x) a:"), "x) a:")
    assert [(word.text, word.tokens) for word in found] == [
        ("x", (0,)),
        (")", (1,)),
        ("a", (2,)),  # "␣a" is one token
        (":", (3,)),
    ]
    # A sign without a token of its own joins the word whose token covers it.
    joined = words(tokenizer, tokenizer.encode("x):"), "x):")
    assert texts(joined) == ["x", "):"]


def test_a_token_of_spaces_is_a_word_of_its_own() -> None:
    tokenizer = Tokenizer(byte_level())
    found = words(tokenizer, tokenizer.encode("a\nb"), "a\nb")
    assert texts(found) == ["a", "\n", "b"]


def test_special_tokens_stand_apart() -> None:
    tokenizer = Tokenizer(word_piece())
    found = words(tokenizer, tokenizer.encode("Apple"), "Apple")
    assert found == [
        Word("[CLS]", 0, 0, (0,), special=True),
        Word("Apple", 0, 5, (1,)),  # as the text has it, though the tokenizer lowers it
        Word("[SEP]", 5, 5, (2,), special=True),
    ]


def test_an_unknown_token_shows_what_the_text_has() -> None:
    tokenizer = Tokenizer(word_piece())
    found = words(tokenizer, tokenizer.encode("an 😊"), "an 😊")
    assert [(word.text, word.special) for word in found[1:-1]] == [("an", False), ("😊", False)]


def test_padding_on_the_left_is_special() -> None:
    tokenizer = Tokenizer(word_piece())
    ids = [0, 0, *tokenizer.encode("an apple")]
    found = words(tokenizer, ids, "an apple")
    assert texts(found) == ["[PAD]", "[PAD]", "[CLS]", "an", "apple", "[SEP]"]
    assert [word.tokens for word in found if not word.special] == [(3,), (4,)]


def test_words_without_the_text_are_rebuilt() -> None:
    tokenizer = Tokenizer(word_piece())
    ids = tokenizer.encode("An apple. 사과 don't")
    assert texts(words(tokenizer, ids)) == ["[CLS]", "an", "apple", ".", "사과", "don't", "[SEP]"]
    bytes_only = Tokenizer(byte_level())
    ids = bytes_only.encode("한글 a <end> 😊")
    reading = read(bytes_only, ids)
    assert reading.text == "한글 a  😊"  # a special token is no text
    assert [w.text for w in reading.words if w.text.strip()] == ["한글", "a", "<end>", "😊"]


def test_ids_that_no_text_would_give_are_read_from_their_pieces() -> None:
    tokenizer = Tokenizer(byte_level([("a", "b")]))
    apart = tokenizer.encode("a") + tokenizer.encode("b") + tokenizer.encode(" c")
    assert tokenizer.encode("ab c") != apart
    found = words(tokenizer, apart)
    assert [(word.text, word.tokens) for word in found if word.text.strip()] == [
        ("ab", (0, 1)),
        ("c", (3,)),
    ]


def test_another_text_is_refused() -> None:
    tokenizer = Tokenizer(word_piece())
    with pytest.raises(ValueError, match="'an an' gives other token ids than the 3"):
        words(tokenizer, tokenizer.encode("apple"), "an an")


BYTES = Tokenizer(byte_level([("Ġ", "a"), ("a", "b"), (")", ":"), ("Ċ", "Ċ")]))
PIECES = Tokenizer(word_piece())


@given(text=strategies.text(max_size=40))
@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
def test_any_text_can_be_read(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    reading = read(tokenizer, ids, text)
    assert len(reading.labels) == len(ids)
    assert all(label and ("�" not in label or "�" in text) for label in reading.labels)
    tokens = [token for word in reading.words for token in word.tokens]
    assert sorted(tokens) == list(range(len(ids)))
    place = 0
    for word in reading.words:
        if not word.special:
            assert text[word.start : word.end] == word.text
            assert word.start >= place or not word.text.strip()
            place = word.start
    rebuilt = read(tokenizer, ids)
    assert sorted(token for word in rebuilt.words for token in word.tokens) == sorted(tokens)


@given(ids=strategies.lists(strategies.integers(-2, 270), max_size=30))
def test_any_ids_can_be_read(ids: list[int]) -> None:
    reading = read(BYTES, ids)
    assert sorted(token for word in reading.words for token in word.tokens) == list(range(len(ids)))
    assert not any("�" in label for label in reading.labels)
    stream = BYTES.stream()
    streamed = "".join(stream.push(id) for id in ids) + stream.finish()
    assert streamed == BYTES.decode(ids).replace("�", "")


def test_each_token_has_its_own_place_in_the_text() -> None:
    tokenizer = Tokenizer(byte_level())
    assert read(tokenizer, tokenizer.encode("a한 "), "a한 ").spans == (
        (0, 1), (1, 2), (1, 2), (1, 2), (2, 3),
    )  # fmt: skip
