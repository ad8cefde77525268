"""Chunked cross-entropy and its gradients against PyTorch's own, and accumulation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from jumok import Config, Decoder, Encoder, EncoderDecoder, EncoderDecoderConfig
from jumok.model.config import Learned
from jumok.training import objective
from jumok.training.objective import Objective, chunked_cross_entropy, recomputing


def _inputs(
    dtype: torch.dtype = torch.float32, n: int = 37, vocab: int = 101, width: int = 16
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(n, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, width, dtype=dtype, requires_grad=True)
    bias = torch.randn(vocab, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, vocab, (n,))
    targets[3] = targets[-1] = -100
    return hidden, weight, bias, targets


@pytest.mark.parametrize("chunk", [1, 1000, 1 << 24])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks_equal_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, chunk: int, smoothing: float, biased: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(objective, "_CHUNK", chunk)
    monkeypatch.setattr(objective, "_FEWEST_ROWS", 1)
    hidden, weight, bias, targets = _inputs(dtype)
    used = bias if biased else None
    learned = [hidden, weight, *([bias] if biased else [])]
    ours = chunked_cross_entropy(hidden, weight, targets, used, smoothing) / 7
    found = torch.autograd.grad(ours, learned)
    logits = F.linear(hidden, weight, used)
    theirs = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing) / 7
    wanted = torch.autograd.grad(theirs, learned)
    near = 1e-6 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(ours, theirs, rtol=near, atol=near)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2 * near, atol=2 * near)


def test_far_logits_stay_finite() -> None:
    """The target's share underflows to 0; its loss is still the difference of the logits."""
    hidden = torch.tensor([[300.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0], [-1.0]], requires_grad=True)
    loss = chunked_cross_entropy(hidden, weight, torch.tensor([2]))
    loss.backward()
    assert loss.item() == 600
    assert hidden.grad is not None
    assert hidden.grad.item() == 2


def test_nothing_to_learn_from() -> None:
    hidden, weight, _, targets = _inputs()
    loss = chunked_cross_entropy(hidden, weight, torch.full_like(targets, -100))
    loss.backward()
    assert loss.item() == 0
    assert weight.grad is not None
    assert not weight.grad.any()
    empty = chunked_cross_entropy(hidden[:0], weight, targets[:0])
    assert empty.item() == 0


def test_only_what_learns_gets_a_gradient() -> None:
    hidden, weight, _, targets = _inputs()
    chunked_cross_entropy(hidden, weight.detach(), targets).backward()
    assert hidden.grad is not None
    with torch.no_grad():
        assert chunked_cross_entropy(hidden, weight, targets).item() > 0


def test_backward_goes_once() -> None:
    hidden, weight, _, targets = _inputs()
    loss = chunked_cross_entropy(hidden, weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_autocast_rounds_as_linear_does() -> None:
    hidden, weight, bias, targets = _inputs(n=300, width=64)
    with torch.autocast("cpu", torch.bfloat16):
        ours = chunked_cross_entropy(hidden, weight, targets, bias)
        logits = F.linear(hidden, weight).float() + bias
    found = torch.autograd.grad(ours, [hidden, weight])
    theirs = F.cross_entropy(logits, targets, reduction="sum")
    wanted = torch.autograd.grad(theirs, [hidden, weight])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.05)


def test_shapes_that_do_not_fit_are_told() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(9, 5\)"):
        chunked_cross_entropy(torch.ones(3, 4), torch.ones(9, 5), torch.zeros(3, dtype=torch.long))


# Whole models ---------------------------------------------------------------------------------


class _Rows:
    """A batch as the objective reads it."""

    mask: Tensor | None = None
    documents: Tensor | None = None
    target_ids: Tensor | None = None
    target_mask: Tensor | None = None

    def __init__(self, ids: Tensor, targets: Tensor, **others: Tensor) -> None:
        self.ids, self.targets = ids, targets
        self.__dict__.update(others)

    @property
    def n_targets(self) -> int:
        return int((self.targets != -100).sum())


def _gpt(tied: bool = True) -> Decoder:
    torch.manual_seed(1)
    return Decoder(Config(61, 32, 2, 4, tied_head=tied))


def _bert() -> Encoder:
    torch.manual_seed(1)
    config = Config(61, 32, 2, 4, norm="layer", norm_place="post", positions=Learned())
    return Encoder(Config(**{**config.__dict__, "masked_head": True, "feed_forward": "gelu"}))


def _pairs() -> EncoderDecoder:
    torch.manual_seed(1)
    return EncoderDecoder(EncoderDecoderConfig.vaswani(61, 32, 2, 4, dropout=0.0, bos_id=0))


def _ids(*shape: int) -> Tensor:
    return torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_learns_the_next_token(tied: bool) -> None:
    """The loss of logits[:-1] against ids[1:], with the gradients of all weights."""
    model, ids = _gpt(tied), _ids(2, 9)
    Objective(model)(_Rows(ids[:, :-1], ids[:, 1:])).backward()
    found = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    logits = model(ids)[:, :-1]
    F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_documents_that_are_apart_are_learnt_as_if_alone() -> None:
    model, ids = _gpt(), _ids(1, 10)
    targets = ids.roll(-1, 1)
    rows = _Rows(ids, targets, documents=torch.tensor([[0] * 4 + [1] * 6]))
    alone = [_Rows(ids[:, :4], targets[:, :4]), _Rows(ids[:, 4:], targets[:, 4:])]
    wanted = sum(Objective(model)(part) for part in alone)
    torch.testing.assert_close(Objective(model)(rows), wanted, rtol=1e-5, atol=1e-5)


def test_an_encoder_learns_the_masked_tokens_alone() -> None:
    model, ids = _bert(), _ids(2, 9)
    targets = torch.full_like(ids, -100)
    targets[0, 3], targets[1, 7] = 5, 6
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 8] = False
    loss = Objective(model)(_Rows(ids, targets, mask=mask))
    logits = model.logits(model(ids, mask))
    wanted = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)


def test_an_encoder_decoder_learns_targets_with_smoothing() -> None:
    model, ids, target = _pairs(), _ids(2, 9), _ids(2, 6)
    wanted_ids = target[:, 1:].clone()
    wanted_ids[1, 3:] = -100
    batch = _Rows(ids, wanted_ids, target_ids=target[:, :-1])
    loss = Objective(model, label_smoothing=0.1)(batch)
    logits = model(ids, target[:, :-1]).flatten(0, 1)
    wanted = F.cross_entropy(logits, wanted_ids.flatten(), reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)


def test_parts_of_a_step_weigh_their_targets() -> None:
    """A part with few targets counts for few."""
    model, ids = _gpt(), _ids(4, 11)
    targets = ids[:, 1:].clone()
    targets[0, 2:] = targets[1, 5:] = -100
    rows, lesson = ids[:, :-1], Objective(model)
    whole = lesson(_Rows(rows, targets)) / (targets != -100).sum()
    whole.backward()
    wanted = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    for part in (slice(0, 1), slice(1, 4)):
        (lesson(_Rows(rows[part], targets[part])) / (targets != -100).sum()).backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, wanted[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("make", [_gpt, _bert, _pairs])
def test_recomputing_changes_nothing(make: Callable[[], torch.nn.Module]) -> None:
    model, ids = make(), _ids(2, 9)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    batch = _Rows(ids, ids, target_ids=ids)

    def gradients() -> dict[str, Tensor | None]:
        torch.manual_seed(3)
        model.zero_grad()
        Objective(model)(batch).backward()  # type: ignore[arg-type]
        return {name: weight.grad for name, weight in model.named_parameters()}

    wanted = gradients()
    with recomputing(model):
        found = gradients()
    assert all(
        torch.equal(found[name], wanted[name]) for name in wanted if wanted[name] is not None
    )  # type: ignore[arg-type]
    assert all("forward" not in vars(module) for module in model.modules())


def test_what_cannot_learn_is_refused() -> None:
    with pytest.raises(ValueError, match="masked_head"):
        Objective(Encoder(Config(61, 32, 2, 4)))
    with pytest.raises(ValueError, match=r"label_smoothing=1\.5"):
        Objective(_gpt(), 1.5)


def test_ten_tokens_at_loss_1_and_thirty_at_loss_3() -> None:
    """The step's loss is 2.5, not the parts' mean of 2."""
    weight = torch.tensor([[1.0], [0.0]])
    summed = sum(
        chunked_cross_entropy(
            torch.full((n, 1), loss).expm1().log(), weight, torch.ones(n, dtype=torch.long)
        )
        for n, loss in ((10, 1.0), (30, 3.0))
    )
    torch.testing.assert_close(summed / 40, torch.tensor(2.5), rtol=1e-6, atol=1e-6)
