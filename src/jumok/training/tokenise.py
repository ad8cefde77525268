"""A corpus to a token file, once: in parallel, in little memory, and resumable at any moment.

    tokens = tokenise(corpus, tokenizer, Path("run/data"), validation=0.01, family="gpt")
    tokens.train, tokens.validation                   # TokenFile

Fragments of documents are encoded by the threads of the `tokenizers` library, a batch ahead of
the one whose tokens are written. Tokens are appended to ``tokens.part``; a journal, replaced
whole every second, says how long that file and ``bounds.part`` were and where in the corpus to
go on. After a kill both are cut to that length: the same bytes come out as of an undisturbed
run. The finished file appears under its name at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from array import array
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jumok.tokens import Tokenizer
from jumok.tokens.characters import BYTE_OF_SIGN
from jumok.training.corpus import Corpus, Fragment, Place, Tell, digest_of
from jumok.training.seams import Seams
from jumok.training.special import ends_of
from jumok.training.token_file import HEADER, TokenFile, Tokens, header

__all__ = ["tokenise"]

_BATCH = 1 << 20  # characters that are encoded at once
_AHEAD = 3  # batches that are encoded while one is written
_EVERY = 1.0  # seconds between two entries of the journal


def tokenise(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    validation: float = 0.0,
    family: str = "gpt",
    tell: Tell | None = None,
) -> Tokens:
    """The tokens of a corpus, from ``folder`` if they are there already.

    Special tokens that the tokenizer finds in a text, such as "<|endoftext|>", are that there
    too. What is put around each document:

    - "gpt": what the tokenizer puts there itself, and the end-of-text token.
    - "bert": the separator after it; rows get the rest (see `batches`).
    - "seq2seq": source and target are two documents, each as the tokenizer frames a text, with
      the end-of-text token.

    Args:
        corpus: from `read_corpus`.
        tokenizer: from `new_tokenizer`.
        folder: made if it isn't there.
        validation: share of the documents that is for validation, see `TokenFile.split`.
        family: "gpt", "bert" or "seq2seq".
        tell: told how far it is.

    Raises:
        ValueError: ``folder`` holds the tokens of another corpus, tokenizer or family (which,
            is said); a document can't be read; there are no documents.
        OSError: no permission, or not enough room on the disk; what is done is kept.
    """
    with _locked(folder):
        job = _Job.of(corpus, tokenizer, folder, family, tell)
        path = folder / "tokens.safetensors"
        if path.exists():
            found = TokenFile(path)
            job.check_same(found.about, path)
        else:
            found = _made(job, path, tell)
        for left in ("bounds.part", "journal.json"):  # of a moment before the end, perhaps
            (folder / left).unlink(missing_ok=True)
    return found.split(validation)


@dataclass(frozen=True)
class _Job:
    """What is to be done, and what it is known by."""

    corpus: Corpus
    tokenizer: Tokenizer
    folder: Path
    ends: list[tuple[list[int], list[int]]]  # of a source, of a target
    about: dict[str, str]

    @classmethod
    def of(
        cls, corpus: Corpus, tokenizer: Tokenizer, folder: Path, family: str, tell: Tell | None
    ) -> _Job:
        ends = [ends_of(side, family) for side in (tokenizer, tokenizer.target)]
        if corpus.pairs != (family == "seq2seq"):
            kind = "pairs of source and target" if corpus.pairs else "texts, not pairs"
            raise ValueError(f"the corpus {corpus.name} has {kind}; family={family!r} doesn't fit")
        about = {
            "corpus": digest_of(corpus, folder, tell),
            "corpus_name": corpus.name,
            "tokenizer": fingerprint(tokenizer),
            "family": family,
            "ends": json.dumps(ends),
            "pairs": json.dumps(corpus.pairs),
        }
        return cls(corpus, tokenizer, folder, ends, about)

    @property
    def wide(self) -> bool:
        """Whether ids need 32 bits."""
        sides = (self.tokenizer, self.tokenizer.target)
        return max(max(side.backend.get_vocab().values()) for side in sides) > 0xFFFF

    def differences(self, about: dict[str, Any]) -> list[str]:
        """What another job did otherwise, for people."""
        words = {
            "corpus": f"the corpus has changed (it was {about.get('corpus_name')})",
            "tokenizer": "the tokenizer is another one",
            "family": f"the family was {about.get('family')}, is {self.about['family']}",
            "ends": "documents begin or end with other special tokens",
        }
        return [said for name, said in words.items() if about.get(name) != self.about[name]]

    def check_same(self, about: dict[str, Any], path: Path) -> None:
        if changes := self.differences(about):
            raise ValueError(
                f"{path} was made from something else: {', '.join(changes)}. Give another folder, "
                f"or delete {path} to tokenise anew"
            )


def fingerprint(tokenizer: Tokenizer) -> str:
    """Changes when a tokenizer gives other ids."""
    found = hashlib.blake2b(tokenizer.backend.to_str().encode(), digest_size=16)
    if tokenizer.target is not tokenizer:
        found.update(tokenizer.target.backend.to_str().encode())
    return found.hexdigest()


@dataclass(frozen=True)
class _Journal:
    """How far it is: lengths of the two files in bytes, and the place in the corpus."""

    about: dict[str, str]
    place: Place
    tokens: int = 0
    bounds: int = 0
    done: int = 0

    @classmethod
    def read(cls, job: _Job) -> _Journal:
        new = cls(job.about, Place())
        try:
            entries = json.loads((job.folder / "journal.json").read_text("utf-8"))
            found = replace(cls(**entries), place=Place(**entries["place"]))
        except (OSError, ValueError, TypeError, KeyError):
            return new
        sizes = [_size(job.folder / name) for name in ("tokens.part", "bounds.part")]
        whole = sizes[0] >= HEADER + found.tokens and sizes[1] >= found.bounds
        return found if whole and not job.differences(found.about) else new

    def write(self, folder: Path) -> None:
        _replace(folder / "journal.json", json.dumps(asdict(self)))


def _made(job: _Job, path: Path, tell: Tell | None) -> TokenFile:
    journal = _Journal.read(job)
    _check_room(job, journal)
    parts = [job.folder / name for name in ("tokens.part", "bounds.part")]
    try:
        with _opened(parts[0]) as tokens, _opened(parts[1]) as bounds:
            tokens.truncate(HEADER + journal.tokens)
            bounds.truncate(journal.bounds)
            tokens.seek(0, os.SEEK_END)
            bounds.seek(0, os.SEEK_END)
            journal = _written(job, journal, tokens, bounds, tell)
            if not journal.bounds:
                raise ValueError(f"the corpus {job.corpus.name} holds nothing but blank documents")
            _finish(job, journal, tokens, parts[1])
        os.replace(parts[0], path)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno)} while tokenising; what is done is kept: the same command "
            f"goes on from there",
            str(job.folder),
        ) from error
    return TokenFile(path)


def _written(
    job: _Job, journal: _Journal, tokens: BinaryIO, bounds: BinaryIO, tell: Tell | None
) -> _Journal:
    """Encode what is left of the corpus, and write it."""
    width = 4 if job.wide else 2
    length, done, total = journal.tokens, journal.done, job.corpus.n_bytes
    n_bounds, last = journal.bounds, time.monotonic()
    for fragments, encoded, counts in _encoded(job, journal.place):
        tokens.write(encoded)
        ends = array("q")
        for fragment, count in zip(fragments, counts, strict=True):
            length += count * width
            done += fragment.n_bytes
            if fragment.last:
                ends.append(length // width)
        bounds.write(np.asarray(ends, "<i8").tobytes())
        n_bounds += 8 * len(ends)
        after = fragments[-1].after
        if tell is not None:
            tell("tokenising", done if total is None else min(done, total), total)
        if after is not None and time.monotonic() - last >= _EVERY:
            _flush(tokens, bounds)
            journal = replace(journal, place=after, tokens=length, bounds=n_bounds, done=done)
            journal.write(job.folder)
            last = time.monotonic()
    _flush(tokens, bounds)
    return replace(journal, tokens=length, bounds=n_bounds, done=done)


def _finish(job: _Job, journal: _Journal, tokens: BinaryIO, bounds: Path) -> None:
    """Put bounds and header to the tokens."""
    tokens.write(bytes(-journal.tokens % 8))
    tokens.write(bytes(8))  # the first document begins at 0
    with bounds.open("rb") as file:
        shutil.copyfileobj(file, tokens, 1 << 20)
    n_tokens = journal.tokens // (4 if job.wide else 2)
    tokens.seek(0)
    tokens.write(header(n_tokens, journal.bounds // 8 + 1, job.wide, job.about))
    _flush(tokens)


def _encoded(job: _Job, start: Place) -> Iterator[tuple[list[Fragment], bytes, list[int]]]:
    """Batches of fragments with their tokens, in order; some are encoded ahead."""
    encode = _Encoder(job)
    waiting: deque[tuple[list[Fragment], Future[tuple[bytes, list[int]]]]] = deque()
    with ThreadPoolExecutor(_AHEAD) as pool:
        try:
            for fragments in _batches(job.corpus.fragments(start, Seams(job.tokenizer))):
                waiting.append((fragments, pool.submit(encode, fragments)))
                if len(waiting) > _AHEAD:
                    done, future = waiting.popleft()
                    yield done, *future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, *future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _batches(fragments: Iterator[Fragment]) -> Iterator[list[Fragment]]:
    batch: list[Fragment] = []
    size = 0
    for fragment in fragments:
        batch.append(fragment)
        size += len(fragment.text) + 64
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Encoder:
    """Fragments to the bytes of their tokens."""

    def __init__(self, job: _Job) -> None:
        self._sides = [_Side(side) for side in (job.tokenizer, job.tokenizer.target)]
        self._ends = [(array("I", begin), array("I", end)) for begin, end in job.ends]
        self._dtype = np.dtype("<u4" if job.wide else "<u2")

    def __call__(self, fragments: list[Fragment]) -> tuple[bytes, list[int]]:
        """The tokens of all fragments, and how many each has."""
        found = [
            side([fragment.text for fragment in fragments if fragment.of_target == of_target])
            for of_target, side in enumerate(self._sides)
        ]
        ids, counts = array("I"), []
        for fragment in fragments:
            before = len(ids)
            begin, end = self._ends[fragment.of_target]
            if fragment.first:
                ids.extend(begin)
            ids.extend(next(found[fragment.of_target]))
            if fragment.last:
                ids.extend(end)
            counts.append(len(ids) - before)
        return np.frombuffer(ids, np.uint32).astype(self._dtype).tobytes(), counts


class _Side:
    """Texts to ids, as one tokenizer has them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = tokenizer.backend
        self._by_bytes = _ids_are_bytes(tokenizer)
        self._added = [token.content for token in self._backend.get_added_tokens_decoder().values()]

    def __call__(self, texts: list[str]) -> Iterator[array[int]]:
        if self._by_bytes and not any(token in text for token in self._added for text in texts):
            for text in texts:
                yield array("I", np.frombuffer(text.encode(), np.uint8).astype(np.uint32).tobytes())
            return
        for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False):
            yield array("I", encoding.ids)


def _ids_are_bytes(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a text are its bytes, so that nothing has to be looked up."""
    state = json.loads(tokenizer.backend.to_str())
    model, before = state["model"], state["pre_tokenizer"] or {}
    return (
        model["type"] == "BPE"
        and model["vocab"] == BYTE_OF_SIGN
        and not model["merges"]
        and state["normalizer"] is None
        and before.get("type") == "ByteLevel"
        and not before["add_prefix_space"]
    )


def _check_room(job: _Job, journal: _Journal) -> None:
    """Say before the work that the disk is too small for it."""
    total = job.corpus.n_bytes
    if total is None:
        return
    sample, size = _Encoder(job), 0
    for batch in _batches(job.corpus.fragments()):
        encoded, _ = sample(batch[:16])
        size = sum(fragment.n_bytes for fragment in batch[:16])
        share = (len(encoded) + 8 * len(batch[:16])) / max(1, size)
        needed = int(share * max(0, total - journal.done)) + (1 << 20)
        free = shutil.disk_usage(job.folder).free
        if needed > free:
            raise OSError(
                f"not enough room in {job.folder}: the tokens of {job.corpus.name} take about "
                f"{needed / 1e6:,.0f} MB, {free / 1e6:,.0f} MB are free"
            )
        return


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process at a time tokenises into a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise type(error)(
            error.errno, f"can't write there: {error.strerror}", str(folder)
        ) from error
    with lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows
            pass
        except BlockingIOError:
            raise ValueError(
                f"another process is tokenising into {folder}; wait for it, or give another folder"
            ) from None
        yield


def _opened(path: Path) -> BinaryIO:
    return path.open("r+b" if path.exists() else "w+b")


def _flush(*files: BinaryIO) -> None:
    for file in files:
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
