"""Where what stands at the last layer comes from: rollout, and the strongest ways it takes.

Attention rollout (Abnar & Zuidema 2020), as in `jumok.lens.rollout`, layer by layer so that it can
be stopped. An edge is what of a token's part above a layer goes to a token below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from jumok.lens.attention_map import AttentionMap
from jumok.lens.rollout import one_hot, through
from jumok.lens.tiles import Tile
from jumok.lens.value_notes import norms_to_weigh_with
from jumok.view.stopping import Stop

__all__ = ["Traced", "trace"]

Numbers = np.ndarray[Any, np.dtype[Any]]

_MOST_TOKENS = 24  # of a layer whose edges are looked at


@dataclass(frozen=True, eq=False)
class Traced:
    """The way down.

    Attributes:
        lowest: the layer before which it ends, 0 at the input.
        layers: float32 (L + 1, tokens); row 0 at the input, row L the queries themselves. Rows
            below `lowest` are zero.
        edges: int32 (n, 3): layer, token above, token below.
        amounts: float32 (n,).
        kept: of each layer, what part of its flow the edges carry; 1 below `lowest`.
        note: what the heads were weighed with.
        measure: "raw" or "norm".
        flow: row `lowest` in the numbers it was computed in, to go on from.
        norms: what keys were weighed with, or `None`.
    """

    lowest: int
    layers: Numbers
    edges: Numbers
    amounts: Numbers
    kept: tuple[float, ...]
    note: str
    measure: str
    flow: Any
    norms: list[Any] | None


def trace(
    maps: Sequence[AttentionMap],
    batch: int,
    queries: Sequence[int],
    *,
    residual: float = 0.5,
    norm: bool = False,
    edges: int = 240,
    lowest: int = 0,
    begun: Traced | None = None,
    stop: Stop | None = None,
) -> Traced:
    """Rollout from some queries, on average, down through maps over the same tokens.

    Args:
        maps: from the first layer to the last.
        batch: which sequence.
        queries: where it starts.
        residual: part of the residual connection, 0 to 1.
        norm: weigh heads and keys with the norms of the values, normalised over all of a row.
        edges: how many ways to give in all.
        lowest: the layer before which to end.
        begun: the same way, only not as far down; it is gone on from there.
        stop: says when nobody waits any more.
    """
    stop = stop or Stop()
    tokens = maps[0].shape[3]
    if begun is None:
        norms, note = norms_to_weigh_with(maps, raw=not norm)
        start = one_hot(maps[-1].call.q, tuple(queries), tokens)
        xp = array_namespace(start)
        flow = xp.mean(start, axis=0)[None]
        layers = np.zeros((len(maps) + 1, tokens), np.float32)
        layers[-1] = _numpy(flow)[0]
        ways: list[tuple[Numbers, Numbers]] = []
        kept: tuple[float, ...] = (1.0,) * len(maps)
        top = len(maps)
    else:
        flow, layers, kept, top = begun.flow, begun.layers.copy(), begun.kept, begun.lowest
        norms, note = begun.norms, begun.note
        xp = array_namespace(flow)
        ways = [(begun.edges, begun.amounts)]
    each = -(-edges // len(maps)) if edges else 0
    for number in reversed(range(lowest, top)):
        stop.check()
        own = None if norms is None else norms[number][batch]

        def rewrite(weights: Any, tile: Tile, own: Any = own) -> Any:
            stop.check()
            if own is None:
                return None
            weights *= own[tile.heads, tile.columns][:, None]
            total = xp.sum(xp.sum(weights, axis=-1), axis=0)
            return xp.where(total > 0, total, xp.ones_like(total))

        above = _numpy(flow)[0]
        carried = 0.0
        if each:
            way = _strongest(maps[number], batch, above, residual, own, each, number)
            carried = float(way[1].sum() / max(above.sum(), 1e-30))
            ways.insert(0, way)
        kept = (*kept[:number], carried, *kept[number + 1 :])
        passed = through(maps[number].call, flow, batch, rewrite, whole=own is not None)
        flow = residual * flow + (1 - residual) * passed
        layers[number] = _numpy(flow)[0]
    return Traced(
        lowest,
        layers,
        np.concatenate([np.zeros((0, 3), np.int32), *(found for found, _ in ways)]),
        np.concatenate([np.zeros(0, np.float32), *(found for _, found in ways)]),
        kept,
        note if norm else "mean of the heads' weights",
        "raw" if norms is None else "norm",
        flow,
        norms,
    )


def _strongest(
    attention: AttentionMap,
    batch: int,
    above: Numbers,
    residual: float,
    norms: Any,
    most: int,
    layer: int,
) -> tuple[Numbers, Numbers]:
    """The largest ways through one layer: (n, 3) and (n,)."""
    tokens = np.argsort(-above, kind="stable")[:_MOST_TOKENS]
    tokens = np.sort(tokens[above[tokens] > 0])
    found: list[tuple[int, int, float]] = []
    for token in tokens.tolist():
        weights = _numpy(attention[batch, :, token]).astype(np.float64)
        if norms is None:
            passed = weights.mean(0)
        else:
            brought = (weights * _numpy(norms)).sum(0)
            passed = brought / (brought.sum() or 1.0)
        passed *= 1 - residual
        passed[token] += residual
        passed *= float(above[token])
        best = np.argsort(-passed, kind="stable")[:most]
        found += [(token, int(to), float(passed[to])) for to in best if passed[to] > 0]
    found.sort(key=lambda way: -way[2])
    found = sorted(found[:most])
    edges = np.array([(layer, token, to) for token, to, _ in found], np.int32).reshape(-1, 3)
    return edges, np.array([amount for _, _, amount in found], np.float32)


def _numpy(array: Any) -> Numbers:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)
