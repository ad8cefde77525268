"""A run that is killed again and again ends with the weights of one that nothing has disturbed.

The real command in processes of its own, ended by the real SIGKILL: at random moments, and in the
middle of writing a snapshot. The processes are forked from one that has PyTorch loaded already.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

STEPS = 14
OPTIONS = (
    f"topics --steps {STEPS} --emb-dim 16 --layers 1 --heads 2 --context 16 --batch 4 "
    "--micro-batch 2 --tokenizer bytes --dropout 0.1 --average 0.9 --snapshot-every 2 "
    "--log-every 1 --evaluate-every 5 --evaluation-batches 2 --no-compile"
).split()

# Reads a line of JSON with the command's arguments, runs it in a child, and writes the child's
# number, then its exit code.
LAUNCHER = """
import json, os, sys
import torch, matplotlib.pyplot, torch.utils.tensorboard
import jumok.training.loop
from jumok.cli import main
print(0, flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        sink = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1):
            os.dup2(sink, stream)
        main(json.loads(line))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Launcher:
    """Starts ``jumok …`` in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._number() == 0

    def _number(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def start(self, *arguments: str) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(arguments).encode() + b"\n")
        self.process.stdin.flush()
        return self._number()

    def end(self) -> int:
        return self._number()


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    assert launcher.process.stdin is not None
    launcher.process.stdin.close()
    launcher.process.wait()
    assert launcher.process.stdout is not None
    launcher.process.stdout.close()


def _kill(pid: int, when: Callable[[], bool]) -> None:
    """SIGKILL the process once `when` holds, or never if it ends before."""
    import os
    import signal

    state = Path(f"/proc/{pid}/stat")
    while not when():
        try:
            if state.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _while_writing(folder: Path, bytes_written: int) -> Callable[[], bool]:
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
    data = tmp_path / "data"
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    arguments = ["train", *OPTIONS, "--data", str(data)]
    began = time.monotonic()
    launcher.start(*arguments, "--out", str(calm))
    assert launcher.end() == 0
    length = time.monotonic() - began

    chance = random.Random(0)
    moments: list[Callable[[], Callable[[], bool]]] = [
        *(lambda n=n: _while_writing(rough, n) for n in (0, 1, 20_000)),
        *(lambda: _after(chance.uniform(0, length)) for _ in range(4)),
        lambda: _while_writing(rough, 1),
    ]
    killed = 0
    for moment in moments:
        pid = launcher.start(*arguments, "--out", str(rough))
        _kill(pid, moment())
        code = launcher.end()
        assert code in (-9, 0)
        killed += code == -9
    assert killed >= 5
    launcher.start(*arguments, "--out", str(rough))
    assert launcher.end() == 0

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
