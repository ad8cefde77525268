"""Tokens of a corpus in one file that is mapped into memory, not read.

The file is a safetensors file: ``tokens`` (uint16, or uint32 for a vocabulary above 65,536 ids),
all documents one after the other, and ``bounds`` (int64, documents + 1), where each begins. Its
metadata says what it was made from.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jumok.training.permutation import Permutation

__all__ = ["HEADER", "TokenFile", "Tokens", "header"]

HEADER = 4096  # bytes; fixed, so that tokens can be written before their number is known
_NAMES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "I64": np.int64}
_FEWEST = 4  # documents that a validation part is chosen from; below that it is the end

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Tokens:
    """A corpus as tokens.

    Args:
        train: what is learnt from.
        validation: what is only looked at; without tokens if none was asked for.
    """

    train: TokenFile
    validation: TokenFile


class TokenFile:
    """Documents of a token file, all of them or some, one after the other.

    ``len`` is how many documents (of pairs: source and target each count).

    Attributes:
        n_tokens: of all the documents, with the special tokens at their ends.
        about: what the file was made from.
    """

    def __init__(self, path: str | Path) -> None:
        """Open a file.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is no token file, or damaged.
        """
        self.path = Path(path)
        self.about, arrays = _opened(self.path)
        self._tokens, self._bounds = arrays["tokens"], arrays["bounds"]
        self._choose(np.array([[0, len(self._bounds) - 1]]), None)

    @property
    def pairs(self) -> bool:
        """Documents take turns: a source, its target."""
        return self.about["pairs"] == "true"

    def __len__(self) -> int:
        return int(self._document_starts[-1])

    def __repr__(self) -> str:
        return f"TokenFile({self.path.name}: {self.n_tokens:,} tokens, {len(self):,} documents)"

    def read(self, start: int, stop: int) -> Numbers:
        """Tokens ``start`` … ``stop`` − 1; after the last one comes the first again."""
        parts = [self._tokens[begin:end] for begin, end, _ in self._pieces(start, stop)]
        return np.concatenate(parts or [self._tokens[:0]]).astype(np.int64)

    def documents_at(self, start: int, stop: int) -> Numbers:
        """The number of the document of each token; after the last document it goes on rising."""
        parts = []
        for begin, end, number in self._pieces(start, stop):
            low = int(np.searchsorted(self._bounds, begin, side="right")) - 1
            high = int(np.searchsorted(self._bounds, end, side="left"))
            inside = self._bounds[low + 1 : high]
            which = np.searchsorted(inside, np.arange(begin, end), side="right")
            parts.append(number + low + which)
        return np.concatenate(parts)

    def document(self, number: int) -> Numbers:
        """The tokens of a document."""
        begin, end = self._extent(np.array([number]))
        return np.asarray(self._tokens[int(begin[0]) : int(end[0])]).astype(np.int64)

    def lengths(self, numbers: Numbers) -> Numbers:
        """How many tokens some documents have."""
        begin, end = self._extent(numbers)
        size: Numbers = end - begin
        return size

    def split(self, share: float) -> Tokens:
        """A part for training and one for validation; the same every time.

        Of many documents, those for validation are drawn without regard to what is in them. Of
        few, or where those drawn have far more or fewer tokens than the share, it is the end of
        the file, cut between two documents if there is a border near. Pairs stay together.

        Args:
            share: of the documents, from 0 to below 1, that is for validation.

        Raises:
            ValueError: not a share.
        """
        if not 0 <= share < 1:
            raise ValueError(f"validation={share}: a share of the corpus, from 0 to below 1")
        if share == 0:
            return Tokens(self, self._part(np.zeros((0, 2), np.int64)))
        step = 2 if self.pairs else 1
        units = len(self) // step
        drawn = round(share * units)
        if drawn >= _FEWEST:
            chosen = np.sort(Permutation(units, (0, units))(np.arange(drawn)))
            size = int(self.lengths_of_units(chosen, step).sum())
            if share / 2 <= size / self.n_tokens <= share * 2:
                runs = np.stack([chosen, chosen + 1], axis=1)
                rest = np.stack([np.append(0, chosen + 1), np.append(chosen, units)], axis=1)
                rest = rest[rest[:, 0] < rest[:, 1]]
                return Tokens(self._part(rest * step), self._part(runs * step))
        return self._cut(share, step, units)

    def lengths_of_units(self, numbers: Numbers, step: int) -> Numbers:
        """Tokens of documents, or of pairs of them (``step`` 2)."""
        size: Numbers = self._bounds[(numbers + 1) * step] - self._bounds[numbers * step]
        return size

    # Below: which documents these are.

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Stretches of the file that hold some tokens: where each begins and ends.

        And what is to be added to the number that a document has in the file.
        """
        while start < stop:
            rounds, place = divmod(start, self.n_tokens)
            run = int(np.searchsorted(self._starts, place, side="right")) - 1
            begin = int(self._first[run]) + place - int(self._starts[run])
            size = min(stop - start, int(self._starts[run + 1]) - place)
            number = int(self._document_starts[run]) - int(self._documents[run, 0])
            yield begin, begin + size, number + rounds * len(self)
            start += size

    def _part(self, documents: Numbers, cut: tuple[int, int] | None = None) -> TokenFile:
        part = object.__new__(TokenFile)
        part.path, part.about = self.path, self.about
        part._tokens, part._bounds = self._tokens, self._bounds
        part._choose(documents, cut)
        return part

    def _choose(self, documents: Numbers, cut: tuple[int, int] | None) -> None:
        """Take runs of documents (first, after the last); of a single run only ``cut`` tokens."""
        self._documents = documents.astype(np.int64)
        self._cut_at = cut
        begin, end = self._bounds[documents[:, 0]], self._bounds[documents[:, 1]]
        if cut is not None:
            begin, end = np.array([cut[0]]), np.array([cut[1]])
        self._first = np.asarray(begin).astype(np.int64)
        self._starts = np.append(0, np.cumsum(end - begin))
        self._document_starts = np.append(0, np.cumsum(documents[:, 1] - documents[:, 0]))
        self.n_tokens = int(self._starts[-1])

    def _extent(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Where documents begin and end in the file."""
        run = np.searchsorted(self._document_starts, numbers, side="right") - 1
        found = self._documents[run, 0] + numbers - self._document_starts[run]
        begin, end = self._bounds[found], self._bounds[found + 1]
        if self._cut_at is not None:
            begin, end = np.clip(begin, *self._cut_at), np.clip(end, *self._cut_at)
        return np.asarray(begin), np.asarray(end)

    def _cut(self, share: float, step: int, units: int) -> Tokens:
        """The end of the file for validation."""
        size = max(1, round(share * self.n_tokens))
        place = self.n_tokens - size
        if step == 2:
            pair = min(max(1, units - max(1, round(share * units))), units)
            every = np.array([[0, pair * 2]]), np.array([[pair * 2, units * 2]])
            return Tokens(self._part(every[0]), self._part(every[1]))
        after = int(np.searchsorted(self._bounds, place, side="left"))
        near = min((after, after - 1), key=lambda i: abs(int(self._bounds[i]) - place))
        border = int(self._bounds[near])
        if 0 < border < self.n_tokens and abs(border - place) <= size // 2:
            parts = np.array([[0, near]]), np.array([[near, units]])
            return Tokens(self._part(parts[0]), self._part(parts[1]))
        document = after - 1  # the one that is cut
        place = max(1, place)
        return Tokens(
            self._part(np.array([[0, document + 1]]), (0, place)),
            self._part(np.array([[document, units]]), (place, self.n_tokens)),
        )


def header(n_tokens: int, n_bounds: int, wide: bool, about: Mapping[str, str]) -> bytes:
    """The first `HEADER` bytes of a token file."""
    size = n_tokens * (4 if wide else 2)
    sizes = {"tokens": size, "padding": -size % 8, "bounds": 8 * n_bounds}
    kinds = {"tokens": "U32" if wide else "U16", "padding": "U8", "bounds": "I64"}
    shapes = {"tokens": n_tokens, "padding": -size % 8, "bounds": n_bounds}
    entries: dict[str, Any] = {"__metadata__": dict(about)}
    place = 0
    for name, size in sizes.items():
        entries[name] = {
            "dtype": kinds[name],
            "shape": [shapes[name]],
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(entries).encode()
    assert len(text) <= HEADER - 8
    return struct.pack("<Q", HEADER - 8) + text.ljust(HEADER - 8)


def _opened(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """What the metadata says, and the arrays."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(HEADER)
    try:
        entries = json.loads(start[8:])
        about = entries.pop("__metadata__")
        ends = [entry["data_offsets"][1] for entry in entries.values()]
        if struct.unpack("<Q", start[:8])[0] != HEADER - 8 or HEADER + max(ends) != size:
            raise ValueError("its length is not what it says")
        arrays = {name: _mapped(path, entry) for name, entry in entries.items()}
        return about, {"tokens": arrays["tokens"], "bounds": arrays["bounds"]}
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise ValueError(
            f"{path} is damaged or no token file ({error}); delete it, and it is made anew"
        ) from error


def _mapped(path: Path, entry: dict[str, Any]) -> Any:
    (size,), kind = entry["shape"], np.dtype(_NAMES[entry["dtype"]]).newbyteorder("<")
    if not size:
        return np.zeros(0, kind)
    offset = HEADER + entry["data_offsets"][0]
    return np.memmap(path, kind, "r", offset, (size,)).view(np.ndarray)
