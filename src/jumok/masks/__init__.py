"""Who sees whom: masks as rules.

A rule answers for any tile of the (queries, keys) plane without building the plane:
`True` (everything in the tile is visible), `False` (nothing is), or a boolean array that
broadcasts to (batch, heads, rows, columns), `True` where the query may attend to the key.
So a causal mask over 100,000 tokens costs nothing to keep, and fast code skips the tiles
that are empty and does no masking in those that are full.

Rules are joined with ``&``; `compact` finds the rule in an array of booleans. Query i stands
at key position ``i + offset``; without an offset of its own a rule puts the *last* query on
the *last* key (``offset = n_keys - n_queries``), which is what a KV cache needs.
"""

from jumok.masks.arrays import Dense, Packed, Padding, Spans
from jumok.masks.bands import Causal, Chunked, Prefix, Window
from jumok.masks.compact import compact
from jumok.masks.reading import read_mask
from jumok.masks.rule import Both, Everything, Mask, Steps, as_tile, join

__all__ = [
    "Both",
    "Causal",
    "Chunked",
    "Dense",
    "Everything",
    "Mask",
    "Packed",
    "Padding",
    "Prefix",
    "Spans",
    "Steps",
    "Window",
    "as_tile",
    "compact",
    "join",
    "read_mask",
]
