"""Sampling against transformers' own; stopping, batches and streams on scripted models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tests.model.peers import DECODERS, ENCODER_DECODERS, peer, peer_folder, random_ids
from tokenizers.pre_tokenizers import ByteLevel

from jumok.model.checkpoints import read_folder
from jumok.model.config import EncoderDecoderConfig
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.generate import Sampler, generate, stream, stream_text
from jumok.model.transformer import Config, Decoder, Encoder, Learned
from jumok.tokens import Tokenizer

EOS = 256
GPT = Config(vocab_size=41, emb_dim=24, n_layers=2, n_heads=4, init_std=0.3, eos_ids=(2,))


class Scripted(Decoder):
    """Says what it is told to, whatever it reads: one script a row, then 0 for ever."""

    def __init__(self, *scripts: Sequence[int], vocab_size: int = 300, **settings: Any) -> None:
        super().__init__(Config(vocab_size, 8, 1, 2, eos_ids=(EOS,), **settings))
        self.scripts = [list(script) for script in scripts]
        self.step = 0
        self.fed: list[torch.Tensor] = []

    def forward(
        self, ids: Any, mask: Any = None, cache: Any = None, last: int | None = None
    ) -> Any:
        self.fed.append(ids)
        logits = torch.zeros(len(ids), ids.shape[1], self.config.vocab_size)
        for row, script in enumerate(self.scripts):
            logits[row, -1, script[self.step] if self.step < len(script) else 0] = 50.0
        self.step += 1
        return logits if last is None else logits[:, -last:]


def byte_tokenizer() -> Tokenizer:
    """One token for each byte, id = byte; 256 is <eos>."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    signs = {byte: chr(byte) for byte in kept} | {b: chr(256 + n) for n, b in enumerate(moved)}
    assert set(signs.values()) == set(ByteLevel.alphabet())
    vocab = {sign: byte for byte, sign in signs.items()}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, {"eos_token": "<eos>"})


def said(text: str) -> list[int]:
    return list(text.encode())


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(GPT).eval()


# Choosing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "processors"),
    [
        (Sampler(0.7), [transformers.TemperatureLogitsWarper(0.7)]),
        (Sampler(top_k=5), [transformers.TopKLogitsWarper(5)]),
        (Sampler(top_p=0.8), [transformers.TopPLogitsWarper(0.8)]),
        (Sampler(top_p=0.001), [transformers.TopPLogitsWarper(0.001)]),
        (Sampler(min_p=0.2), [transformers.MinPLogitsWarper(0.2)]),
        (
            Sampler(repetition_penalty=1.7),
            [transformers.RepetitionPenaltyLogitsProcessor(1.7)],
        ),
        (
            Sampler(1.3, 9, 0.9, 0.05, 1.2),
            [
                transformers.RepetitionPenaltyLogitsProcessor(1.2),
                transformers.TemperatureLogitsWarper(1.3),
                transformers.TopKLogitsWarper(9),
                transformers.TopPLogitsWarper(0.9),
                transformers.MinPLogitsWarper(0.05),
            ],
        ),
    ],
)
def test_shares_are_those_of_transformers(sampler: Sampler, processors: list[Any]) -> None:
    torch.manual_seed(0)
    logits, seen = torch.randn(4, 41) * 2, torch.randint(0, 41, (4, 12))
    expected = logits.clone()
    for processor in processors:
        expected = processor(seen, expected)
    shares = sampler.shares(logits, seen)
    shares = shares / shares.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(shares, expected.softmax(dim=-1))


def test_draws_follow_the_shares() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]]).expand(20_000, 4)
    seen = torch.zeros(20_000, 1, dtype=torch.long)
    tokens = Sampler(0.5, top_k=2)(logits, seen, torch.Generator().manual_seed(0))
    share = (tokens == 2).float().mean().item()
    assert set(tokens.tolist()) == {1, 2}
    assert share == pytest.approx(torch.tensor(2.0).sigmoid().item(), abs=0.01)


def test_temperature_0_is_argmax_and_top_k_is_clamped() -> None:
    logits, seen = torch.randn(3, 41), torch.zeros(3, 1, dtype=torch.long)
    assert torch.equal(Sampler(0)(logits, seen), logits.argmax(-1))
    assert torch.equal(Sampler(1e-6)(logits, seen), logits.argmax(-1))
    torch.testing.assert_close(Sampler(top_k=10**9).shares(logits, seen), logits.softmax(dim=-1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1}, "temperature=-1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0.0}, r"top_p=0\.0"),
        ({"top_p": 1.5}, r"top_p=1\.5"),
        ({"min_p": 2.0}, r"min_p=2\.0"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty=0\.0"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"stop": "\n"}, "stop_strings"),
        ({"stop_strings": ["a"]}, "tokenizer"),
        ({"stop_strings": [""]}, "empty"),
        ({"mask": torch.ones(1, 4)}, r"\(1, 4\).*\(1, 2\)"),
        ({"mask": torch.zeros(1, 2)}, "row 0"),
    ],
)
def test_values_out_of_range_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(decoder(), [[1, 2]], **arguments)
    with pytest.raises(ValueError, match=message):  # at once, not when the first token is asked for
        stream(decoder(), [[1, 2]], **arguments)


def test_prompts_that_do_not_fit() -> None:
    for prompt, message in (
        ([], "at least one token"),
        ([[1], [1, 2]], "mask"),
        (torch.ones(1, 2), "float32"),
        (torch.ones(1, 1, 2, dtype=torch.long), r"\(1, 1, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(decoder(), prompt)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a Decoder, such as smollm2; this Encoder doesn't"):
        generate(Encoder(GPT), [[1]])  # type: ignore[arg-type]


# Whole models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    model = read_folder(peer_folder(name, tmp_path))
    ids = random_ids(2, 7)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    expected = peer(name).generate(
        ids,
        attention_mask=mask,
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=66,
        pad_token_id=0,
    )
    found = generate(model, ids, 20, 0, mask=mask, stop=66)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_greedy_translation_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    model = read_folder(peer_folder(name, tmp_path))
    ids = random_ids(3, 9, high=66)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    mask[2, 1:] = 0
    settings = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    expected = peer(name).generate(ids, attention_mask=mask, eos_token_id=40, **settings)
    found = generate(model, ids, 20, 0, mask=mask, stop=40)
    fill = model.config.pad_id
    for row, other in zip(found.tolist(), expected.tolist(), strict=True):
        end = other.index(40) + 1 if 40 in other else len(other)
        assert row[:end] == other[:end]
        assert set(row[end:]) <= {fill}
    alone = generate(model, ids[1:2, :6], 20, 0, stop=None)
    assert alone[0].tolist() == generate(model, ids, 20, 0, mask=mask, stop=None)[1].tolist()
    assert alone[0, 0] == model.config.bos_id


def translator(**settings: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    config = EncoderDecoderConfig.vaswani(257, 24, 2, 4, bos_id=256, eos_ids=(256,), pad_id=0)
    sides = {"encoder": config.encoder, "decoder": replace(config.decoder, **settings)}
    return EncoderDecoder(replace(config, **sides)).eval()


def test_a_translation_is_streamed_as_text() -> None:
    model = translator(suppressed_ids=tuple(range(128, 257)))  # plain letters only
    ids = torch.tensor([said("hello")])
    target = generate(model, ids, 12, 0, stop=None)
    pieces = list(stream_text(model, byte_tokenizer(), "hello", 12, 0, stop=None))
    assert "".join(pieces) == bytes(target[0, 1:].tolist()).decode()
    assert [step.item() for step in stream(model, ids, 12, 0, stop=None)] == target[0, 1:].tolist()
    sampled = [generate(model, ids, 12, seed=3, stop=None, top_k=9) for _ in range(2)]
    assert torch.equal(*sampled)


def test_suppressed_ids_are_never_chosen() -> None:
    model = Scripted([5, 6, 7], vocab_size=12)
    model.config = replace(model.config, suppressed_ids=(5, 6, 7))
    found = generate(model, [[9]], 30, temperature=3.0, seed=0, stop=None)
    assert not {5, 6, 7} & set(found[0].tolist())


def test_targets_with_learned_positions_end() -> None:
    model = translator(positions=Learned(), context=8)
    ids = torch.tensor([said("hello")])
    assert generate(model, ids, 8, 0, stop=None).shape == (1, 9)
    with pytest.raises(ValueError, match=r"target.*max_new_tokens=9.*8 positions.*at most 8"):
        generate(model, ids, 9, 0)


def test_memory_is_taken_once() -> None:
    model = Decoder(replace(GPT, windows=(3, None))).eval()
    ids = random_ids(2, 90, high=41)
    caches: list[Any] = []
    made = model.new_cache

    def new_cache(room: int | None = None) -> Any:
        caches.append(made(room))
        return caches[-1]

    model.new_cache = new_cache  # type: ignore[method-assign]
    places: list[set[int]] = [set(), set()]
    for _ in stream(model, ids, 60, 0, stop=None):
        for layer, seen in zip(caches[0].layers, places, strict=True):
            seen.add(layer._keys.data_ptr())
    windowed, whole = caches[0].layers
    assert len(places[1]) == 1
    assert whole._keys.shape[2] == 150
    assert windowed._keys.shape[2] < 150


def test_greedy_is_argmax_of_the_whole_forward() -> None:
    model = decoder()
    ids = random_ids(2, 5, high=41)
    expected = ids
    for _ in range(12):
        expected = torch.cat([expected, model(expected)[:, -1].argmax(-1)[:, None]], dim=1)
    assert torch.equal(generate(model, ids, 12, 0, stop=None), expected)
    assert torch.equal(generate(model, ids.tolist(), 12, 0, stop=None), expected)
    assert torch.equal(generate(model, ids[0], 12, 0, stop=None), expected[:1])
    assert torch.equal(generate(model, ids, 0, 0), ids)


def test_padding_on_either_side_continues_alike() -> None:
    model = decoder()
    ids = random_ids(1, 4, high=41)
    alone = generate(model, ids, 8, 0, stop=None)[:, 4:]
    pad = torch.zeros(1, 3, dtype=torch.long)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    left, right = torch.cat([pad, ids], dim=1), torch.cat([ids, pad], dim=1)
    for prompt, seen in ((left, mask), (right, mask.flip(1)), (left, mask.bool())):
        found = generate(model, prompt, 8, 0, stop=None, mask=seen)
        assert torch.equal(found[:, :7], prompt)
        assert torch.equal(found[:, 7:], alone)


def test_seeds() -> None:
    model = decoder()
    ids = random_ids(2, 3, high=41)
    one, again = (generate(model, ids, 20, seed=7, stop=None) for _ in range(2))
    assert torch.equal(one, again)
    assert torch.equal(
        one, generate(model, ids, 20, seed=torch.Generator().manual_seed(7), stop=None)
    )
    assert not torch.equal(one, generate(model, ids, 20, seed=8, stop=None))
    assert not torch.equal(one[0], one[1])


def test_training_mode_is_given_back() -> None:
    torch.manual_seed(0)
    model = Decoder(Config(41, 24, 2, 4, dropout=0.5, init_std=0.3))
    assert model.training
    first = generate(model, [[1, 2]], 8, 0)
    assert torch.equal(first, generate(model, [[1, 2]], 8, 0))  # no dropout
    assert model.training
    assert not first.is_inference()


def test_learned_positions_end() -> None:
    torch.manual_seed(0)
    model = Decoder(Config(41, 24, 1, 4, positions=Learned(), context=8)).eval()
    ids = random_ids(1, 5, high=41)
    assert generate(model, ids, 4, 0).shape == (1, 9)  # the ninth is never read
    with pytest.raises(ValueError, match=r"5 tokens.*max_new_tokens=5.*8 positions.*at most 4"):
        generate(model, ids, 5, 0)


# Stopping -------------------------------------------------------------------------------------


def test_stops_at_the_end_of_text() -> None:
    script = [1, 2, EOS, 4, 5]
    found = generate(Scripted(script), [[9]], 5, 0)
    assert found.tolist() == [[9, 1, 2, EOS]]
    assert generate(Scripted(script), [[9]], 5, 0, stop=None).tolist() == [[9, *script]]
    assert generate(Scripted(script), [[9]], 5, 0, stop=2).tolist() == [[9, 1, 2]]
    assert generate(Scripted(script), [[9]], 5, 0, stop=[4, EOS]).tolist() == [[9, 1, 2, EOS]]
    assert generate(Scripted(script), [[9]], 2, 0).tolist() == [[9, 1, 2]]


def test_rows_that_end_early_are_filled() -> None:
    scripts = ([1, EOS, 7, 7], [3, 4, 5, EOS])
    filled = generate(Scripted(*scripts), [[9], [9]], 9, 0)
    assert filled.tolist() == [[9, 1, EOS, EOS, EOS], [9, 3, 4, 5, EOS]]
    filled = generate(Scripted(*scripts, pad_id=11), [[9], [9]], 9, 0)
    assert filled.tolist() == [[9, 1, EOS, 11, 11], [9, 3, 4, 5, EOS]]


def test_stop_strings() -> None:
    tokenizer = byte_tokenizer()
    scripts = (said("one. two. three"), said("ab\n\ncd"), said("no such thing !"))
    model = Scripted(*scripts, pad_id=0)
    found = generate(model, [[9]] * 3, 15, 0, stop_strings=["two", "\n\n"], tokenizer=tokenizer)
    texts = [bytes(row[1:]).decode().rstrip("\0") for row in found.tolist()]
    assert texts == ["one. two", "ab\n\n", "no such thing !"]


def test_one_step_at_a_time() -> None:
    model = Scripted([*said("abc"), EOS])
    assert [tokens.tolist() for tokens in stream(model, [[9, 8]], 9, 0)] == [
        [97],
        [98],
        [99],
        [EOS],
    ]
    assert [ids.shape[1] for ids in model.fed] == [2, 1, 1, 1]


# Text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["plain", "한국어 문장", "a😊b👩‍👩‍👧c", "é", "\n\tx"])
def test_only_whole_characters_are_streamed(text: str) -> None:
    pieces = list(stream_text(Scripted([*said(text), EOS]), byte_tokenizer(), "x", 99, 0))
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)
    assert len(pieces) == len(text)


def test_a_character_that_never_ends_is_left_out() -> None:
    script = said("ab😊")[:-1]
    for end in ([EOS], []):
        model = Scripted(script + end)
        pieces = list(stream_text(model, byte_tokenizer(), "x", len(script + end), 0))
        assert "".join(pieces) == "ab"


def test_stop_strings_are_not_streamed() -> None:
    def streamed(text: str, *strings: str) -> list[str]:
        model = Scripted([*said(text), EOS])
        return list(stream_text(model, byte_tokenizer(), "x", 99, 0, stop_strings=strings))

    assert "".join(streamed("one two three", "two")) == "one "
    # What may be the beginning of a stop string waits, and comes when it is not.
    assert streamed("a<b<<c", "<<") == ["a", "<b"]
    assert "".join(streamed("ends with <", "<<")) == "ends with <"
    assert "".join(streamed("aaab", "aab")) == "a"
    assert "".join(streamed("한국어 끝 더", "끝", "x")) == "한국어 "


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    model = Scripted([97, 290, 299, 98, EOS])  # the model's vocabulary is padded to 300
    assert "".join(stream_text(model, byte_tokenizer(), "x", 9, 0)) == "ab"


def test_prompt_as_ids_and_one_prompt_only() -> None:
    tokenizer = byte_tokenizer()
    for prompt in ("hi", said("hi"), torch.tensor([said("hi")])):
        model = Scripted([*said("!"), EOS])
        assert "".join(stream_text(model, tokenizer, prompt, 9, 0)) == "!"
        assert model.fed[0].tolist() == [said("hi")]
    with pytest.raises(ValueError, match="batch of 2"):
        stream_text(Scripted([1]), tokenizer, torch.ones(2, 2, dtype=torch.long))
