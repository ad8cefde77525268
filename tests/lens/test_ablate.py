"""`ablate`: a head is gone exactly, in any heard model, and nothing else is touched."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jumok
from jumok import definition

transformers = pytest.importorskip("transformers")


def llama(implementation="sdpa", **options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation=implementation,
        **options,
    )
    return transformers.LlamaForCausalLM(config).eval()


IDS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))


def without_columns(weight, head, width):
    with torch.no_grad():
        weight[:, head * width : (head + 1) * width] = 0


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("layer", [1, "model.layers.1.self_attn"])
def test_a_zeroed_head_is_a_head_without_output_projection(implementation, layer):
    model, other = llama(implementation), llama(implementation)
    without_columns(other.model.layers[1].self_attn.o_proj.weight, 3, 8)
    with torch.no_grad():
        plain = model(IDS).logits
        with jumok.ablate(model, heads=[(layer, 3)]):
            ablated = model(IDS).logits
        torch.testing.assert_close(ablated, other(IDS).logits, atol=1e-6, rtol=0)
        assert not torch.equal(ablated, plain)
        assert torch.equal(model(IDS).logits, plain)


class Attention(nn.Module):
    """A projection, SDPA and an output projection, with a padding mask."""

    def __init__(self, n_heads=4, n_kv_heads=2, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.heads = (n_heads, n_kv_heads, n_kv_heads)
        self.width = width
        self.project = nn.Linear(16, sum(self.heads) * width)
        self.out = nn.Linear(n_heads * width, 16)

    def qkv(self, x):
        parts = self.project(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
        return parts.split(self.heads, dim=1)

    def forward(self, x, mask=None, causal=False):
        q, k, v = self.qkv(x)
        found = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True
        )
        return self.out(found.transpose(1, 2).flatten(2))


X = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(2))
PADDED = torch.arange(7) < torch.tensor([[7], [4]])
BIAS = torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        (None, False),
        (None, True),
        (PADDED[:, None, None], False),
        (torch.zeros(2, 1, 1, 7).masked_fill(~PADDED[:, None, None], -math.inf), False),
        (BIAS.masked_fill(~torch.ones(7, 7).tril().bool(), torch.finfo(torch.float32).min), False),
    ],
    ids=["everything", "causal", "padding", "added", "bias"],
)
def test_uniform_is_the_mean_of_the_values_that_are_seen(mask, causal):
    model = Attention()
    q, k, v = (part.double() for part in model.qkv(X))
    seen = torch.ones(2, 4, 7, 7, dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if mask is not None:
        seen &= mask if mask.dtype == torch.bool else mask > -1e30
    added = mask if mask is not None and mask.dtype != torch.bool else None
    usual = definition.attention(
        q, k, v, mask=seen, bias=None if added is None else added.double().clamp(min=-1e30)
    )[0]
    uniform = definition.attention(q * 0, k, v, mask=seen)[0]
    expected = usual.clone()
    expected[:, [0, 3]] = uniform[:, [0, 3]]
    with torch.no_grad(), jumok.ablate(model, heads=[(0, 3), (0, 0)], how="uniform"):
        found = model(X, mask, causal)
    expected = model.out(expected.float().transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_mean_is_that_over_all_queries_and_of_the_prompt_in_a_decoding_step():
    model = Attention()
    q, k, v = model.qkv(X)
    usual = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    expected = usual.clone()
    mean = usual[:, 1].mean(dim=(0, 1))
    expected[:, 1] = mean
    with torch.no_grad(), jumok.ablate(model, heads=[("Attention", 1)], how="mean"):
        found = model(X, causal=True)
        step = model(X[:, :1])
    torch.testing.assert_close(
        found, model.out(expected.transpose(1, 2).flatten(2)), atol=1e-6, rtol=0
    )
    alone = F.scaled_dot_product_attention(
        *(part[:, :, :1] for part in (q, k, v)), enable_gqa=True
    ).clone()
    alone[:, 1] = mean
    torch.testing.assert_close(step, model.out(alone.transpose(1, 2).flatten(2)), atol=1e-6, rtol=0)


def test_mean_of_a_single_query_is_refused():
    model = Attention()
    no_mean = pytest.raises(ValueError, match="needs a forward of more than one query")
    with no_mean, jumok.ablate(model, heads=[(0, 0)], how="mean"):
        model(X[:, :1])


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention(need_weights):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    other = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    other.load_state_dict(model.state_dict())
    without_columns(other.out_proj.weight, 2, 4)
    with torch.no_grad():
        with jumok.ablate(model, heads=[(0, 2)]):
            found, _ = model(X, X, X, need_weights=need_weights)
        torch.testing.assert_close(found, other(X, X, X)[0], atol=1e-6, rtol=0)


def test_generation_without_a_head():
    model, other = llama(), llama()
    without_columns(other.model.layers[0].self_attn.o_proj.weight, 1, 8)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with jumok.ablate(model, heads=[(0, 1)]):
        found = model.generate(IDS[:1], **options)
    assert found.tolist() == other.generate(IDS[:1], **options).tolist()


def test_gradients_reach_everything_but_the_ablated_head():
    model = Attention()
    with jumok.ablate(model, heads=[(0, 0), (0, 1)]):
        model(X).sum().backward()
    grad = model.project.weight.grad.unflatten(0, (-1, 8))
    assert not grad[:2].any()  # the queries of heads 0 and 1
    assert not grad[4].any()  # the key head that only they read
    assert not grad[6].any()
    assert grad[2].any()
    assert grad[5].any()
    assert grad[7].any()


def test_watch_and_ablate_together():
    model = llama()
    with torch.no_grad():
        with jumok.ablate(model, heads=[(0, 0)]):
            expected = model(IDS).logits
        with jumok.watch(model) as recording, jumok.ablate(model, heads=[(0, 0)]):
            assert torch.equal(model(IDS).logits, expected)
        with jumok.ablate(model, heads=[(0, 0)]), jumok.watch(model) as again:
            assert torch.equal(model(IDS).logits, expected)
        with jumok.watch(model) as whole:
            model(IDS)
    assert torch.equal(recording[2][...], again[2][...])
    assert torch.equal(recording[0][...], whole[0][...])
    assert not torch.equal(recording[1][...], whole[1][...])
    assert recording[0].value_norms() is not None


def test_the_effect_is_the_change_of_the_loss():
    model, other = llama(), llama()
    without_columns(other.model.layers[2].self_attn.o_proj.weight, 0, 8)
    effect = jumok.ablation_effect(model, IDS, heads=[(2, 0)])
    with torch.no_grad():
        expected = [float(one(IDS, labels=IDS).loss) for one in (model, other)]
    assert effect.loss == pytest.approx(expected[0], abs=1e-6)
    assert effect.ablated_loss == pytest.approx(expected[1], abs=1e-6)
    assert effect.change == pytest.approx(expected[1] - expected[0], abs=2e-6)
    assert not model.training
    with torch.no_grad():
        first_loss = float(model(IDS[:1], labels=IDS[:1]).loss)
        first_logit = float(model(IDS).logits[0, 0, 0])
    one_text = jumok.ablation_effect(model, IDS[0].tolist(), heads=[(2, 0)])
    assert one_text.loss == pytest.approx(first_loss, abs=1e-6)
    own = jumok.ablation_effect(model, IDS, [(2, 0)], loss=lambda output: output.logits[0, 0, 0])
    assert own.loss == pytest.approx(first_logit, abs=1e-6)


def test_bad_input_is_named():
    model = llama()
    for heads in ([(0, 0, 0)], [3], [(0, "3")], [(0.5, 1)]):
        with pytest.raises(TypeError, match="pairs"):
            jumok.ablate(model, heads=heads)
    with pytest.raises(ValueError, match="no heads"):
        jumok.ablate(model, heads=[])
    with pytest.raises(ValueError, match="count from 0"):
        jumok.ablate(model, heads=[(-1, 0)])
    with pytest.raises(ValueError, match="how='half'"):
        jumok.ablate(model, heads=[(0, 0)], how="half")
    with pytest.raises(TypeError, match="the first of the two"):
        jumok.ablate((model, None), heads=[(0, 0)])
    no_head = pytest.raises(ValueError, match="no head 7: its heads are 0 to 3")
    with no_head, jumok.ablate(model, heads=[(1, 7)]):
        model(IDS)
    no_layer = pytest.raises(ValueError, match=r"layer 9; heard were layers 0 \(.*\) to 2 \(")
    with no_layer, jumok.ablate(model, heads=[(9, 0)]):
        model(IDS)
    with pytest.raises(ValueError, match="did not run"), jumok.ablate(model, heads=[(0, 0)]):
        pass
    with pytest.raises(ValueError, match="at least 2 tokens"):
        jumok.ablation_effect(model, [3], heads=[(0, 0)])
    with pytest.raises(ValueError, match="give loss="):
        jumok.ablation_effect(model.model, IDS, heads=[(0, 0)])
