"""Checkpoints of tiny random models of transformers: loaded, matched, written, damaged."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.peers import (
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    MASKED,
    PEERS,
    answer,
    peer,
    peer_folder,
    random_ids,
    reopened,
)

from jumok.model import checkpoints
from jumok.model.checkpoints import read_folder, write_folder
from jumok.model.config import Config, Learned, Rotary
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.families import NotSupportedError
from jumok.model.transformer import Decoder, Encoder
from jumok.model.weight_files import open_safetensors

TOLERANCE = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peers")


def changed(root: Path, target: Path, name: str, **settings: object) -> Path:
    """A copy of a peer's folder with other settings in its config.json; `...` deletes one."""
    source = peer_folder(name, root)
    target.mkdir(exist_ok=True)
    (target / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    values = {**json.loads((source / "config.json").read_text()), **settings}
    values = {key: value for key, value in values.items() if value is not ...}
    (target / "config.json").write_text(json.dumps(values))
    return target


def retensored(
    root: Path,
    target: Path,
    name: str,
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
) -> Path:
    """A copy of a peer's folder with other tensors."""
    changed(root, target, name)
    tensors = load_file(peer_folder(name, root) / "model.safetensors")
    save_file(change(tensors), target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize("name", DECODERS + ENCODERS)
def test_loads_and_matches(name: str, root: Path) -> None:
    model = read_folder(peer_folder(name, root))
    ids = random_ids(2, 40)
    expected = answer(peer(name), ids)
    assert expected.std() > 0.3  # the test says something only if the numbers are not tiny
    torch.testing.assert_close(model(ids), expected, **TOLERANCE)
    assert not model.training


@pytest.mark.parametrize("name", DECODERS + ENCODERS)
def test_written_folder_is_read_by_transformers(name: str, root: Path, tmp_path: Path) -> None:
    model = read_folder(peer_folder(name, root))
    write_folder(model, tmp_path)
    ids = random_ids(2, 40, seed=1)
    if name == "roberta" and model.pooler is None:
        pytest.fail("the pooler got lost")
    torch.testing.assert_close(answer(reopened(name, tmp_path), ids), model(ids), **TOLERANCE)
    again = read_folder(tmp_path)
    assert again.config == model.config
    assert all(
        torch.equal(one, two)
        for one, two in zip(again.state_dict().values(), model.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("name", DECODERS)
def test_left_padding(name: str, root: Path) -> None:
    model = read_folder(peer_folder(name, root))
    mask = torch.ones(3, 12, dtype=torch.int64)
    mask[1, :5] = 0
    mask[2, :11] = 0
    ids = random_ids(3, 12)
    found = model(ids, mask)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = answer(peer(name), ids, mask, position_ids=positions)
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], **TOLERANCE)
    for row, start in ((1, 5), (2, 11)):
        alone = model(ids[row : row + 1, start:])
        torch.testing.assert_close(found[row : row + 1, start:], alone, **TOLERANCE)


@pytest.mark.parametrize("name", ENCODERS)
def test_padded_batches_of_encoders(name: str, root: Path) -> None:
    model = read_folder(peer_folder(name, root))
    assert isinstance(model, Encoder)
    ids = random_ids(2, 9)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    ids[1, 5:] = model.config.pad_id
    found = model(ids, mask)
    expected = answer(peer(name), ids, mask)
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], **TOLERANCE)
    torch.testing.assert_close(found[1:, :5], model(ids[1:, :5]), **TOLERANCE)
    left, left_mask = ids[1:].roll(4, 1), mask[1:].roll(4, 1)
    torch.testing.assert_close(model(left, left_mask)[:, 4:], found[1:, :5], **TOLERANCE)


@pytest.mark.parametrize("name", MASKED)
def test_masked_tokens_are_guessed_alike(name: str, root: Path, tmp_path: Path) -> None:
    model = read_folder(peer_folder(name, root))
    assert isinstance(model, Encoder)
    ids = random_ids(2, 20)
    mask = torch.ones_like(ids)
    mask[1, 15:] = 0
    logits = model.logits(model(ids, mask))
    expected = answer(peer(name), ids, mask)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits[mask == 1], expected[mask == 1], **TOLERANCE)
    write_folder(model, tmp_path)
    again = answer(reopened(name, tmp_path), ids, mask)
    torch.testing.assert_close(again, expected, **TOLERANCE)
    assert read_folder(tmp_path).config == model.config


def test_a_head_that_is_not_there_is_named(root: Path) -> None:
    model = read_folder(peer_folder("bert", root))
    assert isinstance(model, Encoder)
    with pytest.raises(ValueError, match="masked_head is False"):
        model.logits(model(random_ids(1, 3)))


def test_a_head_with_an_activation_of_its_own_is_refused(root: Path, tmp_path: Path) -> None:
    folder = changed(root, tmp_path, "roberta-masked", hidden_act="relu")
    with pytest.raises(NotSupportedError, match="'gelu', and this model 'relu'"):
        read_folder(folder)


def test_a_head_with_embeddings_of_its_own_is_refused(root: Path, tmp_path: Path) -> None:
    folder = retensored(
        root,
        tmp_path,
        "bert-masked",
        lambda t: {**t, "cls.predictions.decoder.weight": torch.ones(67, 32)},
    )
    with pytest.raises(ValueError, match=r"decoder\.weight' differs from .*word_embeddings"):
        read_folder(folder)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders_match(name: str, root: Path, tmp_path: Path) -> None:
    model = read_folder(peer_folder(name, root))
    assert isinstance(model, EncoderDecoder)
    assert model.config.tied_head == (not name.endswith("untied"))
    source, target = random_ids(2, 30), random_ids(2, 25, seed=1)
    mask = torch.ones_like(source)
    mask[1, 20:] = 0
    with torch.no_grad():
        found = model(source, target, mask)
        kept = {"attention_mask": mask, "decoder_input_ids": target}
        expected = peer(name)(input_ids=source, **kept).logits
        assert expected.std() > 0.15
        torch.testing.assert_close(found, expected, **TOLERANCE)
        write_folder(model, tmp_path)
        again = reopened(name, tmp_path)(input_ids=source, **kept).logits
        torch.testing.assert_close(again, expected, **TOLERANCE)
    assert read_folder(tmp_path).config == model.config


@pytest.mark.parametrize("name", [name for name in ENCODER_DECODERS if "two-tables" not in name])
def test_tables_that_are_stored_more_than_once(name: str, root: Path, tmp_path: Path) -> None:
    def doubled(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        prefix = "model." if name.startswith("marian") else ""
        table = tensors[f"{prefix}shared.weight"]
        for side in ("encoder", "decoder"):
            tensors[f"{prefix}{side}.embed_tokens.weight"] = table.clone()
        if prefix:  # as older files have them
            tensors["model.encoder.embed_positions.weight"] = torch.zeros(64, 32)
        return tensors

    model = read_folder(peer_folder(name, root))
    ids = random_ids(1, 9)
    folder = retensored(root, tmp_path, name, doubled)
    torch.testing.assert_close(read_folder(folder)(ids, ids), model(ids, ids))


def test_one_table_of_two_sizes_is_refused(root: Path, tmp_path: Path) -> None:
    folder = changed(root, tmp_path, "marian", decoder_vocab_size=71)
    with pytest.raises(NotSupportedError, match="decoder_vocab_size = 71, though"):
        read_folder(folder)


def test_ids_of_generation_settings(root: Path, tmp_path: Path) -> None:
    folder = changed(root, tmp_path, "marian")
    values = {"bad_words_ids": [[66], [3, 4]], "suppress_tokens": [5], "eos_token_id": 7}
    values["decoder_start_token_id"] = 9
    (folder / "generation_config.json").write_text(json.dumps(values))
    config = read_folder(folder).config
    assert (config.suppressed_ids, config.eos_ids, config.bos_id) == ((66, 5), (7,), 9)


@pytest.mark.parametrize("name", ["bert", "bert-tanh", "roberta"])
def test_token_types_and_pooler(name: str, root: Path) -> None:
    model = read_folder(peer_folder(name, root))
    assert isinstance(model, Encoder)
    ids = random_ids(2, 9)
    types = torch.arange(9).expand(2, 9) % model.config.token_types
    with torch.no_grad():
        expected = peer(name)(ids, token_type_ids=types)
    hidden = model(ids, token_types=types)
    torch.testing.assert_close(hidden, expected.last_hidden_state, **TOLERANCE)
    torch.testing.assert_close(model.pooled(hidden), expected.pooler_output, **TOLERANCE)


def test_dtype(root: Path) -> None:
    model = read_folder(peer_folder("llama", root), dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    ids = random_ids(1, 20)
    expected = answer(peer("llama"), ids)
    assert (model(ids).float() - expected).abs().max() < 0.2 * expected.std()


def test_sharded(root: Path, tmp_path: Path) -> None:
    peer("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = random_ids(1, 9)
    torch.testing.assert_close(read_folder(tmp_path)(ids), answer(peer("llama"), ids), **TOLERANCE)
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=lost.name):
        read_folder(tmp_path)


def test_several_end_ids_of_generation_config(root: Path, tmp_path: Path) -> None:
    folder = changed(root, tmp_path, "llama")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    assert read_folder(folder).config.eos_ids == (2, 9)


# Settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [True, False])
def test_rope_theta_is_read_where_it_stands(inside: bool, root: Path, tmp_path: Path) -> None:
    places = (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
        if inside
        else {"rope_parameters": ..., "rope_theta": 5e5}
    )
    model = read_folder(changed(root, tmp_path, "llama", **places))
    assert model.config.positions == Rotary(5e5)


def test_rope_scaling_under_its_old_name(root: Path, tmp_path: Path) -> None:
    old = {"rope_parameters": ..., "rope_theta": 5e5, "rope_scaling": {"type": "linear"}}
    with pytest.raises(ValueError, match="factor"):
        read_folder(changed(root, tmp_path, "llama", **old))
    old["rope_scaling"] = {"type": "linear", "factor": 4.0}
    model = read_folder(changed(root, tmp_path, "llama", **old))
    assert model.config.positions == read_folder(peer_folder("llama-linear", root)).config.positions


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2, "odd": 1}}, "odd"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"hidden_act": "gelu"}, "'gelu'"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ("llama", {"model_type": "mamba"}, "mamba"),
        ("llama", {"vocab_size": ...}, "vocab_size"),
        ("qwen2", {"layer_types": ["linear_attention"] * 3}, "linear_attention"),
        ("gpt2", {"activation_function": "mish"}, "mish"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("bert", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("bert", {"is_decoder": True}, "is_decoder"),
    ],
)
def test_unknown_settings_are_named(
    name: str, settings: dict[str, object], named: str, root: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=named):
        read_folder(changed(root, tmp_path, name, **settings))


# Tensors --------------------------------------------------------------------------------------


def test_head_missing_is_tied(root: Path, tmp_path: Path) -> None:
    def without_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}

    folder = retensored(root, tmp_path, "llama", without_head)
    with pytest.warns(UserWarning, match=r"lm_head\.weight"):
        model = read_folder(folder)
    assert model.config.tied_head
    table = peer("llama").model.embed_tokens.weight
    ids = random_ids(1, 5)
    hidden = peer("llama").model(ids).last_hidden_state
    torch.testing.assert_close(model(ids), hidden @ table.T, **TOLERANCE)


def test_head_that_differs_is_kept_though_settings_say_tied(root: Path, tmp_path: Path) -> None:
    head = torch.randn(67, 32)
    folder = retensored(root, tmp_path, "qwen2", lambda t: {**t, "lm_head.weight": head})
    model = read_folder(folder)
    assert not model.config.tied_head
    assert torch.equal(model.state_dict()["head.weight"], head)


def test_head_that_is_equal_is_tied(root: Path, tmp_path: Path) -> None:
    folder = retensored(
        root,
        tmp_path,
        "qwen2",
        lambda t: {**t, "lm_head.weight": t["model.embed_tokens.weight"].clone()},
    )
    assert read_folder(folder).config.tied_head


def test_prefixes_are_optional_and_buffers_ignored(root: Path, tmp_path: Path) -> None:
    def bare(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors = {name.removeprefix("transformer."): t for name, t in tensors.items()}
        for i in range(3):
            tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 64, 64)
            tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        return tensors

    ids = random_ids(1, 9)
    model = read_folder(retensored(root, tmp_path, "gpt2", bare))
    torch.testing.assert_close(model(ids), answer(peer("gpt2"), ids), **TOLERANCE)


def test_what_torch_compile_puts_before_names(root: Path, tmp_path: Path) -> None:
    folder = retensored(
        root, tmp_path, "llama", lambda t: {f"_orig_mod.{name}": x for name, x in t.items()}
    )
    ids = random_ids(1, 9)
    torch.testing.assert_close(read_folder(folder)(ids), answer(peer("llama"), ids), **TOLERANCE)


def test_old_names_of_layer_norm_and_a_task_head(root: Path, tmp_path: Path) -> None:
    def old(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        renamed = {}
        for name, tensor in tensors.items():
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            renamed["bert." + name.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
        return {**renamed, "cls.seq_relationship.bias": torch.zeros(2)}

    folder = retensored(root, tmp_path, "bert", old)
    with pytest.warns(UserWarning, match=r"cls\.seq_relationship\.bias"):
        model = read_folder(folder)
    ids = random_ids(1, 9)
    torch.testing.assert_close(model(ids), answer(peer("bert"), ids), **TOLERANCE)


def test_unknown_tensor_is_named(root: Path, tmp_path: Path) -> None:
    folder = retensored(
        root, tmp_path, "llama", lambda t: {**t, "model.layers.0.router.weight": torch.ones(1)}
    )
    with pytest.raises(ValueError, match=r"layers\.0\.router\.weight"):
        read_folder(folder)


def test_bias_without_a_setting_for_it_is_named(root: Path, tmp_path: Path) -> None:
    folder = changed(root, tmp_path, "llama-biased", mlp_bias=False)
    with pytest.raises(ValueError, match=r"mlp\.down_proj\.bias"):
        read_folder(folder)


def test_missing_tensor_is_named(root: Path, tmp_path: Path) -> None:
    lost = "model.layers.1.self_attn.k_proj.weight"
    folder = retensored(
        root, tmp_path, "llama", lambda t: {n: x for n, x in t.items() if n != lost}
    )
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn\.k_proj\.weight"):
        read_folder(folder)


def test_wrong_shape_is_shown(root: Path, tmp_path: Path) -> None:
    folder = changed(root, tmp_path, "llama", intermediate_size=40)
    with pytest.raises(ValueError, match=r"gate_proj.weight \(48, 32\).*\(40, 32\)"):
        read_folder(folder)


# Files ----------------------------------------------------------------------------------------


def safetensors(tensors: dict[str, tuple[list[int], int, int]], size: int) -> bytes:
    header: dict[str, object] = {
        name: {"dtype": "F32", "shape": shape, "data_offsets": [start, stop]}
        for name, (shape, start, stop) in tensors.items()
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (safetensors({"a": ([2], 0, 8)}, 4), "damaged"),
        (safetensors({"a": ([1], 0, 4)}, 6), "damaged"),
        (safetensors({"a": ([2], 0, 8), "b": ([2], 4, 12)}, 12), "damaged"),
        (safetensors({"a": ([1], 0, 4), "b": ([1], 8, 12)}, 12), "damaged"),
    ],
    ids=["empty", "lfs-pointer", "truncated", "trailing", "overlap", "hole"],
)
def test_damaged_safetensors(content: bytes, message: str, root: Path, tmp_path: Path) -> None:
    folder = changed(root, tmp_path, "llama")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_folder(folder)


@pytest.mark.parametrize(
    ("content", "shapes"),
    [
        (safetensors({"a": ([0], 0, 0), "b": ([1], 0, 4)}, 4), {"a": (0,), "b": (1,)}),
        (safetensors({"a": ([], 0, 4)}, 4), {"a": ()}),
        (struct.pack("<Q", 26) + b'{"__metadata__":{"a":"b"}}', {}),
    ],
    ids=["no-elements", "scalar", "metadata-only"],
)
def test_odd_but_sound_safetensors(
    content: bytes, shapes: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    readers = open_safetensors([path])
    assert {name: tuple(read().shape) for name, read in readers.items()} == shapes


def test_pickles_are_refused(root: Path, tmp_path: Path) -> None:
    folder = changed(root, tmp_path, "llama")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin.*pickle.*save_pretrained"):
        read_folder(folder)


def test_folders_without_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        read_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="JSON object"):
        read_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="no JSON"):
        read_folder(tmp_path)


# Writing --------------------------------------------------------------------------------------


def test_interrupted_write_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(vocab_size=11, emb_dim=8, n_layers=1, n_heads=2)
    first = Decoder(config)
    write_folder(first, tmp_path)

    def half(tensors: object, path: Path, metadata: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("no room left")

    monkeypatch.setattr(checkpoints, "save_file", half)
    with pytest.raises(OSError, match="no room"):
        write_folder(Decoder(config), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(read_folder(tmp_path)(ids), first.eval()(ids))


def test_model_can_be_written_over_the_folder_it_came_from(root: Path, tmp_path: Path) -> None:
    folder = changed(root, tmp_path, "llama")
    model = read_folder(folder)
    ids = random_ids(1, 9)
    before = model(ids)
    write_folder(model, folder)
    torch.testing.assert_close(model(ids), before)
    torch.testing.assert_close(read_folder(folder)(ids), before)


def test_fresh_decoder_is_written_for_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Decoder(
        Config(vocab_size=67, emb_dim=32, n_layers=2, n_heads=4, n_kv_heads=1, context=99)
    ).eval()
    write_folder(model, tmp_path)
    ids = random_ids(2, 9)
    torch.testing.assert_close(answer(reopened("llama", tmp_path), ids), model(ids), **TOLERANCE)


@pytest.mark.parametrize(
    "model",
    [
        Decoder(Config(vocab_size=9, emb_dim=8, n_layers=1, n_heads=2, norm="layer")),
        Decoder(Config(vocab_size=9, emb_dim=8, n_layers=2, n_heads=2, windows=(3, 4))),
        Encoder(Config(vocab_size=9, emb_dim=8, n_layers=1, n_heads=2)),
    ],
)
def test_what_no_family_can_say_is_refused(model: Decoder | Encoder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no published family"):
        write_folder(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_our_models_are_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Linear"):
        write_folder(torch.nn.Linear(2, 2), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", ["{}", '{"weight_map": ["model.safetensors"]}'])
def test_damaged_list_of_shards_is_named(index: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    write_folder(Decoder(Config(vocab_size=9, emb_dim=8, n_layers=1, n_heads=2)), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json is damaged"):
        read_folder(tmp_path)


def test_every_family_survives_its_own_settings(root: Path) -> None:
    for name in PEERS:
        config = (model := read_folder(peer_folder(name, root))).config
        family = checkpoints._family_for(model)
        assert family.expresses(config)
        other = (
            replace(config, positions=None)
            if isinstance(config, Config)
            else replace(config, decoder=replace(config.decoder, positions=None))
        )
        assert not family.expresses(other)
    assert Learned() != Learned(0)
