"""What `watch` hears, whose calls they are, and that the model computes what it always does."""

import contextlib
import copy
import gc
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jumok
from jumok import fused
from jumok.lens.rules import mask_arrays
from jumok.masks import Causal, Padding, Window

transformers = pytest.importorskip("transformers")


class Call(nn.Module):
    """A module that does nothing but one call."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def tensors(*shapes, seed=0, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random, dtype=dtype) for shape in shapes]


def softmax_weights(q, k, *, added=None, scale=None):
    """The weights of SDPA by hand, in float64."""
    q, k = q.double(), k.double()
    if k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    if added is not None:
        scores = scores + added.double()
    weights = scores.softmax(-1)
    return torch.where(weights.isnan(), 0.0, weights)


def added(visible):
    return torch.zeros(visible.shape).masked_fill(~visible, -math.inf)


SDPA = F.scaled_dot_product_attention
QUERIES, KEYS = 5, 7
TOP_LEFT = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril()
SOME = torch.rand(2, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(3)) > 0.4
SOME[1, 0, 2] = False  # a row that sees nothing
FLOATS = torch.randn(1, 6, QUERIES, KEYS, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, {}),
        ({"is_causal": True}, {"added": added(TOP_LEFT)}),
        ({"attn_mask": SOME}, {"added": added(SOME)}),
        ({"attn_mask": SOME[0, 0]}, {"added": added(SOME[0, 0])}),
        ({"attn_mask": added(SOME)}, {"added": added(SOME)}),
        ({"attn_mask": FLOATS}, {"added": FLOATS}),
        ({"scale": 0.7}, {"scale": 0.7}),
        ({"scale": 0.3, "attn_mask": FLOATS}, {"scale": 0.3, "added": FLOATS}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [8, 4], ids=["flash", "math"])
def test_every_form_of_sdpa(options, reference, mode, dtype, width):
    q, k = tensors((2, 6, QUERIES, 8), (2, 6, KEYS, 8), dtype=dtype)
    (v,) = tensors((2, 6, KEYS, width), dtype=dtype)
    options = {
        name: value.to(dtype)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in options.items()
    }
    reference = {
        name: value.to(dtype) if isinstance(value, torch.Tensor) else value
        for name, value in reference.items()
    }
    model = Call(SDPA)
    with mode():
        plain = model(q, k, v, **options)
        with jumok.watch(model) as recording:
            watched = model(q, k, v, **options)
    assert torch.equal(plain.nan_to_num(7), watched.nan_to_num(7))
    weights = recording[0][...]
    assert weights.dtype == torch.float32
    expected = softmax_weights(q, k, **reference)
    torch.testing.assert_close(weights.double(), expected, atol=1e-5, rtol=1e-5)


def test_grouped_heads_unbatched_and_many_batch_dimensions():
    q, k, v = tensors((2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    model = Call(SDPA)
    with jumok.watch(model) as recording:
        model(q, k, v, enable_gqa=True, is_causal=True)
        model(q[:, 0], k[:, 0], value=v[:, 0])
        model(q[0, 0], k[0, 0], v[0, 0])
        model(q.reshape(1, 2, 6, 5, 8), q.reshape(1, 2, 6, 5, 8), q.reshape(1, 2, 6, 5, 8))
        model(q, k[:1, :1].expand(2, 6, 5, 8), v[:1, :1].expand(2, 6, 5, 8))
        model(q[:, 0], k[:, 0], v[:, 0], SOME[:, 0, :, :5])
    causal = added(torch.ones(5, 5, dtype=torch.bool).tril())
    expected = [
        softmax_weights(q, k, added=causal),
        softmax_weights(q[:, :1], k[:, :1]),
        softmax_weights(q[:1, :1], k[:1, :1]),
        softmax_weights(q, q),
        softmax_weights(q, k[:1, :1].expand(2, 6, 5, 8)),
        softmax_weights(q[:, :1], k[:, :1], added=added(SOME[:, :, :, :5])),
    ]
    assert recording[0].call.k.shape[1] == 2  # the key heads are not expanded
    for found, right in zip(recording, expected, strict=True):
        torch.testing.assert_close(found[...].double(), right, atol=1e-6, rtol=1e-5)
    assert recording.names == ["Call"] + [f"Call#{n}" for n in range(1, 6)]


def test_the_lse_is_the_kernels_own_and_right_for_empty_rows():
    q, k, v = tensors((2, 6, QUERIES, 8), (2, 6, KEYS, 8), (2, 6, KEYS, 8))
    model = Call(SDPA)
    with jumok.watch(model) as recording:
        model(q, k, v, attn_mask=SOME)
    call = recording[0]._source.call()
    assert call.lse is not None  # read from the kernel, not computed
    scores = (q.double() @ k.double().mT) * 8**-0.5 + added(SOME)
    torch.testing.assert_close(call.lse.double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)
    assert bool((call.lse[1, :, 2] == -math.inf).all())
    assert bool((recording[0][1, :, 2] == 0).all())


def test_a_row_of_the_smallest_numbers_is_uniform():
    """Very negative is not hidden: the kernel attends evenly, and so the map says."""
    q, k, v = tensors((1, 1, 3, 8), (1, 1, 3, 8), (1, 1, 3, 8))
    mask = torch.zeros(3, 3)
    mask[1] = torch.finfo(torch.float32).min
    model = Call(SDPA)
    with jumok.watch(model) as recording:
        out = model(q, k, v, attn_mask=mask)
    torch.testing.assert_close(recording[0][0, 0, 1], torch.full((3,), 1 / 3))
    torch.testing.assert_close(out[0, 0, 1], v[0, 0].mean(0))


@pytest.mark.parametrize(
    "options",
    [
        {"mask": Causal()},
        {"causal": True, "softcap": 3.0},
        {"mask": Causal() & Padding(torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]).bool())},
        {"mask": Window(2), "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0, 1.0, 0.3])},
        {"bias": FLOATS[..., :5], "scale": 0.2},
    ],
    ids=lambda options: "-".join(options),
)
def test_our_own_attention_is_heard_with_its_rules(options):
    q, k, v = tensors((2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    model = Call(fused.attention)
    plain = model(q, k, v, **options)
    with jumok.watch(model) as recording:
        watched = model(q, k, v, **options)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    _, weights, lse = jumok.attention(q.double(), k.double(), v.double(), **{
        name: value.double() if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
    })  # fmt: skip
    torch.testing.assert_close(recording[0][...].double(), weights, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(recording[0].call.lse.double(), lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", ["", "padding", "causal", "padding causal", "floats"])
@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(need_weights, batch_first, masks, training):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=batch_first).train(training)
    x = torch.randn((2, 7, 32) if batch_first else (7, 2, 32))
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    options = {}
    if "padding" in masks:
        options["key_padding_mask"] = padding
    if "causal" in masks:
        options["attn_mask"] = torch.ones(7, 7, dtype=torch.bool).triu(1)
    if "floats" in masks:
        options["attn_mask"] = torch.randn(8, 7, 7)
    with torch.no_grad():
        plain = layer(x, x, x, need_weights=need_weights, **options)[0]
        _, expected = layer(x, x, x, average_attn_weights=False, **options)
        with jumok.watch(layer) as recording:
            watched = layer(x, x, x, need_weights=need_weights, **options)[0]
    if training or not batch_first:
        assert torch.equal(plain, watched)
    torch.testing.assert_close(plain, watched, atol=1e-6, rtol=1e-6)  # off the fused fast path
    torch.testing.assert_close(recording[0][...], expected, atol=1e-6, rtol=1e-5)
    weight = layer.out_proj.weight
    v = recording[0].call.v
    norms = torch.stack(
        [(v[:, h] @ weight[:, 8 * h : 8 * h + 8].T).norm(dim=-1) for h in range(4)], 1
    )
    torch.testing.assert_close(recording[0].value_norms(), norms)


def test_transformer_encoder_leaves_its_fast_path_only_while_watched():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    encoder.eval()
    x = torch.randn(2, 7, 32)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    enabled = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        plain = encoder(x)
        with jumok.watch(encoder) as recording:
            watched = encoder(x, src_key_padding_mask=padding)
            assert torch.backends.mha.get_fastpath_enabled() == enabled
        assert torch.equal(encoder(x), plain)
        encoder.train()
        for layer in encoder.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
            if isinstance(layer, nn.MultiheadAttention):
                layer.dropout = 0.0
        slow = encoder(x, src_key_padding_mask=padding)
    torch.testing.assert_close(watched[0], slow[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(watched[1, :5], slow[1, :5], atol=1e-6, rtol=1e-6)
    assert recording.names == ["layers.0.self_attn", "layers.1.self_attn"]
    assert bool((recording[0][1, :, :, 5:] == 0).all())


# -- transformers -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, vocab_size=100, bos_token_id=None, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def eager_llama(llama):
    config = copy.deepcopy(llama.config)
    twin = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    twin.load_state_dict(llama.state_dict())
    return twin


IDS = torch.randint(1, 100, (2, 11), generator=torch.Generator().manual_seed(1))
LEFT = torch.ones(2, 11, dtype=torch.long)
LEFT[1, :4] = 0


def assert_real_rows_equal(recording, attentions, first_real=0, atol=1e-6):
    assert len(recording) == len(attentions)
    for found, expected in zip(recording, attentions, strict=True):
        weights = found[...]
        torch.testing.assert_close(weights[0], expected[0], atol=atol, rtol=1e-5)
        torch.testing.assert_close(
            weights[1, :, first_real:], expected[1, :, first_real:], atol=atol, rtol=1e-5
        )


@pytest.mark.parametrize("mask", [None, LEFT], ids=["full", "left padding"])
@torch.no_grad()
def test_transformers_model_with_its_own_masks(llama, eager_llama, mask):
    plain = llama(IDS, attention_mask=mask).logits
    with jumok.watch(llama) as recording:
        watched = llama(IDS, attention_mask=mask).logits
    assert torch.equal(plain, watched)
    attentions = eager_llama(IDS, attention_mask=mask, output_attentions=True).attentions
    assert_real_rows_equal(recording, attentions, 0 if mask is None else 4)
    assert recording.names == [f"model.layers.{n}.self_attn" for n in range(3)]
    assert recording[0].call.k.shape[1] == 2
    assert all(found._source.call().lse is not None for found in recording)
    masks = {id(array) for found in recording for array in mask_arrays(found.call.mask)}
    assert len(masks) == (mask is not None)  # one for all layers
    np.testing.assert_array_equal(recording.ids, IDS.numpy())


@pytest.mark.parametrize("implementation", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_generation_is_stitched_into_the_map_of_one_full_forward(
    llama, eager_llama, implementation, padded
):
    mask = LEFT if padded else torch.ones_like(LEFT)
    options = {} if implementation == "dynamic" else {"cache_implementation": "static"}
    with jumok.watch(llama) as recording:
        ids = llama.generate(IDS, attention_mask=mask, max_new_tokens=6, do_sample=False, **options)
    assert len(recording) == 3
    assert [found.shape for found in recording] == [(2, 6, 16, 16)] * 3
    np.testing.assert_array_equal(recording.ids, ids[:, :-1].numpy())
    full = torch.cat([mask, torch.ones(2, 5, dtype=torch.long)], 1)
    attentions = eager_llama(ids[:, :-1], attention_mask=full, output_attentions=True).attentions
    assert_real_rows_equal(recording, attentions, 4 if padded else 0, atol=1e-5)
    assert recording[0].is_causal or padded


@torch.no_grad()
def test_the_same_prompt_twice_is_two_maps(llama):
    with jumok.watch(llama) as recording:
        llama(IDS)
        llama(IDS)
        llama(torch.cat([IDS, IDS[:, :1]], 1))
    assert len(recording) == 9
    assert recording.names[0::3] == [
        "model.layers.0.self_attn", "model.layers.0.self_attn#1", "model.layers.0.self_attn#2",
    ]  # fmt: skip
    assert torch.equal(recording[0][...], recording[3][...])


@torch.no_grad()
def test_cross_attention_steps_are_stitched_on_the_same_keys():
    torch.manual_seed(0)
    sizes = {"encoder": 1, "decoder": 1}
    config = transformers.BartConfig(
        vocab_size=50, d_model=32, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        decoder_start_token_id=3, forced_eos_token_id=None,
        **{f"{part}_layers": count for part, count in sizes.items()},
        **{f"{part}_attention_heads": 4 for part in sizes},
        **{f"{part}_ffn_dim": 32 for part in sizes},
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config).eval()
    ids = torch.randint(4, 50, (1, 9))
    with jumok.watch(model) as recording:
        out = model.generate(ids, max_new_tokens=5, do_sample=False, num_beams=1, min_new_tokens=5)
    shapes = {found.name: found.shape for found in recording}
    steps = out.shape[1] - 1
    assert shapes == {
        "model.encoder.layers.0.self_attn": (1, 4, 9, 9),
        "model.decoder.layers.0.self_attn": (1, 4, steps, steps),
        "model.decoder.layers.0.encoder_attn": (1, 4, steps, 9),
    }
    eager = transformers.BartForConditionalGeneration._from_config(
        copy.deepcopy(config), attn_implementation="eager"
    ).eval()
    eager.load_state_dict(model.state_dict())
    full = eager(ids, decoder_input_ids=out[:, :-1], output_attentions=True)
    for name, expected in (
        ("model.encoder.layers.0.self_attn", full.encoder_attentions),
        ("model.decoder.layers.0.self_attn", full.decoder_attentions),
        ("model.decoder.layers.0.encoder_attn", full.cross_attentions),
    ):
        torch.testing.assert_close(recording[name][...], expected[0], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_transformers_is_left_as_it_was(llama):
    from transformers.modeling_utils import AttentionInterface

    before = AttentionInterface.get_interface
    with jumok.watch(llama):
        llama(IDS)
        assert AttentionInterface.get_interface is not before
    assert AttentionInterface.get_interface is before
    assert llama.config._attn_implementation == "sdpa"


# -- whose calls ------------------------------------------------------------------------------


def test_calls_outside_the_module_are_not_recorded():
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    inner, other = Call(SDPA), Call(SDPA)
    with jumok.watch(inner) as recording:
        SDPA(q, k, v)
        other(q, k, v)
        inner(q, k, v)
        recording[0].entropy()
        fused.attention(q, k, v)
    assert len(recording) == 1


def test_other_threads_are_not_recorded():
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    model = Call(SDPA)
    with jumok.watch(model) as recording:
        thread = threading.Thread(target=model, args=(q, k, v))
        thread.start()
        thread.join()
        assert len(recording) == 0
        model(q, k, v)
    assert len(recording) == 1


def test_many_threads_record_one_model_each_for_itself():
    model = Call(lambda *inputs: SDPA(*inputs))

    def run(seed):
        q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), seed=seed)
        with jumok.watch(model) as recording:
            for _ in range(20):
                model(q, k, v)
        expected = softmax_weights(q, k).float()
        return len(recording), all(torch.allclose(found[...], expected) for found in recording)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(8))) == [(20, True)] * 8
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_nested_watches_each_hear_their_own():
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    one, two = Call(SDPA), Call(SDPA)
    both = nn.ModuleList([one, two])
    both.forward = lambda *inputs: (one(*inputs), two(*inputs))
    with jumok.watch(both) as outer, jumok.watch(two) as inner, jumok.watch(both) as again:
        both(q, k, v)
    assert (outer.names, inner.names, again.names) == (["0", "1"], ["Call"], ["0", "1"])
    assert torch.equal(outer[1][...], inner[0][...])


def test_an_error_in_the_model_leaves_nothing_behind():
    def fail(*inputs):
        SDPA(*inputs)
        raise RuntimeError("of the model")

    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    model = nn.Sequential(Call(fail))
    model.forward = lambda *inputs: model[0](*inputs)
    with pytest.raises(RuntimeError, match="of the model"), jumok.watch(model) as recording:
        model(q, k, v)
    assert len(recording) == 1
    assert torch.overrides._get_current_function_mode() is None
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    with jumok.watch(model) as recording, pytest.raises(RuntimeError, match="of the model"):
        model(q, k, v)
    assert len(recording) == 1


# -- what is kept -----------------------------------------------------------------------------


def test_a_buffer_that_is_written_again_is_copied():
    buffer = torch.zeros(1, 2, 6, 4)
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))

    def cached(q, k, v):
        buffer[:, :, :3] = k
        return SDPA(q, buffer[:, :, :3], v)

    model = Call(cached)
    with jumok.watch(model) as recording:
        model(q, k, v)
    buffer.fill_(9.0)
    torch.testing.assert_close(recording[0][...], softmax_weights(q, k).float())


def test_an_overwritten_reference_is_noticed():
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    model = Call(SDPA)
    with jumok.watch(model) as recording:
        model(q, k, v)
    k.mul_(2)
    with pytest.raises(ValueError, match="recorded k was overwritten in place"):
        recording[0][0, 0]


def test_a_slice_of_a_fused_projection_does_not_keep_the_rest_alive():
    def sliced(x):
        q, k, v, _ = x.split([8, 8, 8, 40], dim=-1)
        return SDPA(*(part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (q, k, v)))

    model = Call(sliced)
    with jumok.watch(model) as recording:
        model(torch.randn(1, 500, 64))
    gc.collect()
    call = recording[0].call
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in (call.q, call.k, call.v)
    }
    assert sum(storages.values()) == 3 * 500 * 8 * 4
    whole = Call(lambda x: SDPA(*x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)))
    x = torch.randn(1, 500, 24)
    with jumok.watch(whole) as recording:
        whole(x)
    assert recording[0].call.q.data_ptr() == x.data_ptr()  # all of it is kept: no copy


def test_watching_training_changes_no_gradient_bit():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    x = torch.randn(2, 7, 32)

    def gradients(watched):
        torch.manual_seed(5)
        layer.zero_grad()
        if watched:
            with jumok.watch(layer) as recording:
                layer(x).square().sum().backward()
            assert not recording[0].call.q.requires_grad
        else:
            layer(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


@pytest.mark.parametrize("function", [SDPA, lambda q, k, v, mask: fused.attention(q, k, v, mask)])
@pytest.mark.parametrize("kind", ["rule", "dense", "floats"])
def test_a_mask_that_is_overwritten_later_is_noticed_or_was_copied(function, kind):
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    if kind == "dense":
        mask[2, 1] = False
    if kind == "floats":
        mask = torch.randn(3, 3)
    model = Call(function)
    with jumok.watch(model) as recording:
        model(q, k, v, mask)
    before = recording[0][...]
    mask.zero_()
    after = before
    with contextlib.suppress(ValueError):
        after = recording[0][...]
    assert torch.equal(before, after)
    if kind == "floats":
        with pytest.raises(ValueError, match="overwritten in place"):
            recording[0][0, 0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_that_changes_between_layers_is_read_again(mode):
    def layers(q, k, v):
        mask = torch.zeros(3, 3)
        mask[0] = torch.randn(3)
        first = SDPA(q, k, v, mask)
        mask[1] = 5.0 * torch.arange(3)
        return first + SDPA(q, k, v, mask)

    q, k, v = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    model = Call(layers)
    with mode(), jumok.watch(model) as recording:
        model(q, k, v)
    late = softmax_weights(q, k, added=5.0 * torch.arange(3).expand(3, 3))
    close = {"atol": 1e-6, "rtol": 1e-5}
    torch.testing.assert_close(recording[1][:, :, 1].double(), late[:, :, 1], **close)
    plain = softmax_weights(q, k)
    torch.testing.assert_close(recording[0][:, :, 1].double(), plain[:, :, 1], **close)


def test_under_autocast_what_the_kernel_got_is_recorded():
    q, k, v = (3 * x for x in tensors((1, 2, 9, 8), (1, 2, 9, 8), (1, 2, 9, 8)))
    model = Call(SDPA)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), jumok.watch(model) as recording:
        model(q, k, v)
    expected = softmax_weights(q.bfloat16(), k.bfloat16())
    torch.testing.assert_close(recording[0][...].double(), expected, atol=1e-4, rtol=1e-3)


def test_query_heads_and_dimensions_that_broadcast():
    q, k = tensors((1, 1, 4, 8), (1, 2, 4, 8))
    model = Call(SDPA)
    with jumok.watch(model) as recording:
        model(q, k, k)
        model(q[0, 0].expand(4, 4, 8)[:2], k, k)
        model(q[:, :0], k[:, :0], k[:, :0])
    expected = softmax_weights(q.expand(1, 2, 4, 8), k)
    assert recording[0].shape == (1, 2, 4, 4)
    torch.testing.assert_close(recording[0][...].double(), expected)
    torch.testing.assert_close(recording[1][...].double(), expected)
    assert recording[2].entropy().shape == (1, 0, 4)


def test_a_thread_with_a_copy_of_the_context_is_another_thread():
    import contextvars

    model = Call(SDPA)
    inputs = tensors((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))
    with jumok.watch(model) as recording:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(20):
                pool.submit(contextvars.copy_context().run, model, *inputs).result()
        assert len(recording) == 0
        model(*inputs)
    assert len(recording) == 1


def test_a_copy_of_a_recording_or_of_a_watched_model_works():
    import pickle

    layer = Attention().eval()
    with jumok.watch(layer) as recording, torch.no_grad():
        layer(torch.randn(2, 5, 16))
        twin = copy.deepcopy(layer)
        twin(torch.randn(2, 5, 16))
    assert len(recording) == 1
    for other in (copy.deepcopy(recording), pickle.loads(pickle.dumps(recording))):
        assert torch.equal(other[0][...], recording[0][...])
        assert torch.equal(other[0].value_norms(), recording[0].value_norms())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("which", ["compiled", "original"])
def test_a_compiled_model_runs_uncompiled_while_watched(which):
    layer = Attention().eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        plain = layer(x)
        compiled = torch.compile(layer, backend="eager")
        compiled(x)
        with jumok.watch(compiled if which == "compiled" else layer) as recording:
            torch.testing.assert_close(compiled(x), plain)
        compiled(x)
    assert len(recording) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("outside", ["default", "force_eager"])
def test_watches_that_end_in_any_order_leave_the_compiler_as_it_was(outside):
    layer, other = Attention().eval(), Attention().eval()
    x = torch.randn(2, 5, 16)
    compilations = []

    def backend(graph, _):
        compilations.append(graph)
        return graph.forward

    with torch.compiler.set_stance(outside), torch.no_grad():
        first, second = jumok.watch(layer), jumok.watch(other)
        with first:
            layer(x)
            second.__enter__()
            other(x)
        fresh = torch.compile(lambda x: x + 1, backend=backend)
        fresh(x)
        assert not compilations  # the second still watches
        second.__exit__(None, None, None)
        fresh(x)
    assert len(compilations) == (1 if outside == "default" else 0)


def test_a_recording_keeps_no_graph_and_long_queries_are_packed():
    shape = (1, 2, 1 << 15, 32)  # 8 MB
    q, k, v = tensors(shape, (1, 2, 4, 32), (1, 2, 4, 32))
    bias = torch.randn(1, 1, 1, 4, requires_grad=True)
    model = Call(lambda q, k, v: fused.attention(q, k, v, bias=2 * bias))
    with jumok.watch(model) as recording:
        model(q, k, v)
    call = recording[0].call
    assert not any(x.requires_grad for x in (call.q, call.k, call.v, call.bias))
    assert call.q.data_ptr() != q.data_ptr()
    assert torch.equal(call.q, q)
    q.zero_()
    row = softmax_weights(call.q[:, :, 7:8], k, added=2 * bias.detach())
    torch.testing.assert_close(recording[0][:, :, 7:8].double(), row, atol=1e-6, rtol=1e-5)


# -- the output projection --------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, between=None, projection="linear"):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 24)
        self.between, self.projection = between, projection

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = SDPA(q, k, v).transpose(1, 2).flatten(2)
        y = F.dropout(y, 0.1, self.training)
        if self.between is not None:
            y = self.between(y)
        if self.projection == "linear":
            return self.out(y)
        if self.projection == "matmul":
            return y @ self.out.weight.T
        if self.projection == "conv1d":
            return torch.addmm(self.out.bias, y.view(-1, 16), self.out.weight.T)
        return y


@pytest.mark.parametrize("projection", ["linear", "matmul", "conv1d"])
def test_the_output_projection_is_found(projection):
    model = Attention(projection=projection).eval()
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.randn(2, 5, 16))
    v = recording[0].call.v
    expected = torch.stack(
        [(v[:, h] @ model.out.weight[:, 4 * h : 4 * h + 4].T).norm(dim=-1) for h in range(4)], 1
    )
    torch.testing.assert_close(recording[0].value_norms(), expected)


def test_heads_that_are_joined_otherwise_are_said():
    class Interleaved(Attention):
        def forward(self, x):
            q, k, v = (p.unflatten(-1, (4, 4)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
            return self.out(SDPA(q, k, v).permute(0, 2, 3, 1).flatten(2))

    class Mixing(Attention):
        def forward(self, x):
            q, k, v = (p.unflatten(-1, (4, 4)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
            return self.out(SDPA(q, k, v).transpose(1, 2).flatten(2).mT)

    for model in (Interleaved().eval(), Mixing().eval()):
        with torch.no_grad(), jumok.watch(model) as recording:
            model(torch.randn(2, 16, 16))
        assert recording[0].value_norms() is None
        assert "side by side" in recording[0].value_note


def test_a_projection_that_was_trained_since_is_not_used():
    model = Attention().eval()
    with jumok.watch(model) as recording:
        loss = model(torch.randn(2, 5, 16)).square().sum()
    assert recording[0].value_norms() is not None
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert recording[0].value_norms() is None
    assert "changed after the recording" in recording[0].value_note


@pytest.mark.parametrize(
    ("between", "says"),
    [
        (lambda y: y * torch.sigmoid(y), "sigmoid"),
        (lambda y: F.layer_norm(y, (16,)), "layer_norm"),
        (lambda y: torch.cat([y, y], -1)[..., :16], "cat"),
    ],
    ids=["gate", "norm", "joined"],
)
def test_a_gate_or_normalisation_before_the_projection_is_said(between, says):
    model = Attention(between).eval()
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.randn(2, 5, 16))
    assert recording[0].value_norms() is None
    assert says in recording[0].value_note


def test_without_a_projection_the_values_themselves_are_measured():
    model = Attention(projection="none").eval()
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.randn(2, 5, 16))
    found = recording[0]
    torch.testing.assert_close(found.value_norms(), found.call.v.norm(dim=-1))
    assert found.value_note


# -- errors -----------------------------------------------------------------------------------


def test_errors_say_what_to_do(llama):
    with pytest.raises(TypeError, match="watch the first of the two"):
        jumok.watch((llama, None))
    with pytest.raises(ValueError, match="did not run inside"), jumok.watch(llama):
        pass
    linear = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="These modules ran: Linear"), jumok.watch(linear):
        linear(torch.ones(2))
    watching = jumok.watch(Call(SDPA))
    with pytest.raises(ValueError, match="open already"), watching, watching:
        pass
