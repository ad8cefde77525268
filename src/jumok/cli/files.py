"""Files that a command writes: refused before the work, put in place at once."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jumok.cli.ending import Refusal
from jumok.cli.printing import say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jumok.lens.recording import Recording

PICTURES = (".png", ".svg", ".pdf")
KEPT = ("qkv", "qk")
TYPES = ("bfloat16", "float16")


def check_picture(path: Path) -> None:
    if path.suffix.lower() not in PICTURES:
        raise Refusal(f"--png {path}: the name must end in {', '.join(PICTURES)}")
    import matplotlib  # noqa: F401  (say that it is missing before the model runs)


def check_writable(*paths: Path | None) -> None:
    """Refuse before the work, not after it, what can't be written."""
    for path in paths:
        if path is None:
            continue
        folder = path.parent
        if path.is_dir():
            raise Refusal(f"can't write {path}: it is a folder")
        if not folder.is_dir():
            raise Refusal(f"can't write {path}: there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            raise Refusal(f"can't write {path}: no permission to write in {folder}")


def write(path: Path, write: Callable[[str], object]) -> None:
    """Let ``write`` fill a file beside ``path``, then put it in place at once."""
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(handle)
        write(name)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except OSError as error:
        raise Refusal(f"can't write {path}: {error.strerror or error}") from error
    finally:
        if name is not None:
            Path(name).unlink(missing_ok=True)  # only there if something went wrong


def kept_options(keep: str | None, dtype: str | None, save: Path | None) -> dict[str, Any]:
    """The options of `watch` for --keep and --dtype, which make a saved recording smaller."""
    for name, value, known in (("--keep", keep, KEPT), ("--dtype", dtype, TYPES)):
        if value is not None and value not in known:
            raise Refusal(f"{name} {value}: choose {' or '.join(known)}")
        if value is not None and save is None:
            raise Refusal(f"{name} {value} is about the file of a recording; it goes with --save")
    options: dict[str, Any] = {} if keep is None else {"keep": keep}
    if dtype is not None:
        import torch

        options["dtype"] = getattr(torch, dtype)
    return options


def save_recording(recording: "Recording", path: Path) -> None:
    """Save a recording with the words that it knows."""
    try:
        recording.save(path)
    except OSError as error:
        raise Refusal(f"can't write {path}: {error.strerror or error}") from error
    say(f"wrote {path}")


def draw(figure: "Figure", path: Path) -> None:
    """Save a picture in the format that its name says."""
    from jumok.view.fonts import quietly

    with quietly():
        write(path, lambda part: figure.savefig(part, format=path.suffix[1:].lower()))
    say(f"wrote {path}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
