"""A corpus: documents, one after the other, from a file, a folder, Python's own manual, a task.

A document is a text, or a pair (source, target) where a model shall translate. Long documents
come in fragments, so that one book of ten gigabytes needs no more memory than a poem, and each
fragment says at which place to go on after it, so that reading can be taken up again there.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "Corpus",
    "Fragment",
    "Place",
    "Tell",
    "Texts",
    "at_a_line_end",
    "digest_of",
    "read_corpus",
]

Tell = Callable[[str, int, "int | None"], None]
"""How long work says how far it is: ``tell(what, done, total)``, in bytes."""

Cut = Callable[[str], tuple[int, int]]
"""Where to cut a text that is too long: it ends at the first number, and goes on at the second."""

FRAGMENT = 1 << 16  # characters that a fragment has at most
AHEAD = 64  # characters after it that are known when it is cut


@dataclass(frozen=True)
class Place:
    """Where to go on reading a corpus."""

    file: int = 0
    offset: int = 0
    """Bytes of a text, lines of JSON; rows of Parquet; documents of anything else."""
    line: int = 0
    """Lines before ``offset``."""


@dataclass(frozen=True)
class Fragment:
    """A document, or a part of one.

    Args:
        text: what is in it.
        first: whether a document begins with it.
        last: whether one ends with it.
        after: the place after it; `None` where reading can't go on from there.
        n_bytes: how much of the corpus it takes, for progress.
        of_target: it is of the second side of a pair.
    """

    text: str
    first: bool
    last: bool
    after: Place | None
    n_bytes: int
    of_target: bool = False


class Corpus(ABC):
    """Documents, in an order that never changes.

    Attributes:
        name: for people.
        pairs: documents are (source, target), not texts. Their fragments take turns then.
        n_bytes: how much there is to read, about; `None` if that isn't known.
    """

    name: str
    pairs: bool
    n_bytes: int | None

    @abstractmethod
    def fragments(self, start: Place | None = None, cut: Cut | None = None) -> Iterator[Fragment]:
        """All documents from ``start`` on, the long ones in parts.

        Blank documents, and pairs of which a side is blank, are left out.

        Args:
            start: as `Fragment.after` has said; from the beginning if not given.
            cut: where to cut long texts; at the end of a line if not given.

        Raises:
            ValueError: a file, a line or a row can't be read; the message says which.
        """

    @abstractmethod
    def digest(self, known: dict[str, list[Any]] | None = None, tell: Tell | None = None) -> str:
        """A fingerprint of everything in it; the files are read through for that.

        Args:
            known: digests of files by name, with size and time of change; those of files that
                haven't changed since are taken from here, and new ones put here.
            tell: told how far it is.

        Raises:
            ValueError: a file is no text.
        """

    @property
    def fingerprint(self) -> str:
        """Changes when the corpus does."""
        return self.digest()

    def documents(self) -> Iterator[str | tuple[str, str]]:
        """Whole documents: texts, or (source, target) pairs."""
        parts: list[str] = []
        sides: list[str] = []
        for fragment in self.fragments():
            parts.append(fragment.text)
            if not fragment.last:
                continue
            text, parts = "".join(parts), []
            if not self.pairs:
                yield text
                continue
            sides.append(text)
            if len(sides) == 2:
                yield sides[0], sides[1]
                sides = []


class Texts(Corpus):
    """Documents that are in memory.

    Args:
        name: for people.
        texts: the documents, all of them texts or all of them (source, target) pairs.
    """

    def __init__(self, name: str, texts: Sequence[str] | Sequence[tuple[str, str]]) -> None:
        self.name, self._texts = name, texts
        self.pairs = bool(texts) and not isinstance(texts[0], str)
        self.n_bytes = sum(len(side.encode()) for text in texts for side in _sides(text))

    def fragments(self, start: Place | None = None, cut: Cut | None = None) -> Iterator[Fragment]:
        for number in range(start.offset if start else 0, len(self._texts)):
            yield from fragments_of(self._texts[number], Place(0, number + 1), cut)

    def digest(self, known: dict[str, list[Any]] | None = None, tell: Tell | None = None) -> str:
        found = hashlib.blake2b(digest_size=16)
        for text in self._texts:
            for side in _sides(text):
                data = side.encode()
                found.update(len(data).to_bytes(8, "little") + data)
        return found.hexdigest()


def read_corpus(corpus: str | Path, *, pairs: bool = False, fields: Sequence[str] = ()) -> Corpus:
    """The corpus of that name.

    Args:
        corpus: a file (``.txt`` and ``.md``: one document; ``.jsonl``: one a line;
            ``.parquet``: one a row), a folder with files of one of these kinds (and what is in
            its folders), "topics" (the reference manual that Python carries, about 0.5 MB of
            English), or a task: "task:copy", "task:copy:5000" for so many examples,
            "task:copy:5000:1" for another seed than 0. See `jumok.training.tasks.TASKS`.
        pairs: documents are (source, target).
        fields: of ``.jsonl`` and ``.parquet``: the name of the text, or of source and target,
            where they are not called "text", or "source" and "target".

    Raises:
        ValueError: there is no such corpus, it is empty, or has nothing of what was asked for.
        FileNotFoundError: no such file or folder.
    """
    from jumok.training.files import Files
    from jumok.training.tasks import Task

    name = str(corpus)
    if len(fields) not in (0, 1 + pairs):
        wanted = "two fields, of source and target" if pairs else "one field, of the text"
        raise ValueError(f"fields {', '.join(fields)}: name {wanted}")
    if name == "topics":
        if pairs:
            raise ValueError("topics has texts, not pairs; task:dates has pairs")
        return _topics()
    if name.startswith("task:"):
        return Task.named(name, pairs)
    path = Path(corpus).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"there is no corpus {name}: give a .txt, .md, .jsonl or .parquet file, a folder of "
            f"them, topics, or a task such as task:copy"
        )
    return Files(path, pairs, tuple(fields))


def digest_of(corpus: Corpus, folder: Path, tell: Tell | None = None) -> str:
    """`Corpus.fingerprint`; what is known of files that don't change is kept in ``folder``."""
    path = folder / "digests.json"
    try:
        known = dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        known = {}
    before = json.dumps(known)
    found = corpus.digest(known, tell)
    if (after := json.dumps(known)) != before:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".digests.json.{os.getpid()}"
        part.write_text(after, "utf-8")
        part.replace(path)
    return found


def _topics() -> Texts:
    from pydoc_data.topics import topics

    return Texts("topics", [topics[name] for name in sorted(topics)])


def fragments_of(
    document: str | tuple[str, str], after: Place, cut: Cut | None
) -> Iterator[Fragment]:
    """The fragments of a document that is in memory; reading goes on only after its last."""
    sides = _sides(document)
    if not all(side.strip() for side in sides):
        return
    for number, side in enumerate(sides, start=1):
        text, first, of_target = side, True, number == 2
        while len(text) > FRAGMENT:
            stop, begin = cut_of(text, cut)
            size = len(text[:stop].encode())
            yield Fragment(text[:stop], first, False, None, size, of_target)
            text, first = text[begin:], False
        place = after if number == len(sides) else None
        yield Fragment(text, first, True, place, len(text.encode()), of_target)


def cut_of(text: str, cut: Cut | None) -> tuple[int, int]:
    """Where to cut a text of more than `FRAGMENT` characters."""
    return (cut or at_a_line_end)(text[: FRAGMENT + AHEAD])


def at_a_line_end(text: str) -> tuple[int, int]:
    """The last place, in the second half of a fragment, where a line or else a word ends."""
    for sign in "\n ":
        found = text.rfind(sign, FRAGMENT // 2, FRAGMENT)
        if found > 0:
            return found, found
    return FRAGMENT, FRAGMENT


def _sides(document: str | tuple[str, str]) -> tuple[str, ...]:
    return (document,) if isinstance(document, str) else document
