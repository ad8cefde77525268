"""The cases that ONNX ships for its attention operators: a suite nobody here wrote."""

import math
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper

from arrays import LIBRARIES, array, every_library, numbers, same
from onnx_operators import OPERATORS, run_attention

with warnings.catch_warnings():
    # Collecting builds the cases of every operator; some divide by zero on purpose.
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases

    # An "expanded" twin is the same case written in other operators.
    CASES = [
        case
        for case in collect_testcases()
        if case.model.graph.node[0].op_type in OPERATORS and not case.name.endswith("_expanded")
    ]

# ONNX's own runner allows bfloat16 two units in the last place, and float16 and float32 the
# case's tolerance.
BFLOAT16_TOLERANCE = 2**-6


def as_array(xp: Any, x: np.ndarray) -> Any:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    return array(xp, x, x.dtype)


def dtype_name(x: Any) -> str:
    return str(x.dtype).rpartition(".")[-1]


def runs() -> list[Any]:
    """Every case, on each library that has its number type."""
    having = {"float32": LIBRARIES, "float16": ("numpy", "torch"), "bfloat16": ("torch",)}
    return [
        pytest.param(case, LIBRARIES[library], id=f"{case.name}-{library}")
        for case in CASES
        for library in having[case.data_sets[0][0][0].dtype.name]
    ]


@pytest.mark.parametrize(("case", "xp"), runs())
def test_case(case: Any, xp: Any) -> None:
    [node] = case.model.graph.node
    [(inputs, outputs)] = case.data_sets
    names = [name for name in node.input if name]
    given = {name: as_array(xp, x) for name, x in zip(names, inputs, strict=True)}
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}

    found = OPERATORS[node.op_type](given, attributes)

    expected = dict(zip([name for name in node.output if name], outputs, strict=True))
    if node.op_type == "LayerNormalization":
        # The mean and the inverse deviation are for training graphs; jumok gives neither.
        expected = {"Y": expected["Y"]}
    for name, value in expected.items():
        assert dtype_name(found[name]) == value.dtype.name
        rtol = BFLOAT16_TOLERANCE if value.dtype.name == "bfloat16" else case.rtol
        np.testing.assert_allclose(
            numbers(found[name]), value.astype(np.float64), rtol=rtol, atol=case.atol
        )


def test_every_case_is_there():
    found = Counter(case.model.graph.node[0].op_type for case in CASES)
    assert found["Attention"] >= 93
    assert found["RotaryEmbedding"] >= 8
    assert found["LayerNormalization"] >= 19
    assert found["RMSNormalization"] >= 19
    assert found["Softmax"] >= 7
    assert all(len(case.model.graph.node) == 1 for case in CASES)


def ramp(xp: Any, n_queries: int, n_keys: int) -> dict[str, Any]:
    """Q = K = 0 and V = 1, 2, …: each output is the mean of the visible values."""
    return {
        "Q": xp.zeros((1, 1, n_queries, 4), dtype=xp.float32),
        "K": xp.zeros((1, 1, n_keys, 4), dtype=xp.float32),
        "V": array(xp, np.arange(1, n_keys + 1).reshape(1, 1, n_keys, 1), "float32"),
    }


def means(outputs: dict[str, Any]) -> list[float]:
    return numbers(outputs["Y"])[..., 0].ravel().tolist()


@every_library
def test_three_dimensional_inputs_are_transposed_too(xp: Any) -> None:
    x = array(xp, np.arange(8).reshape(1, 2, 4), "float32")
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    y = run_attention({"Q": x / 10, "K": x / 10, "V": x}, heads)["Y"]
    same(y[0, 0, :3], [2.02828, 3.02828, 4.14119], 1e-5)


@every_library
def test_nonpad_counts_the_keys(xp: Any) -> None:
    causal = {"is_causal": 1}
    found = run_attention({**ramp(xp, 2, 6), "nonpad_kv_seqlen": xp.asarray([4])}, causal)
    assert means(found) == pytest.approx([2, 2.5])
    found = run_attention({**ramp(xp, 3, 6), "nonpad_kv_seqlen": xp.asarray([2])}, causal)
    assert means(found) == pytest.approx([0, 1, 1.5])


@every_library
def test_causal_is_first_to_first_without_a_cache_and_last_to_last_with_one(xp: Any) -> None:
    causal = {"is_causal": 1}
    assert means(run_attention(ramp(xp, 2, 4), causal)) == pytest.approx([1, 1.5])
    whole = ramp(xp, 2, 4)
    cached = {
        "Q": whole["Q"],
        "K": whole["K"][..., 2:, :],
        "V": whole["V"][..., 2:, :],
        "past_key": whole["K"][..., :2, :],
        "past_value": whole["V"][..., :2, :],
    }
    assert means(run_attention(cached, causal)) == pytest.approx([2, 2.5])


@every_library
@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (2, 0, [1, 1.5, 2, 3, 4]),
        (1, 2, [2, 2.5, 3.5, 4, 4.5]),
        (-1, 1, [1.5, 2, 2.5, 3, 3]),
        (0, -1, [3, 3.5, 4, 4.5, 5]),
        (-1, -1, [3] * 5),
    ],
)
def test_window_sides_count_keys_without_the_querys_own(
    xp: Any, left: int, right: int, expected: list[float]
) -> None:
    window = {"left_window_size": left, "right_window_size": right}
    assert means(run_attention(ramp(xp, 5, 5), window)) == pytest.approx(expected)


@every_library
def test_each_stage_of_the_scores_can_be_had(xp: Any) -> None:
    # q·k = 4 for the first key and 8 for the second; scale 1/2, cap 2, bias 1.
    given = {
        "Q": array(xp, [[[[2.0, 2.0, 2.0, 2.0]]]], "float32"),
        "K": array(xp, [[[[0.5] * 4, [1.0] * 4]]], "float32"),
        "V": array(xp, [[[[1.0], [2.0]]]], "float32"),
        "attn_mask": array(xp, [[1.0, -math.inf]], "float32"),
    }
    capped = [2 * math.tanh(1), 2 * math.tanh(2)]
    stages = [[2, 4], capped, [capped[0] + 1, -math.inf], [1, 0]]
    for mode, expected in enumerate(stages):
        found = run_attention(given, {"softcap": 2.0, "qk_matmul_output_mode": mode})
        same(found["qk_matmul_output"], [[[expected]]], 1e-6)
