"""What a person types in a conversation, and Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from jumok.cli.ending import Refusal

_PROMPT, _MORE = "> ", "… "
_BLOCK = '"""'


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def typed_messages() -> Iterator[str]:
    """Messages from a terminal, until Ctrl-D.

    A pasted text of several lines is one message where the terminal and readline tell pasted
    lines from typed ones; a line that ends with a backslash goes on in the next, and three
    quotation marks begin and end a message of several lines.

    Raises:
        KeyboardInterrupt: Ctrl-C; what stands in the line is dropped.
    """
    _edit_lines()
    while True:
        try:
            line = input(_PROMPT)
            lines = [line]
            if line.lstrip().startswith(_BLOCK):
                lines = [line.lstrip().removeprefix(_BLOCK)]
                while not lines[-1].rstrip().endswith(_BLOCK):
                    lines.append(input(_MORE))
                lines[-1] = lines[-1].rstrip().removesuffix(_BLOCK)
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(input(_MORE))
        except EOFError:
            return
        except UnicodeDecodeError as error:
            print(f"That was no text: {error.reason}.")
            continue
        message = "\n".join(lines).strip()
        if message:
            yield message


def _edit_lines() -> None:
    """Let `input` edit lines and take pasted ones for one message."""
    with contextlib.suppress(ImportError):  # there is no readline on Windows
        import readline

        if "libedit" not in (readline.__doc__ or ""):
            readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off


def piped_messages() -> Iterator[str]:
    """Messages from a pipe or a file, one a line; blank lines are none."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            message = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise Refusal(
                f"line {number} is not UTF-8 text: byte {error.start:,} is no letter"
            ) from error
        if message:
            yield message


class Interrupts:
    """While it is open, the first Ctrl-C is only noted; the next one is a KeyboardInterrupt."""

    def __init__(self) -> None:
        self.noted = False

    def __enter__(self) -> Interrupts:
        self._before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted:
            raise KeyboardInterrupt
        self.noted = True
