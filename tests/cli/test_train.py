"""``jumok train``: a run from the command line, and what is refused in one line."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import jumok
from jumok.training import loop

SMALL = ("--tokenizer", "bytes", "--emb-dim", "16", "--layers", "1", "--heads", "2")
SMALL += ("--context", "16", "--batch", "4", "--evaluation-batches", "1")


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "poem.txt"
    path.write_text("the cat sat on the mat and looked at the moon\n" * 40)
    return str(path)


def test_a_run_says_what_it_does(run: Any, tmp_path: Path, corpus: str) -> None:
    out = tmp_path / "run"
    code, printed, said = run("train", corpus, "--out", str(out), *SMALL, "--steps", "4")
    assert (code, printed) == (0, "")
    for part in ("GPT of", "poem.txt", "tokens to learn from", "step 4 of 4", "validation loss"):
        assert part in said
    assert f"the model, its curves and a report are in {out}" in said
    model, _ = jumok.load(out)
    assert isinstance(model, jumok.Decoder)
    code, _, said = run("train", corpus, "--out", str(out), *SMALL, "--steps", "4")
    assert code == 0
    assert "done already" in said


def test_ctrl_c_saves_and_says_how_to_go_on(
    run: Any, tmp_path: Path, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = loop._Run._step

    def interrupted(run: Any, number: int) -> Any:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(run, number)

    monkeypatch.setattr(loop._Run, "_step", interrupted)
    arguments = ("train", corpus, "--out", str(tmp_path / "run"), *SMALL, "--steps", "5")
    code, _, said = run(*arguments)
    assert code == 130
    assert "stopped after step 3 of 5; the same command goes on" in said
    monkeypatch.setattr(loop._Run, "_step", step)
    code, _, said = run(*arguments)
    assert code == 0
    assert "going on after step 3" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--layers", "0"), "--layers 0: a whole number, at least 1"),
        (("--family", "rnn"), "--family 'rnn': one of gpt, bert, seq2seq"),
        (("--heads", "3"), "emb_dim=16"),
        (("--steps", "3", "--tokens", "9"), "give one of them"),
        (("--from", "nowhere"), "emb-dim"),
        (("--lora", "4"), "name it as base"),
        (("--vocab-size", "9", "--tokenizer", "bpe"), "vocab_size=9"),
        (("--parallel", "ddp"), "torchrun"),
        (("--device", "abacus"), "abacus"),
        (("--stepz", "3"), "No such option"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    run: Any, tmp_path: Path, corpus: str, options: tuple[str, ...], said: str
) -> None:
    code, out, err = run("train", corpus, "--out", str(tmp_path / "run"), *SMALL, *options)
    assert (code, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("jumok: ")
    assert "Traceback" not in err


def test_a_corpus_that_is_not_there(refused: Any, tmp_path: Path) -> None:
    said = refused("train", str(tmp_path / "none.txt"), "--out", str(tmp_path / "run"))
    assert "there is no corpus" in said


def test_a_folder_that_is_a_file(refused: Any, corpus: str) -> None:
    assert "is a file" in refused("train", corpus, "--out", corpus)


def test_a_start_that_was_refused_can_be_put_right(run: Any, tmp_path: Path, corpus: str) -> None:
    start = ("train", corpus, "--out", str(tmp_path / "run"), *SMALL, "--steps", "1")
    assert run(*start, "--heads", "3")[0] == 2
    assert run(*start)[0] == 0


def test_other_settings_are_refused(run: Any, tmp_path: Path, corpus: str) -> None:
    start = ("train", corpus, "--out", str(tmp_path / "run"), *SMALL, "--steps", "1")
    assert run(*start)[0] == 0
    code, _, said = run(*start, "--seed", "5")
    assert code == 2
    assert "seed was 0 and is now 5" in said
