"""Order without memory: a shuffle that is a formula, and numbers that a place alone decides.

A shuffled list of a billion rows would have to be kept, and its state saved with every
snapshot. A permutation that can be computed for any single place needs neither: the data
position of a run is its step number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Permutation", "hashed"]

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_ROUNDS = 6


def hashed(*parts: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """64 well mixed bits for each tuple of integers; arrays broadcast.

    Each part is mixed in by the finaliser of SplitMix64 (Steele, Lea, Flood 2014). The same in
    every version of NumPy and on every machine.
    """
    found = np.zeros(np.broadcast_shapes(*(np.shape(part) for part in parts)), np.uint64)
    found = np.atleast_1d(found)
    for part in parts:
        mixed = found + np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found = mixed ^ (mixed >> np.uint64(31))
    return found


class Permutation:
    """A shuffle of the numbers 0 … size − 1.

    A Feistel network over the next power of four, walked until it lands inside (Black, Rogaway
    2002: "Ciphers with arbitrary finite domains"): a bijection, whatever the round function.

    Args:
        size: how many numbers.
        key: integers that choose the shuffle, such as (seed, epoch).

    Example:
        >>> sorted(Permutation(5, (0, 1))(np.arange(5)).tolist())
        [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, key: tuple[int, ...]) -> None:
        assert size >= 1
        self._size = np.uint64(size)
        self._half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self._low = (np.uint64(1) << self._half) - np.uint64(1)
        self._keys = [int(hashed(*key, turn)[0]) for turn in range(_ROUNDS)]

    def __call__(self, places: Any) -> Numbers:
        """The number at each place, both from 0 to ``size`` − 1."""
        found = self._turned(np.atleast_1d(np.asarray(places)).astype(np.uint64))
        while (outside := found >= self._size).any():
            found[outside] = self._turned(found[outside])
        numbers: Numbers = found.astype(np.int64)
        return numbers

    def _turned(self, numbers: Any) -> Any:
        left, right = numbers >> self._half, numbers & self._low
        for key in self._keys:
            left, right = right, left ^ (hashed(key, right) & self._low)
        return (left << self._half) | right
