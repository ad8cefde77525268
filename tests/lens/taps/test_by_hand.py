"""Attention written by hand, in the spellings that people use, against its own softmax."""

import gc
import math
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jumok
from jumok.masks import Causal, Padding, Window

B, H, T, D = 2, 4, 6, 8


class Call(nn.Module):
    """A module that computes one function, and remembers the weights it is shown."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weights = []

    def forward(self, *args):
        return self.function(self.show, *args)

    def show(self, weights, shape=None):
        """Weights on their way; in (batch, heads, queries, keys) by `shape`, a function."""
        self.weights.append((weights if shape is None else shape(weights)).detach().clone())
        return weights


def tensors(*shapes, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random) for shape in shapes]


Q, K, V = tensors((B, H, T, D), (B, H, T, D), (B, H, T, D))
BIAS, TABLE, GATE = tensors((1, H, T, T), (B, H, T, T), (1, H, 1, 1), seed=1)
TRIL = torch.ones(1, 1, 10, 10).tril()
PADDED = torch.ones(B, T, dtype=torch.bool)
PADDED[1, -2:] = False
LEFT = PADDED.flip(-1)
LOWEST = torch.finfo(torch.float32).min


# -- the spellings ----------------------------------------------------------------------------


def nano_gpt(show, q, k, v):
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(TRIL[:, :, :T, :T] == 0, float("-inf"))
    weights = show(F.softmax(scores, dim=-1))
    return F.dropout(weights, 0.1, training=False) @ v


def annotated_transformer(show, q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(PADDED[:, None, None, :] == 0, -1e9)
    return torch.matmul(show(scores.softmax(dim=-1)), v)


def rows_of_nothing_but_padding(show, q, k, v):
    seen = LEFT[:, None, None, :] & (TRIL[:, :, :T, :T] == 1)
    scores = (q @ k.mT).masked_fill(~seen, -1e9)
    return show(scores.softmax(dim=-1)) @ v


def alibi_added_by_the_product(show, q, k, v):
    q, k, v = (x.reshape(B * H, T, D) for x in (q, k, v))
    slopes = BIAS[0, :, 0].repeat(B, 1)[:, None]
    scores = slopes.baddbmm(batch1=q, batch2=k.transpose(1, 2), beta=1.0, alpha=0.3)
    scores = scores.view(B, H, T, T)
    scores = scores + torch.zeros(1, 1, T, T).masked_fill(TRIL[:, :, :T, :T] == 0, LOWEST)
    weights = show(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype))
    return torch.bmm(F.dropout(weights, 0.1, False).view(B * H, T, T), v).view(B, H, T, D)


def heads_in_the_batch(show, q, k, v):
    def together(x):
        x = x.permute(0, 2, 1, 3).reshape(B, T, H * D)  # as a linear map gives it
        return x.reshape(B, T, H, D).permute(0, 2, 1, 3).reshape(B * H, T, D)

    q, k, v = (together(x) for x in (q, k, v))
    nothing = torch.empty(B * H, T, T)
    scores = torch.baddbmm(nothing, q, k.transpose(-1, -2), beta=0, alpha=0.3)
    weights = show(scores.softmax(dim=-1), lambda x: x.view(B, H, T, T))
    return torch.bmm(weights.to(q.dtype), v)


def tokens_first(show, q, k, v):
    def together(x):
        x = x.permute(2, 0, 1, 3).reshape(T, B, H * D)
        return x.contiguous().view(T, B * H, D).transpose(0, 1)

    q, k, v = together(q) * 0.4, together(k), together(v)
    scores = torch.bmm(q, k.transpose(1, 2)).view(B, H, T, T)
    scores = scores.masked_fill(~PADDED[:, None, None], float("-inf")).view(B * H, T, T)
    return torch.bmm(show(scores.softmax(-1), lambda x: x.view(B, H, T, T)), v)


def einsum(show, q, k, v):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.4 + BIAS
    return torch.einsum("bhqk,bhkd->bqhd", show(torch.softmax(scores, -1)), v)


def einsum_tokens_before_heads(show, q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = show(nn.Softmax(-1)(torch.einsum("b q h d, b k h d -> b h q k", q, k) / 3))
    return torch.einsum("...hqk,...khd->...qhd", weights, v).reshape(B, T, H * D)


def einsum_heads_last(show, q, k, v):
    q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))
    scores = torch.einsum("ibnd,jbnd->bijn", q, k) * 0.3
    weights = show(F.softmax(scores, dim=2), lambda x: x.permute(0, 3, 1, 2))
    return torch.einsum("bijn,jbnd->ibnd", weights, v)


def in_place(show, q, k, v):
    scores = q @ k.mT
    scores /= math.sqrt(D)
    scores.add_(BIAS)
    scores.masked_fill_(TRIL[:, :, :T, :T] == 0, float("-inf"))
    return show(scores.softmax(-1)) @ v


def softcap(show, q, k, v):
    scores = (q @ k.mT) * 0.5
    scores = torch.tanh(scores / 5.0) * 5.0
    return show((scores + BIAS).softmax(-1)) @ v


def grouped_heads(show, q, k, v):
    k, v = k[:, :2], v[:, :2]
    k = k[:, :, None].expand(B, 2, 2, T, D).reshape(B, H, T, D)
    return show((q @ k.mT).float().softmax(-1)) @ v.repeat_interleave(2, dim=1)


def one_key_head(show, q, k, v):
    q, k, v = q.transpose(1, 2).reshape(B, T * H, D), k[:, 0], v[:, 0]
    scores = torch.baddbmm(torch.empty(B, T * H, T), q, k.transpose(1, 2), beta=0, alpha=0.3)
    scores = scores.view(B, T, H, T)
    seen = TRIL[0, :, :T, :T].bool().permute(1, 0, 2)[None]
    weights = torch.where(seen, scores, LOWEST).softmax(-1)
    weights = show(weights, lambda x: x.transpose(1, 2))
    return torch.bmm(weights.view(B, T * H, T), v).view(B, T, H, D)


def two_products(show, q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bshc,bthc->bsht", q, k)
    scores = scores + torch.einsum("bshr,btr->bsht", q[..., :4], k[:, :, 0, :4])
    scores = scores * 0.3
    hidden = torch.zeros(T, T).masked_fill(TRIL[0, 0, :T, :T] == 0, float("-inf"))
    scores += hidden.unsqueeze(1)
    weights = scores.softmax(-1, dtype=torch.float32)
    show(weights.transpose(1, 2))
    return torch.einsum("bsht,bthd->bshd", weights, v)


def sinks(show, q, k, v):
    scores = q @ k.transpose(2, 3) * 0.3 + BIAS
    extra = torch.arange(4.0).reshape(1, -1, 1, 1).expand(B, -1, T, -1)
    scores = torch.cat([scores, extra], dim=-1)
    scores = scores - scores.max(dim=-1, keepdim=True).values
    weights = F.softmax(scores, dim=-1, dtype=scores.dtype)
    return F.dropout(show(weights[..., :-1]), 0.0, False) @ v


def windows_of_an_image(show, q, k, v):
    scores = (q * 0.3) @ k.transpose(-2, -1) + BIAS
    between = torch.zeros(2, T, T)
    between[1, :3, 3:] = -100.0
    scores = scores.view(B // 2, 2, H, T, T) + between.unsqueeze(1).unsqueeze(0)
    return show(nn.Softmax(-1)(scores.view(-1, H, T, T))) @ v


def values_on_the_left(show, q, k, v):
    q, k, v = (x[:, 0] for x in (q, k, v))
    weights = torch.softmax(torch.bmm(q, k.permute(0, 2, 1)) * 0.2, dim=2)
    show(weights[:, None])
    return torch.bmm(v.permute(0, 2, 1), weights.permute(0, 2, 1))


def exponentials(show, q, k, v):
    scores = q @ k.mT
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return show(powers / powers.sum(dim=-1, keepdim=True)) @ v


def log_softmax(show, q, k, v):
    return show(F.log_softmax(q @ k.mT, -1).exp()) @ v


def log_sum_exp(show, q, k, v):
    scores = q @ k.mT
    return show((scores - torch.logsumexp(scores, dim=-1, keepdim=True)).exp()) @ v


def cosine_with_a_temperature(show, q, k, v):
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return show(((q @ k.mT) * (GATE.exp() + 1)).softmax(-1)) @ v


def clamped(show, q, k, v):
    return show(torch.clamp(q @ k.mT, min=-50000, max=50000).softmax(-1)) @ v


def gated_heads(show, q, k, v):
    return (show((q @ k.mT).softmax(-1)) * GATE) @ v


def float64(show, q, k, v):
    return show((q.double() @ k.double().mT).softmax(-1)) @ v.double()


def one_head_alone(show, q, k, v):
    weights = F.softmax(q[0, 0] @ k[0, 0].T / 2, -1)
    show(weights[None, None])
    return weights @ v[0, 0]


SPELLINGS = {
    nano_gpt: Causal,
    annotated_transformer: Padding,
    rows_of_nothing_but_padding: None,
    alibi_added_by_the_product: Causal,
    heads_in_the_batch: type(None),
    tokens_first: Padding,
    einsum: type(None),
    einsum_tokens_before_heads: type(None),
    einsum_heads_last: type(None),
    in_place: Causal,
    softcap: type(None),
    grouped_heads: type(None),
    one_key_head: Causal,
    two_products: Causal,
    sinks: type(None),
    windows_of_an_image: None,
    values_on_the_left: type(None),
    exponentials: type(None),
    log_softmax: type(None),
    log_sum_exp: type(None),
    cosine_with_a_temperature: type(None),
    clamped: type(None),
    gated_heads: type(None),
    float64: type(None),
    one_head_alone: type(None),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda function: function.__name__)
def test_a_spelling_is_heard_as_q_and_k(spelling, mode):
    model = Call(spelling)
    with mode():
        plain = model(Q, K, V)
        with jumok.watch(model) as recording:
            watched = model(Q, K, V)
    assert torch.equal(plain, watched)
    assert len(recording) == 1
    call = recording[0].call
    assert call.q.shape[-1] in (D, D + 4)  # not the weights themselves
    expected = SPELLINGS[spelling]
    assert expected is None or isinstance(call.mask, expected)
    torch.testing.assert_close(recording[0][...], model.weights[-1].float(), atol=2e-6, rtol=1e-5)


def test_the_output_can_be_had_from_the_record():
    for spelling in (nano_gpt, heads_in_the_batch, grouped_heads, einsum_heads_last, sinks):
        model = Call(spelling)
        with jumok.watch(model) as recording:
            model(Q, K, V)
        call = recording[0].call
        v = call.v.repeat_interleave(call.group, dim=1)
        right = model.weights[-1] @ (V[:, :2].repeat_interleave(2, 1) if call.group > 1 else V)
        torch.testing.assert_close(recording[0][...] @ v, right, atol=1e-5, rtol=1e-5)
    assert recording[0].call.k.shape[1] == H


def test_key_heads_are_not_repeated():
    for spelling, heads in ((grouped_heads, 2), (one_key_head, 1)):
        model = Call(spelling)
        with jumok.watch(model) as recording:
            model(Q, K, V)
        assert recording[0].call.k.shape[1] == recording[0].call.v.shape[1] == heads


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """Recomputed in float32 from the same q and k: as near as the type's own rounding."""
    model = Call(nano_gpt)
    q, k, v = (x.to(dtype) for x in (Q, K, V))
    with jumok.watch(model) as recording:
        model(q, k, v)
    assert recording[0].call.q.dtype == dtype
    torch.testing.assert_close(recording[0][...], model.weights[-1].float(), atol=0.02, rtol=0.05)


# -- the last resort --------------------------------------------------------------------------


def unknown_function(show, q, k, v):
    return show((F.relu(q @ k.mT) * 0.3).softmax(-1)) @ v


def disentangled(show, q, k, v):
    positions = q @ K[:, :, :5].mT
    index = TABLE.abs().mul(2).long().clamp(max=4)
    scores = q @ k.mT / 3 + torch.gather(positions, -1, index) / 3
    return show(scores.softmax(-1)) @ v


def slots(show, q, k, v):
    weights = (k @ q.mT).softmax(dim=-1) + 1e-8  # over the queries
    weights = weights / weights.sum(dim=-2, keepdim=True)
    return show(weights.mT) @ v


def mixed_heads(show, q, k, v):
    weights = torch.einsum("bhqk,hg->bgqk", (q @ k.mT).softmax(-1), TABLE[0, :, :4, 0].softmax(0))
    return show(weights) @ v


def written_to(show, q, k, v):
    scores = q @ k.mT
    scores[:, :, 1, 2] = 3.0
    return show(scores.softmax(-1)) @ v


def distances(show, q, k, v):
    return show((-torch.cdist(q, k)).softmax(-1)) @ v


def additive(show, q, k, v):
    features = torch.tanh(q[:, :, :, None] + k[:, :, None])
    scores = F.linear(features, EMBEDDINGS[:1]).squeeze(-1)
    return show(scores.masked_fill(TRIL[:, :, :T, :T] == 0, -1e6).softmax(-1)) @ v


LAST = [unknown_function, disentangled, slots, mixed_heads, written_to, distances, additive]


@pytest.mark.parametrize("spelling", LAST, ids=lambda function: function.__name__)
def test_what_is_not_understood_is_kept_and_announced(spelling):
    model = nn.Sequential()
    model.inner = Call(spelling)
    model.forward = lambda q, k, v: model.inner(q, k, v)
    plain = model(Q, K, V)
    size = 4 * B * H * T * T
    said = rf"had to be kept, {size / 1000:.3g} kB in all: inner"
    with pytest.warns(UserWarning, match=said), jumok.watch(model) as recording:
        watched = model(Q, K, V)
    assert torch.equal(plain, watched)
    torch.testing.assert_close(recording[0][...], model.inner.weights[-1], atol=1e-6, rtol=1e-5)
    assert recording.held_bytes >= size
    entropy = torch.special.entr(model.inner.weights[-1]).sum(-1)
    torch.testing.assert_close(recording[0].entropy(), entropy, atol=1e-5, rtol=1e-5)


def test_a_reading_that_disagrees_with_the_softmax_is_not_recorded(monkeypatch):
    """A softmax that is none: what is recorded is what ran."""
    original = F.softmax

    def sharpened(x, dim):
        return original(x * 2, dim)

    sharpened.__name__ = "softmax"
    model = Call(lambda show, q, k, v: show(pretended(q @ k.mT, -1)) @ v)

    def pretended(x, dim):
        return torch.overrides.handle_torch_function(sharpened, (x,), x, dim)

    with pytest.warns(UserWarning, match="is not understood"), jumok.watch(model) as recording:
        model(Q, K, V)
    torch.testing.assert_close(recording[0][...], model.weights[-1], atol=1e-6, rtol=1e-5)


# -- writes in place ----------------------------------------------------------------------------


def padded_by_views(scores, q, k):
    for b, n in enumerate((4, T)):
        scores[b, :, :, n:].fill_(-math.inf)


def a_slice_times_three(scores, q, k):
    scores[:, :, 3:4].mul_(3.0)


def an_element_of_the_batch(scores, q, k):
    scores.unbind(0)[0].mul_(2.0)


def through_detach(scores, q, k):
    scores.detach()[0].mul_(3.0)


def through_data(scores, q, k):
    scores.data[0] *= 3


def a_row_of_queries(scores, q, k):
    q[:, :, 3].zero_()


def an_element_of_the_keys(scores, q, k):
    k[0].zero_()


def through_numpy(scores, q, k):
    scores.numpy()[0] *= 3  # below any function of torch: the softmax that ran tells


@pytest.mark.filterwarnings("ignore:of 1 attention modules the T × T weights")
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("when", ["scores", "softmax"])
@pytest.mark.parametrize(
    "write",
    [padded_by_views, a_slice_times_three, an_element_of_the_batch, through_detach, through_data,
     a_row_of_queries, an_element_of_the_keys, through_numpy],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_a_write_to_what_is_followed(write, when, context):
    """Whatever is written to in between, the map is the softmax that ran."""

    def function(show, q, k, v):
        q, k = q.clone(), k.clone()
        scores = q @ k.mT
        if when == "scores":
            write(scores, q, k)
        weights = show(scores.softmax(-1))
        if when == "softmax":
            write(scores, q, k)
        return weights @ v

    model = Call(function)
    with context():
        plain = model(Q, K, V)
        with jumok.watch(model) as recording:
            assert torch.equal(model(Q, K, V), plain)
        torch.testing.assert_close(recording[0][...], model.weights[-1], atol=2e-6, rtol=1e-5)


# -- other softmaxes, other products --------------------------------------------------------------


def one_and_the_sum(show, q, k, v):
    e = (q @ k.mT).exp()
    return show(e / (1 + e.sum(-1, keepdim=True))) @ v


def a_mask_times_exp(show, q, k, v):
    e = (q @ k.mT).exp() * TRIL[:, :, :T, :T]
    return show(e / e.sum(-1, keepdim=True)) @ v


def softmin(show, q, k, v):
    return show(F.softmin(q @ k.mT, dim=-1)) @ v


def gumbel(show, q, k, v):
    return show(F.gumbel_softmax(q @ k.mT, dim=-1)) @ v


def three_factors(show, q, k, v):
    scores = torch.einsum("bhqd,bhkd,h->bhqk", q, k, BIAS[0, :, 0, 0])
    return show(scores.softmax(-1)) @ v


def linalg(show, q, k, v):
    return torch.linalg.matmul(show(torch.linalg.matmul(q, k.mT).softmax(-1)), v)


def additive(show, q, k, v):
    scores = torch.tanh(q[:, :, :, None] + k[:, :, None]).sum(-1)
    return show(scores.softmax(-1)) @ v


def squared_distance(show, q, k, v):
    scores = -((q[:, :, :, None] - k[:, :, None]) ** 2).sum(-1)
    return show(scores.softmax(-1)) @ v


def flattened(show, q, k, v):
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    weights = show(torch.bmm(q, k.mT).softmax(-1), lambda x: x.unflatten(0, (B, H)))
    return torch.bmm(weights, v).unflatten(0, (B, H))


@pytest.mark.filterwarnings("ignore:of 1 attention modules the T × T weights")
@pytest.mark.parametrize(
    "function",
    [one_and_the_sum, a_mask_times_exp, softmin, gumbel, three_factors, linalg, additive,
     squared_distance, flattened],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_softmaxes_and_products_in_other_words(function):
    model = Call(function)
    with torch.no_grad(), jumok.watch(model) as recording:
        model(Q, K, V)
    torch.testing.assert_close(recording[0][...], model.weights[-1], atol=2e-6, rtol=1e-5)


def exp_before_the_sum(q, k, v):
    e = (q @ k.mT).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def differential(q, k, v):
    return ((q @ k.mT).softmax(-1) - 0.3 * (k @ q.mT).softmax(-1)) @ v


@pytest.mark.parametrize(
    ("function", "words"),
    [(exp_before_the_sum, "by exp and sum"), (differential, "weights below 0")],
)
def test_what_cannot_be_recorded_is_named(function, words):
    model = Call(lambda show, q, k, v: function(q, k, v))
    with pytest.raises(ValueError, match=words), torch.no_grad(), jumok.watch(model):
        model(Q, K, V)


# -- what is no attention ---------------------------------------------------------------------


EMBEDDINGS = nn.Parameter(tensors((20, D), seed=2)[0])


def linear_attention(q, k, v):
    return q.softmax(dim=-1) @ (k.softmax(dim=-2).mT @ v)


def router(q, k, v):
    gates = F.linear(q, EMBEDDINGS[:T]).softmax(dim=-1)
    return gates @ v


def soft_embedding(q, k, v):
    return (q @ EMBEDDINGS.t()).softmax(-1) @ EMBEDDINGS


def pooling(q, k, v):
    gates = F.linear(q, EMBEDDINGS[:1]).softmax(dim=-2)
    return gates.mT @ v


@pytest.mark.parametrize(
    "function", [linear_attention, router, soft_embedding, pooling], ids=lambda f: f.__name__
)
def test_other_softmaxes_are_no_attention(function):
    model = Call(lambda show, q, k, v: function(q, k, v))
    with pytest.raises(ValueError, match="no attention was heard"), jumok.watch(model):
        model(Q, K, V)
    both = Call(lambda show, q, k, v: function(q, k, v) + F.scaled_dot_product_attention(q, k, v)
                if function is not soft_embedding else
                (function(q, k, v), F.scaled_dot_product_attention(q, k, v))[1])  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with jumok.watch(both) as recording:
            both(Q, K, V)
    assert len(recording) == 1


# -- whole modules ----------------------------------------------------------------------------


class HandAttention(nn.Module):
    """Projections around scores by hand."""

    def __init__(self, width=32):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.shown = []

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (y.view(batch, tokens, 4, width // 4).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // 4)
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).tril().logical_not()
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        self.shown.append(weights.detach())
        weights = F.dropout(weights, 0.3, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, width))


def test_training_changes_no_bit_and_weights_are_those_before_dropout():
    torch.manual_seed(0)
    model = nn.Sequential(HandAttention(), nn.GELU(), HandAttention())
    x = torch.randn(2, 7, 32)
    gradients = []
    for watched in (False, True):
        model.zero_grad()
        torch.manual_seed(5)
        if watched:
            with jumok.watch(model) as recording:
                model(x).square().sum().backward()
        else:
            model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, other in zip(*gradients, strict=True):
        assert torch.equal(plain, other)
    for found, layer in zip(recording, (model[0], model[2]), strict=True):
        torch.testing.assert_close(found[...], layer.shown[-1], atol=2e-6, rtol=1e-5)
        assert not found.call.q.requires_grad
        torch.testing.assert_close(
            found.value_norms()[:, 1],
            (found.call.v[:, 1] @ layer.out.weight[:, 8:16].T).norm(dim=-1).detach(),
        )


def test_the_masks_of_all_layers_are_one_rule():
    model = nn.Sequential(*(HandAttention() for _ in range(3)))
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.randn(1, 40, 32))
    assert [repr(found.call.mask) for found in recording] == ["Causal()"] * 3
    assert recording.names == ["0", "1", "2"]


def test_nothing_outlives_the_model_but_what_is_recorded():
    """Scores and weights are let go at once; a product that is no attention keeps nothing."""
    alive = []

    def function(show, q, k, v):
        products = [k.mT @ v, q @ k.mT]
        weights = products[1].softmax(-1)
        alive.extend(weakref.ref(x) for x in (*products, weights))
        output = weights @ v
        del products, weights
        gc.collect()
        assert [reference() for reference in alive] == [None] * 3
        return output

    model = Call(function)
    with torch.no_grad(), jumok.watch(model) as recording:
        model(Q, K, V)
    assert recording.held_bytes < 3 * Q.nbytes + 4 * B * H * T + 1


def test_several_in_one_module_and_one_for_each_batch_element():
    def function(show, q, k, v):
        out = [show((q[b] @ k[b].mT).softmax(-1)) @ v[b] for b in range(B)]
        return torch.stack(out) + show((k @ q.mT).softmax(-1)) @ v

    model = Call(function)
    with jumok.watch(model) as recording:
        model(Q, K, V)
    assert recording.names == ["Call", "Call#1", "Call#2"]
    for found, right in zip(recording, model.weights, strict=True):
        torch.testing.assert_close(found[...].reshape(right.shape), right, atol=2e-6, rtol=1e-5)


def test_both_directions_of_one_product_of_scores():
    """Text reads image and image reads text through the same scores."""

    def function(show, q, k, v):
        q, k, v = q[:, :, :4].reshape(B * H, 4, D), k.reshape(B * H, T, D), v.reshape(B * H, T, D)
        scores = torch.bmm(q, k.transpose(1, 2))
        back = scores.transpose(1, 2)
        there = show(scores.softmax(-1), lambda x: x.view(B, H, 4, T))
        here = show(back.softmax(-1), lambda x: x.view(B, H, T, 4))
        return torch.bmm(there, v), torch.bmm(here, q)

    model = Call(function)
    with jumok.watch(model) as recording:
        model(Q, K, V)
    for found, right in zip(recording, model.weights, strict=True):
        torch.testing.assert_close(found[...], right, atol=2e-6, rtol=1e-5)


def test_windowed_and_padded_at_once():
    """Two masks, one after the other, of which the second is of finite numbers."""
    window = Window(3).dense(T, T, Q)

    def function(show, q, k, v):
        scores = (q @ k.mT).masked_fill(~window, LOWEST)
        scores = scores.masked_fill(~PADDED[:, None, None], LOWEST)
        return show(scores.softmax(-1)) @ v

    model = Call(function)
    with jumok.watch(model) as recording:
        model(Q, K, V)
    torch.testing.assert_close(recording[0][...], model.weights[-1], atol=2e-6, rtol=1e-5)
    assert recording[0].call.q.shape[-1] == D


@pytest.mark.parametrize("order", ["fill and add", "add and fill", "add both", "fill both"])
def test_rows_that_two_masks_leave_nothing(order):
    """Left padding hides what the causal mask leaves; the model attends evenly, or to others."""
    hidden = TRIL[:, :, :T, :T] == 0
    padding = torch.zeros(B, 1, 1, T).masked_fill(~LEFT[:, None, None], LOWEST)
    causal = torch.zeros(1, 1, T, T).masked_fill(hidden, LOWEST)

    def function(show, q, k, v):
        scores = q @ k.mT
        if order == "fill and add":
            scores = torch.where(~hidden, scores, torch.tensor(LOWEST)) + padding
        elif order == "add and fill":
            scores = (scores + padding).masked_fill(hidden, LOWEST)
        elif order == "add both":
            scores = scores + causal + padding
        else:
            scores = scores.masked_fill(hidden, LOWEST).masked_fill(padding < 0, LOWEST)
        return show(scores.softmax(-1)) @ v

    model = Call(function)
    with jumok.watch(model) as recording:
        model(Q, K, V)
    torch.testing.assert_close(recording[0][...], model.weights[-1], atol=2e-6, rtol=1e-5)
    assert recording[0].call.q.shape[-1] == D


def test_a_mask_by_multiplication():
    def function(show, q, k, v):
        seen = TRIL[:, :, :T, :T]
        return show(((q @ k.mT) * seen + -1e4 * (1 - seen)).softmax(-1)) @ v

    model = Call(function)
    with jumok.watch(model) as recording:
        model(Q, K, V)
    torch.testing.assert_close(recording[0][...], model.weights[-1], atol=2e-6, rtol=1e-5)
    assert isinstance(recording[0].call.mask, Causal)


def test_a_function_in_an_unknown_form_does_not_stop_the_model(monkeypatch):
    from jumok.lens.taps.function_rules import table

    def broken(*_):
        raise TypeError("who calls it like that?")

    monkeypatch.setitem(table.RULES, "masked_fill", broken)
    model = Call(nano_gpt)
    plain = model(Q, K, V)
    with pytest.raises(ValueError, match="who calls it like that"), jumok.watch(model):
        assert torch.equal(model(Q, K, V), plain)


# -- transformers -----------------------------------------------------------------------------


def test_bloom_padded_and_while_it_generates():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=60, hidden_size=32, n_layer=2, n_head=4)
    model = transformers.BloomForCausalLM(config).eval()
    ids = torch.randint(3, 60, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    with torch.no_grad():
        eager = model(ids, attention_mask=mask, output_attentions=True).attentions
        with jumok.watch(model) as recording:
            model(ids, attention_mask=mask)
        for found, right in zip(recording, eager, strict=True):
            torch.testing.assert_close(found[...], right, atol=1e-6, rtol=1e-5)
            assert found.call.q.shape[-1] == 8
        with jumok.watch(model) as recording:
            out = model.generate(
                ids[:1], max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None
            )
        whole = model(out[:, :-1], output_attentions=True).attentions
    assert len(recording) == 2
    for found, right in zip(recording, whole, strict=True):
        torch.testing.assert_close(found[...], right, atol=1e-5, rtol=1e-5)
