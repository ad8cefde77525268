"""Tables of passages that read passages: of every head, of every layer, and joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from jumok.lens.masses import group_masses, visible_shares
from jumok.lens.segment_layout import read_edges, real_positions
from jumok.lens.selection import self_attention

if TYPE_CHECKING:
    from jumok.lens.attention_map import AttentionMap
    from jumok.lens.recording import Recording

__all__ = ["Measured", "Tables", "measure_passages", "segment_tables"]

Numbers = np.ndarray[Any, np.dtype[Any]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Tables:
    """S × C tables of one measure, rows read columns: of every head, of every layer, and joined.

    Attributes:
        layers: indices of the layers, from 0.
        head_numbers: of each layer the numbers of its heads in the model.
        heads: of each layer the tables of its heads, float32 (H, S, C).
        added: whether heads are added (parts of one whole) or averaged (raw weights).
    """

    layers: tuple[int, ...]
    head_numbers: tuple[tuple[int, ...], ...]
    heads: tuple[Numbers, ...]
    added: bool

    @property
    def by_layer(self) -> Numbers:
        """The heads of each layer joined, float64 (L, S, C)."""
        join = np.sum if self.added else np.mean
        return np.stack([join(table, axis=0, dtype=np.float64) for table in self.heads])

    @property
    def total(self) -> Numbers:
        """The mean over the layers, float64 (S, C)."""
        mean: Numbers = self.by_layer.mean(axis=0)
        return mean


def segment_tables(
    recording: Recording,
    bounds: Sequence[int],
    *,
    layers: int | Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    norm_weighted: bool = False,
    batch: int = 0,
) -> Tables:
    """How much each passage reads of each, by the passages' bounds in tokens.

    Args:
        recording: with self-attention maps (B, H, T, T).
        bounds: where the passages start and end, both ends included: ``[0, 120, 800]`` are the
            two passages 0…119 and 120…799, S = 2.
        layers: which layers, from 0; all of them by default.
        heads: which heads of each layer, from 0; all of them by default.
        norm_weighted: shares of w_ij · ‖v_j W_O^(h)‖ over all heads and keys instead of weights;
            tables of heads then add up to that of their layer.
        batch: which text of the batch.

    Returns:
        `Tables` with C = S: entry (s, t) is what passage s reads of passage t, the mean over its
        tokens (padded ones left out). 0 where no token stands in s.

    Raises:
        ValueError: bounds, layers or heads outside the recording; norm-weighted where the output
            projection is unknown.
    """
    size = _text_size(recording)
    maps = self_attention(recording, layers, size)
    edges = read_edges(bounds, size)
    count = len(edges) - 1
    groups = np.full(size, count)  # one more group for all that is in no passage
    for number, (low, high) in enumerate(pairwise(edges)):
        groups[low:high] = number
    real = real_positions(maps[0][1], batch)
    readers = [np.flatnonzero((groups == number) & real) for number in range(count)]
    norms: list[Any] | None = None
    if norm_weighted:
        norms = [attention.value_norms() for _, attention in maps]
        for (_, attention), norm in zip(maps, norms, strict=True):
            if norm is None:
                raise ValueError(f"{attention.name} has no norm-weighted: {attention.value_note}")
    measured = measure_passages(maps, norms, groups, count + 1, readers, batch, None)
    tables = measured.share if norm_weighted else measured.raw
    if heads is not None:
        tables = _of_heads(tables, list(heads))
    return dataclasses.replace(tables, heads=tuple(one[..., :count] for one in tables.heads))


def _of_heads(tables: Tables, heads: list[int]) -> Tables:
    """Some heads of each layer, by their numbers in the model."""
    for layer, known in zip(tables.layers, tables.head_numbers, strict=True):
        wrong = [head for head in heads if head not in known]
        if wrong:
            raise ValueError(
                f"there is no head {wrong[0]} in layer {layer}: its heads are "
                f"{', '.join(map(str, known))}"
            )
    return dataclasses.replace(
        tables,
        head_numbers=(tuple(heads),) * len(tables.layers),
        heads=tuple(
            table[[known.index(head) for head in heads]]
            for known, table in zip(tables.head_numbers, tables.heads, strict=True)
        ),
    )


def _text_size(recording: Recording) -> int:
    """How many tokens the text has that the model read by self-attention."""
    for attention in recording:
        if attention.shape[2] == attention.shape[3]:
            return attention.shape[3]
    raise ValueError("the recording has no self-attention map, in which passages could read others")


@dataclass(frozen=True)
class Measured:
    """Tables of shares and of plain weights, and what even readers would read, (S, C)."""

    share: Tables
    raw: Tables
    even: Numbers


def measure_passages(
    maps: Sequence[tuple[int, AttentionMap]],
    norms: Sequence[Any] | None,
    groups: Numbers,
    columns: int,
    readers: Sequence[Numbers],
    batch: int,
    progress: Progress | None,
) -> Measured:
    """One pass over each layer; rows averaged over each reader.

    Queries and keys of a map are the last of the text, where they aren't all of it.
    """
    raws, shares = [], []
    even = np.zeros((len(readers), columns))
    known: list[tuple[Any, int, Numbers]] = []  # what even readers read, by mask and keys

    def averaged(rows: Numbers) -> Numbers:  # (…, Tq, C) → (…, S, C)
        zero = np.zeros((*rows.shape[:-2], columns))
        first = len(groups) - rows.shape[-2]
        inside = [own[own >= first] - first for own in readers]
        means = [rows[..., own, :].mean(-2) if len(own) else zero for own in inside]
        return np.stack(means, axis=-2)

    for number, (_, attention) in enumerate(maps):
        call = attention.call
        norm = None if norms is None else norms[number][batch]
        keys = call.shape[3]
        seen = groups[len(groups) - keys :]
        masses = group_masses(call, seen, columns, norm, batch)
        raw = _numpy(masses.raw)
        raws.append(averaged(raw).astype(np.float32))
        if masses.brought is not None:
            brought = _numpy(masses.brought)
            total = brought.sum(axis=(0, 2), dtype=np.float64)[:, None]
            brought /= np.where(total > 0, total, 1.0)
            shares.append(averaged(brought).astype(np.float32))
        evenly = next(
            (rows for mask, size, rows in known if size == keys and _same(mask, call.mask)), None
        )
        if evenly is None:
            evenly = averaged(visible_shares(call, seen, columns, batch))
            known.append((call.mask, keys, evenly))
        even += evenly / len(maps)
        if progress is not None:
            progress(number + 1, len(maps))
    layers = tuple(layer for layer, _ in maps)
    numbers = tuple(attention.heads for _, attention in maps)
    plain = Tables(layers, numbers, tuple(raws), added=False)
    whole = Tables(layers, numbers, tuple(shares), added=True) if shares else plain
    return Measured(whole, plain, even)


def _same(mask: Any, other: Any) -> bool:
    """The same rule; those that hold arrays are compared by identity."""
    return mask is other or (type(mask) is type(other) and bool(mask == other))


def _numpy(array: Any) -> Numbers:
    on_host = array.cpu() if hasattr(array, "cpu") else array
    return np.asarray(on_host)
