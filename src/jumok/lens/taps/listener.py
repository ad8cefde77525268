"""The listener on torch's function-mode stack, and what all taps share.

While a watched module runs, a `Listener` sees every torch function the model calls, lets each
run exactly as it is, and picks out the attention among them. Each place where attention can be
heard is a room of its own:

* `sdpa`: ``F.scaled_dot_product_attention`` in all its forms, and jumok's own;
* `multi_head`: ``F.multi_head_attention_forward``, with and without weights;
* `interface`: transformers' attention functions, wrapped where the model looks them up;
* `flex`: FlexAttention;
* `flash`: the package flash_attn;
* `by_hand`: a product, a softmax and a product.

A tap gives what it heard to `Listener.emit`; inner taps are muted while an outer one listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _pop_mode_temporarily,
)

from jumok import fused
from jumok.lens.taps import flash, flex, multi_head, sdpa, transforms
from jumok.lens.taps.by_hand import HandTap
from jumok.lens.taps.following import Follower, Question, question_of
from jumok.lens.taps.heard import Heard
from jumok.lens.taps.kernels import lse_of_empty_rows
from jumok.lens.taps.mask_reader import MaskReader
from jumok.lens.taps.outputs import OutputFollower
from jumok.lens.taps.stance import compiled

OnHeard = Callable[[Heard, Tensor], Tensor | None]
"""Gets a call and its output as (B, H, Tq, Dv); may answer with another output in its place."""


Hear = Callable[["Listener", Any, Any, Any], Any]
"""Runs and hears a function: (listener, function, args, kwargs) → what the function returns."""

# What only tells something of a tensor. A model asks for shapes and types more often than it
# computes, and a function mode is called each time.
_TELLING = frozenset({
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "grad_fn", "is_cpu",
    "is_cuda", "is_mps", "is_meta", "is_xla", "is_xpu", "is_sparse", "is_nested", "is_quantized",
    "itemsize", "nbytes", "size", "dim", "ndimension", "numel", "nelement", "stride",
    "storage_offset", "element_size", "data_ptr", "get_device", "is_floating_point", "is_complex",
    "is_contiguous", "is_inference", "__len__", "__bool__", "__int__", "__float__", "item",
})  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class _Plan:
    """What is done about a function, the same for each of its calls."""

    passes: bool
    """It makes no tensor."""
    hear: Hear | None
    """It is attention by itself."""
    question: Question | None
    """Whether a call of it begins something that is followed."""
    name: str


_plans: dict[Any, _Plan] = {}


def _plan_of(function: Any) -> _Plan:
    """The plan for a function; made once."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        passes = getattr(getattr(function, "__self__", None), "__name__", "") in _TELLING
    else:
        its_own = function in (getattr(Tensor, name, None), getattr(torch, name, None))
        passes = name in _TELLING and its_own
    hear = None if passes else _hearing_of(function)
    plan = _plans[function] = _Plan(passes, hear, question_of(function), name)
    return plan


def _hearing_of(function: Any) -> Hear | None:
    """The tap for a function that is attention by itself; asked once for each function."""
    if function is F.scaled_dot_product_attention:
        return sdpa.hear_sdpa
    if function is fused.torch_attention:
        return sdpa.hear_own
    if function is F.multi_head_attention_forward:
        return multi_head.hear_multi_head
    if flex.is_flex(function):
        return flex.hear_flex
    return flash.hear_flash if flash.is_flash(function) else None


class Listener(TorchFunctionMode):
    """Hears attention among the torch functions that run.

    Args:
        on_heard: gets each call; see `OnHeard`.
        on_unheard: gets a few words for each attention that runs but that no tap can hear.
    """

    def __init__(self, on_heard: OnHeard, on_unheard: Callable[[str], None]) -> None:
        super().__init__()
        self._on_heard = on_heard
        self._on_unheard = on_unheard
        self._held: HeldBack | None = None
        self.is_muted = False
        self.masks = MaskReader()
        self._outputs = OutputFollower()
        self._ways = self._outputs.ways
        self._by_hand = HandTap(self)
        self._scores = self._by_hand.followed
        self._follower = Follower(self._by_hand)

    def __torch_function__(
        self, func: Any, classes: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plan = _plans.get(func) or _plan_of(func)
        if plan.passes or self.is_muted:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if plan.hear is not None:
            return plan.hear(self, func, args, kwargs)
        result = func(*args, **kwargs)
        question = plan.question
        if self._scores or (question is not None and question(args, result)):
            result = self._follower.step(func, args, kwargs, result)
        if self._ways:
            self._outputs.step(plan.name, args, kwargs, result)
        return result

    def forget(self) -> None:
        """Let go of what is being followed; called when the outermost module has returned."""
        self._outputs.forget()
        self.masks.forget()
        self._by_hand.forget()

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Hear nothing inside: an outer tap knows more than the inner ones."""
        before, self.is_muted = self.is_muted, True
        try:
            yield
        finally:
            self.is_muted = before

    @contextmanager
    def aside(self) -> Iterator[None]:
        """As `muted`, and out of the way: what is compiled inside runs compiled, as ever."""
        with ExitStack() as exits:
            exits.enter_context(self.muted())
            if _get_current_function_mode() is self:
                exits.enter_context(_pop_mode_temporarily())
            exits.enter_context(compiled())
            yield

    @contextmanager
    def held_back(self) -> Iterator[HeldBack]:
        """Hear what is inside, but pass it on only when asked to.

        For an outer tap that knows only afterwards whether it has understood the call.
        """
        before, self._held = self._held, HeldBack(self)
        try:
            yield self._held
        finally:
            self._held = before

    def unheard(self, what: str) -> None:
        """Say in a few words that attention runs which cannot be heard."""
        if self._held is not None:
            self._held.words.append(what)
        else:
            self._on_unheard(what)

    def emit(
        self, heard: Heard, output: Tensor, by_heads: Tensor, join_heads: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Pass a call on, and follow its output.

        Args:
            heard: the call.
            output: what it returns, in whatever shape.
            by_heads: the same as (B, H, Tq, Dv).
            join_heads: the way back from such a shape to that of `output`.

        Returns:
            `output` itself, or what was put in its place.
        """
        if transforms.is_wrapped(output):
            outside = transforms.unwrapped(heard)
            if outside is None:
                self.unheard(
                    "attention in torch.func.vmap that is by hand, or has masks of its own"
                )
                return output
            heard = outside
            heard.is_followed = False  # what takes the output is inside the transform as well
        if heard.lse is not None:
            lse = heard.lse.detach()
            n_queries = heard.q.shape[2]
            if lse.ndim == 4:  # cuDNN keeps a last dimension of 1
                lse = lse.squeeze(-1)
            lse = lse[..., :n_queries]  # one CUDA kernel rounds the number of rows up
            heard.lse = lse_of_empty_rows(lse.reshape(heard.q.shape[:3]), heard)
        if self._held is not None:
            self._held.calls.append((heard, by_heads))
            return output
        with self.muted():
            other = self._on_heard(heard, by_heads)
            if other is not None:
                output, by_heads = join_heads(other), other
            if heard.is_followed:
                self._outputs.start(output, by_heads, heard)
        return output

    def module_ran(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Look at a module that has returned: it may be what takes an attention's output."""
        if self._ways:
            with self.muted():
                self._outputs.module_ran(module, args, output)


@dataclass(eq=False)
class HeldBack:
    """What the inner taps heard while an outer one listened."""

    listener: Listener
    calls: list[tuple[Heard, Tensor]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def release(self) -> bool:
        """Pass it on after all; whether there was anything.

        Raises:
            ValueError: somebody wants another output in a call's place; it is too late for that.
        """
        listener = self.listener
        with listener.muted():
            for heard, by_heads in self.calls:
                heard.projection_note = "the output was not followed: a function stands around it"
                if listener._on_heard(heard, by_heads) is not None:
                    raise ValueError(
                        "the output of this attention cannot be changed: it runs inside a "
                        "function whose arguments are not understood"
                    )
        for words in self.words:
            listener.unheard(words)
        return bool(self.calls or self.words)
