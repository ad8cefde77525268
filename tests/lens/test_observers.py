"""What observers fill in, row by row, against whole weights of many tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from jumok import definition
from jumok.lens import measures
from jumok.lens.call import AttentionCall
from jumok.lens.observers import ByDistance, Largest, OnKeys, OnTokens
from jumok.masks import Causal, Mask


@pytest.fixture(params=["numpy", "torch"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def build(kind: str, queries: int, keys: int, mask: Mask | None) -> tuple[AttentionCall, Any]:
    rng = np.random.default_rng(queries)
    q, k = rng.normal(size=(1, 2, queries, 8)), rng.normal(size=(1, 1, keys, 8))
    q, k = q.astype(np.float32), k.astype(np.float32)
    _, weights, _ = definition.attention(
        q.astype(float), k.astype(float), k.astype(float), mask=mask
    )
    if kind == "torch":
        q, k = torch.tensor(q), torch.tensor(k)
    return AttentionCall(q, k, None, mask, None, 8**-0.5), weights


@pytest.mark.parametrize(
    ("queries", "keys", "mask"), [(1200, 1200, Causal()), (700, 1000, None), (3, 1100, Causal())]
)
def test_rows_of_many_tiles(kind: str, queries: int, keys: int, mask: Mask | None) -> None:
    call, w = build(kind, queries, keys, mask)
    rng = np.random.default_rng(0)
    ids, chosen = rng.integers(0, 100, (1, keys)), rng.random((1, keys)) < 0.1
    largest, on_keys, far = Largest(call), OnKeys(call, chosen), ByDistance(call, None)
    same, after = OnTokens(call, ids, 0), OnTokens(call, ids, 1)
    measures.measure(call, quantities=(), observers=[largest, on_keys, far, same, after])
    place, key = np.arange(queries)[:, None] + keys - queries, np.arange(keys)
    own = ids[0][place]
    duplicate = (own == ids[0]) & (key < place)
    following = (own == np.roll(ids[0], 1)) & (key > 0) & (key <= place)

    def close(found: Any, expected: Any) -> None:
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)

    close(largest.weights, w.max(-1))
    np.testing.assert_array_equal(np.asarray(largest.keys), w.argmax(-1))
    close(on_keys.masses, w @ chosen[0])
    close(same.masses, (w * duplicate).sum(-1))
    close(after.masses, (w * following).sum(-1))
    np.testing.assert_array_equal(same.matches[0], duplicate.any(-1))
    np.testing.assert_array_equal(after.matches[0], duplicate.any(-1))
    apart = np.abs(place - key)
    by_distance = [np.bincount(apart.ravel(), w[0, h].ravel(), keys) for h in range(2)]
    close(far.masses, by_distance)


def test_padded_queries_count_for_nothing(kind: str) -> None:
    call, w = build(kind, 30, 30, Causal())
    real = np.ones((1, 30), np.float32)
    real[0, 20:] = 0
    far = ByDistance(call, torch.tensor(real) if kind == "torch" else real)
    measures.measure(call, quantities=(), observers=[far])
    apart = np.abs(np.arange(20)[:, None] - np.arange(30))
    for h in range(2):
        expected = np.bincount(apart.ravel(), w[0, h, :20].ravel(), 30)
        np.testing.assert_allclose(far.masses[h], expected, atol=1e-5)
