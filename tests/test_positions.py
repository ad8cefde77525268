import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arrays import array, every_library, many_examples, numbers, same
from jumok.positions import (
    LinearScaling,
    Llama3Scaling,
    YarnScaling,
    alibi_bias,
    alibi_slopes,
    rotary_frequencies,
    rotary_phases,
    rotate,
    sinusoidal,
    t5_buckets,
)

# Sinusoidal


def test_sinusoidal_pairs_sine_and_cosine_of_falling_frequencies() -> None:
    table = sinusoidal(50, 6)
    assert table.dtype == np.float32
    for position in (0, 1, 49):
        angles = [position / 10_000 ** (2 * i / 6) for i in range(3)]
        expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
        same(table[position], expected, 1e-6)


def test_sinusoidal_products_depend_on_the_distance_only() -> None:
    table = sinusoidal(40, 16).astype(np.float64)
    products = table @ table.T
    for distance in (1, 5, 20):
        along = np.diagonal(products, distance)
        same(along, np.full_like(along, along[0]), 1e-5)


# Rotary: frequencies


def transformers_frequencies(head_dim: int, theta: float, **scaling: Any) -> tuple[Any, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=16_384,
        rope_parameters={"rope_theta": theta, **scaling},
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))
    return frequencies.numpy(), magnitude


def test_frequencies_fall_from_one_to_almost_one_over_theta() -> None:
    frequencies = rotary_frequencies(128, 5e5)
    assert frequencies.dtype == np.float32
    assert frequencies.shape == (64,)
    assert frequencies[0] == 1
    assert frequencies[1] == pytest.approx(0.814617, abs=1e-6)
    assert frequencies[-1] == pytest.approx(5e5 ** (-126 / 128), rel=1e-6)


@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LinearScaling(4.0), {"rope_type": "linear", "factor": 4.0}),
        (
            Llama3Scaling(8.0, 1.0, 4.0, 8192),
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
        (
            YarnScaling(4.0, 4096),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        ),
        (
            YarnScaling(4.0, 4096, beta_fast=16, beta_slow=2, truncate=False),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
            },
        ),
        (
            YarnScaling(4.0, 100),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100},
        ),
        (
            YarnScaling(4.0, 10**6),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10**6},
        ),
        (
            YarnScaling(4.0, 4096, mscale=0.707, mscale_all_dim=1.0),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 4096,
                "mscale": 0.707,
                "mscale_all_dim": 1.0,
            },
        ),
        (
            YarnScaling(4.0, 4096, attention_factor=1.25),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 4096,
                "attention_factor": 1.25,
            },
        ),
    ],
    ids=[
        "linear",
        "llama3",
        "yarn",
        "yarn-betas",
        "yarn-short",
        "yarn-long",
        "yarn-deepseek",
        "yarn-factor",
    ],
)
def test_scaled_frequencies_are_those_of_transformers(
    ours: Any, theirs: dict[str, Any], head_dim: int, theta: float
) -> None:
    expected, magnitude = transformers_frequencies(head_dim, theta, **theirs)
    found = rotary_frequencies(head_dim, theta, ours)
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    assert ours.magnitude == pytest.approx(magnitude, abs=1e-12)
    # And scaling did something, to some frequencies at least.
    assert found[-1] < rotary_frequencies(head_dim, theta)[-1]


def test_yarn_borders_on_one_frequency_do_not_divide_by_zero() -> None:
    found = rotary_frequencies(8, 1e4, YarnScaling(2.0, 4096, beta_fast=1.0, truncate=False))
    same(found / rotary_frequencies(8, 1e4), [1, 1, 1, 0.5], 1e-6)


# Rotary: phases


@every_library
def test_phases_are_formed_in_float32(xp: Any) -> None:
    positions = xp.asarray([[0, 3, 100_003]])
    cos, sin = rotary_phases(positions, rotary_frequencies(4, 1e4))
    assert cos.dtype == sin.dtype == xp.float32
    angles = np.array([[[0, 0], [3, 0.03], [100_003, 1000.03]]])
    # One float32 step of the largest angle is 0.008: the phase is float32, its cosine too.
    same(cos[0, :2, :], np.cos(angles)[0, :2], 1e-6)
    same(sin, np.sin(angles.astype(np.float32)), 1e-4)
    twice = rotary_phases(positions, rotary_frequencies(4, 1e4), magnitude=2.0)
    same(twice[0], 2 * numbers(cos))
    same(twice[1], 2 * numbers(sin))


def test_phases_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
    }
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        max_position_embeddings=16_384,
        rope_parameters=scaling,
    )
    positions = torch.arange(200)[None]
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    ours = YarnScaling(4.0, 4096)
    found = rotary_phases(positions, rotary_frequencies(64, 1e4, ours), ours.magnitude)
    for have, want in zip(found, expected, strict=True):
        same(have, want[..., :32], 1e-5)


# Rotary: the rotation


@every_library
def test_layouts(xp: Any) -> None:
    x = array(xp, [[1, 0, 0, 0]], "float32")
    cos, sin = rotary_phases(xp.asarray([1]), rotary_frequencies(4, 1e4))
    same(rotate(x, cos, sin), [[0.5403, 0, 0.8415, 0]], 1e-4)
    same(rotate(x, cos, sin, interleaved=True), [[0.5403, 0.8415, 0, 0]], 1e-4)
    y = array(xp, [[0, 1, 0, 0]], "float32")
    same(rotate(y, cos, sin, interleaved=True), [[-0.8415, 0.5403, 0, 0]], 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_is_bit_for_bit_that_of_transformers(dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q = torch.randn(2, 3, 5, 8).to(dtype)
    k = torch.randn(2, 1, 5, 8).to(dtype)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])
    cos, sin = rotary_phases(positions, rotary_frequencies(8, 1e4))
    theirs = (torch.cat([x, x], dim=-1).to(dtype) for x in (cos, sin))
    for have, want in zip((q, k), apply_rotary_pos_emb(q, k, *theirs), strict=True):
        found = rotate(have, cos[:, None], sin[:, None])
        assert found.dtype == dtype
        assert torch.equal(found, want)


def test_interleaved_rotation_is_that_of_gptj() -> None:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    x = torch.randn(2, 5, 3, 8)
    cos, sin = rotary_phases(torch.arange(5), rotary_frequencies(8, 1e4))
    expected = apply_rotary_pos_emb(x, sin[None], cos[None])
    found = rotate(x.transpose(1, 2), cos, sin, interleaved=True)
    same(found.transpose(1, 2), expected, 1e-6)


@every_library
@pytest.mark.parametrize("interleaved", [False, True])
def test_components_beyond_the_rotated_ones_stay(xp: Any, interleaved: bool) -> None:
    x = array(xp, np.arange(1, 13).reshape(2, 6))
    cos, sin = rotary_phases(xp.asarray([0, 2]), rotary_frequencies(4, 1e4))
    whole = rotate(x[:, :4], cos, sin, interleaved)
    found = rotate(x, cos, sin, interleaved)
    same(found[:, :4], whole)
    same(found[:, 4:], x[:, 4:])
    assert abs(float(whole[1, 0]) - 7) > 1


@every_library
@many_examples
@given(
    data=st.integers(0, 2**32 - 1),
    shift=st.integers(0, 50),
    interleaved=st.booleans(),
)
def test_rotated_products_depend_on_distance_only(
    xp: Any, data: int, shift: int, interleaved: bool
) -> None:
    random = np.random.default_rng(data)
    q, k = (array(xp, random.normal(size=(5, 8))) for _ in range(2))
    frequencies = rotary_frequencies(8, 100.0)

    def products(start: int) -> Any:
        cos, sin = rotary_phases(xp.arange(start, start + 5), frequencies)
        return (
            numbers(rotate(q, cos, sin, interleaved)) @ numbers(rotate(k, cos, sin, interleaved)).T
        )

    same(products(shift), products(0), 2e-4)


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_pass_through_the_rotation(interleaved: bool) -> None:
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    tables = rotary_phases(torch.arange(5), rotary_frequencies(6, 1e4))
    cos, sin = (table.double() for table in tables)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin, interleaved), x)


@pytest.mark.parametrize(
    ("x", "cos", "words"),
    [
        ((2, 3, 5, 8), (2, 5, 4), "(batch, 1, tokens, half)"),
        ((2, 2, 5, 8), (2, 5, 4), "(batch, 1, tokens, half)"),
        ((5, 8), (5, 5), "10 components are to turn, but x has only 8"),
        ((3, 5, 8), (4, 4), "x has 5 tokens and cos has 4"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(x: Any, cos: Any, words: str) -> None:
    table = np.ones(cos)
    with pytest.raises(ValueError, match="cannot rotate") as caught:
        rotate(np.ones(x), table, table)
    assert words in str(caught.value)
    assert str(x) in str(caught.value)
    assert str(cos) in str(caught.value)


def test_cosines_and_sines_of_two_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one shape.*\(5, 4\).*\(5, 2\)"):
        rotate(np.ones((5, 8)), np.ones((5, 4)), np.ones((5, 2)))


@pytest.mark.parametrize("width", [0, 7])
def test_odd_widths_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"head_dim={width}"):
        rotary_frequencies(width, 1e4)
    with pytest.raises(ValueError, match=f"emb_dim={width}"):
        sinusoidal(3, width)


# ALiBi


def test_slopes() -> None:
    same(alibi_slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125])
    same(alibi_slopes(8), [2.0**-h for h in range(1, 9)])
    same(alibi_slopes(1), [2.0**-8])
    with pytest.raises(ValueError, match="n_heads=0"):
        alibi_slopes(0)


@pytest.mark.parametrize("n_heads", [1, 2, 3, 5, 8, 12, 16, 25])
def test_slopes_are_those_of_bloom(n_heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    steps = build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)
    same(alibi_slopes(n_heads), steps[:, 0, 1], 1e-6)


def test_one_decode_step_has_the_last_row() -> None:
    whole = alibi_bias(2, 4, 4)
    assert whole.dtype == np.float32
    same(whole[0, 3] / 2.0**-4, [-3, -2, -1, 0])
    same(whole[1, 1] / 2.0**-8, [-1, 0, -1, -2])
    same(alibi_bias(2, 1, 4), whole[:, -1:])


# T5


def test_buckets_by_hand() -> None:
    found = t5_buckets(np.array([0, -1, -7, -8, -15, -16, -128, -9999, 1, 8, 9999]))
    assert found.tolist() == [0, 1, 7, 8, 9, 10, 15, 15, 17, 24, 31]
    found = t5_buckets(np.array([5, 0, -1, -15, -16, -31, -9999]), bidirectional=False)
    assert found.tolist() == [0, 0, 1, 15, 16, 21, 31]


@every_library
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("sizes", [(32, 128), (16, 64), (64, 1000), (6, 32)])
def test_buckets_are_those_of_transformers(
    xp: Any, bidirectional: bool, sizes: tuple[int, int]
) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = np.arange(-2000, 2000).reshape(40, 100)
    expected = T5Attention._relative_position_bucket(
        torch.from_numpy(distance), bidirectional, *sizes
    )
    found = t5_buckets(array(xp, distance, "int32"), bidirectional, *sizes)
    assert found.dtype == xp.int64
    assert numbers(found).tolist() == expected.tolist()


def test_impossible_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match="n_buckets=2"):
        t5_buckets(np.arange(3), n_buckets=2)
    with pytest.raises(ValueError, match="max_distance=8"):
        t5_buckets(np.arange(3), max_distance=8)
