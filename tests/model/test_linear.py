"""The linear map for a few vectors is the usual one."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from jumok.model.linear import Linear, linear


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "shape", [(1, 1, 6), (4, 1, 6), (2, 2, 6), (3, 6), (6,), (2, 9, 6), (0, 6)]
)
@pytest.mark.parametrize("rows", [8, 12, 7])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_linear_is_linear(
    threads: int, shape: tuple[int, ...], rows: int, biased: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(rows, 6, dtype=dtype)
    bias = torch.randn(rows, dtype=dtype) if biased else None
    output = linear(x, weight, bias)
    torch.testing.assert_close(output, F.linear(x, weight, bias))
    assert output.is_contiguous()


def test_gradients(threads: int) -> None:
    torch.manual_seed(0)
    layer = Linear(6, 12)
    x = torch.randn(2, 1, 6, requires_grad=True)
    upstream = torch.randn(2, 1, 12)
    layer(x).backward(upstream)
    found = (x.grad, layer.weight.grad, layer.bias.grad)
    x.grad = layer.weight.grad = layer.bias.grad = None
    F.linear(x, layer.weight, layer.bias).backward(upstream)
    for one, two in zip(found, (x.grad, layer.weight.grad, layer.bias.grad), strict=True):
        torch.testing.assert_close(one, two)


def test_a_slice_of_a_weight(threads: int) -> None:
    x, weight = torch.randn(1, 6), torch.randn(6, 9).T[:, :]  # not contiguous
    torch.testing.assert_close(linear(x, weight[:8]), F.linear(x, weight[:8]))


def test_autocast(threads: int) -> None:
    layer, x = Linear(6, 12), torch.randn(1, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_listeners_hear_one_linear_map_and_change_nothing(threads: int) -> None:
    class Listener(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[tuple[str, tuple[int, ...]]] = []

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.heard.append((func.__name__, tuple(args[1].shape)))
            return func(*args, **(kwargs or {}))

    layer, x = Linear(6, 12), torch.randn(1, 6)
    silent = layer(x)
    with Listener() as listener:
        output = layer(x)
    assert listener.heard == [("linear", (12, 6))]
    assert torch.equal(output, silent)
