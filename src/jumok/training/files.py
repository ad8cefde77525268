"""Documents from files: text, JSON lines and Parquet, read as a stream."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jumok.training.corpus import (
    AHEAD,
    FRAGMENT,
    Corpus,
    Cut,
    Fragment,
    Place,
    Tell,
    cut_of,
    fragments_of,
)

__all__ = ["Files"]

_KINDS = {".txt": "text", ".md": "text", ".jsonl": "jsonl", ".parquet": "parquet"}
_BLOCK = 1 << 20  # bytes that are read at once
_ROWS = 256  # rows of Parquet that are read at once
_BOM = codecs.BOM_UTF8


class Files(Corpus):
    """The documents of a file, or of all files of one kind in a folder, sorted by name.

    Args:
        path: of the file or the folder.
        pairs: documents are (source, target).
        fields: what the text, or source and target, are called.

    Raises:
        ValueError: there is nothing to read, or no such field.
    """

    def __init__(self, path: Path, pairs: bool, fields: tuple[str, ...]) -> None:
        self.name, self.pairs = path.name or str(path), pairs
        self._root = path if path.is_dir() else path.parent
        self._paths = _paths(path)
        kinds = {_KINDS[file.suffix.lower()] for file in self._paths}
        if len(kinds) > 1:
            raise ValueError(
                f"{path} holds files of different kinds ({', '.join(sorted(kinds))}); give a "
                f"folder with one of them"
            )
        (self._kind,) = kinds
        if self._kind == "text" and (pairs or fields):
            raise ValueError(
                f"{path}: a text has no {' and '.join(fields or ('source', 'target'))}; give a "
                f".jsonl or .parquet file with these fields"
            )
        self._fields = fields or (("source", "target") if pairs else ("text",))
        self.n_bytes = sum(file.stat().st_size for file in self._paths)
        if not self.n_bytes:
            raise ValueError(f"{path} is empty: there is nothing to learn from")
        # What is wrong with the first document is told now.
        if next(iter(self.fragments()), None) is None:
            raise ValueError(f"{path} holds nothing but blank documents")
        if self._kind == "parquet":
            self.n_bytes = sum(_column_bytes(file, self._fields) for file in self._paths)

    def fragments(self, start: Place | None = None, cut: Cut | None = None) -> Iterator[Fragment]:
        start = start or Place()
        for number in range(start.file, len(self._paths)):
            here = start if number == start.file else Place(number)
            path = self._paths[number]
            if self._kind == "text":
                yield from _text(path, here, cut)
            elif self._kind == "jsonl":
                yield from _json_lines(path, self._fields, here, cut)
            else:
                yield from _parquet(path, self._fields, here, cut)

    def digest(self, known: dict[str, list[Any]] | None = None, tell: Tell | None = None) -> str:
        known = {} if known is None else known
        whole = hashlib.blake2b(repr((self._kind, self._fields)).encode(), digest_size=16)
        done = 0
        for path in self._paths:
            where, stat = str(path.resolve()), path.stat()
            seen = [stat.st_size, stat.st_mtime_ns]
            if known.get(where, [])[:2] != seen:
                known[where] = [*seen, _digest(path, self._kind != "parquet", done, self, tell)]
            done += stat.st_size
            name = path.relative_to(self._root).as_posix()
            whole.update(f"{name}\0{known[where][2]}\n".encode())
        return whole.hexdigest()


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        found = [
            file
            for file in path.rglob("*")
            if file.suffix.lower() in _KINDS
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
            and file.is_file()
        ]
        if not found:
            raise ValueError(f"{path} holds no {', '.join(_KINDS)} file")
        return sorted(found, key=lambda file: file.relative_to(path).parts)
    if path.suffix.lower() not in _KINDS:
        raise ValueError(
            f"{path}: what kind of file is it? Its name must end in {', '.join(_KINDS)}"
        )
    return [path]


def _digest(path: Path, is_text: bool, before: int, corpus: Files, tell: Tell | None) -> str:
    """A digest of a file's bytes; that a text is one is checked on the way."""
    found, decoder = hashlib.blake2b(digest_size=16), _Decoder(path)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
            if is_text:
                decoder.decode(block)
            before += len(block)
            if tell is not None:
                tell("reading the corpus", before, corpus.n_bytes)
    if is_text:
        decoder.decode(b"", final=True)
    return found.hexdigest()


class _Decoder:
    """UTF-8 a block at a time, with an error for people."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset = path, offset
        self._lines = 0 if offset <= len(_BOM) else None  # before the next block, if known
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def decode(self, block: bytes, final: bool = False) -> str:
        """The text of the next block."""
        held = len(self._decoder.getstate()[0])
        if self._offset == 0 and block[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f"{self._path} is UTF-16, not UTF-8; save it as UTF-8")
        if (zero := block.find(b"\0")) >= 0:
            raise ValueError(
                f"{self._path} is no text: byte {self._offset + zero:,} is zero. Is it a binary "
                f"file with the name of a text?"
            )
        try:
            text = self._decoder.decode(block, final)
        except UnicodeDecodeError as error:
            at = self._offset - held + error.start
            line = ""
            if self._lines is not None:
                before = block[: max(0, error.start - held)].count(b"\n")
                line = f" in line {self._lines + before + 1:,}"
            wrong = error.object[error.start]
            raise ValueError(
                f"{self._path} is not UTF-8: byte {at:,}{line} is {wrong:#04x}. "
                f"Save it as UTF-8 (`iconv -f latin1 -t utf-8`, if it is Latin-1)"
            ) from error
        self._offset += len(block)
        if self._lines is not None:
            self._lines += block.count(b"\n")
        return text


def _text(path: Path, start: Place, cut: Cut | None) -> Iterator[Fragment]:
    """One document; reading goes on at any of its fragments."""
    offset, first = start.offset, start.offset == 0
    with path.open("rb") as file:
        if first and file.read(len(_BOM)) == _BOM:
            offset = len(_BOM)
        file.seek(offset)
        decoder, text, ended = _Decoder(path, offset), "", False
        while True:
            while not ended and len(text) <= FRAGMENT + AHEAD:
                block = file.read(_BLOCK // 4)
                ended = not block
                text += decoder.decode(block, final=ended)
            if len(text) <= FRAGMENT:
                break
            place = 0
            while len(text) - place > FRAGMENT and (ended or len(text) - place > FRAGMENT + AHEAD):
                stop, begin = cut_of(text[place : place + FRAGMENT + AHEAD], cut)
                size = len(text[place : place + begin].encode())
                offset += size
                after = Place(start.file, offset)
                yield Fragment(text[place : place + stop], first, False, after, size)
                place, first = place + begin, False
            text = text[place:]
    if text.strip() or not first:
        yield Fragment(text, first, True, Place(start.file + 1), len(text.encode()))


def _json_lines(
    path: Path, fields: tuple[str, ...], start: Place, cut: Cut | None
) -> Iterator[Fragment]:
    offset, number = start.offset, start.line
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            offset, number = offset + len(line), number + 1
            line = line.removeprefix(_BOM) if number == 1 else line
            if not line.strip():
                continue
            where = f"{path}, line {number:,}"
            try:
                record = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{where} is not UTF-8: {error.reason}; save it as UTF-8"
                ) from error
            except ValueError as error:
                raise ValueError(
                    f"{where} is no JSON ({error}); a .jsonl file has one object a line"
                ) from error
            if not isinstance(record, dict):
                raise ValueError(f'{where} is no JSON object, such as {{"{fields[0]}": "…"}}')
            texts = [_field(record, name, where) for name in fields]
            yield from _record(texts, Place(start.file, offset, number), cut)


def _parquet(
    path: Path, fields: tuple[str, ...], start: Place, cut: Cut | None
) -> Iterator[Fragment]:
    with _open_parquet(path, fields) as file:
        row, end = start.offset, 0
        for group in range(file.num_row_groups):
            begin, end = end, end + file.metadata.row_group(group).num_rows
            if end <= row:
                continue
            here = begin
            for rows in file.iter_batches(_ROWS, row_groups=[group], columns=list(fields)):
                columns = [rows.column(name).to_pylist() for name in fields]
                for texts in zip(*columns, strict=True):
                    here += 1
                    if here > row:
                        record = dict(zip(fields, texts, strict=True))
                        where = f"{path}, row {here:,}"
                        found = [_field(record, name, where) for name in fields]
                        yield from _record(found, Place(start.file, here), cut)


def _open_parquet(path: Path, fields: tuple[str, ...]) -> Any:
    """An open file that has these columns."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        raise ValueError(
            f"{path}: reading Parquet needs pyarrow: pip install 'jumok[train]'"
        ) from None
    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} is damaged or no Parquet file: {error}") from error
    for name in fields:
        if name not in file.schema_arrow.names:
            file.close()
            raise ValueError(_missing(str(path), "column", name, file.schema_arrow.names))
    return file


def _column_bytes(path: Path, fields: tuple[str, ...]) -> int:
    """How much text some columns hold, about."""
    with _open_parquet(path, fields) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        return sum(c.total_uncompressed_size for c in columns if c.path_in_schema in fields)


def _field(record: dict[str, Any], name: str, where: str) -> str:
    """A text of a record; nothing (null) is a blank one."""
    if name not in record:
        raise ValueError(_missing(where, "field", name, list(record)))
    text = record[name]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{where}: {name} is no text but {type(text).__name__} ({text!r:.40})")
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: character {error.start + 1:,} of {name} is half of one "
            f"(\\u{ord(error.object[error.start]):04x} alone); take it out"
        ) from error
    return text or ""


def _missing(where: str, what: str, name: str, there: list[str]) -> str:
    return (
        f"{where} has no {what} {name!r}; it has {', '.join(map(repr, there)) or 'none'}. Say "
        f"which one the text is in, or which two hold source and target"
    )


def _record(texts: list[str], after: Place, cut: Cut | None) -> Iterator[Fragment]:
    return fragments_of(texts[0] if len(texts) == 1 else (texts[0], texts[1]), after, cut)
