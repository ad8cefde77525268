"""What training minimises: cross-entropy summed over targets, in chunks of tokens.

    loss = Σ_n  (1 − ε)·(lse_n − z_n[target_n]) + ε·(lse_n − mean_v z_n[v]),    z = hidden·Wᵀ + b

The logits z of a whole batch would be (tokens, vocab): with a vocabulary of 50,000 by far the
largest array of a step, several times over. Here a chunk of them is made, turned at once into
its share of the gradients of ``hidden``, ``W`` and ``b``, and forgotten. Nothing is computed
twice: backward only multiplies by the gradient that comes in.

N tokens that have a target, E emb_dim, V vocab_size.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from jumok.model.blocks import Block
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.transformer import Decoder, Encoder

if TYPE_CHECKING:
    from jumok.training.batches import Batch

__all__ = ["Objective", "chunked_cross_entropy", "recomputing"]

_CHUNK = 1 << 21  # logits at once: what a processor's cache holds
_FEWEST_ROWS = 256  # at once: a product of fewer rows is no longer fast
_IGNORED = -100


class Objective(nn.Module):
    """A model and the loss it is trained with: a `Batch` → the loss summed over its targets.

    A decoder guesses the next token, an encoder the masked ones, an encoder-decoder the target's
    next token. Divide the sum by the number of targets of the whole step.

    Args:
        model: one of ours. An encoder needs its masked-token head.
        label_smoothing: the share ε of each target that is spread over the vocabulary (Szegedy et
            al. 2015).

    Raises:
        ValueError: a share outside 0 to 1, or an encoder without its head.
    """

    def __init__(
        self, model: Decoder | Encoder | EncoderDecoder, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing}: a share from 0 to 1")
        if isinstance(model, Encoder) and model.masked_head is None:
            raise ValueError(
                "an encoder learns by guessing masked tokens, and this one has no head for that "
                "(config.masked_head is False)"
            )
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> Tensor:
        """A number: the loss in nats, summed over the batch's targets."""
        hidden = self._hidden(batch)  # (B, T, E)
        counted = batch.targets != _IGNORED
        if bool(counted.all()):
            hidden, targets = hidden.flatten(0, 1), batch.targets.flatten()
        else:  # tokens without a target need no logits
            hidden, targets = hidden[counted], batch.targets[counted]
        model, bias = self.model, None
        if isinstance(model, Encoder):
            assert model.masked_head is not None
            hidden, bias = model.masked_head.states(hidden), model.masked_head.bias
            weight = model.embedding.weight
        else:
            weight = model.head_weight
            bias = model.head_bias if isinstance(model, EncoderDecoder) else None
        return chunked_cross_entropy(hidden, weight, targets, bias, self.label_smoothing)

    def _hidden(self, batch: Batch) -> Tensor:
        if isinstance(self.model, EncoderDecoder):
            assert batch.target_ids is not None
            return self.model.hidden(
                batch.ids, batch.target_ids, batch.mask, target_mask=batch.target_mask
            )
        if isinstance(self.model, Encoder):
            return self.model(batch.ids, batch.mask)  # type: ignore[no-any-return]
        return self.model.hidden(batch.ids, batch.mask, documents=batch.documents)


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of ``hidden @ weight.T + bias``, summed, without holding all those logits.

    Under autocast matrices are multiplied in its dtype, as `torch.nn.functional.linear` does; the
    softmax is float32. Backward may be called once.

    Args:
        hidden: (N, E)
        weight: (V, E)
        targets: (N,) ids from 0 to V − 1; −100 counts for nothing.
        bias: (V,), or `None`.
        label_smoothing: the share of a target that is spread over all ids.

    Returns:
        A number, in nats.

    Raises:
        ValueError: shapes that don't fit.
    """
    if (
        hidden.ndim != 2
        or targets.shape != hidden.shape[:1]
        or weight.shape[1:] != hidden.shape[1:]
    ):
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and targets "
            f"{tuple(targets.shape)}: they must be (N, E), (V, E) and (N,)"
        )
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    loss: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, bias, label_smoothing, dtype
    )
    return loss


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        smoothing: float,
        dtype: torch.dtype,
    ) -> Tensor:
        want_hidden, want_weight, _, want_bias, *_ = ctx.needs_input_grad
        wide = torch.promote_types(torch.float32, weight.dtype)  # what sums are kept in
        states, table = hidden.to(dtype), weight.to(dtype)
        of_hidden = torch.empty_like(states) if want_hidden else None
        of_weight = torch.zeros_like(weight, dtype=wide) if want_weight else None
        of_bias = torch.zeros_like(weight[:, 0], dtype=wide) if want_bias else None
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        size, vocab = len(hidden), len(weight)
        rows = min(size, max(_FEWEST_ROWS, _CHUNK // vocab))
        # One piece of memory for all chunks: fresh memory costs more than a product of matrices.
        room = torch.empty(rows, vocab, dtype=wide, device=hidden.device)
        narrow = room if dtype == wide else torch.empty_like(room, dtype=dtype)
        for start in range(0, size, max(1, rows)):
            x, answers = states[start : start + rows], targets[start : start + rows]
            logits, slopes = room[: len(x)], narrow[: len(x)]  # (n, V)
            torch.mm(x, table.T, out=slopes)
            if slopes is not logits:
                logits.copy_(slopes)
            if bias is not None:
                logits += bias
            total += _to_shares(logits, answers, smoothing)
            if not any(ctx.needs_input_grad):
                continue
            _minus_answers(logits, answers, smoothing)
            if of_bias is not None:
                of_bias += logits.sum(0)
            if slopes is not logits:
                slopes.copy_(logits)
            if of_hidden is not None:
                torch.mm(slopes, table, out=of_hidden[start : start + rows])
            if of_weight is not None and dtype == wide:
                of_weight.addmm_(slopes.T, x)
            elif of_weight is not None:
                of_weight += slopes.T @ x
        ctx.found = [of_hidden, of_weight, of_bias]
        ctx.dtypes = [hidden.dtype, weight.dtype, None if bias is None else bias.dtype]
        return total.to(wide)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        if ctx.found is None:
            raise RuntimeError("backward through a chunked cross-entropy goes once")
        of_hidden, of_weight, of_bias = (
            None if found is None else found.mul_(slope).to(dtype)
            for found, dtype in zip(ctx.found, ctx.dtypes, strict=True)
        )
        ctx.found = None  # the graph no longer holds what the leaves now own
        return of_hidden, of_weight, None, of_bias, None, None


def _to_shares(logits: Tensor, answers: Tensor, smoothing: float) -> Tensor:
    """Logits become their softmax, in place; the loss of all rows in float64."""
    counted = answers != _IGNORED
    of_answer = logits.gather(1, answers.clamp(min=0)[:, None])[:, 0]
    highest = logits.amax(1)
    mean = logits.mean(1) if smoothing else 0.0
    torch.softmax(logits, 1, out=logits)
    # The largest share is exp(highest − lse), and at least 1/V: its logarithm is always exact.
    lse = highest - logits.amax(1).log()
    losses = lse - (1 - smoothing) * of_answer - smoothing * mean
    return torch.where(counted, losses, 0.0).sum(dtype=torch.float64)


def _minus_answers(shares: Tensor, answers: Tensor, smoothing: float) -> None:
    """The softmax becomes the gradient of the logits, in place."""
    counted = answers != _IGNORED
    if smoothing:
        shares -= smoothing / shares.shape[1]
    share = torch.full_like(shares[:, :1], smoothing - 1)
    shares.scatter_add_(1, answers.clamp(min=0)[:, None], share)
    if not bool(counted.all()):
        shares *= counted[:, None]


@contextmanager
def recomputing(model: nn.Module) -> Iterator[None]:
    """Within, blocks keep only their input for backward, and compute the rest once more.

    Activation checkpointing (Chen et al. 2016): about a third more time, and the memory of one
    block in place of all.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for block in blocks:
        once_more = functools.partial(recomputed, block.forward, use_reentrant=False)
        block.forward = once_more  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in blocks:
            del block.forward  # the class's own is seen again
