"""Masses of groups of keys against the whole weights of the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from jumok import definition
from jumok.lens.call import AttentionCall
from jumok.lens.masses import group_masses, visible_shares
from jumok.masks import Causal, Dense, Mask, Padding, Window

SIZE = 150
PADDED = np.arange(SIZE)[None, :] >= np.array([[0], [17]])
MASKS: dict[str, Mask | None] = {
    "both ways": None,
    "causal": Causal(),
    "window": Window(9),
    "padded": Causal() & Padding(PADDED),
    "of every head": Dense(np.random.default_rng(3).random((2, 6, SIZE, SIZE)) > 0.4),
}
GROUPS = np.random.default_rng(4).integers(0, 7, SIZE)
GROUPS[40:90] = 2  # some lie together, others are strewn


def made(mask: Mask | None, keys: int = SIZE) -> tuple[AttentionCall, Any, Any, Any]:
    """A call without lse, its weights and what is visible, and norms of its values."""
    draw = np.random.default_rng(5).normal
    q, k = draw(size=(2, 6, keys, 16)), draw(size=(2, 2, keys, 16))
    norms = np.abs(draw(size=(2, 6, keys))).astype(np.float32)
    visible = np.ones((2, 6, keys, keys), bool)
    if mask is not None:
        visible &= mask.dense(keys, keys, q)
    _, weights, _ = definition.attention(q, k, k, mask=visible)
    call = AttentionCall(
        q.astype(np.float32), k.astype(np.float32), None, mask, None, scale=16**-0.5
    )
    return call, weights, visible, norms


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", MASKS)
def test_masses_equal_those_of_the_whole_weights(name: str, library: str) -> None:
    mask = MASKS[name]
    call, weights, _, norms = made(mask)
    if library == "torch":
        mask = Dense(torch.from_numpy(mask.visible)) if isinstance(mask, Dense) else mask
        if name == "padded":
            mask = Causal() & Padding(torch.from_numpy(PADDED))
        call = AttentionCall(
            torch.from_numpy(call.q), torch.from_numpy(call.k), None, mask, None, call.scale
        )
        norms = torch.from_numpy(norms)
    member = GROUPS[:, None] == np.arange(8)  # the last group has no key
    for batch in (0, 1):
        found = group_masses(call, GROUPS, 8, norms[batch], batch)
        np.testing.assert_allclose(found.raw, weights[batch] @ member, atol=1e-5)
        brought = (weights[batch] * np.asarray(norms[batch])[:, None]) @ member
        np.testing.assert_allclose(found.brought, brought, atol=1e-5)
        assert group_masses(call, GROUPS, 8, None, batch).brought is None


@pytest.mark.parametrize("name", MASKS)
def test_an_even_reader(name: str) -> None:
    call, _, visible, _ = made(MASKS[name])
    member = GROUPS[:, None] == np.arange(8)
    for batch in (0, 1):
        seen = visible[batch].astype(float).mean(axis=0)
        total = seen.sum(axis=-1, keepdims=True)
        expected = seen @ member / np.where(total > 0, total, 1)
        np.testing.assert_allclose(visible_shares(call, GROUPS, 8, batch), expected, atol=1e-6)


def test_fewer_queries_than_keys() -> None:
    call, weights, _, _ = made(None)
    last = AttentionCall(call.q[:, :, -3:], call.k, None, Causal(), None, call.scale)
    visible = np.tri(SIZE, dtype=bool)[-3:]
    weights = np.where(visible, weights[:, :, -3:], 0)
    weights /= weights.sum(axis=-1, keepdims=True)
    member = (GROUPS[:, None] == np.arange(7)).astype(float)
    np.testing.assert_allclose(group_masses(last, GROUPS, 7).raw, weights[0] @ member, atol=1e-5)
    expected = visible @ member / visible.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(visible_shares(last, GROUPS, 7), expected, atol=1e-6)


def test_hundreds_of_groups() -> None:
    size = 700
    call, weights, _, _ = made(Causal(), size)
    groups = np.arange(size) // 2
    found = group_masses(call, groups, 350)
    np.testing.assert_allclose(found.raw, weights[0].reshape(6, size, 350, 2).sum(-1), atol=1e-5)
