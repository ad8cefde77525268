"""Marian's vocabularies, from files written here."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from jumok.tokens import Tokenizer
from jumok.tokens.marian import read_marian_vocabulary

PIECES = {
    "<unk>": 0.0,
    "▁": -3.0,
    "▁he": -1.0,
    "llo": -1.5,
    "▁hello": -2.0,  # better than ▁he + llo, which add up to -2.5
    "l": -4.0,
    "o": -4.0,
    "▁wor": -2.0,
    "ld": -2.0,
}
VOCABULARY = ["</s>", "<unk>", "ld", "▁hello", "▁he", "llo", "▁", "l", "o", "▁wor", "ß", ">>deu<<"]


def field(number: int, data: bytes) -> bytes:
    assert len(data) < 1 << 14
    size = [len(data)] if len(data) < 128 else [len(data) & 127 | 128, len(data) >> 7]
    return bytes([number << 3 | 2, *size]) + data


def sentencepiece(pieces: dict[str, float], kind: int = 1) -> bytes:
    """A model file with these pieces: 1 is a unigram vocabulary, 2 BPE."""
    data = b""
    for piece, score in pieces.items():
        data += field(
            1, field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18\x01"
        )
    return data + field(2, bytes([3 << 3, kind])) + field(3, field(1, b"identity"))


def write(folder: Path, kind: int = 1) -> Path:
    (folder / "source.spm").write_bytes(sentencepiece(PIECES, kind))
    ids = {piece: id for id, piece in enumerate([*VOCABULARY, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    return folder


def test_text_is_cut_by_scores_and_numbered_by_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = Tokenizer(*read_marian_vocabulary(write(tmp_path)))
    ids = tokenizer.encode("hello  world ")
    assert [VOCABULARY[id] for id in ids] == ["▁hello", "▁wor", "ld", "</s>"]
    assert tokenizer.decode(ids) == "hello world"
    assert (tokenizer.eos_id, tokenizer.pad_id) == (0, 12)
    # What the source's file has no piece for is taken from the vocabulary, or unknown.
    assert [VOCABULARY[id] for id in tokenizer.encode("heß?")] == ["▁he", "ß", "<unk>", "</s>"]


def test_the_language_of_the_target_is_one_token(tmp_path: Path) -> None:
    tokenizer = Tokenizer(*read_marian_vocabulary(write(tmp_path)))
    ids = tokenizer.encode(">>deu<< hello")
    assert [VOCABULARY[id] for id in ids] == [">>deu<<", "▁hello", "</s>"]
    assert tokenizer.decode(ids) == "hello"


def test_saved_and_read_again(tmp_path: Path) -> None:
    tokenizer = Tokenizer(*read_marian_vocabulary(write(tmp_path)))
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.from_folder(tmp_path / "saved")
    assert again.encode(">>deu<< hello ß") == tokenizer.encode(">>deu<< hello ß")
    assert again.pad_id == 12


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("source.spm", b"", "holds no unigram vocabulary"),
        ("source.spm", sentencepiece(PIECES, 2), "holds no unigram vocabulary"),
        ("source.spm", sentencepiece(PIECES)[:-3], "damaged or no SentencePiece"),
        ("source.spm", b"\xff" * 40, "damaged or no SentencePiece"),
        ("vocab.json", b"{", r"vocab\.json is damaged"),
        ("vocab.json", b"[]", r"vocab\.json is damaged"),
        ("vocab.json", b'{"a": 0, "b": 2}', "0, 1, 2"),
        ("vocab.json", b'{"a": 0, "</s>": 1}', "has no <unk>, <pad>"),
    ],
)
def test_damaged_files_are_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_marian_vocabulary(tmp_path)


@pytest.mark.parametrize("separate", [False, True])
def test_the_target_is_cut_by_its_own_file(tmp_path: Path, separate: bool) -> None:
    from jumok.model.loading import _read_tokenizer as read_tokenizer

    write(tmp_path)
    (tmp_path / "target.spm").write_bytes(sentencepiece({**PIECES, "▁hello": -9.0}))
    names = [*VOCABULARY, "<pad>"]
    if separate:
        names = ["<pad>", "<unk>", "</s>", *sorted(PIECES)[1:]]
        ids = {piece: id for id, piece in enumerate(names)}
        (tmp_path / "target_vocab.json").write_text(json.dumps(ids))
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer is not None
    assert [VOCABULARY[id] for id in tokenizer.encode("hello")] == ["▁hello", "</s>"]
    target = tokenizer.target.encode("hello")
    assert [names[id] for id in target] == ["▁he", "llo", "</s>"]
    assert tokenizer.target.decode(target) == "hello"
    tokenizer.save(tmp_path / "again")
    again = Tokenizer.from_folder(tmp_path / "again")
    assert again.encode("hello world") == tokenizer.encode("hello world")
    assert again.target.encode("hello world") == tokenizer.target.encode("hello world")
    assert again.target.eos_id == tokenizer.target.eos_id
