"""The smoothed loss against its formula, the learning rate against the paper's figures."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from jumok.model.losses import label_smoothed_loss, warm_up_rate


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7, 1.0])
def test_is_the_formula(smoothing: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 11, dtype=torch.float64)
    targets = torch.randint(1, 11, (2, 5))
    targets[1, 3:] = 0
    total, count = 0.0, 0
    for row in range(2):
        for place in range(5):
            if targets[row, place] == 0:
                continue
            surprise = -logits[row, place].log_softmax(0)
            total += (1 - smoothing) * surprise[targets[row, place]] + smoothing * surprise.mean()
            count += 1
    found = label_smoothed_loss(logits, targets, smoothing, ignore_id=0)
    torch.testing.assert_close(found, total / count)
    plain = label_smoothed_loss(logits, targets, smoothing)
    expected = F.cross_entropy(logits.mT, targets, label_smoothing=smoothing)
    torch.testing.assert_close(plain, expected)


def test_nothing_counts() -> None:
    logits = torch.randn(1, 3, 5, requires_grad=True)
    loss = label_smoothed_loss(logits, torch.zeros(1, 3, dtype=torch.long), ignore_id=0)
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


def test_what_does_not_fit_is_named() -> None:
    logits, targets = torch.randn(1, 3, 5), torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"\(1, 3, 5\) need targets \(1, 3\); got \(1, 2\)"):
        label_smoothed_loss(logits, targets)
    with pytest.raises(ValueError, match=r"smoothing=1\.5"):
        label_smoothed_loss(logits, torch.zeros(1, 3, dtype=torch.long), 1.5)


def test_equation_3() -> None:
    assert warm_up_rate(4000, 512) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert warm_up_rate(4000, 512) == pytest.approx(6.99e-4, rel=1e-3)
    assert warm_up_rate(1000, 512) == pytest.approx(warm_up_rate(4000, 512) / 4)
    assert warm_up_rate(16_000, 512) == pytest.approx(warm_up_rate(4000, 512) / 2)
    assert warm_up_rate(0, 512) == warm_up_rate(1, 512) > 0
    rates = [warm_up_rate(step, 64, 10) for step in range(1, 40)]
    assert rates.index(max(rates)) == 9
    assert math.isclose(rates[39 - 1], 64**-0.5 * 39**-0.5)
    with pytest.raises(ValueError, match="warm_up_steps=0"):
        warm_up_rate(3, 512, 0)
