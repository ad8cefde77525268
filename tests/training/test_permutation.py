"""A shuffle that is a formula: a bijection of every size, and well mixed."""

from __future__ import annotations

import numpy as np
import pytest

from jumok.training.permutation import Permutation, hashed


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 1000, 4097])
def test_every_number_comes_once(size: int) -> None:
    found = Permutation(size, (3, 1))(np.arange(size))
    assert sorted(found.tolist()) == list(range(size))


def test_places_can_be_asked_for_one_at_a_time() -> None:
    order = Permutation(100, (0, 0))
    assert [int(order(place)[0]) for place in range(100)] == order(np.arange(100)).tolist()


def test_keys_give_other_orders() -> None:
    places = np.arange(1000)
    orders = {
        tuple(Permutation(1000, (seed, epoch))(places)) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(orders) == 4
    one, other = (np.array(order) for order in list(orders)[:2])
    assert (one == other).mean() < 0.01


def test_neighbours_are_scattered() -> None:
    """A random order has distances of a third of the size on average."""
    found = Permutation(10_000, (5,))(np.arange(10_000))
    assert np.abs(np.diff(found)).mean() == pytest.approx(10_000 / 3, rel=0.05)
    assert abs(np.corrcoef(found, np.arange(10_000))[0, 1]) < 0.05


def test_a_size_that_no_memory_holds() -> None:
    size = 10**12
    found = Permutation(size, (7,))(np.array([0, 1, size - 1]))
    assert ((found >= 0) & (found < size)).all()
    assert len(set(found.tolist())) == 3


def test_hashed_bits_are_known_and_even() -> None:
    """The values that belong to a run must never change: seeds would mean other batches."""
    assert hashed(0, 0).tolist() == [hashed(0, np.array([0]))[0]]
    assert hashed(1).tolist() == [10451216379200822465]  # SplitMix64 of the seed 1
    bits = hashed(2, np.arange(20_000))
    ones = [((bits >> np.uint64(bit)) & np.uint64(1)).mean() for bit in range(64)]
    assert max(abs(np.array(ones) - 0.5)) < 0.02
