"""What listening leaves out to be cheap, and must not miss for it."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
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


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_after_an_error_of_any_kind_all_is_as_before(error: type[BaseException]) -> None:
    model, ids = decoder(), torch.randint(0, 50, (1, 9))
    last = list(model.modules())[-1]
    is_failing = True

    def fail(*_: object) -> None:
        if is_failing:
            raise error

    last.register_forward_pre_hook(fail)
    cache = model.new_cache()
    with torch.no_grad(), jumok.watch(model) as recording:
        with pytest.raises(error) as caught:
            model(ids)
        assert not torch.overrides._get_current_function_mode_stack()
        count = len(recording)
        nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 1, 5, 8))
        assert len(recording) == count
        is_failing = False
        model(ids[:, :6], cache=cache)
        for start in range(6, 9):
            model(ids[:, start : start + 1], cache=cache)
    assert caught.type is error
    assert [found.shape for found in list(recording)[count:]] == [(1, 4, 9, 9)] * 2
    assert not any("_compiled_call_impl" in vars(module) for module in model.modules())


@pytest.mark.parametrize("first", [0, 1])
def test_watches_that_end_in_any_order_leave_the_calls_as_they_were(first: int) -> None:
    model = decoder()
    model.compile(backend="eager")
    before = model._compiled_call_impl
    watches = [jumok.watch(model), jumok.watch(model)]
    for one in watches:
        one.open()
    watches[first].close()
    watches[1 - first].close()
    assert model._compiled_call_impl is before
    assert not any("_compiled_call_impl" in vars(part) for part in list(model.modules())[1:])


def test_a_watched_model_can_be_saved_and_runs_unheard() -> None:
    model, ids = decoder(), torch.randint(0, 50, (1, 9))
    file = io.BytesIO()
    with torch.no_grad(), jumok.watch(model) as recording:
        expected = model(ids)
        torch.save(model, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
        copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        for other in (again, copied):
            torch.testing.assert_close(other(ids), expected, rtol=0, atol=0)
    assert len(recording) == 2
    torch.testing.assert_close(again(ids), expected, rtol=0, atol=0)
