"""Masks as kernels take them: what is read says what the softmax does with them."""

import math

import pytest
import torch

from jumok.lens.call import AttentionCall
from jumok.lens.taps.mask_reader import MaskReader

LEAST = torch.finfo(torch.float32).min
QUERIES, KEYS = 4, 6
random = torch.Generator().manual_seed(0)
Q = torch.randn(1, 1, QUERIES, 8, generator=random)
K = torch.randn(1, 1, KEYS, 8, generator=random)


def weights_by_torch(mask):
    scores = Q @ K.mT + mask
    return torch.nan_to_num(scores.softmax(-1))  # a row of nothing but −inf sees nothing


def rows(*rows):
    return torch.tensor(rows, dtype=torch.float32)[None, None]


@pytest.mark.parametrize("low", [LEAST, -1e4], ids=["the smallest number", "-10,000"])
@pytest.mark.parametrize(
    "padded",
    [
        lambda low: [low] * KEYS,
        lambda low: [low, -math.inf, low, -math.inf, low, low],
        lambda low: [-math.inf] * (KEYS - 1) + [low],
        lambda low: [-math.inf] * KEYS,
    ],
    ids=["all alike", "some are hidden for good", "one is left", "nothing is left"],
)
def test_a_row_of_hidden_keys_is_what_its_softmax_makes_of_it(padded, low):
    mask = rows(padded(low), *([0.0] * (n + 3) + [low] * (KEYS - n - 3) for n in range(1, QUERIES)))
    rule, bias = MaskReader().read(mask, QUERIES, KEYS)
    call = AttentionCall(Q, K, None, rule, bias, 1.0)
    torch.testing.assert_close(
        call.weights([0], [0], range(QUERIES), range(KEYS)),
        weights_by_torch(mask),
        atol=1e-3 if low == -1e4 else 1e-6,  # the scores have lost digits beside −10,000
        rtol=1e-5,
    )


def test_keys_that_stand_lower_still_are_hidden_in_a_padded_row():
    """Two masks added, each of −10,000: the row reads what only one of them hides."""
    mask = rows([-2e4, -1e4, -2e4, -1e4, -2e4, -2e4], *[[0.0] * KEYS] * (QUERIES - 1))
    rule, bias = MaskReader().read(mask, QUERIES, KEYS)
    found = AttentionCall(Q, K, None, rule, bias, 1.0).weights(
        [0], [0], range(QUERIES), range(KEYS)
    )
    torch.testing.assert_close(found, weights_by_torch(mask), atol=1e-3, rtol=1e-5)


def test_slots_of_a_cache_that_nobody_has_written_are_not_seen_by_padding():
    mask = rows([LEAST] * KEYS, *[[0.0] * 4 + [LEAST] * 2] * (QUERIES - 1))
    rule, _ = MaskReader().read(mask, QUERIES, KEYS)
    assert not rule.dense(QUERIES, KEYS, Q)[..., 4:].any()
