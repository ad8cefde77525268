"""The flow through all layers, against products of the whole matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jumok
from jumok import fused
from jumok.masks import Causal, Mask, Padding

LEFT = torch.arange(40)[None] >= torch.tensor([[0], [9]])


class Stack(nn.Module):
    """Attention layers with an output projection, one after the other."""

    def __init__(self, mask: Mask | None, layers: int = 3) -> None:
        super().__init__()
        self.mask = mask
        self.layers = nn.ModuleList(
            jumok.MultiHeadAttention(48, 6, n_kv_heads=2) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(4 * x, mask=self.mask)
        return x


class Bare(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return fused.attention(q, k, k)[0]


def record(mask: Mask | None, tokens: int = 40) -> Any:
    torch.manual_seed(0)
    with torch.no_grad(), jumok.watch(model := Stack(mask)) as recording:
        model(torch.randn(2, tokens, 48))
    return recording


def whole(recording: Any, batch: int, residual: float, norm_weighted: bool) -> list[np.ndarray]:
    """Products of (T, T) matrices from the top, per layer from the first."""
    product, found = None, []
    for m in reversed(list(recording)):
        w = m[batch].double().numpy()
        if norm_weighted:
            w = w * m.value_norms()[batch].double().numpy()[:, None]
            total = w.sum((0, 2), keepdims=True)
            mean = (w / np.where(total > 0, total, 1)).sum(0)
        else:
            mean = w.mean(0)
        step = residual * np.eye(len(mean)) + (1 - residual) * mean
        product = step if product is None else product @ step
        found.append(product)
    return found[::-1]


@pytest.mark.parametrize("norm_weighted", [False, True])
@pytest.mark.parametrize("mask", [None, Causal(), Causal() & Padding(LEFT), Padding(LEFT)], ids=str)
def test_products_of_whole_matrices(mask: Mask | None, norm_weighted: bool) -> None:
    recording = record(mask)
    for batch, residual in ((0, 0.5), (1, 0.2)):
        expected = whole(recording, batch, residual, norm_weighted)
        found = jumok.rollout(recording, [-1, 12, 17], residual, norm_weighted, batch)
        assert found.queries == (39, 12, 17)
        for layer in range(3):
            np.testing.assert_allclose(
                found.layers[layer], expected[layer][[39, 12, 17]], rtol=1e-4, atol=1e-6
            )
        assert torch.equal(found.flow, found.layers[0])
        np.testing.assert_allclose(found.flow.sum(-1), 1, rtol=1e-5)


def test_many_tiles(tmp_path: Any) -> None:
    recording = record(Causal(), tokens=900)
    expected = whole(recording, 0, 0.5, False)[0][[700]]
    live = jumok.rollout(recording, 700)
    np.testing.assert_allclose(live.flow, expected, rtol=1e-4, atol=1e-6)
    assert not live.flow[0, 701:].any()
    recording.save(tmp_path / "run.safetensors")
    opened = jumok.rollout(jumok.open(tmp_path / "run.safetensors"), 700)
    assert isinstance(opened.flow, np.ndarray)
    np.testing.assert_allclose(opened.flow, live.flow, rtol=1e-4, atol=1e-7)


def test_all_of_the_residual_stays_at_the_query() -> None:
    found = jumok.rollout(record(Causal()), 5, residual=1)
    assert found.flow[0].tolist() == [float(j == 5) for j in range(40)]


def test_some_of_the_maps() -> None:
    recording = record(None)
    found = jumok.rollout([recording[0], recording[1]], 3)
    np.testing.assert_allclose(
        found.flow, whole([recording[0], recording[1]], 0, 0.5, False)[0][[3]], atol=1e-6
    )


def test_errors_say_what_to_do() -> None:
    recording = record(None)
    for wrong, message in (
        (lambda: jumok.rollout(recording, 40), "no query 40 among 40"),
        (lambda: jumok.rollout(recording, []), "at least one"),
        (lambda: jumok.rollout(recording, 0, residual=1.5), "residual=1.5"),
        (lambda: jumok.rollout(recording, 0, batch=2), "no sequence 2 in a batch of 2"),
        (lambda: jumok.rollout([]), "takes a recording"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    with torch.no_grad(), jumok.watch(model := Bare()) as crossed:
        model(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 9, 4))
    with pytest.raises(ValueError, match=r"\(5, 9\)"):
        jumok.rollout(crossed)


def test_norms_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad(), jumok.watch(model := Bare()) as bare:
        model(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    note = jumok.rollout(bare, norm_weighted=True).note
    assert "norms" in note
    assert bare[0].value_note in note
    assert jumok.rollout(bare).note == "mean of heads"
    monkeypatch.setattr(jumok.AttentionMap, "value_norms", lambda self: None)
    with pytest.raises(ValueError, match="norm_weighted=False"):
        jumok.rollout(bare, norm_weighted=True)
