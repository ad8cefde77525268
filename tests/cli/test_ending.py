"""How a command ends, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch

import jumok
from jumok.cli import main


def test_version_and_help(run: Any) -> None:
    assert run("--version")[:2] == (0, f"jumok {jumok.__version__}\n")
    code, out, _ = run("--help")
    assert code == 0
    for command in ("look", "generate", "report", "models"):
        assert command in out
    assert "--against" in run("look", "--help")[1]
    assert run()[:2] == (0, out)


def test_help_and_errors_of_use_load_nothing_heavy() -> None:
    program = (
        "import sys\nfrom jumok.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'tokenizers'} & set(sys.modules)))"
    )
    for arguments in (["--help"], ["look", "--layers", "x", "a"], ["look"]):
        out = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
        ).stdout
        assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["look"], "give a text or --file"),
        (["look", "a", "--file", "b"], "give a text or --file"),
        (["look", ""], "the text is empty"),
        (["look", " \n "], "the text is empty"),
        (["look", "a", "--against", " "], "the text after --against is empty"),
        (["look", "\u200b\x01\0"], "the text has no word, only “\\u{200b}\\u{1}\\u{0}”"),
        (["look", "a", "--against", "\x01"], "the text after --against has no word"),
        (["report", "\u200b"], "the text has no word"),
        (["report", "a", "--file", "b"], "give a text or --file"),
        (["generate", "a", "--seed", "9" * 20], f"--seed {'9' * 20}: a whole number from 0 to 92"),
        (["generate", "a", "--seed", "-1"], "--seed -1: a whole number from 0 to"),
        (["look", "a", "--layers", "2-1"], "--layers 2-1: the first layer comes after"),
        (["look", "a", "--layers", "x"], "--layers x: write A-B"),
        (["look", "a", "--word", "a", "--token", "0"], "not both"),
        (["look", "a", "--against", "b", "--token", "0"], "choose a --word"),
        (["look", "a", "--token", "x"], "--token"),
        (["look", "a", "--bogus"], "--bogus"),
        (["bogus"], "bogus"),
        (["look", "--file", "/nowhere/x.txt"], "can't read /nowhere/x.txt: No such file"),
        (["look", "a", "--png", "a.jpg"], "a.jpg: the name must end in .png, .svg, .pdf"),
        (["look", "a", "--png", "/nowhere/a.png"], "there is no folder /nowhere"),
        (["look", "a", "--save", "/"], "can't write /: it is a folder"),
        (["look", "a", "--model", "nope"], "no model 'nope'"),
        (["generate", ""], "the text is empty"),
        (["generate", "a", "--tokens", "0"], "--tokens 0: at least 1"),
        (["report", ""], "the text is empty"),
        (["report", "/nowhere/run.safetensors"], "/nowhere/run.safetensors"),
    ],
)
def test_one_clear_line(refused: Any, arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


def test_what_only_the_model_knows_is_refused_too(refused: Any, folders: dict[str, str]) -> None:
    encoder = ("-m", folders["encoder"])
    assert "no word 'pear'; its words: an, apple" in refused(
        "look", "an apple", "-w", "pear", *encoder
    )
    assert "no token 99" in refused("look", "an", "--token", "99", *encoder)
    assert "no layer 7: the recording has 0 to 2" in refused("look", "a", "--layers", "7", *encoder)
    assert "has 52 tokens" in refused("look", "a" * 50, *encoder)
    assert "reads at most 40" in refused("look", "a", "--against", "a" * 50, *encoder)
    assert "in the first text: the text has no word 'b'" in refused(
        "look", "a", "--against", "b", "-w", "b", *encoder
    )
    assert "in the second text (--against): the text has no word 'a'" in refused(
        "look", "a", "--against", "b", "-w", "a", *encoder
    )
    assert "no word in common" in refused("look", "a b", "--against", "c d", *encoder)
    assert "can't continue a text" in refused("generate", "a", *encoder)
    assert "temperature=-1.0" in refused(
        "generate", "a", "--temperature", "-1", "-m", folders["gpt"]
    )


def test_unreadable_input(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "picture.txt").write_bytes(b"ab\xff\xfe")
    assert "is not UTF-8 text: byte 2" in refused("look", "-f", str(tmp_path / "picture.txt"))
    (tmp_path / "empty.txt").write_text("\n")
    assert "is empty" in refused("look", "-f", str(tmp_path / "empty.txt"))
    assert "can't read" in refused("look", "-f", str(tmp_path))
    (tmp_path / "r.safetensors").write_bytes(b"not a recording")
    assert "r.safetensors" in refused("report", str(tmp_path / "r.safetensors"))
    (tmp_path / "text.txt").write_text("an apple")
    text = str(tmp_path / "text.txt")
    assert f"{text} is no recording; to read a text from a file: --file {text}" in refused(
        "report", text
    )
    (tmp_path / "nul.txt").write_bytes(b"\0\0")
    assert "nul.txt has no word" in refused("look", "-f", str(tmp_path / "nul.txt"))
    (tmp_path / "giant.txt").write_bytes(b"a" * 4_000_001)
    assert "giant.txt is larger than 4 MB" in refused("look", "-f", str(tmp_path / "giant.txt"))
    assert "config.json" in refused("look", "a", "-m", str(tmp_path))


@pytest.mark.skipif(os.name != "posix", reason="permissions are different there")
def test_a_failed_write_leaves_the_old_file(
    refused: Any, folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib.figure

    def full(self: Any, path: str, **_: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", full)
    path = tmp_path / "p.png"
    path.write_bytes(b"old")
    said = refused("look", "an apple", "-w", "an", "-m", folders["gpt"], "--png", str(path))
    assert f"can't write {path}: No space left on device" in said
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"
        ),
        torch.OutOfMemoryError("CUDA out of memory."),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_not_enough_memory(
    refused: Any, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("jumok.model.transformer.Encoder.forward", fail)
    assert "not enough memory" in refused("look", "a", "-m", folders["encoder"])


def test_a_text_that_cannot_fit_is_refused_before_it_is_read(
    refused: Any, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jumok.cli.reader.free_memory", lambda: 4000)
    said = refused("look", "aaaaaaaa", "-m", folders["encoder"])
    # 10 tokens × 3 layers × (2 + 2 + 2 heads) × width 8 × 4 bytes = 5,760 bytes
    assert "reading 10 tokens with" in said
    monkeypatch.setattr("jumok.cli.reader.free_memory", lambda: 5760)
    with pytest.raises(SystemExit) as ended:
        main(["look", "aaaaaaaa", "-m", folders["encoder"]])
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("package", "extra"), [("torch", "torch"), ("tokenizers", "torch"), ("matplotlib", "view")]
)
def test_a_missing_extra_says_what_to_install(package: str, extra: str, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from jumok.cli import main\nmain(['look', 'a b', '-w', 'a', '--png', sys.argv[1]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "p.png")], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == f"jumok: this needs {package}: pip install 'jumok[{extra}]'\n"


def test_a_fault_of_ours_is_called_one(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: Any) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr("jumok.model.loading.load", faulty)
    said = refused("look", "an apple")
    assert "a fault in jumok (AttributeError: no such thing)" in said
    monkeypatch.setenv("JUMOK_DEBUG", "1")
    with pytest.raises(AttributeError):
        main(["look", "an apple"])


def test_ctrl_c_ends_quietly(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jumok.model.loading.load", interrupted)
    assert run("look", "an apple") == (130, "", "")


@pytest.mark.skipif(os.name != "posix", reason="pipes are different there")
def test_a_reader_that_leaves_is_no_error(folders: dict[str, str]) -> None:
    for arguments in (["look", "--help"], ["look", "an apple", "-m", folders["encoder"], "--json"]):
        with subprocess.Popen(
            [sys.executable, "-u", "-m", "jumok", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == ""
        assert process.returncode == 141
