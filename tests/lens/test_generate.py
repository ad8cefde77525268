"""The steps of a decoding loop become the map of one full forward, whatever the cache."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jumok
from jumok.masks import Causal, Steps, Window

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 60, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
IDS = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(1))
LEFT = torch.ones(2, 9, dtype=torch.long)
LEFT[1, :3] = 0


def built(name):
    torch.manual_seed(0)
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    if name == "mistral":
        config = transformers.MistralConfig(**SIZES, sliding_window=5)
        return transformers.MistralForCausalLM(config).eval()
    config = transformers.Gemma3TextConfig(
        **SIZES, sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    )
    return transformers.Gemma3ForCausalLM(config).eval()


@pytest.fixture(scope="module", params=["llama", "mistral", "gemma3"])
def model(request):
    return built(request.param)


def eager_attentions(model, ids, mask):
    config = copy.deepcopy(model.config)
    twin = type(model)._from_config(config, attn_implementation="eager").eval()
    twin.load_state_dict(model.state_dict())
    return twin(ids, attention_mask=mask, output_attentions=True).attentions


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sampling"])
@torch.no_grad()
def test_all_steps_are_one_full_forward(model, cache, padded, sampling):
    mask = LEFT if padded else torch.ones_like(LEFT)
    options = {"cache_implementation": "static"} if cache == "static" else {}
    torch.manual_seed(3)
    plain = model.generate(
        IDS, attention_mask=mask, max_new_tokens=8, do_sample=sampling, **options
    )
    torch.manual_seed(3)
    with jumok.watch(model) as recording:
        ids = model.generate(
            IDS, attention_mask=mask, max_new_tokens=8, do_sample=sampling, **options
        )
    assert torch.equal(ids, plain)
    assert [found.shape for found in recording] == [(2, 4, 16, 16)] * 2
    np.testing.assert_array_equal(recording.ids, ids[:, :-1].numpy())
    full = torch.cat([mask, torch.ones(2, 7, dtype=torch.long)], 1)
    for found, expected in zip(recording, eager_attentions(model, ids[:, :-1], full), strict=True):
        weights = found[...]
        torch.testing.assert_close(weights[0], expected[0], atol=1e-5, rtol=1e-4)
        first = 3 if padded else 0
        torch.testing.assert_close(
            weights[1, :, first:], expected[1, :, first:], atol=1e-5, rtol=1e-4
        )
        assert not isinstance(found.call.mask, Steps)  # one rule says it all
        if not padded:
            assert isinstance(found.call.mask, (Causal, Window))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    "kept",
    [{"keep": "qk"}, {"to": "disk"}, {"to": "cpu"}, {"heads": [1, 2]}, {"dtype": torch.bfloat16}],
    ids=lambda kept: "-".join(map(str, kept.values())),
)
@torch.no_grad()
def test_whatever_is_kept_of_the_steps(cache, kept):
    model = built("gemma3")
    options = {"cache_implementation": "static"} if cache == "static" else {}
    with jumok.watch(model, **kept) as recording:
        ids = model.generate(IDS, attention_mask=LEFT, max_new_tokens=8, do_sample=False, **options)
    full = torch.cat([LEFT, torch.ones(2, 7, dtype=torch.long)], 1)
    with jumok.watch(model, **kept) as whole:
        model(ids[:, :-1], attention_mask=full)
    assert [found.shape[2:] for found in recording] == [(16, 16)] * 2
    close = {"atol": 2e-2 if "dtype" in kept else 1e-5, "rtol": 1e-4}
    for found, expected in zip(recording, whole, strict=True):
        torch.testing.assert_close(found[0], expected[0], **close)
        torch.testing.assert_close(found[1, :, 3:], expected[1, :, 3:], **close)
        norms, right = found.value_norms(), expected.value_norms()
        torch.testing.assert_close(norms[0], right[0], atol=close["atol"], rtol=1e-3)


@torch.no_grad()
def test_measured_steps_add_up_to_one_forward():
    model = built("mistral")
    names = ["entropy", "distance", "first", "itself", "previous"]
    with jumok.watch(model, measure=names) as recording:
        ids = model.generate(IDS, max_new_tokens=8, do_sample=False)
    with jumok.watch(model, measure=names) as whole:
        model(ids[:, :-1])
    for found, expected in zip(recording, whole, strict=True):
        one, other = found.measured.means(), expected.measured.means()
        for name in names:
            if name != "first":  # the windowed cache has dropped it
                np.testing.assert_allclose(one[name], other[name], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_guesses_that_are_taken_back_begin_another_map():
    model = built("llama")
    with jumok.watch(model) as recording:
        ids = model.generate(
            IDS[:1], max_new_tokens=10, do_sample=False, prompt_lookup_num_tokens=2
        )
    total = torch.cat([ids, ids], 1)
    for found in recording[0::2]:
        queries, keys = found.shape[2:]
        assert keys >= queries
        if keys <= ids.shape[1]:
            with jumok.watch(model) as whole:
                model(total[:, :keys])
            first = keys - queries
            agrees = torch.isclose(found[...], whole[0][:, :, first:], atol=1e-5).all(-1)
            assert bool(agrees[0, 0, 0])


@torch.no_grad()
def test_without_a_cache_each_step_is_a_run_of_its_own():
    model = built("llama")
    with jumok.watch(model) as recording:
        model.generate(IDS, max_new_tokens=3, do_sample=False, use_cache=False)
    assert [found.shape[2:] for found in recording[0::2]] == [(9, 9), (10, 10), (11, 11)]


@torch.no_grad()
def test_beam_search_is_refused_in_words_that_help():
    model = built("llama")
    with pytest.raises(ValueError, match=r"beam search.*num_beams=1"), jumok.watch(model):
        model.generate(IDS, max_new_tokens=12, num_beams=3, do_sample=False)


def our_own():
    torch.manual_seed(0)
    config = jumok.Config(vocab_size=60, emb_dim=32, n_layers=2, n_heads=4, n_kv_heads=2)
    return jumok.Decoder(config).eval()


@torch.no_grad()
def test_two_continuations_of_one_prefix_stay_apart():
    model = our_own()
    with jumok.watch(model) as recording:
        cache = model.new_cache()
        model(IDS, cache=cache)
        other = cache.fork()
        model(IDS[:, :2], cache=cache)
        model(IDS[:, 2:5], cache=other)
    assert [found.shape[2:] for found in recording[0::2]] == [(11, 11), (3, 12)]
    with jumok.watch(model) as whole:
        model(torch.cat([IDS, IDS[:, 2:5]], 1))
    for found, expected in zip(recording[2:], whole, strict=True):
        torch.testing.assert_close(found[...], expected[:, :, -3:], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_our_own_loop_is_stitched(mode):
    model = our_own()
    with mode():
        with jumok.watch(model) as recording:
            ids = jumok.generate(model, IDS, max_new_tokens=6, temperature=0, stop=None)
        with jumok.watch(model) as whole:
            model(ids[:, :-1])
    assert [found.shape for found in recording] == [(2, 4, 14, 14)] * 2
    for found, expected in zip(recording, whole, strict=True):
        torch.testing.assert_close(found[...], expected[...], atol=1e-5, rtol=1e-4)


class Step(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


@pytest.mark.parametrize("written", ["anew", "in place"])
def test_many_steps_hold_no_more_than_their_own_rows(written):
    q, k, v = torch.randn(3, 1, 2, 700, 8).unbind(0)
    model = Step()
    room = torch.zeros(2, 1, 2, 700, 8)
    with jumok.watch(model) as recording:
        for start, stop in [(0, 4), *((n, n + 1) for n in range(4, 700))]:
            keys, values = k[:, :, :stop].clone(), v[:, :, :stop].clone()
            if written == "in place":
                room[0, :, :, start:stop] = k[:, :, start:stop]
                room[1, :, :, start:stop] = v[:, :, start:stop]
                keys, values = room[0, :, :, :stop], room[1, :, :, :stop]
            model(q[:, :, start:stop], keys, values)
    found = recording[0]
    assert found.shape == (1, 2, 700, 700)
    assert found.held_bytes <= 4 * 2 * 700 * (3 * 8 + 1)
    assert len(found._source._steps) <= 256
    _, weights, _ = jumok.attention(q.double(), k.double(), v.double(), causal=True)
    torch.testing.assert_close(found[...].double(), weights, atol=1e-5, rtol=1e-4)


def test_a_windowed_cache_that_drops_keys_is_continued():
    q, k, v = torch.randn(3, 1, 2, 12, 8).unbind(0)
    model = Step()
    with jumok.watch(model) as recording:
        for n in range(12):
            seen = slice(max(0, n - 3), n + 1)
            model(q[:, :, n : n + 1], k[:, :, seen].clone(), v[:, :, seen].clone())
    assert [found.shape for found in recording] == [(1, 2, 12, 12)]
    assert recording[0].call.mask == Window(4)
    _, weights, _ = jumok.attention(q.double(), k.double(), v.double(), mask=Window(4))
    torch.testing.assert_close(recording[0][...].double(), weights, atol=1e-6, rtol=1e-5)
