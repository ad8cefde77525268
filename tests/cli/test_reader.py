"""Which models the command reads with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import byte_tokenizer

import jumok

SMALL = {"vocab_size": 258, "emb_dim": 16, "n_layers": 2, "n_heads": 2}


@pytest.fixture(scope="module")
def opt(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A family that jumok doesn't build."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.OPTConfig(
        vocab_size=258,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=16,
        max_position_embeddings=40,
        word_embed_proj_dim=16,
    )
    folder = tmp_path_factory.mktemp("opt")
    transformers.OPTForCausalLM(config).save_pretrained(folder)
    byte_tokenizer(special=False).save(folder)
    return str(folder)


def test_a_model_that_transformers_runs(opt: str, run: Any) -> None:
    code, out, _ = run("look", "apple pie and apple", "--word", "apple", "--model", opt)
    assert code == 0
    assert "pie" in out
    code, out, _ = run("generate", "apple", "--model", opt, "--tokens", "3", "--seed", "1")
    assert (code, out.startswith("apple")) == (0, True)


def test_an_encoder_decoder_has_no_report(tmp_path: Path, refused: Any) -> None:
    config = jumok.EncoderDecoderConfig.vaswani(**SMALL, bos_id=256)
    jumok.save(jumok.EncoderDecoder(config), tmp_path, byte_tokenizer(special=False))
    line = refused("report", "apple pie", "--model", str(tmp_path))
    assert "has an encoder and a decoder" in line
