"""The folder of a run: whose it is, and that it can be written, before any work is done."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from jumok.training.settings import Training

__all__ = ["claim"]

_SETTINGS = "training.json"


@contextmanager
def claim(training: Training, is_main: bool = True) -> Iterator[None]:
    """Take the folder for this run, as long as it lasts.

    Args:
        training: its settings are written there; those of an earlier start must agree.
        is_main: of several processes, only the main one writes.

    Raises:
        ValueError: there is another run, something else, or the same run in another process.
        OSError: it can't be written.
    """
    folder = training.folder
    if not is_main:
        yield
        return
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out={training.out!r} is a file; name a folder for the run")
    folder.mkdir(parents=True, exist_ok=True)
    _check(training, folder)
    with tempfile.TemporaryFile(dir=folder):  # says why, where it can't be written
        pass
    lock = _locked(folder)
    try:
        part = folder / f".{_SETTINGS}.{os.getpid()}"
        try:
            part.write_text(training.to_json(), "utf-8")
            part.replace(folder / _SETTINGS)
        finally:
            part.unlink(missing_ok=True)
        yield
    finally:
        lock.close()


def _check(training: Training, folder: Path) -> None:
    """The run that is there, if any, is the same."""
    path = folder / _SETTINGS
    if not path.is_file():
        others = sorted(
            one.name
            for one in folder.iterdir()
            if not one.name.startswith(".") and one.name != "data"
        )
        if others:
            raise ValueError(
                f"out={training.out!r} holds other things ({', '.join(others[:3])}"
                f"{', …' if len(others) > 3 else ''}) and no run; name a folder of its own"
            )
        return
    if not any((folder / "snapshots").glob("step-*")):  # nothing has been learned with them
        return
    try:
        before = Training.from_json(path.read_text("utf-8"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); name another folder") from error
    different = training.differences(before)
    if different:
        said = "; ".join(
            f"{name} was {_value(was)} and is now {_value(now)}"
            for name, (was, now) in different.items()
        )
        raise ValueError(
            f"{training.out} holds a run with other settings: {said}. Go on with its own "
            f"({before.command}), or name another folder"
        )


def _value(value: object) -> str:
    return "not given" if value is None else repr(value)


def _locked(folder: Path) -> IO[str]:
    """A file that one process at a time can hold."""
    lock = (folder / ".lock").open("w")
    try:
        import fcntl
    except ImportError:  # Windows has none
        return lock
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ValueError(f"{folder} is in use: the same run is on its way already") from None
    except OSError:
        pass  # a file system without locks
    return lock
