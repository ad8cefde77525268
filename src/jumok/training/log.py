"""What a run writes down while it learns: ``log.jsonl`` and TensorBoard's files.

A row has the step it was written after and some of

- ``loss`` (mean over the targets since the row before, nats), ``learning_rate``,
  ``gradient_norm``, ``tokens_per_second``, ``share_of_peak``, ``tokens`` (read so far), ``seconds``
  (of training, over all starts);
- ``validation`` (nats per target), ``samples`` ([given, made] each).

A disk that is full for a while costs nothing: rows wait in memory until they can be written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypedDict

__all__ = ["Log", "Row", "read_rows"]


class Row(TypedDict, total=False):
    """One line of ``log.jsonl``."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    share_of_peak: float
    tokens: int
    seconds: float
    validation: float
    samples: list[tuple[str, str]]


class Log:
    """The log of a run, from its beginning.

    Args:
        folder: of the run.
        step: that the run goes on from; rows of later steps, of a run that was killed, go.

    Attributes:
        rows: all of them, in order.
        notes: what went wrong with writing, for people; empty it when it is told.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        self._path = folder / "log.jsonl"
        self.notes: list[str] = []
        found = read_rows(self._path)
        self.rows: list[Row] = [row for row in found if row["step"] <= step]
        self._written = len(self.rows)
        if len(found) > len(self.rows) or not self._path.exists() or _is_torn(self._path):
            _write_whole(self._path, self.rows)
        self._board = self._open_board(folder / "tensorboard", step)

    def add(self, row: Row) -> None:
        """Write a row down, or keep it until that is possible."""
        self.rows.append(row)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                for waiting in self.rows[self._written :]:
                    file.write(json.dumps(waiting, ensure_ascii=False) + "\n")
            self._written = len(self.rows)
        except OSError as error:
            self.notes.append(f"{self._path} can't be written now ({_reason(error)}); I try again")
            self._mend()
        if self._board is not None:
            self._add_to_board(row)

    def close(self) -> None:
        """Write what waits, and close TensorBoard's file."""
        if self._written < len(self.rows):
            _write_whole(self._path, self.rows)
        if self._board is not None:
            self._board.close()

    def _mend(self) -> None:
        """Cut off half a line, so that what waits is written from its beginning."""
        try:
            whole = _bytes_of(self.rows[: self._written])
            os.truncate(self._path, len(whole))
        except OSError:
            pass  # there is no file, or no disk

    def _open_board(self, folder: Path, step: int) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.notes.append("no TensorBoard logs are written: pip install 'jumok[train]'")
            return None
        return SummaryWriter(str(folder), purge_step=step + 1)

    def _add_to_board(self, row: Row) -> None:
        try:
            for name, value in row.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, row["step"])
            for number, (given, made) in enumerate(row.get("samples", [])):
                self._board.add_text(f"sample {number + 1}", f"**{given}**{made}", row["step"])
            self._board.flush()
        except OSError as error:
            self.notes.append(f"TensorBoard's log can't be written ({_reason(error)})")
            self._board = None


def read_rows(path: Path) -> list[Row]:
    """The rows of a ``log.jsonl``; a last line that was cut off is left out."""
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    rows: list[Row] = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _is_torn(path: Path) -> bool:
    content = path.read_bytes()
    return bool(content) and not content.endswith(b"\n")


def _bytes_of(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _write_whole(path: Path, rows: list[Row]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(_bytes_of(rows))
    part.replace(path)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
