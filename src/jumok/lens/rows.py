"""Rows of queries or keys that grow while a model writes: one tensor, then a buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from jumok.lens.keeping import own_bytes
from jumok.lens.streaming import Stream


class Rows:
    """Tensors (B, H, T, …) of one call after the other, joined along T.

    The first is held as it is given, and so are whole replacements; what comes later is copied
    into a buffer that doubles, so that a step costs as much as its own rows.
    """

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self._buffer: Tensor | None = None
        self._used = 0
        self._length = 0
        self.names: list[str] = []
        """Names of the pieces that lie in a file: the first ones."""

    def __len__(self) -> int:
        """How many rows there are: T."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(own_bytes(part) for part in self.parts())

    @property
    def like(self) -> Tensor:
        """Any tensor of the kind of the rows."""
        return self._pieces[0]

    def parts(self) -> list[Tensor]:
        """The rows, in order, in as many tensors as they lie in."""
        if self._buffer is None:
            return list(self._pieces)
        return [*self._pieces, self._buffer[:, :, : self._used]]

    def append(self, rows: Tensor) -> None:
        """Add rows at the end; the first ones are held as they are."""
        self._length += rows.shape[2]
        if not self._pieces:
            self._pieces = [rows]
            return
        needed = self._used + rows.shape[2]
        if self._buffer is None or needed > self._buffer.shape[2]:
            old, used = self._buffer, self._used
            shape = (*rows.shape[:2], max(64, 2 * needed), *rows.shape[3:])
            like = self.like
            # Outside inference mode, so that a buffer may serve steps inside and outside it.
            with torch.inference_mode(False):
                self._buffer = torch.empty(shape, dtype=like.dtype, device=like.device)
                if old is not None:
                    self._buffer[:, :, :used] = old[:, :, :used]
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                self._buffer.narrow(2, self._used, rows.shape[2]).copy_(rows)
        else:  # as while a model writes: nothing to switch off
            self._buffer.narrow(2, self._used, rows.shape[2]).copy_(rows)
        self._used = needed

    def may_become(self, rows: Tensor) -> bool:
        """Whether a tensor that begins with the rows is of their kind, and they are in no file."""
        same = rows.dtype == self.like.dtype and rows.device == self.like.device
        return same and not self.names

    def replace(self, rows: Tensor) -> None:
        """Hold this tensor in place of everything: it begins with the same rows."""
        self._pieces, self._buffer, self._used = [rows], None, 0
        self._length = rows.shape[2]

    @property
    def is_split(self) -> bool:
        """Whether they lie in more than one tensor."""
        return len(self.parts()) > 1

    def whole(self) -> Tensor:
        """All rows as one tensor."""
        if not self.is_split:
            return self._pieces[0]
        whole = torch.cat(self.parts(), dim=2)
        if not self.names:
            self.replace(whole)
        return whole

    def unfiled(self) -> list[Tensor]:
        """The parts that are in no file yet."""
        return self.parts()[len(self.names) :]

    def file(self, stream: Stream, name: str) -> None:
        """Move the parts that are in no file yet to the end of one, where they are mapped from."""
        new = [part for part in self.unfiled() if part.shape[2]]
        if not new:
            return
        if self.names:
            name = f"{name}.{len(self.names)}"
        rows = new[0] if len(new) == 1 else torch.cat(new, dim=2)
        in_file = torch.from_numpy(stream.put(name, rows)).view(rows.dtype).view(rows.shape)
        self._pieces = [*self.parts()[: len(self.names)], in_file]
        self._buffer, self._used = None, 0
        self.names.append(name)

    def between(self, start: int, stop: int) -> list[Tensor]:
        """The rows from `start` to below `stop`, in as many tensors as they lie in."""
        found, at = [], 0
        for part in self.parts():
            low, high = max(start, at), min(stop, at + part.shape[2])
            if low < high:
                found.append(part[:, :, low - at : high - at])
            at += part.shape[2]
        return found

    def equal(self, start: int, rows: Tensor) -> bool:
        """Whether the rows from `start` on are these, bit for bit."""
        stop = start + rows.shape[2]
        if start < 0 or stop > len(self):
            return False
        for mine in reversed(self.between(start, stop)):  # the last differ most
            stop -= mine.shape[2]
            if not torch.equal(mine, rows[:, :, stop - start : stop - start + mine.shape[2]]):
                return False
        return True
