"""The attention layer against the definition, and the rotary table against `positions`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jumok import fused, positions
from jumok.definition import attention
from jumok.masks import Causal, Dense, Padding, Window
from jumok.model.attention import MultiHeadAttention, RotaryTable, _turned


def by_definition(
    layer: MultiHeadAttention,
    x: torch.Tensor,
    context: torch.Tensor | None = None,
    **options: object,
) -> torch.Tensor:
    """The layer's formula in float64, head by head."""
    context = x if context is None else context
    weight, bias = layer.qkv.weight.double(), layer.qkv.bias
    bias = torch.zeros(len(weight)).double() if bias is None else bias.double()
    d, n_q, n_kv = layer.head_dim, layer.n_heads, layer.n_kv_heads

    def head(source: torch.Tensor, number: int) -> torch.Tensor:
        rows = slice(number * d, (number + 1) * d)
        return source.double() @ weight[rows].T + bias[rows]

    mixed = []
    for h in range(n_q):
        key_head = h // (n_q // n_kv)
        q = head(x, h)
        k, v = head(context, n_q + key_head), head(context, n_q + n_kv + key_head)
        output, _, _ = attention(q, k, v, **options)
        mixed.append(output)
    joined = torch.cat(mixed, dim=-1) @ layer.output.weight.double().T
    return joined if layer.output.bias is None else joined + layer.output.bias.double()


@pytest.mark.parametrize(
    ("heads", "key_heads", "head_dim", "bias"),
    [(4, None, None, True), (6, 2, None, False), (6, 1, 5, True), (1, 1, None, True)],
)
@pytest.mark.parametrize("causal", [False, True])
def test_layer_is_the_definition(
    heads: int, key_heads: int | None, head_dim: int | None, bias: bool, causal: bool
) -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(24, heads, key_heads, head_dim, causal=causal, bias=bias)
    x = torch.randn(2, 7, 24)
    expected = by_definition(layer, x, causal=causal)
    torch.testing.assert_close(layer(x).double(), expected, rtol=0, atol=1e-6)


def test_cross_attention() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(24, 4, 2)
    x, context = torch.randn(2, 3, 24), torch.randn(2, 5, 24)
    found = layer(x, context=context)
    torch.testing.assert_close(found.double(), by_definition(layer, x, context), rtol=0, atol=1e-6)
    torch.testing.assert_close(layer(x, context=x), layer(x))


def test_masks() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, causal=True)
    x = torch.randn(2, 5, 8)
    seen = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    dense = seen[:, None, None].bool() & torch.ones(5, 5, dtype=torch.bool).tril()
    by_rule = layer(x, Padding(seen.bool()))
    torch.testing.assert_close(by_rule, layer(x, Dense(dense)))
    torch.testing.assert_close(by_rule, layer(x, dense.int()))
    torch.testing.assert_close(
        by_rule, layer(x, torch.zeros(2, 1, 5, 5).masked_fill(~dense, -torch.inf))
    )
    windowed = layer(x, Causal() & Window(2))
    near = torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)
    torch.testing.assert_close(windowed, layer(x, near))
    # A row that sees nothing gets the output's bias, and gradients are finite.
    x.requires_grad_()
    output = layer(x, Padding(seen.bool()))
    torch.testing.assert_close(output[1, 0], layer.output.bias)
    output.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_dropout_only_while_training() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 4, dropout=0.5)
    x = torch.randn(1, 6, 16)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_gradients_are_those_of_the_definition() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 6, 2, causal=True)
    x = torch.randn(2, 5, 12, requires_grad=True)
    upstream = torch.randn(2, 5, 12)
    (layer(x) * upstream).sum().backward()
    found = [x.grad.clone(), *(p.grad.clone() for p in layer.parameters())]
    x.grad = None
    layer.zero_grad()
    (by_definition(layer, x, causal=True) * upstream).sum().backward()
    expected = [x.grad, *(p.grad for p in layer.parameters())]
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"emb_dim": 10, "n_heads": 4}, "emb_dim=10.*n_heads=4"),
        ({"emb_dim": 12, "n_heads": 3, "n_kv_heads": 2}, "n_heads=3.*n_kv_heads=2"),
        ({"emb_dim": 12, "n_heads": 3, "n_kv_heads": 0}, "n_heads=3.*n_kv_heads=0"),
        ({"emb_dim": 12, "n_heads": 0}, "^n_heads=0: at least 1$"),
        ({"emb_dim": 12, "n_heads": 0}, "n_heads=0"),
        ({"emb_dim": 12, "n_heads": 3, "dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_what_does_not_fit_is_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**arguments)  # type: ignore[arg-type]


def test_wrong_input_is_shown() -> None:
    with pytest.raises(ValueError, match=r"\(batch, tokens, 12\); got \(5, 12\)"):
        MultiHeadAttention(12, 3)(torch.zeros(5, 12))


@pytest.mark.parametrize(
    "scaling", [None, positions.LinearScaling(4.0), positions.YarnScaling(4.0, 32)]
)
def test_rotary_table_is_rotate(scaling: positions.Scaling | None) -> None:
    torch.manual_seed(0)
    table = RotaryTable(8, 1e4, scaling)
    x = torch.randn(2, 9, 3, 8)  # (B, T, H, D)
    frequencies = positions.rotary_frequencies(8, 1e4, scaling)
    magnitude = 1.0 if scaling is None else scaling.magnitude
    for places in (range(9), range(300, 309), torch.randint(0, 2000, (2, 9))):
        tensor = torch.tensor(list(places)) if isinstance(places, range) else places
        cos, sin = positions.rotary_phases(tensor, frequencies, magnitude)
        cos, sin = (phase.reshape(-1, 1, 9, 4) for phase in (cos, sin))
        expected = positions.rotate(x.transpose(1, 2), cos, sin).transpose(1, 2)
        torch.testing.assert_close(_turned(x, table(places, x)), expected)


def test_rotary_table_made_in_inference_mode_serves_training() -> None:
    table = RotaryTable(4, 1e4, None)
    with torch.inference_mode():
        table(range(3), torch.zeros(1))
    x = torch.randn(1, 3, 1, 4, requires_grad=True)
    _turned(x, table(range(3), x)).sum().backward()
    assert x.grad is not None


def test_rotary_table_changes_with_dtype() -> None:
    table = RotaryTable(4, 1e4, None)
    exact, _ = table(range(100), torch.zeros(1, dtype=torch.float64))
    rough, _ = table(range(100), torch.zeros(1, dtype=torch.bfloat16))
    assert rough.dtype == torch.bfloat16
    # Phases are formed in float32 and rounded once.
    assert torch.equal(rough, exact.to(torch.bfloat16))


def test_learning_in_bfloat16_attends_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without AMX: the same numbers, sums in float32; gradients stay near those in float32."""
    monkeypatch.setattr("jumok.model.attention._HAS_AMX", False)
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(32, 4, causal=True), torch.randn(2, 9, 32)
    kinds: list[torch.dtype] = []
    attend = fused.torch_attention

    def heard(q: torch.Tensor, *others: Any, **options: Any) -> Any:
        kinds.append(q.dtype)
        return attend(q, *others, **options)

    monkeypatch.setattr(fused, "torch_attention", heard, raising=False)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(x)
        with torch.no_grad():
            layer(x)
    assert kinds == [torch.float32, torch.bfloat16]
    assert mixed.dtype == torch.bfloat16
    (found,) = torch.autograd.grad(mixed.float().square().sum(), layer.qkv.weight)
    (wanted,) = torch.autograd.grad(layer(x).square().sum(), layer.qkv.weight)
    assert (found - wanted).norm() < 0.03 * wanted.norm()
