"""Corpora in files: text, JSON lines, Parquet, folders; and what is wrong with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from jumok.training.corpus import FRAGMENT, read_corpus

LONG = "".join(f"Line {i} of a long text, with ü and 한글 and 😊.\n" for i in range(12_000))


def documents(path: Path, **options: Any) -> list[Any]:
    return list(read_corpus(path, **options).documents())


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def table(path: Path, rows: int = 0, **columns: list[Any]) -> Path:
    parquet.write_table(pyarrow.table(columns), path, row_group_size=rows or None)
    return path


def test_a_text_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("eins\r\nzwei ü\n".encode())
    assert documents(tmp_path / "a.txt") == ["eins\r\nzwei ü\n"]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text", "utf-8-sig")
    (tmp_path / "a.jsonl").write_text('{"text": "text"}\n', "utf-8-sig")
    assert documents(tmp_path / "a.txt") == documents(tmp_path / "a.jsonl") == ["text"]


def test_a_long_text_is_the_same_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(LONG, "utf-8-sig")
    corpus = read_corpus(path)
    parts = list(corpus.fragments())
    assert len(parts) > 5
    assert max(len(part.text) for part in parts) <= FRAGMENT
    assert "".join(part.text for part in parts) == LONG


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/a.md", ".hidden/no.txt", "a/.no.txt", "a/no.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.txt").touch()
    assert documents(tmp_path) == ["a/a.md", "a/z.txt", "b.txt"]


def test_json_lines(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": "eins"}, {"text": "zw\nei", "id": 2})
    path.write_text(path.read_text() + "\n" + '{"text": "drei"}')  # a blank line, no last line end
    assert documents(path) == ["eins", "zw\nei", "drei"]


def test_pairs_and_fields(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"source": "s", "target": "t", "de": "d", "en": None})
    assert documents(path, pairs=True) == [("s", "t")]
    assert documents(path, pairs=True, fields=("de", "source")) == [("d", "s")]
    assert documents(path, fields=("de",)) == ["d"]


def test_parquet(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(1000)] + [None, "last"]
    path = table(tmp_path / "a.parquet", 300, text=texts, source=texts[::-1], target=texts)
    assert documents(path) == [*texts[:1000], "last"]
    pairs = [pair for pair in zip(texts[::-1], texts, strict=True) if None not in pair]
    assert documents(path, pairs=True) == pairs
    corpus = read_corpus(path)
    assert corpus.n_bytes is not None
    assert corpus.n_bytes < path.stat().st_size


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet", "pairs"])
def test_reading_goes_on_at_every_place(tmp_path: Path, kind: str) -> None:
    texts, pairs = ["a", LONG[:200_000], "b", "c"], kind == "pairs"
    if kind == "txt":
        for number, text in enumerate(texts):
            (tmp_path / f"{number}.txt").write_text(text, "utf-8")
    elif kind == "parquet":
        table(tmp_path / "0.parquet", 2, text=texts)
        table(tmp_path / "1.parquet", text=texts[2:])
    else:
        lines(tmp_path / "0.jsonl", *({"text": t, "source": t, "target": t} for t in texts))
        lines(tmp_path / "1.jsonl", {"text": "d", "source": "e", "target": "f"})
    corpus = read_corpus(tmp_path, pairs=pairs)
    every = list(corpus.fragments())
    tried = 0
    for number, fragment in enumerate(every, start=1):
        if fragment.after is not None:
            tried += 1
            assert list(corpus.fragments(fragment.after)) == every[number:]
    assert tried == (len(every) if kind == "txt" else 6 if kind == "parquet" else 5)


def test_what_is_wrong_with_a_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nth\xe9\n")
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8: byte 10 in line 3 is 0xe9"):
        read_corpus(path).digest()
    path.write_bytes(b"x" * 5_000_000 + b"\n\xff" + b"x" * 5_000_000)
    with pytest.raises(ValueError, match="byte 5,000,001 in line 2 is 0xff"):
        read_corpus(path).digest()  # far behind what is read at first
    path.write_bytes("한글".encode()[:-1])
    with pytest.raises(ValueError, match=r"byte 3.* is 0xea"):
        read_corpus(path)
    path.write_text("text", "utf-16")
    with pytest.raises(ValueError, match="is UTF-16"):
        read_corpus(path)
    path.write_bytes(b"ab\0cd")
    with pytest.raises(ValueError, match="is no text: byte 2 is zero"):
        read_corpus(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "a"}\nno json\n', "a.jsonl, line 2 is no JSON"),
        (b'["a"]\n', "line 1 is no JSON object"),
        (b'{"content": "a", "id": 1}\n', "line 1 has no field 'text'; it has 'content', 'id'"),
        (b'{"text": "a"}\n{"text": 5}\n', "line 2: text is no text but int"),
        (b'{"text": "\xe9"}\n', "line 1 is not UTF-8"),
        (b'{"text": "a"}\n{"text": "ab\\ud83d"}', "line 2: character 3 of text is half of one"),
        (b'{"text": ""}\n\n', "nothing but blank"),
        (b"", "a.jsonl is empty"),
    ],
)
def test_what_is_wrong_with_json_lines_is_told(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        documents(path)


def test_what_is_wrong_with_parquet_is_told(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", content=["a"], id=[1])
    with pytest.raises(ValueError, match="has no column 'text'; it has 'content', 'id'"):
        read_corpus(path)
    with pytest.raises(ValueError, match="row 1: id is no text but int"):
        read_corpus(path, fields=["id"])
    path.write_bytes(b"no parquet")
    with pytest.raises(ValueError, match="damaged or no Parquet"):
        read_corpus(path)


def test_what_is_wrong_with_a_folder_or_a_name_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no \.txt"):
        read_corpus(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    lines(tmp_path / "a.jsonl", {"text": "a"})
    with pytest.raises(ValueError, match="different kinds"):
        read_corpus(tmp_path)
    (tmp_path / "a.pdf").write_text("a")
    with pytest.raises(ValueError, match="what kind of file"):
        read_corpus(tmp_path / "a.pdf")
    with pytest.raises(ValueError, match="a text has no source and target"):
        read_corpus(tmp_path / "a.txt", pairs=True)


def test_a_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    known: dict[str, list[Any]] = {}
    first = read_corpus(path).digest(known)
    os.utime(path, (1, 1))  # touched, not changed
    assert read_corpus(path).digest(known) == first
    path.write_text("two")
    os.utime(path, (2, 2))
    assert read_corpus(path).digest(known) != first
    path.write_text("one")
    assert read_corpus(path).fingerprint == first


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    known: dict[str, list[Any]] = {}
    read_corpus(path).digest(known)
    told: list[int] = []
    read_corpus(path).digest(known, lambda what, done, total: told.append(done))
    assert told == []
    read_corpus(path).digest({}, lambda what, done, total: told.append(done))
    assert told == [3]
