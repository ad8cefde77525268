"""W_O, the linear map that takes an attention's output: never built whole if it is a sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Term:
    """``factor · matrices[0] · matrices[1] · …``, the last of which takes the output.

    Attributes:
        factor: a number, or one for each row (output width,).
        matrices: (…, heads · Dv), quantised or not.
    """

    factor: float | Tensor
    matrices: tuple[Tensor, ...]

    def times(self, factor: float | Tensor) -> Term:
        return Term(self.factor * factor, self.matrices)

    def columns(self, start: int, stop: int) -> Tensor:
        """float32 (output width, stop − start)."""
        *others, last = (_dense(matrix) for matrix in self.matrices)
        part = last[:, start:stop].float()
        for matrix in reversed(others):
            part = matrix.float() @ part
        if isinstance(self.factor, Tensor):
            return self.factor.float()[:, None] * part
        return part if self.factor == 1 else self.factor * part


class OutputMap:
    """A matrix (output width, heads · Dv), as a sum of products: ``W + scaling · B A`` of LoRA.

    Without terms it is the identity: nothing maps the output.

    Args:
        width: heads · Dv.
        terms: see `Term`.
    """

    def __init__(self, width: int, terms: tuple[Term, ...] = ()) -> None:
        self.width = width
        self.terms = terms

    @property
    def is_identity(self) -> bool:
        return not self.terms

    @property
    def shape(self) -> tuple[int, int]:
        height = self.terms[0].matrices[0].shape[0] if self.terms else self.width
        return height, self.width

    def __getitem__(self, index: tuple[slice, slice]) -> Tensor:
        """``[:, start:stop]``: some columns, such as those of one head."""
        rows, columns = index
        assert rows == slice(None)
        start, stop, _ = columns.indices(self.width)
        with torch.no_grad():
            if self.is_identity:
                return torch.eye(stop - start)
            parts = [term.columns(start, stop) for term in self.terms]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            return total

    def is_inference(self) -> bool:
        """Whether nobody counts the writes to it."""
        return any(matrix.is_inference() for term in self.terms for matrix in term.matrices)

    @property
    def _version(self) -> int:
        """How often its matrices have been written to."""
        return sum(matrix._version for term in self.terms for matrix in term.matrices)


def _dense(matrix: Tensor) -> Tensor:
    """Plain numbers of a quantised matrix."""
    kind: Any = type(matrix)
    if matrix.is_quantized or (kind not in _PLAIN and hasattr(matrix, "dequantize")):
        numbers: Tensor = matrix.dequantize()
        return numbers
    return matrix


_PLAIN = (Tensor, torch.nn.Parameter)
