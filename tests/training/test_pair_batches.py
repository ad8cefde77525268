"""Batches of pairs: each pair once an epoch, of like length, the target shifted once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from jumok.training.batches import IGNORED, Batch
from jumok.training.corpus import read_corpus
from jumok.training.new_tokenizer import new_tokenizer
from jumok.training.pair_batches import Pairs
from jumok.training.tokenise import tokenise
from small_token_files import token_file

BOS, PAD, EOS = 1, 0, 2


def pairs(folder: Path, n_pairs: int, batch: int = 4, context: int = 64, most: int = 12) -> Pairs:
    """Pair i has the source [10 + i, …] and the target [10 + i, …, EOS]."""
    chance = random.Random(0)
    documents = []
    for number in range(n_pairs):
        documents.append([10 + number] * chance.randint(1, most))
        documents.append([10 + number] * chance.randint(1, most) + [EOS])
    return Pairs(token_file(folder, documents, "seq2seq"), batch, 0, context, BOS, PAD)


def sources(batch: Batch) -> list[int]:
    return [int(row[0]) - 10 for row in batch.ids]


@pytest.mark.parametrize("n_pairs", [1, 3, 40, 137, 300])
def test_every_pair_comes_once_an_epoch(tmp_path: Path, n_pairs: int) -> None:
    batches = pairs(tmp_path, n_pairs)
    rows = [row for step in range(3 * batches.n_batches) for row in sources(batches(step))]
    for epoch in range(3):
        assert sorted(rows[epoch * n_pairs : (epoch + 1) * n_pairs]) == list(range(n_pairs))
    if n_pairs > 3:
        assert rows[:n_pairs] != rows[n_pairs : 2 * n_pairs]


def test_a_pair_is_padded_masked_and_shifted_once(tmp_path: Path) -> None:
    batches = pairs(tmp_path, 40)
    for step in range(10):
        batch = batches(step)
        assert batch.target_ids is not None
        mask = torch.ones_like(batch.ids, dtype=torch.bool) if batch.mask is None else batch.mask
        for row in range(4):
            n = int(batch.ids[row][0])
            assert (batch.ids[row][mask[row]] == n).all()
            assert (batch.ids[row][~mask[row]] == PAD).all()
            answers = batch.targets[row][batch.targets[row] != IGNORED].tolist()
            assert answers == [n] * (len(answers) - 1) + [EOS]
            read = batch.target_ids[row].tolist()
            assert read == [BOS, *answers[:-1]] + [PAD] * (len(read) - len(answers))
            if batch.target_mask is not None:
                assert batch.target_mask[row].tolist() == [
                    place < len(answers) for place in range(len(read))
                ]
        assert batch.n_targets == int((batch.targets != IGNORED).sum())


@pytest.mark.parametrize("world", [2, 4])
def test_any_number_of_processes_has_the_same_pairs(tmp_path: Path, world: int) -> None:
    batches = pairs(tmp_path, 50)
    for step in (0, 7, 30):
        shared = [row for rank in range(world) for row in sources(batches(step, rank, world))]
        assert shared == sources(batches(step))


def test_a_batch_depends_on_its_step_alone(tmp_path: Path) -> None:
    batches = pairs(tmp_path, 300)
    forwards = [sources(batches(step)) for step in range(100)]
    again = pairs(tmp_path, 300)
    assert [sources(again(step)) for step in reversed(range(100))] == forwards[::-1]


def test_pairs_of_a_batch_have_like_lengths(tmp_path: Path) -> None:
    """Half of all places would be padding in batches of any pairs."""
    batches = pairs(tmp_path, 2000, batch=16, most=100, context=200)
    real = total = 0
    for step in range(batches.n_batches - 1):
        batch = batches(step)
        real += batch.n_targets
        total += batch.targets.numel()
    assert real / total > 0.85


def test_pairs_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    everything = pairs(tmp_path, 60)
    kept = [
        number
        for number in range(60)
        if everything.tokens.lengths(torch.tensor([2 * number, 2 * number + 1]).numpy()).max() <= 8
    ]
    batches = Pairs(everything.tokens, 4, 0, 8, BOS, PAD)
    assert batches.n_left_out == 60 - len(kept) > 0
    assert batches.n_rows == len(kept)
    rows = [row for batch in batches.once() for row in sources(batch)]
    assert rows == kept
    with pytest.raises(ValueError, match="all 60 pairs have a side of more than context=0"):
        Pairs(everything.tokens, 4, 0, 0, BOS, PAD)


def test_a_task_of_dates(tmp_path: Path) -> None:
    corpus = read_corpus("task:dates:100", pairs=True)
    tokenizer = new_tokenizer("bytes", corpus, 0, tmp_path, family="seq2seq")
    tokens = tokenise(corpus, tokenizer, tmp_path, family="seq2seq").train
    bos_id, eos_id = tokenizer.bos_id, tokenizer.eos_id
    assert bos_id is not None
    batch = next(iter(Pairs(tokens, 100, 0, 64, bos_id, 0).once()))
    for row, (source, target) in enumerate(corpus.documents()):
        assert tokenizer.decode(batch.ids[row].tolist()).rstrip("\0") == source
        answers = batch.targets[row][batch.targets[row] != IGNORED].tolist()
        assert answers == [*target.encode(), eos_id]
        assert batch.ids[row][len(source.encode())] == eos_id
