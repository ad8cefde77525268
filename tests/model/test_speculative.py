"""A draft changes neither the likeliest text nor the probabilities of a drawn one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.peers import DECODERS, ENCODER_DECODERS, peer, peer_folder, random_ids

from jumok.model.checkpoints import read_folder
from jumok.model.foreign import ForeignDecoder
from jumok.model.generate import Draft, Sampler, generate, stream
from jumok.model.speculative import _checked
from jumok.model.transformer import Config, Decoder, Encoder

GPT = Config(vocab_size=67, emb_dim=32, n_layers=2, n_heads=4, n_kv_heads=2, init_std=0.2)


def built(config: Config = GPT, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(config).eval()


def nearly(model: Decoder, by: float = 0.02) -> Decoder:
    """A model that often agrees."""
    twin = Decoder(model.config).eval()
    twin.load_state_dict(model.state_dict())
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(torch.randn_like(parameter) * by)
    return twin


@pytest.mark.parametrize("name", DECODERS)
def test_the_likeliest_text_stays_the_same(name: str, tmp_path: Path) -> None:
    model: Any = read_folder(peer_folder(name, tmp_path))
    ids = random_ids(1, 7)
    plain = generate(model, ids, 30, 0, stop=None)
    for guesser in ("lookup", nearly(model), built(replace(GPT, windows=(3, 3)))):
        draft = Draft(guesser)  # type: ignore[arg-type]
        assert torch.equal(generate(model, ids, 30, 0, stop=None, draft=draft), plain)
        assert draft.written == 30
        assert draft.passes + draft.kept == 30
        assert draft.kept <= draft.guessed


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_targets_too(name: str, tmp_path: Path) -> None:
    model: Any = read_folder(peer_folder(name, tmp_path))
    ids = random_ids(1, 7, high=66)
    plain = generate(model, ids, 30, 0, stop=None)
    assert torch.equal(generate(model, ids, 30, 0, stop=None, draft="lookup"), plain)


def test_models_that_transformers_runs() -> None:
    model = ForeignDecoder(peer("llama")).eval()
    ids = random_ids(1, 7)
    plain = generate(model, ids, 20, 0, stop=None)
    for guesser in ("lookup", model):
        draft = Draft(guesser)  # type: ignore[arg-type]
        assert torch.equal(generate(model, ids, 20, 0, stop=None, draft=draft), plain)
    assert draft.kept == draft.guessed


def test_a_model_that_always_agrees_saves_most_passes() -> None:
    model = built()
    draft = Draft(model)
    plain = generate(model, [[5, 6, 7]], 40, 0, stop=None, repetition_penalty=1.3)
    found = generate(model, [[5, 6, 7]], 40, 0, stop=None, repetition_penalty=1.3, draft=draft)
    assert torch.equal(found, plain)
    assert draft.kept == draft.guessed
    assert draft.passes <= 8
    assert "kept" in repr(draft)


def test_it_stops_where_the_text_ends() -> None:
    model = built()
    whole = generate(model, [[5, 6, 7]], 20, 0, stop=None)[0].tolist()
    stop = whole[9]
    end = whole.index(stop, 3)
    found = generate(model, [[5, 6, 7]], 20, 0, stop=stop, draft=model)
    assert found[0].tolist() == whole[: end + 1]


def test_the_first_token_has_the_models_probabilities() -> None:
    """Leviathan's rule on a small vocabulary, drawn 10,000 times."""
    torch.manual_seed(0)
    logits, other = torch.randn(2, 6) * 1.5, torch.randn(1, 6) * 1.5
    sampler, seen = Sampler(0.8, top_p=0.95), torch.zeros(1, 1, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    own = sampler.shares(logits[:1], seen)[0]
    own = own / own.sum()
    drawn = sampler.shares(other, seen)
    drawn = drawn / drawn.sum()
    n = 5000
    for shares in (drawn, None):
        counts = torch.zeros(6)
        for guess in torch.multinomial(drawn[0], n, True, generator=generator).tolist():
            guess = guess if shares is not None else 2
            counts[_checked(logits, [guess], shares, seen, sampler, generator)[0]] += 1
        assert not counts[own == 0].any()
        spread = (own * (1 - own) / n).sqrt()
        assert bool(((counts / n - own).abs() <= 4.5 * spread + 1e-9).all())


def test_drawn_texts_have_the_models_probabilities() -> None:
    """Both tokens of many two-token texts, with a draft and without, against the model's own."""
    config = Config(vocab_size=4, emb_dim=16, n_layers=1, n_heads=2, init_std=0.6)
    model, other = built(config), built(config, seed=5)
    ids = torch.tensor([[1, 2]])
    with torch.no_grad():
        first = model(ids)[0, -1].softmax(-1)
        pairs = torch.cat([ids.expand(4, 2), torch.arange(4)[:, None]], dim=1)
        own = first[:, None] * model(pairs)[:, -1].softmax(-1)
    generator = torch.Generator().manual_seed(0)
    n = 800
    counts = torch.zeros(4, 4)
    for _ in range(n):
        one, two = generate(model, ids, 2, stop=None, seed=generator, draft=other)[0, 2:].tolist()
        counts[one, two] += 1
    spread = (own * (1 - own) / n).sqrt()
    assert bool(((counts / n - own).abs() <= 4.5 * spread).all())


def test_what_cannot_draft_is_refused() -> None:
    model = built()
    for draft, kind, message in (
        ("beam", TypeError, "lookup"),
        (Encoder(GPT), TypeError, "Encoder"),
        (built(replace(GPT, vocab_size=60)), ValueError, "60 token ids, the model 67"),
    ):
        with pytest.raises(kind, match=message):
            stream(model, [[1, 2]], draft=draft)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch of 2"):
        generate(model, [[1, 2], [3, 4]], draft="lookup")
    with pytest.raises(ValueError, match="length=0"):
        Draft("lookup", 0)
