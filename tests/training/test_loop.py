"""Whole runs of small models: they learn, stop, go on to the same bits, and tell what is wrong."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jumok
from jumok.model.config import Config
from jumok.training import loop, snapshot
from jumok.training.log import read_rows
from jumok.training.loop import DivergedError
from jumok.training.settings import Training

_DATA = {}


@pytest.fixture(autouse=True)
def _quick(
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The corpus is tokenised once, the machine not measured, and curves drawn in one test."""
    monkeypatch.setattr(loop, "peak_flops", lambda *_: 1e11)
    if "leaves_behind" not in request.node.name:
        monkeypatch.setattr(loop, "write_curves", lambda *_: None)
    if not _DATA:
        _DATA["folder"] = tmp_path_factory.mktemp("data")


def _training(folder: Path, **changes: Any) -> Training:
    settings: dict[str, Any] = {
        "tokenizer": "bytes",
        "data": _DATA["folder"] / f"{changes.get('family', 'gpt')}",
        "emb_dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "context": 32,
        "batch": 8,
        "steps": 6,
        "log_every": 2,
        "evaluate_every": 3,
        "evaluation_batches": 2,
        "dtype": "float32",
        **changes,
    }
    return Training(
        settings.pop("corpus", "topics"), settings.pop("out", folder / "run"), **settings
    )


def _weights(folder: Path) -> dict[str, Tensor]:
    model, _ = jumok.load(folder)
    assert isinstance(model, torch.nn.Module)
    return model.state_dict()


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


# Learning -------------------------------------------------------------------------------------


def test_a_gpt_learns_and_transformers_loads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    result = jumok.train(_training(tmp_path, steps=40, learning_rate=1e-2), show=False)
    rows = read_rows(result.folder / "log.jsonl")
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[0] > 5  # nearly log 258
    assert result.loss == losses[-1] < 3.6
    assert result.validation is not None
    assert result.validation < 3.7
    assert result.finished
    assert result.step == 40
    model, tokenizer = jumok.load(result.folder)
    assert tokenizer is not None
    ids = torch.tensor([tokenizer.encode("The statement")])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(result.folder)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=1e-4, atol=1e-5)
    assert transformers.AutoTokenizer.from_pretrained(result.folder)("The")["input_ids"]


def test_what_a_run_leaves_behind(tmp_path: Path) -> None:
    result = jumok.train(_training(tmp_path, prompt="The"), show=False)
    rows = read_rows(result.folder / "log.jsonl")
    assert [row["step"] for row in rows if "loss" in row] == [2, 4, 6]
    scores = [row for row in rows if "validation" in row]
    assert [row["step"] for row in scores] == [3, 6]
    assert scores[-1]["samples"][0][0] == "The"
    assert rows[-2]["tokens"] == 6 * rows[0]["tokens"] / 2
    assert (result.folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    report = (result.folder / "report.html").read_text("utf-8")
    assert "data:image/png;base64," in report
    assert "jumok train topics --out" in report
    assert f"{scores[-1]['validation']:.4f}" in report
    board = result.folder / "tensorboard"
    if board.exists():
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(board))
        found.Reload()
        logged = [(event.step, event.value) for event in found.Scalars("validation")]
        assert [step for step, _ in logged] == [3, 6]
        assert logged[-1][1] == pytest.approx(scores[-1]["validation"])


def test_a_bert_learns_to_fill_masks(tmp_path: Path) -> None:
    training = _training(tmp_path, family="bert", steps=60, learning_rate=5e-3, batch=16)
    result = jumok.train(training, show=False)
    losses = [row["loss"] for row in read_rows(result.folder / "log.jsonl") if "loss" in row]
    assert losses[0] > 4.5
    assert result.loss < 3.6
    model, _ = jumok.load(result.folder)
    assert isinstance(model, jumok.Encoder)
    assert model.masked_head is not None


def test_an_encoder_decoder_learns_to_copy(tmp_path: Path) -> None:
    training = _training(
        tmp_path,
        corpus="task:copy:2000",
        family="seq2seq",
        n_layers=1,
        steps=60,
        learning_rate=5e-3,
        label_smoothing=0.0,
        batch=16,
    )
    result = jumok.train(training, show=False)
    losses = [row["loss"] for row in read_rows(result.folder / "log.jsonl") if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]
    model, _ = jumok.load(result.folder)
    assert isinstance(model, jumok.EncoderDecoder)


def test_a_model_goes_on_learning_something_else(tmp_path: Path) -> None:
    first = jumok.train(_training(tmp_path, steps=20, learning_rate=1e-2), show=False)
    onward = Training(
        "topics",
        tmp_path / "more",
        base=str(first.folder),
        data=_DATA["folder"] / "gpt",
        steps=2,
        batch=8,
        context=32,
        dtype="float32",
    )
    result = jumok.train(onward, show=False)
    assert first.validation is not None
    assert result.validation is not None
    assert result.validation < first.validation + 0.1
    assert not _same(_weights(first.folder), _weights(result.folder))


def test_adapters_learn_alone_and_are_merged(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    first = jumok.train(_training(tmp_path, steps=3), show=False)
    onward = Training(
        "topics",
        tmp_path / "adapted",
        base=str(first.folder),
        lora=2,
        data=_DATA["folder"] / "gpt",
        steps=3,
        batch=8,
        context=32,
        learning_rate=1e-2,
    )
    result = jumok.train(onward, show=False)
    before, after = _weights(first.folder), _weights(result.folder)
    assert torch.equal(before["embedding.weight"], after["embedding.weight"])
    name = "layers.0.attention.qkv.weight"
    change = (after[name] - before[name]).double()
    assert change.norm() > 0
    assert torch.linalg.matrix_rank(change, rtol=1e-4) <= 2


def test_the_average_of_the_weights_is_what_is_saved(tmp_path: Path) -> None:
    plain = jumok.train(_training(tmp_path, out=tmp_path / "plain"), show=False)
    mean = jumok.train(_training(tmp_path, out=tmp_path / "mean", average=0.9), show=False)
    assert plain.loss == mean.loss  # training itself is the same
    assert not _same(_weights(plain.folder), _weights(mean.folder))


@pytest.mark.parametrize("change", [{"micro_batch": 3}, {"recompute": True}])
def test_what_saves_memory_changes_nothing_else(tmp_path: Path, change: dict[str, Any]) -> None:
    whole = jumok.train(_training(tmp_path, out=tmp_path / "whole"), show=False)
    saving = jumok.train(_training(tmp_path, out=tmp_path / "saving", **change), show=False)
    assert saving.loss == pytest.approx(whole.loss, abs=1e-5)


def test_parts_of_a_step_share_the_cast_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 weights are cast once a step; each part still finds its way back to them."""
    monkeypatch.setattr(loop, "has_bfloat16", lambda _: True)
    shared = {"dtype": "bfloat16", "steps": 3, "learning_rate": 1e-2}
    whole = jumok.train(_training(tmp_path, out=tmp_path / "whole", **shared), show=False)
    parts = jumok.train(
        _training(tmp_path, out=tmp_path / "parts", micro_batch=2, **shared), show=False
    )
    assert parts.loss == pytest.approx(whole.loss, abs=2e-2)
    norms = [
        [row["gradient_norm"] for row in read_rows(one.folder / "log.jsonl") if "loss" in row]
        for one in (whole, parts)
    ]
    assert norms[1] == pytest.approx(norms[0], rel=0.05)


# Going on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", [None, 0.9])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: float | None
) -> None:
    """By way of Ctrl-C in the middle of a window of the log; dropout draws on."""
    shared = {"dropout": 0.2, "average": average, "steps": 7}
    whole = jumok.train(_training(tmp_path, out=tmp_path / "whole", **shared), show=False)

    training = _training(tmp_path, out=tmp_path / "stopped", **shared)
    step = loop._Run._step

    def interrupted(run: Any, number: int) -> Any:
        if number == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return step(run, number)

    with monkeypatch.context() as patched:
        patched.setattr(loop._Run, "_step", interrupted)
        stopped = jumok.train(training, show=False)
    assert (stopped.step, stopped.finished) == (5, False)
    ended = jumok.train(training, show=False)
    assert ended.finished
    assert _same(_weights(whole.folder), _weights(ended.folder))
    timeless = {"step", "loss", "learning_rate", "gradient_norm", "tokens", "validation", "samples"}
    logs = [
        [
            {name: value for name, value in row.items() if name in timeless}
            for row in read_rows(folder / "log.jsonl")
        ]
        for folder in (whole.folder, ended.folder)
    ]
    assert logs[0] == logs[1]


def test_a_second_interrupt_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(run: Any, number: int) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("never here")

    monkeypatch.setattr(loop._Run, "_step", twice)
    with pytest.raises(KeyboardInterrupt):
        jumok.train(_training(tmp_path), show=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_finished_run_can_be_made_longer(tmp_path: Path, capsys: Any) -> None:
    jumok.train(_training(tmp_path, steps=4), show=False)
    again = jumok.train(_training(tmp_path, steps=4))
    assert again.step == 4
    assert "done already" in capsys.readouterr().err
    longer = jumok.train(_training(tmp_path, steps=6, log_every=1), show=False)
    assert longer.step == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"learning_rate": 1e-4}, r"learning_rate was not given and is now 0\.0001"),
        ({"batch": 4}, "batch was 8 and is now 4"),
        ({"seed": 1}, "seed was 0 and is now 1"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    training = _training(tmp_path, steps=1)
    jumok.train(training, show=False)
    with pytest.raises(ValueError, match=said):
        jumok.train(replace(training, **change), show=False)


def test_rows_after_the_snapshot_are_written_anew(tmp_path: Path) -> None:
    """A killed run has logged steps that no snapshot holds."""
    training = _training(tmp_path, steps=4, log_every=1)
    result = jumok.train(training, show=False)
    path = result.folder / "log.jsonl"
    with path.open("a") as file:
        file.write(json.dumps({"step": 5, "loss": 1.0}) + '\n{"step": 6, "lo')
    longer = jumok.train(replace(training, steps=6), show=False)
    steps = [row["step"] for row in read_rows(longer.folder / "log.jsonl") if "loss" in row]
    assert steps == [1, 2, 3, 4, 5, 6]


# What goes wrong ------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_stops_before_it_spoils_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = _training(tmp_path, snapshot_every=2)
    forward = loop.Objective.forward
    calls = 0

    def spoiled(objective: Any, batch: Any) -> Tensor:
        nonlocal calls
        calls += objective.training
        loss = forward(objective, batch)
        return loss * math.nan if calls == 4 else loss

    monkeypatch.setattr(loop.Objective, "forward", spoiled)
    with pytest.raises(DivergedError, match=r"loss is nan at step 4 .*step-00000002") as caught:
        jumok.train(training, show=False)
    assert "learning rate" in str(caught.value)
    assert (tmp_path / "run" / "snapshots" / "step-00000002").is_dir()


def test_a_full_disk_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    save, tries = snapshot.save, []

    def full(folder: Path, state: Any, world: Any, keep: int) -> Path:
        tries.append(state.step)
        if len(tries) == 1:
            raise snapshot.SnapshotError("no space left on the disk")
        return save(folder, state, world, keep)

    monkeypatch.setattr(snapshot, "save", full)
    monkeypatch.setattr(loop, "_SECONDS_BETWEEN_RETRIES", -1.0)
    result = jumok.train(_training(tmp_path, snapshot_every=2))
    assert result.finished
    assert tries == [2, 3, 4, 6]
    assert "no space left" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        jumok.train(_training(tmp_path, out=tmp_path / "file"), show=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match=r"thesis\.txt"):
        jumok.train(_training(tmp_path, out=tmp_path / "full"), show=False)
    with pytest.raises(OSError, match="file"):
        jumok.train(_training(tmp_path, out=tmp_path / "file" / "run"), show=False)


def test_a_run_is_not_started_twice_at_once(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    training = _training(tmp_path)
    with (
        loop.claim(training),
        pytest.raises(ValueError, match="in use"),
    ):
        jumok.train(training, show=False)


def test_settings_that_the_base_cannot_have(tmp_path: Path) -> None:
    model = jumok.Encoder(Config(61, 32, 1, 2))
    with pytest.raises(ValueError, match="nothere"):
        jumok.train(Training("topics", tmp_path / "run", base=str(tmp_path / "nothere")))
    assert model.masked_head is None


def test_bfloat16_that_is_emulated_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "has_bfloat16", lambda _: False)
    assert loop._dtype(_training(tmp_path, dtype="auto"), torch.device("cpu")) == torch.float32
    with pytest.warns(UserWarning, match="emulated"):
        loop._dtype(_training(tmp_path, dtype="bfloat16"), torch.device("cpu"))
