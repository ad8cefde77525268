"""Cached equals uncached, whatever the pieces, windows, padding and forks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jumok.model.cache import KeyValueCache, LayerCache
from jumok.model.transformer import Config, Decoder, Learned

GPT = Config(vocab_size=41, emb_dim=24, n_layers=3, n_heads=4, n_kv_heads=2, init_std=0.2)
CONFIGS = {
    "full": GPT,
    "window": replace(GPT, windows=(3, 3, 3)),
    "mixed": replace(GPT, windows=(3, None, 1)),
    "learned": replace(GPT, positions=Learned(), norm="layer"),
}


def ids_of(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 41, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def decoder(config: Config) -> Decoder:
    torch.manual_seed(0)
    return Decoder(config).eval()


def in_pieces(
    model: Decoder,
    ids: torch.Tensor,
    sizes: Sequence[int],
    mask: torch.Tensor | None = None,
    cache: KeyValueCache | None = None,
) -> torch.Tensor:
    cache = model.new_cache() if cache is None else cache
    outputs, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        outputs.append(model(ids[:, part], None if mask is None else mask[:, part], cache))
        start += size
    assert start == ids.shape[1]
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("sizes", [(4, 3, 2), (7, 1, 1), (1,) * 9, (9,), (0, 9), (2, 0, 7)])
@pytest.mark.parametrize("gradients", [False, True])
def test_cached_is_uncached(config: Config, sizes: tuple[int, ...], gradients: bool) -> None:
    model = decoder(config)
    ids = ids_of(2, 9)
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(in_pieces(model, ids, sizes), model(ids))


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8), window=st.integers(1, 8))
def test_any_pieces_any_window(sizes: list[int], window: int) -> None:
    model = decoder(replace(GPT, n_layers=2, windows=(window, None)))
    ids = ids_of(1, sum(sizes))
    with torch.no_grad():
        torch.testing.assert_close(in_pieces(model, ids, sizes), model(ids))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_left_padding(config: Config) -> None:
    model = decoder(config)
    ids = ids_of(2, 9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, :5] = False
    with torch.no_grad():
        found = in_pieces(model, ids, (6, 2, 1), mask)
        torch.testing.assert_close(found[mask], model(ids, mask)[mask])
        torch.testing.assert_close(found[1:, 5:], model(ids[1:, 5:]))


def test_padding_that_comes_later() -> None:
    model = decoder(GPT)
    ids = ids_of(2, 6)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 4] = False
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, :4], None, cache)
        model(ids[:, 4:5], mask[:, 4:5], cache)
        last = model(ids[:, 5:], None, cache)
        expected = model(ids, mask)[:, 5:]
    torch.testing.assert_close(last, expected)
    without = model(torch.cat([ids[:1, :4], ids[:1, 5:]], dim=1))[:, -1:]
    torch.testing.assert_close(last[:1], without)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_fork_and_reset(config: Config) -> None:
    model = decoder(config)
    ids, other = ids_of(1, 9), ids_of(1, 9, seed=1)
    other[:, :5] = ids[:, :5]
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, :5], cache=cache)
        twin = cache.fork()
        one = in_pieces(model, ids[:, 5:], (2, 2), cache=cache)
        two = in_pieces(model, other[:, 5:], (1, 3), cache=twin)
        torch.testing.assert_close(one, model(ids)[:, 5:])
        torch.testing.assert_close(two, model(other)[:, 5:])
        assert (cache.length, twin.length) == (9, 9)
        cache.reset()
        assert cache.length == 0
        assert torch.equal(in_pieces(model, other, (9,), cache=cache), model(other))
        torch.testing.assert_close(twin.fork().layers[0].n_keys, twin.layers[0].n_keys)


def test_gradients_go_through_the_cache() -> None:
    model = decoder(GPT)
    ids = ids_of(1, 6)
    model(ids)[:, -1].sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    in_pieces(model, ids, (3, 2, 1))[:, -1].sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-4)


def test_inference_mode_may_begin_or_end_between_steps() -> None:
    model = decoder(GPT)
    ids = ids_of(1, 6)
    cache = model.new_cache()
    with torch.inference_mode():
        model(ids[:, :2], cache=cache)
    with torch.no_grad():
        model(ids[:, 2:4], cache=cache)
    with torch.inference_mode():
        model(ids[:, 4:5], cache=cache)
    last = model(ids[:, 5:], cache=cache)
    torch.testing.assert_close(last, model(ids)[:, 5:])


def test_a_window_keeps_no_more_than_it_can_see() -> None:
    layer = LayerCache(window=4)
    for step in range(400):
        keys = torch.full((1, 1, 1, 2), float(step))
        seen, _ = layer.extend(keys, keys)
        assert seen[0, 0, :, 0].tolist() == list(range(max(0, step - 3), step + 1))
    assert layer.n_keys == 3
    assert layer._keys is not None
    assert layer._keys.shape[2] <= 64


def test_another_batch_is_refused() -> None:
    model = decoder(GPT)
    cache = model.new_cache()
    with torch.no_grad():
        model(ids_of(2, 3), cache=cache)
        with pytest.raises(ValueError, match=r"batch of 2.*batch of 1"):
            model(ids_of(1, 1), cache=cache)


def test_learned_positions_end() -> None:
    model = decoder(replace(GPT, positions=Learned(), context=8))
    cache = model.new_cache()
    with torch.no_grad():
        model(ids_of(1, 8), cache=cache)
        with pytest.raises(ValueError, match=r"9 tokens.*8 positions"):
            model(ids_of(1, 1), cache=cache)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("sizes", [(6,), (2, 3, 1), (1,) * 6])
@pytest.mark.parametrize("length", [6, 5, 3, 1, 0])
@torch.no_grad()
def test_a_truncated_cache_goes_on_with_other_tokens(
    config: Config, sizes: tuple[int, ...], length: int
) -> None:
    model = decoder(config)
    first, second = ids_of(2, 6), ids_of(2, 5, seed=1)
    whole = torch.cat([first[:, :length], second], dim=1)
    cache = model.new_cache()
    in_pieces(model, first, sizes, cache=cache)
    if not cache.truncate(length):
        assert config.windows  # a key that was dropped is needed again
        assert cache.length == 6
        model(ids_of(2, 1), cache=cache)  # and the cache is as it was
        return
    assert cache.length == length
    torch.testing.assert_close(model(second, cache=cache), model(whole)[:, length:])


@torch.no_grad()
def test_a_window_takes_back_what_its_buffer_still_has() -> None:
    model = decoder(CONFIGS["window"])
    first, second = ids_of(1, 8), ids_of(1, 3, seed=1)
    cache = model.new_cache()
    model(first, cache=cache)
    assert cache.truncate(4)
    whole = torch.cat([first[:, :4], second], dim=1)
    torch.testing.assert_close(model(second, cache=cache), model(whole)[:, 4:])


@torch.no_grad()
def test_a_truncated_cache_forgets_padding_too() -> None:
    model = decoder(GPT)
    ids, mask = ids_of(2, 6), torch.ones(2, 6, dtype=torch.bool)
    mask[1, :2] = False
    cache = model.new_cache()
    model(ids, mask, cache)
    assert cache.truncate(4)
    new = ids_of(2, 2, seed=1)
    whole = torch.cat([ids[:, :4], new], dim=1)
    expected = model(whole, torch.cat([mask[:, :4], mask.new_ones(2, 2)], dim=1))
    torch.testing.assert_close(model(new, cache=cache), expected[:, 4:])


def test_a_cache_has_no_tokens_that_it_has_not_seen() -> None:
    cache = decoder(GPT).new_cache()
    with pytest.raises(ValueError, match=r"truncate\(1\): the cache holds 0 tokens"):
        cache.truncate(1)
