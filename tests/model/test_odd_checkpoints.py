"""Folders that are not as they should be, and models that no family can say."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, load_model, save_file, save_model
from tests.model.peers import answer, peer, random_ids, reopened

from jumok.model.checkpoints import read_folder, write_folder
from jumok.model.config import Config, EncoderDecoderConfig, Relative
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.transformer import Decoder

TOLERANCE: dict[str, Any] = {"rtol": 0, "atol": 1e-5}


def copied(name: str, folder: Path) -> Path:
    peer(name).save_pretrained(folder)
    return folder


def change(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **settings: Any) -> Path:
    """Write a folder anew with other tensors and settings."""
    if tensors is not None:
        path = folder / "model.safetensors"
        whole = {**load_file(path), **tensors}
        save_file({name: one.contiguous() for name, one in whole.items()}, path, {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": "67"}, r"vocab_size = '67', where an integer is due"),
        ({"num_hidden_layers": -1}, r"num_hidden_layers = -1, which must be at least 1"),
        ({"num_attention_heads": 0}, r"num_attention_heads = 0, which must be at least 1"),
        ({"hidden_size": True}, r"hidden_size = True, where an integer is due"),
        ({"rms_norm_eps": "1e-5"}, r"rms_norm_eps = '1e-5', where a number is due"),
        ({"tie_word_embeddings": "no"}, r"tie_word_embeddings = 'no', where true or false"),
        ({"eos_token_id": "</s>"}, r"eos_token_id = '</s>', where an id or a list"),
        ({"bos_token_id": 0.5}, r"bos_token_id = 0\.5, where an id"),
        ({"head_dim": "8"}, r"head_dim = '8', where an integer"),
        ({"num_key_value_heads": 0}, r"num_key_value_heads = 0, which must be at least 1"),
        ({"hidden_act": ["silu"]}, r"hidden_act = \['silu'\] is not supported"),
        ({"rope_theta": "x", "rope_parameters": None}, r"rope_theta = 'x', where a number"),
        ({"rope_parameters": [1]}, r"rotary settings \[1\] are no object"),
        ({"rope_parameters": {"rope_type": "linear"}}, r"lack 'factor'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": None}}, r"lack 'factor'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, r"factor = '2' in the"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, r"a number above 0"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, r"rope_type = 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, r"rope_type = 'longrope'"),
        ({"rope_parameters": {"rope_type": "proportional"}}, r"rope_type = 'proportional'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor.: 0\.5"),
        (
            {"rope_parameters": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                "high_freq_factor": 1.0,
            }},
            r"low_freq_factor must be below",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_named(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        read_folder(change(copied("llama", tmp_path), **settings))


def test_a_number_that_is_null_is_that_of_the_family(tmp_path: Path) -> None:
    ids = random_ids(2, 9)
    plain = read_folder(copied("llama", tmp_path / "one"))
    nulls = {"attention_dropout": None, "max_position_embeddings": None, "rms_norm_eps": None}
    found = read_folder(change(copied("llama", tmp_path / "two"), **nulls))
    assert torch.equal(found(ids), plain(ids))
    assert found.config.context == 2048


def test_a_window_that_is_not_named_is_that_of_the_family(tmp_path: Path) -> None:
    folder = copied("qwen2-window", tmp_path)
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    del settings["sliding_window"], settings["layer_types"]
    path.write_text(json.dumps(settings))
    assert transformers.AutoConfig.from_pretrained(folder).sliding_window == 4096
    assert read_folder(folder).config.layer_windows == (None, 4096, 4096)


@pytest.mark.parametrize(
    ("first", "second", "shapes"),
    [
        ("self_attn.q_proj", "self_attn.k_proj", r"q_proj.weight \(16, 32\), .*ask for \(32, 32\)"),
        ("mlp.gate_proj", "mlp.up_proj", r"gate_proj.weight \(40, 32\), .*ask for \(48, 32\)"),
    ],
)
def test_parts_that_fit_only_together_are_refused(
    first: str, second: str, shapes: str, tmp_path: Path
) -> None:
    """As many rows as are asked for, but not where they are asked for."""
    folder = copied("llama", tmp_path)
    one, other = (f"model.layers.0.{name}.weight" for name in (first, second))
    tensors = load_file(folder / "model.safetensors")
    both = torch.cat([tensors[one], tensors[other]])
    cut = 16 if "attn" in first else 40
    with pytest.raises(ValueError, match=shapes):
        read_folder(change(folder, {one: both[:cut], other: both[cut:]}))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.int64])
def test_quantised_tensors_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = copied("llama", tmp_path)
    name = "model.layers.0.self_attn.o_proj.weight"
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=rf"o_proj\.weight is stored as {kind}, which means"):
        read_folder(change(folder, {name: torch.ones(32, 32).to(dtype)}))


def test_a_file_of_several_dtypes_becomes_the_widest(tmp_path: Path) -> None:
    folder = copied("llama", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    halves = {name: tensors[name].half() for name in list(tensors)[::2]}
    model = read_folder(change(folder, halves))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = random_ids(2, 9)
    torch.testing.assert_close(model(ids), answer(theirs, ids), **TOLERANCE)
    tensors = load_file(folder / "model.safetensors")
    brain = {name: one.bfloat16() for name, one in tensors.items() if one.dtype == torch.float32}
    assert read_folder(change(folder, brain)).embedding.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gemma", "bert"])
def test_narrow_files_are_computed_as_well_as_by_transformers(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Against the same weights in float64."""
    theirs = copy.deepcopy(peer(name)).to(dtype)
    theirs.save_pretrained(tmp_path)
    model, ids = read_folder(tmp_path), random_ids(4, 12)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    truth = answer(copy.deepcopy(theirs).double(), ids)
    errors = [(one.double() - truth).abs().mean() for one in (model(ids), answer(theirs, ids))]
    assert errors[0] < 1.1 * errors[1]
    assert torch.equal(
        read_folder(tmp_path, torch.float32).embedding.weight, model.embedding.weight.float()
    )


def test_shards_are_files_of_the_folder(tmp_path: Path) -> None:
    peer("llama").save_pretrained(tmp_path / "one", max_shard_size="20KB")
    index = tmp_path / "one" / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    name = next(iter(values["weight_map"]))
    values["weight_map"][name] = "../other/model.safetensors"
    index.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"'\.\./other/model.safetensors', which is no file of"):
        read_folder(tmp_path / "one")


def test_folders_of_other_things_say_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(FileNotFoundError, match=r"but model\.gguf: give that file itself"):
        read_folder(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="it is an adapter, which changes another model"):
        read_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="has no 'model_type'"):
        read_folder(tmp_path)
    (tmp_path / "tf_model.h5").write_bytes(b"x")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 9,
        "n_embd": 4, "n_layer": 1, "n_head": 1}))  # fmt: skip
    with pytest.raises(FileNotFoundError, match=r"only tf_model\.h5, which jumok doesn't read"):
        read_folder(tmp_path)


def test_nothing_is_warned_of_before_a_refusal(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """A classifier: no head for tokens, and a tensor that is not used."""
    folder = change(copied("llama", tmp_path), {"score.weight": torch.ones(2, 32)})
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"doesn't use: score\.weight"):
        read_folder(folder)
    assert not recwarn.list


# -- what save says and can say -----------------------------------------------------------------


def test_a_refusal_names_what_the_closest_family_lacks(tmp_path: Path) -> None:
    config = Config(257, 16, 2, 2, norm="layer", suppressed_ids=tuple(range(200)))
    match = r"llama comes closest, but has norm = 'rms' instead of 'layer'\. Change that, or keep"
    with pytest.raises(ValueError, match=match) as refusal:
        write_folder(Decoder(config), tmp_path)
    assert len(str(refusal.value)) < 400
    model = Decoder(replace(config, positions=Relative(), feed_forward="gelu"))
    with pytest.raises(ValueError, match=r"positions = \w+\(\) instead of Relative\(\)"):
        write_folder(model, tmp_path)
    again = Decoder(config)
    save_model(Decoder(config), tmp_path / "weights.safetensors")
    assert load_model(again, tmp_path / "weights.safetensors") == (set(), [])


def test_what_an_encoder_is_not_asked_for_may_be_anything(tmp_path: Path) -> None:
    config = EncoderDecoderConfig.vaswani(67, 32, 1, 4, bos_id=1, eos_ids=(2,), pad_id=0)
    encoder = replace(config.encoder, bos_id=None, eos_ids=(), pad_id=None, suppressed_ids=(5,))
    torch.manual_seed(0)
    model = EncoderDecoder(replace(config, encoder=encoder)).eval()
    write_folder(model, tmp_path)
    source, target = random_ids(2, 9), random_ids(2, 5, 1)
    theirs = answer(reopened("marian", tmp_path), source, decoder_input_ids=target)
    torch.testing.assert_close(theirs, model(source, target), **TOLERANCE)
    assert read_folder(tmp_path).config.eos_ids == (2,)
