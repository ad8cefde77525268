"""Gradient-weighted attention through all layers: what speaks for one target.

The gradient of a weight is ``∂L/∂w_ij = ∂L/∂o_i · v_j``, so the gradient of each layer's output,
O(T·d), is all that has to be kept; the T×T gradients are made tile by tile beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from array_api_compat import array_namespace

from jumok.lens.attention_map import AttentionMap
from jumok.lens.call import Array, AttentionCall
from jumok.lens.recording import Recording
from jumok.lens.rollout import Rewrite, Rollout, one_hot, positions, same_tokens, through
from jumok.lens.tiles import Tile

__all__ = ["relevance"]


def relevance(
    recording: Recording,
    query: int | Sequence[int] = -1,
    batch: int = 0,
    maps: Sequence[AttentionMap] | None = None,
) -> Rollout:
    """What each token contributes, through all layers, to one target.

    ``r ← r + r · Ā``, from the last layer to the first, where r begins as the query alone and
    ``Ā = mean_h (∇W ⊙ W)⁺`` (Chefer et al. 2021, "Generic Attention-model Explainability"; the
    update of self-attention). The target is whatever ``backward`` was called on:

    ```python
    with jumok.watch(model, gradients=True) as recording:
        logits = model(ids)
    logits[0, -1, target].backward()
    jumok.relevance(recording, query=-1).flow  # (1, tokens)
    ```

    Args:
        recording: of a model that was watched with ``gradients=True``, after ``backward``.
        query: position of the token that the target was read at (in a classifier the first), or
            several; negative ones count from the end.
        batch: which sequence of the batch.
        maps: some of the recording's maps, from the first layer to the last; all by default.

    Returns:
        ``flow``: relevance of each token, not normalised, the query's own 1 included; see
        `jumok.lens.rollout.Rollout`.

    Raises:
        TypeError: not a recording.
        ValueError: no gradients, maps that are not of the same tokens, or a position or sequence
            that is not there.
    """
    if not isinstance(recording, Recording):
        raise TypeError(
            f"relevance takes a recording, from jumok.watch(model, gradients=True); got "
            f"{type(recording).__name__}"
        )
    chosen, tokens = same_tokens(recording if maps is None else maps)
    queries = positions(query, tokens, batch, chosen)
    gradients = [_gradient(found, recording.output_gradients) for found in chosen]
    flow = one_hot(chosen[-1].call.q, queries, tokens)
    layers = []
    for found, gradient in zip(reversed(chosen), reversed(gradients), strict=True):
        call = found.call
        flow = flow + through(call, flow, batch, _times_gradient(call, gradient))
        layers.append(flow)
    stacked = array_namespace(flow).stack(layers[::-1])
    return Rollout(queries, flow, stacked, "mean over the heads of (gradient · weight)⁺")


def _gradient(found: AttentionMap, known: Mapping[str, Array]) -> Array:
    gradient = known.get(found.name)
    if gradient is None:
        raise ValueError(
            f"{found.name}: there is no gradient of its output. Run the model with "
            f"jumok.watch(model, gradients=True) and with gradients (no torch.no_grad), and call "
            f"backward on one target, such as logits[0, -1, token].backward()"
        )
    if tuple(gradient.shape[:3]) != found.shape[:3]:
        raise ValueError(
            f"{found.name}: its gradient is of {tuple(gradient.shape[:3])} (batch, heads, "
            f"queries), but the map of {found.shape[:3]}: it was joined from several calls. Run "
            f"the whole text through the model once"
        )
    return gradient


def _times_gradient(call: AttentionCall, gradient: Array) -> Rewrite:
    """Weights times the positive part of their gradient."""
    xp: Any = array_namespace(call.q)
    group, v = call.group, call.v
    assert v is not None

    def rewrite(weights: Array, tile: Tile) -> None:
        heads = tile.heads
        own = xp.astype(gradient[tile.batch, heads, tile.rows], xp.float32)
        key_heads = slice(heads.start // group, heads.stop // group)
        values = xp.astype(v[tile.batch, key_heads, tile.columns], xp.float32)
        own = xp.reshape(own, (len(values), -1, own.shape[-1]))
        slopes = xp.matmul(own, xp.matrix_transpose(values))
        weights *= xp.clip(xp.reshape(slopes, weights.shape), min=0)

    return rewrite
