"""The measures against the whole weights of the definition, on NumPy and PyTorch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from jumok import definition
from jumok.lens import measures, tiles
from jumok.lens.call import AttentionCall
from jumok.masks import Both, Causal, Dense, Everything, Mask, Padding, Steps, Window
from jumok.masks.tail import Tail

# name: (batch, heads, key heads, queries, keys), mask, options of the call
SELF, CROSS, STEP = (2, 6, 2, 90, 90), (2, 4, 4, 30, 70), (1, 6, 3, 3, 80)
PADDED = np.arange(90)[None, :] >= np.array([[0], [23]])
CROSS_PADDED = np.arange(70)[None, :] < np.array([[70], [50]])


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


CALLS: dict[str, tuple[tuple[int, ...], Mask | None, dict[str, Any]]] = {
    "both ways": (SELF, None, {}),
    "causal": (SELF, Causal(), {}),
    "padded": (SELF, Padding(PADDED), {}),
    "padded and causal": (SELF, Both((Causal(), Padding(PADDED))), {}),
    "padded as booleans": (
        SELF,
        Dense(PADDED[:, None, None, :] & np.tri(90, dtype=bool)[None, None]),
        {},
    ),
    "window": (SELF, Window(7), {}),
    "window, both sides": (SELF, Window(5, ahead=9), {}),
    "cross": (CROSS, None, {}),
    "cross, padded": (CROSS, Padding(CROSS_PADDED), {}),
    "a few steps": (STEP, Causal(), {}),
    "more queries than keys": ((1, 2, 2, 40, 20), Causal(), {}),
    "random booleans": (SELF, Dense(draw(8, 2, 6, 90, 90) > 1), {}),
    "softcap": (SELF, Causal(), {"softcap": 1.5}),
    "bias": (SELF, None, {"bias": draw(9, 1, 6, 90, 90).astype(np.float32)}),
    "bias that hides": (
        SELF,
        Causal(),
        {"bias": np.where(draw(9, 90, 90) > 0, 0.5, -math.inf).astype(np.float32)},
    ),
    "bias of keys": (SELF, Causal(), {"bias": draw(9, 2, 1, 1, 90).astype(np.float32)}),
    "sinks": (SELF, Causal(), {"sinks": draw(9, 6).astype(np.float32)}),
    "all": (
        SELF,
        Both((Window(20), Padding(PADDED))),
        {
            "softcap": 2.0,
            "sinks": draw(9, 6).astype(np.float32),
            "bias": draw(9, 6, 90, 1).astype(np.float32),
        },
    ),
    "large scores": (SELF, Causal(), {"scale": 10.0}),
}


@dataclasses.dataclass(frozen=True)
class Case:
    call: AttentionCall
    weights: np.ndarray  # float64, from the definition
    lse: np.ndarray


def as_kind(value: Any, kind: str) -> Any:
    if isinstance(value, np.ndarray):
        return value if kind == "numpy" else torch.tensor(value)
    if isinstance(value, Both):
        return Both(tuple(as_kind(rule, kind) for rule in value.rules))
    if isinstance(value, (Dense, Padding)):
        return type(value)(as_kind(value.visible, kind))
    return value


@pytest.fixture(params=["numpy", "torch"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CALLS, ids=CALLS)
def case(request: pytest.FixtureRequest, kind: str) -> Case:
    return build(request.param, kind)


def build(name: str, kind: str) -> Case:
    (batch, heads, key_heads, queries, keys), mask, options = CALLS[name]
    q = draw(1, batch, heads, queries, 16).astype(np.float32)
    k = draw(2, batch, key_heads, keys, 16).astype(np.float32)
    options = {"scale": 0.6, **options}
    exact = {
        key: x.astype(np.float64) if isinstance(x, np.ndarray) else x for key, x in options.items()
    }
    wide = q.astype(np.float64), k.astype(np.float64), k.astype(np.float64)
    _, weights, lse = definition.attention(*wide, mask=mask, **exact)
    parts = {"bias": None, "softcap": None, "sinks": None, **options}
    call = AttentionCall(
        as_kind(q, kind),
        as_kind(k, kind),
        None,
        as_kind(mask, kind),
        lse=as_kind(lse.astype(np.float32), kind),
        **{key: as_kind(value, kind) for key, value in parts.items()},
    )
    return Case(call, weights, lse)


def close(found: Any, expected: np.ndarray) -> None:
    """At most 1e-4, absolute or relative."""
    found = np.asarray(found, dtype=np.float64)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def positions(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    queries, keys = weights.shape[-2:]
    return np.arange(queries)[:, None] + keys - queries, np.arange(keys)


def real(call: AttentionCall, weights: np.ndarray) -> np.ndarray:
    """(B, Tq): queries whose own key somebody sees."""
    queries, keys = weights.shape[-2:]
    if queries != keys and not (call.mask is not None and call.mask.is_causal(queries, keys)):
        return np.ones(weights.shape[::2][:2], dtype=bool)
    if queries > keys:
        return np.ones((weights.shape[0], queries), dtype=bool)
    return (weights > 0).any(axis=(1, 2))[:, -queries:]


def test_all_measures_in_one_pass(case: Case) -> None:
    w = case.weights
    keys = w.shape[-1]
    found = measures.measure(
        case.call,
        quantities=measures.QUANTITIES,
        columns=(0, 5, -1),
        offsets=(0, -1, 3, -keys - 5),
        bounds=[0, 4, keys // 2, keys],
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        close(found.entropy, -np.nansum(w * np.log(w), axis=-1))
    query, key = positions(w)
    close(found.distance, (w * np.abs(query - key)).sum(axis=-1))
    kept = real(case.call, w)
    close(found.received, (w * kept[:, None, :, None]).sum(axis=2))
    assert found.columns is not None
    for column in (0, 5, -1):
        close(found.columns[column], w[..., column])
    assert found.diagonals is not None
    for offset in (0, -1, 3, -keys - 5):
        close(found.diagonals[offset], (w * (key == query + offset)).sum(axis=-1))
    edges = [0, 4, keys // 2, keys]
    expected = np.zeros((*w.shape[:2], 3, 3))
    for s in range(3):
        inside = kept & ((edges[s] <= query[:, 0]) & (query[:, 0] < edges[s + 1]))
        for t in range(3):
            mass = w[..., edges[t] : edges[t + 1]].sum(axis=-1)
            count = np.maximum(inside.sum(axis=-1), 1)[:, None]
            expected[:, :, s, t] = (mass * inside[:, None]).sum(axis=-1) / count
    close(found.segments, expected)


def test_only_what_was_asked_for(kind: str) -> None:
    found = measures.measure(build("causal", kind).call, quantities=("entropy",))
    assert found.entropy is not None
    others = (found.distance, found.received, found.columns, found.diagonals, found.segments)
    assert others == (None,) * 5


def test_lse_is_computed_where_the_kernel_gave_none(case: Case) -> None:
    bare = dataclasses.replace(case.call, lse=None)
    close(measures.log_normalizers(bare), case.lse)
    given, computed = measures.measure(case.call).entropy, measures.measure(bare).entropy
    close(computed, np.asarray(given, dtype=np.float64))


@pytest.mark.parametrize("k", [1, 8, 200])
def test_top(case: Case, k: int) -> None:
    indices, weights = (np.asarray(part) for part in measures.top(case.call, k))
    order = np.argsort(-case.weights, axis=-1, kind="stable")[..., :k]
    expected = np.zeros((*case.weights.shape[:3], k))
    expected[..., : order.shape[-1]] = np.take_along_axis(case.weights, order, axis=-1)
    close(weights, expected)
    visible = (case.weights > 0).sum(axis=-1)
    if np.min(case.weights[case.weights > 0]) > 1e-30:
        np.testing.assert_array_equal((indices >= 0).sum(axis=-1), np.minimum(visible, k))
    assert np.all(weights[indices < 0] == 0)
    # The weight at each index is the weight that is given for it.
    there = np.take_along_axis(case.weights, np.maximum(indices, 0), axis=-1)
    close(weights, np.where(indices >= 0, there, 0.0))
    for row in indices[0, 0]:
        assert len(set(row[row >= 0])) == (row >= 0).sum()


@pytest.mark.parametrize("how", ["max", "mean"])
@pytest.mark.parametrize("size", [1, 7, 40, 500])
def test_pooled(case: Case, size: int, how: str) -> None:
    found = np.asarray(measures.pooled(case.call, size, how))
    w = case.weights
    tall, wide = -(-w.shape[2] // size), -(-w.shape[3] // size)
    if tall > 64:
        tall = 128
    rows, columns = range(0, w.shape[2], tall), range(0, w.shape[3], wide)
    pool = np.max if how == "max" else np.mean
    close(
        found,
        np.stack(
            [
                np.stack(
                    [pool(w[..., r : r + tall, c : c + wide], axis=(2, 3)) for c in columns],
                    axis=-1,
                )
                for r in rows
            ],
            axis=2,
        ),
    )
    assert max(found.shape[2:]) <= size


@pytest.mark.parametrize("mask", [None, Causal(), Window(300)], ids=str)
def test_many_tiles(kind: str, mask: Mask | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLS, "long", ((1, 2, 1, 1100, 1300), mask, {}))
    case = build("long", kind)
    w = case.weights
    found = measures.measure(case.call)
    close(found.entropy, -(w * np.log(np.where(w > 0, w, 1))).sum(axis=-1))
    query, key = positions(w)
    close(found.distance, (w * np.abs(query - key)).sum(axis=-1))
    close(found.received, w.sum(axis=2))
    for size in (2, 5, 300):
        pooled = np.asarray(measures.pooled(case.call, size))
        assert max(pooled.shape[2:]) <= size
        close(pooled.max(axis=(2, 3)), w.max(axis=(2, 3)))
        tall = -(-1100 // size) if size == 300 else {2: 576, 5: 256}[size]
        close(pooled.max(axis=3)[..., 1], w[..., tall : 2 * tall, :].max(axis=(2, 3)))
    _, weights = measures.top(case.call, 8)
    close(weights, -np.sort(-w, axis=-1)[..., :8])


def test_the_weights_are_never_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLS, "long", ((1, 2, 1, 1500, 1500), Causal(), {}))
    call = build("long", kind).call
    largest = 0
    for tile in tiles.Tiles(call):
        largest = max(largest, math.prod(tile.logs.shape))
    assert largest < 1500 * 1500 / 2


def test_entropy_of_halves(kind: str) -> None:
    zero = as_kind(np.zeros((1, 1, 1, 1), dtype=np.float32), kind)
    keys = as_kind(np.zeros((1, 1, 3, 1), dtype=np.float32), kind)
    visible = as_kind(np.array([[True, True, False]]), kind)
    for mask, bias in [
        (Dense(visible), None),
        (None, as_kind(np.array([[0, 0, -math.inf]], dtype=np.float32), kind)),
        (None, as_kind(np.array([[0, 0, -3.4e38]], dtype=np.float32), kind)),
    ]:
        call = AttentionCall(zero, keys, None, mask, bias, 1.0)
        found = measures.measure(call, quantities=("entropy",)).entropy
        close(found, np.full((1, 1, 1), 0.693147))


def test_a_row_of_lowest_scores_is_uniform(kind: str) -> None:
    lowest = np.finfo(np.float32).min
    bias = np.array([[lowest, lowest, lowest], [0, lowest, 0]], dtype=np.float32)
    call = AttentionCall(
        as_kind(np.ones((1, 1, 2, 1), dtype=np.float32), kind),
        as_kind(np.zeros((1, 1, 3, 1), dtype=np.float32), kind),
        None,
        None,
        as_kind(bias, kind),
        1.0,
        lse=as_kind(np.array([[[lowest, math.log(2)]]], dtype=np.float32), kind),
    )
    found = measures.measure(call, quantities=("entropy", "columns"), columns=(0, 1))
    close(found.entropy, np.log([[[3.0, 2.0]]]))
    assert found.columns is not None
    close(found.columns[0], np.array([[[1 / 3, 1 / 2]]]))
    close(found.columns[1], np.array([[[1 / 3, 0]]]))
    _, weights = measures.top(call, 2)
    close(weights, np.array([[[[1 / 3, 1 / 3], [1 / 2, 1 / 2]]]]))


def test_sinks_take_their_share(kind: str) -> None:
    call = AttentionCall(
        as_kind(np.zeros((1, 1, 1, 1), dtype=np.float32), kind),
        as_kind(np.zeros((1, 1, 2, 1), dtype=np.float32), kind),
        None,
        None,
        None,
        1.0,
        sinks=as_kind(np.zeros(1, dtype=np.float32), kind),
    )
    close(measures.log_normalizers(call), np.full((1, 1, 1), 1.0986123))
    close(measures.measure(call).received, np.full((1, 1, 2), 1 / 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_measured_in_float32(dtype: torch.dtype) -> None:
    call = build("causal", "torch").call
    half = dataclasses.replace(call, q=call.q.to(dtype), k=call.k.to(dtype), lse=None)
    wide = dataclasses.replace(half, q=half.q.float(), k=half.k.float())
    found, expected = measures.measure(half), measures.measure(wide)
    assert found.entropy is not None
    assert found.entropy.dtype == torch.float32
    assert torch.equal(found.entropy, expected.entropy)
    assert torch.equal(found.received, expected.received)


def test_padding_is_told_from_other_queries(kind: str) -> None:
    left_out = measures.real_queries(build("padded and causal", kind).call)
    np.testing.assert_array_equal(np.asarray(left_out), PADDED)
    assert measures.real_queries(build("causal", kind).call) is None
    assert measures.real_queries(build("cross, padded", kind).call) is None


def test_padding_is_told_under_a_windowed_cache(kind: str) -> None:
    """Keys that the last calls no longer had are no padding; those that nobody saw are."""
    visible = np.array([[False, True, True, True, True], [True] * 5])
    first = Both((Causal(), as_kind(Padding(visible), kind)))
    later = Tail(3, as_kind(Padding(visible[:, 3:]), kind))
    none_dropped = Tail(3, Causal())
    for last in (later, none_dropped, Tail(4, Everything())):
        n_keys = 6 if last is none_dropped else 5
        mask = Steps(((first, 5, 5), (last, 1, n_keys)))
        q = as_kind(np.zeros((2, 2, 6, 4), dtype=np.float32), kind)
        k = as_kind(np.zeros((2, 1, 6, 4), dtype=np.float32), kind)
        real = measures.real_queries(AttentionCall(q, k, None, mask, None, 1.0))
        expected = np.ones((2, 6))
        expected[0, 0] = 0
        expected[:, 5] = n_keys == 6
        np.testing.assert_array_equal(np.asarray(real), expected)


def test_a_tail_alone_hides_what_it_dropped(kind: str) -> None:
    q = as_kind(np.zeros((1, 1, 3, 4), dtype=np.float32), kind)
    k = as_kind(np.zeros((1, 1, 5, 4), dtype=np.float32), kind)
    visible = np.array([[True, False, True]])
    for rule, expected in ((Causal(), None), (as_kind(Padding(visible), kind), visible)):
        mask = Both((Causal(), Tail(2, rule)))
        real = measures.real_queries(AttentionCall(q, k, None, mask, None, 1.0))
        if expected is None:
            assert real is None or bool(np.asarray(real).all())
        else:
            np.testing.assert_array_equal(np.asarray(real), expected)


def test_nothing_there(kind: str) -> None:
    def call(queries: int, keys: int) -> AttentionCall:
        q = as_kind(np.zeros((1, 2, queries, 4), dtype=np.float32), kind)
        return AttentionCall(
            q, as_kind(np.zeros((1, 2, keys, 4), dtype=np.float32), kind), None, None, None, 1.0
        )

    found = measures.measure(call(3, 0), quantities=("entropy", "received"))
    close(found.entropy, np.zeros((1, 2, 3)))
    close(found.received, np.zeros((1, 2, 0)))
    close(measures.log_normalizers(call(3, 0)), np.full((1, 2, 3), -math.inf))
    assert tuple(measures.measure(call(0, 3), quantities=("entropy",)).entropy.shape) == (1, 2, 0)
    assert np.all(np.asarray(measures.top(call(3, 0), 2)[0]) == -1)


def test_errors_say_what_to_do(kind: str) -> None:
    call = build("causal", kind).call
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: measures.measure(call, quantities=("entropi",)), "entropi"),
        (lambda: measures.measure(call, columns=(90,)), "column 90 among 90"),
        (lambda: measures.segments(call, [0, 91]), r"\[0, 91\].* at most 90"),
        (lambda: measures.segments(call, [0, 5, 5]), "rise"),
        (lambda: measures.measure(call, quantities=("segments",)), "bounds"),
        (lambda: measures.top(call, 0), r"top\(0\)"),
        (lambda: measures.pooled(call, 0), r"pooled\(0"),
        (lambda: measures.pooled(call, 5, "sum"), "'sum'"),
    ]
    for wrong, message in refused:
        with pytest.raises(ValueError, match=message):
            wrong()
