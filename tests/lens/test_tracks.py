"""Which calls are joined into one map: the steps of one text, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jumok

HEADS = 3


def by_heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Cached(nn.Module):
    """Self-attention with a cache, whose scores are made as `scoring` says for so many keys."""

    def __init__(self, scoring: str) -> None:
        super().__init__()
        self.scoring = scoring
        self.qkv = nn.Linear(24, 72)
        self.cache: tuple[Tensor, Tensor] | None = None
        self.weights: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (by_heads(part) for part in self.qkv(x).chunk(3, -1))
        if self.cache is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(self.cache, (k, v), strict=True))
        self.cache = k, v
        n_queries, n_keys = q.shape[2], k.shape[2]
        seen = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)
        scale = 8**-0.5 * (math.log(n_keys + 1) if self.scoring == "scale" else 1)
        scores = q @ k.mT * scale
        if self.scoring == "softcap":
            cap = 5.0 / n_keys
            scores = cap * torch.tanh(scores / cap)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        self.weights.append(weights)
        if self.scoring == "softcap":
            return (weights @ v).transpose(1, 2).flatten(2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("options", [{}, {"keep": "qk"}], ids=["qkv", "qk"])
@pytest.mark.parametrize("scoring", ["scale", "softcap"])
@torch.no_grad()
def test_steps_with_another_scale_or_softcap_are_other_maps(
    scoring: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model, x = Cached(scoring), torch.randn(2, 9, 24)
    with jumok.watch(model, **options) as recording:
        for start, stop in ((0, 6), (6, 7), (7, 8), (8, 9)):
            model(x[:, start:stop])
    assert len(recording) == 4
    for found, expected in zip(recording, model.weights, strict=True):
        np.testing.assert_allclose(found[:], expected, atol=1e-6)


class Memory(nn.Module):
    """Attention to keys that don't depend on the text, and values that may."""

    def __init__(self, *, learned_values: bool) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(24, 24), nn.Linear(24, 24)
        self.keys = nn.Parameter(torch.randn(1, HEADS, 6, 8))
        self.values = nn.Parameter(torch.randn(1, HEADS, 6, 8)) if learned_values else None

    def forward(self, x: Tensor) -> Tensor:
        v = by_heads(self.value(x)) if self.values is None else self.values
        q = by_heads(self.query(x))
        out = F.scaled_dot_product_attention(q, self.keys.expand_as(q), v.expand_as(q))
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("options", [{}, {"keep": "qk"}, {"to": "disk"}], ids=str)
@pytest.mark.parametrize("learned_values", [False, True])
@torch.no_grad()
def test_texts_that_read_the_same_memory_are_maps_of_their_own(
    learned_values: bool, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model = Memory(learned_values=learned_values)
    with jumok.watch(model, **options) as recording:
        for _ in range(3):
            model(torch.randn(2, 6, 24))
    assert [found.shape for found in recording] == [(2, HEADS, 6, 6)] * 3


class Layer(nn.Module):
    """Self-attention with a cache, then cross-attention to something that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.query = Cached("plain"), nn.Linear(24, 24)
        self.keys, self.values = (nn.Parameter(torch.randn(1, HEADS, 4, 8)) for _ in range(2))
        self.cross = Call()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.own(x)
        return x + self.cross(by_heads(self.query(x)), self.keys, self.values)


class Call(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (one.expand(len(q), *one.shape[1:]) for one in (k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("layers", [None, "cross"])
@torch.no_grad()
def test_cross_attention_goes_on_where_its_own_text_does(layers: str | None) -> None:
    torch.manual_seed(0)
    model = Layer()
    with jumok.watch(model, layers=layers) as recording:
        for n_steps in (3, 2):
            model.own.cache = None
            model(torch.randn(1, 5, 24))
            for _ in range(n_steps):
                model(torch.randn(1, 1, 24))
    shapes = {found.name: found.shape[2:] for found in recording}
    expected = {"own": (8, 8), "cross": (8, 4), "own#1": (7, 7), "cross#1": (7, 4)}
    wanted = {name: size for name, size in expected.items() if layers is None or layers in name}
    assert shapes == wanted


@torch.no_grad()
def test_texts_that_are_written_in_turns_are_kept_apart() -> None:
    torch.manual_seed(0)
    model = Layer()
    caches: list[tuple[Tensor, Tensor] | None] = [None, None]
    with jumok.watch(model) as recording:
        for length in (5, 1, 1):
            for text in range(2):
                model.own.cache = caches[text]
                model(torch.randn(1, length + text * (length > 1), 24))
                caches[text] = model.own.cache
    shapes = {found.name: found.shape[2:] for found in recording}
    assert shapes == {"own": (7, 7), "cross": (7, 4), "own#1": (8, 8), "cross#1": (8, 4)}


@torch.no_grad()
def test_without_a_cache_cross_attention_is_not_joined_either() -> None:
    torch.manual_seed(0)
    model, x = Layer(), torch.randn(1, 6, 24)
    with jumok.watch(model) as recording:
        for length in (4, 5, 6):
            model.own.cache = None
            model(x[:, :length])
    assert [found.shape[2] for found in recording] == [4, 4, 5, 5, 6, 6]
