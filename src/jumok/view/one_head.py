"""Single weights, rows and columns of one head, and the calculation behind one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from jumok.lens.attention_map import AttentionMap
from jumok.lens.call import AttentionCall, read_heads
from jumok.view.answers import Answer, plain

__all__ = ["column", "row", "steps", "weight"]

Numbers = np.ndarray[Any, np.dtype[Any]]


def weight(found: AttentionMap, batch: int, head: int, query: int, key: int) -> Answer:
    """One weight, and where it stands in its row."""
    weights, visible = _row(found, batch, head, query)
    scores = _numpy(
        found.call.scores([batch], [head], range(query, query + 1), range(key, key + 1))
    )
    own = weights[key]
    before = np.count_nonzero((weights == own)[:key] & visible[:key])
    rank = int(np.count_nonzero(weights[visible] > own) + before) + 1
    return Answer(
        {
            "weight": plain(own),
            "rank": rank if visible[key] else None,
            "visible": int(visible.sum()),
            "score": plain(scores[0, 0, 0, 0]) if visible[key] else None,
        }
    )


def row(found: AttentionMap, batch: int, head: int, query: int) -> Answer:
    """All weights of one query, with their ranks."""
    weights, visible = _row(found, batch, head, query)
    some = weights[weights > 0].astype(np.float64)
    total = float(some.sum())
    return Answer(
        {
            "sum": total,
            "entropy": float(-(some * np.log(some)).sum()),
            "visible": int(visible.sum()),
            "sink": _sink_weight(found.call, batch, head, query),
        },
        {"weights": weights, "ranks": _ranks(weights, visible)},
    )


def column(found: AttentionMap, batch: int, head: int, key: int) -> Answer:
    """The weights of all queries on one key, and who reads it most."""
    call = found.call
    queries = range(call.shape[2])
    keys = range(key, key + 1)
    weights = _numpy(found[batch, head, :, key])
    visible = _visible(_numpy(call.scores([batch], [head], queries, keys))[0, 0, :, 0])
    return Answer(
        {"received": float(weights.sum(dtype=np.float64))},
        {"weights": weights, "ranks": _ranks(weights, visible)},
    )


def steps(
    found: AttentionMap,
    batch: int,
    head: int,
    query: int,
    *,
    count: int,
    further: Sequence[int],
    own_key: int | None,
) -> Answer:
    """The calculation of one row, number by number, in float64 from the recorded q, k and v.

    Args:
        found: the map.
        batch: which sequence.
        head: which head, its place along the axis.
        query: which row.
        count: how many of the largest weights to show.
        further: keys to show besides.
        own_key: where the query itself stands among the keys; `None` in cross-attention.
    """
    call = found.call
    _, _, _, keys = call.shape
    q = _wide(read_heads(call.q, batch, [head], range(query, query + 1)))[0, 0]
    k = _wide(read_heads(call.k, batch, [head // call.group], range(keys)))[0]
    product = k @ q
    scaled = product * call.scale
    capped = None if call.softcap is None else call.softcap * np.tanh(scaled / call.softcap)
    bias = _bias(call, batch, head, query, keys)
    visible = _visible(
        _numpy(call.scores([batch], [head], range(query, query + 1), range(keys)))[0, 0, 0]
    )
    scores = (scaled if capped is None else capped) + (0.0 if bias is None else bias)
    scores = np.where(visible, scores, -np.inf)
    sink = None if call.sinks is None else float(call.sinks[head])
    logits = scores if sink is None else np.append(scores, sink)
    maximum = float(logits.max(initial=-np.inf))
    shift = maximum if np.isfinite(maximum) else 0.0
    exponential = np.exp(scores - shift)
    sink_part = 0.0 if sink is None else float(np.exp(sink - shift))
    total = float(exponential.sum()) + sink_part
    weights = exponential / (total or 1.0)
    ranks = _ranks(weights, visible)
    chosen = _chosen(weights, visible, count, further, own_key)

    def shown(values: Numbers | None) -> Any:
        return None if values is None else plain(values[chosen])

    fields = {
        "query": query,
        "keys": chosen,
        "visible_keys": int(visible.sum()),
        "own_key": own_key,
        "width": len(q),
        "scale": call.scale,
        "softcap": call.softcap,
        "product": shown(product),
        "scaled": shown(scaled),
        "capped": shown(capped),
        "bias": shown(bias),
        "visible": shown(visible),
        "score": shown(scores),
        "exponential": shown(exponential),
        "total": total,
        "maximum": plain(maximum),
        "sink": sink,
        "sink_weight": sink_part / (total or 1.0),
        "weight": shown(weights),
        "rank": [int(rank) or None for rank in ranks[chosen]],
        "shown_weight": float(weights[chosen].sum()),
        "has_values": call.v is not None,
        "values_note": "" if call.v is not None else "the values were not recorded (keep='qk')",
    }
    arrays = {"q": _narrow(q), "k": _narrow(k[chosen])}
    if call.v is not None:
        group = max(1, call.shape[1] // int(call.v.shape[1]))
        v = _wide(read_heads(call.v, batch, [head // group], range(keys)))[0]
        arrays |= {
            "v": _narrow(v[chosen]),
            "output": _narrow(weights @ v),
            "partial": _narrow(weights[chosen] @ v[chosen]),
        }
    return Answer(fields, arrays)


def _chosen(
    weights: Numbers, visible: Numbers, count: int, further: Sequence[int], own_key: int | None
) -> list[int]:
    """Which keys are shown, in the order of the text."""
    order = np.argsort(-weights, kind="stable")
    keys = {int(key) for key in order[:count] if visible[key]} | set(further)
    if own_key is not None and 0 <= own_key < len(weights):
        keys.add(own_key)
        hidden = np.flatnonzero(~visible[own_key:])
        if len(hidden):
            keys.add(own_key + int(hidden[0]))
    return sorted(keys)


def _row(found: AttentionMap, batch: int, head: int, query: int) -> tuple[Numbers, Numbers]:
    """Weights of one query, and which keys it sees."""
    call = found.call
    scores = call.scores([batch], [head], range(query, query + 1), range(call.shape[3]))
    return _numpy(found[batch, head, query]), _visible(_numpy(scores)[0, 0, 0])


def _visible(scores: Numbers) -> Numbers:
    # A mask may have been given as numbers: at or below half of the smallest nobody sees.
    seen: Numbers = scores > np.finfo(np.float32).min / 2
    return seen


def _ranks(weights: Numbers, visible: Numbers) -> Numbers:
    """1 for the largest, equal ones by position, 0 for what is hidden; int32."""
    order = np.argsort(np.where(visible, -weights, np.inf), kind="stable")
    ranks = np.empty(len(weights), np.int32)
    ranks[order] = np.arange(1, len(weights) + 1)
    ranks[~visible] = 0
    return ranks


def _sink_weight(call: AttentionCall, batch: int, head: int, query: int) -> float:
    """The weight of a learned sink, which has no key."""
    if call.sinks is None or call.lse is None:
        return 0.0
    return float(np.exp(float(call.sinks[head]) - float(call.lse[batch, head, query])))


def _bias(call: AttentionCall, batch: int, head: int, query: int, keys: int) -> Numbers | None:
    if call.bias is None:
        return None
    bias = call.bias[(None,) * (4 - call.bias.ndim)]
    at = (batch, head, query)
    place = tuple(0 if size == 1 else index for size, index in zip(bias.shape, at, strict=False))
    return np.broadcast_to(_wide(bias[place]), (keys,))


def _numpy(array: Any) -> Numbers:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def _wide(array: Any) -> Numbers:
    xp = array_namespace(array)
    return _numpy(xp.astype(array, xp.float32)).astype(np.float64)


def _narrow(array: Numbers) -> Numbers:
    return np.asarray(array, np.float32)
