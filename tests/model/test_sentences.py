"""Sentence embeddings against transformers, batches and padding included."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.model.test_generate import byte_tokenizer

import jumok
from jumok.model.config import Config, Learned
from jumok.model.sentences import embed, mean_pooled
from jumok.model.transformer import Decoder, Encoder
from jumok.model.zoo import model_folder

TEXTS = [
    "A man is eating food.",
    "Someone has a meal",
    "The bank of the river was muddy. The money was deposited in the bank, all of it at once.",
    "사과",
    "x",
]
SMALL = Config(
    257,
    16,
    2,
    2,
    context=12,
    positions=Learned(),
    norm="layer",
    norm_place="post",
    feed_forward="gelu",
    pad_id=0,
)


@cache
def small() -> Encoder:
    torch.manual_seed(0)
    return Encoder(SMALL).eval()


def by_transformers(texts: list[str]) -> torch.Tensor:
    """What the model card of all-MiniLM-L6-v2 says to do."""
    folder = model_folder("minilm")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_minilm_is_that_of_transformers(batch_size: int) -> None:
    model, tokenizer = jumok.load("minilm")
    found = jumok.embed(model, tokenizer, TEXTS, batch_size=batch_size)
    torch.testing.assert_close(found, by_transformers(TEXTS), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(5))
    assert found[0] @ found[1] > 0.6 > 0.3 > found[0] @ found[2]
    torch.testing.assert_close(jumok.embed(model, tokenizer, TEXTS[2]), found[2], rtol=0, atol=1e-5)


def test_order_and_mode_are_kept() -> None:
    model = small().train()
    texts = ["abcdefgh", "a", "abcd"]
    vectors = embed(model, byte_tokenizer(), texts, batch_size=2)
    assert model.training
    for text, vector in zip(texts, vectors, strict=True):
        torch.testing.assert_close(embed(model, byte_tokenizer(), text), vector)
    assert embed(model, byte_tokenizer(), []).shape == (0, 16)
    long = embed(model, byte_tokenizer(), texts, normalize=False)
    assert not torch.allclose(long.norm(dim=1), torch.ones(3))


def test_the_first_token_may_stand_for_the_text() -> None:
    model, texts = small(), ["abcd", "ab"]
    vectors = embed(model, byte_tokenizer(), texts, pooling="first", normalize=False)
    for text, vector in zip(texts, vectors, strict=True):
        hidden = model(torch.tensor([byte_tokenizer().encode(text)]))[0, 0]
        torch.testing.assert_close(vector, hidden)
    with pytest.raises(ValueError, match="pooling='cls': one of mean, first"):
        embed(model, byte_tokenizer(), texts, pooling="cls")


def test_padding_may_hold_anything() -> None:
    hidden = torch.tensor([[[1.0], [3.0], [torch.nan]], [[5.0], [torch.inf], [7.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 1]])
    assert mean_pooled(hidden, mask).tolist() == [[2.0], [6.0]]
    assert mean_pooled(hidden, torch.zeros(2, 3)).tolist() == [[0.0], [0.0]]


def test_long_texts_are_refused_or_cut() -> None:
    text = "abcdefghijklmnop"
    with pytest.raises(ValueError, match=r"'abcdefghijklmnop' has 16 tokens.*at most 12"):
        embed(small(), byte_tokenizer(), ["a", text])
    cut = embed(small(), byte_tokenizer(), text, truncate=True)
    torch.testing.assert_close(cut, embed(small(), byte_tokenizer(), text[:12]))


def test_a_cut_text_keeps_its_end_token() -> None:
    model, tokenizer = jumok.load("minilm")
    fed: list[list[int]] = []
    hook = model.register_forward_pre_hook(lambda module, args: fed.append(args[0][0].tolist()))
    jumok.embed(model, tokenizer, "word " * 600, truncate=True)
    hook.remove()
    assert (len(fed[0]), fed[0][0], fed[0][-1]) == (512, 101, 102)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, ["a", 3]), TypeError, r"int \(3\)"),
        ((None, [""]), ValueError, "no token"),
        ((Decoder(SMALL), ["a"]), ValueError, r"this Decoder's folder has no modules\.json"),
        ((torch.nn.Linear(2, 2), ["a"]), TypeError, "takes an Encoder.* or a Decoder; this Linear"),
    ],
)
def test_what_cannot_be_embedded(
    arguments: tuple[Any, Any], error: type[Exception], message: str
) -> None:
    model, texts = arguments
    with pytest.raises(error, match=message):
        embed(model or small(), byte_tokenizer(), texts)


# -- folders of sentence-transformers ----------------------------------------------------------


@cache
def saved() -> Encoder:
    """A BERT that can be saved."""
    biases = {"qkv_bias": True, "output_bias": True, "feed_forward_bias": True}
    torch.manual_seed(2)
    return Encoder(replace(SMALL, **biases, norm_eps=1e-12, token_types=2, init_std=0.3)).eval()


KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def sentence_folder(folder: Path, modes: list[str], dense: bool, normalize: bool) -> Path:
    """A small encoder as sentence-transformers writes it."""
    jumok.save(saved(), folder, byte_tokenizer())
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * normalize]
    paths = ["", *(f"{place}_{kind}" for place, kind in enumerate(kinds) if place)]
    write_json(folder / "modules.json", [
        {"idx": place, "name": str(place), "path": path,
         "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ])  # fmt: skip
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 8, "do_lower_case": False})
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": 16, **{key: name in modes for name, key in KEYS.items()}},
    )
    if dense:
        torch.manual_seed(1)
        width = 16 * len(modes)
        tensors = {"linear.weight": torch.randn(5, width), "linear.bias": torch.randn(5)}
        (folder / "2_Dense").mkdir()
        save_file(tensors, folder / "2_Dense" / "model.safetensors")
        write_json(folder / "2_Dense" / "config.json", {
            "in_features": width, "out_features": 5, "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        })  # fmt: skip
    return folder


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def by_hand(ids: list[int], modes: list[str], folder: Path, dense: bool, unit: bool) -> Any:
    """One text without padding, each step by its own formula."""
    with torch.no_grad():
        hidden = saved()(torch.tensor([ids]))[0]
    size = len(hidden)
    place = torch.arange(1.0, size + 1)[:, None]
    parts = {
        "cls": hidden[0],
        "max": hidden.max(0).values,
        "mean": hidden.mean(0),
        "mean_sqrt_len": hidden.sum(0) / size**0.5,
        "weightedmean": (place * hidden).sum(0) / place.sum(),
        "lasttoken": hidden[-1],
    }
    vector = torch.cat([parts[name] for name in KEYS if name in modes])
    if dense:
        tensors = load_file(folder / "2_Dense" / "model.safetensors")
        vector = torch.tanh(tensors["linear.weight"] @ vector + tensors["linear.bias"])
    return vector / vector.norm() if unit else vector


@pytest.mark.parametrize("modes", [*([name] for name in KEYS), ["cls", "mean", "lasttoken"]])
@pytest.mark.parametrize(("dense", "normalize"), [(False, True), (True, False), (True, True)])
def test_folders_of_sentence_transformers(
    modes: list[str], dense: bool, normalize: bool, tmp_path: Path
) -> None:
    folder = sentence_folder(tmp_path / "one", modes, dense, normalize)
    model, tokenizer = jumok.load(folder)
    texts = ["a", "abcdefg", "xyz", "one longer than eight"]
    found = jumok.embed(model, tokenizer, texts, truncate=True)
    around = tokenizer.encode("")
    for vector, text in zip(found, texts, strict=True):
        ids = tokenizer.encode(text)
        if len(ids) > 8:
            ends = around[len(around) // 2 :]
            ids = ids[: 8 - len(ends)] + ends
        expected = by_hand(ids, modes, folder, dense, normalize)
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="the model reads at most 8"):
        jumok.embed(model, tokenizer, texts)
    jumok.save(model, tmp_path / "again", tokenizer)
    again, _ = jumok.load(tmp_path / "again")
    assert torch.equal(jumok.embed(again, tokenizer, texts, truncate=True), found)
    if normalize and not dense and modes == ["max"]:
        longer = jumok.embed(model, tokenizer, texts, normalize=False, truncate=True)
        assert (longer.norm(dim=-1) - 1).abs().min() > 0.01
    plain = jumok.embed(model, tokenizer, texts, pooling="mean", truncate=True)
    assert plain.shape == (4, 16)


def test_modules_that_are_not_known_are_named(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path / "one", ["mean"], False, True)
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.WordWeights"
    write_json(folder / "modules.json", modules)
    with pytest.warns(UserWarning, match=r"a module WordWeights is not supported.*pooling=…"):
        jumok.load(folder)
    (folder / "modules.json").write_text("[{}]")
    with pytest.raises(ValueError, match=r"modules.json is damaged"):
        jumok.load(folder)


# -- decoders ----------------------------------------------------------------------------------


def reader_folder(kind: str, folder: Path) -> Path:
    """A decoder that sums a text up in its last token, as Qwen3-Embedding's folder is."""
    settings = {
        "vocab_size": 300,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 40,
    }
    if kind == "Qwen3":
        settings |= {"num_key_value_heads": 1, "head_dim": 8}
    model_class = getattr(transformers, f"{kind}ForCausalLM")
    torch.manual_seed(3)
    inner = model_class(model_class.config_class(**settings, initializer_range=0.3))
    inner.save_pretrained(folder)
    byte_tokenizer().save(folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<end>"])
    end = tokenizer.token_to_id("<end>")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", end)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    base = "sentence_transformers.models"
    write_json(folder / "modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": f"{base}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{base}.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{base}.Normalize"},
    ])  # fmt: skip
    pooling = {"word_embedding_dimension": 16, "include_prompt": True}
    pooling |= {key: name == "lasttoken" for name, key in KEYS.items()}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    prompts = {"query": "Find: ", "document": ""}
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )
    return folder


@pytest.mark.parametrize("kind", ["Qwen3", "GPTNeoX"])
def test_decoders_that_were_trained_to_read(kind: str, tmp_path: Path) -> None:
    folder = reader_folder(kind, tmp_path / "one")
    model, tokenizer = jumok.load(folder)
    assert isinstance(model, Decoder) is (kind == "Qwen3")
    body = transformers.AutoModel.from_pretrained(folder).eval()
    found = jumok.embed(model, tokenizer, [*TEXTS[:2], "x"], batch_size=2)
    asked = jumok.embed(model, tokenizer, [*TEXTS[:2], "x"], prompt="query")
    for vectors, before in ((found, ""), (asked, "Find: ")):
        for text, vector in zip([*TEXTS[:2], "x"], vectors, strict=True):
            ids = tokenizer.encode(before + text)
            assert ids[-1] == tokenizer.encode("")[0]
            with torch.no_grad():
                last = body(torch.tensor([ids])).last_hidden_state[0, -1]
            torch.testing.assert_close(vector, last / last.norm(), rtol=0, atol=1e-5)
    cut = jumok.embed(model, tokenizer, "ab" * 30, truncate=True)
    torch.testing.assert_close(cut, jumok.embed(model, tokenizer, "ab" * 19 + "a"))
    with pytest.raises(ValueError, match=r"prompt='ask'.* has 'query', 'document'"):
        jumok.embed(model, tokenizer, "x", prompt="ask")
    jumok.save(model, tmp_path / "again", tokenizer)
    again, _ = jumok.load(tmp_path / "again")
    torch.testing.assert_close(jumok.embed(again, tokenizer, "x", prompt="query"), asked[2])


def test_a_default_prompt_and_small_letters(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path / "one", ["mean"], False, True)
    plain, tokenizer = jumok.load(folder)
    expected = jumok.embed(plain, tokenizer, "ask: xyz"[:8])
    prompts = {"prompts": {"q": "Ask: "}, "default_prompt_name": "q"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 8, "do_lower_case": True})
    model, _ = jumok.load(folder)
    assert torch.equal(jumok.embed(model, tokenizer, "XyZ"), expected)
    jumok.save(model, tmp_path / "again", tokenizer)
    again, _ = jumok.load(tmp_path / "again")
    assert torch.equal(jumok.embed(again, tokenizer, "xYZ"), expected)
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    write_json(folder / "1_Pooling" / "config.json", {**pooling, "include_prompt": False})
    with pytest.warns(UserWarning, match="include_prompt = false is not supported"):
        jumok.load(folder)
