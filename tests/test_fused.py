"""The fused attention against the definition, on NumPy and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from jumok import definition, fused
from jumok.fused import torch_rows
from jumok.masks import Causal, Chunked, Packed, Padding, Prefix, Spans, Window

KINDS = {"numpy": np.asarray, "torch": torch.as_tensor}
INFINITE = math.inf


@pytest.fixture(params=KINDS, ids=KINDS)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes an array of one library from values, in float32 unless they are booleans."""

    def array(values: Any, dtype: str | None = None) -> Any:
        plain = np.array(values)
        if plain.dtype.kind == "f":
            plain = plain.astype(dtype or "float32")
        return KINDS[request.param](plain)

    return array


def plain(array: Any) -> np.ndarray:
    return array.detach().double().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def close(found: Any, expected: Any, tolerance: float = 2e-6) -> None:
    found, expected = plain(found), np.asarray(plain(expected), dtype=np.float64)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def ramp(make: Callable[..., Any], n_queries: int, n_keys: int) -> tuple[Any, Any, Any]:
    """Scores 0 and values 1…n: the output is the mean of the visible values."""
    zeros = np.zeros((1, 1, n_queries, 1))
    values = np.arange(1.0, n_keys + 1).reshape(1, 1, n_keys, 1)
    return make(zeros), make(np.zeros((1, 1, n_keys, 1))), make(values)


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def inputs(
    batch: int, heads: int, key_heads: int, queries: int, keys: int, width: int = 16
) -> list[np.ndarray]:
    return [
        draw(1, batch, heads, queries, width),
        draw(2, batch, key_heads, keys, width),
        draw(3, batch, key_heads, keys, width),
    ]


# Every rule and option, on every shape.

PADDED = np.array([[True] * 30, [False] * 5 + [True] * 25])
OPTIONS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "nothing": lambda q, k: {},
    "causal": lambda q, k: {"causal": True},
    "causal, top left": lambda q, k: {"mask": Causal(offset=0)},
    "window": lambda q, k: {"mask": Window(4)},
    "window, both sides": lambda q, k: {"mask": Window(3, ahead=2)},
    "window far behind": lambda q, k: {"mask": Window(2, offset=-4)},
    "padding": lambda q, k: {"mask": Padding(PADDED[:, :k])},
    "padding and causal": lambda q, k: {"mask": Padding(PADDED[:, :k]), "causal": True},
    "padding and top left": lambda q, k: {"mask": Padding(PADDED[:, :k]) & Causal(offset=0)},
    "padding and window": lambda q, k: {"mask": Padding(PADDED[:, :k]) & Window(5)},
    "window that hides nothing": lambda q, k: {"mask": Padding(PADDED[:, :k]) & Window(99)},
    "chunks": lambda q, k: {"mask": Chunked(7) & Causal()},
    "prefix": lambda q, k: {"mask": Prefix(np.array([4, 9]))},
    "documents": lambda q, k: {"mask": Packed(np.arange(k)[None] // 7), "causal": True},
    "documents and padding": lambda q, k: {
        "mask": Padding(PADDED[:, :k]) & Packed(np.arange(k)[None] // 7)
    },
    "spans": lambda q, k: {
        "mask": Spans(np.arange(2 * q).reshape(2, q) % 5, np.arange(2 * q).reshape(2, q) % 7)
    },
    "booleans": lambda q, k: {"mask": draw(4, 2, 1, q, k) > 1},
    "booleans of heads": lambda q, k: {"mask": draw(4, 6, q, k) > 1, "causal": True},
    "one row of booleans": lambda q, k: {"mask": draw(4, k) > 0, "causal": True},
    "integers": lambda q, k: {"mask": (draw(4, 1, 1, q, k) > 0).astype(np.int64)},
    "floats": lambda q, k: {"mask": draw(4, 2, 6, q, k)},
    "floats with hidden": lambda q, k: {
        "mask": np.where(draw(4, 2, 1, q, k) > 0.5, draw(5, 1, 1, q, k), -INFINITE)
    },
    "lowest floats": lambda q, k: {
        "mask": np.where(draw(4, 2, 1, q, k) > 1, 0, np.finfo(np.float32).min),
        "causal": True,
    },
    "rows of lowest": lambda q, k: {
        "mask": np.where(np.arange(q)[:, None] % 2, 0, np.finfo(np.float32).min) + np.zeros((q, k))
    },
    "floats of keys": lambda q, k: {"mask": draw(4, 2, 1, 1, k), "causal": True},
    "bias": lambda q, k: {"bias": draw(4, 1, 6, q, k), "causal": True},
    "bias of rows": lambda q, k: {"bias": draw(4, 6, q, 1), "mask": Window(6)},
    "bias and floats": lambda q, k: {"bias": draw(4, 6, q, k), "mask": draw(5, 2, 1, q, k)},
    "bias that hides": lambda q, k: {"bias": np.where(draw(4, q, k) > 0, 1.0, -INFINITE)},
    "scale": lambda q, k: {"scale": 3.5, "causal": True},
    "large scores": lambda q, k: {"scale": 20.0, "causal": True},
    "softcap": lambda q, k: {"softcap": 2.0, "causal": True},
    "sinks": lambda q, k: {"sinks": draw(4, 6) * 3, "causal": True},
    "large sinks": lambda q, k: {"sinks": draw(4, 6) * 100},
    "sinks and large scores": lambda q, k: {"sinks": draw(4, 6) * 9, "scale": 15.0},
    "sinks and hidden": lambda q, k: {"sinks": draw(4, 6), "mask": Window(2, offset=-4)},
    "all": lambda q, k: {
        "softcap": 3.0,
        "mask": Padding(PADDED[:, :k]) & Window(7),
        "bias": draw(4, 1, 6, q, k),
        "sinks": draw(5, 6),
        "scale": 0.7,
    },
}
SHAPES = [(30, 30), (5, 30), (1, 30), (30, 5)]


@pytest.mark.parametrize("heads", [(6, 2), (6, 6)], ids=["grouped", "equal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_definition(
    make: Callable[..., Any], name: str, shape: tuple[int, int], heads: tuple[int, int]
) -> None:
    compare(make, inputs(2, *heads, *shape), OPTIONS[name](*shape))


def compare(make: Callable[..., Any], qkv: list[np.ndarray], options: dict[str, Any]) -> None:
    def every(change: Callable[[Any], Any]) -> dict[str, Any]:
        def one(value: Any) -> Any:
            return change(value) if isinstance(value, np.ndarray) else value

        def of_rule(rule: Any) -> Any:
            if isinstance(rule, Padding):
                return Padding(change(rule.visible))
            if isinstance(rule, Packed):
                return Packed(change(rule.documents))
            if isinstance(rule, Spans):
                return Spans(change(rule.start), change(rule.stop))
            if isinstance(rule, Prefix):
                return Prefix(change(rule.length))
            rules = getattr(rule, "rules", None)
            if rules is None:
                return one(rule)
            first, *rest = (of_rule(part) for part in rules)
            for part in rest:
                first = first & part
            return first

        return {key: of_rule(value) for key, value in options.items()}

    output, lse = fused.attention(*map(make, qkv), **every(make))
    exact = every(lambda x: x.astype(np.float64) if x.dtype.kind == "f" else x)
    if exact.get("mask") is not None and isinstance(exact["mask"], np.ndarray):
        mask = exact["mask"]
        if mask.dtype.kind == "f":  # float64 has a lower lowest number
            exact["mask"] = np.where(mask < -1e38, -INFINITE, mask)
    expected, _, expected_lse = definition.attention(*qkv, **exact)
    close(output, expected, 5e-5)
    close(lse, expected_lse, 5e-5)


@pytest.mark.parametrize(
    ("rule", "keys"),
    [
        (None, 700),
        (Causal(), 700),
        (Causal(), 900),
        (Window(70), 700),
        (Window(300), 900),
        (Window(20, ahead=11), 700),
    ],
    ids=str,
)
def test_many_blocks(make: Callable[..., Any], rule: Any, keys: int) -> None:
    compare(make, inputs(1, 2, 1, 700, keys, 8), {"mask": rule})


def test_many_blocks_of_the_rest(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_rows, "TILE", 4096)
    visible = draw(4, 1, 1, 300, 300) > 0
    compare(make, inputs(1, 2, 1, 300, 300, 8), {"mask": visible})
    compare(make, inputs(1, 2, 1, 300, 300, 8), {"mask": visible, "causal": True})
    compare(make, inputs(1, 2, 1, 300, 300, 8), {"softcap": 1.0, "mask": Window(40)})
    compare(make, inputs(1, 2, 1, 300, 300, 8), {"bias": draw(5, 300, 300), "causal": True})


@pytest.mark.parametrize("shape", [(7, 4), (3, 7, 4), (2, 3, 7, 4), (2, 2, 3, 7, 4)], ids=str)
def test_leading_dimensions(make: Callable[..., Any], shape: tuple[int, ...]) -> None:
    qkv = [draw(seed, *shape) for seed in (1, 2, 3)]
    compare(make, qkv, {"causal": True})
    compare(make, qkv, {"mask": draw(4, 7, 7) > 0})
    compare(make, qkv, {"mask": draw(4, *shape[:-2], 7, 7) > 0})
    compare(make, qkv, {"bias": draw(4, *shape[:-2], 7, 7), "softcap": 2.0})


def test_padding_of_three_dimensions(make: Callable[..., Any]) -> None:
    compare(make, [draw(seed, 2, 6, 4) for seed in (1, 2, 3)], {"mask": Padding(PADDED[:, :6])})


@pytest.mark.parametrize("widths", [(8, 4), (4, 8), (8, 0), (0, 3)], ids=str)
def test_values_of_another_width(make: Callable[..., Any], widths: tuple[int, int]) -> None:
    d, dv = widths
    qkv = [draw(1, 2, 4, 5, d), draw(2, 2, 2, 9, d), draw(3, 2, 2, 9, dv)]
    compare(make, qkv, {"causal": True})
    compare(make, qkv, {"sinks": draw(5, 4)})


# Cases from public reports.


def test_a_row_that_sees_nothing(make: Callable[..., Any]) -> None:
    q = make([[1.0, 0.0], [0.0, 1.0]])
    k = make([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    v = make([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    mask = make([[True, True, False], [False, False, False]])
    output, lse = fused.attention(q, k, v, mask)
    close(output, [[1.660477, 2.660477], [0, 0]])
    close(lse, [1.107940, -INFINITE])


@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}, {"dropout": 0.5}, {"bias": True}])
def test_gradients_of_a_row_that_sees_nothing(options: dict[str, Any]) -> None:
    q, k, v = (torch.tensor(x, requires_grad=True) for x in inputs(1, 2, 1, 3, 3, 4))
    if "bias" in options:
        options = {"bias": torch.zeros(2, 3, 3, dtype=torch.float64, requires_grad=True)}
    mask = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    for hidden in (mask, torch.where(mask, 0.0, -INFINITE), torch.where(mask, 0.0, -3e38)):
        output, lse = fused.attention(q, k, v, hidden, **options)
        assert torch.equal(output[:, :, 1], torch.zeros(1, 2, 4, dtype=torch.float64))
        assert lse[0, :, 1].tolist() == [-INFINITE, -INFINITE]
        grads = torch.autograd.grad((output * output).sum(), (q, k, v))
        assert all(bool(grad.isfinite().all()) for grad in grads)
        assert bool((grads[0][:, :, 1] == 0).all())


def test_causal_aligns_the_last(make: Callable[..., Any]) -> None:
    for (n_queries, n_keys), expected in {
        (2, 4): [2, 2.5],
        (4, 2): [0, 0, 1, 1.5],
        (1, 3): [2],
    }.items():
        output, _ = fused.attention(*ramp(make, n_queries, n_keys), causal=True)
        close(output[0, 0, :, 0], expected)
    for (n_queries, n_keys), expected in {
        (2, 4): [1, 1.5],
        (4, 2): [1, 1.5, 1.5, 1.5],
        (1, 3): [1],
    }.items():
        output, _ = fused.attention(*ramp(make, n_queries, n_keys), Causal(offset=0))
        close(output[0, 0, :, 0], expected)


def test_polarity_and_kinds_of_masks(make: Callable[..., Any]) -> None:
    q, k, v = make([[0.0]]), make([[0.0], [0.0]]), make([[0.0], [1.0]])

    def answer(mask: Any) -> float:
        return float(fused.attention(q, k, v, mask)[0][0, 0])

    assert answer(make([True, False])) == 0
    assert answer(make([1, 0])) == 0
    assert answer(make([0.0, -INFINITE])) == 0
    assert answer(make([-INFINITE, 0.0])) == 1
    with pytest.raises(ValueError, match="integer"):
        answer(make([2, 0]))
    with pytest.raises(ValueError, match="ambiguous"):
        answer(make([1.0, 0.0]))


def test_softcap_comes_before_the_mask(make: Callable[..., Any]) -> None:
    q, k, v = make([[4.0]]), make([[1.0], [1.0]]), make([[1.0], [2.0]])
    output, _ = fused.attention(q, k, v, make([0.0, -INFINITE]), scale=1.0, softcap=1.0)
    close(output, [[1.0]])
    for off in (0, None, 0.0):
        close(fused.attention(q, k, v, scale=1.0, softcap=off)[0], [[1.5]])
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="softcap"):
            fused.attention(q, k, v, softcap=wrong)


def test_mask_and_causal_intersect(make: Callable[..., Any]) -> None:
    mask = make([[True, False, True]] * 3)
    output, _ = fused.attention(*ramp(make, 3, 3), mask, causal=True)
    close(output[0, 0, :, 0], [1, 1, 2])


def test_nothing_there(make: Callable[..., Any]) -> None:
    def of(q: tuple[int, ...], k: tuple[int, ...], **options: Any) -> tuple[Any, Any]:
        values = np.arange(float(np.prod(k[:-1]))).reshape(*k[:-1], 1) + np.zeros(3)
        return fused.attention(make(np.zeros(q)), make(np.zeros(k)), make(values), **options)

    output, lse = of((1, 2, 4, 3), (1, 1, 0, 3))
    close(output, np.zeros((1, 2, 4, 3)))
    close(lse, np.full((1, 2, 4), -INFINITE))
    output, lse = of((1, 2, 0, 3), (1, 1, 4, 3), causal=True)
    assert tuple(output.shape) == (1, 2, 0, 3)
    assert tuple(lse.shape) == (1, 2, 0)
    output, lse = of((1, 1, 2, 0), (1, 1, 4, 0))
    close(output, np.full((1, 1, 2, 3), 1.5))
    close(lse, np.full((1, 1, 2), math.log(4)))
    assert tuple(of((0, 2, 3, 4), (0, 2, 3, 4))[0].shape) == (0, 2, 3, 3)


def test_order_of_grouped_heads(make: Callable[..., Any]) -> None:
    def outputs(heads: int, values: list[float]) -> Any:
        q, k = make(np.zeros((1, heads, 1, 1))), make(np.zeros((1, len(values), 1, 1)))
        v = make(np.reshape(np.array(values), (1, len(values), 1, 1)))
        return fused.attention(q, k, v)[0][0, :, 0, 0]

    close(outputs(4, [10.0, 20.0]), [10, 10, 20, 20])
    close(outputs(6, [10.0, 20.0]), [10, 10, 10, 20, 20, 20])
    with pytest.raises(ValueError, match="3 query heads cannot share 2 key heads"):
        outputs(3, [10.0, 20.0])


def test_half_precision_does_not_overflow(make: Callable[..., Any]) -> None:
    q = make(np.full((1, 64), 64.0), "float16")
    k = make(np.stack([np.full(64, 64.0), np.full(64, 60.0)]), "float16")
    v = make([[1.0] * 64, [2.0] * 64], "float16")
    output, lse = fused.attention(q, k, v)
    assert output.dtype == q.dtype
    assert str(lse.dtype).endswith("float32")
    close(output, np.ones((1, 64)))


def test_types_of_masks() -> None:
    q, k, v = (torch.tensor(x).bfloat16() for x in inputs(1, 4, 2, 6, 6, 8))
    expected = fused.attention(q, k, v, causal=True)
    shut = ~torch.ones(6, 6, dtype=torch.bool).tril()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for low in (-INFINITE, torch.finfo(dtype).min):
            mask = torch.zeros(6, 6, dtype=dtype).masked_fill(shut, low)
            output, lse = fused.attention(q, k, v, mask)
            assert output.dtype == torch.bfloat16
            close(output, expected[0], 1e-2)
            close(lse, expected[1], 1e-5)
    output, _ = fused.attention(q, k, v, (~shut).numpy())  # a mask from NumPy
    close(output, expected[0], 1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"mask": Window(5)}, {"softcap": 3.0}], ids=str)
def test_types_of_inputs(dtype: torch.dtype, options: dict[str, Any]) -> None:
    q, k, v = (torch.tensor(x).to(dtype) for x in inputs(1, 4, 2, 9, 9, 8))
    output, lse = fused.attention(q, k, v, **options)
    assert output.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected, _, expected_lse = definition.attention(q.double(), k.double(), v.double(), **options)
    close(output, expected, 1e-10 if dtype == torch.float64 else 2e-2)
    close(lse, expected_lse, 1e-10 if dtype == torch.float64 else 1e-2)


def test_window_counts_itself(make: Callable[..., Any]) -> None:
    output, lse = fused.attention(*ramp(make, 5, 5), Window(3))
    close(output[0, 0, :, 0], [1, 1.5, 2, 3, 4])
    close(lse[0, 0], np.log([1, 2, 3, 3, 3]))


def test_lse_is_natural(make: Callable[..., Any]) -> None:
    close(fused.attention(*ramp(make, 1, 2))[1], [[[math.log(2)]]])


# PyTorch alone.


def test_the_whole_call_can_be_heard() -> None:
    heard: list[Any] = []

    class Ear(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is fused.torch_attention:
                heard.append((args, kwargs))
            return func(*args, **(kwargs or {}))

    q, k, v = (torch.tensor(x) for x in inputs(1, 4, 2, 5, 5, 8))
    sinks, rule = torch.zeros(4, dtype=torch.float64), Window(3)
    with Ear():
        output, lse = fused.attention(q, k, v, rule, softcap=4.0, sinks=sinks)
    ((args, kwargs),) = heard
    assert args[0] is q
    assert args[1] is k
    assert args[2] is v
    assert args[3] is rule
    assert kwargs["softcap"] == 4.0
    assert kwargs["sinks"] is sinks
    again = fused.attention(q, k, v, rule, softcap=4.0, sinks=sinks)
    assert torch.equal(output, again[0])
    assert torch.equal(lse, again[1])


@pytest.mark.parametrize(
    "name",
    ["nothing", "causal", "window", "padding and causal", "softcap", "sinks", "floats"],
)
@pytest.mark.parametrize("shape", [(9, 9), (4, 9), (9, 4)], ids=str)
def test_gradients(name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_rows, "TILE", 500)  # more than one block of rows
    options = OPTIONS[name](*shape)
    leaves = [torch.tensor(x, requires_grad=True) for x in inputs(2, 6, 2, *shape, 4)]
    for key, value in options.items():
        if isinstance(value, Padding) or hasattr(value, "rules"):
            options[key] = Padding(torch.tensor(PADDED[:, : shape[1]]))
        elif isinstance(value, np.ndarray):
            options[key] = torch.tensor(value, requires_grad=key == "sinks")
            leaves += [options[key]] if key == "sinks" else []
    pull = torch.tensor(draw(9, 2, 6, shape[0], 4))
    found = torch.autograd.grad((fused.attention(*leaves[:3], **options)[0] * pull).sum(), leaves)
    expected = torch.autograd.grad(
        (definition.attention(*leaves[:3], **options)[0] * pull).sum(), leaves
    )
    for mine, right in zip(found, expected, strict=True):
        close(mine, right, 1e-9)


def test_gradient_of_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_rows, "TILE", 20)
    q, k, v = (torch.tensor(x) for x in inputs(1, 4, 2, 18, 18, 2))
    bias = torch.tensor(draw(7, 4, 18, 1), requires_grad=True)
    rows = torch.arange(18)[:, None] % 3
    assert torch.autograd.gradcheck(
        lambda b: fused.attention(q, k, v, bias=b * rows + b * torch.arange(18), causal=True)[0],
        bias,
    )


def test_a_row_whose_lse_is_truly_0_stays() -> None:
    """An lse of 0 is also what the kernel gives for a row that sees nothing."""
    q, k, v = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4), torch.ones(1, 1, 3, 4)
    visible = torch.tensor([[True, False, False], [False, False, False], [True, True, False]])
    for mask in (visible, torch.where(visible, 0.0, -INFINITE), torch.where(visible, 0.0, -3e38)):
        output, lse = fused.attention(q, k, v, mask)
        close(output[0, 0, :, 0], [1, 0, 1])
        close(lse[0, 0], [0, -INFINITE, math.log(2)])
    output, lse = fused.attention(q, k, v, visible[1:2].logical_not(), bias=None, causal=True)
    close(lse[0, 0], [0, math.log(2), math.log(3)])


def test_a_float_mask_is_looked_at_again_when_it_has_changed() -> None:
    q, k, v = (torch.as_tensor(x).float() for x in inputs(1, 2, 2, 5, 5))
    mask = torch.zeros(5, 5)
    for _ in range(2):
        fused.attention(q, k, v, mask)
    mask.copy_(torch.ones(5, 5).tril())
    with pytest.raises(ValueError, match="ambiguous"):
        fused.attention(q, k, v, mask)
    compare(torch.as_tensor, [x.numpy() for x in (q, k, v)], {"bias": mask.numpy()})
    with torch.inference_mode():
        uncounted = torch.ones(5, 5).tril()
        for _ in range(2):
            with pytest.raises(ValueError, match="ambiguous"):
                fused.attention(q, k, v, uncounted)


def test_a_rule_of_another_batch_is_refused(make: Callable[..., Any]) -> None:
    q = make(np.zeros((2, 1, 3, 4)))
    three = make(np.zeros((3, 3), dtype=np.int64))
    for rule in (Padding(three == 0), Packed(three), Spans(three, three), Prefix(three[0])):
        with pytest.raises(ValueError, match=r"3 batch elements, q has 2"):
            fused.attention(q, q, q, rule)
    with pytest.raises(ValueError, match=r"Padding of shape \(2, 5\) does not fit"):
        fused.attention(q, q, q, Padding(make(np.ones((2, 5), dtype=bool))))


def test_dropout_drops_weights() -> None:
    q, k = torch.zeros(1, 1, 200, 4), torch.zeros(1, 1, 100, 4)
    v = torch.eye(100)[None, None]
    torch.manual_seed(0)
    output, lse = fused.attention(q, k, v, dropout=0.25)
    dropped, kept = output.unique().tolist()
    assert dropped == 0
    assert kept == pytest.approx(0.01 / 0.75)
    assert float(output.mean()) == pytest.approx(0.01, rel=0.02)
    close(lse, np.full((1, 1, 200), math.log(100)))
    with pytest.raises(ValueError, match="PyTorch"):
        fused.attention(np.zeros((2, 2)), np.zeros((2, 2)), np.zeros((2, 2)), dropout=0.1)


def test_errors_repeat_the_shapes(make: Callable[..., Any]) -> None:
    def call(q: Any, k: Any, v: Any, **options: Any) -> None:
        fused.attention(make(np.zeros(q)), make(np.zeros(k)), make(np.zeros(v)), **options)

    with pytest.raises(ValueError, match=r"q \(2, 3\), k \(2, 4\)"):
        call((2, 3), (2, 4), (2, 4))
    with pytest.raises(ValueError, match=r"k \(5, 3\), v \(4, 3\)"):
        call((2, 3), (5, 3), (4, 3))
    with pytest.raises(ValueError, match=r"q \(2, 1, 2, 3\), k \(1, 1, 5, 3\)"):
        call((2, 1, 2, 3), (1, 1, 5, 3), (1, 1, 5, 3))
    with pytest.raises(ValueError, match=r"\(3, 5\) does not broadcast"):
        call((2, 3), (5, 3), (5, 3), mask=make(np.ones((3, 5), dtype=bool)))
    with pytest.raises(ValueError, match=r"sinks of shape \(2,\)"):
        call((1, 3, 2, 3), (1, 3, 5, 3), (1, 3, 5, 3), sinks=make(np.zeros(2)))
    with pytest.raises(ValueError, match=r"dropout=1\.5"):
        call((2, 3), (5, 3), (5, 3), dropout=1.5)
    with pytest.raises(TypeError, match="one dtype"):
        fused.attention(make([[1.0]]), make([[1.0]], "float64"), make([[1.0]]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["nothing", "causal", "window", "booleans", "bias", "softcap"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_a_gpu(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    qkv = [torch.tensor(x).to(dtype) for x in inputs(2, 6, 2, *shape)]
    options = {
        key: torch.tensor(value) if isinstance(value, np.ndarray) else value
        for key, value in OPTIONS[name](*shape).items()
    }
    there = {key: x.cuda() if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    output, lse = fused.attention(*(x.cuda() for x in qkv), **there)
    expected, expected_lse = fused.attention(*(x.double() for x in qkv), **options)
    close(output.cpu(), expected, 2e-2)
    close(lse.cpu(), expected_lse, 2e-2)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "repeated": lambda x: x[..., :1].expand(x.shape),
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["q", "k", "v", "qkv"])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"mask": Window(3)}, {"bias": torch.randn(1, 6, 8, 8)},
     {"sinks": torch.randn(6)}, {"softcap": 5.0}],
    ids=["plain", "causal", "window", "bias", "sinks", "softcap"],
)  # fmt: skip
def test_any_memory_layout(layout: str, which: str, options: dict[str, Any]) -> None:
    tensors = dict(
        zip("qkv", (torch.as_tensor(x).float() for x in inputs(2, 6, 2, 8, 8)), strict=True)
    )
    for name in which:
        tensors[name] = LAYOUTS[layout](tensors[name])
    leaves = [x.detach().requires_grad_() for x in tensors.values()]
    assert [x.stride() for x in leaves] == [x.stride() for x in tensors.values()]
    output, lse = fused.attention(*leaves, **options)
    output.square().sum().backward()
    wide = [x.detach().double().requires_grad_() for x in tensors.values()]
    wanted = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    expected, _, expected_lse = definition.attention(*wide, **wanted)
    expected.square().sum().backward()
    close(output, expected)
    close(lse, expected_lse)
    for leaf, right in zip(leaves, wide, strict=True):
        close(leaf.grad, right.grad, 2e-5)


def test_half_precision_of_numpy_is_only_read_in_half() -> None:
    q, k, v = (x.astype(np.float16) * 4 for x in inputs(1, 2, 2, 9, 9, 8))
    expected, _, lse = definition.attention(*(x.astype(np.float64) for x in (q, k, v)))
    output, found = fused.attention(q, k, v)
    np.testing.assert_allclose(found, lse, atol=1e-4)
    np.testing.assert_allclose(output, expected, atol=1e-2)
    large = np.full((1, 1), 40000.0, np.float16)
    output, _ = fused.attention(large, np.zeros((1, 1), np.float16), large, scale=2.0)
    assert output[0, 0] == 40000


def test_a_half_precision_mask_and_bias_are_added_in_full() -> None:
    q, k, v = (torch.as_tensor(x).half() for x in inputs(1, 2, 2, 9, 9))
    mask, bias = torch.randn(2, 1, 2, 9, 9).half() * 8
    _, _, lse = definition.attention(
        q.double(), k.double(), v.double(), mask.double(), bias=bias.double()
    )
    for options in ({}, {"softcap": 1e4}):
        close(fused.attention(q, k, v, mask, bias=bias, **options)[1], lse, 1e-4)


def test_a_bias_that_learns_beside_sinks() -> None:
    q, k, v = (torch.as_tensor(x).float() for x in inputs(1, 2, 2, 5, 5))
    bias = torch.randn(1, 2, 5, 5, requires_grad=True)
    fused.attention(q, k, v, bias=bias, sinks=torch.zeros(2))[0].square().sum().backward()
    wide = bias.detach().double().requires_grad_()
    sinks = torch.zeros(2, dtype=torch.float64)
    expected = definition.attention(q.double(), k.double(), v.double(), bias=wide, sinks=sinks)[0]
    expected.square().sum().backward()
    close(bias.grad, wide.grad, 2e-5)
