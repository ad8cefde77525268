"""What a command prints: results on standard output, everything else on standard error."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


def show(renderable: "RenderableType") -> None:
    """Print; without a terminal, without colour and without spaces at the ends of lines."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        console.print(renderable)
        return
    with console.capture() as capture:
        console.print(renderable)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def say(message: str) -> None:
    print(message, file=sys.stderr)
