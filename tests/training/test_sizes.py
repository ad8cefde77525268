"""Models from settings: what they are made of, and what a step of them is counted as."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from jumok import Config, Decoder, Encoder, EncoderDecoder, save
from jumok.tokens import Tokenizer
from jumok.training.batches import Batch
from jumok.training.corpus import read_corpus
from jumok.training.machine import flops_of, has_bfloat16, machine_name, peak_flops
from jumok.training.new_tokenizer import new_tokenizer
from jumok.training.settings import SIZES, Training
from jumok.training.sizes import describe, family_of, load_base, new_model, plain, row_length

SMALL = {"emb_dim": 48, "n_layers": 2, "n_heads": 4, "context": 16}


def _training(**settings: object) -> Training:
    return Training("topics", "out", **{**SMALL, **settings})  # type: ignore[arg-type]


def _tokenizer(folder: Path, family: str = "gpt") -> Tokenizer:
    return new_tokenizer("bytes", read_corpus("topics"), 0, folder, family=family)


@pytest.mark.parametrize(
    ("family", "kind"), [("gpt", Decoder), ("bert", Encoder), ("seq2seq", EncoderDecoder)]
)
def test_each_family_can_be_saved_for_others(family: str, kind: type, tmp_path: Path) -> None:
    model = new_model(_training(family=family, dropout=0.1), _tokenizer(tmp_path, family))
    assert isinstance(model, kind)
    assert family_of(model) == family
    model.config = plain(model.config)
    save(model, tmp_path)
    assert "width 48" in describe(model)


def test_the_feed_forward_of_a_gpt_has_as_many_weights_as_an_ungated_one() -> None:
    for size in SIZES.values():
        gated = -(-8 * size.emb_dim // 3 // 64) * 64
        assert abs(3 * gated / (8 * size.emb_dim) - 1) < 0.15


def test_a_base_is_settled_by_its_folder(tmp_path: Path) -> None:
    model = Decoder(Config(300, 32, 1, 2, context=64))
    save(model, tmp_path, _tokenizer(tmp_path))
    found, tokenizer = load_base(Training("topics", "out", base=str(tmp_path), dropout=0.25))
    assert tokenizer.vocab_size
    assert {m.p for m in found.modules() if isinstance(m, torch.nn.Dropout)} >= {0.25}
    assert row_length(Training("topics", "out", base="x"), found) == 64
    assert row_length(Training("topics", "out", base="x", context=9), found) == 9
    with pytest.raises(ValueError, match="made for 64 tokens at most"):
        row_length(Training("topics", "out", base="x", context=65), found)


def test_flops_of_a_step_by_hand() -> None:
    """Kaplan et al. 2020's 6 N a token, and attention's 12 · T/2 · E a layer and token."""
    model = Decoder(Config(100, 32, 2, 4, hidden_dim=64))
    ids = torch.zeros(3, 10, dtype=torch.long)
    matrices = 2 * (4 * 32 * 32 + 3 * 32 * 64) + 100 * 32
    wanted = 6 * matrices * 30 + 2 * 12 * 32 * 30 * 10 / 2
    assert flops_of(model, Batch(ids, ids)) == wanted


def test_flops_of_an_encoder_count_the_masked_alone() -> None:
    config = Config(100, 32, 2, 4, hidden_dim=64, masked_head=True)
    ids = torch.zeros(3, 10, dtype=torch.long)
    targets = torch.full_like(ids, -100)
    targets[0, :4] = 1
    difference = flops_of(Encoder(config), Batch(ids, ids)) - flops_of(
        Encoder(config), Batch(ids, targets)
    )
    assert difference == 6 * 100 * 32 * 26


def test_the_machine_is_measured_and_named() -> None:
    cpu = torch.device("cpu")
    assert peak_flops(cpu, torch.float32, seconds=0.01) > 1e8
    assert "thread" in machine_name(cpu)
    assert isinstance(has_bfloat16(cpu), bool)
