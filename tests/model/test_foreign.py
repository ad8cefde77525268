"""Families that jumok does not build: transformers runs them; called and watched like ours."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.model.peers import random_ids
from tests.model.test_generate import byte_tokenizer, said

import jumok
from jumok.model.foreign import ForeignDecoder, ForeignEncoder, ForeignEncoderDecoder
from jumok.model.generate import stream_text

OPT = ("OPTForCausalLM", {"hidden_size": 16, "num_attention_heads": 2, "ffn_dim": 24})
NEOX = ("GPTNeoXForCausalLM", {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 9})
ELECTRA = ("ElectraModel", {"hidden_size": 16, "embedding_size": 8, "num_attention_heads": 2})
BART = (
    "BartForConditionalGeneration",
    {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "decoder_start_token_id": 3,
        "forced_eos_token_id": None,
    },
)
SHARED = {
    "vocab_size": 257,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def peer(name: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    shared = {k: v for k, v in SHARED.items() if "d_model" not in settings or "hidden" not in k}
    model = model_class(model_class.config_class(**shared, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return model


def load(kind: tuple[str, dict[str, Any]], folder: Path) -> tuple[Any, Any]:
    model = peer(*kind)
    model.save_pretrained(folder)
    byte_tokenizer().save(folder)
    loaded, tokenizer = jumok.load(folder)
    assert tokenizer is not None
    return model, loaded


@pytest.mark.parametrize("kind", [OPT, NEOX], ids=["opt", "neox"])
def test_decoders(
    kind: tuple[str, dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "jumok"):
        theirs, model = load(kind, tmp_path)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "jumok"]
    assert "\n" not in line
    assert "is not supported (only llama, mistral, " in line
    assert line.endswith(f"). Transformers runs it ({kind[0]}).")
    assert isinstance(model, ForeignDecoder)
    assert not model.training
    ids = random_ids(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with torch.no_grad():
        assert torch.equal(model(ids), theirs(ids).logits)
        torch.testing.assert_close(model(ids, last=1), model(ids)[:, -1:])
        padded = model(ids, mask)[1, 4:]
        torch.testing.assert_close(padded, model(ids[1:, 4:])[0], rtol=0, atol=1e-5)
        cache = model.new_cache()
        parts = [model(ids[:, :5], mask[:, :5], cache), model(ids[:, 5:], None, cache)]
        found = torch.cat(parts, dim=1)[mask == 1]
        torch.testing.assert_close(found, model(ids, mask)[mask == 1], rtol=0, atol=1e-5)
    expected = theirs.generate(
        ids, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=256
    )
    assert jumok.generate(model, ids, 12, 0, mask=mask, stop=256).tolist() == expected.tolist()
    config = model.config
    assert (config.n_layers, config.n_heads, config.head_dim, config.context) == (2, 2, 8, 64)
    assert (config.vocab_size, config.eos_ids, config.pad_id) == (257, (2,), 0)


def test_an_encoder(tmp_path: Path) -> None:
    theirs, model = load(ELECTRA, tmp_path)
    assert isinstance(model, ForeignEncoder)
    ids = random_ids(2, 9)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    with torch.no_grad():
        found = model(ids, mask)
        assert torch.equal(found, theirs(ids, attention_mask=mask).last_hidden_state)
        mean = found[1, :5].mean(0)
    text = bytes(ids[1, :5].tolist()).decode("latin-1")
    assert said(text) == ids[1, :5].tolist()
    vector = jumok.embed(model, byte_tokenizer(), text, normalize=False)
    torch.testing.assert_close(vector, mean, rtol=0, atol=1e-5)


def test_an_encoder_decoder(tmp_path: Path) -> None:
    theirs, model = load(BART, tmp_path)
    assert isinstance(model, ForeignEncoderDecoder)
    source, target = random_ids(2, 9), random_ids(2, 6)
    mask = torch.ones_like(source)
    mask[1, 5:] = 0
    with torch.no_grad():
        whole = model(source, target, mask)
        kept = {"attention_mask": mask, "decoder_input_ids": target}
        assert torch.equal(whole, theirs(input_ids=source, **kept).logits)
        cache = model.new_cache()
        first = model(source, target[:, :4], mask, cache)
        twin = cache.fork()
        for one in (cache, twin):
            found = torch.cat([first, model(None, target[:, 4:], cache=one)], dim=1)
            torch.testing.assert_close(found, whole, rtol=0, atol=1e-5)
    settings = {"max_new_tokens": 10, "do_sample": False, "num_beams": 1, "eos_token_id": 256}
    expected = theirs.generate(source, attention_mask=mask, **settings)
    assert jumok.generate(model, source, 10, 0, mask=mask, stop=256).tolist() == expected.tolist()
    with pytest.raises(ValueError, match="no source"):
        model(None, target)


def test_the_encoder_of_an_encoder_decoder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As sentence-t5 is stored."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=67, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    )
    inner = transformers.T5EncoderModel(config).eval()
    inner.save_pretrained(tmp_path)
    model, _ = jumok.load(tmp_path)
    assert isinstance(model, ForeignEncoder)
    assert "the encoder of T5 alone is not supported. Transformers runs it" in caplog.text
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
    with torch.no_grad():
        found = model(ids, ids != 0)
        expected = inner(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
    torch.testing.assert_close(found[ids != 0], expected[ids != 0], rtol=0, atol=1e-5)


def test_watched_and_streamed(tmp_path: Path) -> None:
    _, model = load(OPT, tmp_path)
    ids = torch.tensor([said("some text")])
    with torch.no_grad(), jumok.watch(model) as recording:
        model(ids)
    assert len(recording) == 2
    assert recording[1].name.startswith("inner.")
    rows = recording[1][0].sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))
    pieces = list(stream_text(model, byte_tokenizer(), "some text", 8, 0, stop=None))
    steps = jumok.generate(model, ids, 8, 0, stop=None)[0, 9:]
    assert "".join(pieces) == byte_tokenizer().decode(steps.tolist()).rstrip("�")


def test_saved_by_transformers(tmp_path: Path) -> None:
    _, model = load(NEOX, tmp_path / "one")
    jumok.save(model, tmp_path / "two", byte_tokenizer())
    again, _ = jumok.load(tmp_path / "two", dtype="bfloat16")
    assert {parameter.dtype for parameter in again.parameters()} == {torch.bfloat16}
    again, _ = jumok.load(tmp_path / "two")
    ids = random_ids(1, 5)
    with torch.no_grad():
        assert torch.equal(again(ids), model(ids))


def test_settings_that_we_cannot_build_fall_back_too(tmp_path: Path) -> None:
    kind = ("LlamaForCausalLM", {"hidden_size": 16, "num_attention_heads": 2})
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    theirs, model = load((kind[0], {**kind[1], "rope_parameters": rope}), tmp_path)
    assert isinstance(model, ForeignDecoder)
    ids = random_ids(1, 5)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits)


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer(*OPT).save_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"'opt' is not supported.*jumok\[hf\]"):
        jumok.load(tmp_path)


def test_what_transformers_does_not_know_either(tmp_path: Path) -> None:
    peer(*OPT).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"opt"', '"no-such-family"'))
    with pytest.raises(ValueError, match=r"'no-such-family' is not supported.*read it either"):
        jumok.load(tmp_path)


def test_pickles_and_damaged_files_are_refused_as_ever(tmp_path: Path) -> None:
    peer(*OPT).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(weights).items()}
    weights.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        jumok.load(tmp_path)
    weights.unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin.*pickle"):
        jumok.load(tmp_path)
    save_file({"a": torch.ones(1)}, weights)  # sound, but of another model
    with pytest.raises(ValueError, match=r"lacks tensors that OPTForCausalLM needs.*lm_head|model"):
        jumok.load(tmp_path)
