"""Batches of (source, target) pairs of like length."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from jumok.training.batches import IGNORED, Batch, Batches, Numbers
from jumok.training.permutation import Permutation
from jumok.training.token_file import TokenFile

__all__ = ["Pairs"]

_POOL = 32  # batches whose pairs are sorted by length together
_CHUNK = 1 << 20  # pairs whose lengths are looked at together


class Pairs(Batches):
    """Sources and targets, padded on the right; a row is a pair.

    In each epoch the pairs are shuffled, taken in pools of 32 batches, sorted by length within
    the pool, cut into batches, and those shuffled: little padding, and no state.

    The target is read from its beginning token on and shifted once: ``target_ids`` are
    [bos, y₁ … yₙ₋₁] where ``targets`` are [y₁ … yₙ], the end-of-text token included.

    Args:
        tokens: what to learn from.
        batch: pairs of a step, of all processes together.
        seed: of the order.
        context: tokens of a source and of a target at most; longer pairs are left out.
        bos_id: what the decoder reads first.
        pad_id: fills the rows; a mask says where.

    Attributes:
        n_left_out: pairs that are too long.

    Raises:
        ValueError: all pairs are too long.
    """

    def __init__(
        self, tokens: TokenFile, batch: int, seed: int, context: int, bos_id: int, pad_id: int
    ) -> None:
        super().__init__(tokens, batch, seed)
        self._context, self._bos_id, self._pad_id = context, bos_id, pad_id
        n_pairs = len(tokens) // 2
        too_long = [
            begin + np.flatnonzero((self._both(np.arange(begin, end)) > context).any(axis=1))
            for begin, end in (
                (begin, min(begin + _CHUNK, n_pairs)) for begin in range(0, n_pairs, _CHUNK)
            )
        ]
        left_out = np.concatenate(too_long)
        self.n_left_out = len(left_out)
        self.n_rows = n_pairs - self.n_left_out
        if not self.n_rows:
            raise ValueError(
                f"all {n_pairs:,} pairs have a side of more than context={context} tokens; take a "
                f"larger context"
            )
        # How many pairs are kept before each that is left out: finds the n-th that is kept.
        self._kept_before = left_out - np.arange(self.n_left_out)
        self._pools: dict[tuple[int, int], Numbers] = {}

    @property
    def tokens_per_batch(self) -> int:
        return max(1, self.batch * self.tokens.n_tokens // (len(self.tokens) // 2))

    def rows(self, epochs: Numbers, rows: Numbers) -> Batch:
        pairs = rows + np.searchsorted(self._kept_before, rows, side="right")
        sources = [self.tokens.document(2 * pair) for pair in pairs.tolist()]
        targets = [self.tokens.document(2 * pair + 1) for pair in pairs.tolist()]
        read = [np.append(self._bos_id, target[:-1]) for target in targets]
        ids, mask = _padded(sources, self._pad_id)
        target_ids, target_mask = _padded(read, self._pad_id)
        answers, _ = _padded(targets, IGNORED)
        return Batch(ids, answers, mask, target_ids, target_mask)

    def _ordered(self, epochs: Numbers, places: Numbers) -> Numbers:
        size = _POOL * self.batch
        pools = zip(epochs.tolist(), (places // size).tolist(), strict=True)
        found = [self._pool(*pool)[place % size] for pool, place in zip(pools, places, strict=True)]
        return np.array(found)

    def _pool(self, epoch: int, number: int) -> Numbers:
        """The rows of a pool in the order in which they are read."""
        if (epoch, number) not in self._pools:
            size = _POOL * self.batch
            places = np.arange(number * size, min((number + 1) * size, self.n_rows))
            rows = self._order(epoch)(places)
            both = self._both(rows + np.searchsorted(self._kept_before, rows, side="right"))
            rows = rows[np.lexsort((both[:, 0], both[:, 1]))]
            # Whole batches are shuffled; what is left over stays at the end.
            whole = len(rows) // self.batch
            order = Permutation(max(1, whole), (6, self.seed, epoch, number))(np.arange(whole))
            parts = [rows[at * self.batch : (at + 1) * self.batch] for at in order]
            self._pools = dict([*self._pools.items()][-1:])
            self._pools[epoch, number] = np.concatenate([*parts, rows[whole * self.batch :]])
        return self._pools[epoch, number]

    def _both(self, pairs: Numbers) -> Numbers:
        """Tokens of source and target, (pairs, 2)."""
        sides = np.stack([2 * pairs, 2 * pairs + 1], axis=1)
        return self.tokens.lengths(sides.ravel()).reshape(sides.shape)


def _padded(rows: list[Any], fill: int) -> tuple[Tensor, Tensor | None]:
    """Rows of one length, and which of their places are real; `None` if all are."""
    longest = max(map(len, rows))
    found, mask = np.full((len(rows), longest), fill), np.zeros((len(rows), longest), bool)
    for place, row in enumerate(rows):
        found[place, : len(row)], mask[place, : len(row)] = row, True
    return torch.from_numpy(found), None if mask.all() else torch.from_numpy(mask)
