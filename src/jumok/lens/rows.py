"""Rows of queries or keys that grow while a model writes: one tensor, then a buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from jumok.lens.keeping import own_bytes


class Rows:
    """Tensors (B, H, T, …) of one call after the other, joined along T.

    The first is held as it is given, and so are whole replacements; what comes later is copied
    into a buffer that doubles, so that a step costs as much as its own rows.
    """

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self._buffer: Tensor | None = None
        self._used = 0

    def __len__(self) -> int:
        """How many rows there are: T."""
        return sum(piece.shape[2] for piece in self._pieces) + self._used

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
        with torch.inference_mode(False), torch.no_grad():
            self._buffer[:, :, self._used : needed] = rows
        self._used = needed

    def replace(self, rows: Tensor) -> None:
        """Hold this tensor in place of everything: it begins with the same rows."""
        self._pieces, self._buffer, self._used = [rows], None, 0

    def move(self, pieces: list[Tensor]) -> None:
        """The same rows, in other memory."""
        self._pieces, self._buffer, self._used = pieces, None, 0

    def whole(self) -> Tensor:
        """All rows as one tensor."""
        if len(self._pieces) > 1 or self._buffer is not None:
            self.replace(torch.cat(self.parts(), dim=2))
        return self._pieces[0]

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
