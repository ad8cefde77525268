"""The T×T weights of one attention call, as an array that is never stored.

An `AttentionMap` looks like a read-only array of shape (batch, heads, queries, keys). Asking
for its metadata computes nothing; indexing it gives exact float32 weights of just that part;
its measures run in row blocks, in memory that grows with the number of tokens, not its square.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Protocol

from array_api_compat import array_namespace, device

from jumok.lens import gathers, measures
from jumok.lens.call import Array, AttentionCall
from jumok.lens.heads import HeadSums

BYTE_LIMIT = 2 << 30
"""Largest array of weights, in bytes, that is built on request; assign to change it."""

_BLOCK_BYTES = 16 << 20  # of weights, and of q and k in float32, that are worked on at once


class CallSource(Protocol):
    """Where a map gets its call from: a live recording, or a file."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, int, int, int]: ...

    @property
    def held_bytes(self) -> int: ...

    @property
    def heads(self) -> tuple[int, ...]: ...

    @property
    def measured(self) -> HeadSums | None: ...

    @property
    def value_note(self) -> str: ...

    @property
    def has_value_norms(self) -> bool: ...

    def call(self) -> AttentionCall: ...

    def value_norms(self) -> Array | None: ...


class AttentionMap:
    """Lazy attention weights (batch, query heads, queries, keys) of one recorded call.

    Indexing with integers, slices and ``...`` computes exact weights in float32, detached, on
    the device of the recording: torch tensors while it is live, NumPy arrays when it was opened
    from a file. Arithmetic is refused; take the part you want first: ``m[0, 3] + 1``.
    """

    __array_ufunc__ = None  # NumPy would otherwise build the whole array for `2 * m`

    def __init__(self, source: CallSource) -> None:
        self._source = source
        self._call: AttentionCall | None = None
        self._seen: AttentionCall | None = None

    # -- metadata: nothing is computed --------------------------------------------------------

    @property
    def name(self) -> str:
        """Module path of the attention in its model; ``name#1`` for its second call."""
        return self._source.name

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, query heads, queries, keys)."""
        return self._source.shape

    @property
    def heads(self) -> tuple[int, ...]:
        """The model's numbers of the query heads along axis 1.

        0, 1, 2 … unless only some were recorded: of ``watch(model, heads=[3, 7])`` the weights
        of head 3 are ``m[:, 0]``, those of head 7 ``m[:, 1]``, and ``heads`` is ``(3, 7)``.
        """
        return self._source.heads

    @property
    def measured(self) -> HeadSums | None:
        """What was measured while the model ran; `None` where q and k are recorded."""
        return self._source.measured

    @property
    def ndim(self) -> int:
        """Always 4."""
        return 4

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> Any:
        """float32 of the recorded array library."""
        return array_namespace(self.call.q).float32

    @property
    def device(self) -> Any:
        """Where the recorded q and k are, and where weights are computed."""
        return device(self.call.q)

    @property
    def nbytes(self) -> int:
        """Bytes that all weights would take in float32. None of them are held."""
        return 4 * self.size

    @property
    def held_bytes(self) -> int:
        """Bytes of the record that are really held: q, k, v, lse, masks and biases."""
        return self._source.held_bytes

    @property
    def is_causal(self) -> bool:
        """Whether the mask keeps every query from all later keys."""
        queries, keys = self.shape[2:]
        mask = self.call.mask
        if mask is None:
            return queries == 1
        return queries == 1 or mask.is_causal(queries, keys)

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        return (
            f"AttentionMap({self.name!r}, batch={batch}, heads={heads}, queries={queries}, "
            f"keys={keys}, float32, {readable_bytes(self.nbytes)} if it were stored)"
        )

    # -- the record ---------------------------------------------------------------------------

    @property
    def call(self) -> AttentionCall:
        """The recorded q, k, v, mask, scale and lse.

        A kernel that did not give its lse has it computed here, once.
        """
        recorded = self._source.call()
        if self._call is None or recorded is not self._seen:
            call = recorded
            if call.lse is None:
                call = dataclasses.replace(call, lse=measures.log_normalizers(call))
            self._seen, self._call = recorded, call
        return self._call

    @property
    def record(self) -> AttentionCall:
        """The call as it was recorded, with lse `None` if the kernel did not give it."""
        return self._source.call()

    def value_norms(self) -> Array | None:
        """‖v_j W_O^(h)‖ for each head h and key j, float32 (batch, heads, keys).

        What a head can hand over from key j if it reads nothing else (Kobayashi et al. 2020).
        `None` where the output projection is unknown or does not apply: see `value_note`.
        """
        return self._source.value_norms()

    @property
    def value_note(self) -> str:
        """Where `value_norms` come from, or why there are none."""
        return self._source.value_note

    # -- as an array --------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> Array:
        parts, dropped = _read_index(index, self.shape, self.name)
        shape = tuple(len(part) for part in parts)
        size = 4 * math.prod(shape)
        if size > BYTE_LIMIT:
            raise ValueError(
                f"{self.name}{_shown(index)} has shape {shape} and would take "
                f"{readable_bytes(size)}, over the limit of {readable_bytes(BYTE_LIMIT)}. Take a "
                f"slice, such as [0, 3, -1], or a measure, such as .pooled(512) or .top(8); or "
                f"raise jumok.lens.attention_map.BYTE_LIMIT"
            )
        call = self.call
        xp = array_namespace(call.q)
        batch, heads, rows, columns = parts
        result = xp.zeros(shape, dtype=xp.float32, device=device(call.q))
        if size:
            per_row = 4 * len(heads) * int(call.q.shape[3])
            for (b_at, b), (left, across), (top, down) in product(
                enumerate(batch),
                _blocks(columns, _BLOCK_BYTES // (2 * max(per_row, 1))),
                _blocks(rows, _BLOCK_BYTES // max(per_row, 4 * len(heads) * len(columns), 1)),
            ):
                flat_rows, flat_columns = _hull(down), _hull(across)
                tile = call.weights([b], heads, flat_rows, flat_columns)[0]
                tile = _every(xp, _every(xp, tile, 1, down.step), 2, across.step)
                result[b_at, :, top, left] = tile
        return result[tuple(0 if drop else slice(None) for drop in dropped)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError(
                f"{self.name}: the weights are not stored, so they cannot be had without a copy; "
                f"leave out copy=False"
            )
        import numpy

        whole = self[...]
        array = numpy.asarray(whole.cpu() if hasattr(whole, "cpu") else whole)
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, *, copy: bool | None = None, **keywords: Any) -> Any:
        if copy is False:
            raise BufferError(
                f"{self.name}: the weights are not stored, so they cannot be had without a copy"
            )
        return self[...].__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.call.q.__dlpack_device__()

    def _no_arithmetic(self, *_: Any) -> Any:
        raise TypeError(
            f"{self.name}: the weights are not stored, so there is no arithmetic on the whole map. "
            f"Take the part you want first, such as m[0, 3] + 1, or a measure, such as m.entropy()"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_arithmetic
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __neg__ = _no_arithmetic

    # -- measures -----------------------------------------------------------------------------

    def measure(self, *quantities: str, **options: Any) -> measures.Measures:
        """Several measures in one pass over the rows; see `jumok.lens.measures.measure`."""
        return measures.measure(self.call, quantities=quantities, **options)

    def entropy(self) -> Array:
        """−Σ_j w_ij ln w_ij of every row, in nats, float32 (batch, heads, queries)."""
        return self.measure("entropy").entropy

    def distance(self) -> Array:
        """Mean distance Σ_j w_ij |p_i − j|, in tokens, float32 (batch, heads, queries).

        p_i = i + keys − queries is the key position of query i.
        """
        return self.measure("distance").distance

    def received(self) -> Array:
        """Attention received by each key, Σ_i w_ij, float32 (batch, heads, keys).

        Queries that are padding (whose own key nobody may see) are left out.
        """
        return self.measure("received").received

    def column(self, key: int) -> Array:
        """Weights of all queries on one key, float32 (batch, heads, queries)."""
        if not isinstance(key, int):
            raise TypeError(f"column takes one key index; got {key!r}")
        return self[:, :, :, key]

    def diagonal(self, offset: int = 0) -> Array:
        """Weight of each query on the key `offset` away from its own position.

        key = query + keys − queries + offset: 0 is the token itself, −1 the one before it.

        Returns:
            float32 (batch, heads, queries); 0 where there is no such key.
        """
        if not isinstance(offset, int):
            raise TypeError(f"diagonal takes one offset; got {offset!r}")
        return gathers.diagonal(self.call, offset)

    def segments(self, bounds: Sequence[int]) -> Array:
        """How much each passage reads of each passage; see `jumok.lens.measures.segments`."""
        return measures.segments(self.call, bounds)

    def top(self, k: int) -> tuple[Array, Array]:
        """The k largest weights of every row: (indices, weights), each (B, H, queries, k).

        Sorted from the largest; padded with index −1 and weight 0 where fewer keys are visible.
        """
        return measures.top(self.call, k)

    def pooled(self, size: int, how: str = "max") -> Array:
        """The map shrunk to at most size × size cells, float32 (batch, heads, rows, columns).

        Args:
            size: largest number of cells along each side.
            how: ``"max"``, the largest weight of each cell, or ``"mean"``.
        """
        return measures.pooled(self.call, size, how)


def readable_bytes(count: int) -> str:
    """A number of bytes for people: ``'1.5 GB'`` (powers of 1000)."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _blocks(axis: range, most: int) -> Iterator[tuple[slice, range]]:
    """Parts of an axis that span at most so many of the map: where they go, and what they are."""
    step = max(1, most // abs(axis.step))
    for start in range(0, len(axis), step):
        part = axis[start : start + step]
        yield slice(start, start + len(part)), part


def _hull(part: range) -> range:
    """All numbers from the smallest to the largest, with step 1."""
    return range(min(part[0], part[-1]), max(part[0], part[-1]) + 1)


def _every(xp: Any, array: Array, axis: int, step: int) -> Array:
    """``array[::step]`` along an axis, also backwards."""
    if step < 0:
        array = xp.flip(array, axis=axis)
    index = (slice(None),) * axis + (slice(None, None, abs(step)),)
    return array if abs(step) == 1 else array[index]


def _shown(index: Any) -> str:
    def one(part: Any) -> str:
        if part is Ellipsis:
            return "..."
        if isinstance(part, slice):
            ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
            return ":".join(ends + ([str(part.step)] if part.step is not None else []))
        return str(part)

    return (
        "["
        + ", ".join(one(part) for part in (index if isinstance(index, tuple) else (index,)))
        + "]"
    )


def _read_index(
    index: Any, shape: tuple[int, ...], name: str
) -> tuple[tuple[range, range, range, range], list[bool]]:
    """Each axis as a range, and which axes an integer drops."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError(f"{name}{_shown(index)}: only one '...' is allowed")
    if Ellipsis not in [part if part is Ellipsis else None for part in parts]:
        parts.append(Ellipsis)
    at = next(number for number, part in enumerate(parts) if part is Ellipsis)
    fill = len(shape) - (len(parts) - 1)
    if fill < 0:
        raise IndexError(
            f"{name}{_shown(index)}: {len(parts) - 1} indices, but a map has 4 axes "
            f"(batch, heads, queries, keys) = {shape}"
        )
    parts[at : at + 1] = [slice(None)] * fill
    ranges, dropped = [], []
    for axis, (part, length) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, slice):
            ranges.append(range(length)[part])
            dropped.append(False)
        elif hasattr(part, "__index__") and not isinstance(part, bool):
            number = part.__index__()
            if not -length <= number < length:
                what = ("batch", "heads", "queries", "keys")[axis]
                raise IndexError(
                    f"{name}{_shown(index)}: index {number} is out of range for the {length} "
                    f"{what} of shape {shape}"
                )
            number %= length
            ranges.append(range(number, number + 1))
            dropped.append(True)
        else:
            raise TypeError(
                f"{name}: a map takes integers, slices and '...', not {type(part).__name__}"
            )
    return (ranges[0], ranges[1], ranges[2], ranges[3]), dropped
