"""FlexAttention: ``torch.nn.attention.flex_attention``, with its block mask and score function.

While a model is watched its compiled functions run as they are written, and what reaches the
function mode is the operator underneath, with q, k, v, the mask function and the score function.
Both functions are asked about the whole plane of queries and keys, in tiles: the mask becomes a
rule, and the score function a softcap, a factor and a bias. The kernel's own log-sum-exp tells
whether that is what it computed; if not, the weights themselves are kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jumok.lens.call import AttentionCall
from jumok.lens.taps.heard import Heard, by_weights
from jumok.masks import Dense, Everything, Mask, compact, join

if TYPE_CHECKING:
    from jumok.lens.taps.listener import Listener

_TILE = 1 << 22  # numbers of the plane that are asked about in one go
_NO_MASK = 1 << 30  # the block size of FlexAttention's mask that hides nothing
_SCORES = (0.0, 1.0, -2.5, 1e4)  # what a score function is tried on
_BIAS = "the score function of FlexAttention adds another number to every score, kept as a bias"
_UNKNOWN = "the score function of FlexAttention does more than scale, cap and add"


def rule_of_block_mask(block_mask: Any, n_queries: int, n_keys: int) -> Mask | None:
    """The rule that a block mask says; `None` if everything is visible.

    Args:
        block_mask: a ``BlockMask``.
        n_queries: number of queries, and
        n_keys: of keys that it is used with.
    """
    return _rule(block_mask.as_tuple(), n_queries, n_keys)


def is_flex(function: Any) -> bool:
    """Whether a function is the operator under ``flex_attention``."""
    name: str = type(function).__name__
    return name == "FlexAttentionHOP"


def hear_flex(listener: Listener, function: Any, args: Any, kwargs: Any) -> Any:
    """Run and hear the operator; it returns the output, the log₂-sum-exp and the largest scores."""
    result = function(*args, **kwargs)
    arguments = _Arguments(*args, **kwargs)
    with torch.no_grad():
        heard = _read(listener, arguments, result[1])
    output = listener.emit(heard, result[0], result[0], lambda new: new)
    return result if output is result[0] else (output, *result[1:])


@dataclass(frozen=True, eq=False)
class _Arguments:
    """The operator's arguments."""

    query: Tensor
    key: Tensor
    value: Tensor
    score_mod: Callable[..., Tensor]
    block_mask: tuple[Any, ...]
    scale: float
    kernel_options: dict[str, Any]
    score_mod_other_buffers: tuple[Any, ...] = ()
    mask_mod_other_buffers: tuple[Any, ...] = ()


def _read(listener: Listener, call: _Arguments, log2_sums: Tensor) -> Heard:
    q = call.query
    k, v = (x.expand(q.shape[0], *x.shape[1:]) for x in (call.key, call.value))
    n_queries, n_keys = q.shape[2], k.shape[2]
    masks = listener.masks
    mask: Mask | None = masks.once(
        call.block_mask[2],
        ("blocks", n_queries, n_keys),
        lambda: _rule(call.block_mask, n_queries, n_keys, call.mask_mod_other_buffers),
    )
    plane = (q.shape[0], q.shape[1], n_queries, n_keys)
    change: _Change | None = masks.once(
        call.score_mod,
        plane,
        lambda: _change(call.score_mod, plane, q.device, call.score_mod_other_buffers),
    )
    lse = log2_sums.detach() * math.log(2)
    if lse.shape != q.shape[:3]:
        return by_weights(_weights(call), v, "FlexAttention gave no log-sum-exp", q=q, k=k)
    if change is not None:
        softcap = change.softcap
        if change.mask is not None:
            mask = change.mask if mask is None else join(mask, change.mask)
        heard = Heard(
            q, k, v, mask, change.bias, call.scale * change.factor, softcap,
            lse=lse - change.level,
            stored_because=_BIAS if change.is_large else None,
        )  # fmt: skip
        if _agrees(heard):
            return heard
    return by_weights(_weights(call), v, _UNKNOWN, q=q, k=k)


def _agrees(heard: Heard) -> bool:
    """Whether the record gives the kernel's own log-sum-exp, on three rows."""
    plain = AttentionCall(
        heard.q, heard.k, None, heard.mask, heard.bias, heard.scale, heard.softcap
    )
    batch, heads, n_queries, n_keys = plain.shape
    slack = 16 * max(torch.finfo(heard.q.dtype).eps, 1e-6)
    for b, row in {(0, 0), (batch // 2, n_queries // 2), (batch - 1, n_queries - 1)}:
        scores = plain.scores([b], range(heads), range(row, row + 1), range(n_keys))[0, :, 0]
        assert heard.lse is not None
        right = heard.lse[b, :, row].float()
        found = scores.logsumexp(dim=-1)
        same = (found - right).abs() <= slack * (1 + right.abs())
        if not bool((same | (found == right)).all()):
            return False
    return True


def _weights(call: _Arguments) -> Tensor:
    """All weights (B, H, Tq, Tk), for a score function that does something else."""
    q = call.query
    group = q.shape[1] // call.key.shape[1]
    k = call.key.repeat_interleave(group, dim=1).expand(q.shape[0], -1, -1, -1)
    weights = q.new_empty(*q.shape[:3], k.shape[2], dtype=torch.float32)
    for rows in _rows(weights.shape):
        scores = q[:, :, rows.start : rows.stop].float() @ k.float().mT * call.scale
        scores = _scored(call.score_mod, scores, rows, call.score_mod_other_buffers)
        seen = _seen(call.block_mask[-1], scores.shape, rows, q.device, call.mask_mod_other_buffers)
        part = scores.masked_fill(~seen, -math.inf).softmax(dim=-1).nan_to_num(0.0)
        weights[:, :, rows.start : rows.stop] = part
    return weights


# -- the mask -----------------------------------------------------------------------------------


def _rule(
    blocks: tuple[Any, ...], n_queries: int, n_keys: int, buffers: tuple[Any, ...] = ()
) -> Mask | None:
    mask_mod, number = blocks[-1], blocks[2]
    if blocks[-2] >= _NO_MASK:
        return None
    shape = (number.shape[0], number.shape[1], n_queries, n_keys)
    visible = torch.empty(shape, dtype=torch.bool, device=number.device)
    for rows in _rows(shape):
        visible[:, :, rows.start : rows.stop] = _seen(mask_mod, shape, rows, number.device, buffers)
    return _compact(visible)


def _compact(visible: Tensor) -> Mask | None:
    rule = compact(visible, visible.shape[-2], visible.shape[-1])
    return None if isinstance(rule, Everything) else rule


def _rows(shape: Any) -> Iterator[range]:
    """The plane in blocks of rows."""
    batch, heads, queries, keys = shape
    step = max(1, _TILE // max(batch * heads * keys, 1))
    for start in range(0, queries, step):
        yield range(start, min(start + step, queries))


# -- the score function -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Change:
    """What a score function makes of a score s: softcap · tanh(factor · s / softcap) + bias."""

    factor: float = 1.0
    softcap: float | None = None
    bias: Tensor | None = None
    mask: Mask | None = None
    level: Tensor | float = 0.0
    """A number for each whole row (B or 1, H or 1, Tq), which the log-sum-exp has more."""
    is_large: bool = False
    """Whether the bias is as large as the weights."""


def _change(
    score_mod: Callable[..., Tensor],
    plane: tuple[int, int, int, int],
    place: torch.device,
    buffers: tuple[Any, ...],
) -> _Change | None:
    """What a score function does everywhere; `None` if it is no softcap, factor and bias."""
    found = _Change()
    if getattr(score_mod, "__module__", "").startswith("torch."):
        return found  # torch's own, for none
    kind: _Change | None = None
    levels: list[Tensor] = []
    same_batch = same_head = same_row = True
    first: Tensor | None = None
    for rows in _rows((plane[0], plane[1] * len(_SCORES), plane[2], plane[3])):
        shape = (plane[0], plane[1], len(rows), plane[3])
        tried = [
            _scored(score_mod, torch.full(shape, value, device=place), rows, buffers)
            for value in _SCORES
        ]
        seen = tried[0] > -math.inf
        if kind is None and bool(seen.any()):
            kind = _kind_of([float(part[seen][0]) for part in tried])
            if kind is None:
                return None
        for value, part in zip(_SCORES, tried, strict=True):
            expected = tried[0] + (0.0 if kind is None else _changed(value, kind))
            close = (part - expected).abs() <= 1e-5 * (1 + part.abs())
            if not bool((close | ((part == -math.inf) & ~seen)).all()):
                return None
        level = tried[0]
        same_batch = same_batch and bool((level == level[:1]).all())
        same_head = same_head and bool((level == level[:, :1]).all())
        # A number for the whole row changes no weight.
        base = level - level[..., :1]
        first = base[:, :, :1] if first is None else first
        same_row = same_row and bool(((base - first).abs() <= 1e-6 * (1 + level.abs())).all())
        levels.append(_least(level, same_batch, same_head))
    found = kind or found
    if not levels:
        return found
    level = torch.cat([_least(part, same_batch, same_head) for part in levels], dim=2)
    hidden = level == -math.inf
    if not bool(hidden.any()):
        if bool((level == level.flatten()[0]).all()) and float(level.flatten()[0]) == 0:
            return found
        if same_row:
            rows_level = (level - level[:, :, :1])[..., 0]
            return dataclasses.replace(found, bias=level[:, :, :1].contiguous(), level=rows_level)
        return dataclasses.replace(found, bias=level, is_large=True)
    rule = _compact(~hidden)
    level = level.masked_fill(hidden, 0.0)
    if not bool(level.any()):
        return dataclasses.replace(found, mask=rule)
    return dataclasses.replace(found, mask=rule, bias=level, is_large=not isinstance(rule, Dense))


def _least(level: Tensor, same_batch: bool, same_head: bool) -> Tensor:
    """Without batch elements and heads that only repeat the first."""
    level = level[:1] if same_batch else level
    return level[:, :1] if same_head else level


def _kind_of(values: list[float]) -> _Change | None:
    """The change, less its bias, by which the scores `_SCORES` became these values."""
    one, far = values[1] - values[0], values[3] - values[0]
    if abs(far - _SCORES[3] * one) <= 1e-3 * abs(far):
        return _Change(factor=round(one, 5) if abs(one - round(one, 5)) < 1e-6 else one)
    # tanh has reached its end at the last of them.
    softcap = abs(far)
    if not 0 < softcap < 1e3:
        return None
    factor = math.atanh(one / softcap) * softcap if abs(one) < softcap else 0.0
    factor = round(factor, 3) if abs(factor - round(factor, 3)) < 1e-3 else factor
    return _Change(factor=factor, softcap=softcap) if factor > 0 else None


def _changed(score: float, kind: _Change) -> float:
    if kind.softcap is None:
        return kind.factor * score
    return kind.softcap * math.tanh(kind.factor * score / kind.softcap)


# -- asking -------------------------------------------------------------------------------------


def _over(function: Callable[..., Any], scores: int) -> Callable[..., Any]:
    """A function of one (score,) batch, head, query, key as one of the whole plane."""
    for place in (3, 2, 1, 0):
        dims = tuple(0 if number == place else None for number in range(4))
        function = torch.vmap(function, in_dims=((0,) * scores + dims))
    return function


def _asked(
    function: Callable[..., Any],
    scores: tuple[Tensor, ...],
    shape: Any,
    rows: range,
    place: torch.device,
    buffers: tuple[Any, ...],
) -> Tensor:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    sizes = (range(shape[0]), range(shape[1]), rows, range(shape[3]))
    indices = [torch.arange(one.start, one.stop, device=place) for one in sizes]
    with TransformGetItemToIndex():
        answer: Tensor = _over(lambda *args: function(*args, *buffers), len(scores))(
            *scores, *indices
        )
    return answer


def _seen(
    mask_mod: Callable[..., Tensor],
    shape: Any,
    rows: range,
    place: torch.device,
    buffers: tuple[Any, ...],
) -> Tensor:
    return _asked(mask_mod, (), shape, rows, place, buffers)


def _scored(
    score_mod: Callable[..., Tensor], scores: Tensor, rows: range, buffers: tuple[Any, ...]
) -> Tensor:
    return _asked(score_mod, (scores,), scores.shape, rows, scores.device, buffers).float()
