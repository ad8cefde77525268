"""Batches: every token once an epoch, for any number of processes, from the step alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from jumok.tokens import Tokenizer
from jumok.training.batches import IGNORED, Batch, Batches, NextTokens, new_batches
from jumok.training.corpus import Texts
from jumok.training.new_tokenizer import new_tokenizer
from jumok.training.tokenise import tokenise
from small_token_files import numbered, token_file

PAD = 60_000
LENGTHS = [13, 1, 40, 7, 22, 90, 2, 5, 5, 64]


def next_tokens(folder: Path, context: int = 16, batch: int = 4, **options: bool) -> NextTokens:
    tokens = token_file(folder, numbered(LENGTHS))
    return NextTokens(tokens, batch, 0, context, PAD, **options)


def steps_of(batches: Batches, first: int, rows: int) -> list[torch.Tensor]:
    """Ids of so many rows from row ``first`` on, in the order of the steps."""
    found: list[torch.Tensor] = []
    step = first // batches.batch
    skip = first % batches.batch
    while len(found) < skip + rows:
        found += [torch.stack([i, t]) for i, t in zip(*pair(batches(step)), strict=True)]
        step += 1
    return found[skip : skip + rows]


def pair(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return batch.ids, batch.targets


@pytest.mark.parametrize("context", [1, 7, 16, 83, 249])
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_every_token_is_read_once_an_epoch_and_is_a_target_once(
    tmp_path: Path, context: int, epoch: int
) -> None:
    batches = next_tokens(tmp_path, context)
    n = sum(LENGTHS)
    rows = steps_of(batches, epoch * batches.n_rows, batches.n_rows)
    ids = torch.cat([row[0] for row in rows])
    targets = torch.cat([row[1] for row in rows])
    real = targets != IGNORED
    assert sorted(ids[real].tolist()) == sorted(targets[real].tolist()) == list(range(n))
    assert ((ids[real] + 1) % n == targets[real]).all()  # shifted once
    assert (ids[~real] == PAD).all()
    assert (~real).sum() < context


def test_epochs_cut_at_other_places_and_in_another_order(tmp_path: Path) -> None:
    batches = next_tokens(tmp_path)
    firsts = [
        [int(row[0][0]) for row in steps_of(batches, epoch * batches.n_rows, batches.n_rows)]
        for epoch in range(3)
    ]
    assert sorted(firsts[0]) == list(range(0, 249, 16))
    assert firsts[0] != sorted(firsts[0])
    assert len({tuple(sorted(first)) for first in firsts}) == 3


@pytest.mark.parametrize("world", [1, 2, 4])
def test_any_number_of_processes_has_the_same_rows(tmp_path: Path, world: int) -> None:
    batches, fresh = next_tokens(tmp_path), next_tokens(tmp_path)
    for step in (0, 3, 100):
        parts = [batches(step, rank, world) for rank in range(world)]
        assert torch.equal(torch.cat([part.ids for part in parts]), fresh(step).ids)
        assert torch.equal(torch.cat([part.targets for part in parts]), fresh(step).targets)
        assert sum(part.n_targets for part in parts) == fresh(step).n_targets


def test_a_batch_depends_on_its_step_alone(tmp_path: Path) -> None:
    batches = next_tokens(tmp_path)
    forwards = [batches(step).ids for step in range(40)]
    again = next_tokens(tmp_path)
    for step in reversed(range(40)):
        assert torch.equal(again(step).ids, forwards[step])


def test_seeds_give_other_batches(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, numbered(LENGTHS))
    one, other = (NextTokens(tokens, 4, seed, 16, PAD) for seed in (0, 1))
    assert not torch.equal(one(0).ids, other(0).ids)


def test_once_is_every_row_in_order(tmp_path: Path) -> None:
    batches = next_tokens(tmp_path)
    found = torch.cat([batch.ids.flatten() for batch in batches.once()])
    assert found[: sum(LENGTHS)].tolist() == list(range(sum(LENGTHS)))
    assert [len(batch.ids) for batch in batches.once()] == [4] * 4


def test_a_corpus_smaller_than_a_row_fills_one(tmp_path: Path) -> None:
    batches = NextTokens(token_file(tmp_path, [[5, 6, 7]]), 2, 0, 8, PAD)
    assert (batches.n_rows, batches.n_batches) == (1, 1)
    batch = batches(0)
    assert batch.ids[0].tolist() == [5, 6, 7] + [PAD] * 5
    assert batch.targets[0].tolist() == [6, 7, 5] + [IGNORED] * 5
    assert batch.n_targets == 6
    again = {tuple(batches(step).ids[0].tolist()[:3]) for step in range(20)}
    assert again == {(5, 6, 7), (6, 7, 5), (7, 5, 6)}


def test_documents_are_kept_apart_if_asked(tmp_path: Path) -> None:
    batches = next_tokens(tmp_path, apart=True)
    tokens = batches.tokens
    owner = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    for step in range(8):
        batch = batches(step)
        assert batch.documents is not None
        assert batch.rule is not None
        real = batch.targets != IGNORED
        rows, width = batch.ids.shape
        seen = batch.rule.tile(range(width), range(width), width, width, batch.ids)
        for row in range(rows):
            own = owner[batch.ids[row][real[row]].numpy() % tokens.n_tokens]
            size = len(own)
            wanted = (own[:, None] == own[None]) & np.tri(size, dtype=bool)
            # A document that goes around the ring is its end, and then its beginning.
            ring = np.flatnonzero(np.diff(batch.ids[row][:size].numpy()) < 0)
            for place in ring:
                wanted[place + 1 :, : place + 1] = False
            assert (np.asarray(seen)[row, 0, :size, :size] == wanted).all()
            assert not np.asarray(seen)[row, 0, size:, :size].any()
    assert next_tokens(tmp_path)(0).documents is None


def test_splitting_is_by_rows(tmp_path: Path) -> None:
    batch = next_tokens(tmp_path, apart=True)(0)
    parts = batch.split(3)
    assert [len(part.ids) for part in parts] == [3, 1]
    assert torch.equal(torch.cat([part.documents for part in parts]), batch.documents)  # type: ignore[misc]
    assert sum(part.n_targets for part in parts) == batch.n_targets
    assert batch.to("cpu").mask is None


def test_what_can_not_be_is_told(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, numbered([30]))
    with pytest.raises(ValueError, match="batch=4 rows a step can't be shared evenly by 3"):
        NextTokens(tokens, 4, 0, 8, PAD)(0, 0, 3)
    with pytest.raises(ValueError, match="batch=0"):
        NextTokens(tokens, 0, 0, 8, PAD)
    with pytest.raises(ValueError, match="no tokens"):
        NextTokens(tokens.split(0.0).validation, 4, 0, 8, PAD)


def prepared(folder: Path, family: str, texts: list[str]) -> tuple[Tokenizer, Batches]:
    corpus = Texts("texts", texts)
    tokenizer = new_tokenizer("bytes", corpus, 0, folder, family=family)
    tokens = tokenise(corpus, tokenizer, folder, family=family).train
    return tokenizer, new_batches(family, tokens, tokenizer, batch=8, context=32, seed=0)


WORDS = ["".join(chr(97 + (i * j) % 26) for j in range(20 + i)) for i in range(60)]


def test_masked_rows(tmp_path: Path) -> None:
    """15 % chosen; 80 % of them hidden, 10 % another token, 10 % as they were; nothing else."""
    tokenizer, batches = prepared(tmp_path, "bert", WORDS)
    cls_id, sep_id, mask_id, pad_id = (
        tokenizer.backend.token_to_id(t) for t in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")
    )
    seen = Counter[str]()
    bodies: list[int] = []
    for step in range(20 * batches.n_rows // 8):
        batch = batches(step)
        real = torch.ones_like(batch.ids, dtype=torch.bool) if batch.mask is None else batch.mask
        chosen = batch.targets != IGNORED
        assert (batch.ids[:, 0] == cls_id).all()
        assert (batch.ids[~real] == pad_id).all()
        assert not (chosen & ~real).any()
        whole = torch.where(chosen, batch.targets, batch.ids)
        special = (whole == cls_id) | (whole == sep_id) | ~real
        assert not (chosen & special).any()
        assert (whole[~special] < 256).all()
        ordinary = (~special).sum(1)
        assert chosen.sum(1).tolist() == [max(1, round(0.15 * n)) for n in ordinary.tolist()]
        last = real.sum(1) - 1
        assert (whole[torch.arange(len(whole)), last] == sep_id).all()
        hidden = batch.ids[chosen] == mask_id
        kept = batch.ids[chosen] == batch.targets[chosen]
        seen.update(chosen=int(chosen.sum()), hidden=int(hidden.sum()), kept=int(kept.sum()))
        assert (batch.ids[chosen][~hidden] < 256).all()
        bodies += whole[(~special) & (torch.tensor(step) * 8 < batches.n_rows)].tolist()
    assert seen["hidden"] / seen["chosen"] == pytest.approx(0.8, abs=0.02)
    assert seen["kept"] / seen["chosen"] == pytest.approx(0.1, abs=0.02)
    first = steps_of(batches, 0, batches.n_rows)
    whole = torch.cat([torch.where(row[1] != IGNORED, row[1], row[0]) for row in first])
    assert Counter(whole[whole < 256].tolist()) == Counter("".join(WORDS).encode())


def test_what_is_masked_changes_with_the_epoch_only(tmp_path: Path) -> None:
    _, batches = prepared(tmp_path, "bert", ["one short text"])
    rows = [batches(step) for step in range(6)]
    assert torch.equal(batches(2).ids, rows[2].ids)
    assert len({tuple(row.targets[0].tolist()) for row in rows}) > 1


def test_documents_of_a_gpt_have_the_end_token_between(tmp_path: Path) -> None:
    tokenizer, batches = prepared(tmp_path, "gpt", ["ab", "cd"])
    assert next(batches.once()).ids[0, :6].tolist() == [
        *b"ab",
        tokenizer.eos_id,
        *b"cd",
        tokenizer.eos_id,
    ]


def test_batches_of_another_family_are_refused(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, numbered([30]))
    tokenizer = new_tokenizer("bytes", Texts("t", ["a"]), 0, tmp_path / "t")
    for family, options, said in (
        ("bert", {}, "was made for gpt, not for bert"),
        ("vit", {}, "gpt, bert or seq2seq"),
        ("gpt", {"context": 0}, "context=0"),
    ):
        with pytest.raises(ValueError, match=said):
            new_batches(family, tokens, tokenizer, **{"batch": 2, "context": 4, **options})
