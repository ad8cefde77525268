"""What a user gives: a text, on the command line or in a file, and ranges of layers."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from jumok.cli.ending import Refusal

MOST_BYTES = 4_000_000  # of a text; no model here reads as much

Model = Annotated[
    str, typer.Option("--model", "-m", help="minilm, smollm2, a model's folder or a .gguf file.")
]


def given_text(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise Refusal("give a text or --file, one of them")
    if file is not None:
        text = file_text(file)
    assert text is not None
    check_text(text, "the text" if file is None else file)
    return text


def file_text(file: str) -> str:
    """The text of a file, or of stdin (-): UTF-8, line ends as \\n, none at its end."""
    try:
        with sys.stdin.buffer if file == "-" else open(file, "rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise Refusal(f"can't read {file}: {error.strerror or error}") from error
    if len(data) > MOST_BYTES:
        raise Refusal(
            f"{file} is larger than {MOST_BYTES / 1e6:.0f} MB, more than a model reads; shorten it"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(f"{file} is not UTF-8 text: byte {error.start:,} is no letter") from error
    return text.replace("\r\n", "\n").rstrip("\n")


def check_text(text: str, name: str) -> None:
    from jumok.tokens import has_words

    if not text.strip():
        raise Refusal(f"{name} is empty")
    if not has_words(text):
        raise Refusal(f"{name} has no word, only {quoted(text)}")


def quoted(text: str) -> str:
    from jumok.tokens import shortened, visible

    return f"“{visible(shortened(text))}”"


@contextlib.contextmanager
def named(place: str) -> Iterator[None]:
    """Let what is refused inside say in which text."""
    try:
        yield
    except (Refusal, ValueError) as error:
        raise Refusal(f"{place}: {error}") from error


def layer_range(text: str) -> list[int]:
    parts = text.strip().split("-")
    if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
        raise Refusal(f"--layers {text}: write A-B, two layers counted from 0, or one number")
    first, last = int(parts[0]), int(parts[-1])
    if first > last:
        raise Refusal(f"--layers {text}: the first layer comes after the last")
    return list(range(first, last + 1))
