"""What the heads of one attention call did, added up over its queries.

Sums, not means: those of several forwards can be added, and the mean over all their queries is
one division at the end. Per head that is a few numbers, and a few tables by position.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jumok.lens import measures
from jumok.lens.call import Array, AttentionCall
from jumok.lens.observers import ByDistance, Largest, Observer, OnKeys, OnTokens

__all__ = ["DEFAULT", "MEASURES", "NEED_IDS", "HeadSums", "head_sums"]

Numbers = np.ndarray[Any, Any]

DEFAULT = ("entropy", "distance", "first", "itself", "previous", "most_read", "most_read_share")
NEED_IDS = ("duplicate", "induction", "prefix_matching", "special")
MEASURES = (
    *DEFAULT,
    "sink_rate", "concentration", "confidence", "positional", "positional_offset", "window",
    *NEED_IDS,
)  # fmt: skip
"""Names of everything that can be asked of a head; `jumok.lens.report.Report` explains them."""

SINK = 0.3  # Gu et al. 2024: a head is a sink if its queries give the first token more than this
WINDOW = 0.9  # the share of attention that `window` holds


@dataclass(eq=False)
class HeadSums:
    """Sums over the real queries of one or more calls of the same heads; ``+`` joins them.

    Attributes:
        names: of `MEASURES`, what was asked for.
        sums: name → float64 (heads,).
        counts: name → by what the sum is divided for its mean: queries, or sequences.
        tables: name → float64 (heads, positions): ``received`` by key, ``far`` by distance,
            ``peaks`` by relative position (0, 1, −1, 2, −2 …).
        queries: how many real queries were added up, over the batch.
    """

    names: tuple[str, ...]
    queries: int
    sums: dict[str, Numbers] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tables: dict[str, Numbers] = field(default_factory=dict)

    @property
    def received(self) -> Numbers:
        """Σ_i w_ij by key position, float64 (heads, keys)."""
        return self.tables["received"]

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers."""
        return sum(part.nbytes for part in (*self.sums.values(), *self.tables.values()))

    def __add__(self, other: HeadSums) -> HeadSums:
        if self.names != other.names:
            raise ValueError(f"sums of {self.names} and of {other.names} cannot be added")
        return HeadSums(
            self.names,
            self.queries + other.queries,
            {name: values + other.sums[name] for name, values in self.sums.items()},
            {name: count + other.counts[name] for name, count in self.counts.items()},
            {name: _add_padded(one, other.tables[name]) for name, one in self.tables.items()},
        )

    def means(self) -> dict[str, Numbers]:
        """Name → one value a head (heads,), in the order of `names`."""
        result = {}
        for name, values in self.sums.items():
            count = self.counts[name]
            result[name] = values / count if count else np.full(values.shape, np.nan)
        received, total = self.received, max(self.queries, 1)
        heads, keys = received.shape
        result["most_read"] = received.argmax(axis=-1) if keys else np.zeros(heads, int)
        result["most_read_share"] = received.max(axis=-1, initial=0.0) / total
        if "concentration" in self.names:
            result["concentration"] = _gini(received)
        if "far" in self.tables:
            result["window"] = _window(self.tables["far"])
        if "peaks" in self.tables:
            peaks = self.tables["peaks"]
            best = peaks.argmax(axis=-1)
            result["positional"] = peaks.max(axis=-1, initial=0.0) / total
            result["positional_offset"] = np.where(best % 2, (best + 1) // 2, -best // 2)
        return {name: result[name] for name in self.names}


def head_sums(
    call: AttentionCall,
    names: Sequence[str] = DEFAULT,
    *,
    ids: Array | None = None,
    special: Collection[int] | None = None,
    also: Sequence[Observer] = (),
) -> HeadSums:
    """Measure one call in one pass.

    Args:
        call: the recorded call.
        names: of `MEASURES`.
        ids: token ids of the keys (B, Tk). Measures that need them are NaN where there are none,
            or where keys or queries are other tokens, as in cross-attention.
        special: ids of the special tokens; ``special`` is NaN without.
        also: are shown every tile as well; one that raises ends the pass.

    Raises:
        ValueError: an unknown name.
    """
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise ValueError(f"no such measure: {unknown}; there are {', '.join(MEASURES)}")
    batch, heads, queries, keys = call.shape
    real = measures.real_queries(call)
    counted = np.ones((batch, queries), bool) if real is None else _numpy(real) > 0
    observers = _observers(call, names, real, _ids_of_keys(call, ids), special)
    got = measures.measure(
        call,
        quantities=[name for name in ("entropy", "distance") if name in names]
        + ["received", "diagonals"]
        + (["columns"] if keys else []),
        observers=[*observers.values(), *also],
    )
    assert got.received is not None
    assert got.diagonals is not None
    received = _numpy(got.received).astype(np.float64)  # (B, H, Tk)
    first = _first_tokens(call, got.columns[0] if got.columns else got.diagonals[0], received)
    rows: dict[str, Array] = {
        "entropy": got.entropy,
        "distance": got.distance,
        "first": first,
        "itself": got.diagonals[0],
        "previous": got.diagonals[-1],
    }
    counts = dict.fromkeys(MEASURES, int(counted.sum()))
    kept = dict.fromkeys(MEASURES, counted)
    tables = {"received": received.sum(axis=0)}
    for name, observer in observers.items():
        if isinstance(observer, OnKeys | OnTokens):
            rows[name] = observer.masses
        if isinstance(observer, OnTokens) and "prefix_matching" in names and name == "induction":
            rows["prefix_matching"] = observer.masses
            kept["prefix_matching"] = counted & observer.matches
            counts["prefix_matching"] = int(kept["prefix_matching"].sum())
        if isinstance(observer, Largest):
            rows["confidence"] = observer.weights
            tables["peaks"] = _peaks(_numpy(observer.keys), counted, keys - queries, keys)
        if isinstance(observer, ByDistance):
            tables["far"] = observer.masses
    sums = {
        name: np.where(kept[name][:, None], _numpy(values).astype(np.float64), 0.0).sum((0, 2))
        for name, values in rows.items()
        if name in names
    }
    for name in NEED_IDS:
        if name in names and name not in sums:
            sums[name] = np.full(heads, np.nan)
    if "sink_rate" in names:
        shares = np.where(counted[:, None], _numpy(first), 0.0).sum(-1, dtype=np.float64)
        alive = counted.sum(axis=-1)
        sums["sink_rate"] = (shares / np.maximum(alive, 1)[:, None] > SINK).sum(0).astype(float)
        counts["sink_rate"] = int((alive > 0).sum())
    return HeadSums(
        tuple(names),
        int(counted.sum()),
        sums,
        {name: counts[name] for name in sums},
        tables,
    )


def _ids_of_keys(call: AttentionCall, ids: Array | None) -> Numbers | None:
    """The ids as (B, Tk), if the keys and the queries are those tokens."""
    batch, _, queries, keys = call.shape
    if ids is None or tuple(ids.shape) != (batch, keys):
        return None
    causal = call.mask is not None and call.mask.is_causal(queries, keys)
    return _numpy(ids) if queries == keys or (queries < keys and causal) else None


def _observers(
    call: AttentionCall,
    names: Sequence[str],
    real: Array | None,
    ids: Numbers | None,
    special: Collection[int] | None,
) -> dict[str, Observer]:
    found: dict[str, Observer] = {}
    if ids is not None:
        if "duplicate" in names:
            found["duplicate"] = OnTokens(call, ids, 0)
        if "induction" in names or "prefix_matching" in names:
            found["induction"] = OnTokens(call, ids, 1)
        if "special" in names and special is not None:
            found["special"] = OnKeys(call, np.isin(ids, list(special)))
    if not {"confidence", "positional", "positional_offset"}.isdisjoint(names):
        found["largest"] = Largest(call)
    if "window" in names:
        found["far"] = ByDistance(call, real)
    return found


def _first_tokens(call: AttentionCall, first: Array, received: Numbers) -> Array:
    """Weights on the first token (B, H, Tq), which is not the first key after padding."""
    batch, heads, queries, keys = call.shape
    starts = (received > 0).any(axis=1).argmax(axis=-1) if keys else np.zeros(batch, int)
    if not starts.any():
        return first
    everyone, rows = range(heads), range(queries)
    return np.stack(
        [
            _numpy(call.weights([b], everyone, rows, range(start, start + 1)))[0, ..., 0]
            for b, start in enumerate(starts.tolist())
        ]
    )


def _peaks(where: Numbers, counted: Numbers, behind: int, keys: int) -> Numbers:
    """How often each relative position has a row's largest weight, in the order 0, 1, −1, 2 …"""
    _, heads, queries = where.shape
    offsets = where - (np.arange(queries) + behind)
    folded = np.where(offsets > 0, 2 * offsets - 1, -2 * offsets)
    use = (where >= 0) & counted[:, None]
    length = 2 * max(keys, queries) + 1
    return np.stack(
        [np.bincount(folded[:, h][use[:, h]], minlength=length) for h in range(heads)]
    ).astype(np.float64)


def _window(masses: Numbers) -> Numbers:
    """The smallest w such that keys fewer than w away hold the share `WINDOW` of (heads, d)."""
    total = masses.cumsum(axis=-1)
    reached = total >= WINDOW * total[:, -1:] * (1 - 1e-6)  # weights are exact to 1e-6
    first: Numbers = reached.argmax(axis=-1)
    return first + 1


def _gini(received: Numbers) -> Numbers:
    """Gini coefficient of each row (heads, keys): 0 all alike, towards 1 one key has it all."""
    n = received.shape[1]
    if not n:
        return np.zeros(len(received))
    ordered = np.sort(received, axis=-1)
    ranks = 2 * np.arange(1, n + 1) - n - 1
    total = ordered.sum(axis=-1)
    result: Numbers = (ordered * ranks).sum(axis=-1) / (n * np.where(total > 0, total, 1.0))
    return result


def _add_padded(one: Numbers, other: Numbers) -> Numbers:
    """The sum of (heads, positions) of different lengths."""
    if one.shape[1] < other.shape[1]:
        one, other = other, one
    result: Numbers = one.copy()
    result[:, : other.shape[1]] += other
    return result


def _numpy(array: Array) -> Numbers:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)
