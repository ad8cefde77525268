"""ONNX operators carried out by jumok's own functions, for the cases that ONNX ships.

Each takes the node's inputs by name and its attributes, and returns the outputs by name.
"""

import math
from typing import Any

from array_api_compat import array_namespace

from jumok.definition import (
    attention,
    join_heads,
    layer_norm,
    rms_norm,
    scores,
    softmax,
    split_heads,
)
from jumok.masks import Causal, Dense, Everything, Mask, Padding, Window
from jumok.positions import rotate

Array = Any
FLOAT64 = 11  # ONNX's number of the type


def run_attention(inputs: dict[str, Array], attributes: dict[str, Any]) -> dict[str, Array]:
    """Attention, opset 23 to 25."""
    q, k, v = inputs["Q"], inputs["K"], inputs["V"]
    xp = array_namespace(q)
    three_dimensional = q.ndim == 3
    if three_dimensional:
        q = split_heads(q, attributes["q_num_heads"])
        k = split_heads(k, attributes["kv_num_heads"])
        v = split_heads(v, attributes["kv_num_heads"])

    # Without a cache the first query stands on the first key; with one, behind the past keys.
    offset = 0
    if "past_key" in inputs:
        offset = inputs["past_key"].shape[-2]
        k = xp.concat([inputs["past_key"], k], axis=-2)
        v = xp.concat([inputs["past_value"], v], axis=-2)

    if "nonpad_kv_seqlen" not in inputs:
        output, qk = _attend(q, k, v, _mask(inputs, k), offset, attributes)
    else:
        # Each sample has its own number of real keys, so its own place for the queries.
        parts = []
        for sample, count in enumerate(inputs["nonpad_kv_seqlen"]):
            here = slice(sample, sample + 1)
            real = xp.arange(k.shape[-2])[None, :] < int(count)
            mask = _of_sample(_mask(inputs, k), here)
            mask = (mask[0] & Padding(real), mask[1])
            start = int(count) - q.shape[-2]
            parts.append(_attend(q[here, ...], k[here, ...], v[here, ...], mask, start, attributes))
        output, qk = (xp.concat(list(part), axis=0) for part in zip(*parts, strict=True))

    return {
        "Y": join_heads(output) if three_dimensional else output,
        "present_key": k,
        "present_value": v,
        "qk_matmul_output": qk,
    }


def _attend(
    q: Array, k: Array, v: Array, mask: tuple[Mask, Array | None], offset: int, attributes: dict
) -> tuple[Array, Array]:
    xp = array_namespace(q)
    rule, bias = mask
    if attributes.get("is_causal", 0):
        rule = rule & Causal(offset=offset)
    left = attributes.get("left_window_size", -1)
    right = attributes.get("right_window_size", -1)
    if left >= 0 or right >= 0:
        # ONNX counts the keys on each side; Window counts the query's own key too.
        size = left + 1 if left >= 0 else q.shape[-2] + k.shape[-2] + abs(offset)
        rule = rule & Window(size, ahead=right if right >= 0 else None, offset=offset)

    dtype = q.dtype
    if attributes.get("softmax_precision") == FLOAT64:
        q, k, v = (xp.astype(x, xp.float64) for x in (q, k, v))
    scale, softcap = attributes.get("scale"), attributes.get("softcap", 0.0)
    output, weights, _ = attention(q, k, v, rule, scale=scale, softcap=softcap, bias=bias)
    stages = (
        lambda: scores(q, k, scale=scale),
        lambda: scores(q, k, scale=scale, softcap=softcap),
        lambda: scores(q, k, mask=rule, scale=scale, softcap=softcap, bias=bias),
        lambda: weights,
    )
    qk = stages[attributes.get("qk_matmul_output_mode", 0)]()
    return xp.astype(output, dtype), xp.astype(qk, dtype)


def _mask(inputs: dict[str, Array], k: Array) -> tuple[Mask, Array | None]:
    """The rule and the bias; a mask shorter than the keys hides the rest."""
    mask = inputs.get("attn_mask")
    if mask is None:
        return Everything(), None
    xp = array_namespace(mask)
    boolean = xp.isdtype(mask.dtype, "bool")
    missing = k.shape[-2] - mask.shape[-1]
    if missing:
        hidden = False if boolean else -math.inf
        rest = xp.full((*mask.shape[:-1], missing), hidden, dtype=mask.dtype)
        mask = xp.concat([mask, rest], axis=-1)
    if mask.ndim == 1:
        mask = mask[None, :]
    return (Dense(mask), None) if boolean else (Everything(), mask)


def _of_sample(mask: tuple[Mask, Array | None], here: slice) -> tuple[Mask, Array | None]:
    def cut(x: Array) -> Array:
        return x[here, ...] if x.ndim == 4 and x.shape[0] > 1 else x

    rule, bias = mask
    if isinstance(rule, Dense):
        rule = Dense(cut(rule.visible))
    return rule, None if bias is None else cut(bias)


def run_rotary_embedding(inputs: dict[str, Array], attributes: dict[str, Any]) -> dict[str, Array]:
    """RotaryEmbedding, opset 23."""
    x, cos, sin = inputs["input"], inputs["cos_cache"], inputs["sin_cache"]
    three_dimensional = x.ndim == 3
    if three_dimensional:
        x = split_heads(x, attributes["num_heads"])
    if "position_ids" in inputs:
        xp = array_namespace(x)
        ids = inputs["position_ids"]
        flat = xp.reshape(ids, (-1,))
        cos, sin = (
            xp.reshape(xp.take(table, flat, axis=0), (*ids.shape, table.shape[-1]))
            for table in (cos, sin)
        )
    y = rotate(x, cos[:, None, ...], sin[:, None, ...], bool(attributes.get("interleaved", 0)))
    return {"output": join_heads(y) if three_dimensional else y}


def run_layer_normalization(inputs: dict[str, Array], attributes: dict) -> dict[str, Array]:
    """LayerNormalization, opset 17: its main output."""
    epsilon = attributes.get("epsilon", 1e-5)
    return {"Y": layer_norm(inputs["X"], inputs["W"], inputs["B"], epsilon=epsilon)}


def run_rms_normalization(inputs: dict[str, Array], attributes: dict) -> dict[str, Array]:
    """RMSNormalization, opset 23."""
    epsilon = attributes.get("epsilon", 1e-5)
    return {"Y": rms_norm(inputs["X"], inputs["W"], epsilon=epsilon)}


def run_softmax(inputs: dict[str, Array], attributes: dict) -> dict[str, Array]:
    """Softmax, opset 13."""
    return {"y": softmax(inputs["x"], axis=attributes.get("axis", -1))}


OPERATORS = {
    "Attention": run_attention,
    "LayerNormalization": run_layer_normalization,
    "RMSNormalization": run_rms_normalization,
    "RotaryEmbedding": run_rotary_embedding,
    "Softmax": run_softmax,
}
