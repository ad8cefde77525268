"""Small recordings of real models, with words, as the page shows them."""

from __future__ import annotations

from typing import Any

import torch

import jumok
import small_tokenizers
from jumok.model.config import Config, EncoderDecoderConfig
from jumok.tokens import Tokenizer

TEXT = (
    "The bank raised its rates.\nIt's a river bank, too.\n\n"
    "은행은 강가에 있다. </script><script>alert(1)</script> & 😊\n\n"
    "What did the bank do?"
)


def tokenizer() -> Tokenizer:
    """Bytes and a few longer pieces; id 0 … 255 the bytes, "<end>" special."""
    merges = [("t", "h"), ("b", "a"), ("n", "k"), ("ba", "nk"), ("Ġ", "bank")]
    return Tokenizer(small_tokenizers.byte_level(merges))


def decoder(**options: Any) -> Any:
    """A GPT of three layers with grouped heads."""
    torch.manual_seed(0)
    config = Config(vocab_size=300, emb_dim=32, n_layers=3, n_heads=4, n_kv_heads=2, **options)
    return jumok.Decoder(config).eval()


def gpt(text: str = TEXT, *, model: Any = None, **keep: Any) -> Any:
    """A recording of a text that ends with a special token, with its words."""
    tokens, model = tokenizer(), model or decoder()
    ids = [*tokens.encode(text), *tokens.special_ids]
    with torch.no_grad(), jumok.watch(model, **keep) as recording:
        model(torch.tensor([ids]))
    recording.label(tokens)
    return recording


def generated(new: int = 6) -> Any:
    """A recording of a model that went on after a prompt, which it knows."""
    tokens, model = tokenizer(), decoder()
    ids = tokens.encode(TEXT)
    with torch.no_grad(), jumok.watch(model) as recording:
        jumok.generate(model, torch.tensor([ids]), max_new_tokens=new, temperature=0, stop=None)
    recording.label(tokens, prompt=len(ids))
    return recording


def translated() -> Any:
    """An encoder-decoder that reads a source and writes a few tokens."""
    tokens = tokenizer()
    torch.manual_seed(1)
    config = EncoderDecoderConfig.vaswani(300, 32, 2, 4, 64, 0.0, bos_id=261)
    model = jumok.EncoderDecoder(config).eval()
    source = torch.tensor([tokens.encode("the bank")])
    with torch.no_grad(), jumok.watch(model) as recording:
        jumok.generate(model, source, max_new_tokens=9, temperature=0, stop=None)
    recording.label(tokens)
    return recording
