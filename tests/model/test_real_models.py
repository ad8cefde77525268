"""The embedded models against transformers on the same weights: the proof."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.model.peers import answer

import jumok
from jumok.model.checkpoints import write_folder
from jumok.model.zoo import ZOO, model_folder

TEXT = (
    "The bank of the river was muddy. The money was deposited in the bank. An apple and an orange "
    "lay beside the apple phone, and Tom ate the dog before the dog ate Tom. "
) * 6
SENTENCES = [
    "An apple and orange.",
    "The bank of the river was muddy. The money was deposited in the bank.",
    "사과",
]


@cache
def loaded(name: str) -> tuple[Any, Any]:
    return jumok.load(name)


@cache
def llama() -> Any:
    model = transformers.LlamaForCausalLM.from_pretrained(
        model_folder("smollm2"), dtype=torch.float32
    )
    return model.eval()


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_size_on_disk(name: str) -> None:
    kept = sum(path.stat().st_size for path in model_folder(name).iterdir())
    assert kept == pytest.approx(ZOO[name].disk_size, abs=10_000)


def test_smollm2_logits_over_200_tokens() -> None:
    model, tokenizer = loaded("smollm2")
    ids = torch.tensor([tokenizer.encode(TEXT)[:200]])
    assert ids.shape == (1, 200)
    with torch.no_grad():
        logits = model(ids)
    assert logits.shape == (1, 200, 49_152)
    torch.testing.assert_close(logits, answer(llama(), ids), rtol=0, atol=1e-3)


def test_smollm2_generates_the_same_50_tokens() -> None:
    model, tokenizer = loaded("smollm2")
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    found = jumok.generate(model, ids, 50, 0, stop=None)
    llama().generation_config.eos_token_id = None  # nothing ends the text before 50 tokens
    expected = llama().generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=50, do_sample=False
    )
    assert found.tolist() == expected.tolist()
    assert tokenizer.decode(found[0, ids.shape[1] :].tolist()).startswith(" Paris")


def test_minilm_hidden_states_of_a_padded_batch() -> None:
    model, tokenizer = loaded("minilm")
    bert = transformers.BertModel.from_pretrained(model_folder("minilm")).eval()
    encoded = [tokenizer.encode(sentence) for sentence in SENTENCES]
    longest = max(map(len, encoded))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in encoded])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in encoded])
    with torch.no_grad():
        found = model(ids, mask)
        alone = model(torch.tensor([encoded[0]]))
    expected = answer(bert, ids, mask)
    assert expected.std() > 0.3
    real = mask == 1
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-5)
    # What stands in padding is read by nobody; its last digits depend on the kernel.
    torch.testing.assert_close(found[~real], expected[~real], rtol=0, atol=1e-4)
    torch.testing.assert_close(found[:1, : len(encoded[0])], alone, rtol=0, atol=1e-5)


def test_minilm_at_its_whole_length_and_beyond() -> None:
    model, tokenizer = loaded("minilm")
    bert = transformers.BertModel.from_pretrained(model_folder("minilm")).eval()
    ids = torch.tensor([tokenizer.encode(TEXT * 3)[:513]])
    with torch.no_grad():
        torch.testing.assert_close(
            model(ids[:, :512]), answer(bert, ids[:, :512]), rtol=0, atol=1e-5
        )
        with pytest.raises(ValueError, match=r"513 tokens.*512 positions"):
            model(ids)


def test_minilm_written_again_is_whole(tmp_path: Path) -> None:
    model, _ = loaded("minilm")
    write_folder(model, tmp_path)
    again, report = transformers.BertModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())  # the pooler is there too
    ids = torch.tensor([[101, 6207, 102]])
    with torch.no_grad():
        expected = again.eval()(ids)
        hidden = model(ids)
    torch.testing.assert_close(hidden, expected.last_hidden_state, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.pooled(hidden), expected.pooler_output, rtol=0, atol=1e-5)
