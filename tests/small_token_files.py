"""Token files for tests: tokens that are given, without a corpus or a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jumok.training.token_file import TokenFile, header


def token_file(
    folder: Path, documents: Sequence[Sequence[int]], family: str = "gpt", wide: bool = False
) -> TokenFile:
    """A file with these documents; of pairs, sources and targets take turns."""
    lengths = [len(document) for document in documents]
    tokens = np.concatenate([np.asarray(d, "<u4" if wide else "<u2") for d in documents])
    bounds = np.append(0, np.cumsum(lengths)).astype("<i8")
    about = {"family": family, "pairs": "true" if family == "seq2seq" else "false"}
    start = header(len(tokens), len(bounds), wide, about)
    path = folder / "tokens.safetensors"
    data = tokens.tobytes()
    path.write_bytes(start + data + bytes(-len(data) % 8) + bounds.tobytes())
    return TokenFile(path)


def numbered(lengths: Sequence[int]) -> list[list[int]]:
    """Documents of these lengths in which no token comes twice."""
    ends = np.cumsum(lengths)
    return [
        list(range(end - length, end)) for end, length in zip(ends.tolist(), lengths, strict=True)
    ]
