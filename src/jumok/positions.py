"""Order: attention by itself sees a set of tokens; these tell it who stands where.

* `sinusoidal` is added to the embeddings (Vaswani et al. 2017).
* Rotary positions turn queries and keys (Su et al. 2021): `rotary_frequencies` once per
  model, `rotary_phases` once per forward, `rotate` once per query and key.
* `alibi_bias` and `t5_buckets` make a bias that is added to the scores.

Wherever positions of queries and keys are counted, the *last* query stands on the *last* key.
Tables come as NumPy float32, formed in float64; `rotary_phases`, `rotate` and `t5_buckets`
work on arrays of any array-API library, and none is imported here.

Shapes: B batch, H heads, T tokens (Tq, Tk), D head_dim, E emb_dim, R rotated part of D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, device

Array = Any

__all__ = [
    "LinearScaling",
    "Llama3Scaling",
    "Scaling",
    "YarnScaling",
    "alibi_bias",
    "alibi_slopes",
    "rotary_frequencies",
    "rotary_phases",
    "rotate",
    "sinusoidal",
    "t5_buckets",
]


def sinusoidal(n_tokens: int, emb_dim: int) -> Array:
    """Sines and cosines of many frequencies, to be added to the embeddings.

    ``table[t, 2i] = sin(t / 10000^(2i/E))``, ``table[t, 2i+1] = cos(t / 10000^(2i/E))``
    (Vaswani et al. 2017, section 3.5).

    Args:
        n_tokens: number of positions T, counted from 0.
        emb_dim: width E, even.

    Returns:
        NumPy float32 (T, E).

    Raises:
        ValueError: ``emb_dim`` is odd or below 2.
    """
    _check_even("emb_dim", emb_dim)
    phase = np.arange(n_tokens)[:, None] * _frequencies(emb_dim, 10_000.0)
    return np.stack([np.sin(phase), np.cos(phase)], axis=-1).reshape(n_tokens, emb_dim).astype("f4")


class Scaling(Protocol):
    """How the frequencies of a trained model are changed to reach a longer context."""

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by (`rotary_phases` takes it)."""
        ...

    def scale(self, frequencies: Array, theta: float) -> Array:
        """New frequencies (R/2,) for old ones, NumPy float64."""
        ...


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: every frequency divided by ``factor`` (Chen et al. 2023)."""

    factor: float

    @property
    def magnitude(self) -> float:
        return 1.0

    def scale(self, frequencies: Array, theta: float) -> Array:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Divide low frequencies, keep high ones, blend between (Llama 3.1).

    Args:
        factor: what the low frequencies are divided by.
        low_frequency_factor: frequencies with fewer turns than this over the original
            context are divided.
        high_frequency_factor: those with more turns than this are kept.
        original_context: number of tokens that the model was first trained on.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int

    @property
    def magnitude(self) -> float:
        return 1.0

    def scale(self, frequencies: Array, theta: float) -> Array:
        turns = self.original_context * frequencies / (2 * math.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: divide low frequencies, keep high ones, sharpen the scores (Peng et al. 2023).

    Args:
        factor: what the low frequencies are divided by.
        original_context: number of tokens that the model was first trained on.
        beta_fast: frequencies with more turns than this over the original context are kept.
        beta_slow: those with fewer turns than this are divided.
        truncate: round the two borders outwards to whole frequencies.
        attention_factor: the magnitude, if the checkpoint names it.
        mscale: with ``mscale_all_dim``, the magnitude as DeepSeek writes it: the ratio of
            ``0.1 · m · ln(factor) + 1`` for the two.
        mscale_all_dim: see ``mscale``.
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        growth = 0.1 * math.log(max(self.factor, 1.0))
        if self.mscale and self.mscale_all_dim:
            return (growth * self.mscale + 1) / (growth * self.mscale_all_dim + 1)
        return growth + 1

    def scale(self, frequencies: Array, theta: float) -> Array:
        half = len(frequencies)

        def index(turns: float) -> float:
            # The frequency theta^(-i/half) that makes so many turns over the original context.
            return half * math.log(self.original_context / (2 * math.pi * turns)) / math.log(theta)

        low, high = index(self.beta_fast), index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * half - 1)
        divided = np.clip((np.arange(half) - low) / max(high - low, 0.001), 0, 1)
        return frequencies * (1 - divided + divided / self.factor)


def rotary_frequencies(head_dim: int, theta: float, scaling: Scaling | None = None) -> Array:
    """Radians per token of each rotated pair: ``theta^(-2i/R)``, i = 0 … R/2 − 1.

    Args:
        head_dim: number of rotated components R: head_dim D, or less where a model turns
            only a part of each head.
        theta: the base, 10,000 in the paper (Su et al. 2021).
        scaling: `LinearScaling`, `Llama3Scaling` or `YarnScaling`. Pass its ``magnitude``
            on to `rotary_phases`.

    Returns:
        NumPy float32 (R/2,).

    Raises:
        ValueError: ``head_dim`` is odd or below 2.
    """
    _check_even("head_dim", head_dim)
    frequencies = _frequencies(head_dim, theta)
    if scaling is not None:
        frequencies = scaling.scale(frequencies, theta)
    return frequencies.astype(np.float32)


def rotary_phases(
    positions: Array, frequencies: Array, magnitude: float = 1.0
) -> tuple[Array, Array]:
    """Cosine and sine of ``position · frequency``, formed in float32.

    Args:
        positions: integers of any shape, (T,) or (B, T).
        frequencies: (R/2,), from `rotary_frequencies`.
        magnitude: what both are multiplied by (`YarnScaling.magnitude`).

    Returns:
        ``(cos, sin)``, float32 (…, T, R/2), in the library and on the device of ``positions``.
    """
    xp = array_namespace(positions)
    frequencies = xp.asarray(frequencies, dtype=xp.float32, device=device(positions))
    phase = xp.astype(positions, xp.float32)[..., None] * frequencies
    cos, sin = xp.cos(phase), xp.sin(phase)
    return (cos, sin) if magnitude == 1.0 else (cos * magnitude, sin * magnitude)


def rotate(x: Array, cos: Array, sin: Array, interleaved: bool = False) -> Array:
    """Turn pairs of components by their phase (Su et al. 2021, equation 34).

    ``(a, b) → (a·cos − b·sin, b·cos + a·sin)``. The pairs are components (i, i + R/2) in the
    half-split layout (Llama, GPT-NeoX) and (2i, 2i + 1) in the interleaved one (the paper,
    GPT-J). Components from R on are left as they are.

    Args:
        x: queries or keys, (…, T, D).
        cos: (T, R/2), or one that broadcasts and has as many dimensions as ``x``, such as
            (B, 1, T, R/2) for x (B, H, T, D). Cast to x's dtype if it has another.
        sin: the same shape.
        interleaved: which layout.

    Returns:
        (…, T, D) in x's dtype.

    Raises:
        ValueError: the shapes don't fit.
    """
    half = cos.shape[-1]
    _check_rotation(x, cos, sin)
    xp = array_namespace(x)
    if cos.dtype != x.dtype:
        cos, sin = xp.astype(cos, x.dtype), xp.astype(sin, x.dtype)
    if interleaved:
        a, b = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        a, b = x[..., :half], x[..., half : 2 * half]
    # In place on the new arrays: memory is most of the cost.
    turned_a, turned_b = a * cos, b * cos
    turned_a -= b * sin
    turned_b += a * sin
    if interleaved:
        pairs = xp.stack([turned_a, turned_b], axis=-1)
        parts = [xp.reshape(pairs, (*turned_a.shape[:-1], 2 * half))]
    else:
        parts = [turned_a, turned_b]
    if x.shape[-1] > 2 * half:
        parts.append(x[..., 2 * half :])
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)


def alibi_slopes(n_heads: int) -> Array:
    """One slope per head, ``2^(−8h/H)`` for h = 1 … H (Press et al. 2021).

    Where H is no power of two: the slopes of the power of two below it, then every second
    slope of the power of two above, as many as are missing.

    Args:
        n_heads: number of heads H, at least 1.

    Returns:
        NumPy float32 (H,).

    Raises:
        ValueError: ``n_heads`` is below 1.
    """
    if n_heads < 1:
        raise ValueError(f"n_heads={n_heads}: ALiBi needs at least one head")
    power = 1 << (n_heads.bit_length() - 1)
    first = 2.0 ** (-8 / power * np.arange(1, power + 1))
    between = 2.0 ** (-4 / power * np.arange(1, 2 * (n_heads - power), 2))
    return np.concatenate([first, between]).astype(np.float32)


def alibi_bias(n_heads: int, n_queries: int, n_keys: int) -> Array:
    """Linear biases: ``−slope_h · |position of the query − position of the key|``.

    The last query stands on the last key, so one decode step (``n_queries=1``) gets the last
    row of the whole plane. Where later keys are visible they are biased by distance too.

    Args:
        n_heads: number of heads H.
        n_queries: Tq.
        n_keys: Tk.

    Returns:
        NumPy float32 (H, Tq, Tk), to be added to the scores.
    """
    query = np.arange(n_keys - n_queries, n_keys, dtype=np.float32)[:, None]
    distance = np.abs(query - np.arange(n_keys, dtype=np.float32))
    return -alibi_slopes(n_heads)[:, None, None] * distance


def t5_buckets(
    relative_position: Array,
    bidirectional: bool = True,
    n_buckets: int = 32,
    max_distance: int = 128,
) -> Array:
    """Bucket of each distance: near ones exact, far ones logarithmic (Raffel et al. 2019).

    With m exact buckets of n: distance d < m has bucket d, others
    ``m + ⌊(n − m) · ln(d/m) / ln(max_distance/m)⌋``, at most n − 1, where m = n/2. An encoder
    (``bidirectional``) uses the first half of the buckets for keys at or before the query and
    the second half for later keys; a decoder puts all later keys into bucket 0.

    Args:
        relative_position: integers, key position − query position, any shape.
        bidirectional: encoder or decoder.
        n_buckets: number of buckets.
        max_distance: distances from here on share the last bucket.

    Returns:
        int64 of the same shape: the row of the learned bias table.

    Raises:
        ValueError: too few buckets, or a ``max_distance`` within the exact ones.
    """
    xp = array_namespace(relative_position)
    relative_position = xp.astype(relative_position, xp.int64)
    per_side = n_buckets // 2 if bidirectional else n_buckets
    exact = per_side // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"n_buckets={n_buckets}, max_distance={max_distance}, bidirectional={bidirectional} "
            f"gives {exact} exact buckets; there must be at least 1, and max_distance above it"
        )
    if bidirectional:
        distance = xp.abs(relative_position)
        side = xp.astype(relative_position > 0, xp.int64) * per_side
    else:
        distance = xp.where(relative_position < 0, -relative_position, 0)
        side = xp.zeros_like(relative_position)
    far = xp.astype(xp.where(distance < exact, exact, distance), xp.float32)
    steps = xp.log(far / exact) / math.log(max_distance / exact) * (per_side - exact)
    bucket = exact + xp.astype(steps, xp.int64)
    bucket = xp.where(bucket < per_side, bucket, per_side - 1)
    return side + xp.where(distance < exact, distance, bucket)


def _frequencies(width: int, theta: float) -> Array:
    return theta ** (-np.arange(0, width, 2) / width)


def _check_even(name: str, width: int) -> None:
    if width < 2 or width % 2:
        raise ValueError(f"{name}={width}: components turn in pairs, so {name} must be even")


def _check_rotation(x: Array, cos: Array, sin: Array) -> None:
    if cos.shape != sin.shape:
        problem = "cos and sin must have one shape"
    elif 2 * cos.shape[-1] > x.shape[-1]:
        problem = f"{2 * cos.shape[-1]} components are to turn, but x has only {x.shape[-1]}"
    elif cos.ndim > 2 and cos.ndim != x.ndim:
        # (B, T, R/2) against (B, H, T, D) would pair batches with heads without a word.
        problem = (
            "give cos and sin the shape (tokens, half), or as many dimensions as x, such as "
            "(batch, 1, tokens, half)"
        )
    elif cos.shape[-2] not in (1, x.shape[-2]):
        problem = f"x has {x.shape[-2]} tokens and cos has {cos.shape[-2]}"
    else:
        return
    raise ValueError(
        f"cannot rotate: {problem}; got x {tuple(x.shape)}, cos {tuple(cos.shape)}, "
        f"sin {tuple(sin.shape)}"
    )
