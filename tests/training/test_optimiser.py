"""Groups, schedules and the moving average, against formulas and PyTorch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from jumok import Config, Decoder
from jumok.training.optimiser import MovingAverage, new_optimiser, rate, set_rate
from jumok.training.settings import Training


def test_matrices_decay_and_the_rest_does_not() -> None:
    model = Decoder(Config(61, 32, 1, 2, norm="layer", qkv_bias=True))
    optimiser = new_optimiser(model, Training("topics", "out", weight_decay=0.3))
    decayed, rest = optimiser.param_groups
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert decayed["weight_decay"] == 0.3
    assert rest["weight_decay"] == 0
    assert all(weight.ndim == 2 for weight in decayed["params"])
    assert {names[id(weight)].rpartition(".")[2] for weight in rest["params"]} == {"weight", "bias"}
    assert all(weight.ndim == 1 for weight in rest["params"])
    assert len(decayed["params"]) + len(rest["params"]) == len(names)


def test_a_step_is_that_of_adamw() -> None:
    """Loshchilov & Hutter 2019, algorithm 2, by hand in float64."""
    layer = nn.Linear(2, 2, dtype=torch.float64)
    before = {name: weight.detach().clone() for name, weight in layer.named_parameters()}
    training = Training("topics", "out", weight_decay=0.1, betas=(0.9, 0.95))
    optimiser = new_optimiser(layer, training)
    set_rate(optimiser, 0.01)
    for weight in layer.parameters():
        weight.grad = torch.full_like(weight, 0.5)
    optimiser.step()
    for name, weight in layer.named_parameters():
        decay = 0.1 if weight.ndim == 2 else 0.0
        wanted = before[name] * (1 - 0.01 * decay) - 0.01 * 0.5 / (math.sqrt(0.25) + 1e-8)
        torch.testing.assert_close(weight.detach(), wanted, rtol=1e-12, atol=1e-12)


def test_frozen_weights_are_left_out() -> None:
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    (group,) = new_optimiser(model, Training("topics", "out")).param_groups
    assert group["params"] == [model.bias]


def _rates(steps: int, **settings: object) -> list[float]:
    training = Training("topics", "out", **settings)  # type: ignore[arg-type]
    return [rate(training, step, steps, 64) for step in range(steps)]


def test_a_cosine_rises_in_a_line_and_ends_at_a_tenth() -> None:
    rates = _rates(101, learning_rate=1.0, warm_up=10)
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(rates) == rates[9] == rates[10] == 1
    assert rates[55] == pytest.approx(0.55)  # half-way down
    assert rates[-1] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_constant_stays_and_a_tenth_of_the_steps_is_warm_up() -> None:
    rates = _rates(50, learning_rate=2.0, schedule="constant")
    assert rates[:6] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0, 2.0])
    assert set(rates[5:]) == {2.0}


def test_the_schedule_of_2017() -> None:
    rates = _rates(40, schedule="vaswani", warm_up=8)
    wanted = [64**-0.5 * min(n**-0.5, n * 8**-1.5) for n in range(1, 41)]
    assert rates == pytest.approx(wanted)


def test_no_warm_up_and_one_step() -> None:
    assert _rates(1, learning_rate=3.0, warm_up=0) == [3.0]
    assert len(_rates(3, learning_rate=3.0, warm_up=9)) == 3


def test_a_mean_of_the_weights_is_swapped_in_and_out() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    average = MovingAverage(model, 0.5)
    wanted = 0.0
    for step, value in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        wanted = decay * wanted + (1 - decay) * value
    average.swap()
    assert model.weight.item() == pytest.approx(wanted)
    average.swap()
    assert model.weight.item() == 9
    other = MovingAverage(nn.Linear(1, 1, bias=False), 0.5)
    other.load_state_dict(average.state_dict())
    assert other.steps == 9
    assert other.state_dict()["weight"] == average.state_dict()["weight"]
