"""Gradient-weighted attention, against gradients of the whole weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jumok


class Attention(nn.Module):
    """Self-attention with two key heads for six query heads, fused or with its weights at hand."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.by_hand = causal, False
        self.q, self.k, self.v = nn.Linear(48, 48), nn.Linear(48, 16), nn.Linear(48, 16)
        self.out = nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, 8)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        q = 3 * q
        if not self.by_hand:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        else:
            k, v = (part.repeat_interleave(3, dim=1) for part in (k, v))
            scores = q @ k.mT / 8**0.5
            if self.causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            self.weights = scores.softmax(-1)
            self.weights.retain_grad()
            mixed = self.weights @ v
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Classifier(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(causal) for _ in range(3))
        self.head = nn.Linear(48, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return self.head(x)


def run(causal: bool, tokens: int = 30) -> tuple[Any, Any, list[np.ndarray]]:
    """A recording after backward, the model, and the relevance per layer (B, T, T), by hand."""
    torch.manual_seed(0)
    model, x = Classifier(causal), torch.randn(2, tokens, 48)
    with jumok.watch(model, gradients=True) as recording:
        logits = model(x)
    logits[:, -1, 2].sum().backward()
    fused = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for layer in model.layers:
        layer.by_hand = True
    model(x)[:, -1, 2].sum().backward()
    for parameter, gradient in zip(model.parameters(), fused, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
    product, found = torch.eye(tokens).expand(2, -1, -1), []
    for layer in reversed(model.layers):
        step = (layer.weights.grad * layer.weights).clamp(min=0).mean(1).detach()
        product = product + product @ step
        found.append(product.numpy())
    return recording, model, found[::-1]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [0, 1])
def test_gradients_of_whole_weights(causal: bool, batch: int) -> None:
    recording, _, expected = run(causal)
    found = jumok.relevance(recording, [-1, 4], batch)
    for layer in range(3):
        np.testing.assert_allclose(
            found.layers[layer], expected[layer][batch][[29, 4]], rtol=1e-4, atol=1e-7
        )
    assert torch.equal(found.flow, found.layers[0])


def test_many_tiles() -> None:
    recording, _, expected = run(True, tokens=700)
    np.testing.assert_allclose(
        jumok.relevance(recording).flow, expected[0][0][[-1]], rtol=1e-4, atol=1e-7
    )


def test_gradients_are_those_without_watching() -> None:
    torch.manual_seed(0)
    model, x = Classifier(True), torch.randn(2, 30, 48)
    model(x).square().sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with jumok.watch(model, gradients=True):
        model(x).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_a_transformers_model() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(50, (1, 20))
    with jumok.watch(model, gradients=True) as recording:
        logits = model(ids).logits
    logits[0, -1, 7].backward()
    found = jumok.relevance(recording)
    eager = LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    result = eager(ids, output_attentions=True)
    gradients = torch.autograd.grad(result.logits[0, -1, 7], result.attentions)
    product = torch.eye(20)
    for w, g in reversed(list(zip(result.attentions, gradients, strict=True))):
        product = product + product @ (w * g).clamp(min=0)[0].mean(0).detach()
    torch.testing.assert_close(found.flow, product[[-1]], rtol=1e-3, atol=1e-6)


def test_errors_say_what_to_do() -> None:
    recording, model, _ = run(False)
    with pytest.raises(ValueError, match="no query 30 among 30"):
        jumok.relevance(recording, 30)
    with pytest.raises(TypeError, match="got list"):
        jumok.relevance(list(recording))
    for layer in model.layers:
        layer.by_hand = False
    with torch.no_grad(), jumok.watch(model, gradients=True) as without:
        model(torch.randn(1, 6, 48))
    with pytest.raises(ValueError, match=r"layers\.2: there is no gradient.*backward"):
        jumok.relevance(without, maps=[without[2]])
    with pytest.raises(ValueError, match="leave out keep, to and measure"):
        jumok.watch(model, "qk", gradients=True)
