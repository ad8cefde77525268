"""The command, as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

import jumok
from jumok.cli import main
from jumok.tokens import Tokenizer
from jumok.tokens.characters import BYTE_OF_SIGN


def byte_tokenizer(special: bool) -> Tokenizer:
    """A token for each byte; with ``special``, between <s> and </s>."""
    vocabulary = {sign: id for id, sign in enumerate(BYTE_OF_SIGN)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)]
        )
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small encoder and a small GPT with random weights, as folders."""
    from jumok.model.config import Learned

    torch.manual_seed(0)
    size = {"vocab_size": 258, "emb_dim": 16, "n_layers": 3, "n_heads": 2}
    encoder = jumok.Encoder(
        jumok.Config(
            **size,
            context=40,
            positions=Learned(),
            norm="layer",
            norm_place="post",
            norm_eps=1e-12,
            feed_forward="gelu",
            qkv_bias=True,
            output_bias=True,
            feed_forward_bias=True,
            token_types=2,
        )
    )
    decoder = jumok.Decoder(jumok.Config(**size, context=40, eos_ids=(257,)))
    found = {}
    for name, model in (("encoder", encoder), ("gpt", decoder)):
        folder = tmp_path_factory.mktemp("models") / name
        jumok.save(model, folder, byte_tokenizer(special=name == "encoder"))
        found[name] = str(folder)
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        output = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), output.out, output.err

    return call


@pytest.fixture
def refused(run: Any) -> Any:
    """Run what must fail: the one line on stderr."""

    def call(*arguments: str) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), (code, out, err)
        assert err.count("\n") == 1
        assert err.startswith("jumok: ")
        assert "Traceback" not in err
        return str(err)

    return call


# -- look ------------------------------------------------------------------------------------


def test_a_word_is_shown_in_full(run: Any, folders: dict[str, str]) -> None:
    code, out, err = run("look", "an apple phone", "--word", "apple", "-m", folders["encoder"])
    assert (code, err) == (0, "")
    assert out.startswith("Where apple takes its meaning from")
    for said in ("an apple phone", "phone", "%", "apart:", "itself", "<s>", "layers 0–2"):
        assert said in out
    assert "\x1b" not in out  # no colour in a pipe
    assert not any(line != line.rstrip() for line in out.splitlines())


def test_the_default_model_reads_both_ways(run: Any) -> None:
    code, out, _ = run("look", "apple phone", "--word", "apple", "--json")
    found = json.loads(out)
    assert (code, found["model"], found["causal"]) == (0, "minilm", False)
    phone = next(s for s in found["queries"][0]["sources"] if s["word"] == "phone")
    assert phone["share"] == pytest.approx(0.396, abs=0.001)


def test_every_word_without_a_choice(run: Any, folders: dict[str, str]) -> None:
    code, out, _ = run("look", "an apple", "-m", folders["encoder"])
    assert code == 0
    assert "draws most on" in out


def test_a_gpt_says_what_it_cannot_see(run: Any, folders: dict[str, str]) -> None:
    code, out, _ = run("look", "an apple and", "-w", "apple", "-m", folders["gpt"])
    assert code == 0
    assert "“apple” cannot see “and” in a GPT; try --model minilm." in out


def test_json_is_one_object_and_nothing_else(run: Any, folders: dict[str, str]) -> None:
    code, out, err = run(
        "look", "an apple", "--word", "apple", "-m", folders["encoder"], "--layers", "1-2", "--json"
    )  # fmt: skip
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["layers"] == [1, 2]
    assert found["words"] == ["<s>", "an", " ", "apple", "</s>"]
    (query,) = found["queries"]
    assert sum(source["share"] for source in query["sources"]) == pytest.approx(1)


def test_two_texts_as_json(run: Any, folders: dict[str, str]) -> None:
    _, out, _ = run(
        "look", "an apple", "--against", "apple x", "-w", "apple", "-m", folders["encoder"],
        "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert found["against"]["text"] == "apple x"
    (pair,) = found["differences"]
    assert pair["word"] == "apple"
    itself = next(row for row in pair["sources"] if row["kind"] == "itself")
    assert itself["change"] == pytest.approx(itself["against"] - itself["share"])


def test_two_texts_without_a_word_compare_the_words_they_share(
    run: Any, folders: dict[str, str]
) -> None:
    _, out, _ = run("look", "Tom ate it", "--against", "It ate Ann", "-m", folders["encoder"])
    assert out.count("takes its meaning from in two texts") == 2  # ate, it


def test_occurrences_that_are_not_compared_are_named(run: Any, folders: dict[str, str]) -> None:
    _, out, _ = run("look", "a b a", "--against", "a c", "-w", "a", "-m", folders["encoder"])
    assert out.startswith("Where a (2nd) and, in the second text, a take their meaning from")
    assert "Not compared, as the other text has fewer: “a (1st)” of the first text." in out


def test_a_long_text_is_kept_and_its_first_words_shown(
    run: Any, folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jumok.lens.sources.MOST_QUERIES", 2)
    path = tmp_path / "run.safetensors"
    code, out, err = run("look", "a b c d", "-m", folders["encoder"], "--save", str(path))
    assert (code, err) == (0, f"wrote {path}\n")
    assert jumok.open(path)[0].shape == (1, 2, 9, 9)
    assert "The first 2 of 4 words." in out


def test_a_recording_is_kept_before_anything_can_be_wrong(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    code, _, _ = run("look", "a b", "-w", "x", "-m", folders["encoder"], "--save", str(path))
    assert code == 2
    assert len(jumok.open(path)) == 3


def test_no_terminal_command_of_the_text_comes_through(run: Any, folders: dict[str, str]) -> None:
    text = "a \x1b[31m b\x1b]0;X\x07"
    for arguments in (
        ("look", text, "-m", folders["encoder"]),
        ("look", text, "-w", "b", "-m", folders["encoder"]),
        ("generate", text, "-m", folders["gpt"], "--tokens", "20", "--seed", "1"),
        ("look", text, "-w", "\x1b[31m", "-m", folders["encoder"]),
    ):
        _, out, err = run(*arguments)
        assert not {"\x1b", "\x07"} & set(out + err)


def test_raw_weights_and_pieces(run: Any, folders: dict[str, str]) -> None:
    _, out, _ = run(
        "look", "한 a", "--pieces", "--raw", "--token", "4", "--json", "-m", folders["encoder"]
    )
    found = json.loads(out)
    assert found["measure"] == "raw"
    assert found["words"] == found["tokens"] == ["<s>", "한₁", "한₂", "한₃", "␣", "a", "</s>"]
    assert found["queries"][0]["word"] == "␣"
    _, out, _ = run("look", "an a", "--pieces", "-w", "an", "--json", "-m", folders["encoder"])
    assert [query["word"] for query in json.loads(out)["queries"]] == ["a", "n"]


def test_a_text_from_a_file_and_from_stdin(
    run: Any, folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes("\ufeff한 apple\n".encode())
    arguments = ("-w", "apple", "-m", folders["encoder"], "--json")
    _, out, _ = run("look", "--file", str(file), *arguments)
    assert json.loads(out)["text"] == "한 apple"
    import io

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"an apple\n")))
    _, out, _ = run("look", "--file", "-", *arguments)
    assert json.loads(out)["text"] == "an apple"


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_picture_is_written(run: Any, folders: dict[str, str], tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"p.{kind}"
    code, _, err = run("look", "an apple", "-w", "an", "-m", folders["gpt"], "--png", str(path))
    assert (code, err) == (0, f"wrote {path}\n")
    assert path.stat().st_size > 1000
    assert [other.name for other in tmp_path.iterdir()] == [path.name]  # nothing half-done


def test_the_recording_is_kept_and_reported(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    run("look", "an apple", "-m", folders["gpt"], "--save", str(path))
    recording = jumok.open(path)
    assert recording[0].shape == (1, 2, 8, 8)
    code, out, _ = run("report", str(path))
    assert code == 0
    assert "entropy" in out.lower()


def test_a_report_says_what_its_columns_mean(run: Any, folders: dict[str, str]) -> None:
    _, out, _ = run("report", "an apple", "-m", folders["encoder"])
    legend = " ".join(out.split())
    for said in ("entropy in nats", "distance in tokens", "weight on the first token"):
        assert said in legend
    assert max(map(len, out.splitlines())) <= 80


def test_a_report_as_json_of_a_text_in_a_file(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("an apple\n")
    _, out, _ = run("report", "--file", str(file), "-m", folders["gpt"], "--json")
    rows = json.loads(out)
    assert [(row["layer"], row["head"]) for row in rows] == [
        (a, b) for a in range(3) for b in (0, 1)
    ]
    assert list(rows[0])[-3:] == ["most_read", "most_read_token", "most_read_share"]
    assert rows[0]["first"] == pytest.approx(
        jumok.report(_recorded("an apple", folders["gpt"])).columns["first"][0]
    )


def _recorded(text: str, folder: str) -> Any:
    model, tokens = jumok.load(folder)
    with torch.inference_mode(), jumok.watch(model) as recording:
        model(torch.tensor([tokens.encode(text)]))
    return recording


def test_a_report_of_a_text(run: Any, folders: dict[str, str]) -> None:
    code, out, _ = run("report", "an apple", "-m", folders["encoder"])
    assert code == 0
    assert "entropy" in out.lower()


# -- the other commands ----------------------------------------------------------------------


def test_generate_streams_the_prompt_and_what_follows(run: Any, folders: dict[str, str]) -> None:
    arguments = ("generate", "an", "-m", folders["gpt"], "--tokens", "5", "--seed", "3")
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert out.startswith("an")
    assert out.endswith("\n")
    assert run(*arguments)[1] == out


def test_models_are_listed(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUMOK_CACHE", str(tmp_path))
    code, out, _ = run("models")
    assert code == 0
    for said in ("minilm", "smollm2", "Apache-2.0", "not fetched yet", "84 MB", str(tmp_path)):
        assert said in out


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


# -- what goes wrong -------------------------------------------------------------------------


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
    monkeypatch.setattr("jumok.cli._free_memory", lambda: 4000)
    said = refused("look", "aaaaaaaa", "-m", folders["encoder"])
    # 10 tokens × 3 layers × (2 + 2 + 2 heads) × width 8 × 4 bytes = 5,760 bytes
    assert "reading 10 tokens with" in said
    monkeypatch.setattr("jumok.cli._free_memory", lambda: 5760)
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
