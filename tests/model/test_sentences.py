"""Sentence embeddings against transformers, batches and padding included."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
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
    with pytest.raises(ValueError, match="pooling='max': one of mean, first"):
        embed(model, byte_tokenizer(), texts, pooling="max")  # type: ignore[arg-type]


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
        ((Decoder(SMALL), ["a"]), TypeError, "takes an Encoder, such as minilm; this Decoder"),
    ],
)
def test_what_cannot_be_embedded(
    arguments: tuple[Any, Any], error: type[Exception], message: str
) -> None:
    model, texts = arguments
    with pytest.raises(error, match=message):
        embed(model or small(), byte_tokenizer(), texts)
