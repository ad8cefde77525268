"""What weights are multiplied with in norm-weighted views, and how that is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jumok.lens.attention_map import AttentionMap

NO_MAP = "no linear map was applied to the attention's output"
"""The `AttentionMap.value_note` of a map whose values count by their own length."""


def norms_to_weigh_with(
    maps: Sequence[AttentionMap], raw: bool = False
) -> tuple[list[Any] | None, str]:
    """The norms of the values of every map, and words about them.

    Where a gate or a normalisation stands between an attention and its output projection, the
    norms say nothing, and all maps are shown by their plain weights.

    Args:
        maps: of one model.
        raw: plain weights are asked for.

    Returns:
        (heads and keys of each map as in `AttentionMap.value_norms`, or `None` for plain
        weights; a note).
    """
    if raw:
        return None, "plain attention weights, as asked for"
    norms = [found.value_norms() for found in maps]
    for found, norm in zip(maps, norms, strict=True):
        if norm is None:
            return None, f"plain attention weights: {found.value_note}"
    bare = sum(found.value_note == NO_MAP for found in maps)
    note = "weights times the length of the value vectors after the output projection"
    if bare == len(maps):
        note = f"weights times the length of the value vectors themselves: {NO_MAP}"
    elif bare:
        note += f", or of themselves in {bare} of {len(maps)} layers, where {NO_MAP}"
    return norms, note
