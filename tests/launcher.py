"""Runs ``jumok …`` in processes of its own, alone or several as torchrun would start them.

They are forked from a process that has PyTorch loaded already, which saves seconds each time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROGRAM = """
import json, os, sys
import matplotlib.pyplot, torch
import torch.distributed.fsdp, torch.distributed.tensor, torch.utils.tensorboard
import jumok.training.loop
from jumok.cli import main
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    children = []
    for rank in range(asked["processes"]):
        child = os.fork()
        if not child:
            if asked["port"]:
                size = str(asked["processes"])
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size)
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(asked["port"]))
            sink = os.open("/dev/null", os.O_RDWR)
            said = os.open(asked["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream, file in enumerate((sink, sink, said)):
                os.dup2(file, stream)
            main(asked["arguments"])
        children.append(child)
    print(json.dumps(children), flush=True)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes), flush=True)
"""


@dataclass
class Started:
    """Processes on their way."""

    pids: list[int]
    said: Path
    end: Callable[[], list[int]]  # waits; the exit codes, below 0 for a signal

    def signal_when(self, holds: Callable[[], bool], number: int, rank: int = 0) -> None:
        """Send a process a signal once ``holds()``, unless it has ended before."""
        state = Path(f"/proc/{self.pids[rank]}/stat")
        while not holds():
            try:
                if state.read_text().rpartition(")")[2].split()[0] == "Z":
                    return
            except FileNotFoundError:
                return
            time.sleep(0.0005)
        os.kill(self.pids[rank], number)

    def kill_when(self, holds: Callable[[], bool], rank: int = 0) -> None:
        """SIGKILL, which no program can refuse."""
        self.signal_when(holds, signal.SIGKILL, rank)


class Launcher:
    """Starts processes; close it in the end."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._line() == b"ready\n"

    def start(self, *arguments: str, processes: int | None = None) -> Started:
        """Start the command: alone, or in so many processes that know of each other."""
        self._count += 1
        said = self._folder / f"said-{self._count}.txt"
        asked: dict[str, Any] = {"arguments": arguments, "processes": processes or 1}
        asked |= {"port": _free_port() if processes else None, "said": str(said)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        return Started(json.loads(self._line()), said, lambda: json.loads(self._line()))

    def run(self, *arguments: str, processes: int | None = None) -> str:
        """Run the command to its good end; what it has said."""
        started = self.start(*arguments, processes=processes)
        codes = started.end()
        said = started.said.read_text("utf-8")
        assert set(codes) == {0}, (codes, said)
        return said

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
