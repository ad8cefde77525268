"""`load` and `save`: names, folders, files, and what is none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from tests.model.peers import peer, random_ids
from tests.model.test_generate import byte_tokenizer
from tests.model.test_gguf_files import write

import jumok
from jumok.model.transformer import Config, Decoder
from jumok.model.zoo import FetchError


def tiny() -> Decoder:
    torch.manual_seed(0)
    return Decoder(Config(vocab_size=257, emb_dim=16, n_layers=2, n_heads=2, eos_ids=(256,))).eval()


def test_a_folder_and_back(tmp_path: Path) -> None:
    model = tiny()
    jumok.save(model, tmp_path / "new" / "folder", byte_tokenizer())
    again, tokenizer = jumok.load(tmp_path / "new" / "folder")
    ids = torch.tensor([byte_tokenizer().encode("text")])
    torch.testing.assert_close(again(ids), model(ids))
    assert tokenizer is not None
    assert tokenizer.encode("text") == ids[0].tolist()
    assert not again.training
    rough, _ = jumok.load(str(tmp_path / "new" / "folder"), dtype="bfloat16", device="cpu")
    assert {p.dtype for p in rough.parameters()} == {torch.bfloat16}


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    jumok.save(tiny(), tmp_path)
    assert jumok.load(tmp_path)[1] is None
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        jumok.load(tmp_path)


def test_a_tokenizer_of_transformers_is_saved_too(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer().backend, eos_token="<eos>")
    jumok.save(tiny(), tmp_path, theirs)
    _, tokenizer = jumok.load(tmp_path)
    assert tokenizer is not None
    assert (tokenizer.encode("한 a"), tokenizer.eos_id) == (byte_tokenizer().encode("한 a"), 256)


def test_a_trained_model_is_loaded_as_trained(tmp_path: Path) -> None:
    model = tiny().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids = random_ids(1, 9)
    for _ in range(3):
        optimizer.zero_grad()
        model(ids).logsumexp(-1).sum().backward()
        optimizer.step()
    jumok.save(model, tmp_path)
    again, _ = jumok.load(tmp_path)
    torch.testing.assert_close(again(ids), model.eval()(ids))
    again.train()
    again(ids).sum().backward()  # weights from a file can be trained
    assert all(p.requires_grad and p.grad is not None for p in again.parameters())


def test_a_gguf_file_with_its_tokenizer(tmp_path: Path) -> None:
    def vocabulary(writer: object) -> None:
        writer.add_tokenizer_model("gpt2")  # type: ignore[attr-defined]
        writer.add_tokenizer_pre("gpt-2")  # type: ignore[attr-defined]
        signs = sorted(
            byte_tokenizer().backend.get_vocab(), key=byte_tokenizer().backend.token_to_id
        )
        writer.add_token_list(signs[:67])  # type: ignore[attr-defined]
        writer.add_token_types([1] * 67)  # type: ignore[attr-defined]
        writer.add_token_merges([])  # type: ignore[attr-defined]

    path = write(tmp_path / "tiny.gguf", peer("llama"), more=vocabulary)
    model, tokenizer = jumok.load(path)
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("0123")) == "0123"
    jumok.save(model, tmp_path / "folder", tokenizer)
    again, same = jumok.load(tmp_path / "folder")
    ids = random_ids(1, 9)
    torch.testing.assert_close(again(ids), model(ids))
    assert same is not None
    assert same.encode("0123") == tokenizer.encode("0123")


@pytest.mark.parametrize(
    "name", ["no-such-model", "no/such/folder", "./nowhere", "lost.gguf", "", " "]
)
def test_unknown_names_list_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'.*minilm, smollm2.*folder.*gguf.*hub"):
        jumok.load(name)


def test_other_files_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"model\.safetensors is no model.*folder"):
        jumok.load(path)


def test_the_hub_without_network() -> None:
    # tests/conftest.py keeps hub libraries offline.
    with pytest.raises(FetchError, match=r"'owner/name'.*[^.]\. Is the name.*minilm, smollm2"):
        jumok.load("owner/name")


def test_the_hub_is_asked_for_plain_weights_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(name: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert name == "owner/tiny"
        files = {
            "config.json": True,
            "model-00001-of-00002.safetensors": True,
            "tokenizer.json": True,
            "pytorch_model.bin": False,
            "onnx/model.safetensors": False,
            "consolidated.safetensors": False,
        }
        wanted = filter_repo_objects(
            files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        assert set(wanted) == {name for name, kept in files.items() if kept}
        return str(tmp_path)

    jumok.save(tiny(), tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(jumok.load("owner/tiny")[0](ids), tiny()(ids))


def cached_on_the_hub(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in a hub cache of our own, as the hub's library would have left it."""
    repository = root / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    folder = repository / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root))
    return folder


def test_a_hub_id_that_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cached_on_the_hub(tmp_path, "owner/tiny", monkeypatch)
    jumok.save(tiny(), folder, byte_tokenizer())
    model, tokenizer = jumok.load("owner/tiny")  # no network: tests/conftest.py says offline
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(model(ids), tiny()(ids))
    assert tokenizer is not None
    assert tokenizer.encode("a") == [97]


def test_a_hub_id_with_pickles_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cached_on_the_hub(tmp_path, "owner/old", monkeypatch)
    jumok.save(tiny(), folder)
    (folder / "model.safetensors").unlink()  # what is not asked for does not come
    with pytest.raises(FetchError, match=r"'owner/old' on the hub has no weights as safetensors"):
        jumok.load("owner/old")


@pytest.mark.parametrize("reason", ["It has no answer", "It has no answer.", ""])
def test_the_reason_of_the_hub_ends_in_one_full_stop(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(*_: object, **__: object) -> str:
        raise OSError(reason)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(FetchError, match=r"hub: (It has no answer|OSError)\. Is the name right"):
        jumok.load("owner/name")


@pytest.mark.parametrize("name", [None, 3, b"minilm"])
def test_a_name_that_is_none(name: object) -> None:
    with pytest.raises(TypeError, match=rf"load\({name!r}\).*minilm, smollm2, a folder"):
        jumok.load(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["int8", "nn", torch.int8])
def test_unknown_dtype(dtype: str | torch.dtype, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"dtype={dtype!r}.*bfloat16"):
        jumok.load(tmp_path, dtype=dtype)


def test_a_dtype_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"dtype=3: one of float32, bfloat16"):
        jumok.load(tmp_path, dtype=3)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:7", torch.device("cuda")])
def test_without_cuda(device: str | torch.device, tmp_path: Path) -> None:
    jumok.save(tiny(), tmp_path)
    with pytest.raises(ValueError, match=r"cuda.*there is no CUDA device .*CPU"):
        jumok.load(tmp_path, device=device)


def test_a_device_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"device='gpu': torch knows no device of that name"):
        jumok.load(tmp_path, device="gpu")
    with pytest.raises(TypeError, match=r"device=1\.5: .*'cuda'"):
        jumok.load(tmp_path, device=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b'{"version": "1.0", '),
        ("tokenizer.json", b"[]"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"\xff\xff"),
        ("special_tokens_map.json", b"[]"),
        ("chat_template.jinja", b"\xff\xff"),
    ],
)
def test_a_damaged_tokenizer_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    jumok.save(tiny(), tmp_path, byte_tokenizer())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{tmp_path / name}"):
        jumok.load(tmp_path)


def test_a_gguf_file_with_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    for number, tokens in enumerate(([], ["a"], ["a", "b"])):

        def vocabulary(writer: Any, tokens: list[str] = tokens) -> None:
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("gpt-2")
            writer.add_token_list(tokens)
            writer.add_token_merges(["a nowhere"])

        path = write(tmp_path / f"{number}.gguf", peer("llama"), more=vocabulary)
        with pytest.raises(ValueError, match=f"tokenizer of {path}"):
            jumok.load(path)
