"""Batches as a function of the step: nothing to keep, nothing to restore.

    batches = new_batches("gpt", tokens.train, tokenizer, batch=32, context=256, seed=0)
    batches(step)                        # Batch: the 32 rows of a step
    batches(step, rank=1, world=4)       # 8 of them, those of the second of four processes
    for batch in batches.once(): ...     # every row once, in the order of the file

Rows are numbered through all epochs; step s has the rows s · batch … (s + 1) · batch − 1 of that
count, so that no epoch loses its last rows. In each epoch the rows come in another order, which
`Permutation` computes.

For "gpt" and "bert" the documents, each with its end-of-text token, are one ring of tokens, cut
into rows without a gap; each epoch cuts at other places. In one epoch each token is read once
and, for "gpt", is the target once. The last row of an epoch is short; it is filled with padding
that doesn't count.

B rows, T context, Ts and Tt tokens of source and target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jumok.masks import Causal, Mask, Packed
from jumok.tokens import Tokenizer
from jumok.training.permutation import Permutation, hashed
from jumok.training.special import ends_of, frame_of, special_id
from jumok.training.token_file import TokenFile

__all__ = ["IGNORED", "Batch", "Batches", "MaskedTokens", "NextTokens", "new_batches"]

IGNORED = -100
"""The target of a place that doesn't count."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Batch:
    """Rows to learn from.

    Args:
        ids: int64 (B, T), what the model reads; (B, Ts), the source.
        targets: int64 (B, T) or (B, Tt), the right answers; `IGNORED` where none counts.
        mask: bool (B, T) or (B, Ts), True = real token; `None` if all are.
        target_ids: int64 (B, Tt), what the decoder reads: the targets, one place later.
        target_mask: bool (B, Tt), True = real token; `None` if all are.
        documents: int64 (B, T), the document that each token belongs to, where documents in a
            row shall not see each other; see `rule`.
    """

    ids: Tensor
    targets: Tensor
    mask: Tensor | None = None
    target_ids: Tensor | None = None
    target_mask: Tensor | None = None
    documents: Tensor | None = None

    @property
    def n_targets(self) -> int:
        """How many targets count. The loss of a step is the sum over them, divided by this."""
        return int((self.targets != IGNORED).sum())

    @property
    def rule(self) -> Mask | None:
        """Who sees whom, where documents are apart: earlier tokens of the own document."""
        return None if self.documents is None else Causal() & Packed(self.documents)

    def split(self, rows: int) -> list[Batch]:
        """Micro-batches of so many rows; the last may have fewer."""
        parts = [
            self._each(lambda tensor: tensor[begin : begin + rows])  # noqa: B023
            for begin in range(0, len(self.ids), rows)
        ]
        return parts

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, change: Any) -> Batch:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: change(v) for k, v in found.items() if v is not None})


class Batches(ABC):
    """Step number → rows.

    Args:
        tokens: what to learn from.
        batch: rows of a step, of all processes together.
        seed: of the order, and of everything that is drawn.

    Attributes:
        n_rows: in one epoch.
    """

    n_rows: int

    def __init__(self, tokens: TokenFile, batch: int, seed: int) -> None:
        if batch < 1:
            raise ValueError(f"batch={batch}: at least one row a step")
        if not tokens.n_tokens:
            raise ValueError("there are no tokens: the part of the corpus is empty")
        self.tokens, self.batch, self.seed = tokens, batch, seed
        self._orders: dict[int, Permutation] = {}

    @property
    def n_batches(self) -> int:
        """Steps of one epoch, the last one begun included."""
        return -(-self.n_rows // self.batch)

    @property
    @abstractmethod
    def tokens_per_batch(self) -> int:
        """Tokens that are read in one step, by all processes together; on average."""

    def epoch(self, step: int) -> float:
        """How many epochs are behind when a step begins."""
        return step * self.batch / self.n_rows

    def __call__(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The rows of a step that a process takes.

        Over the ranks these are the same rows in the same order for any number of processes.

        Args:
            step: from 0.
            rank: of the process, from 0.
            world: number of processes; it divides ``batch``.

        Raises:
            ValueError: the rows can't be shared evenly.
        """
        if self.batch % world:
            raise ValueError(
                f"batch={self.batch} rows a step can't be shared evenly by {world} processes; "
                f"take a multiple of {world}"
            )
        share = self.batch // world
        first = step * self.batch + rank * share
        epochs, places = np.divmod(np.arange(first, first + share), self.n_rows)
        return self.rows(epochs, self._ordered(epochs, places))

    def once(self) -> Iterator[Batch]:
        """Every row once, in the order of the file."""
        for first in range(0, self.n_rows, self.batch):
            rows = np.arange(first, min(first + self.batch, self.n_rows))
            yield self.rows(np.zeros_like(rows), rows)

    @abstractmethod
    def rows(self, epochs: Numbers, rows: Numbers) -> Batch:
        """Some rows, each of an epoch."""

    def _ordered(self, epochs: Numbers, places: Numbers) -> Numbers:
        """The row at each place of an epoch."""
        found = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            found[here] = self._order(epoch)(places[here])
        return found

    def _order(self, epoch: int) -> Permutation:
        if epoch not in self._orders:
            self._orders = {**dict([*self._orders.items()][-1:])}
            self._orders[epoch] = Permutation(self.n_rows, (1, self.seed, epoch))
        return self._orders[epoch]


class _Ring(Batches):
    """Rows cut out of all tokens, laid out as a ring.

    Args:
        tokens, batch, seed: as for `Batches`.
        size: tokens that a row takes out of the ring.
    """

    def __init__(self, tokens: TokenFile, batch: int, seed: int, size: int) -> None:
        super().__init__(tokens, batch, seed)
        self._size = size
        self.n_rows = -(-tokens.n_tokens // size)

    @property
    def tokens_per_batch(self) -> int:
        return self.batch * self.tokens.n_tokens // self.n_rows

    def _start(self, epoch: int, row: int) -> tuple[int, int]:
        """Where a row begins, and how many tokens it has."""
        n_tokens = self.tokens.n_tokens
        shift = int(hashed(2, self.seed, epoch)[0] % np.uint64(n_tokens)) if epoch else 0
        return row * self._size + shift, min(self._size, n_tokens - row * self._size)


class NextTokens(_Ring):
    """Rows for a GPT: at each place, the target is the token after it.

    Args:
        tokens: what to learn from.
        batch: rows of a step, of all processes together.
        seed: of order and masks.
        context: tokens T of a row.
        pad_id: what fills a short row; nothing is learnt there, and nobody sees it.
        apart: say which document each token belongs to, so that those of a row don't see each
            other.
    """

    def __init__(
        self,
        tokens: TokenFile,
        batch: int,
        seed: int,
        context: int,
        pad_id: int,
        apart: bool = False,
    ) -> None:
        super().__init__(tokens, batch, seed, context)
        self._pad_id, self._apart = pad_id, apart

    def rows(self, epochs: Numbers, rows: Numbers) -> Batch:
        shape = (len(rows), self._size)
        ids, targets = np.full(shape, self._pad_id), np.full(shape, IGNORED)
        documents = np.full(shape, -1) if self._apart else None
        for place, (epoch, row) in enumerate(zip(epochs.tolist(), rows.tolist(), strict=True)):
            start, size = self._start(epoch, row)
            found = self.tokens.read(start, start + size + 1)
            ids[place, :size], targets[place, :size] = found[:-1], found[1:]
            if documents is not None:
                documents[place, :size] = self.tokens.documents_at(start, start + size)
        return Batch(
            torch.from_numpy(ids),
            torch.from_numpy(targets),
            documents=None if documents is None else torch.from_numpy(documents),
        )


class MaskedTokens(_Ring):
    """Rows for a BERT: some tokens are hidden, and those are the targets (Devlin et al. 2018).

    Of the tokens of a row that aren't special, 15 % are chosen, at least one; of those 80 % are
    replaced by the mask, 10 % by any token, and 10 % stay. What is chosen changes with the
    epoch. A row has what the tokenizer puts around a text, and the separator between documents.

    Args:
        tokens: what to learn from.
        batch: rows of a step, of all processes together.
        seed: of order and masks.
        context: tokens T of a row.
        tokenizer: whose special tokens are never chosen or drawn.
        share: how many are chosen.

    Raises:
        ValueError: the tokenizer has no token for a mask, or the context holds nothing.
    """

    def __init__(
        self,
        tokens: TokenFile,
        batch: int,
        seed: int,
        context: int,
        tokenizer: Tokenizer,
        share: float = 0.15,
    ) -> None:
        self._before, self._after = frame_of(tokenizer)
        size = context - len(self._before) - len(self._after)
        if size < 1:
            raise ValueError(
                f"context={context}: a row has no room for a token between the special"
            )
        super().__init__(tokens, batch, seed, size)
        mask_id = special_id(tokenizer, "mask_token")
        if mask_id is None:
            raise ValueError(
                f"{tokenizer} has no token that hides another: name one of its tokens in "
                f'tokenizer_config.json, such as "mask_token": "[MASK]"'
            )
        self._mask_id, self._share, self._context = mask_id, share, context
        pad_id = special_id(tokenizer, "pad_token", "eos_token", "sep_token")
        self._pad_id = mask_id if pad_id is None else pad_id
        special = set(tokenizer.special_ids) | {mask_id, *self._before, *self._after}
        special |= {*ends_of(tokenizer, "bert")[1]}
        every = np.unique(list(tokenizer.backend.get_vocab().values()))
        self._special = np.sort(np.array([*special]))
        self._drawn = every[~np.isin(every, self._special)]

    def rows(self, epochs: Numbers, rows: Numbers) -> Batch:
        shape = (len(rows), self._context)
        ids, targets = np.full(shape, self._pad_id), np.full(shape, IGNORED)
        mask = np.zeros(shape, bool)
        for place, (epoch, row) in enumerate(zip(epochs.tolist(), rows.tolist(), strict=True)):
            start, size = self._start(epoch, row)
            body = self.tokens.read(start, start + size)
            hidden, answers = self._hidden(body, epoch, row)
            begin = len(self._before)
            whole = [*self._before, *hidden.tolist(), *self._after]
            ids[place, : len(whole)] = whole
            mask[place, : len(whole)] = True
            targets[place, begin : begin + size] = answers
        everything = bool(mask.all())
        return Batch(
            torch.from_numpy(ids),
            torch.from_numpy(targets),
            mask=None if everything else torch.from_numpy(mask),
        )

    def _hidden(self, body: Numbers, epoch: int, row: int) -> tuple[Numbers, Numbers]:
        """A row with some tokens hidden, and the right answers there."""
        answers = np.full_like(body, IGNORED)
        ordinary = np.flatnonzero(~np.isin(body, self._special))
        if not ordinary.size:
            return body, answers
        how_many = max(1, round(self._share * ordinary.size))
        draws = hashed(3, self.seed, epoch, row, ordinary)
        chosen = ordinary[np.argsort(draws, kind="stable")[:how_many]]
        answers[chosen] = body[chosen]
        fate = hashed(4, self.seed, epoch, row, chosen) % np.uint64(10)
        other = hashed(5, self.seed, epoch, row, chosen) % np.uint64(len(self._drawn))
        body = body.copy()
        body[chosen] = np.where(
            fate < 8,
            self._mask_id,
            np.where(fate == 8, self._drawn[other.astype(int)], body[chosen]),
        )
        return body, answers


def new_batches(
    family: str,
    tokens: TokenFile,
    tokenizer: Tokenizer,
    *,
    batch: int,
    context: int,
    seed: int = 0,
    apart: bool = False,
    bos_id: int | None = None,
) -> Batches:
    """The batches of a run.

    Args:
        family: "gpt", "bert" or "seq2seq"; that which ``tokens`` were made for.
        tokens: from `tokenise`, one of its parts.
        tokenizer: with which they were made.
        batch: rows (pairs) of a step, of all processes together.
        context: tokens of a row; of a source and of a target at most.
        seed: of order, masks and everything else that is drawn.
        apart: "gpt" only: documents in a row shall not see each other (`Batch.rule`).
        bos_id: "seq2seq" only: what a target begins with; the tokenizer's own if not given.

    Raises:
        ValueError: numbers that can't be, or a tokenizer without a token that is needed.
    """
    if family not in ("gpt", "bert", "seq2seq"):
        raise ValueError(f"family={family!r}: gpt, bert or seq2seq")
    if tokens.about["family"] != family:
        raise ValueError(f"{tokens.path} was made for {tokens.about['family']}, not for {family}")
    if apart and family != "gpt":
        raise ValueError(f"documents that are apart are for gpt, not for {family}")
    if context < 1:
        raise ValueError(f"context={context}: a row has at least one token")
    if family == "bert":
        return MaskedTokens(tokens, batch, seed, context, tokenizer)
    pad_id = special_id(tokenizer, "pad_token", "eos_token", "sep_token")
    assert pad_id is not None  # tokenise has refused a tokenizer without an end
    if family == "gpt":
        return NextTokens(tokens, batch, seed, context, pad_id, apart)
    from jumok.training.pair_batches import Pairs

    start = special_id(tokenizer, "bos_token", "pad_token") if bos_id is None else bos_id
    if start is None:
        raise ValueError(
            f"{tokenizer} has no token that begins a target: name one of its tokens in "
            f'tokenizer_config.json, such as "bos_token": "<s>"'
        )
    return Pairs(tokens, batch, seed, context, start, pad_id)
