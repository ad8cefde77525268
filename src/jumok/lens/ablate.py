"""Ablation: take attention heads away and see what becomes of the model.

An attention weight says what a head read, not whether that mattered. Running the model without
the head does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from jumok import fused
from jumok.lens.hearing import Hearing
from jumok.lens.keeping import Keeper, Policy
from jumok.lens.slots import without_free_slots
from jumok.lens.taps import Heard
from jumok.masks import Dense, join

How = Literal["zero", "mean", "uniform"]
HeadName = tuple[int | str, int]


class ablate(Hearing):
    """Run a model without some of its attention heads.

    ```python
    with jumok.ablate(model, heads=[(12, 3), ("layers.20.attention", 0)], how="mean"):
        logits = model(ids)
    ```

    Works on every model that `jumok.watch` hears; its weights and its configuration are left
    alone. What a head hands to the output projection is replaced:

    * ``"zero"``: by zeros;
    * ``"mean"``: by its mean over all queries of the forward, so that what is lost is only what
      differs from token to token. A forward of one query (a decoding step) takes the mean of
      the last longer one;
    * ``"uniform"``: by the plain mean of the values that the query may see: every weight alike.

    Args:
        model: any `torch.nn.Module`.
        heads: pairs (layer, head), both from 0. A layer is a number, counted as the maps of a
            recording are (in the order in which they run), or the module's path.
        how: see above.

    Raises:
        TypeError: `model` is no module, `heads` are no pairs.
        ValueError: an unknown `how`, no heads, a negative number; while the model runs: a head
            that the layer doesn't have; when the block ends: a layer that never ran.
    """

    def __init__(
        self, model: torch.nn.Module, heads: Iterable[HeadName], how: How = "zero"
    ) -> None:
        super().__init__(model, "ablate")
        if how not in ("zero", "mean", "uniform"):
            raise ValueError(f'how={how!r}: choose "zero", "mean" or "uniform"')
        self._how = how
        self._heads = _read_heads(heads)
        self._met: set[int | str] = set()
        self._numbers: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._means: dict[str, Tensor] = {}

    def __enter__(self) -> None:
        self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self._means.clear()
        if error is not None:
            return
        missing = [layer for layer in self._heads if layer not in self._met]
        if missing and not self.forwards:
            raise ValueError(
                f"nothing was ablated: {type(self.model).__name__} did not run inside the `with` "
                f"block. Call the very module that was given to jumok.ablate, in the same thread"
            )
        if missing:
            names = list(self._numbers)
            there = f"0 ({names[0]}) to {len(names) - 1} ({names[-1]})" if names else "none"
            raise ValueError(f"no attention ran in layer {missing[0]!r}; heard were layers {there}")

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._calls.clear()

    def hear(self, name: str, heard: Heard, output: Tensor) -> Tensor | None:
        again = self._calls.get(name, 0)
        self._calls[name] = again + 1
        full_name = f"{name}#{again}" if again else name
        number = self._numbers.setdefault(full_name, len(self._numbers))
        chosen: list[int] = []
        for layer in (number, full_name):
            if layer in self._heads:
                self._met.add(layer)
                chosen += self._heads[layer]
        if not chosen:
            return None
        n_heads = output.shape[1]
        if max(chosen) >= n_heads:
            raise ValueError(
                f"layer {number} ({full_name}) has no head {max(chosen)}: its heads are 0 to "
                f"{n_heads - 1}"
            )
        index = torch.tensor(sorted(set(chosen)), device=output.device)
        return output.index_copy(1, index, self._instead(full_name, heard, output, index))

    def _instead(self, name: str, heard: Heard, output: Tensor, heads: Tensor) -> Tensor:
        """What the chosen heads hand on, (B, chosen, Tq, Dv)."""
        found = output.index_select(1, heads)
        if self._how == "zero":
            return torch.zeros_like(found)
        if self._how == "uniform":
            return _mean_of_what_is_seen(heard, heads.tolist()).to(output.dtype)
        if found.shape[2] > 1:
            self._means[name] = found.mean(dim=(0, 2), keepdim=True)
        elif name not in self._means:
            raise ValueError(
                f'{name}: how="mean" needs a forward of more than one query first, such as the '
                f"prompt; this one has a single query, whose mean is itself"
            )
        return self._means[name].expand_as(found)


@dataclass(frozen=True)
class AblationEffect:
    """What a model loses without some heads.

    Attributes:
        loss: of the whole model.
        ablated_loss: without the heads.
    """

    loss: float
    ablated_loss: float

    @property
    def change(self) -> float:
        """``ablated_loss − loss``: above 0 where the heads had helped."""
        return self.ablated_loss - self.loss


def ablation_effect(
    model: torch.nn.Module,
    ids: Tensor | Sequence[int] | Sequence[Sequence[int]],
    heads: Iterable[HeadName],
    how: How = "zero",
    *,
    loss: Callable[[Any], Tensor] | None = None,
) -> AblationEffect:
    """The loss of a model with and without some heads, on the same text.

    Args:
        model: a model that takes token ids.
        ids: (tokens,) or (batch, tokens).
        heads: as in `ablate`.
        how: as in `ablate`.
        loss: from what the model returns to a number (a tensor of one element). Without it: the
            mean cross-entropy of the next token in nats, ``CE(logits[:-1], ids[1:])``, for a
            model that returns logits (batch, tokens, vocabulary) or an object with ``.logits``.

    Raises:
        ValueError: what the model returns are no logits, and no `loss` was given; fewer than two
            tokens; what `ablate` raises.
    """
    heads = list(heads)
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    tokens = torch.as_tensor(ids, device=place)
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    measure = loss if loss is not None else lambda output: _next_token_loss(output, tokens)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            whole = float(measure(model(tokens)))
            with ablate(model, heads, how):
                without = float(measure(model(tokens)))
    finally:
        model.train(was_training)
    return AblationEffect(whole, without)


def _next_token_loss(output: Any, ids: Tensor) -> Tensor:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the model returned {found}, not logits (batch, tokens, vocabulary) = "
            f"({ids.shape[0]}, {ids.shape[1]}, …); give loss=, a function from what the model "
            f"returns to a number"
        )
    if ids.shape[1] < 2:
        raise ValueError(f"the next token's loss needs at least 2 tokens; got {ids.shape[1]}")
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def _mean_of_what_is_seen(heard: Heard, heads: Sequence[int]) -> Tensor:
    """Attention with every score alike, for the chosen heads."""
    call, _ = Keeper(Policy(heads=tuple(heads))).read(heard)
    call = without_free_slots(call)
    v, mask = call.v, call.mask
    assert v is not None
    if call.bias is not None and bool((hidden := call.bias <= _hides(call.bias)).any()):
        mask = join(mask, Dense(~hidden))
    nothing = v.new_zeros(1)
    output: Tensor
    output, _ = fused.attention(
        nothing.expand(*call.q.shape[:3], v.shape[3]), nothing.expand(v.shape), v, mask=mask
    )
    return output


def _hides(bias: Tensor) -> float:
    """Scores at or below this are there to hide a key."""
    return torch.finfo(bias.dtype).min / 2


def _read_heads(heads: Iterable[HeadName]) -> dict[int | str, list[int]]:
    chosen: dict[int | str, list[int]] = {}
    for pair in heads:
        try:
            layer, head = pair
        except (TypeError, ValueError):
            raise TypeError(
                f"heads are pairs (layer, head), such as (12, 3); got {pair!r}"
            ) from None
        if not isinstance(head, int) or not isinstance(layer, (int, str)):
            raise TypeError(f"heads are pairs (layer, head), such as (12, 3); got {pair!r}")
        if head < 0 or (isinstance(layer, int) and layer < 0):
            raise ValueError(f"layers and heads count from 0; got {pair!r}")
        chosen.setdefault(layer, []).append(head)
    if not chosen:
        raise ValueError("no heads to ablate: give pairs (layer, head), such as [(12, 3)]")
    return chosen
