"""Of a recording, the token ids of one text and the maps that are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jumok.lens.attention_map import AttentionMap
    from jumok.lens.recording import Recording

__all__ = ["last_queries", "recorded_ids", "self_attention"]


def recorded_ids(recording: Recording, tokenizer: Any, text: str | None, batch: int) -> list[int]:
    """The token ids of one text; from the text where the recording holds none."""
    if recording.ids is None:
        if text is None:
            raise ValueError("the recording holds no token ids; give the text: text=…")
        return list(tokenizer.encode(text))
    size = len(recording.ids)
    if not -size <= batch < size:
        raise ValueError(f"there is no text {batch} in this recording: it holds {size}")
    return [int(id) for id in recording.ids[batch]]


def self_attention(
    recording: Recording, layers: int | Iterable[int] | None, size: int
) -> list[tuple[int, AttentionMap]]:
    """The chosen self-attention maps, each with its index."""
    count = len(recording)
    fitting = [place for place in range(count) if recording[place].shape[2:] == (size, size)]
    if layers is None:
        wanted = fitting
        if not wanted:
            shapes = sorted({tuple(recording[place].shape) for place in range(count)})
            raise ValueError(
                f"no recorded map is self-attention over the {size} tokens of the text; "
                f"recorded shapes (batch, heads, queries, keys): {shapes}"
            )
    else:
        wanted = _numbers(layers, count)
        strange = [layer for layer in wanted if layer not in fitting]
        if strange:
            raise ValueError(
                f"layer {strange[0]} has the shape {tuple(recording[strange[0]].shape)}: it is no "
                f"self-attention over the {size} tokens of the text"
            )
    return [(layer, recording[layer]) for layer in wanted]


def last_queries(
    recording: Recording, layers: int | Iterable[int] | None, size: int
) -> list[tuple[int, AttentionMap]]:
    """The chosen maps of a recording that begins in the middle of a text, each with its index.

    Their queries are the last of the text's ``size`` tokens; their keys are all of them, or the
    last, where a window has dropped the others.
    """
    wanted = range(len(recording)) if layers is None else _numbers(layers, len(recording))
    found = []
    for place in wanted:
        queries, keys = recording[place].shape[2:]
        if not queries <= keys <= size or not recording[place].is_causal:
            raise ValueError(
                f"layer {place} has the shape {tuple(recording[place].shape)}: its queries aren't "
                f"the last of the text's {size} tokens, of which each sees those before it"
            )
        found.append((place, recording[place]))
    return found


def _numbers(layers: int | Iterable[int], count: int) -> list[int]:
    """Which layers are meant, from 0."""
    wanted = [layers] if isinstance(layers, int) else list(layers)
    if not all(isinstance(layer, (int, np.integer)) for layer in wanted):
        raise TypeError(
            f"layers={layers!r} are no whole numbers; write layers=3, layers=[0, 3] or "
            "layers=range(0, 4)"
        )
    if not wanted:
        raise ValueError("no layer was chosen: layers is empty")
    wrong = [layer for layer in wanted if not -count <= layer < count]
    if wrong:
        raise ValueError(f"there is no layer {wrong[0]}: the recording has 0 to {count - 1}")
    return [layer % count for layer in wanted]
