"""What one attention call was: its q, k, v, mask, scale, and the log-sum-exp of its rows.

That is O(tokens · head_dim) memory, and any tile of the weights follows from it exactly:
``w_ij = exp(scale · q_i·k_j [softcapped] + bias_ij − lse_i)``.

Arrays are all of one kind: torch tensors while the recording is live, NumPy when it was
opened from a file. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device, is_numpy_namespace

from jumok.masks import Mask

Array = Any

# A row whose lse lies below this has scores so large and negative (a mask of finfo.min on every
# key) that `scores − lse` has lost its digits: such a row is normalised by its own sum instead.
LOST_IN_ROUNDING = -1e4


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of softmax attention, B batch, H query heads, G key heads, T tokens, D head_dim.

    Attributes:
        q: queries (B, H, Tq, D).
        k: keys (B, G, Tk, D); query head h reads key head ``h // (H // G)``.
        v: values (B, G, Tk, Dv), or `None` if they were not kept.
        mask: the rule of who sees whom, or `None` for everything.
        bias: added to the (softcapped) scores; broadcasts to (B, H, Tq, Tk), or `None`.
        scale: factor of q·k.
        softcap: scores become ``softcap · tanh(score / softcap)`` before bias and mask.
        sinks: one extra logit a head (H,) that takes part in the softmax and has no key.
        lse: natural log of each row's sum of exponentials (B, H, Tq), −inf for a row that sees
            nothing, or `None` if the kernel did not give it.
    """

    q: Array
    k: Array
    v: Array | None
    mask: Mask | None
    bias: Array | None
    scale: float
    softcap: float | None = None
    sinks: Array | None = None
    lse: Array | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, query heads, queries, keys) of the weights."""
        batch, heads, queries, _ = self.q.shape
        return int(batch), int(heads), int(queries), int(self.k.shape[2])

    @property
    def group(self) -> int:
        """How many query heads read one key head."""
        return max(1, int(self.q.shape[1]) // max(1, int(self.k.shape[1])))

    @property
    def is_numpy(self) -> bool:
        """Whether what is read of the arrays is NumPy's."""
        return bool(is_numpy_namespace(array_namespace(self.q)))

    def scores(
        self, batch: Sequence[int], heads: Sequence[int], rows: range, columns: range
    ) -> Array:
        """Scores as they enter the softmax, −inf where hidden.

        Args:
            batch: indices into the batch.
            heads: indices of query heads.
            rows: query indices, step 1.
            columns: key indices, step 1.

        Returns:
            float32 (len(batch), len(heads), len(rows), len(columns)).
        """
        xp = array_namespace(self.q)
        place = device(self.q)
        batch_index = xp.asarray(list(batch), dtype=xp.int64, device=place)
        head_index = xp.asarray(list(heads), dtype=xp.int64, device=place)

        def spread(array: Array) -> Array:
            """Choose batch and heads of an array that may have 1 there, or fewer dimensions."""
            while array.ndim < 4:
                array = array[None]
            if array.shape[0] > 1:
                array = xp.take(array, batch_index, axis=0)
            return xp.take(array, head_index, axis=1) if array.shape[1] > 1 else array

        scores = self._products(batch, heads, rows, columns)
        if self.softcap is not None:
            scores = self.softcap * xp.tanh(scores / self.softcap)
        if self.bias is not None:
            bias = self.bias
            if bias.shape[-2] > 1:
                bias = bias[..., rows.start : rows.stop, :]
            if bias.shape[-1] > 1:
                bias = bias[..., columns.start : columns.stop]
            scores = scores + xp.astype(spread(bias), xp.float32)
        if self.mask is not None:
            _, _, queries, keys = self.shape
            tile = self.mask.tile(rows, columns, queries, keys, self.q)
            if tile is not True:
                hidden = xp.asarray(-xp.inf, dtype=xp.float32, device=place)
                seen = spread(tile) if tile is not False else xp.zeros_like(scores, dtype=xp.bool)
                scores = xp.where(seen, scores, hidden)
        return scores

    def _products(
        self, batch: Sequence[int], heads: Sequence[int], rows: range, columns: range
    ) -> Array:
        """Scaled products of q and k; query heads of one key head are multiplied together."""
        xp = array_namespace(self.q)
        key_heads = sorted({head // self.group for head in heads})
        whole = [key * self.group + one for key in key_heads for one in range(self.group)]
        together = list(heads) == whole
        parts = []
        for b in batch:
            q = read_heads(self.q, b, heads, rows) * self.scale
            if together:
                shape = (len(key_heads), self.group * len(rows), int(q.shape[-1]))
                k = read_heads(self.k, b, key_heads, columns)
                product = xp.reshape(q, shape) @ xp.matrix_transpose(k)
            elif len(key_heads) == 1:
                product = q @ xp.matrix_transpose(read_heads(self.k, b, key_heads, columns))
            else:
                k = read_heads(self.k, b, [head // self.group for head in heads], columns)
                product = q @ xp.matrix_transpose(k)
            parts.append(xp.reshape(product, (len(heads), len(rows), len(columns))))
        if not parts:
            empty = (0, len(heads), len(rows), len(columns))
            return xp.zeros(empty, dtype=xp.float32, device=device(self.q))
        return parts[0][None] if len(parts) == 1 else xp.stack(parts)

    def weights(
        self, batch: Sequence[int], heads: Sequence[int], rows: range, columns: range
    ) -> Array:
        """Exact attention weights of a tile; arguments and shape as in `scores`."""
        xp = array_namespace(self.q)
        if self.lse is None:
            lse = self._row_sums(batch, heads, rows)
        else:
            lse = xp.stack(
                [xp.stack([self.lse[b, h, rows.start : rows.stop] for h in heads]) for b in batch]
            )
        lse = xp.astype(lse, xp.float32)[..., None]
        zero = xp.zeros_like(lse)
        sees = lse > -xp.inf
        scores = self.scores(batch, heads, rows, columns)
        weights = xp.exp(scores - xp.where(sees, lse, zero))
        lost = sees & (lse < LOST_IN_ROUNDING)
        if bool(xp.any(lost)):
            everything = range(self.shape[3])
            whole = self.scores(batch, heads, rows, everything)
            top = xp.max(whole, axis=-1, keepdims=True)
            top = xp.where(top > -xp.inf, top, zero)
            total = xp.sum(xp.exp(whole - top), axis=-1, keepdims=True)
            if self.sinks is not None:
                sink = xp.astype(xp.stack([self.sinks[h] for h in heads]), xp.float32)
                total = total + xp.exp(sink[None, :, None, None] - top)
            weights = xp.where(lost, xp.exp(scores - top) / total, weights)
        return xp.where(sees, weights, xp.zeros_like(weights))

    def _row_sums(self, batch: Sequence[int], heads: Sequence[int], rows: range) -> Array:
        """The lse of some rows, from their whole scores."""
        xp = array_namespace(self.q)
        scores = self.scores(batch, heads, rows, range(self.shape[3]))
        if self.sinks is not None:
            sink = xp.astype(xp.stack([self.sinks[h] for h in heads]), xp.float32)
            sink = xp.broadcast_to(sink[None, :, None, None], (*scores.shape[:3], 1))
            scores = xp.concat([scores, sink], axis=-1)
        if scores.shape[-1] == 0:
            return xp.full(scores.shape[:3], -xp.inf, dtype=xp.float32, device=device(self.q))
        top = xp.max(scores, axis=-1, keepdims=True)
        shift = xp.where(top > -xp.inf, top, xp.zeros_like(top))
        total = xp.sum(xp.exp(scores - shift), axis=-1, keepdims=True)
        sees = total > 0
        lse = xp.log(xp.where(sees, total, xp.ones_like(total))) + shift
        return xp.where(sees, lse, xp.full_like(lse, -xp.inf))[..., 0]


def read_heads(array: Array, batch: int, heads: Sequence[int], tokens: range) -> Array:
    """Some heads and tokens of an array (B, H, T, D), float32 (heads, tokens, D).

    No more than that is read from a file.
    """
    xp = array_namespace(array)
    part = slice(tokens.start, tokens.stop)
    if not heads or tuple(heads) == tuple(range(heads[0], heads[0] + len(heads))):
        first = heads[0] if heads else 0
        return xp.astype(array[batch, first : first + len(heads), part], xp.float32)
    return xp.stack([xp.astype(array[batch, head, part], xp.float32) for head in heads])
