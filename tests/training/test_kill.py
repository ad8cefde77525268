"""A run that is killed again and again ends with the weights of one that nothing has disturbed.

The real command in processes of its own, ended by the real SIGKILL: at random moments, and in the
middle of writing a snapshot.
"""

from __future__ import annotations

import json
import math
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from jumok.training.log import read_rows
from launcher import Launcher

STEPS = 12
OPTIONS = (
    f"topics --steps {STEPS} --emb-dim 16 --layers 1 --heads 2 --context 16 --batch 4 "
    "--micro-batch 2 --tokenizer bytes --dropout 0.1 --average 0.9 --snapshot-every 2 "
    "--log-every 1 --evaluate-every 6 --evaluation-batches 2 --no-compile"
).split()


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("said"))
    yield launcher
    launcher.close()


Moment = Callable[[], bool]


def _soon_after(folder: Path, step: int, seconds: float) -> Moment:
    """So many seconds after the log has that step (0: after the start)."""
    end = math.inf if step else time.monotonic() + seconds

    def holds() -> bool:
        nonlocal end
        if end == math.inf and step <= max((row["step"] for row in read_rows(log)), default=0):
            end = time.monotonic() + seconds
        return time.monotonic() > end

    log = folder / "log.jsonl"
    return holds


def _while_writing(folder: Path, bytes_written: int) -> Moment:
    """In the middle of a snapshot: so many bytes of its tensors are in the file."""

    def holds() -> bool:
        for part in (folder / "snapshots").glob(".step-*.part"):
            try:
                if sum(path.stat().st_size for path in part.iterdir()) >= bytes_written:
                    return True
            except FileNotFoundError:  # it has just got its name
                pass
        return False

    return holds


def _rows(folder: Path) -> list[dict[str, Any]]:
    timing = {"tokens_per_second", "share_of_peak", "seconds"}
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in timing} for line in lines]


def _board(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_killed_runs_end_as_undisturbed_ones(tmp_path: Path, launcher: Launcher) -> None:
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    launcher.run("train", *OPTIONS, "--out", str(calm))

    chance = random.Random(0)
    moments: list[Callable[[], Moment]] = [
        lambda: _soon_after(rough, 0, chance.uniform(0, 2)),
        lambda: _soon_after(rough, 1, chance.uniform(0, 0.02)),
        lambda: _while_writing(rough, 0),
        lambda: _soon_after(rough, 5, chance.uniform(0, 0.02)),
        lambda: _while_writing(rough, 1),
        lambda: _while_writing(rough, 20_000),
        lambda: _soon_after(rough, STEPS - 1, chance.uniform(0, 0.2)),
    ]
    killed = 0
    for moment in moments:
        started = launcher.start("train", *OPTIONS, "--out", str(rough))
        started.kill_when(moment())
        (code,) = started.end()
        assert code in (-signal.SIGKILL, 0), started.said.read_text("utf-8")
        killed += code != 0
    assert killed >= 3  # on a fast machine some are done before their moment
    launcher.run("train", *OPTIONS, "--out", str(rough))

    assert (rough / "model.safetensors").read_bytes() == (calm / "model.safetensors").read_bytes()
    last = Path("snapshots") / f"step-{STEPS:08d}" / "rank-00000.safetensors"
    states = load_file(calm / last), load_file(rough / last)
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():  # weights, AdamW's moments, the average
        assert torch.equal(tensor, states[1][name]), name
    # What was written down goes on without a gap and without a step twice.
    assert _rows(rough) == _rows(calm)
    steps = [row["step"] for row in _rows(rough) if "loss" in row]
    assert steps == list(range(1, STEPS + 1))
    assert _board(rough, "loss") == _board(calm, "loss")
    assert [step for step, _ in _board(rough, "loss")] == steps
    assert all(math.isfinite(row.get("loss", 0.0)) for row in _rows(rough))
    assert not list((rough / "snapshots").glob(".*"))
