"""What a command is doing, on standard error, where that is a terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator

Tell = Callable[[str], None]


@contextlib.contextmanager
def telling(what: str) -> Iterator[Tell]:
    """Show ``what`` is being done until it is; call the result to say something else."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield status.update
