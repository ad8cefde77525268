"""Several processes learn what one alone learns; they save, stop and fail together.

Two real processes on gloo, as torchrun starts them (see `launcher`), and torchrun itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import jumok
from jumok.training import parallel, snapshot
from jumok.training.log import read_rows
from launcher import Launcher

SIZES = (
    "--emb-dim 16 --layers 2 --heads 2 --context 16 --batch 4 --micro-batch 1 --tokenizer bytes "
    "--log-every 1 --evaluate-every 20 --evaluation-batches 2 --schedule constant --warm-up 1 "
    "--learning-rate 0.005 --dtype float32 --no-compile"
)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("said"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens that the runs share, and a corpus of a few documents."""
    return tmp_path_factory.mktemp("data")


def command(out: Path, data: Path, steps: int = 4, more: str = "", corpus: str = "topics") -> Any:
    tokens = data / corpus.replace(":", "-")
    words = f"train {corpus} {SIZES} --steps {steps} {more} --out {out} --data {tokens}"
    return words.split()


def curve(folder: Path) -> torch.Tensor:
    """Step, loss, norm of the gradient and validation loss of every line of the log."""
    names = ("step", "loss", "gradient_norm", "validation", "tokens")
    values = [[row.get(name, 0.0) for name in names] for row in read_rows(folder / "log.jsonl")]
    return torch.tensor(values, dtype=torch.float64)


def losses(folder: Path) -> list[float]:
    """Of each step."""
    return [row["loss"] for row in read_rows(folder / "log.jsonl") if "loss" in row]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_close(folder: Path, other: Path, within: float) -> None:
    ours, theirs = weights(folder), weights(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=within, rtol=0, msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher, data: Path) -> Path:
    """One process, six steps."""
    out = tmp_path_factory.mktemp("alone") / "run"
    launcher.run(*command(out, data, 6, "--average 0.9"))
    return out


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_curve_is_that_of_one_process(
    tmp_path: Path, launcher: Launcher, data: Path, alone: Path, kind: str
) -> None:
    out = tmp_path / "run"
    said = launcher.run(*command(out, data, 6, f"--average 0.9 --parallel {kind}"), processes=2)
    assert said.count("2 processes") == 1  # one speaks for both
    # What differs is the order in which float32 numbers are added up.
    torch.testing.assert_close(curve(out), curve(alone), atol=2e-6, rtol=2e-6)
    assert_close(out, alone, within=5e-5)
    model, tokenizer = jumok.load(out)
    assert isinstance(model, jumok.Decoder)
    assert tokenizer is not None
    assert {path.name for path in out.iterdir()} == {path.name for path in alone.iterdir()}
    _check_parts(out, sharded=kind == "fsdp")


def _check_parts(out: Path, sharded: bool) -> None:
    """The files of the processes make up every tensor, and nothing lies there twice."""
    path = snapshot.latest(out / "snapshots", parallel.join(None, "cpu"))
    assert path is not None
    manifest = json.loads((path / "snapshot.json").read_text())
    assert len(manifest["random"]) == 2
    parts = [load_file(path / f"rank-{rank:05d}.safetensors") for rank in range(2)]
    for name, (_, shape) in manifest["tensors"].items():
        found = [part[name] for part in parts if name in part]
        assert len(found) == (2 if sharded else 1), name
        assert list(torch.cat(found).shape) == shape, name


@pytest.mark.parametrize(
    ("family", "corpus", "kind"), [("bert", "topics", "ddp"), ("seq2seq", "task:dates", "fsdp")]
)
def test_targets_are_weighed_over_processes(
    tmp_path: Path, launcher: Launcher, data: Path, family: str, corpus: str, kind: str
) -> None:
    """Each process, and each micro-batch, has another number of targets."""
    tokens = data / family
    one, two = tmp_path / "one", tmp_path / "two"
    more = f"--family {family}"
    launcher.run(*command(one, tokens, 3, more, corpus))
    launcher.run(*command(two, tokens, 3, f"{more} --parallel {kind}", corpus), processes=2)
    torch.testing.assert_close(curve(two), curve(one), atol=2e-6, rtol=5e-6)


def test_a_run_goes_on_with_other_processes(
    tmp_path: Path, launcher: Launcher, data: Path, alone: Path
) -> None:
    """Two that share weights, one alone, two with whole weights, and back."""
    out = tmp_path / "run"
    for steps, kind in ((2, "fsdp"), (4, None), (5, "ddp"), (6, "fsdp")):
        more = "--average 0.9" + (f" --parallel {kind}" if kind else "")
        launcher.run(*command(out, data, steps, more), processes=2 if kind else None)
    torch.testing.assert_close(losses(out), losses(alone), atol=2e-6, rtol=2e-6)
    assert_close(out, alone, within=5e-5)


def test_adapters_learn_the_same_in_shards(
    tmp_path: Path, launcher: Launcher, data: Path, alone: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    size = SIZES.replace("--emb-dim 16 --layers 2 --heads 2 ", "").replace("--tokenizer bytes ", "")
    words = f"train topics {size} --from {alone} --lora 2 --steps 4 --data {data / 'topics'}"
    launcher.run(*words.split(), "--out", str(one))
    for steps in ("2", "4"):
        more = ("--parallel", "fsdp", "--steps", steps)
        launcher.run(*words.split(), "--out", str(two), *more, processes=2)
    torch.testing.assert_close(losses(two), losses(one), atol=2e-6, rtol=5e-6)
    assert_close(two, one, within=5e-5)
    adapters = [load_file(run / "adapter/adapter_model.safetensors") for run in (one, two)]
    assert len(adapters[0]) == 2 * 2 * 7  # A and B of seven matrices in two layers
    for name, tensor in adapters[0].items():
        torch.testing.assert_close(tensor, adapters[1][name], atol=5e-5, rtol=0, msg=name)
    for run in (one, two):
        names = json.loads((run / "snapshots/step-00000004/snapshot.json").read_text())["tensors"]
        assert all(".lora_" in name for name in names)


def test_processes_stop_together_and_die_in_words(
    tmp_path: Path, launcher: Launcher, data: Path
) -> None:
    """A polite end of one, then the death of one; the end is as if nothing had happened."""
    calm, out = tmp_path / "calm", tmp_path / "run"
    more = "--dropout 0.1 --parallel fsdp --snapshot-every 15"
    launcher.run(*command(calm, data, 40, more), processes=2)
    log = out / "log.jsonl"

    started = launcher.start(*command(out, data, 40, more), processes=2)
    started.signal_when(lambda: len(read_rows(log)) > 2, signal.SIGTERM, rank=1)
    assert started.end() == [130, 130]
    (entry,) = (out / "snapshots").iterdir()
    saved = int(entry.name.removeprefix("step-"))
    assert 2 < saved < 15
    assert "stopped after step" in started.said.read_text("utf-8")

    started = launcher.start(*command(out, data, 40, more), processes=2)
    started.kill_when(lambda: len(read_rows(log)) > 18, rank=1)
    assert started.end() == [2, -signal.SIGKILL]
    (said,) = [line for line in started.said.read_text("utf-8").splitlines() if "lost" in line]
    assert said == (
        "jumok: process 0 of 2 lost a neighbour: another process of this run has ended, see above "
        "for its reason. Start the same command again: it goes on from the last snapshot"
    )

    launcher.run(*command(out, data, 40, more), processes=2)
    assert (out / "model.safetensors").read_bytes() == (calm / "model.safetensors").read_bytes()
    assert torch.equal(curve(out), curve(calm))


def test_what_the_user_can_put_right_is_said_once(
    tmp_path: Path, launcher: Launcher, data: Path
) -> None:
    started = launcher.start(*command(tmp_path / "run", data, 4, "--batch 3"), processes=2)
    assert started.end() == [2, 2]
    lines = started.said.read_text("utf-8").splitlines()
    assert len([line for line in lines if "rows can't be shared by 2 processes" in line]) == 1
    started = launcher.start(*command(tmp_path / "run", data, corpus="none.txt"), processes=2)
    assert started.end() == [2, 2]
    assert len(started.said.read_text("utf-8").splitlines()) == 1


@pytest.mark.parametrize("how", ["module", "script"])
def test_torchrun_starts_the_same_command(tmp_path: Path, data: Path, how: str) -> None:
    bin = Path(sys.executable).parent
    program = ["-m", "jumok"] if how == "module" else [str(bin / "jumok")]
    done = subprocess.run(
        [
            *(str(bin / "torchrun"), "--standalone", "--nproc-per-node", "2", *program),
            *command(tmp_path / "run", data, 2),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in read_rows(tmp_path / "run/log.jsonl") if "loss" in row] == [1, 2]
    assert "2 processes, ddp" in done.stderr


def test_one_process_alone() -> None:
    world = parallel.join(None, "cpu")
    assert (world.rank, world.size, world.is_main) == (0, 1, True)
    assert world.sum(1.5, 2.0) == (1.5, 2.0)
    assert (world.agree(True), world.agree(False)) == (True, False)
    assert (world.gather("a"), world.share("b")) == (["a"], "b")
    with world.main_first(), world.guard():
        pass
    model = torch.nn.Linear(2, 2)
    assert world.wrap(model) is model
    assert world.whole(model) is model


def test_several_processes_need_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="start them with torchrun"):
        parallel.join("fsdp", "cpu")
    with pytest.raises(ValueError, match="parallel='many': one of ddp, fsdp"):
        parallel.join("many")
    with pytest.raises(ValueError, match="torch knows no device of that name"):
        parallel.join(None, "abacus")


def test_clipping_is_of_the_whole_norm() -> None:
    one, other = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(2))
    one.grad, other.grad = torch.tensor([3.0]), torch.tensor([0.0, 4.0])
    assert parallel.clip([one, other], 1.0) == 5.0
    torch.testing.assert_close(other.grad, torch.tensor([0.0, 0.8]))
    assert parallel.clip([one, other], 2.0) == pytest.approx(1.0)
    torch.testing.assert_close(one.grad, torch.tensor([0.6]))
