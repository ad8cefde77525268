"""What attention is, in array code that reads like the formula.

Every function here is short, slow and plain: it is what the fast paths are tested against. It
runs on arrays of any array-API library (NumPy, PyTorch, JAX, CuPy, array-api-strict), in
float64 where it gets float64; numbers of half precision are computed in float32 and the result
is rounded once, at the end. Where the library has gradients they pass, and stay finite.

Shapes: B batch, H heads (Hq of queries, Hk of keys and values), T tokens (Tq, Tk), D head_dim
(Dv of values), E emb_dim, F width of the feed-forward network; … any leading dimensions.
Weight matrices are (in, out): ``x @ weight + bias``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from jumok.masks import Causal, Mask, join, read_mask

Array = Any
Layer = Callable[[Array], Array]

__all__ = [
    "attention",
    "causal_mask",
    "dropout",
    "erf",
    "feed_forward",
    "gelu",
    "gelu_tanh",
    "join_heads",
    "layer_norm",
    "linear",
    "multi_head_attention",
    "post_norm",
    "pre_norm",
    "relu",
    "residual",
    "rms_norm",
    "scores",
    "silu",
    "softmax",
    "split_heads",
    "transformer_block",
]


# Attention


def softmax(x: Array, axis: int = -1) -> Array:
    """``exp(x_i) / Σ_j exp(x_j)`` along one axis; where all are −∞ the answer is 0.

    The maximum is subtracted first, so nothing overflows.

    Args:
        x: floating-point array of any shape.
        axis: the axis that sums to 1.

    Returns:
        The same shape and dtype.

    Raises:
        TypeError: x is no floating-point array.
    """
    xp = _namespace(x=x)
    weights, _ = _softmax_and_lse(_widen(xp, x), axis)
    return xp.astype(weights, x.dtype)


def scores(
    q: Array,
    k: Array,
    *,
    mask: Mask | Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
) -> Array:
    """How well each key answers each query: the logits that the softmax takes.

    ``s = cap(scale · q kᵀ) + bias``, −∞ where the mask hides the key, with
    ``cap(s) = softcap · tanh(s / softcap)``. The arguments are those of `attention`.

    Returns:
        (…, Hq, Tq, Tk), float64 for float64 and float32 otherwise.
    """
    xp = _namespace(q=q, k=k)
    _check_shapes(q, k)
    if softcap is not None and not 0 <= softcap < math.inf:
        raise ValueError(f"softcap={softcap}: it is a positive number, or None or 0 for none")
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    k = _for_each_query_head(xp, k, q)
    q, k = _widen(xp, q), _widen(xp, k)

    s = xp.matmul(q * scale, xp.matrix_transpose(k))
    if softcap:
        s = softcap * xp.tanh(s / softcap)

    rule, mask_bias = read_mask(_like(xp, mask, q))
    for name, extra in (("mask", mask_bias), ("bias", _like(xp, bias, q))):
        if extra is not None:
            extra = _fit(name, extra, s.shape)
            hidden = extra <= xp.finfo(extra.dtype).min / 2
            s = xp.where(hidden, -math.inf, s + xp.astype(extra, s.dtype))
    rule = join(rule, Causal() if causal else None)
    visible = _fit("mask", rule.dense(n_queries, n_keys, q), s.shape)
    return xp.where(visible, s, -math.inf)


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | Array | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Scaled dot-product attention: ``softmax(q kᵀ / √D) v`` (Vaswani et al. 2017, eq. 1).

    Each query takes a mixture of the values; a key counts by how well it answers the query.
    A query that may see no key gets weights 0, output 0 and lse −∞.

    Args:
        q: (…, Hq, Tq, D), or (T, D).
        k: (…, Hk, Tk, D). Hq is a multiple of Hk: query head h reads key head
            ``h // (Hq // Hk)`` (grouped queries, Ainslie et al. 2023).
        v: (…, Hk, Tk, Dv).
        mask: who sees whom, broadcastable to (…, Hq, Tq, Tk): booleans (`True` = may attend),
            integers 1 and 0 (the same), floats (added to the scores; −∞ and values down to
            half of the smallest finite number hide the key), or a rule from `jumok.masks`.
        causal: no query sees a later key. The *last* query stands on the *last* key.
        scale: what the products are multiplied by; `None` for 1/√D.
        softcap: bends scores into ±softcap before mask and bias (Gemma 2); `None` or 0: off.
        bias: added to the scores, broadcastable to (…, Hq, Tq, Tk).
        sinks: (Hq,), one more logit per head that takes weight and gives no value.

    Returns:
        ``(output, weights, lse)``: output (…, Hq, Tq, Dv) in q's dtype; weights
        (…, Hq, Tq, Tk), each row summing to 1 (less with sinks, 0 if it sees nothing); lse
        (…, Hq, Tq) = ``ln Σ_j exp(score_j)``, so that ``weights = exp(scores − lse)``. The last
        two are float64 for float64 and float32 otherwise.

    Raises:
        ValueError: shapes that don't belong together, a bad softcap, an ambiguous mask.
        TypeError: arrays of several libraries or dtypes.
    """
    xp = _namespace(q=q, k=k, v=v)
    _check_shapes(q, k, v)
    s = scores(q, k, mask=mask, causal=causal, scale=scale, softcap=softcap, bias=bias)
    if sinks is not None:
        s = xp.concat([s, _sink_column(xp, sinks, s)], axis=-1)
    weights, lse = _softmax_and_lse(s, axis=-1)
    weights = weights[..., : k.shape[-2]]
    output = xp.matmul(weights, _widen(xp, _for_each_query_head(xp, v, q)))
    return xp.astype(output, q.dtype), weights, lse


def causal_mask(n: int) -> Array:
    """``mask[i, j] = j ≤ i``: no token sees a later one.

    Args:
        n: number of tokens T.

    Returns:
        NumPy booleans (T, T), `True` = may attend. `attention` takes it with arrays of any
        library.
    """
    return np.tri(n, dtype=np.bool_)


# Heads


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """``x @ weight + bias``: x (…, in), weight (in, out), bias (out,) → (…, out)."""
    xp = _namespace(x=x, weight=weight)
    if x.shape[-1] != weight.shape[0]:
        raise ValueError(
            f"x {tuple(x.shape)} has width {x.shape[-1]}, but weight {tuple(weight.shape)} takes "
            f"{weight.shape[0]}: weights are (in, out); a torch.nn.Linear's needs a transpose"
        )
    y = xp.matmul(_widen(xp, x), _widen(xp, weight))
    if bias is not None:
        y = y + _widen(xp, bias)
    return xp.astype(y, x.dtype)


def split_heads(x: Array, n_heads: int) -> Array:
    """(…, T, H·D) → (…, H, T, D): head h has the h-th run of D components."""
    xp = _namespace(x=x)
    if x.shape[-1] % n_heads:
        raise ValueError(f"width {x.shape[-1]} of {tuple(x.shape)} has no {n_heads} equal heads")
    x = xp.reshape(x, (*x.shape[:-1], n_heads, x.shape[-1] // n_heads))
    return xp.moveaxis(x, -2, -3)


def join_heads(x: Array) -> Array:
    """(…, H, T, D) → (…, T, H·D): undoes `split_heads`."""
    xp = _namespace(x=x)
    x = xp.moveaxis(x, -3, -2)
    return xp.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def multi_head_attention(
    x: Array,
    qkv_weight: Array,
    output_weight: Array,
    n_heads: int,
    *,
    n_kv_heads: int | None = None,
    qkv_bias: Array | None = None,
    output_bias: Array | None = None,
    turn: Layer | None = None,
    **how: Any,
) -> tuple[Array, Array]:
    """Self-attention of several heads at once (Vaswani et al. 2017, section 3.2.2).

    ``[q, k, v] = x W_qkv``, one matrix for all; each is split into heads, every head attends,
    the heads are joined again and projected: ``join(attention(q, k, v)) W_O``.

    Args:
        x: (…, T, E).
        qkv_weight: (E, (Hq + 2·Hk)·D): the columns of all query heads, of all key heads, of
            all value heads.
        output_weight: (Hq·D, E).
        n_heads: Hq.
        n_kv_heads: Hk; `None` for as many as Hq.
        qkv_bias: ((Hq + 2·Hk)·D,).
        output_bias: (E,).
        turn: what is done to queries and keys (…, H, T, D) after the split, such as a rotation
            by their position (`jumok.positions.rotate`).
        **how: mask, causal, scale, softcap, bias, sinks, as `attention` takes them.

    Returns:
        ``(output, weights)``: (…, T, E) in x's dtype and (…, Hq, T, T).

    Raises:
        ValueError: widths that have no such heads; and what `attention` raises.
    """
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    n_columns = n_heads + 2 * n_kv_heads
    if qkv_weight.shape[-1] % n_columns:
        raise ValueError(
            f"qkv_weight {tuple(qkv_weight.shape)} has {qkv_weight.shape[-1]} columns, which "
            f"{n_heads} query heads and twice {n_kv_heads} key heads cannot share equally"
        )
    heads = split_heads(linear(x, qkv_weight, qkv_bias), n_columns)
    q = heads[..., :n_heads, :, :]
    k = heads[..., n_heads : n_heads + n_kv_heads, :, :]
    v = heads[..., n_heads + n_kv_heads :, :, :]
    if turn is not None:
        q, k = turn(q), turn(k)
    mixed, weights, _ = attention(q, k, v, **how)
    return linear(join_heads(mixed), output_weight, output_bias), weights


# The rest of the block


def layer_norm(
    x: Array, weight: Array, bias: Array | None = None, *, epsilon: float = 1e-5
) -> Array:
    """``(x − mean) / √(variance + ε) · weight + bias`` (Ba et al. 2016).

    Mean and (biased) variance are taken over the last ``weight.ndim`` dimensions.

    Args:
        x: (…, E).
        weight: (E,), or more of the last dimensions of x.
        bias: the same shape.
        epsilon: keeps the root from 0.

    Returns:
        The shape and dtype of x.

    Raises:
        ValueError: weight or bias have not the shape of x's last dimensions.
    """
    xp = _namespace(x=x, weight=weight)
    axes = _trailing_axes(x, weight=weight, bias=bias)
    wide = _widen(xp, x)
    centred = wide - xp.mean(wide, axis=axes, keepdims=True)
    variance = xp.mean(centred * centred, axis=axes, keepdims=True)
    y = centred / xp.sqrt(variance + epsilon) * _widen(xp, weight)
    if bias is not None:
        y = y + _widen(xp, bias)
    return xp.astype(y, x.dtype)


def rms_norm(x: Array, weight: Array, *, epsilon: float = 1e-5) -> Array:
    """``x / √(mean(x²) + ε) · weight`` (Zhang & Sennrich 2019).

    The mean is taken over the last ``weight.ndim`` dimensions. Arguments, result and errors
    are those of `layer_norm`.
    """
    xp = _namespace(x=x, weight=weight)
    axes = _trailing_axes(x, weight=weight)
    wide = _widen(xp, x)
    mean_square = xp.mean(wide * wide, axis=axes, keepdims=True)
    return xp.astype(wide / xp.sqrt(mean_square + epsilon) * _widen(xp, weight), x.dtype)


def feed_forward(
    x: Array,
    up_weight: Array,
    down_weight: Array,
    activation: Layer,
    *,
    gate_weight: Array | None = None,
    up_bias: Array | None = None,
    down_bias: Array | None = None,
) -> Array:
    """Two linear maps with a bend between them, for every token by itself.

    ``activation(x W_up + b_up) W_down + b_down`` (Vaswani et al. 2017, section 3.3), or with a
    gate ``(activation(x W_gate) · (x W_up + b_up)) W_down + b_down`` (Shazeer 2020); SwiGLU is
    the gate with `silu`.

    Args:
        x: (…, E).
        up_weight: (E, F).
        down_weight: (F, E).
        activation: `gelu`, `gelu_tanh`, `relu`, `silu`, or any function of one array.
        gate_weight: (E, F).
        up_bias: (F,).
        down_bias: (E,).

    Returns:
        (…, E) in x's dtype.
    """
    up = linear(x, up_weight, up_bias)
    bent = activation(up) if gate_weight is None else activation(linear(x, gate_weight)) * up
    return linear(bent, down_weight, down_bias)


def relu(x: Array) -> Array:
    """``max(x, 0)``."""
    return _namespace(x=x).where(x > 0, x, 0.0)


def silu(x: Array) -> Array:
    """``x / (1 + e^(−x))``, also called swish (Elfwing et al. 2017)."""
    xp = _namespace(x=x)
    wide = _widen(xp, x)
    # Both exponents are at most 0, so neither overflows.
    return xp.astype(
        wide * xp.exp(xp.where(wide < 0, wide, 0.0)) / (1 + xp.exp(-xp.abs(wide))), x.dtype
    )


def gelu(x: Array) -> Array:
    """``x · Φ(x) = x/2 · (1 + erf(x/√2))``, exact (Hendrycks & Gimpel 2016; BERT)."""
    xp = _namespace(x=x)
    wide = _widen(xp, x)
    return xp.astype(wide / 2 * (1 + erf(wide / math.sqrt(2))), x.dtype)


def gelu_tanh(x: Array) -> Array:
    """``x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))``, the usual approximation (GPT-2)."""
    xp = _namespace(x=x)
    wide = _widen(xp, x)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return xp.astype(wide / 2 * (1 + xp.tanh(inner)), x.dtype)


def erf(x: Array) -> Array:
    """The error function, ``2/√π ∫₀ˣ e^(−t²) dt``, which the array standard lacks.

    ``2/√π · e^(−x²) · Σ_n 2ⁿ x^(2n+1) / (1·3·5⋯(2n+1))``: all terms have one sign, so nothing
    cancels. Beyond ±6 it is ±1 to the last bit of float64.
    """
    xp = _namespace(x=x)
    wide = xp.clip(xp.astype(x, xp.float64), -6.0, 6.0)
    term = total = wide
    for n in range(1, 128):
        term = term * (2 * wide * wide / (2 * n + 1))
        total = total + term
    return xp.astype(2 / math.sqrt(math.pi) * xp.exp(-wide * wide) * total, x.dtype)


def dropout(x: Array, keep: Array, rate: float) -> Array:
    """``x / (1 − rate)`` where ``keep`` is true, 0 elsewhere (Srivastava et al. 2014).

    Array libraries share no random numbers, so the draw is given.

    Args:
        x: any shape.
        keep: booleans that broadcast to x.
        rate: the share that is dropped on average, from 0 up to, but not, 1.

    Raises:
        ValueError: a rate outside [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate={rate}: the share to drop is at least 0 and below 1")
    return _namespace(x=x).where(keep, x / (1 - rate), 0.0)


def residual(x: Array, sublayer: Layer) -> Array:
    """``x + sublayer(x)`` (He et al. 2015)."""
    return x + sublayer(x)


def pre_norm(x: Array, norm: Layer, sublayer: Layer) -> Array:
    """``x + sublayer(norm(x))``: GPT-2, Llama."""
    return residual(x, lambda inner: sublayer(norm(inner)))


def post_norm(x: Array, norm: Layer, sublayer: Layer) -> Array:
    """``norm(x + sublayer(x))``: the 2017 Transformer, BERT."""
    return norm(residual(x, sublayer))


def transformer_block(
    x: Array,
    attend: Layer,
    attend_norm: Layer,
    feed: Layer,
    feed_norm: Layer,
    order: Callable[[Array, Layer, Layer], Array] = pre_norm,
) -> Array:
    """One block: tokens look at each other, then each thinks by itself.

    ``x = order(x, attend_norm, attend); x = order(x, feed_norm, feed)``. One block of GPT-2::

        transformer_block(
            x,
            lambda x: multi_head_attention(x, w_qkv, w_out, n_heads=12, causal=True)[0],
            lambda x: layer_norm(x, weight_1, bias_1),
            lambda x: feed_forward(x, w_up, w_down, gelu_tanh),
            lambda x: layer_norm(x, weight_2, bias_2),
        )

    Args:
        x: (…, T, E).
        attend: (…, T, E) → (…, T, E), `multi_head_attention`; with `dropout` in training.
        attend_norm: `layer_norm` or `rms_norm` with its weights.
        feed: `feed_forward` with its weights.
        feed_norm: as ``attend_norm``.
        order: `pre_norm` or `post_norm`.

    Returns:
        (…, T, E).
    """
    x = order(x, attend_norm, attend)
    return order(x, feed_norm, feed)


# Inside


def _softmax_and_lse(x: Array, axis: int) -> tuple[Array, Array]:
    xp = array_namespace(x)
    if x.shape[axis] == 0:
        return x, xp.sum(x, axis=axis) - math.inf
    largest = xp.max(x, axis=axis, keepdims=True)
    # A row of only −∞: subtract 0, not −∞, and divide by 1, not 0. Nothing is NaN on the way,
    # so no gradient is either; a `where` after the fact would still pass NaN backwards.
    largest = xp.where(largest == -math.inf, 0.0, largest)
    parts = xp.exp(x - largest)
    total = xp.sum(parts, axis=axis, keepdims=True)
    empty = total == 0
    total = xp.where(empty, 1.0, total)
    lse = xp.where(empty, -math.inf, largest + xp.log(total))
    return parts / total, xp.squeeze(lse, axis=axis)


def _for_each_query_head(xp: Any, kv: Array, q: Array) -> Array:
    if q.ndim < 3 or kv.shape[-3] == q.shape[-3]:
        return kv
    group = q.shape[-3] // kv.shape[-3]
    head = xp.arange(q.shape[-3], device=device(kv)) // group
    return xp.take(kv, head, axis=-3)


def _sink_column(xp: Any, sinks: Array, s: Array) -> Array:
    n_heads = s.shape[-3] if s.ndim > 2 else 1
    if tuple(sinks.shape) != (n_heads,):
        raise ValueError(
            f"sinks has shape {tuple(sinks.shape)}; it is one number per query head: ({n_heads},)"
        )
    column = xp.astype(_like(xp, sinks, s), s.dtype)
    column = xp.reshape(column, (n_heads, 1, 1) if s.ndim > 2 else (1, 1))
    return xp.broadcast_to(column, (*s.shape[:-1], 1))


def _like(xp: Any, x: Any, like: Array) -> Any:
    """Any array, or nested list, as an array of the library and device of ``like``."""
    if x is None or isinstance(x, Mask):
        return x
    if type(x) is type(like) and device(x) == device(like):
        return x  # with its gradient
    if isinstance(x, np.ndarray):
        x = x.copy()  # PyTorch warns of memory that may not be written, such as a broadcast mask.
    return xp.asarray(x, device=device(like))


def _widen(xp: Any, x: Array) -> Array:
    return x if x.dtype == xp.float64 else xp.astype(x, xp.float32)


def _fit(name: str, x: Array, shape: tuple[int, ...]) -> Array:
    """Leave out the dimensions that a rule has, (B, H, Tq, Tk), and these scores have not."""
    given = tuple(x.shape)
    if len(shape) == 3 and x.ndim == 4 and x.shape[1] == 1:
        x = x[:, 0, ...]
    while x.ndim > len(shape) and x.shape[0] == 1:
        x = x[0, ...]
    pairs = zip(reversed(x.shape), reversed(shape), strict=False)
    if x.ndim > len(shape) or any(have not in (1, want) for have, want in pairs):
        raise ValueError(
            f"{name} of shape {given} does not broadcast to the scores, {tuple(shape)} = "
            f"(…, queries, keys)"
        )
    return x


def _namespace(**arrays: Array) -> Any:
    """The one library of all arrays, checked to be of one floating-point type."""
    kinds = ", ".join(f"{name}: {type(x).__name__}" for name, x in arrays.items())
    try:
        xp = array_namespace(*arrays.values())
    except TypeError:
        raise TypeError(f"expected arrays of one library; got {kinds}") from None
    dtypes = {name: x.dtype for name, x in arrays.items()}
    listed = ", ".join(f"{name}: {dtype}" for name, dtype in dtypes.items())
    if len(set(dtypes.values())) > 1:
        raise TypeError(f"expected arrays of one dtype; got {listed}. Cast them to one")
    if not all(xp.isdtype(dtype, "real floating") for dtype in dtypes.values()):
        raise TypeError(f"expected floating-point numbers; got {listed}. Cast to float32")
    return xp


def _trailing_axes(x: Array, **parts: Array | None) -> tuple[int, ...]:
    n = 1
    for name, part in parts.items():
        if part is None:
            continue
        n = part.ndim
        if n == 0 or tuple(part.shape) != tuple(x.shape[-n:]):
            raise ValueError(
                f"{name} of shape {tuple(part.shape)} is not the last dimensions of x "
                f"{tuple(x.shape)}"
            )
    return tuple(range(-n, 0))


def _check_shapes(q: Array, k: Array, v: Array | None = None) -> None:
    named = [("q", q), ("k", k)] if v is None else [("q", q), ("k", k), ("v", v)]
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named)
    problem = ""
    if q.ndim < 2 or any(x.ndim != q.ndim for _, x in named):
        problem = "all need the same number of dimensions, at least 2: (tokens, head_dim)"
    elif q.shape[-1] != k.shape[-1]:
        problem = f"queries have head_dim {q.shape[-1]} and keys {k.shape[-1]}: make them equal"
    elif v is not None and k.shape[-2] != v.shape[-2]:
        problem = f"there are {k.shape[-2]} keys and {v.shape[-2]} values: one value for each key"
    elif v is not None and k.shape[:-2] != v.shape[:-2]:
        problem = "keys and values need the same heads and batch"
    elif q.ndim > 3 and q.shape[:-3] != k.shape[:-3]:
        problem = "queries and keys need the same batch"
    elif q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        n_heads, n_kv_heads = q.shape[-3], k.shape[-3]
        if n_kv_heads == 0 or n_heads % n_kv_heads:
            problem = (
                f"{n_heads} query heads cannot share {n_kv_heads} key heads: dimension -3 of q "
                f"must be a multiple of that of k"
            )
    if problem:
        raise ValueError(f"{shapes}: {problem}")
