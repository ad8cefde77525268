"""Weights in 8 and 4 bits: the products are those of the rounded weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import jumok
from jumok.model.generate import generate
from jumok.model.linear import Linear
from jumok.model.quantised import Int4Linear, Int8Linear, quantise

CONFIG = jumok.Config(vocab_size=67, emb_dim=64, n_layers=2, n_heads=4, hidden_dim=96)


@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
@pytest.mark.parametrize("shape", [(16, 32), (48, 96), (64, 64)])
@pytest.mark.parametrize("rows", [1, 2, 16, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_products(kind: type, shape: tuple[int, int], rows: int, biased: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(shape), torch.randn(rows, shape[1])
    bias = torch.randn(shape[0]) if biased else None
    layer = kind(weight, bias)
    expected = x @ layer.weight.T + (0 if bias is None else bias)
    assert float((layer(x) - expected).norm() / expected.norm()) < 0.01
    step = 1 / 127 if kind is Int8Linear else 1 / 15
    spread = weight.abs().amax() * (1 if kind is Int8Linear else 2)
    assert float((layer.weight - weight).abs().max()) < 0.6 * step * float(spread)
    assert layer(x[None]).shape == (1, rows, shape[0])


def test_any_number_of_rows_and_4_bits_that_were_4_bits() -> None:
    torch.manual_seed(0)
    layer = Int8Linear(torch.randn(67, 32))
    x = torch.randn(3, 32)
    assert layer.weight.shape == (67, 32)
    torch.testing.assert_close(layer(x), x @ layer.weight.T, atol=0.1, rtol=0.02)
    units = torch.randint(0, 16, (16, 3, 32)).float()
    units[..., 0], units[..., 1] = 0, 15
    scale, lowest = torch.tensor([0.25]), torch.tensor([-2.0])
    weight = (units * scale + lowest).view(16, 96)
    assert torch.equal(Int4Linear(weight).weight, weight)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_whole_model(weights: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = jumok.Decoder(CONFIG).eval()
    ids = torch.randint(0, 67, (2, 9))
    with torch.no_grad():
        before = model(ids)
        quantise(model, weights)  # type: ignore[arg-type]
        assert not any(type(part) in (Linear, nn.Linear) for part in model.modules())
        after = model(ids)
    near = 0.02 if weights == "int8" else 0.2
    assert float((after - before).norm() / before.norm()) < near
    found = generate(model, ids, 8, 0, stop=None)
    with jumok.watch(model) as recording:
        model(found)
    assert len(recording) == 2
    with pytest.raises(ValueError, match="rounded"):
        jumok.save(model, tmp_path / "model")


def test_what_cannot_be_quantised() -> None:
    model = jumok.Decoder(CONFIG)
    with pytest.raises(ValueError, match="int5"):
        quantise(model, "int5")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Linear"):
        quantise(nn.Linear(2, 2), "int8")
    with pytest.raises(ValueError, match="in_features=6"):
        Int8Linear(torch.zeros(16, 6))
    with pytest.raises(ValueError, match="weights='int5'"):
        jumok.load("smollm2", weights="int5")  # type: ignore[arg-type]
    odd = jumok.Decoder(jumok.Config(vocab_size=67, emb_dim=24, n_layers=1, n_heads=4))
    quantise(odd, "int4")
    assert odd(torch.tensor([[1, 2]])).shape == (1, 2, 67)
