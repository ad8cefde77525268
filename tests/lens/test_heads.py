"""What heads do, against the definition of each measure on the definition's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from jumok import definition
from jumok.lens.call import AttentionCall
from jumok.lens.heads import MEASURES, NEED_IDS, HeadSums, head_sums
from jumok.masks import Both, Causal, Mask, Padding, Window

LEFT = np.arange(90)[None, :] >= np.array([[0], [23]])
RIGHT = np.arange(90)[None, :] < np.array([[90], [61]])
# name: (batch, heads, key heads, queries, keys), mask
CALLS: dict[str, tuple[tuple[int, ...], Mask | None]] = {
    "both ways": ((2, 6, 2, 90, 90), None),
    "causal": ((2, 6, 2, 90, 90), Causal()),
    "padded on the left, causal": ((2, 6, 2, 90, 90), Both((Causal(), Padding(LEFT)))),
    "padded on the right": ((2, 6, 2, 90, 90), Padding(RIGHT)),
    "window": ((2, 6, 3, 90, 90), Window(7)),
    "a few steps": ((1, 6, 3, 5, 80), Causal()),
    "long": ((1, 2, 1, 1100, 1100), Causal()),
    "long, both ways": ((1, 2, 1, 700, 700), None),
}
CROSS = ((2, 4, 4, 30, 70), None)
SPECIAL = (0, 3)


def as_kind(value: Any, kind: str) -> Any:
    if isinstance(value, Both):
        return Both(tuple(as_kind(rule, kind) for rule in value.rules))
    if isinstance(value, Padding):
        return Padding(as_kind(value.visible, kind))
    return torch.tensor(value) if isinstance(value, np.ndarray) and kind == "torch" else value


def build(shape: tuple[int, ...], mask: Mask | None, kind: str) -> tuple[Any, Any, Any]:
    """A call, its weights in float64, and ids with many duplicates."""
    batch, heads, key_heads, queries, keys = shape
    rng = np.random.default_rng(len(shape) + queries)
    q, k = (
        rng.normal(size=(batch, heads, queries, 16)),
        rng.normal(size=(batch, key_heads, keys, 16)),
    )
    q, k = q.astype(np.float32), k.astype(np.float32)
    exact = q.astype(np.float64), k.astype(np.float64), k.astype(np.float64)
    _, weights, lse = definition.attention(*exact, mask=mask, scale=0.6)
    call = AttentionCall(
        as_kind(q, kind), as_kind(k, kind), None, as_kind(mask, kind), None, 0.6,
        lse=as_kind(lse.astype(np.float32), kind),
    )  # fmt: skip
    return call, weights, rng.integers(0, max(8, keys // 6), (batch, keys))


def expected(w: np.ndarray, ids: np.ndarray, shown: np.ndarray) -> dict[str, np.ndarray]:
    """Every measure by its definition; ``shown`` (B, T) says which keys are no padding."""
    batch, heads, queries, keys = w.shape
    place = np.arange(queries) + keys - queries
    key = np.arange(keys)
    real = shown[:, place]
    own = np.take_along_axis(ids, place[None], axis=1)
    before = key < place[:, None]
    duplicate = (own[:, :, None] == ids[:, None]) & before
    induction = np.zeros_like(duplicate)
    for b in range(batch):
        for i in range(queries):
            for j in range(1, place[i] + 1):
                induction[b, i, j] = j - 1 < place[i] and ids[b, j - 1] == own[b, i]

    def mean(rows: np.ndarray, which: np.ndarray = real) -> np.ndarray:
        return (rows * which[:, None]).sum((0, 2)) / which.sum()

    first = np.stack([w[b, :, :, shown[b].argmax()] for b in range(batch)])
    per_text = (first * real[:, None]).sum(-1) / real.sum(-1)[:, None]
    best = w.argmax(-1)
    offsets = best - place
    positional, offset, window, gini = [], [], [], []
    received = (w * real[:, None, :, None]).sum((0, 2))
    apart = np.abs(place[:, None] - key)
    for h in range(heads):
        values, counts = np.unique(offsets[:, h][real], return_counts=True)
        positional.append(counts.max() / real.sum())
        commonest = values[counts == counts.max()]
        offset.append(min(commonest, key=lambda o: (abs(o), -o)))
        mass = (w[:, h] * real[:, :, None]).sum(0)
        window.append(
            next(n for n in range(1, keys + 1) if mass[apart < n].sum() >= 0.9 * mass.sum())
        )
        x = received[h]
        gini.append(np.abs(x[:, None] - x).sum() / (2 * keys * x.sum()))
    matched = real & induction.any(-1)
    return {
        "sink_rate": (per_text > 0.3).mean(0),
        "concentration": np.array(gini),
        "confidence": mean(w.max(-1)),
        "positional": np.array(positional),
        "positional_offset": np.array(offset),
        "window": np.array(window),
        "duplicate": mean((w * duplicate[:, None]).sum(-1)),
        "induction": mean((w * induction[:, None]).sum(-1)),
        "prefix_matching": mean((w * induction[:, None]).sum(-1), matched),
        "special": mean(np.einsum("bhij,bj->bhi", w, np.isin(ids, SPECIAL).astype(float))),
    }


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", CALLS)
def test_every_measure_by_its_definition(name: str, kind: str) -> None:
    shape, mask = CALLS[name]
    call, w, ids = build(shape, mask, kind)
    padding = {"padded on the left, causal": LEFT, "padded on the right": RIGHT}
    wanted = expected(w, ids, padding.get(name, np.ones(ids.shape, bool)))
    found = head_sums(call, MEASURES, ids=ids, special=SPECIAL).means()
    assert tuple(found) == MEASURES
    for measure, values in wanted.items():
        np.testing.assert_allclose(found[measure], values, rtol=1e-4, atol=1e-4, err_msg=measure)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_cross_attention_has_no_tokens_in_common(kind: str) -> None:
    call, w, _ = build(*CROSS, kind)
    found = head_sums(call, MEASURES, ids=np.zeros((2, 30), int)).means()
    for measure in NEED_IDS:
        assert np.isnan(found[measure]).all()
    np.testing.assert_allclose(found["confidence"], w.max(-1).mean((0, 2)), atol=1e-5)
    apart = np.abs(np.arange(30)[:, None] + 40 - np.arange(70))
    for h in range(4):
        mass = w[:, h].sum(0)
        inside = [mass[apart < n].sum() for n in range(1, 71)]
        assert found["window"][h] == 1 + np.argmax(inside >= 0.9 * mass.sum())


def test_sums_of_several_forwards_are_those_of_one_batch() -> None:
    call, _, ids = build((2, 6, 2, 90, 90), Causal(), "numpy")

    def one(b: int) -> HeadSums:
        part = AttentionCall(
            call.q[b : b + 1], call.k[b : b + 1], None, Causal(), None, 0.6, lse=call.lse[b : b + 1]
        )
        return head_sums(part, MEASURES, ids=ids[b : b + 1], special=SPECIAL)

    whole, joined = head_sums(call, MEASURES, ids=ids, special=SPECIAL), one(0) + one(1)
    assert joined.queries == whole.queries == 180
    for name, values in whole.means().items():
        np.testing.assert_allclose(joined.means()[name], values, rtol=1e-5, err_msg=name)
    assert joined.nbytes == whole.nbytes


def test_texts_of_different_lengths_are_added() -> None:
    long, _, _ = build((1, 6, 2, 90, 90), Causal(), "numpy")
    short = AttentionCall(
        long.q[:, :, :40], long.k[:, :, :40], None, Causal(), None, 0.6, lse=long.lse[:, :, :40]
    )
    a, b = head_sums(long), head_sums(short)
    both = b + a
    np.testing.assert_allclose(both.received[:, 40:], a.received[:, 40:])
    np.testing.assert_allclose(both.received[:, :40], a.received[:, :40] + b.received)
    entropy = (90 * a.means()["entropy"] + 40 * b.means()["entropy"]) / 130
    np.testing.assert_allclose(both.means()["entropy"], entropy)
    with pytest.raises(ValueError, match="cannot be added"):
        a + head_sums(short, ("entropy",))


def test_only_what_was_asked_for() -> None:
    call, _, _ = build((2, 6, 2, 90, 90), Causal(), "numpy")
    assert list(head_sums(call, ("window", "first")).means()) == ["window", "first"]
    with pytest.raises(ValueError, match=r"no such measure: \['windw'\].*sink_rate"):
        head_sums(call, ("windw",))


def test_special_tokens_are_not_known_without_their_ids() -> None:
    call, _, ids = build((2, 6, 2, 90, 90), Causal(), "numpy")
    assert np.isnan(head_sums(call, ("special",), ids=ids).means()["special"]).all()


def test_nothing_there() -> None:
    empty = AttentionCall(
        np.zeros((1, 2, 0, 4), np.float32),
        np.zeros((1, 2, 0, 4), np.float32),
        None,
        None,
        None,
        1.0,
    )
    found = head_sums(empty, MEASURES, ids=np.zeros((1, 0), int)).means()
    assert all(values.shape == (2,) for values in found.values())
