"""The source of a map that was measured while the model ran, and of which no tensors are kept."""

from __future__ import annotations

from typing import NoReturn

from jumok.lens.heads import HeadSums


class Tally:
    """Sums over all calls of one attention module; those of several forwards come together.

    Args:
        name: module path.
        heads: numbers of the query heads in the model.
    """

    def __init__(self, name: str, heads: tuple[int, ...]) -> None:
        self.name = name
        self.heads = heads
        self.shape = (0, len(heads), 0, 0)
        self._sums: HeadSums | None = None

    def add(self, sums: HeadSums, shape: tuple[int, int, int, int]) -> None:
        """Add the sums of one call; the longest call gives the shape."""
        self._sums = sums if self._sums is None else self._sums + sums
        self.shape = max(self.shape, shape, key=lambda one: one[2] * one[3])

    @property
    def measured(self) -> HeadSums:
        assert self._sums is not None
        return self._sums

    @property
    def held_bytes(self) -> int:
        parts = (*self.measured.sums.values(), *self.measured.tables.values())
        return sum(int(part.nbytes) for part in parts)

    @property
    def value_note(self) -> str:
        return "the values were not kept: it was measured while the model ran"

    @property
    def has_value_norms(self) -> bool:
        return False

    def value_norms(self) -> None:
        return None

    def call(self) -> NoReturn:
        raise ValueError(
            f"{self.name} was measured while the model ran (watch(…, measure=…)), and no tensors "
            f"were kept: jumok.report(recording) has the numbers. To look at weights, record "
            f"without measure=…, with fewer layers or heads or to='disk' if memory is short"
        )
