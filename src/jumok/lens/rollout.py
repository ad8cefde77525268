"""Through all layers: where what stands at the last layer comes from.

A row vector walks from the top of the model to its bottom. In each layer it is multiplied with
the mean of the heads' weights, tile by tile as these are computed, so that memory grows with the
number of tokens and each layer costs one pass over the rows that matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from jumok.lens.attention_map import AttentionMap
from jumok.lens.call import Array, AttentionCall
from jumok.lens.tiles import Tile, Tiles

__all__ = ["Rollout", "rollout"]

_STRIP = 1 << 22  # weights of whole rows of all heads that are held at once: 16 MB


@dataclass(frozen=True, eq=False)
class Rollout:
    """How attention flows from some queries at the top of the model down to the tokens.

    Attributes:
        queries: the positions that were asked for.
        flow: float32 (queries, tokens): what part of each query comes from each input token.
        layers: float32 (layers, queries, tokens): the same at the input of each layer, from the
            first; ``layers[0]`` is `flow`.
        note: what the heads were weighed with.
    """

    queries: tuple[int, ...]
    flow: Array
    layers: Array
    note: str


def rollout(
    recording: Sequence[AttentionMap],
    query: int | Sequence[int] = -1,
    residual: float = 0.5,
    norm_weighted: bool = False,
    batch: int = 0,
) -> Rollout:
    """Attention rollout: the flow from chosen queries through all layers.

    ``r ← residual · r + (1 − residual) · r · W̄``, from the last layer to the first, where r
    begins as the query alone and W̄ is the mean of the layer's heads (Abnar & Zuidema 2020,
    "Quantifying Attention Flow in Transformers"). Each row of the flow adds up to 1, less what
    sinks without a key and rows that see nothing take.

    Args:
        recording: from `jumok.watch` or `jumok.open`, or some of its maps, from the first layer
            to the last: self-attention over the same tokens.
        query: position of a token, or several; negative ones count from the end.
        residual: weight of the residual connection, from 0 to 1.
        norm_weighted: each head's weights times ‖v_j W_O‖, normalised over all keys and heads
            (after Kobayashi et al. 2020), in the place of the plain mean. Where no output
            projection was found, ‖v_j‖ alone.
        batch: which sequence of the batch.

    Returns:
        Arrays of the recording's kind; see `Rollout`.

    Raises:
        ValueError: the maps are not of the same tokens, a position or sequence that is not
            there, a residual outside 0…1, or a layer of which the norms are not known.
    """
    maps, tokens = same_tokens(recording)
    queries = positions(query, tokens, batch, maps)
    if not 0 <= residual <= 1:
        raise ValueError(f"residual={residual!r}: the residual connection's part, from 0 to 1")
    norms = [_norms(found) if norm_weighted else None for found in maps]
    flow = one_hot(maps[-1].call.q, queries, tokens)
    xp = array_namespace(flow)
    layers = []
    for found, norm in zip(reversed(maps), reversed(norms), strict=True):
        rewrite = None if norm is None else _weigher(norm, batch)
        passed = through(found.call, flow, batch, rewrite, whole=norm is not None)
        flow = residual * flow + (1 - residual) * passed
        layers.append(flow)
    note = "; ".join(dict.fromkeys(found.value_note for found in maps))
    return Rollout(
        queries,
        flow,
        xp.stack(layers[::-1]),
        f"heads weighed by the norms of their values: {note}" if norm_weighted else "mean of heads",
    )


Rewrite = Callable[[Array, Tile], "Array | None"]


def through(
    call: AttentionCall,
    flow: Array,
    batch: int,
    rewrite: Rewrite | None = None,
    *,
    whole: bool = False,
) -> Array:
    """``flow · W̄`` of one layer (queries, tokens), W̄ the mean of the heads' weights.

    Args:
        call: the recorded call.
        flow: (queries, tokens).
        batch: which sequence of the batch.
        rewrite: changes the weights of a tile (heads, rows, columns) in place; what it returns
            (rows,) divides each row in the place of the number of heads.
        whole: tiles have all heads and all keys.
    """
    xp, heads = array_namespace(flow), call.shape[1]
    alive = xp.nonzero(xp.any(flow != 0, axis=0))[0]
    if not alive.shape[0]:
        return xp.zeros_like(flow)
    rows = range(int(alive[0]), int(alive[-1]) + 1)
    tiles = _tiles(call, rows, batch, whole)

    def work(part: Iterator[Tile]) -> Array:
        result = xp.zeros_like(flow)
        for tile in part:
            weights = tiles.exp(tile.logs, out=tile.spare)
            total = None if rewrite is None else rewrite(weights, tile)
            given = flow[:, tile.rows] / (heads if total is None else total)
            n_heads, n_rows, n_keys = weights.shape
            given = xp.broadcast_to(given[:, None], (len(given), n_heads, n_rows))
            flat = xp.reshape(weights, (n_heads * n_rows, n_keys))
            here = result[:, tile.columns]
            here += xp.matmul(xp.reshape(given, (len(given), -1)), flat)
        return result

    parts = tiles.run(work)
    return sum(parts[1:], start=parts[0])


def _weigher(norm: Array, batch: int) -> Rewrite:
    """Weights times the norms of the values, and their sum over all keys and heads."""
    xp = array_namespace(norm)

    def rewrite(weights: Array, tile: Tile) -> Array:
        weights *= norm[batch, tile.heads, tile.columns][:, None]
        total = xp.sum(xp.sum(weights, axis=-1), axis=0)
        return xp.where(total > 0, total, 1.0)

    return rewrite


def _tiles(call: AttentionCall, rows: range, batch: int, whole: bool) -> Tiles:
    """Tiles of some rows of one sequence; ``whole``: of all heads and keys."""
    if not whole:
        return Tiles(call, only=(batch, rows))
    _, heads, _, keys = call.shape
    height = max(1, min(64, _STRIP // max(1, heads * keys)))
    return Tiles(call, rows=height, columns=max(keys, 1), only=(batch, rows), all_heads=True)


def one_hot(like: Array, queries: tuple[int, ...], tokens: int) -> Array:
    """The queries themselves, before any layer (queries, tokens)."""
    xp = array_namespace(like)
    flow = np.zeros((len(queries), tokens), np.float32)
    flow[np.arange(len(queries)), list(queries)] = 1.0
    return xp.asarray(flow, device=device(like))


def same_tokens(recording: Sequence[AttentionMap]) -> tuple[list[AttentionMap], int]:
    """The maps, and of how many tokens they all are."""
    maps = list(recording)
    if not maps or not all(isinstance(found, AttentionMap) for found in maps):
        raise ValueError(
            "this takes a recording, or a list of its maps from the first layer to the last"
        )
    shapes = {found.shape[2:] for found in maps}
    if len(shapes) > 1 or maps[0].shape[2] != maps[0].shape[3]:
        shown = ", ".join(f"{found.name} {found.shape[2:]}" for found in _one_of_each(maps))
        raise ValueError(
            f"the way goes through self-attention over the same tokens, but these maps are of "
            f"different (queries, keys): {shown}. Choose the maps of one stack: "
            f"[m for m in recording if m.name.startswith('encoder')]"
        )
    return maps, maps[0].shape[3]


def _one_of_each(maps: list[AttentionMap]) -> list[AttentionMap]:
    return list({found.shape[2:]: found for found in reversed(maps)}.values())[::-1]


def positions(
    query: int | Sequence[int], tokens: int, batch: int, maps: list[AttentionMap]
) -> tuple[int, ...]:
    """The positions that are asked for, counted from the start."""
    asked = [query] if isinstance(query, int | np.integer) else list(query)
    for position in asked:
        if not -tokens <= position < tokens:
            raise ValueError(f"there is no query {position} among {tokens} tokens")
    if not asked:
        raise ValueError("query is a position, or a list of at least one")
    sequences = maps[0].shape[0]
    if not 0 <= batch < sequences:
        raise ValueError(f"there is no sequence {batch} in a batch of {sequences}")
    return tuple(int(position) % tokens for position in asked)


def _norms(found: AttentionMap) -> Any:
    norms = found.value_norms()
    if norms is None:
        raise ValueError(
            f"{found.name}: no norms to weigh with ({found.value_note}); use norm_weighted=False"
        )
    return norms
