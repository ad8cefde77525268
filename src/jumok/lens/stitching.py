"""The masks and biases of the steps of a decoding loop, said in one.

Each step says who its own few queries see; taken together that is nearly always one short rule,
such as "causal, without the padding". It is guessed from what the steps saw, and kept only if it
says exactly what they said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jumok.masks import (
    Causal,
    Everything,
    Mask,
    Padding,
    Steps,
    Window,
    join,
)
from jumok.masks.tail import Tail

_BLOCK = 1024  # rows and columns that are compared at once


@dataclass(frozen=True, eq=False)
class Step:
    """What one call said of its queries.

    Attributes:
        rule: over the keys that the call had.
        bias: likewise, or `None`.
        n_queries: how many queries it brought.
        keys: which keys of the whole sequence it had; those before had been dropped.
    """

    rule: Mask | None
    bias: Tensor | None
    n_queries: int
    keys: range


def joined_rule(steps: list[Step], shape: tuple[int, int, int, int], like: Tensor) -> Mask | None:
    """One rule for all steps: the simplest that says the same."""
    if len(steps) == 1:
        return steps[0].rule
    if all(step.rule is None and step.keys == range(shape[3]) for step in steps):
        return None
    for candidate in _candidates(steps, shape, like):
        if _says_the_same(candidate, steps, shape, like):
            return candidate
    return Steps(tuple((_over_all_keys(step), step.n_queries, step.keys.stop) for step in steps))


def _over_all_keys(step: Step) -> Mask | None:
    if step.keys.start == 0:
        return step.rule
    return Tail(step.keys.start, step.rule or Everything())


def _candidates(
    steps: list[Step], shape: tuple[int, int, int, int], like: Tensor
) -> Iterator[Mask]:
    """Causal rules and windows, with and without padding, that may be what the steps say."""
    n_queries, n_keys = shape[2:]
    position = n_keys - n_queries
    seen = torch.zeros(1, n_keys, dtype=torch.bool, device=like.device)
    window = 1
    for step in steps:
        position += step.n_queries
        if position != step.keys.stop:  # the last query doesn't stand on the last key
            return
        visible = _rule(step).seen_keys(len(step.keys), like)
        part = seen[:, step.keys.start : step.keys.stop]
        if visible is None:
            part[:] = True
        else:
            visible = visible.any(1)
            if len(visible) > len(seen):
                seen = seen.repeat(len(visible), 1)
                part = seen[:, step.keys.start : step.keys.stop]
            part |= visible
        window = max(window, step.keys.stop - _first_of_the_last_row(step, like))
    rule = Causal() if window >= n_keys else Window(window)
    yield join(rule, Padding(seen)) if not bool(seen.all()) else rule


def _rule(step: Step) -> Mask:
    return Everything() if step.rule is None else step.rule


def _first_of_the_last_row(step: Step, like: Tensor) -> int:
    """The first key that the last query of a step sees, counted in the whole sequence."""
    n_keys, last = len(step.keys), step.n_queries - 1
    tile: Any = _rule(step).tile(range(last, last + 1), range(n_keys), last + 1, n_keys, like)
    if isinstance(tile, bool):
        return step.keys.start
    found = tile.reshape(-1, tile.shape[-1]).any(0).nonzero()
    return step.keys.start + (int(found[0]) if len(found) else 0)


def _says_the_same(
    candidate: Mask, steps: list[Step], shape: tuple[int, int, int, int], like: Tensor
) -> bool:
    top = 0
    for step in steps:
        for start in range(0, step.n_queries, _BLOCK):
            rows = range(start, min(start + _BLOCK, step.n_queries))
            whole = range(top + rows.start, top + rows.stop)
            if not _same_rows(candidate, step, rows, whole, shape, like):
                return False
        top += step.n_queries
    return True


def _same_rows(
    candidate: Mask,
    step: Step,
    rows: range,
    whole: range,
    shape: tuple[int, int, int, int],
    like: Tensor,
) -> bool:
    """Whether the rule says the same of some rows of a step; `whole` counts all steps' rows."""
    n_queries, n_keys = shape[2:]
    seen = candidate.visible_columns(whole, n_queries, n_keys)
    edges = [range(step.keys.start), range(step.keys.stop, n_keys)]
    for outside in edges:
        common = range(max(outside.start, seen.start), min(outside.stop, seen.stop))
        if common:
            tile: Any = candidate.tile(whole, common, n_queries, n_keys, like)
            if tile is True or (tile is not False and bool(tile.any())):
                return False
    width = _BLOCK if len(rows) > 1 else max(len(step.keys), 1)
    for left in range(0, len(step.keys), width):
        columns = range(left, min(left + width, len(step.keys)))
        there = range(step.keys.start + columns.start, step.keys.start + columns.stop)
        mine: Any = candidate.tile(whole, there, n_queries, n_keys, like)
        said: Any = _rule(step).tile(rows, columns, step.n_queries, len(step.keys), like)
        if isinstance(mine, bool) and isinstance(said, bool):
            if mine is not said:
                return False
        elif not bool((mine == said).all()):
            return False
    return True


def joined_bias(steps: list[Step], shape: tuple[int, int, int, int]) -> Tensor | None:
    """The biases of all steps, one below the other; keys a step did not have get 0."""
    if all(step.bias is None for step in steps):
        return None
    if len(steps) == 1:
        return steps[0].bias
    found = [step.bias for step in steps if step.bias is not None]
    leading = torch.broadcast_shapes(*(bias.shape[:-2] for bias in found))
    whole = found[0].new_zeros(*leading, shape[2], shape[3])
    start = 0
    for step in steps:
        stop = start + step.n_queries
        if step.bias is not None:
            whole[..., start:stop, step.keys.start : step.keys.stop] = step.bias
        start = stop
    return whole
