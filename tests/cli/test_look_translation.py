"""``jumok look`` with encoder-decoders: which source words each target word read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch

import jumok
from cli.conftest import byte_tokenizer
from jumok.tokens.characters import BYTE_OF_SIGN

TEXT, TARGET = "The bank was muddy", "나는 갔다"
LETTERS = {id for id, sign in enumerate(BYTE_OF_SIGN) if "a" <= sign <= "z"}


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A Marian and a T5 with random weights that write letters."""
    torch.manual_seed(0)
    config = jumok.EncoderDecoderConfig.vaswani(
        258, emb_dim=32, n_layers=2, n_heads=4, bos_id=256, eos_ids=(257,), pad_id=0
    )
    banned = tuple(set(range(258)) - LETTERS)
    sides = {
        name: replace(side, suppressed_ids=banned)
        for name, side in (("encoder", config.encoder), ("decoder", config.decoder))
    }
    marian = jumok.EncoderDecoder(replace(config, **sides))
    t5 = {
        name: replace(
            side, norm_place="pre", norm="rms", positions=jumok.model.config.Relative(8, 20),
            attention_scale=1.0, qkv_bias=False, output_bias=False, feed_forward_bias=False,
            norm_eps=1e-6, embedding_scale=1.0, dropout=0.0, init_std=0.02,
        )
        for name, side in sides.items()
    }  # fmt: skip
    other = jumok.EncoderDecoder(replace(config, **t5, logit_scale=1 / math.sqrt(32)))
    folder = tmp_path_factory.mktemp("translators")
    for name, model in (("marian", marian), ("t5", other)):
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, 0, 0.3)
        jumok.save(model, folder / name, byte_tokenizer(special=True))
    return {name: str(folder / name) for name in ("marian", "t5")}


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_shares_are_those_of_the_positions_that_wrote_the_word(
    name: str, run: Any, translators: dict[str, str]
) -> None:
    arguments = ("look", TEXT, "--target", TARGET, "-m", translators[name], "--raw", "--json")
    code, out, _ = run(*arguments)
    assert code == 0
    found = json.loads(out)
    assert found["target"] == TARGET
    assert found["target_words"] == ["나는", "갔다"]
    model, tokenizer = jumok.load(translators[name])
    source = torch.tensor([tokenizer.encode(TEXT)])
    written = tokenizer.encode(TARGET)
    target = torch.tensor([[256, *written]])
    with torch.no_grad(), jumok.watch(model) as recording:
        model(source, target)
    cross = [recording[f"decoder.layers.{layer}.cross_attention"][0] for layer in range(2)]
    weights = torch.stack(cross).mean((0, 1))  # (Tt, Ts)
    for query in found["reads"]["queries"]:
        rows = [token - 1 for token in query["tokens"]]
        text = tokenizer.decode([target[0, token] for token in query["tokens"]])
        assert text == query["word"]
        for given in query["sources"]:
            expected = weights[rows][:, given["tokens"]].sum(-1).mean()
            assert given["share"] == pytest.approx(float(expected), abs=1e-5)
        assert sum(one["share"] for one in query["sources"]) == pytest.approx(1, abs=1e-5)
    assert [one["word"] for one in found["within"]["queries"]] == TEXT.split()


def test_the_words_within_the_source_are_the_encoders(
    run: Any, translators: dict[str, str]
) -> None:
    _, out, _ = run("look", TEXT, "--target", TARGET, "-m", translators["marian"], "--json")
    model, tokenizer = jumok.load(translators["marian"])
    with torch.no_grad(), jumok.watch(model.encoder) as recording:
        model.encoder(torch.tensor([tokenizer.encode(TEXT)]))
    expected = jumok.sources(recording, tokenizer, text=TEXT)
    found = json.loads(out)["within"]
    for one, other in zip(found["queries"], expected.queries, strict=True):
        assert one["word"] == other.word
        for given, wanted in zip(one["sources"], other.sources, strict=True):
            assert given["share"] == pytest.approx(wanted.share, abs=1e-6)


def test_what_the_model_writes_is_what_generate_writes(
    run: Any, translators: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jumok.cli.look_translation.MOST_NEW", 6)
    _, out, _ = run("look", TEXT, "-m", translators["marian"], "--json")
    model, tokenizer = jumok.load(translators["marian"])
    ids = jumok.generate(model, [tokenizer.encode(TEXT)], 6, 0.0)
    assert json.loads(out)["target"] == tokenizer.decode(ids[0].tolist())
    _, shown, _ = run("look", TEXT, "-m", translators["marian"])
    assert f"it wrote  {json.loads(out)['target']}" in shown


def test_what_is_shown(run: Any, translators: dict[str, str], tmp_path: Path) -> None:
    arguments = ("look", TEXT, "--target", TARGET, "-m", translators["marian"])
    path, kept = tmp_path / "p.png", tmp_path / "r.safetensors"
    _, out, err = run(*arguments, "--png", str(path), "--save", str(kept))
    assert "Which words of the source each word of the target read" in out
    assert f"source  {TEXT}\n  target  {TARGET}" in out
    assert "apart: special tokens of the source" in out
    assert "Where each word takes its meaning from" in out
    assert path.stat().st_size > 1000
    assert len(jumok.open(kept)) == 6
    assert f"wrote {path}" in err
    _, word, _ = run(*arguments, "-w", "갔다")
    assert "What “갔다” of the target read" in word
    assert "나는” of the target read" not in word
    _, source, _ = run(*arguments, "-w", "BANK", "--layers", "1")
    assert "Where bank takes its meaning from" in source
    assert "layer 1" in source


def test_what_is_refused(
    refused: Any, translators: dict[str, str], folders: dict[str, str]
) -> None:
    name = translators["marian"]
    assert "has a word 'dog'; the words of the target: 나는, 갔다" in refused(
        "look", TEXT, "--target", TARGET, "-w", "dog", "-m", name
    )
    assert "--against is not for marian" in refused("look", "a", "--against", "b", "-m", name)
    assert "--token is not for marian" in refused("look", "a", "--token", "1", "-m", name)
    assert "--target is for models" in refused("look", "a", "--target", "b", "-m", folders["gpt"])
    assert "there is no layer 2: the decoder has 0 to 1" in refused(
        "look", TEXT, "--target", "b", "--layers", "2", "-m", name
    )
    assert "after --target is empty" in refused("look", TEXT, "--target", " ", "-m", name)
    assert "has an encoder and a decoder" in refused("report", TEXT, "-m", name)


def test_a_word_of_the_source_is_shown_with_its_readers(
    run: Any, translators: dict[str, str]
) -> None:
    arguments = ("look", TEXT, "--target", TARGET, "-m", translators["marian"])
    _, out, _ = run(*arguments, "--json")
    found = json.loads(out)["reads"]
    place = found["words"].index("bank")
    shares = {one["word"]: one["sources"][place]["share"] for one in found["queries"]}
    ranked = sorted(shares, key=lambda word: -shares[word])
    _, shown, _ = run(*arguments, "-w", "bank")
    assert "Which words of the target read “bank”" in shown
    assert "   ".join(f"{word} {100 * shares[word]:.0f} %" for word in ranked) in shown


def test_the_picture_has_a_row_for_each_word_of_the_target(translators: dict[str, str]) -> None:
    pytest.importorskip("matplotlib")
    from jumok.lens.translation import translation
    from jumok.view.translation import picture

    model, tokenizer = jumok.load(translators["marian"])
    source, target = tokenizer.encode(TEXT), [256, *tokenizer.encode(TARGET)]
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.tensor([source]), torch.tensor([target]))
    data = translation(recording, tokenizer, source, target, text=TEXT)
    axes = picture(data).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["나는", "갔다"]
    across = [label.get_text() for label in axes.get_xticklabels()]
    assert [name for name in across if name in TEXT.split()] == TEXT.split()
    expected = [[one.share for one in query.sources] for query in data.reads.queries]
    assert axes.texts
    drawn = [[f"{100 * share:.0f}" for share in row] for row in expected]
    assert [text.get_text() for text in axes.texts] == [one for row in drawn for one in row]
    torch.testing.assert_close(
        torch.tensor(axes.images[0].get_array().data), 100 * torch.tensor(expected).double()
    )
