"""What the heads of one attention call did, added up over its queries.

Sums, not means: those of several forwards can be added, and the mean over all their queries is
one division at the end. Per head that is a few numbers, and the attention that each position
received.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jumok.lens import measures
from jumok.lens.call import Array, AttentionCall

__all__ = ["DEFAULT", "MEASURES", "HeadSums", "head_sums"]

Numbers = np.ndarray[Any, Any]

DEFAULT = ("entropy", "distance", "first", "itself", "previous", "most_read", "most_read_share")
MEASURES = DEFAULT
"""Names of everything that can be asked of a head."""


@dataclass(eq=False)
class HeadSums:
    """Sums over the real queries of one or more calls of the same heads; ``+`` joins them.

    Attributes:
        names: of `MEASURES`, what was asked for.
        queries: how many real queries were added up, over the batch.
        texts: how many sequences they stood in.
        sums: name → float64 (heads,).
        received: Σ_i w_ij by key position, float64 (heads, keys).
    """

    names: tuple[str, ...]
    queries: int
    texts: int
    sums: dict[str, Numbers] = field(default_factory=dict)
    received: Numbers = field(default_factory=lambda: np.zeros((0, 0)))

    def __add__(self, other: HeadSums) -> HeadSums:
        if self.names != other.names:
            raise ValueError(f"sums of {self.names} and of {other.names} cannot be added")
        return HeadSums(
            self.names,
            self.queries + other.queries,
            self.texts + other.texts,
            {name: values + other.sums[name] for name, values in self.sums.items()},
            _add_padded(self.received, other.received),
        )

    def means(self) -> dict[str, Numbers]:
        """Name → one value a head (heads,), in the order of `names`."""
        total = max(self.queries, 1)
        result = {name: values / total for name, values in self.sums.items()}
        heads, keys = self.received.shape
        result["most_read"] = self.received.argmax(axis=-1) if keys else np.zeros(heads, int)
        result["most_read_share"] = self.received.max(axis=-1, initial=0.0) / total
        return {name: result[name] for name in self.names}


def head_sums(
    call: AttentionCall,
    names: Sequence[str] = DEFAULT,
    *,
    ids: Array | None = None,
    special: Sequence[int] = (),
) -> HeadSums:
    """Measure one call in one pass.

    Args:
        call: the recorded call.
        names: of `MEASURES`.
        ids: token ids of the keys (batch, Tk), for the measures that compare tokens.
        special: ids of the special tokens.

    Raises:
        ValueError: an unknown name, or one that needs ids where there are none.
    """
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise ValueError(f"no such measure: {unknown}; there are {list(MEASURES)}")
    got = measures.measure(call)
    assert got.received is not None
    assert got.columns is not None
    assert got.diagonals is not None
    real = measures.real_queries(call)
    batch, heads, queries, keys = call.shape
    counted = np.ones((batch, queries), bool) if real is None else _numpy(real)

    def total(values: Array) -> Numbers:
        whole = np.where(counted[:, None], _numpy(values).astype(np.float64), 0.0)
        summed: Numbers = whole.sum(axis=(0, 2))
        return summed

    received = _numpy(got.received).astype(np.float64)  # (batch, heads, keys)
    first = got.columns[0]
    starts = (received > 0).any(axis=1).argmax(axis=-1) if keys else np.zeros(batch, int)
    if starts.any():  # padding on the left: the first token is not the first key
        everyone, all_rows = range(heads), range(queries)
        first = np.stack(
            [
                _numpy(call.weights([b], everyone, all_rows, range(start, start + 1)))[0, ..., 0]
                for b, start in enumerate(starts.tolist())
            ]
        )
    sums = {
        "entropy": total(got.entropy),
        "distance": total(got.distance),
        "first": total(first),
        "itself": total(got.diagonals[0]),
        "previous": total(got.diagonals[-1]),
    }
    return HeadSums(
        tuple(names),
        int(counted.sum()),
        batch,
        {name: values for name, values in sums.items() if name in names},
        received.sum(axis=0),
    )


def _add_padded(one: Numbers, other: Numbers) -> Numbers:
    """The sum of (heads, keys) of different lengths."""
    if one.shape[1] < other.shape[1]:
        one, other = other, one
    result: Numbers = one.copy()
    result[:, : other.shape[1]] += other
    return result


def _numpy(array: Array) -> Numbers:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)
