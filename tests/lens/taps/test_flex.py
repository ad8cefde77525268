"""FlexAttention: block masks become rules, score functions a softcap, a factor and a bias."""

import math
import warnings

import pytest
import torch
from torch import nn

import jumok
from jumok.lens.taps.flex import rule_of_block_mask
from jumok.masks import Causal, Dense, Spans, Window

flex = pytest.importorskip("torch.nn.attention.flex_attention")

# torch says once that it runs uncompiled, which is what a test on a CPU is for.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

B, H, T, D = 2, 4, 70, 16
RANDOM = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(B, H, T, D, generator=RANDOM) for _ in range(3))
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.randn(H, 2 * T, generator=RANDOM)
DOCUMENTS = torch.stack([torch.arange(T) // 20, torch.arange(T) // 30])
HOLES = torch.rand(H, T, T, generator=RANDOM) > 0.3


class Model(nn.Module):
    def forward(self, *args, **kwargs):
        return flex.flex_attention(*args, **kwargs)


def blocks(mask_mod, batch=None, heads=None):
    return flex.create_block_mask(mask_mod, batch, heads, T, T, device="cpu")


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i >= j) & (i - j < 9)


def packed(b, h, i, j):
    return (i >= j) & (DOCUMENTS[b, i] == DOCUMENTS[b, j])


def holes(b, h, i, j):
    return HOLES[h, i, j]


def alibi(s, b, h, i, j):
    return s + SLOPES[h] * (j - i)


def capped(s, b, h, i, j):
    return 20 * torch.tanh(s / 20)


def capped_and_more(s, b, h, i, j):
    return 5 * torch.tanh(s / 5) + SLOPES[h] * j


def halved(s, b, h, i, j):
    return s * 0.5


def relative(s, b, h, i, j):
    return s + TABLE[h, i - j + T]


def causal_by_score(s, b, h, i, j):
    return torch.where(i >= j, s, -float("inf"))


def strange(s, b, h, i, j):
    return s * (1 + h) + torch.sin(s)


def own_weights(q, k, score_mod=None, mask_mod=None, scale=None):
    """By the definition, in float64."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = (q.double() @ k.double().mT) * (scale or D**-0.5)
    place = (torch.arange(B)[:, None, None, None], torch.arange(H)[:, None, None])
    place = (*place, torch.arange(T)[:, None], torch.arange(T))
    if score_mod is not None:
        scores = score_mod(scores, *place)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(*place), -math.inf)
    return scores.softmax(-1)


@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "rule", "bias"),
    [
        (None, None, type(None), None),
        (None, causal, Causal, None),
        (None, window, Window, None),
        (None, packed, Spans, None),
        (None, holes, Dense, None),
        (alibi, causal, Causal, (1, H, 1, T)),
        (capped, causal, Causal, None),
        (capped_and_more, None, type(None), (1, H, 1, T)),
        (halved, None, type(None), None),
        (causal_by_score, None, Causal, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_masks_and_scores(score_mod, mask_mod, rule, bias):
    mask = None
    if mask_mod is not None:
        mask = blocks(mask_mod, B if mask_mod is packed else None, H if mask_mod is holes else None)
    model = Model()
    with torch.compiler.set_stance("force_eager"):
        plain = model(Q, K, V, score_mod=score_mod, block_mask=mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with jumok.watch(model) as recording:
            watched = model(Q, K, V, score_mod=score_mod, block_mask=mask)
    assert torch.equal(plain, watched)
    call = recording[0].call
    assert isinstance(call.mask, rule)
    assert (None if call.bias is None else tuple(call.bias.shape)) == bias
    right = own_weights(Q, K, score_mod, mask_mod)
    torch.testing.assert_close(recording[0][...].double(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("score_mod", [relative, strange], ids=lambda function: function.__name__)
def test_what_is_as_large_as_the_weights_is_announced(score_mod):
    model = Model()
    with torch.compiler.set_stance("force_eager"):
        plain = model(Q, K, V, score_mod=score_mod)
    said = "score function of FlexAttention"
    with pytest.warns(UserWarning, match=said), jumok.watch(model) as recording:
        watched = model(Q, K, V, score_mod=score_mod)
    assert torch.equal(plain, watched)
    right = own_weights(Q, K, score_mod)
    torch.testing.assert_close(recording[0][...].double(), right, atol=1e-5, rtol=1e-5)


def test_grouped_heads_scale_and_the_lse():
    model = Model()
    k, v = K[:, :2], V[:, :2]
    plain, _ = model(Q, k, v, scale=0.7, enable_gqa=True, return_aux=flex.AuxRequest(lse=True))
    with jumok.watch(model) as recording:
        out, extra = model(
            Q, k, v, scale=0.7, enable_gqa=True, return_aux=flex.AuxRequest(lse=True)
        )
    assert torch.equal(plain, out)
    call = recording[0].call
    assert call.k.shape[1] == 2
    torch.testing.assert_close(call.lse, extra.lse, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        recording[0][...].double(), own_weights(Q, k, scale=0.7), atol=1e-5, rtol=1e-5
    )


def test_rows_that_see_nothing():
    def nothing_first(b, h, i, j):
        return (i >= j) & (i > 2)

    model = Model()
    with jumok.watch(model) as recording:
        model(Q, K, V, block_mask=blocks(nothing_first))
    weights = recording[0][...]
    assert bool((weights[:, :, :3] == 0).all())
    assert bool((recording[0].call.lse[:, :, :3] == -math.inf).all())
    torch.testing.assert_close(weights[:, :, 3:].sum(-1), torch.ones(B, H, T - 3))


def test_the_rule_of_a_block_mask():
    assert repr(rule_of_block_mask(blocks(causal), T, T)) == "Causal()"
    assert repr(rule_of_block_mask(blocks(window), T, T)) == "Window(9)"
    assert rule_of_block_mask(blocks(lambda b, h, i, j: i >= 0), T, T) is None
