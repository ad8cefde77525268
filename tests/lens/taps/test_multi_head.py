"""``nn.MultiheadAttention`` and ``nn.Transformer`` in all forms, against their own weights."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jumok

E, H, B, TQ, TK = 32, 4, 2, 5, 7


def inputs(seed=0, batch=B):
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, TQ, E, generator=random)
    return query, torch.randn(batch, TK, E, generator=random)


def padding():
    hidden = torch.zeros(B, TK, dtype=torch.bool)
    hidden[1, -2:] = True
    return hidden


CAUSAL = torch.ones(TQ, TK, dtype=torch.bool).triu(1)
FLOATS = torch.randn(TQ, TK, generator=torch.Generator().manual_seed(4))
EACH_HEAD = torch.rand(B * H, TQ, TK, generator=torch.Generator().manual_seed(3)) > 0.6
EACH_HEAD[..., 0] = False

MASKS = {
    "none": {},
    "causal": {"attn_mask": CAUSAL},
    "added": {"attn_mask": FLOATS},
    "padding": {"key_padding_mask": padding()},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": padding()},
    "added and padding": {
        "attn_mask": FLOATS,
        "key_padding_mask": torch.zeros(B, TK).masked_fill(padding(), -math.inf),
    },
    "a mask for each head": {"attn_mask": EACH_HEAD},
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("training", [True, False])
def test_masks(need_weights, masks, training):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(E, H, dropout=0.3, batch_first=True).train(training)
    query, key = inputs()
    _, expected = layer.eval()(query, key, key, average_attn_weights=False, **masks)
    layer.train(training)
    outputs = []
    with jumok.watch(layer) as recording:
        torch.manual_seed(3)
        outputs.append(layer(query, key, key, need_weights=need_weights, **masks)[0])
    torch.manual_seed(3)
    outputs.append(layer(query, key, key, need_weights=need_weights, **masks)[0])
    assert torch.equal(*outputs)
    torch.testing.assert_close(recording[0][...], expected.detach(), atol=1e-6, rtol=1e-5)
    assert recording[0].call.q.shape[-1] == E // H


OPTIONS = {
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True},
    "kdim and vdim": {"kdim": 24, "vdim": 40},
    "no bias": {"bias": False},
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_options_of_the_module(need_weights, options):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(E, H, **options)
    query, key = (x.transpose(0, 1) for x in inputs())
    value = key
    if "kdim" in options:
        key, value = torch.randn(TK, B, 24), torch.randn(TK, B, 40)
    masks = {"key_padding_mask": padding()}
    _, expected = layer(query, key, value, average_attn_weights=False, **masks)
    with jumok.watch(layer) as recording:
        layer(query, key, value, need_weights=need_weights, **masks)
    assert recording[0].shape == tuple(expected.shape)
    torch.testing.assert_close(recording[0][...], expected.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch", [None, 1])
def test_unbatched_and_a_batch_of_one(need_weights, batch):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(E, H, batch_first=True)
    query, key = inputs(batch=1)
    if batch is None:
        query, key = query[0], key[0]
    _, expected = layer(query, key, key, average_attn_weights=False)
    with jumok.watch(layer) as recording:
        layer(query, key, key, need_weights=need_weights)
    assert recording[0].shape == (1, H, TQ, TK)
    right = expected.detach().reshape(1, H, TQ, TK)
    torch.testing.assert_close(recording[0][...], right, atol=1e-6, rtol=1e-5)


def test_averaged_weights_are_those_of_every_head():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(E, H, batch_first=True)
    query, key = inputs()
    with jumok.watch(layer) as recording:
        _, mean = layer(query, key, key)
    torch.testing.assert_close(recording[0][...].mean(1), mean.detach(), atol=1e-6, rtol=1e-5)


def test_the_output_projection_is_found_with_weights_and_without():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(E, H, batch_first=True)
    query, key = inputs()
    for need_weights in (True, False):
        with torch.no_grad(), jumok.watch(layer) as recording:
            layer(query, key, key, need_weights=need_weights)
        v = recording[0].call.v
        weight = layer.out_proj.weight.detach()
        norms = torch.stack([(v[:, h] @ weight[:, 8 * h : 8 * h + 8].T).norm(dim=-1)
                             for h in range(H)], 1)  # fmt: skip
        torch.testing.assert_close(recording[0].value_norms(), norms)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_whole_transformer(mode):
    torch.manual_seed(0)
    model = nn.Transformer(E, H, 2, 2, 64, dropout=0.0, batch_first=True).eval()
    query, key = inputs()
    causal = nn.Transformer.generate_square_subsequent_mask(TQ)
    expected = {}

    def own_weights(name, layer):
        original = layer.forward

        def forward(*args, **kwargs):
            kwargs = {**kwargs, "need_weights": True, "average_attn_weights": False}
            out, weights = original(*args, **kwargs)
            expected[name] = weights.detach()
            return out, None

        layer.forward = forward
        return lambda: delattr(layer, "forward")

    options = {"tgt_mask": causal, "tgt_is_causal": True, "src_key_padding_mask": padding(),
               "memory_key_padding_mask": padding()}  # fmt: skip
    with mode():
        with jumok.watch(model) as recording:
            watched = model(key, query, **options)
        undo = [own_weights(name, layer) for name, layer in model.named_modules()
                if isinstance(layer, nn.MultiheadAttention)]  # fmt: skip
        torch.backends.mha.set_fastpath_enabled(False)
        plain = model(key, query, **options)
        torch.backends.mha.set_fastpath_enabled(True)
        for back in undo:
            back()
    torch.testing.assert_close(watched, plain, atol=1e-5, rtol=1e-5)
    assert len(recording) == 6
    for found in recording:
        torch.testing.assert_close(found[...], expected[found.name], atol=2e-6, rtol=1e-5)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(E, E)

    def forward(self, x):
        q = self.project(x)
        return F.scaled_dot_product_attention(q, x, x)


def test_functional_call():
    model = Attention()
    other = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    x = torch.randn(2, 3, 5, E)
    with jumok.watch(model) as recording:
        torch.func.functional_call(model, other, (x,))
    q = F.linear(x, other["project.weight"], other["project.bias"])
    right = (q @ x.mT / E**0.5).softmax(-1)
    torch.testing.assert_close(recording[0][...], right, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_inside_vmap_and_grad():
    """What vmap runs over becomes part of the batch; nothing of the transform is kept."""
    x, k, v = (torch.randn(3, 2, 4, 5, 8) for _ in range(3))
    model = nn.Identity()
    model.forward = F.scaled_dot_product_attention

    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, *args):
            return torch.func.vmap(self.inner)(*args)

    mapped = Mapped()
    plain = mapped(x, k, v)
    right = ((x @ k.mT) * 8**-0.5).softmax(-1)
    with jumok.watch(mapped) as recording:
        watched = mapped(x, k, v)
    assert torch.equal(plain, watched)
    torch.testing.assert_close(recording[0][...], right.flatten(0, 1), atol=1e-6, rtol=1e-5)
    with jumok.watch(model) as recording:
        torch.func.grad(lambda q: model(q, k[0], v[0]).sum())(x[0])
    torch.testing.assert_close(recording[0][...], right[0], atol=1e-6, rtol=1e-5)


def test_by_hand_inside_vmap_is_said():
    class Hand(nn.Module):
        def forward(self, q, k, v):
            return (q @ k.mT).softmax(-1) @ v

    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Hand()

        def forward(self, *args):
            return torch.func.vmap(self.inner)(*args)

    q, k, v = (torch.randn(3, 2, 4, 5, 8) for _ in range(3))
    mapped = Mapped()
    plain = mapped(q, k, v)
    said = r"attention in torch\.func\.vmap"
    with pytest.raises(ValueError, match=said), jumok.watch(mapped):
        assert torch.equal(mapped(q, k, v), plain)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("compiled", [torch.jit.script, None], ids=["scripted", "traced"])
def test_modules_of_torch_jit_are_named(compiled):
    x = torch.randn(2, 3, 5, E)
    made = torch.jit.trace(Attention(), x) if compiled is None else compiled(Attention())
    with pytest.raises(ValueError, match=r"compiled by torch\.jit"), jumok.watch(made):
        made(x)
    both = nn.Sequential(made, Attention())
    said = r"1 attention modules ran unheard .*: 0 .*torch\.jit"
    with pytest.warns(UserWarning, match=said), jumok.watch(both) as recording:
        both(x)
    assert recording.names == ["1"]
