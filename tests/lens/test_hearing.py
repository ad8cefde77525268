"""What listening leaves out to be cheap, and must not miss for it."""

from __future__ import annotations

import torch
from torch import nn

import jumok
from jumok.model.config import Config
from jumok.model.transformer import Decoder


def decoder() -> Decoder:
    torch.manual_seed(0)
    config = Config(
        vocab_size=50, emb_dim=32, n_layers=2, n_heads=4, n_kv_heads=2, context=64, dropout=0.1
    )
    return Decoder(config).eval()


def test_a_watch_opened_between_steps_finds_the_projection_too() -> None:
    # The outer one knows it since the prompt and does not ask for it again.
    model = decoder()
    ids = torch.randint(0, 50, (1, 9))
    cache = model.new_cache()
    with torch.no_grad(), jumok.watch(model) as outer:
        model(ids[:, :6], cache=cache)
        with jumok.watch(model) as inner:
            model(ids[:, 6:], cache=cache)
    with torch.no_grad(), jumok.watch(model) as whole:
        model(ids)
    for stitched, part, full in zip(outer, inner, whole, strict=True):
        assert stitched.value_note == part.value_note == full.value_note
        torch.testing.assert_close(stitched.value_norms(), full.value_norms())
        torch.testing.assert_close(part.value_norms(), full.value_norms())


def test_modules_without_attention_ran_all_the_same() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.5))
    listener = jumok.watch(model)
    listener.open()
    for _ in range(2):
        model(torch.arange(5))
    listener.close()
    assert list(listener.ran.values()) == ["Sequential", "Embedding", "Linear", "GELU", "Dropout"]
    for module in model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks


def test_attention_put_into_a_plain_module_is_heard_there() -> None:
    model = nn.Sequential(nn.Identity())
    model[0].forward = lambda x: nn.functional.scaled_dot_product_attention(x, x, x)
    with jumok.watch(model) as recording:
        model(torch.randn(1, 2, 3, 4))
    assert recording[0].name == "0"
