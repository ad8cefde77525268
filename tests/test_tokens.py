"""Text to ids and back, labels that can be read, and words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from jumok.tokens import (
    _BYTE_OF_SIGN,
    Tokenizer,
    Word,
    as_tokenizer,
    has_words,
    printable,
    read,
    shortened,
    visible,
    words,
)


def byte_level(merges: list[tuple[str, str]] | None = None) -> Any:
    """Byte-level BPE with the 256 bytes and a few merges; "<end>" is special."""
    signs = list(_BYTE_OF_SIGN) + [left + right for left, right in merges or []]
    vocabulary = {sign: id for id, sign in enumerate(signs)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges or []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    return backend


def word_piece() -> Any:
    """A small BERT tokenizer, lower case, Hangul taken apart into jamo."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "an", "apple", "don", "'", "t", ".", "##s"]
    for sign in "사과나한글":
        for jamo in normalizers.NFD().normalize_str(sign):
            vocabulary += [jamo, f"##{jamo}"]
    ids = {piece: id for id, piece in enumerate(dict.fromkeys(vocabulary))}
    backend = Backend(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return backend


def gguf_file(path: Path, tokens: list[str], **fields: Any) -> Path:
    """A GGUF file that holds nothing but a vocabulary."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(tokens)
    writer.add_tokenizer_model(fields.pop("model"))
    if "pre" in fields:
        writer.add_tokenizer_pre(fields.pop("pre"))
    if "merges" in fields:
        writer.add_token_merges(fields.pop("merges"))
    if "scores" in fields:
        writer.add_token_scores(fields.pop("scores"))
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def texts(found: list[Word]) -> list[str]:
    return [word.text for word in found]


# -- labels ----------------------------------------------------------------------------------


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


# -- words -----------------------------------------------------------------------------------


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


# -- streaming -------------------------------------------------------------------------------


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


# -- text for a terminal ---------------------------------------------------------------------


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


def test_no_label_holds_the_sign_for_no_character() -> None:
    assert visible("a\ufffd") == "a\\u{fffd}"


def test_each_token_has_its_own_place_in_the_text() -> None:
    tokenizer = Tokenizer(byte_level())
    assert read(tokenizer, tokenizer.encode("a한 "), "a한 ").spans == (
        (0, 1), (1, 2), (1, 2), (1, 2), (2, 3),
    )  # fmt: skip


# -- other tokenizers ------------------------------------------------------------------------


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


# -- folders and GGUF ------------------------------------------------------------------------


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


def gpt2_file(path: Path, **fields: Any) -> Path:
    tokens = ["<s>", "</s>", "<pad>", *_BYTE_OF_SIGN, "Ġa", "12"]
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
    assert texts(words(tokenizer, ids)) == ["<s>", "he", " ", "한"]
    stream = tokenizer.stream(before=ids)
    assert stream.push(ids[1]) == " he"


def test_vocabularies_that_are_not_known_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rule 'klingon'"):
        Tokenizer.from_gguf(gpt2_file(tmp_path / "a", pre="klingon"))
    with pytest.raises(ValueError, match="kind 'bert'"):
        Tokenizer.from_gguf(gpt2_file(tmp_path / "b", model="bert"))
