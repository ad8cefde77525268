"""A corpus to a token file, against `tokenizers`' own `encode_batch_fast`: speed and memory.

    python benchmarks/tokenise.py

The text is 100 MB made from Python's reference manual: pieces of it in random order, in which
one word of five is another one, and two of five of those a word that never was, so that a cache
of words helps no more than it does in real text. Both sides use one tokenizer, a BPE of 8,192
ids trained on that text.

The peer gets the documents ready in memory, in batches of 256, and its time is that of
`encode_batch_fast` alone: its tokens are counted and dropped. Ours is the time of the whole:
reading the file, cutting, encoding, and a finished token file on the disk. Memory is the peak of
a child process above what it held before, for 10 MB and for the whole, from .jsonl and from one
long .txt.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from jumok.tokens import Tokenizer
from jumok.training.corpus import read_corpus
from jumok.training.new_tokenizer import new_tokenizer
from jumok.training.tokenise import tokenise
from timing import interleaved, peak_memory

MEGABYTES = 100
BATCH = 256


def varied(size: int) -> Iterator[str]:
    """Documents of ``size`` bytes together, about."""
    chance = random.Random(0)
    words = "\n".join(str(text) for text in read_corpus("topics").documents()).split(" ")
    vocabulary = sorted({word for word in words if word.isalpha()})
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    made = 0
    while made < size:
        start = chance.randrange(len(words) - 2000)
        document = words[start : start + chance.randint(100, 2000)]
        for place in range(len(document)):
            draw = chance.random()
            if draw < 0.08:
                length = chance.randint(2, 11)
                document[place] = "".join(chance.choices(letters, k=length))
            elif draw < 0.2:
                document[place] = chance.choice(vocabulary)
        text = " ".join(document)
        made += len(text.encode())
        yield text


def written(folder: Path, size: int) -> dict[str, Path]:
    """The same documents as JSON lines and as one text."""
    paths = {kind: folder / f"{size // 1_000_000}.{kind}" for kind in ("jsonl", "txt")}
    with paths["jsonl"].open("w") as lines, paths["txt"].open("w") as text:
        for document in varied(size):
            lines.write(json.dumps({"text": document}) + "\n")
            text.write(document + "\n")
    return paths


def prepare(path: Path, tokenizer: Path) -> tuple[Any, Tokenizer, Path]:
    """What a child process has ready before its memory is measured."""
    return read_corpus(path), Tokenizer.from_folder(tokenizer), Path(tempfile.mkdtemp())


def ours(state: tuple[Any, Tokenizer, Path]) -> int:
    corpus, tokenizer, folder = state
    n_tokens = tokenise(corpus, tokenizer, folder).train.n_tokens
    shutil.rmtree(folder)
    return n_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["speed", "memory"])
    options = parser.parse_args()
    size = options.megabytes * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = written(folder, size)
        tokenizer = new_tokenizer("bpe", read_corpus(paths["jsonl"]), 8192, folder / "bpe")
        if options.only != "memory":
            speed(paths, tokenizer, folder, size, options.rounds)
        if options.only != "speed":
            memory(folder, paths, size)


def speed(
    paths: dict[str, Path], tokenizer: Tokenizer, folder: Path, size: int, rounds: int
) -> None:
    documents = [str(text) for text in read_corpus(paths["jsonl"]).documents()]
    counted: dict[str, int] = {}

    def peer() -> None:
        encode = tokenizer.backend.encode_batch_fast
        counted["encode_batch_fast"] = sum(
            len(encoding)
            for place in range(0, len(documents), BATCH)
            for encoding in encode(documents[place : place + BATCH], add_special_tokens=False)
        )

    def mine(kind: str) -> None:
        target = folder / "tokens"
        shutil.rmtree(target, ignore_errors=True)
        tokens = tokenise(read_corpus(paths[kind]), tokenizer, target).train
        counted[kind] = tokens.n_tokens - len(tokens)  # without the end-of-text tokens

    sides = {
        "encode_batch_fast": peer,
        ".jsonl": lambda: mine("jsonl"),
        ".txt": lambda: mine("txt"),
    }
    timings = interleaved(sides, rounds)
    assert counted["jsonl"] == counted["encode_batch_fast"], counted
    print(f"{size / 1e6:.0f} MB, {len(documents):,} documents; tokenizers {tokenizers.__version__}")
    print(
        "seconds of each round:", {k: [round(s, 2) for s in v] for k, v in timings.seconds.items()}
    )
    for side, seconds in timings.medians.items():
        ratio = timings.ratio("encode_batch_fast", side)
        print(f"{side:18s} {seconds:7.2f} s   {size / seconds / 1e6:6.2f} MB/s   speed {ratio:.2f}")
    print("wanted: at least 0.9 of the speed of encode_batch_fast")


def memory(folder: Path, paths: dict[str, Path], size: int) -> None:
    small = written(folder, 10_000_000)
    for kind in paths:
        for path, megabytes in ((small[kind], 10), (paths[kind], size // 1_000_000)):
            peak, before = peak_memory(prepare, ours, path, folder / "bpe")
            print(
                f".{kind:6s} {megabytes:4d} MB: {(peak - before) / 1e6:6.0f} MB above the "
                f"{before / 1e6:.0f} MB before"
            )


if __name__ == "__main__":
    main()
