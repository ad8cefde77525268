"""One token of one text equals a whole forward, whatever the model holds by then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.model.peers import DECODERS, peer_folder, random_ids

from jumok.model.cache import KeyValueCache
from jumok.model.checkpoints import read_folder
from jumok.model.config import Rotary, Sinusoidal
from jumok.model.linear import Linear
from jumok.model.one_token import OneToken
from jumok.model.quantised import Weights, quantise
from jumok.model.steps import ShortSteps
from jumok.model.transformer import Config, Decoder

GPT = Config(
    vocab_size=67, emb_dim=32, n_layers=3, n_heads=4, n_kv_heads=2, norm="rms", init_std=0.2
)
CONFIGS = {
    "plain": GPT,
    "window": replace(GPT, windows=(3, None, 1)),
    "two tables": replace(GPT, windows=(3, None, 3), positions=Rotary(1e4, local_theta=100.0)),
    "nowhere": replace(GPT, positions=None, tied_head=False),
    "biased": replace(GPT, qkv_bias=True, output_bias=True, feed_forward_bias=True),
    "wide": replace(GPT, head_dim=16, feed_forward="geglu", embedding_scale=4.0),
    "one head": replace(GPT, n_heads=1, n_kv_heads=1),
}


def built(config: Config, weights: Weights | None = None) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.5)
    if weights is not None:
        quantise(model, weights)
    return model


def warm(model: Decoder) -> KeyValueCache:
    cache = model.new_cache()
    with torch.no_grad():
        model(random_ids(1, 5), None, cache)
    return cache


def check(model: Decoder, steps: ShortSteps, cache: KeyValueCache, count: int = 4) -> None:
    """The next tokens, against forwards; both with caches of their own."""
    own = cache.fork()
    with torch.inference_mode():
        for ids in random_ids(1, count, seed=3).split(1, dim=1):
            expected = model(ids, None, own)
            assert steps.can_take(ids, cache)
            found = steps(ids, cache, 1)
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_part(config: Config) -> None:
    model = built(config)
    assert OneToken.takes(model)
    check(model, ShortSteps(model), warm(model), count=80)  # beyond the cache's first buffer


@pytest.mark.parametrize("name", DECODERS)
def test_every_family(name: str, tmp_path: Path) -> None:
    model = read_folder(peer_folder(name, tmp_path))
    assert isinstance(model, Decoder)
    check(model, ShortSteps(model), warm(model))


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("name", ["plain", "biased", "nowhere"])
def test_rounded_weights(name: str, weights: Weights) -> None:
    model = built(CONFIGS[name], weights)
    assert OneToken.takes(model)
    steps, cache = ShortSteps(model), warm(model)
    own = cache.fork()
    with torch.no_grad():
        for ids in random_ids(1, 4).split(1, dim=1):
            found, expected = steps(ids, cache), model(ids, None, own)
            assert float((found - expected).norm() / expected.norm()) < 0.01


def test_models_that_take_another_way() -> None:
    others = {
        "norm_place": "post",
        "norm": "layer",
        "feed_forward": "relu",
        "positions": Sinusoidal(),
        "head_norm": True,
    }
    for name, value in others.items():
        assert not OneToken.takes(built(replace(GPT, **{name: value})))  # type: ignore[arg-type]
    assert not OneToken.takes(built(GPT).bfloat16())


def test_weights_are_those_of_now() -> None:
    model = built(GPT)
    steps, cache = ShortSteps(model), warm(model)
    check(model, steps, cache)
    with torch.no_grad():  # in place
        for parameter in model.parameters():
            parameter.mul_(1.1)
    check(model, steps, cache)
    block = model.layers[1]
    block.attention.qkv.weight = torch.nn.Parameter(torch.randn(64, 32))  # another tensor
    block.attention_norm.weight = torch.nn.Parameter(torch.rand(32))
    check(model, steps, cache)
    block.feed_forward.down = Linear(block.feed_forward.down.in_features, 32)  # another module
    check(model, steps, cache)
    model.layers[0] = built(replace(GPT, init_std=0.1)).layers[2]
    check(model, steps, cache)


def test_another_dtype_takes_another_way() -> None:
    model = built(GPT)
    steps = ShortSteps(model)
    model.bfloat16()
    cache, ids = warm(model), random_ids(1, 1)
    with torch.no_grad():
        assert steps(ids, cache).dtype == torch.bfloat16
    model.float()
    check(model, steps, warm(model))


def test_whoever_listens_to_a_product_is_heard() -> None:
    model = built(GPT)
    steps, cache, ids = ShortSteps(model), warm(model), random_ids(1, 1)
    with torch.no_grad():
        assert steps.can_take(ids, cache)
        handle = model.layers[1].attention.qkv.register_forward_pre_hook(lambda *_: None)
        assert not steps.can_take(ids, cache)
        handle.remove()
        assert steps.can_take(ids, cache)


def test_logits_are_not_overwritten_and_modes_may_change() -> None:
    model = built(replace(GPT, tied_head=False))
    steps, cache, ids = ShortSteps(model), warm(model), random_ids(1, 1)
    with torch.inference_mode():
        first = steps(ids, cache)
        kept = first.clone()
        steps(ids, cache)
    with torch.no_grad():
        third = steps(ids, cache)
    assert torch.equal(first, kept)
    assert not third.is_inference()


def test_a_row_of_zeros() -> None:
    model = built(replace(GPT, tied_head=False))
    with torch.no_grad():
        model.embedding.weight.zero_()
    check(model, ShortSteps(model), warm(model))
