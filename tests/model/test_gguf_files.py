"""GGUF files, written here from a tiny Llama of transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tests.model.peers import answer, peer, random_ids
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from jumok.model.gguf_files import open_gguf, read_gguf, unpermuted
from jumok.positions import Llama3Scaling, rotary_frequencies

TOLERANCE = {"rtol": 0, "atol": 1e-5}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def interleaved(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows as llama.cpp stores them: of each head 0, D/2, 1, D/2 + 1, …"""
    dim = len(rows) // n_heads
    order = [
        head * dim + i + half * dim // 2
        for head in range(n_heads)
        for i in range(dim // 2)
        for half in (0, 1)
    ]
    return np.ascontiguousarray(rows[order])


def write(
    path: Path,
    model: Any,
    kind: Kind = Kind.F32,
    *,
    more: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    architecture: str = "llama",
    tied: bool = False,
) -> Path:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if name.startswith("model.layers."):
            _, _, number, rest = name.split(".", 3)
            stored = f"blk.{number}.{LAYER[rest]}"
            if "q_proj" in name:
                values = interleaved(values, config.num_attention_heads)
            elif "k_proj" in name:
                values = interleaved(values, config.num_key_value_heads)
        else:
            stored = {
                "model.embed_tokens.weight": "token_embd.weight",
                "model.norm.weight": "output_norm.weight",
                "lm_head.weight": "output.weight",
            }[name]
            if tied and stored == "output.weight":
                continue
        if values.ndim == 1 or kind == Kind.F32:
            writer.add_tensor(stored, values)
        else:
            writer.add_tensor(stored, gguf.quantize(values, kind), raw_dtype=kind)
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_rows_of_keys_are_unpermuted_by_key_heads() -> None:
    stored = torch.tensor([0, 2, 1, 3, 4, 6, 5, 7])
    assert unpermuted(stored, 2).tolist() == list(range(8))
    assert unpermuted(stored, 1).tolist() != list(range(8))


@pytest.mark.parametrize("name", ["llama", "llama-wide"])
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    model = read_gguf(write(tmp_path / "tiny.gguf", peer(name)))
    ids = random_ids(2, 40)
    torch.testing.assert_close(model(ids), answer(peer(name), ids), **TOLERANCE)
    assert model.config.norm_eps == 1e-6
    assert model.config.eos_ids == (2,)
    assert not model.config.tied_head


def test_weights_are_those_that_transformers_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", peer("llama-wide"), Kind.Q8_0)
    empty = copy.deepcopy(peer("llama-wide"))
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)
    empty.load_state_dict(read["tensors"])
    ids = random_ids(1, 20)
    torch.testing.assert_close(read_gguf(path)(ids), answer(empty, ids), **TOLERANCE)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0])
def test_quantised(kind: Kind, tmp_path: Path) -> None:
    model = peer("llama-wide")
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        if parameter.ndim > 1:
            values = gguf.dequantize(gguf.quantize(parameter.detach().numpy(), kind), kind)
            parameter.data = torch.from_numpy(values.astype(np.float32))
    read = read_gguf(write(tmp_path / "tiny.gguf", model, kind))
    assert read.embedding.weight.dtype == torch.float32
    ids = random_ids(1, 20)
    torch.testing.assert_close(read(ids), answer(rounded, ids), **TOLERANCE)
    assert not torch.allclose(read(ids), answer(model, ids), **TOLERANCE)


def test_tied_head(tmp_path: Path) -> None:
    model = read_gguf(write(tmp_path / "tiny.gguf", peer("llama"), tied=True))
    assert model.config.tied_head
    ids = random_ids(1, 9)
    hidden = peer("llama").model(ids).last_hidden_state
    expected = hidden @ peer("llama").model.embed_tokens.weight.T
    torch.testing.assert_close(model(ids), expected, **TOLERANCE)


def test_linear_scaling(tmp_path: Path) -> None:
    def scaled(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    model = read_gguf(write(tmp_path / "tiny.gguf", peer("llama-linear"), more=scaled))
    ids = random_ids(1, 40)
    torch.testing.assert_close(model(ids), answer(peer("llama-linear"), ids), **TOLERANCE)


def test_factors_of_llama_3(tmp_path: Path) -> None:
    scaling = Llama3Scaling(32.0, 1.0, 4.0, 8192)
    factors = rotary_frequencies(8, 10_000.0) / rotary_frequencies(8, 10_000.0, scaling)
    path = write(
        tmp_path / "tiny.gguf",
        peer("llama"),
        more=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )
    assert read_gguf(path).config.positions.scaling == scaling
    path = write(
        tmp_path / "odd.gguf",
        peer("llama"),
        more=lambda writer: writer.add_tensor("rope_freqs.weight", factors * 3),
    )
    with pytest.raises(ValueError, match=r"rope_freqs\.weight"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (lambda w: w.add_expert_count(8), "expert_count = 8"),
        (lambda w: w.add_sliding_window(8), "sliding_window = 8"),
        (lambda w: w.add_rope_dimension_count(4), "dimension_count = 4"),
        (lambda w: w.add_tensor("blk.0.attn_sinks.weight", np.ones(4, "f4")), "attn_sinks"),
    ],
)
def test_what_is_not_known_is_named(
    more: Callable[[gguf.GGUFWriter], None], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=named):
        read_gguf(write(tmp_path / "tiny.gguf", peer("llama"), more=more))


def test_other_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'gemma'"):
        read_gguf(write(tmp_path / "tiny.gguf", peer("llama"), architecture="gemma"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no GGUF file"),
        (b"PK\x03\x04", "no GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"GGUF\x03\x00\x00\x00", r"bad\.gguf is cut off or damaged \(8 bytes\)"),
    ],
)
def test_damaged_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_gguf(path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_gguf(tmp_path / "nowhere.gguf")


def test_truncated_file(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", peer("llama"))
    whole = path.read_bytes()
    for size in (10, 30, 500, 2000, 2239, 3000, len(whole) - 2000, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"tiny\.gguf is cut off or damaged \({size:,} bytes"):
            read_gguf(path)


def test_text_that_is_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", peer("llama"), more=lambda w: w.add_name("some name"))
    path.write_bytes(path.read_bytes().replace(b"some name", b"some \xff\xff\xff\xff"))
    with pytest.raises(ValueError, match=r"tiny\.gguf is cut off or damaged"):
        read_gguf(path)
