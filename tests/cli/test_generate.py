"""``jumok generate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch
from tests.cli.conftest import byte_tokenizer
from tokenizers import AddedToken

import jumok
from jumok.tokens import Tokenizer


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A translator, and an encoder that fills in masks."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("others")
    plain = byte_tokenizer(special=False)
    side = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "norm": "rms", "hidden_dim": 24}
    part = jumok.Config(
        260, **side, positions=None, feed_forward="relu", bos_id=0, eos_ids=(257,), pad_id=0
    )
    from dataclasses import replace

    from jumok.model.config import Relative

    part = replace(part, positions=Relative(8, 20), attention_scale=1.0)
    translator = jumok.EncoderDecoder(jumok.EncoderDecoderConfig(part, part, logit_scale=16**-0.5))
    jumok.save(translator, root / "translator", plain)
    marked = byte_tokenizer(special=True)
    marked.backend.add_special_tokens([AddedToken("<mask>", special=True)])
    marked = Tokenizer(marked.backend, {**marked.config, "mask_token": "<mask>"})
    from jumok.model.config import Learned

    size = {"vocab_size": 259, "emb_dim": 16, "n_layers": 2, "n_heads": 2, "context": 40}
    filler = jumok.Encoder(
        jumok.Config(
            **size, positions=Learned(), norm="layer", norm_place="post", norm_eps=1e-12,
            feed_forward="gelu", qkv_bias=True, output_bias=True, feed_forward_bias=True,
            token_types=2, masked_head=True,
        )
    )  # fmt: skip
    jumok.save(filler, root / "filler", marked)
    return {name: str(root / name) for name in ("translator", "filler")}


def test_generate_streams_the_prompt_and_what_follows(run: Any, folders: dict[str, str]) -> None:
    arguments = ("generate", "an", "-m", folders["gpt"], "--tokens", "5", "--seed", "3")
    code, out, err = run(*arguments)
    assert code == 0
    assert out.startswith("an")
    assert out.endswith("\n")
    assert err == "jumok: cut off after 5 tokens; --tokens sets how many\n"
    assert run(*arguments)[1] == out


def test_several_prompts_are_what_each_is_alone(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    more = ("-m", folders["gpt"], "--tokens", "6", "--temperature", "0")
    prompts = ["an", "orange tree", "b"]
    alone = [run("generate", text, *more)[1] for text in prompts]
    code, out, err = run("generate", *prompts, *more)
    assert code == 0
    assert out == "\n".join(f"── {n} of 3 ──\n{text}" for n, text in enumerate(alone, 1))
    assert err.count("cut off") == sum(text != "" for text in alone)
    (tmp_path / "prompts.txt").write_text("an\n\norange tree\nb\n", "utf-8")
    again = run("generate", "--file", str(tmp_path / "prompts.txt"), *more, "--json")
    lines = [json.loads(line) for line in again[1].splitlines()]
    assert [line["prompt"] for line in lines] == prompts
    assert [line["prompt"] + line["text"] + "\n" for line in lines] == alone
    assert {line["finish"] for line in lines} <= {"tokens", "end"}
    assert again[2] == ""  # JSON says it itself


def test_stop_strings(run: Any, folders: dict[str, str]) -> None:
    more = ("-m", folders["gpt"], "--tokens", "12", "--temperature", "0", "--json")
    whole = json.loads(run("generate", "an", *more)[1])["text"]
    letter = next(sign for sign in whole[1:] if sign.isprintable() and sign != "�")
    for prompts in (("an",), ("an", "an")):
        found = json.loads(run("generate", *prompts, *more, "--stop", letter)[1].splitlines()[-1])
        assert found["text"] == whole[: whole.index(letter)]
        assert found["finish"] == "stop"


def test_a_draft_changes_nothing_but_says_what_it_brought(
    run: Any, folders: dict[str, str]
) -> None:
    more = ("-m", folders["gpt"], "--tokens", "9", "--temperature", "0")
    plain = run("generate", "an an an", *more)[1]
    for draft in ("lookup", folders["gpt"]):
        code, out, err = run("generate", "an an an", *more, "--draft", draft)
        assert (code, out) == (0, plain)
        assert "passes of the model" in err


def test_a_translator_writes_its_own_text(run: Any, others: dict[str, str]) -> None:
    more = ("-m", others["translator"], "--tokens", "5", "--temperature", "0", "--json")
    both = [json.loads(line) for line in run("generate", "abc", "hello", *more)[1].splitlines()]
    assert [line["prompt"] for line in both] == ["abc", "hello"]
    for line in both:
        assert json.loads(run("generate", line["prompt"], *more)[1]) == line
    out = run("generate", "abc", *more[:-1])[1]
    assert out == both[0]["text"] + "\n"


def test_masks_are_filled_in(run: Any, others: dict[str, str]) -> None:
    code, out, err = run("generate", "a[MASK]c<mask>", "-m", others["filler"])
    assert code == 0
    assert "[MASK]" not in out
    assert "<mask>" not in out
    assert err.count("next:") == 2
    found = json.loads(run("generate", "a[MASK]c", "-m", others["filler"], "--json")[1])
    (filled,) = found["filled"]
    assert filled["place"] == 2
    assert 0 < filled["share"] < 1
    assert len(filled["others"]) == 4


def test_refusals(refused: Any, folders: dict[str, str], others: dict[str, str]) -> None:
    gpt = ("-m", folders["gpt"])
    for arguments, words in (
        ((), "give prompts or --file"),
        (("", *gpt), "the text is empty"),
        (("a", " ", *gpt), "text 2 is empty"),
        (("an", *gpt, "--tokens", "0"), "--tokens 0: at least 1"),
        (("an", *gpt, "--tokens", "x"), "--tokens x: a whole number"),
        (("an", *gpt, "--temperature", "warm"), "--temperature warm: a number"),
        (("an", *gpt, "--temperature", "-1"), "temperature=-1"),
        (("an", *gpt, "--weights", "int3"), "--weights int3: int8 or int4"),
        (("an", *gpt, "--seed", "-1"), "--seed -1"),
        (("an", *gpt, "--stop", ""), "--stop is empty"),
        (("an" * 30, *gpt), "60 tokens"),
        (("an", "-m", folders["encoder"]), "without a masked-token head"),
        (("no mask", "-m", others["filler"]), "nothing to fill in"),
        (("an", *gpt, "--draft", folders["encoder"]), "draft takes a Decoder"),
    ):
        assert words in refused("generate", *arguments)
