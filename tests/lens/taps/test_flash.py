"""flash_attn called directly: heard at its operators, here with stand-ins of the same signature.

The package itself needs a GPU. What is tested is how its conventions are read: each stand-in
computes attention by the definition, row by row, as flash_attn documents it.
"""

import math

import pytest
import torch
from torch import nn

import jumok
from jumok.masks import Causal, Spans, Window

H, G, D = 4, 2, 8
NAMES = {"_flash_attn_forward", "_flash_attn_varlen_forward"}


def attention(q, k, v, scale, causal, left, right, softcap, slopes):
    """(Tq, H, D), (Tk, G, D): output (Tq, H, D), lse (H, Tq) and weights (H, Tq, Tk)."""
    k, v = (x.repeat_interleave(H // G, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    query = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    key = torch.arange(k.shape[0])
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * (query - key).abs()
    right = 0 if causal else right
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    if left >= 0:
        seen &= key >= query - left
    if right >= 0:
        seen &= key <= query + right
    scores = scores.masked_fill(~seen, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    out = torch.einsum("hqk,khd->qhd", weights, v.double())
    return out.to(q.dtype), scores.logsumexp(-1).float(), weights


SEEN = []


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, softmax_scale: float,
    causal: bool, window_size_left: int, window_size_right: int, softcap: float,
    alibi_slopes: torch.Tensor | None, return_softmax: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    options = (softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes)
    parts = [attention(*each, *options) for each in zip(q, k, v, strict=True)]
    SEEN.append(torch.stack([weights for _, _, weights in parts]))
    out, lse = (torch.stack([part[n] for part in parts]) for n in (0, 1))
    return out, lse, q.new_empty(0), q.new_empty(0)


def varlen_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
    softmax_scale: float, causal: bool, window_size_left: int = -1, window_size_right: int = -1,
    softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None, return_softmax: bool = False,
    block_table: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    options = (softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes)
    whole = torch.zeros(H, q.shape[0], k.shape[0], dtype=torch.float64)
    outs, lses = [], []
    for number in range(len(cu_seqlens_q) - 1):
        rows = slice(int(cu_seqlens_q[number]), int(cu_seqlens_q[number + 1]))
        keys = slice(int(cu_seqlens_k[number]), int(cu_seqlens_k[number + 1]))
        out, lse, weights = attention(q[rows], k[keys], v[keys], *options)
        whole[:, rows, keys] = weights
        outs.append(out)
        lses.append(lse)
    SEEN.append(whole[None])
    return torch.cat(outs), torch.cat(lses, dim=1), q.new_empty(0), q.new_empty(0)


@pytest.fixture(scope="module")
def operators():
    if hasattr(torch.ops.flash_attn, "_flash_attn_forward"):
        pytest.skip("flash_attn itself is installed")
    library = torch.library.Library("flash_attn", "DEF")
    for name, function in (("forward", forward), ("varlen_forward", varlen_forward)):
        schema = torch.library.infer_schema(function, mutates_args=())
        library.define(f"_flash_attn_{name}{schema}")
        library.impl(f"_flash_attn_{name}", function, "CPU")
    yield torch.ops.flash_attn
    library._destroy()


class Model(nn.Module):
    """Calls an operator as the package does: inside a `torch.autograd.Function`."""

    def forward(self, operator, *args, **kwargs):
        class Function(torch.autograd.Function):
            @staticmethod
            def forward(context, *tensors):
                return operator(*tensors, *args[3:], **kwargs)[0]

        return Function.apply(*args[:3])


def watched(operator, *args, **kwargs):
    model = Model()
    plain = model(operator, *args, **kwargs)
    with jumok.watch(model) as recording:
        out = model(operator, *args, **kwargs)
    assert torch.equal(plain, out)
    torch.testing.assert_close(recording[0][...].double(), SEEN[-1], atol=1e-5, rtol=1e-5)
    return recording[0].call


@pytest.mark.parametrize("tokens", [(7, 7), (3, 7)])
@pytest.mark.parametrize(
    ("causal", "left", "right", "rule"),
    [
        (False, -1, -1, type(None)),
        (True, -1, -1, Causal),
        (True, -1, 0, Causal),
        (True, 2, 0, Window),
        (False, 2, 1, Window),
        (False, -1, 1, Window),
        (False, 2, -1, Window),
    ],
)
def test_batches_of_one_length(operators, tokens, causal, left, right, rule):
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, t, h, D, generator=random)
               for t, h in ((tokens[0], H), (tokens[1], G), (tokens[1], G)))  # fmt: skip
    call = watched(
        operators._flash_attn_forward, q, k, v, 0.0, 0.3, causal, left, right, 0.0, None, False
    )
    assert isinstance(call.mask, rule)
    assert call.k.shape[1] == G


def test_softcap_and_alibi(operators):
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, t, h, D, generator=random) for t, h in ((5, H), (7, G), (7, G)))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    call = watched(
        operators._flash_attn_forward, q, k, v, 0.0, 0.3, True, -1, 0, 2.0, slopes, False
    )
    assert call.softcap == 2.0
    assert call.bias.shape == (1, H, 1, 7)
    with pytest.warns(UserWarning, match="ALiBi of flash-attention"):
        watched(operators._flash_attn_forward, q, k, v, 0.0, 0.3, False, -1, -1, 0.0, slopes, False)


@pytest.mark.parametrize("options", [(False, -1, -1), (True, -1, -1), (True, 2, 0), (False, 1, 1)])
def test_sequences_end_to_end(operators, options):
    random = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(t, h, D, generator=random) for t, h in ((9, H), (12, G), (12, G)))
    starts_q = torch.tensor([0, 2, 6, 9], dtype=torch.int32)
    starts_k = torch.tensor([0, 5, 9, 12], dtype=torch.int32)
    call = watched(
        operators._flash_attn_varlen_forward, q, k, v, starts_q, starts_k, 4, 5, 0.0, 0.3, *options
    )
    assert isinstance(call.mask, Spans)


def test_a_form_that_is_not_known_is_said(operators):
    q = torch.randn(4, H, D)
    k = torch.randn(4, G, D)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    table = torch.zeros(1, 1, dtype=torch.int32)
    model = Model()
    said = "_flash_attn_varlen_forward that is not known"
    with pytest.raises(ValueError, match=said), jumok.watch(model):
        model(operators._flash_attn_varlen_forward, q, k, k, starts, starts, 4, 4, 0.0, 0.3, True,
              block_table=table)  # fmt: skip
