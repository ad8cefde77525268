"""The definition against pencil and paper, plain Python loops, PyTorch, and its own laws."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import jumok
from arrays import array, every_library, many_examples, numbers, same
from jumok import definition
from jumok.definition import (
    attention,
    causal_mask,
    dropout,
    erf,
    feed_forward,
    gelu,
    gelu_tanh,
    join_heads,
    layer_norm,
    linear,
    multi_head_attention,
    post_norm,
    pre_norm,
    relu,
    residual,
    rms_norm,
    scores,
    silu,
    softmax,
    split_heads,
    transformer_block,
)
from jumok.masks import Causal, Padding, Window
from jumok.positions import alibi_bias, sinusoidal

INF = math.inf
seeds = st.integers(0, 2**32 - 1)


def normal(xp: Any, seed: int, *shape: int) -> Any:
    return array(xp, np.random.default_rng([seed, *shape]).normal(size=shape))


def ramp(xp: Any, n_queries: int, n_keys: int, **how: Any) -> list[float]:
    """q = k = 0 and v = 1, 2, …: each output is the mean of the visible values."""
    q, k = array(xp, np.zeros((n_queries, 4))), array(xp, np.zeros((n_keys, 4)))
    v = array(xp, np.arange(1, n_keys + 1)[:, None])
    return numbers(attention(q, k, v, **how)[0])[:, 0].tolist()


def by_loops(
    q: Any,
    k: Any,
    v: Any,
    visible: Any,
    bias: Any,
    sinks: Any,
    scale: float,
    softcap: float | None,
) -> tuple[Any, Any, Any]:
    """Attention on (B, H, T, D), one number at a time."""
    n_batch, n_heads, n_queries, _ = q.shape
    n_kv_heads, n_keys = k.shape[1:3]
    weights = np.zeros((n_batch, n_heads, n_queries, n_keys))
    lse = np.full((n_batch, n_heads, n_queries), -INF)
    output = np.zeros((n_batch, n_heads, n_queries, v.shape[-1]))
    for b, h, i in np.ndindex(n_batch, n_heads, n_queries):
        kv_head = h * n_kv_heads // n_heads
        terms = {}
        for j in range(n_keys):
            if visible[b, h, i, j]:
                score = scale * sum(
                    float(x) * float(y) for x, y in zip(q[b, h, i], k[b, kv_head, j], strict=True)
                )
                if softcap:
                    score = softcap * math.tanh(score / softcap)
                terms[j] = math.exp(score + float(bias[b, h, i, j]))
        total = sum(terms.values()) + (0.0 if sinks is None else math.exp(float(sinks[h])))
        if total:
            lse[b, h, i] = math.log(total)
        for j, term in terms.items():
            weights[b, h, i, j] = term / total
            output[b, h, i] += term / total * v[b, kv_head, j]
    return output, weights, lse


@pytest.fixture
def batch() -> dict[str, Any]:
    random = np.random.default_rng(7)
    return {
        "q": random.normal(size=(2, 6, 4, 5)),
        "k": random.normal(size=(2, 2, 7, 5)),
        "v": random.normal(size=(2, 2, 7, 3)),
        "visible": random.random((2, 6, 4, 7)) < 0.6,
        "bias": random.normal(size=(2, 6, 4, 7)),
        "sinks": random.normal(size=6),
    }


# Attention, against loops


@every_library
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_is_what_loops_give(
    xp: Any, batch: dict[str, Any], scale: float | None, softcap: float | None, with_sinks: bool
) -> None:
    q, k, v, bias = (array(xp, batch[name]) for name in ("q", "k", "v", "bias"))
    batch["visible"][0, 0, 0] = False
    mask = array(xp, batch["visible"], "bool")
    sinks = batch["sinks"] if with_sinks else None
    expected = by_loops(
        batch["q"],
        batch["k"],
        batch["v"],
        batch["visible"],
        batch["bias"],
        sinks,
        scale or 5**-0.5,
        softcap,
    )
    found = attention(
        q,
        k,
        v,
        mask,
        scale=scale,
        softcap=softcap,
        bias=bias,
        sinks=None if sinks is None else array(xp, sinks),
    )
    for have, want in zip(found, expected, strict=True):
        assert have.dtype == xp.float64
        same(have, want)


@every_library
def test_any_leading_dimensions(xp: Any, batch: dict[str, Any]) -> None:
    q, k, v = (array(xp, batch[name]) for name in ("q", "k", "v"))
    whole = attention(q, k, v, causal=True)
    # One sample; one head of it, which reads key head 4 // 3; the same without a head dimension.
    for part, kv_part in (
        (np.s_[1:2, :], np.s_[1:2, :]),
        (np.s_[1, :], np.s_[1, :]),
        (np.s_[1:2, 4:5], np.s_[1:2, 1:2]),
        (np.s_[1, 4], np.s_[1, 1]),
    ):
        some = attention(q[(*part, ...)], k[(*kv_part, ...)], v[(*kv_part, ...)], causal=True)
        for have, want in zip(some, whole, strict=True):
            same(have, want[(*part, ...)])
    deep = attention(q[None, ...], k[None, ...], v[None, ...], causal=True)
    for have, want in zip(deep, whole, strict=True):
        same(have[0, ...], want)


@every_library
def test_scores_are_what_the_weights_come_from(xp: Any, batch: dict[str, Any]) -> None:
    q, k, v = (array(xp, batch[name]) for name in ("q", "k", "v"))
    how = {"causal": True, "softcap": 2.0, "bias": array(xp, batch["bias"]), "scale": 0.4}
    s = scores(q, k, **how)
    _, weights, lse = attention(q, k, v, **how)
    same(np.exp(numbers(s) - numbers(lse)[..., None]), weights)
    assert (numbers(s)[..., 0, 4:] == -INF).all()


def test_pytorch_agrees(batch: dict[str, Any]) -> None:
    q, k, v = (torch.from_numpy(batch[name]) for name in ("q", "k", "v"))
    mask = torch.from_numpy(batch["visible"])
    mask[..., 0] = True
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    same(attention(q, k, v, mask)[0], expected)
    square = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    same(attention(q, q, q, causal=True)[0], square)
    same(attention(q, q, q, causal_mask(4))[0], square)


# A row that sees nothing


@every_library
def test_a_row_that_sees_nothing(xp: Any) -> None:
    output, weights, lse = attention(
        array(xp, [[1, 0], [0, 1]]),
        array(xp, [[1, 0], [0, 1], [1, 1]]),
        array(xp, [[1, 2], [3, 4], [5, 6]]),
        array(xp, [[True, True, False], [False, False, False]], "bool"),
    )
    same(output, [[1.660477, 2.660477], [0, 0]], 1e-6)
    same(weights, [[0.669762, 0.330238, 0], [0, 0, 0]], 1e-6)
    same(lse, [1.1079403, -INF], 1e-6)


HIDDEN_ROW = np.array([[True, True, False], [False, False, False]])


@pytest.mark.parametrize(
    "how",
    [
        {"mask": torch.from_numpy(HIDDEN_ROW)},
        {"mask": torch.from_numpy(HIDDEN_ROW).long()},
        {"mask": torch.where(torch.from_numpy(HIDDEN_ROW), 0.5, -INF)},
        {"mask": torch.where(torch.from_numpy(HIDDEN_ROW), 0.0, torch.finfo(torch.float32).min)},
        {"bias": torch.where(torch.from_numpy(HIDDEN_ROW), 0.5, -INF)},
        {"bias": torch.where(torch.from_numpy(HIDDEN_ROW), 0.5, torch.finfo(torch.float32).min)},
        {"mask": Causal(offset=-1)},
        {"mask": torch.from_numpy(HIDDEN_ROW), "softcap": 1.0, "sinks": torch.zeros(1)},
        {"mask": torch.from_numpy(HIDDEN_ROW), "bias": torch.ones(2, 3)},
    ],
    ids=["bool", "int", "inf", "finfo", "bias", "bias-finfo", "rule", "cap-sink", "mask-bias"],
)
def test_gradients_of_a_row_that_sees_nothing_are_finite_and_right(how: dict[str, Any]) -> None:
    q, k, v = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 3, 3))
    empty = 0 if isinstance(how["mask" if "mask" in how else "bias"], Causal) else 1

    def all_finite(*qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, weights, lse = attention(*qkv, **how)
        return output, weights, torch.where(lse == -INF, 0.0, lse)

    output, weights, lse = attention(q, k, v, **how)
    assert not output[empty].any()
    assert not weights[empty].any()
    assert lse[empty] == (0 if "sinks" in how else -INF)
    (output.sum() + (weights**2).sum()).backward()
    for x in (q, k, v):
        assert torch.isfinite(x.grad).all()
    assert v.grad.any()
    assert not q.grad[empty].any()
    assert torch.autograd.gradcheck(all_finite, (q, k, v))


# Masks


@every_library
def test_causal_puts_the_last_query_on_the_last_key(xp: Any) -> None:
    assert ramp(xp, 2, 4, causal=True) == pytest.approx([2, 2.5])
    assert ramp(xp, 4, 2, causal=True) == pytest.approx([0, 0, 1, 1.5])
    assert ramp(xp, 1, 3, causal=True) == pytest.approx([2])
    first_to_first = Causal(offset=0)
    assert ramp(xp, 2, 4, mask=first_to_first) == pytest.approx([1, 1.5])
    assert ramp(xp, 4, 2, mask=first_to_first) == pytest.approx([1, 1.5, 1.5, 1.5])
    assert ramp(xp, 1, 3, mask=first_to_first) == pytest.approx([1])


def of_two(xp: Any, mask: Any) -> float:
    """The output for v = [0, 1], q = k = 0: the second key's weight."""
    zero = array(xp, np.zeros((1, 1)))
    q, k, v = zero, array(xp, np.zeros((2, 1))), array(xp, [[0], [1]])
    return float(attention(q, k, v, mask)[0][0, 0])


@every_library
def test_true_and_one_mean_may_attend(xp: Any) -> None:
    assert of_two(xp, array(xp, [[True, False]], "bool")) == 0
    assert of_two(xp, array(xp, [[False, True]], "bool")) == 1
    assert of_two(xp, array(xp, [[1, 0]], "int64")) == 0
    assert of_two(xp, array(xp, [[0, 1]], "int32")) == 1
    assert of_two(xp, [[0, 1]]) == 1


@every_library
def test_floats_are_added(xp: Any) -> None:
    assert of_two(xp, array(xp, [[0, -INF]])) == 0
    assert of_two(xp, array(xp, [[-INF, 0]])) == 1
    assert of_two(xp, array(xp, [[0.5, -0.5]])) == pytest.approx(0.26894, abs=1e-5)
    lowest = np.finfo(np.float32).min
    assert of_two(xp, array(xp, [[lowest, 0.5]], "float32")) == 1
    # Every key at the lowest number: hidden, not uniform.
    assert of_two(xp, array(xp, [[lowest, lowest]], "float32")) == 0


@every_library
def test_masks_that_could_mean_anything_are_refused(xp: Any) -> None:
    with pytest.raises(ValueError, match="ambiguous"):
        of_two(xp, array(xp, [[1.0, 0.0]]))
    with pytest.raises(ValueError, match="2"):
        of_two(xp, array(xp, [[2, 0]], "int64"))


@every_library
def test_softcap_comes_before_the_mask(xp: Any) -> None:
    q, k, v = (array(xp, x) for x in ([[4]], [[1], [1]], [[1], [2]]))
    for mask in (array(xp, [[0, -INF]]), array(xp, [[True, False]], "bool")):
        output, _, lse = attention(q, k, v, mask, scale=1, softcap=1)
        same(output, [[1]])
        same(lse, [math.tanh(4)])
    output, _, lse = attention(q, k, v, scale=1, softcap=1, bias=array(xp, [[3, 3]]))
    same(lse, [math.tanh(4) + 3 + math.log(2)])


@every_library
def test_softcap_of_zero_is_off(xp: Any) -> None:
    q, k = array(xp, [[4.0]]), array(xp, [[1.0], [2.0]])
    for softcap in (None, 0, 0.0):
        same(scores(q, k, softcap=softcap), [[4, 8]])
    for softcap in (-1.0, math.nan, INF):
        with pytest.raises(ValueError, match=f"softcap={softcap}"):
            scores(q, k, softcap=softcap)


@every_library
def test_mask_and_causal_intersect(xp: Any) -> None:
    for mask in (
        array(xp, [[True, False, True]] * 3, "bool"),
        array(xp, [[1, 0, 1]], "int64"),
        array(xp, [[0, -INF, 0]]),
        array(xp, [True, False, True], "bool"),
    ):
        assert ramp(xp, 3, 3, mask=mask, causal=True) == pytest.approx([1, 1, 2])


@every_library
def test_a_window_counts_the_querys_own_key(xp: Any) -> None:
    assert ramp(xp, 5, 5, mask=Window(3)) == pytest.approx([1, 1.5, 2, 3, 4])
    assert ramp(xp, 2, 5, mask=Window(3)) == pytest.approx([3, 4])
    assert ramp(xp, 4, 4, mask=Window(1)) == pytest.approx([1, 2, 3, 4])
    assert ramp(xp, 4, 4, mask=Window(2, ahead=1)) == pytest.approx([1.5, 2, 3, 3.5])


@every_library
def test_a_mask_of_numpy_serves_arrays_of_any_library(xp: Any) -> None:
    assert ramp(xp, 3, 3, mask=causal_mask(3)) == pytest.approx([1, 1.5, 2])
    mask = np.broadcast_to([True, False, True], (3, 3))
    assert ramp(xp, 3, 3, mask=mask, causal=True) == pytest.approx([1, 1, 2])


@every_library
def test_a_rule_of_four_dimensions_serves_three(xp: Any) -> None:
    """Padding is (batch, 1, 1, keys); inputs of (batch, tokens, D) have no head dimension."""
    q, k = array(xp, np.zeros((2, 2, 1))), array(xp, np.zeros((2, 3, 1)))
    v = array(xp, [[[1], [2], [3]], [[10], [20], [30]]])
    mask = Padding(array(xp, [[True, True, False], [False, True, True]], "bool"))
    output, _, _ = attention(q, k, v, mask)
    same(output, [[[1.5], [1.5]], [[25], [25]]])
    output, _, _ = attention(q, k, v, mask & Causal())
    same(output, [[[1.5], [1.5]], [[20], [25]]])
    heads = (x[:, None, ...] for x in (q, k, v))
    same(attention(*heads, mask & Causal())[0][:, 0, ...], output)
    # And two: (tokens, D).
    only = Padding(array(xp, [[True, False, True]], "bool"))
    same(attention(q[0, ...], k[0, ...], v[0, ...], only & Causal())[0], [[1], [2]])


def test_causal_mask() -> None:
    assert causal_mask(3).tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert causal_mask(0).shape == (0, 0)


# Sizes, dtypes, numbers


@every_library
def test_zero_sizes(xp: Any) -> None:
    q, k, v = (array(xp, np.ones(shape)) for shape in ((2, 3, 4), (2, 5, 4), (2, 5, 6)))
    output, weights, lse = attention(q, k[:, :0, :], v[:, :0, :], causal=True)
    same(output, np.zeros((2, 3, 6)))
    same(weights, np.zeros((2, 3, 0)))
    same(lse, np.full((2, 3), -INF))
    output, weights, lse = attention(q[:, :0, :], k, v, causal=True)
    same(output, np.zeros((2, 0, 6)))
    same(weights, np.zeros((2, 0, 5)))
    same(lse, np.zeros((2, 0)))
    output, _, lse = attention(q[..., :0], k[..., :0], v * array(xp, np.arange(5)[:, None]))
    same(output, np.full((2, 3, 6), 2))
    same(lse, np.full((2, 3), math.log(5)))
    assert attention(q, k, v[..., :0])[0].shape == (2, 3, 0)


@every_library
@pytest.mark.parametrize(
    ("n_heads", "values", "expected"),
    [
        (4, [10, 20], [10, 10, 20, 20]),
        (6, [10, 20], [10, 10, 10, 20, 20, 20]),
        (3, [7], [7, 7, 7]),
    ],
)
def test_neighbouring_query_heads_share_a_key_head(
    xp: Any, n_heads: int, values: list[int], expected: list[int]
) -> None:
    q = array(xp, np.zeros((n_heads, 1, 2)))
    k = array(xp, np.zeros((len(values), 1, 2)))
    v = array(xp, np.array(values)[:, None, None])
    same(attention(q, k, v)[0], np.array(expected)[:, None, None])
    four = (x[None, ...] for x in (q, k, v))
    same(attention(*four)[0], np.array(expected)[None, :, None, None])


@pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
def test_products_that_overflow_half_precision(xp: Any) -> None:
    q = array(xp, np.full((1, 64), 64), "float16")
    k = array(xp, np.stack([np.full(64, 64), np.full(64, 60)]), "float16")
    v = array(xp, [[1], [2]], "float16")
    output, weights, lse = attention(q, k, v)
    assert output.dtype == xp.float16
    assert weights.dtype == lse.dtype == xp.float32
    same(output, [[1]])
    same(lse, [64 * 64 * 64 / 8])


def test_half_precision_is_rounded_once_at_the_end() -> None:
    q, k, v = (torch.randn(2, 5, 8).to(torch.bfloat16) for _ in range(3))
    wide = attention(q.double(), k.double(), v.double(), causal=True)[0]
    found = attention(q, k, v, causal=True)[0]
    assert found.dtype == torch.bfloat16
    assert (found.double() - wide).abs().max() <= wide.abs().max() * 2**-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_mask_of_another_float_type_works(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 3, 4).to(torch.bfloat16) for _ in range(3))
    mask = torch.tensor([[0.5, -INF, -1.0]], dtype=dtype)
    same(attention(q, k, v, mask)[0], attention(q, k, v, mask.float())[0])
    same(attention(q, k, v, bias=mask)[0], attention(q, k, v, mask.float())[0])
    assert attention(q, k, v, mask)[0].dtype == torch.bfloat16


@every_library
def test_lse_is_the_natural_logarithm(xp: Any) -> None:
    zero = array(xp, np.zeros((2, 3)))
    same(attention(zero[:1, :], zero, zero)[2], [math.log(2)])


@every_library
def test_a_sink_takes_weight_and_gives_nothing(xp: Any) -> None:
    zero = array(xp, np.zeros((2, 1)))
    v = array(xp, [[3], [6]])
    output, weights, lse = attention(zero[:1, :], zero, v, sinks=array(xp, [0.0]))
    same(weights, [[1 / 3, 1 / 3]])
    same(output, [[3]])
    same(lse, [math.log(3)])
    heads = array(xp, np.zeros((2, 1, 1)))
    sinks = array(xp, [0.0, math.log(2)])
    _, weights, _ = attention(heads, heads, heads, sinks=sinks)
    same(weights, [[[1 / 2]], [[1 / 3]]])


@every_library
def test_softmax(xp: Any) -> None:
    x = array(xp, [[1000.0, 1001.0], [-INF, 0.0], [-INF, -INF], [-5e5, -5e5]])
    p = 1 / (1 + math.e)
    same(softmax(x), [[p, 1 - p], [0, 1], [0, 0], [0.5, 0.5]])
    same(softmax(x.T, axis=0), numbers(softmax(x)).T)
    assert softmax(array(xp, [1.0, 2.0], "float32")).dtype == xp.float32
    assert softmax(array(xp, np.zeros((2, 0)))).shape == (2, 0)


# Errors


def errors() -> dict[str, tuple[Callable[[], Any], type[Exception], list[str]]]:
    def x(*shape: int, dtype: str = "float32") -> Any:
        return np.ones(shape, dtype=dtype)

    return {
        "heads": (
            lambda: attention(x(3, 2, 4), x(2, 2, 4), x(2, 2, 4)),
            ValueError,
            ["3 query heads", "2 key heads", "multiple", "q (3, 2, 4)"],
        ),
        "head_dim": (
            lambda: attention(x(2, 8), x(3, 6), x(3, 6)),
            ValueError,
            ["head_dim 8", "keys 6", "q (2, 8)", "k (3, 6)"],
        ),
        "values": (
            lambda: attention(x(2, 8), x(3, 8), x(4, 8)),
            ValueError,
            ["3 keys", "4 values", "v (4, 8)"],
        ),
        "value heads": (
            lambda: attention(x(4, 2, 8), x(2, 3, 8), x(4, 3, 8)),
            ValueError,
            ["keys and values", "k (2, 3, 8)", "v (4, 3, 8)"],
        ),
        "batch": (
            lambda: attention(x(2, 1, 2, 8), x(3, 1, 2, 8), x(3, 1, 2, 8)),
            ValueError,
            ["batch", "q (2, 1, 2, 8)", "k (3, 1, 2, 8)"],
        ),
        "dimensions": (
            lambda: attention(x(1, 2, 8), x(2, 8), x(2, 8)),
            ValueError,
            ["same number of dimensions", "q (1, 2, 8)", "k (2, 8)"],
        ),
        "one dimension": (
            lambda: attention(x(8), x(8), x(8)),
            ValueError,
            ["at least 2", "q (8,)"],
        ),
        "no key heads": (
            lambda: attention(x(2, 2, 8), x(0, 2, 8), x(0, 2, 8)),
            ValueError,
            ["2 query heads", "0 key heads"],
        ),
        "mask keys": (
            lambda: attention(x(2, 8), x(3, 8), x(3, 8), np.ones((2, 4), dtype=bool)),
            ValueError,
            ["(2, 4)", "(2, 3)"],
        ),
        "mask batch": (
            lambda: attention(*[x(2, 1, 3, 8)] * 3, np.ones((5, 1, 3, 3), dtype=bool)),
            ValueError,
            ["mask", "(5, 1, 3, 3)", "(2, 1, 3, 3)"],
        ),
        "mask dimensions": (
            lambda: attention(x(3, 8), x(3, 8), x(3, 8), np.ones((2, 3, 3), dtype=bool)),
            ValueError,
            ["mask", "(2, 3, 3)", "(3, 3)"],
        ),
        "padding": (
            lambda: attention(*[x(2, 3, 8)] * 3, Padding(np.ones((2, 4), dtype=bool))),
            ValueError,
            ["(2, 4)", "3 keys"],
        ),
        "bias": (
            lambda: attention(x(2, 8), x(3, 8), x(3, 8), bias=x(3, 2)),
            ValueError,
            ["bias", "(3, 2)", "(2, 3)"],
        ),
        "float mask": (
            lambda: attention(x(2, 8), x(3, 8), x(3, 8), x(3, 2) / 2),
            ValueError,
            ["mask", "(3, 2)", "(2, 3)"],
        ),
        "sinks": (
            lambda: attention(x(4, 2, 8), x(2, 2, 8), x(2, 2, 8), sinks=x(2)),
            ValueError,
            ["sinks", "(2,)", "(4,)"],
        ),
        "dtypes": (
            lambda: attention(x(2, 8), x(3, 8, dtype="float64"), x(3, 8)),
            TypeError,
            ["q: float32", "k: float64", "Cast"],
        ),
        "integers": (
            lambda: attention(*[x(2, 8, dtype="int64")] * 3),
            TypeError,
            ["int64", "float"],
        ),
        "libraries": (
            lambda: attention(x(2, 8), torch.ones(2, 8), x(2, 8)),
            TypeError,
            ["one library", "q: ndarray", "k: Tensor"],
        ),
        "no arrays": (
            lambda: softmax([1.0, 2.0]),
            TypeError,
            ["x: list"],
        ),
        "linear": (
            lambda: linear(x(2, 8), x(4, 8)),
            ValueError,
            ["(2, 8)", "(4, 8)", "transpose"],
        ),
        "split": (
            lambda: split_heads(x(2, 8), 3),
            ValueError,
            ["8", "3", "(2, 8)"],
        ),
        "qkv": (
            lambda: multi_head_attention(x(2, 8), x(8, 25), x(8, 8), 2),
            ValueError,
            ["(8, 25)", "2 query heads"],
        ),
        "norm weight": (
            lambda: layer_norm(x(2, 8), x(4)),
            ValueError,
            ["weight", "(4,)", "(2, 8)"],
        ),
        "norm bias": (
            lambda: layer_norm(x(2, 8), x(8), x(1)),
            ValueError,
            ["bias", "(1,)", "(2, 8)"],
        ),
        "rate": (
            lambda: dropout(x(2), x(2) == 1, 1.0),
            ValueError,
            ["rate=1.0"],
        ),
    }


@pytest.mark.parametrize("case", errors().values(), ids=errors().keys())
def test_errors_repeat_what_was_given(case: Any) -> None:
    call, kind, words = case
    with pytest.raises(kind) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


# Heads


@every_library
def test_heads_are_runs_of_neighbouring_components(xp: Any) -> None:
    x = array(xp, np.arange(24).reshape(1, 2, 12))
    heads = split_heads(x, 3)
    same(heads[0, 1, :, :], [[4, 5, 6, 7], [16, 17, 18, 19]])
    same(join_heads(heads), x)


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention_is_that_of_pytorch(causal: bool) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(theirs.in_proj_bias)
    torch.nn.init.normal_(theirs.out_proj.bias)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    hidden = ~torch.from_numpy(causal_mask(5)) if causal else None
    expected = theirs(x, x, x, attn_mask=hidden, average_attn_weights=False)
    found = multi_head_attention(
        x,
        theirs.in_proj_weight.T,
        theirs.out_proj.weight.T,
        3,
        qkv_bias=theirs.in_proj_bias,
        output_bias=theirs.out_proj.bias,
        causal=causal,
    )
    for have, want in zip(found, expected, strict=True):
        same(have, want)


@every_library
def test_fewer_key_heads_are_the_same_as_repeated_ones(xp: Any) -> None:
    x, output = normal(xp, 1, 2, 4, 6), normal(xp, 2, 12, 6)
    q, k, v = normal(xp, 3, 6, 12), normal(xp, 4, 6, 6), normal(xp, 5, 6, 6)
    few = xp.concat([q, k, v], axis=-1)

    def each_twice(weight: Any) -> Any:
        first, second = weight[:, :3], weight[:, 3:]
        return xp.concat([first, first, second, second], axis=-1)

    many = xp.concat([q, each_twice(k), each_twice(v)], axis=-1)
    found = multi_head_attention(x, few, output, 4, n_kv_heads=2, causal=True)
    for have, want in zip(
        found, multi_head_attention(x, many, output, 4, causal=True), strict=True
    ):
        same(have, want)


@every_library
def test_turn_is_done_to_queries_and_keys_but_not_to_values(xp: Any) -> None:
    x, qkv, output = normal(xp, 1, 3, 4), normal(xp, 2, 4, 12), normal(xp, 3, 4, 4)
    found = multi_head_attention(x, qkv, output, 2, turn=lambda heads: heads * 2)
    expected = multi_head_attention(x, qkv, output, 2, scale=4 / math.sqrt(2))
    for have, want in zip(found, expected, strict=True):
        same(have, want)


# The rest of the block


@every_library
def test_norms_by_hand(xp: Any) -> None:
    x = array(xp, [[1, 3], [-2, 2]])
    weight, bias = array(xp, [1, 10]), array(xp, [0.5, 0])
    same(layer_norm(x, weight, bias, epsilon=0), [[-0.5, 10], [-0.5, 10]])
    same(layer_norm(x, weight, epsilon=3), [[-0.5, 5], [-2 / 7**0.5, 20 / 7**0.5]])
    same(rms_norm(x, weight, epsilon=0), [[5**-0.5, 30 * 5**-0.5], [-1, 10]])
    same(rms_norm(x, weight, epsilon=4), [[1 / 3, 10], [-(0.5**0.5), 10 * 0.5**0.5]])


def test_norms_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*s, dtype=torch.float64) for s in ((2, 3, 4), (3, 4), (3, 4)))
    same(layer_norm(x, weight, bias), F.layer_norm(x, (3, 4), weight, bias))
    same(rms_norm(x, weight, epsilon=1e-3), F.rms_norm(x, (3, 4), weight, 1e-3))
    half = (x * 300).half()
    same(rms_norm(half, weight.half()), rms_norm(half.double(), weight.half().double()), 2e-3)


@every_library
def test_activations_by_hand(xp: Any) -> None:
    x = array(xp, [-1000, -1, 0, 1, 1000])
    same(relu(x), [0, 0, 0, 1, 1000])
    same(gelu(x), [0, -0.15865525393145707, 0, 0.8413447460685429, 1000])
    same(gelu_tanh(x), [0, -0.15880801, 0, 0.84119199, 1000], 1e-7)
    same(silu(x), [0, -0.2689414213699951, 0, 0.7310585786300049, 1000])
    for activation in (relu, gelu, gelu_tanh, silu):
        assert activation(array(xp, [1.0], "float32")).dtype == xp.float32


def test_activations_and_their_gradients_are_those_of_pytorch() -> None:
    x = torch.linspace(-12, 12, 999, dtype=torch.float64, requires_grad=True)
    for ours, theirs in (
        (relu, F.relu),
        (silu, F.silu),
        (gelu, F.gelu),
        (gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
    ):
        same(ours(x), theirs(x), 1e-14)
        [found] = torch.autograd.grad(ours(x).sum(), x)
        [expected] = torch.autograd.grad(theirs(x).sum(), x)
        same(found, expected, 1e-13)


@every_library
def test_erf_to_the_last_digits(xp: Any) -> None:
    x = [-INF, -30, -6, -3.3, -1e-9, 0, 0.1, 0.5, 1, 2.5, 4, 5.9, 7, INF]
    same(erf(array(xp, x)), [math.erf(value) for value in x], 3e-15)
    same(erf(array(xp, x, "float32")), [math.erf(value) for value in x], 1e-7)


@every_library
def test_feed_forward(xp: Any) -> None:
    x = array(xp, [[1, 2]])
    up, down = array(xp, [[1, 0, -1], [0, 1, -1]]), array(xp, [[1, 0], [0, 1], [1, 1]])
    up_bias, down_bias = array(xp, [0, -5, 4]), array(xp, [10, 20])
    # x W + b = [1, -3, 1], bent to [1, 0, 1].
    found = feed_forward(x, up, down, relu, up_bias=up_bias, down_bias=down_bias)
    same(found, [[12, 21]])
    same(feed_forward(x, up, down, relu), [[1, 2]])


def test_gated_feed_forward_is_that_of_llama() -> None:
    torch.manual_seed(0)
    x, up, gate, down = (
        torch.randn(*s, dtype=torch.float64) for s in ((2, 3, 4), (4, 6), (4, 6), (6, 4))
    )
    expected = (F.silu(x @ gate) * (x @ up)) @ down
    same(feed_forward(x, up, down, silu, gate_weight=gate), expected)


@every_library
def test_dropout(xp: Any) -> None:
    x = array(xp, [[1, 2], [3, 4]])
    keep = array(xp, [[True, False], [False, True]], "bool")
    same(dropout(x, keep, 0.75), [[4, 0], [0, 16]])
    same(dropout(x, keep, 0), [[1, 0], [0, 4]])


@every_library
def test_orders(xp: Any) -> None:
    x = array(xp, [3.0])
    same(residual(x, lambda y: 10 * y), [33])
    same(pre_norm(x, lambda y: y + 1, lambda y: 10 * y), [43])
    same(post_norm(x, lambda y: y + 1, lambda y: 10 * y), [34])


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_block_is_that_of_pytorch(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(
        12,
        3,
        20,
        dropout=0,
        activation=activation,
        batch_first=True,
        norm_first=norm_first,
        dtype=torch.float64,
    )
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    expected = theirs(x, src_mask=~torch.from_numpy(causal_mask(5)), is_causal=True)

    weights = theirs.self_attn
    found = transformer_block(
        x,
        lambda x: multi_head_attention(
            x,
            weights.in_proj_weight.T,
            weights.out_proj.weight.T,
            3,
            qkv_bias=weights.in_proj_bias,
            output_bias=weights.out_proj.bias,
            causal=True,
        )[0],
        lambda x: layer_norm(x, theirs.norm1.weight, theirs.norm1.bias),
        lambda x: feed_forward(
            x,
            theirs.linear1.weight.T,
            theirs.linear2.weight.T,
            {"relu": relu, "gelu": gelu}[activation],
            up_bias=theirs.linear1.bias,
            down_bias=theirs.linear2.bias,
        ),
        lambda x: layer_norm(x, theirs.norm2.weight, theirs.norm2.bias),
        pre_norm if norm_first else post_norm,
    )
    same(found, expected)


# Laws


@every_library
@many_examples
@given(
    seed=seeds,
    n_queries=st.integers(0, 6),
    n_keys=st.integers(0, 6),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    visible=st.floats(0, 1),
    causal=st.booleans(),
    softcap=st.sampled_from([None, 1.0, 30.0]),
    size=st.sampled_from([1e-3, 1.0, 1e3, 1e8]),
)
def test_weights_are_shares(
    xp: Any,
    seed: int,
    n_queries: int,
    n_keys: int,
    heads: tuple[int, int],
    visible: float,
    causal: bool,
    softcap: float | None,
    size: float,
) -> None:
    q = normal(xp, seed, 2, heads[0], n_queries, 3) * size
    k, v = (normal(xp, seed + i, 2, heads[1], n_keys, 3) for i in (1, 2))
    mask = np.random.default_rng(seed).random((2, 1, n_queries, n_keys)) < visible
    _, weights, lse = attention(q, k, v, array(xp, mask, "bool"), causal=causal, softcap=softcap)
    weights, lse = numbers(weights), numbers(lse)
    if causal:
        mask = mask & np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)
    assert (weights >= 0).all()
    assert not weights[~np.broadcast_to(mask, weights.shape)].any()
    sees = np.broadcast_to(mask.any(axis=-1), lse.shape)
    same(weights.sum(axis=-1), sees.astype(float))
    assert (np.isfinite(lse) == sees).all()


def gpt_block(xp: Any, seed: int, order: Any = pre_norm, **how: Any) -> Callable[[Any], Any]:
    """A block of E = 6 with two heads and random weights."""
    qkv, output = normal(xp, seed, 6, 18), normal(xp, seed + 1, 6, 6)
    up, down = normal(xp, seed + 2, 6, 9), normal(xp, seed + 3, 9, 6)
    weight, bias = normal(xp, seed + 4, 6), normal(xp, seed + 5, 6)
    return lambda x: transformer_block(
        x,
        lambda x: multi_head_attention(x, qkv, output, 2, **how)[0],
        lambda x: layer_norm(x, weight, bias),
        lambda x: feed_forward(x, up, down, gelu),
        lambda x: layer_norm(x, bias, weight),
        order,
    )


@every_library
@many_examples
@given(
    seed=seeds,
    n_tokens=st.integers(2, 8),
    known=st.integers(1, 7),
    size=st.sampled_from([1.0, 1e6, 1e30]),
)
def test_a_causal_output_never_depends_on_later_tokens(
    xp: Any, seed: int, n_tokens: int, known: int, size: float
) -> None:
    known = min(known, n_tokens)
    x = normal(xp, seed, 2, n_tokens, 6)
    later = xp.arange(n_tokens)[:, None] >= known
    other = xp.where(later, size * normal(xp, seed + 9, 2, n_tokens, 6), x)

    block = gpt_block(xp, seed, causal=True)
    first, second = numbers(block(x)), numbers(block(other))
    assert np.array_equal(first[:, :known], second[:, :known])

    for part in range(3):
        found = attention(x, x, x, causal=True)[part]
        changed = attention(other, other, other, causal=True)[part]
        assert np.array_equal(numbers(found)[:, :known], numbers(changed)[:, :known])


@every_library
@many_examples
@given(seed=seeds, n_keys=st.integers(1, 8), causal=st.booleans())
def test_keys_and_values_are_a_set(xp: Any, seed: int, n_keys: int, causal: bool) -> None:
    q = normal(xp, seed, 4, 3, 5)
    k, v = normal(xp, seed + 1, 2, n_keys, 5), normal(xp, seed + 2, 2, n_keys, 5)
    random = np.random.default_rng(seed)
    mask = random.random((3, n_keys)) < 0.7
    if causal:
        mask = mask & np.tri(3, n_keys, n_keys - 3, dtype=bool)
    order = random.permutation(n_keys)
    chosen = array(xp, order, "int64")
    output, weights, lse = attention(q, k, v, array(xp, mask, "bool"))
    permuted = attention(
        q,
        xp.take(k, chosen, axis=1) if xp is not torch else k[:, order],
        xp.take(v, chosen, axis=1) if xp is not torch else v[:, order],
        array(xp, mask[:, order], "bool"),
    )
    same(permuted[0], output)
    same(permuted[1], numbers(weights)[..., order])
    same(permuted[2], lse)


@every_library
@many_examples
@given(
    seed=seeds,
    n_tokens=st.integers(1, 8),
    order=st.sampled_from([pre_norm, post_norm]),
)
def test_without_positions_the_block_sees_a_set(
    xp: Any, seed: int, n_tokens: int, order: Any
) -> None:
    x = np.random.default_rng(seed).normal(size=(2, n_tokens, 6))
    permutation = np.random.default_rng(seed).permutation(n_tokens)
    block = gpt_block(xp, seed, order)
    found = numbers(block(array(xp, x[:, permutation])))
    same(found, numbers(block(array(xp, x)))[:, permutation], 1e-9)


@every_library
def test_with_positions_the_block_sees_an_order(xp: Any) -> None:
    x = np.random.default_rng(0).normal(size=(1, 4, 6))
    reverse = [3, 2, 1, 0]
    block = gpt_block(xp, 0)
    positions = sinusoidal(4, 6)
    found = numbers(block(array(xp, x[:, reverse] + positions)))
    expected = numbers(block(array(xp, x + positions)))[:, reverse]
    assert np.abs(found - expected).max() > 0.1


RULES = {
    "causal": None,
    "window": Window(3),
    "two windows": Window(4) & Window(2, ahead=1),
}


@every_library
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@many_examples
@given(seed=seeds, cuts=st.lists(st.integers(1, 9), max_size=3), with_bias=st.booleans())
def test_cached_equals_uncached(
    xp: Any, rule: Any, seed: int, cuts: list[int], with_bias: bool
) -> None:
    n_tokens = 9
    q = normal(xp, seed, 2, 4, n_tokens, 3)
    k, v = (normal(xp, seed + i, 2, 2, n_tokens, 3) for i in (1, 2))

    def bias(n_queries: int, n_keys: int) -> Any:
        return array(xp, alibi_bias(4, n_queries, n_keys)) if with_bias else None

    whole = attention(q, k, v, rule, causal=True, bias=bias(n_tokens, n_tokens))
    for start, stop in pairwise(sorted({0, n_tokens, *cuts})):
        some = attention(
            q[..., start:stop, :],
            k[..., :stop, :],
            v[..., :stop, :],
            rule,
            causal=True,
            bias=bias(stop - start, stop),
        )
        same(some[0], whole[0][..., start:stop, :])
        same(some[1], whole[1][..., start:stop, :stop])
        same(some[2], whole[2][..., start:stop])


# The public face


def test_public_names() -> None:
    assert jumok.attention is attention
    assert jumok.causal_mask is causal_mask
    assert jumok.softmax is softmax
    for name in definition.__all__:
        assert getattr(definition, name).__doc__
