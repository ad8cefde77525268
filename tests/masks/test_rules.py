"""Masks as rules: every tile says what the whole plane says, and users' masks mean one thing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jumok
from arrays import every_library
from jumok.masks import (
    Both,
    Causal,
    Chunked,
    Dense,
    Everything,
    Packed,
    Padding,
    Prefix,
    Spans,
    Steps,
    Window,
    join,
    read_mask,
)
from jumok.masks.tail import Tail


def plane(rule, n_queries, n_keys):
    """The rule by the words of its docstring, entry by entry."""
    seen = np.zeros((n_queries, n_keys), bool)
    for i in range(n_queries):
        for j in range(n_keys):
            seen[i, j] = sees(rule, i, j, n_queries, n_keys)
    return seen


def sees(rule, i, j, n_queries, n_keys):
    if isinstance(rule, Both):
        return all(sees(part, i, j, n_queries, n_keys) for part in rule.rules)
    if isinstance(rule, Everything):
        return True
    if isinstance(rule, Steps):
        start = 0
        for part, part_queries, part_keys in rule.parts:
            if i < start + part_queries:
                if j >= part_keys or part is None:
                    return j < part_keys
                return sees(part, i - start, j, part_queries, part_keys)
            start += part_queries
    if isinstance(rule, Padding):
        return bool(rule.visible[0, j])
    if isinstance(rule, Dense):
        return bool(np.broadcast_to(rule.visible, (n_queries, n_keys))[i, j])
    if isinstance(rule, Spans):
        row = 0 if rule.start.shape[1] == 1 else i
        return rule.start[0, row] <= j < rule.stop[0, row]
    here = i + (n_keys - n_queries if rule.offset is None else rule.offset)
    if isinstance(rule, Causal):
        return j <= here
    if isinstance(rule, Chunked):
        return math.floor(j / rule.size) == math.floor(here / rule.size)
    if isinstance(rule, Prefix):
        return j <= here or j < (rule.length if isinstance(rule.length, int) else rule.length[0])
    if isinstance(rule, Packed):
        return 0 <= here < n_keys and rule.documents[0, here] == rule.documents[0, j]
    assert isinstance(rule, Window)
    return here - rule.size < j and (rule.ahead is None or j <= here + rule.ahead)


RULES = [
    Everything(), Causal(), Causal(0), Causal(2), Causal(-1), Window(1), Window(3),
    Window(2, ahead=1), Window(2, ahead=None), Window(3, offset=0), Causal() & Window(2),
    Causal() & Window(4, ahead=2) & Window(2, ahead=None), Chunked(2), Chunked(3, offset=1),
    Chunked(2) & Causal(), Chunked(1), Prefix(0), Prefix(2), Prefix(3, offset=0),
    Prefix(np.array([2])), Prefix(2) & Window(4, ahead=3),
]  # fmt: skip
SHAPES = [(5, 5), (2, 5), (5, 2), (1, 6), (6, 1), (3, 0), (0, 3)]
EVERYWHERE = [(rule, shape) for rule in RULES for shape in SHAPES]
EVERYWHERE += [
    (Causal() & Padding(np.array([[True, False, True, True, False]])), (5, 5)),
    (Dense(np.array([[True, False, True]])) & Window(2), (4, 3)),
    (Dense(np.random.default_rng(0).random((4, 6)) > 0.5), (4, 6)),
    (Spans(np.array([[0, 2, 1, 0]]), np.array([[0, 2, 4, 6]])), (4, 6)),
    (Spans(np.array([[1]]), np.array([[3]])), (4, 6)),
    (Spans(np.array([[0, 0, 1]]), np.array([[4, 4, 9]])) & Causal(), (3, 5)),
    (Packed(np.array([[3, 3, 1, 1, 1, 2]])), (6, 6)),
    (Packed(np.array([[3, 3, 1, 1, 1, 2]])) & Causal(), (4, 6)),
    (Packed(np.array([[0, 1, 0, 1]])), (6, 4)),
    (Packed(np.array([[0, 0, 1, 1]]), offset=1), (2, 4)),
    (Steps(((Causal(), 3, 3), (None, 1, 4), (Window(2), 2, 6))), (6, 6)),
    (Steps(((None, 2, 5), (None, 1, 5))), (3, 5)),
    (Steps(((Dense(np.array([[True, False, True]])), 3, 3), (Causal(), 2, 5))), (5, 5)),
]


@pytest.mark.parametrize(("rule", "shape"), EVERYWHERE, ids=str)
def test_every_tile_is_a_piece_of_the_plane(rule, shape):
    n_queries, n_keys = shape
    whole = plane(rule, n_queries, n_keys)
    like = np.zeros(1)
    dense = np.broadcast_to(rule.dense(n_queries, n_keys, like), (1, 1, *shape))[0, 0]
    np.testing.assert_array_equal(dense, whole)
    later = np.arange(n_keys) > np.arange(n_queries)[:, None] + n_keys - n_queries
    if rule.is_causal(n_queries, n_keys):
        assert not (whole & later).any()
    for top in range(n_queries):
        for bottom in range(top + 1, n_queries + 1):
            rows = range(top, bottom)
            columns = rule.visible_columns(rows, n_queries, n_keys)
            seen = np.flatnonzero(whole[top:bottom].any(0))
            assert set(seen) <= set(columns), (rows, columns)
            assert columns.start >= 0
            assert columns.stop <= n_keys
            for left in range(n_keys):
                for right in range(left + 1, n_keys + 1):
                    piece = whole[top:bottom, left:right]
                    tile = rule.tile(rows, range(left, right), n_queries, n_keys, like)
                    np.testing.assert_array_equal(
                        np.broadcast_to(tile, (1, 1, *piece.shape))[0, 0], piece
                    )


def test_full_and_empty_tiles_build_no_array():
    like = np.zeros(1)
    assert Causal().tile(range(50, 60), range(51), 100, 100, like) is True
    assert Causal().tile(range(50, 60), range(60, 100), 100, 100, like) is False
    assert Window(10).tile(range(50, 60), range(41), 100, 100, like) is False
    assert Window(10).tile(range(50, 52), range(42, 51), 100, 100, like) is True
    assert (Causal() & Window(10)).tile(range(50, 52), range(42, 51), 100, 100, like) is True
    steps = Steps(((Causal(), 99, 99), (None, 1, 100)))
    assert steps.tile(range(50, 100), range(51), 100, 100, like) is True
    assert steps.tile(range(50), range(50, 100), 100, 100, like) is False


def test_which_rules_are_causal():
    assert Causal().is_causal(3, 7)
    assert Causal(0).is_causal(3, 7)
    assert not Causal(5).is_causal(3, 7)
    assert Window(3).is_causal(3, 3)
    assert not Window(3, ahead=1).is_causal(3, 3)
    assert not Everything().is_causal(3, 3)
    assert (Causal() & Padding(np.ones((1, 3), bool))).is_causal(3, 3)
    assert Steps(((Causal(), 3, 3), (None, 1, 4))).is_causal(4, 4)
    assert not Steps(((None, 3, 3), (None, 1, 4))).is_causal(4, 4)
    assert not Steps(((Causal(), 3, 3), (None, 1, 3))).is_causal(4, 3)
    assert (Chunked(2) & Causal()).is_causal(3, 3)
    assert not Chunked(2).is_causal(3, 3)
    assert not Prefix(2).is_causal(3, 3)
    assert Prefix(1).is_causal(3, 3)
    assert Spans(np.array([[0, 1]]), np.array([[1, 2]])).is_causal(2, 2)
    assert not Spans(np.array([[0, 0]]), np.array([[1, 3]])).is_causal(2, 2)


@pytest.mark.parametrize("shape", [(5, 5), (2, 5), (5, 2), (1, 6)])
def test_bands_that_hide_nothing_and_those_that_are_causal(shape):
    causal = plane(Causal(), *shape)
    for rule in (Causal(), Causal(0), Causal(9), Window(2), Window(9), Window(9, ahead=9),
                 Window(2, ahead=None), Window(9, ahead=None), Window(9, offset=1)):  # fmt: skip
        seen = plane(rule, *shape)
        assert rule.hides_nothing(*shape) == bool(seen.all())
        if rule.is_plain(*shape):
            np.testing.assert_array_equal(seen, causal)
    assert Window(9).is_plain(5, 5)
    assert Causal().is_plain(2, 5)
    assert not Window(4).is_plain(5, 5)


def test_joining_is_flat_and_leaves_out_what_adds_nothing():
    a, b, c = Causal(), Window(3), Padding(np.ones((1, 4), bool))
    assert ((a & b) & c).rules == (a & (b & c)).rules == (a, b, c)
    assert join(None, a, Everything()) is a
    assert isinstance(join(None), Everything)
    assert (Causal(), Window(3)) == (Causal(), Window(3))
    assert [repr(rule) for rule in (a, b, Window(2, ahead=1), Causal(0), c)] == [
        "Causal()", "Window(3)", "Window(2, ahead=1)", "Causal(offset=0)",
        "Padding(visible of shape (1, 4))",
    ]  # fmt: skip


def test_window_counts_itself():
    counts = plane(Window(3), 6, 6).sum(-1)
    assert counts.tolist() == [1, 2, 3, 3, 3, 3]
    # `left_window_size=2` elsewhere means two earlier keys: three in all.
    v = np.arange(1.0, 6.0)[:, None]
    zeros = np.zeros((5, 4))
    out, _, _ = jumok.attention(zeros, zeros, v, Window(3))
    np.testing.assert_allclose(out[:, 0], [1, 1.5, 2, 3, 4])


def test_bad_rules_are_refused():
    for bad in (0, -2):
        with pytest.raises(ValueError, match=f"size={bad}"):
            Window(bad)
    with pytest.raises(ValueError, match="ahead=-1"):
        Window(3, ahead=-1)
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        Padding(np.ones(3, bool))
    with pytest.raises(ValueError, match="size=0"):
        Chunked(0)
    with pytest.raises(ValueError, match="length=-1"):
        Prefix(-1)
    with pytest.raises(ValueError, match=r"got shape \(2, 1\)"):
        Prefix(np.ones((2, 1), int))
    with pytest.raises(ValueError, match=r"got shapes \(1, 3\) and \(1, 2\)"):
        Spans(np.zeros((1, 3), int), np.zeros((1, 2), int))
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        Packed(np.zeros(3, int))
    like = np.zeros(1)
    with pytest.raises(ValueError, match=r"of 3 keys.*there are 4"):
        Packed(np.zeros((1, 3), int)).tile(range(4), range(4), 4, 4, like)
    with pytest.raises(ValueError, match=r"of 3 queries.*there are 4"):
        Spans(*np.zeros((2, 1, 3), int)).tile(range(4), range(4), 4, 4, like)
    with pytest.raises(ValueError, match=r"has 3 keys.*there are 4"):
        Padding(np.ones((1, 3), bool)).tile(range(4), range(4), 4, 4, like)
    with pytest.raises(ValueError, match=r"shape \(2, 3\).*= \(4, 4\)"):
        Dense(np.ones((2, 3), bool)).tile(range(4), range(4), 4, 4, like)


# -- what users pass --------------------------------------------------------------------------


@every_library
@pytest.mark.parametrize(
    ("mask", "output"),
    [
        ([True, False], 0.0),
        ([1, 0], 0.0),
        ([0.0, -math.inf], 0.0),
        ([0.0, float(np.finfo("f4").min)], 0.0),
        ([0.0, 1.0], None),
        ([0.0, 2.0], 1 / (1 + math.exp(-2))),
    ],
)
def test_what_a_users_mask_means(xp, mask, output):
    """V = [0, 1], Q = K = 0: the output is the weight of the second key."""
    zeros = xp.zeros((2, 4), dtype=xp.float32)
    v = xp.asarray([[0.0], [1.0]], dtype=xp.float32)
    dtype = xp.float32 if isinstance(mask[0], float) else None
    if output is None:
        with pytest.raises(ValueError, match="ambiguous"):
            jumok.attention(zeros[:1, :], zeros, v, xp.asarray(mask, dtype=dtype))
        return
    out, _, _ = jumok.attention(zeros[:1, :], zeros, v, xp.asarray(mask, dtype=dtype))
    assert float(out[0, 0]) == pytest.approx(output, abs=1e-6)


def test_users_masks_that_could_mean_anything_are_refused():
    with pytest.raises(ValueError, match=r"holds \[0, 2\]"):
        read_mask(np.array([2, 0]))
    with pytest.raises(ValueError, match=r"`mask == 1` if 1 means 'may attend'"):
        read_mask(np.array([1.0, 0.0]))
    with pytest.raises(TypeError, match="got str"):
        read_mask("causal")
    with pytest.raises(TypeError, match="complex"):
        read_mask(np.array([1j]))
    assert read_mask(None) == (None, None)
    rule, bias = read_mask([[True, False]])
    assert isinstance(rule, Dense)
    assert bias is None
    assert read_mask(np.zeros((2, 2)))[0] is None  # zeros add nothing: no ambiguity


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(st.sampled_from(RULES), min_size=1, max_size=3),
)
def test_joined_rules_are_the_intersection(n_queries, n_keys, rules):
    expected = np.logical_and.reduce([plane(rule, n_queries, n_keys) for rule in rules])
    joined = join(*rules).dense(n_queries, n_keys, np.zeros(1))
    joined = np.broadcast_to(joined, (1, 1, *expected.shape))[0, 0]
    np.testing.assert_array_equal(joined, expected)


@pytest.mark.parametrize(
    "rule",
    [
        Padding(np.array([[False, True, True, False, True]])),
        Dense(np.array([[True, False, False, True, False], [False, False, True, True, False]])),
        Spans(np.array([[1, 3]]), np.array([[2, 4]])),
        Steps(((Padding(np.array([[False, True, True]])), 1, 3), (None, 1, 4))),
        Steps(((Padding(np.array([[False, True, True]])), 1, 3), (Tail(2, Causal()), 1, 5))),
        Tail(2, Padding(np.array([[True, False, True]]))),
        Padding(np.array([[False, True, True, True, False]]))
        & Spans(np.array([[0]]), np.array([[3]])),
    ],
    ids=repr,
)  # fmt: skip
def test_keys_that_anybody_sees(rule):
    like = np.zeros(1)
    found = rule.seen_keys(5, like)
    expected = np.broadcast_to(rule.dense(2, 5, like), (1, 1, 2, 5)).any(axis=2)
    np.testing.assert_array_equal(np.broadcast_to(found, (1, 1, 5)), expected)


@pytest.mark.parametrize("rule", [Everything(), Causal(), Window(2), Chunked(2), Prefix(2)])
def test_of_bands_all_keys_are_seen(rule):
    assert rule.seen_keys(5, np.zeros(1)) is None
    assert rule.dense(5, 5, np.zeros(1)).any(axis=0).all()
