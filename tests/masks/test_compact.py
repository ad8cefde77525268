"""The rule that `compact` finds says exactly what the array says, and is the one to be expected."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jumok.masks import (
    Causal,
    Chunked,
    Dense,
    Everything,
    Mask,
    Packed,
    Padding,
    Prefix,
    Spans,
    Window,
    compact,
    join,
)
from jumok.masks.compact import _packed_there

LIKE = np.zeros(1)


def plane(rule: Mask, batch: int, n_queries: int, n_keys: int, like: Any = LIKE) -> np.ndarray:
    dense = np.asarray(rule.dense(n_queries, n_keys, like))
    return np.broadcast_to(dense, (batch, 1, n_queries, n_keys))


def found(rule: Mask, n_queries: int, n_keys: int, batch: int = 2) -> str:
    """What is made of the plane of a rule, as text; and it is equal."""
    visible = np.array(plane(rule, batch, n_queries, n_keys))
    answer = compact(visible, n_queries, n_keys)
    np.testing.assert_array_equal(plane(answer, batch, n_queries, n_keys), visible)
    return shown(answer)


def shown(rule: Mask) -> str:
    parts = getattr(rule, "rules", (rule,))
    return " & ".join(repr(part).split("(visible")[0].split("(start")[0] for part in parts)


LEFT = np.arange(9) >= np.array([[0], [3]])
RIGHT = np.arange(9) < np.array([[9], [6]])
HOLES = np.array([[1, 1, 0, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0, 1, 1, 1]], bool)
EXPECTED: list[tuple[Mask, tuple[int, int], str]] = [
    (Everything(), (9, 9), "Everything()"),
    (Causal(), (9, 9), "Causal()"),
    (Causal(), (4, 9), "Causal()"),
    (Causal(offset=0), (4, 9), "Causal(offset=0)"),
    (Causal(offset=2), (4, 9), "Causal(offset=2)"),
    (Window(3), (9, 9), "Window(3)"),
    (Window(3), (4, 9), "Window(3)"),
    (Window(3, offset=2), (4, 9), "Window(3, offset=2)"),
    (Window(3, ahead=2), (9, 9), "Window(3, ahead=2)"),
    (Window(2, ahead=None), (9, 9), "Window(2, ahead=None)"),
    (Chunked(3), (9, 9), "Chunked(3)"),
    (Chunked(4), (8, 9), "Chunked(4)"),
    (Chunked(4) & Causal(), (9, 9), "Chunked(4) & Causal()"),
    (Chunked(4) & Causal(), (7, 9), "Chunked(4) & Causal()"),
    (Chunked(4, offset=0) & Causal(offset=0), (6, 9),
     "Chunked(4, offset=0) & Causal(offset=0)"),
    (Prefix(4), (9, 9), "Prefix(4)"),
    (Prefix(7), (4, 9), "Prefix(7)"),
    (Prefix(np.array([2, 5])), (9, 9), "Prefix(lengths of shape (2,))"),
    (Padding(LEFT), (9, 9), "Padding"),
    (Padding(HOLES), (5, 9), "Padding"),
    (Padding(LEFT) & Causal(), (9, 9), "Padding & Causal()"),
    (Padding(RIGHT) & Causal(), (9, 9), "Padding & Causal()"),
    (Padding(HOLES) & Causal(), (9, 9), "Padding & Causal()"),
    (Padding(RIGHT) & Causal(), (5, 9), "Padding & Causal()"),
    (Padding(LEFT) & Window(3), (9, 9), "Padding & Window(3)"),
    (Padding(HOLES) & Window(4), (9, 9), "Padding & Window(4)"),
    (Padding(RIGHT) & Window(3, ahead=2), (9, 9), "Padding & Window(3, ahead=2)"),
    (Padding(HOLES) & Chunked(4) & Causal(), (9, 9), "Padding & Chunked(4) & Causal()"),
    (Padding(RIGHT) & Prefix(3), (9, 9), "Padding & Prefix(3)"),
    (Padding(np.zeros((2, 9), bool)), (9, 9), "Padding"),
    (Packed(np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2]])) & Causal(), (9, 9), "Spans"),
    (Packed(np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2]])), (9, 9), "Spans"),
    (Packed(np.array([[0, 0, 1, 1, 1, 1, 1, 1, 1]])) & Causal() & Padding(HOLES), (9, 9),
     "Padding & Spans"),
    (Packed(np.array([[0, 1, 0, 1, 0, 1, 0, 1, 0]])), (9, 9), "Dense"),
    # One query alone: as little as possible is kept at each step.
    (Causal(), (1, 9), "Everything()"),
    (Causal(offset=5), (1, 9), "Causal(offset=5)"),
    (Window(3), (1, 9), "Spans"),
    (Padding(LEFT), (1, 9), "Spans"),
    (Padding(HOLES), (1, 9), "Padding"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "shape", "expected"), EXPECTED, ids=str)
def test_the_simplest_rule(rule: Mask, shape: tuple[int, int], expected: str) -> None:
    assert found(rule, *shape) == expected


def test_padded_queries_that_see_everything_or_nothing() -> None:
    """Some libraries let a row that sees nothing see everything, so that its softmax is defined."""
    visible = np.array(plane(Padding(LEFT) & Causal(), 2, 9, 9))
    visible |= ~visible.any(-1, keepdims=True)
    answer = compact(visible, 9, 9)
    assert shown(answer) == "Spans"
    np.testing.assert_array_equal(plane(answer, 2, 9, 9), visible)
    # With holes and such rows nothing short says it: the array is kept.
    visible = np.array(plane(Padding(HOLES) & Causal(offset=-1), 2, 9, 9))
    visible |= ~visible.any(-1, keepdims=True)
    assert isinstance(compact(visible, 9, 9), Dense)


def test_blocks_that_see_both_ways_among_causal_text() -> None:
    """Image tokens see their whole image and everything before it."""
    image = np.array([0, 0, 1, 1, 1, 0, 2, 2, 0])
    both = (image[:, None] == image) & (image[:, None] > 0)
    visible = both | np.tri(9, dtype=bool)
    answer = compact(visible, 9, 9)
    assert shown(answer) == "Spans"
    np.testing.assert_array_equal(plane(answer, 1, 9, 9)[0, 0], visible)


def test_one_row_for_all_queries() -> None:
    row = np.array([[[[True, True, False]]]])
    for n_queries in (2, 3):
        assert isinstance(compact(row, n_queries, 3), Padding)
    assert compact(row, 1, 3) == Causal(offset=1)
    assert isinstance(compact(row | True, 5, 3), Everything)
    column = np.array([[True], [False]])
    assert isinstance(compact(column, 2, 3), Dense)


def test_heads_that_differ_stay_as_they_are() -> None:
    same = np.broadcast_to(np.tri(5, dtype=bool), (2, 3, 5, 5))
    assert compact(np.array(same), 5, 5) == compact(same, 5, 5) == Causal()
    different = np.array(same)
    different[1, 2, 3, 3] = False
    assert isinstance(compact(different, 5, 5), Dense)
    assert isinstance(compact(np.ones((2, 2, 3, 5, 5), bool), 5, 5), Dense)


def test_nothing_there() -> None:
    for shape in ((0, 5), (5, 0), (0, 1, 5, 5)):
        assert isinstance(compact(np.ones(shape, bool), *shape[-2:]), Everything)
    with pytest.raises(ValueError, match=r"shape \(3, 4\).*3, 5\)"):
        compact(np.ones((3, 4), bool), 3, 5)


@pytest.mark.parametrize("xp", [torch, array_api_strict], ids=["torch", "strict"])
@pytest.mark.parametrize("keys", [8, 13])
def test_every_library_gets_its_own_arrays(xp: Any, keys: int) -> None:
    real = np.arange(keys) >= np.array([[0], [3]])
    for rule in (Padding(real) & Causal(), Packed(np.arange(keys)[None] // 5) & Causal(),
                 Prefix(np.array([2, 5]))):  # fmt: skip
        visible = np.array(plane(rule, 2, keys, keys))
        answer = compact(xp.asarray(visible), keys, keys)
        assert type(answer.dense(keys, keys, xp.asarray(LIKE))) is type(xp.asarray(visible))
        np.testing.assert_array_equal(plane(answer, 2, keys, keys, xp.asarray(LIKE)), visible)
        assert not isinstance(answer, Dense)


def test_a_long_mask_in_many_blocks() -> None:
    visible = np.tri(3000, dtype=bool) & (np.arange(3000) >= 7)
    visible &= np.arange(3000)[:, None] - np.arange(3000) < 1000
    answer = compact(torch.as_tensor(visible).expand(4, 1, -1, -1), 3000, 3000)
    assert shown(answer) == "Padding & Window(1000)"
    told = plane(answer, 1, 3000, 3000, torch.zeros(1))
    np.testing.assert_array_equal(told[0, 0], visible)


RULES = st.one_of(
    st.builds(Causal, st.none() | st.integers(-3, 12)),
    st.builds(Window, st.integers(1, 6), st.none() | st.integers(0, 4)),
    st.builds(Chunked, st.integers(1, 6), st.none() | st.integers(-2, 5)),
    st.builds(Prefix, st.integers(0, 9)),
    st.builds(lambda lengths: Prefix(np.array(lengths)), st.tuples(*[st.integers(0, 9)] * 2)),
)


@settings(max_examples=300)
@given(st.data(), st.integers(1, 9), st.integers(1, 12), st.lists(RULES, max_size=2))
def test_what_is_found_is_equal(
    data: st.DataObject, n_queries: int, n_keys: int, rules: list[Mask]
) -> None:
    kind = data.draw(st.sampled_from(["nothing", "padding", "documents", "odd rows"]))
    if kind == "padding":
        rules = [*rules, Padding(data.draw(arrays(bool, (2, n_keys))))]
    if kind == "documents":
        steps = data.draw(arrays(np.int64, (2, n_keys), elements=st.integers(0, 1)))
        rules = [*rules, Packed(steps.cumsum(axis=-1))]
    visible = np.array(plane(join(*rules), 2, n_queries, n_keys))
    if kind == "odd rows":
        visible |= ~visible.any(-1, keepdims=True)
    answer = compact(visible, n_queries, n_keys)
    np.testing.assert_array_equal(plane(answer, 2, n_queries, n_keys), visible)
    for rows in (range(n_queries), range(n_queries // 2, n_queries)):
        seen = visible[:, 0, rows.start : rows.stop].any((0, 1)).nonzero()[0]
        assert set(seen) <= set(answer.visible_columns(rows, n_queries, n_keys))


@pytest.mark.parametrize("xp", [torch, array_api_strict, np], ids=["torch", "strict", "numpy"])
@pytest.mark.parametrize("keys", [1, 8, 21])
def test_bytes_are_made_where_the_booleans_are(xp: Any, keys: int) -> None:
    block = np.random.default_rng(0).random((3, keys)) > 0.5
    packed = np.asarray(_packed_there(xp.asarray(block)))
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, np.packbits(block, axis=-1))


@settings(max_examples=300)
@given(arrays(bool, st.tuples(*[st.integers(1, 2)] * 2, *[st.integers(1, 6)] * 2)))
def test_any_array_is_told_exactly(visible: np.ndarray) -> None:
    n_queries, n_keys = visible.shape[-2:]
    answer = compact(visible, n_queries, n_keys)
    dense = np.asarray(answer.dense(n_queries, n_keys, LIKE))
    np.testing.assert_array_equal(np.broadcast_to(dense, visible.shape), visible)


@given(arrays(np.int64, (2, 9), elements=st.integers(0, 9)), st.integers(1, 9))
def test_which_keys_spans_show(start: np.ndarray, length: int) -> None:
    spans = Spans(start, start + length)
    seen = plane(spans, 2, 9, 9).any(-2)[:, 0]
    np.testing.assert_array_equal(spans.seen_keys(9, seen)[:, 0], seen)
