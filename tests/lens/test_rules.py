"""Mask rules as data: written down and read back, they say the same."""

import json

import numpy as np
import pytest

from jumok.lens.rules import mask_arrays, read_written_mask, with_arrays, written_mask
from jumok.masks import (
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
)
from jumok.masks.tail import Tail

QUERIES, KEYS = 5, 7
random = np.random.default_rng(0)
VISIBLE = random.random((2, KEYS)) > 0.3
RULES = [
    Causal(),
    Causal(offset=1),
    Window(3, ahead=1, offset=2),
    Chunked(2),
    Prefix(3),
    Prefix(np.array([1, 4])),
    Padding(VISIBLE),
    Dense(random.random((2, 3, QUERIES, KEYS)) > 0.5),
    Spans(np.array([[0, 1, 1, 2, 6]]), np.array([[1, 3, 1, 6, 7]])),
    Packed(np.array([[0, 0, 1, 1, 1, 2, 2]])) & Causal(),
    Padding(VISIBLE) & Window(4),
    Tail(3, Causal()),
    Tail(3, Padding(VISIBLE[:, 3:]) & Window(2)),
    Steps(((Causal(), 3, 4), (None, 1, 5), (Tail(2, Everything()), 1, 7))),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_rule_that_is_written_and_read_says_the_same(rule):
    like = np.zeros(1)
    arrays = {}

    def add(name, array):
        arrays[name] = array
        return name

    written = json.loads(json.dumps(written_mask(rule, "mask", add)))
    found = read_written_mask(written, arrays.__getitem__)
    plane = np.broadcast_to(rule.dense(QUERIES, KEYS, like), (2, 3, QUERIES, KEYS))
    assert len(arrays) == len(list(mask_arrays(rule)))
    for other in (found, with_arrays(rule, np.copy)):
        assert type(other) is type(rule)
        np.testing.assert_array_equal(other.dense(QUERIES, KEYS, like) & plane, plane)
        np.testing.assert_array_equal(other.dense(QUERIES, KEYS, like) | plane, plane)
        assert other.is_causal(QUERIES, KEYS) == rule.is_causal(QUERIES, KEYS)


def test_a_tail_hides_what_was_dropped_and_shifts_the_rest():
    like = np.zeros(1)
    rule = Tail(3, Causal())
    expected = np.zeros((2, KEYS), bool)
    expected[0, 3:6] = expected[1, 3:7] = True
    np.testing.assert_array_equal(rule.dense(2, KEYS, like), expected)
    assert rule.visible_columns(range(1), 2, KEYS) == range(3, 6)
    for low in range(KEYS):
        for high in range(low + 1, KEYS + 1):
            tile = rule.tile(range(2), range(low, high), 2, KEYS, like)
            whole = np.broadcast_to(tile, (2, high - low))
            np.testing.assert_array_equal(whole, expected[:, low:high])


def test_unknown_rules_are_refused():
    class Mine(Causal):
        pass

    with pytest.raises(TypeError, match="Mine cannot be recorded"):
        list(mask_arrays(Mine()))
    with pytest.raises(KeyError):
        read_written_mask({"rule": "mine"}, {}.__getitem__)
