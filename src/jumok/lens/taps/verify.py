"""Whether a reading of an attention function agrees with what ran.

Tried on a few rows (the first, the middle and the last of the first and the last sequence, all
heads, but for padding): the weights of the reading against those that the function returned, if
it returned any, and ``weights · v`` against its output. A reading that agrees is recorded, so that
nobody needs to know the function, and no model needs a case of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jumok.lens.call import LOST_IN_ROUNDING, AttentionCall
from jumok.lens.taps.heard import Heard


@dataclass(eq=False)
class Ran:
    """What an attention function gave: output (B, H, Tq, Dv), weights (B, H, Tq, Tk) or none."""

    output: Tensor
    weights: Tensor | None
    dropout: float = 0.0
    """What part of the weights was dropped; what is left was divided by 1 − dropout."""


@dataclass(frozen=True)
class Agreement:
    """What a reading agrees with; `None` where there was nothing to compare."""

    output: bool | None
    weights: bool | None

    @property
    def is_full(self) -> bool:
        return self.output is not False and self.weights is not False


def agreement(heard: Heard, ran: Ran) -> Agreement:
    """Compare a reading with what ran, row by row, where that is finite."""
    batch, heads, n_queries, _ = heard.q.shape
    n_keys = heard.k.shape[2]
    if 0 in (batch, heads, n_queries, n_keys):
        return Agreement(None, None)
    output: bool | None = None
    weights: bool | None = None
    call = AttentionCall(
        heard.q, heard.k, heard.v, heard.mask, heard.bias, heard.scale, heard.softcap, heard.sinks
    )
    with torch.no_grad(), torch.autocast(heard.q.device.type, enabled=False):
        for b in sorted({0, batch - 1}):
            v = heard.v[b].float().repeat_interleave(call.group, dim=0)
            for row in sorted({0, n_queries // 2, n_queries - 1}):
                w, slack = _row(call, b, row, ran.output.dtype)
                if not bool((slack > 0).any()):
                    continue
                if ran.weights is not None:
                    got = ran.weights[b, :, row].float()
                    same = _same_weights(w, got, slack, ran.dropout)
                    weights = same if weights is None else weights and same
                if not ran.dropout:
                    mixed = (w[:, None] @ v)[:, 0]
                    got = ran.output[b, :, row].float()
                    bound = slack * v.abs().amax(dim=(-2, -1))[:, None]
                    same = _within(mixed, got, bound)
                    output = same if output is None else output and same
    return Agreement(output, weights)


def _row(call: AttentionCall, b: int, row: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One row's weights (H, Tk), and what rounding may have done to them (H, 1), of 1.

    That is 0 for a row whose scores are all lost in rounding: it is padding.
    """
    heads, n_keys = call.shape[1], call.shape[3]
    scores = call.scores([b], range(heads), range(row, row + 1), range(n_keys))[0, :, 0]
    seen = scores > LOST_IN_ROUNDING
    real = torch.where(seen, scores, 0.0).abs().amax(dim=-1, keepdim=True)
    if call.sinks is not None:
        scores = torch.cat([scores, call.sinks.float()[:, None]], dim=-1)
    w = scores.softmax(dim=-1)[:, :n_keys].nan_to_num(0.0)
    eps = max(torch.finfo(x).eps for x in (dtype, call.q.dtype))
    # Products of float32 are summed with more rounding than the last digit; those of halves are
    # summed in float32 and rounded once.
    factor = 32 if eps < 1e-6 else 2
    return w, factor * eps * (2 + real) * seen.any(dim=-1, keepdim=True)


def _same_weights(w: Tensor, got: Tensor, slack: Tensor, dropout: float) -> bool:
    if dropout:
        kept = got != 0
        w, got = torch.where(kept, w, 0.0), got * (1 - dropout)
    return _within(w, got, slack * w.amax(dim=-1, keepdim=True).clamp_min(1e-30))


def _within(expected: Tensor, got: Tensor, bound: Tensor) -> bool:
    """Whether all is as near as that, but for what is not finite."""
    return bool(((expected - got).abs() <= bound).logical_or(~got.isfinite()).all())
