"""GGUF files, written here from a tiny Llama of transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType as ValueType
from tests.model.peers import answer, peer, random_ids, reopened
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from jumok.model.checkpoints import write_folder
from jumok.model.gguf_files import open_gguf, read_gguf, unpermuted
from jumok.positions import Llama3Scaling, rotary_frequencies

TOLERANCE = {"rtol": 0, "atol": 1e-5}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
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
    interleave = interleaved if architecture == "llama" else (lambda rows, n_heads: rows)
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
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if name.startswith("model.layers."):
            _, _, number, rest = name.split(".", 3)
            stored = f"blk.{number}.{LAYER[rest]}"
            if "q_proj" in name:
                values = interleave(values, config.num_attention_heads)
            elif "k_proj" in name:
                values = interleave(values, config.num_key_value_heads)
        else:
            stored = {
                "model.embed_tokens.weight": "token_embd.weight",
                "model.norm.weight": "output_norm.weight",
                "lm_head.weight": "output.weight",
            }[name]
            if tied and stored == "output.weight":
                continue
        if architecture == "gemma" and stored.endswith("norm.weight"):
            values = values + 1  # as llama.cpp's converter does
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


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
)
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


class Altered(gguf.GGUFWriter):
    """Settings and tensors that are written otherwise than they are given."""

    other_settings: ClassVar[dict[str, tuple[Any, gguf.GGUFValueType]]] = {}
    other_tensors: ClassVar[dict[str, Callable[[np.ndarray], np.ndarray]]] = {}

    def add_key_value(self, key: str, val: Any, vtype: Any, *more: Any, **named: Any) -> None:
        val, vtype = self.other_settings.get(key.partition(".")[2], (val, vtype))
        super().add_key_value(key, val, vtype, *more, **named)

    def add_tensor(self, name: str, tensor: Any, *more: Any, **named: Any) -> None:
        changed = self.other_tensors.get(name, lambda values: values)
        super().add_tensor(name, changed(tensor), *more, **named)


@pytest.mark.parametrize(
    ("settings", "tensors", "message"),
    [
        ({"attention.head_count": (0, ValueType.UINT32)}, {}, "head_count = 0, where a positive"),
        ({"attention.head_count": ([4, 2, 4], ValueType.ARRAY)}, {}, r"\[4, 2, 4\] differs from"),
        ({"embedding_length": (32.5, ValueType.FLOAT32)}, {}, r"embedding_length = 32\.5, where"),
        ({"attention.layer_norm_rms_epsilon": ("x", ValueType.STRING)}, {}, "epsilon = 'x', where"),
        ({"ggml.eos_token_id": ("x", ValueType.STRING)}, {}, "eos_token_id = 'x', where an id"),
        ({}, {"token_embd.weight": lambda values: values[0]}, r"token_embd.weight has the shape"),
        ({}, {"blk.0.attn_k.weight": lambda values: values[:15]}, r"attn_k.weight \(15, 32\)"),
        ({}, {"blk.0.attn_k.weight": lambda values: values[:8]}, r"attn_k.weight \(8, 32\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "-",
)
def test_what_makes_no_sense_is_named(
    settings: dict[str, Any],
    tensors: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gguf, "GGUFWriter", Altered)
    monkeypatch.setattr(Altered, "other_settings", settings)
    monkeypatch.setattr(Altered, "other_tensors", tensors)
    path = write(tmp_path / "tiny.gguf", peer("llama"))
    with pytest.raises(ValueError, match=message):
        read_gguf(path)


def test_one_value_for_each_layer_may_be_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "GGUFWriter", Altered)
    both = {"attention.head_count": ([4] * 3, ValueType.ARRAY)}
    monkeypatch.setattr(
        Altered, "other_settings", {**both, "attention.head_count_kv": ([2] * 3, ValueType.ARRAY)}
    )
    model = read_gguf(write(tmp_path / "tiny.gguf", peer("llama")))
    ids = random_ids(2, 9)
    torch.testing.assert_close(model(ids), answer(peer("llama"), ids), **TOLERANCE)


def test_other_architectures_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'mamba'; known are llama, qwen2, qwen3, gemma, gpt2"):
        read_gguf(write(tmp_path / "tiny.gguf", peer("llama"), architecture="mamba"))


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma", "gemma-256"])
def test_other_architectures_match_transformers(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", peer(name), architecture=name.partition("-")[0], tied=True)
    model = read_gguf(path)
    ids = random_ids(2, 40)
    torch.testing.assert_close(model(ids), answer(peer(name), ids), **TOLERANCE)
    write_folder(model, tmp_path / "folder")
    torch.testing.assert_close(
        answer(reopened(name, tmp_path / "folder"), ids), model(ids), **TOLERANCE
    )


def write_gpt2(path: Path, model: Any) -> Path:
    """As llama.cpp's converter does: linear maps turned to (out, in)."""
    config = model.config
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    parts = {
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    }
    for name, tensor in model.transformer.state_dict().items():
        values, kind = tensor.numpy(), name.rpartition(".")[2]
        if name.startswith("h."):
            _, number, rest = name.split(".", 2)
            stored = f"blk.{number}.{parts[rest.rpartition('.')[0]]}.{kind}"
            values = values.T if values.ndim == 2 else values
        else:
            stored = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}[
                name.partition(".")[0]
            ] + f".{kind}"
        writer.add_tensor(stored, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gpt2_matches_transformers(tmp_path: Path) -> None:
    model = read_gguf(write_gpt2(tmp_path / "tiny.gguf", peer("gpt2")))
    ids = random_ids(2, 40)
    torch.testing.assert_close(model(ids), answer(peer("gpt2"), ids), **TOLERANCE)
    assert (model.config.context, model.config.tied_head) == (64, True)


# Blocks of 256 numbers, spelled out after the specification, number by number.


def _half(block: bytes, place: int) -> float:
    return float(np.frombuffer(block[place : place + 2], "<f2")[0])


def _scales_of_k(twelve: bytes) -> list[tuple[int, int]]:
    """Eight pairs of six bits: scale and minimum (Q4_K, Q5_K)."""
    pairs = []
    for j in range(8):
        if j < 4:
            pairs.append((twelve[j] & 63, twelve[j + 4] & 63))
        else:
            low, high = twelve[j + 4] & 15, twelve[j + 4] >> 4
            pairs.append((low | (twelve[j - 4] >> 6) << 4, high | (twelve[j] >> 6) << 4))
    return pairs


def _q4_k(block: bytes) -> list[float]:
    d, dmin, scales, quants = _half(block, 0), _half(block, 2), block[4:16], block[16:144]
    values = []
    for group, (scale, minimum) in enumerate(_scales_of_k(scales)):
        for i in range(32):
            byte = quants[group // 2 * 32 + i]
            q = byte & 15 if group % 2 == 0 else byte >> 4
            values.append(d * scale * q - dmin * minimum)
    return values


def _q5_k(block: bytes) -> list[float]:
    d, dmin, scales = _half(block, 0), _half(block, 2), block[4:16]
    high, quants = block[16:48], block[48:176]
    values = []
    for group, (scale, minimum) in enumerate(_scales_of_k(scales)):
        for i in range(32):
            byte = quants[group // 2 * 32 + i]
            q = (byte & 15 if group % 2 == 0 else byte >> 4) + 16 * (high[i] >> group & 1)
            values.append(d * scale * q - dmin * minimum)
    return values


def _q6_k(block: bytes) -> list[float]:
    low, high, d = block[:128], block[128:192], _half(block, 208)
    scales = np.frombuffer(block[192:208], np.int8)
    values = []
    for place in range(256):
        half, rest = divmod(place, 128)
        quarter, i = divmod(rest, 32)
        byte = low[64 * half + 32 * (quarter % 2) + i]
        bits = byte & 15 if quarter < 2 else byte >> 4
        bits |= (high[32 * half + i] >> 2 * quarter & 3) << 4
        values.append(d * int(scales[place // 16]) * (bits - 32))
    return values


@pytest.mark.parametrize(
    ("kind", "size", "halves", "spelled"),
    [
        (Kind.Q4_K, 144, (0, 2), _q4_k),
        (Kind.Q5_K, 176, (0, 2), _q5_k),
        (Kind.Q6_K, 210, (208,), _q6_k),
    ],
    ids=["Q4_K", "Q5_K", "Q6_K"],
)
def test_blocks_of_256(
    kind: Kind,
    size: int,
    halves: tuple[int, ...],
    spelled: Callable[[bytes], list[float]],
    tmp_path: Path,
) -> None:
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (67, size), dtype=np.uint8)  # one block a row
    for place in halves:
        scale = generator.uniform(0.001, 0.01, 67).astype("<f2")
        blocks[:, place : place + 2] = scale.view(np.uint8).reshape(67, 2)
    expected = np.array([spelled(bytes(block)) for block in blocks])
    model = read_gguf(write_wide(tmp_path / "tiny.gguf", blocks, kind))
    assert expected.std() > 0.01
    found = model.embedding.weight.detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def write_wide(path: Path, table: np.ndarray, kind: Kind) -> Path:
    """A Llama of width 256 whose embeddings are these blocks."""
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=67,
            hidden_size=256,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )
    writer_of = gguf.GGUFWriter.add_tensor

    def add(self: Any, name: str, values: Any, **more: Any) -> None:
        if name == "token_embd.weight":
            values, more = table, {"raw_dtype": kind}
        writer_of(self, name, values, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", add)
        return write(path, model, tied=True)


def test_a_kind_that_cannot_be_undone_is_named(tmp_path: Path) -> None:
    blocks = np.zeros((67, 8 * 40), np.uint8)
    path = write_wide(tmp_path / "tiny.gguf", blocks, Kind.Q8_1)
    with pytest.raises(ValueError, match=r"token_embd\.weight' is stored as Q8_1.*Q8_0 or Q4_K"):
        read_gguf(path)


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
