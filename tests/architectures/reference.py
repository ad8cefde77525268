"""Attention weights as the model's own eager code has them, caught without the lens.

One eager run is observed in three places: the weights that transformers' eager functions
return, those that modules return, and every softmax whose result is multiplied with values.
For each module the first of these that gave anything counts. (What calls PyTorch's
`multi_head_attention_forward` or `scaled_dot_product_attention` even when eager is asked for the
weights of each head, or gets them from the documented formula.)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_MOVES = {
    "transpose", "permute", "reshape", "view", "contiguous", "flatten", "unflatten", "squeeze",
    "unsqueeze", "clone", "to", "type", "type_as", "float", "half", "dropout", "__get__",
    "masked_fill", "view_as", "reshape_as", "nan_to_num", "where", "dropout_", "split", "chunk",
}  # fmt: skip
# The first is the most telling: it counts if it gave anything.
PLACES = ("eager function", "multi_head_attention_forward", "returned", "SDPA", "softmax")
_MULTIPLIED = ("SDPA", "softmax")

_ATTENDS = re.compile(r"Att(n|ention)")  # routers and the like also return rows that sum to 1

_PRODUCTS = {"matmul", "__matmul__", "bmm", "einsum"}


@dataclass
class Caught:
    """Weights of one attention call: the module's path, where they were caught, the tensor."""

    name: str
    place: str  # one of PLACES
    weights: Tensor
    multiplied: bool = False  # it is known to be the left side of a product


@dataclass
class Reference:
    """What one eager run showed."""

    caught: list[Caught] = field(default_factory=list)

    def by_module(self) -> dict[str, list[Caught]]:
        """The calls of each module, in order, from the best place that has any."""
        modules: dict[str, list[Caught]] = {}
        for item in self.caught:
            modules.setdefault(item.name, []).append(item)
        return {name: _told_best(items) for name, items in modules.items()}


def _told_best(items: list[Caught]) -> list[Caught]:
    """One item a call: what the eager function returned, or what was multiplied, or returned."""
    for place in PLACES[:2]:
        chosen = [item for item in items if item.place == place]
        if chosen:
            return chosen
    # A module with two streams returns the weights of one.
    return [item for item in items if item.multiplied] or items


@contextmanager
def catching(model: nn.Module) -> Iterator[Reference]:
    """Observe one forward of an eager model."""
    reference = Reference()
    names = {module: name for name, module in reversed(list(model.named_modules()))}
    stack: list[nn.Module] = []
    seen: list[Tensor] = []  # held, so that no id is used twice

    def here() -> str:
        at = next((m for m in reversed(stack) if not isinstance(m, nn.Softmax | nn.Dropout)), model)
        return names[at] or type(at).__name__

    def add(name: str, place: str, weights: Tensor) -> None:
        for old, item in zip(seen, reference.caught, strict=True):
            if weights is old:
                item.place = min(item.place, place, key=PLACES.index)
                item.multiplied = item.multiplied or place in _MULTIPLIED
                return
        seen.append(weights)
        reference.caught.append(Caught(name, place, weights.detach(), place in _MULTIPLIED))

    def before(module: nn.Module, args: Any) -> None:
        stack.append(module)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        kind = type(module).__name__
        if isinstance(output, (tuple, list)) and _ATTENDS.search(kind) and "Deform" not in kind:
            for item in output:
                if isinstance(item, Tensor) and _look_like_weights(item):
                    add(names[module] or type(module).__name__, "returned", item)
        stack.pop()

    with ExitStack() as exits:
        for module in names:
            exits.callback(module.register_forward_pre_hook(before, prepend=True).remove)
            exits.callback(module.register_forward_hook(after, prepend=True).remove)
        for space in {type(module).__module__ for module in names}:
            for name, function in list(vars(sys.modules[space]).items()):
                if "eager" in name and "attention" in name and callable(function):
                    wrapped = _returning(function, names, add)
                    setattr(sys.modules[space], name, wrapped)
                    exits.callback(setattr, sys.modules[space], name, function)
        exits.enter_context(_Softmaxes(here, add))
        yield reference


def _returning(
    function: Callable[..., Any], names: dict[nn.Module, str], add: Callable[..., None]
) -> Callable[..., Any]:
    def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = function(module, *args, **kwargs)
        weights = result[1] if isinstance(result, tuple) and len(result) > 1 else None
        if isinstance(weights, Tensor) and module in names:
            add(names[module] or type(module).__name__, "eager function", weights)
        return result

    return wrapped


def _look_like_weights(item: Tensor) -> bool:
    if item.ndim != 4 or not item.is_floating_point() or not item.numel():
        return False
    sums = item.detach().float().sum(-1)
    lowest, largest, highest = float(item.min()), float(sums.max()), float(sums.min())
    return lowest >= 0 and largest < 1.001 and (largest > 0.5 or highest > 0.5)


class _Softmaxes(TorchFunctionMode):
    """Catches a softmax when its result is multiplied, and SDPA by its own formula."""

    def __init__(self, here: Callable[[], str], add: Callable[..., None]) -> None:
        super().__init__()
        self._here = here
        self._add = add
        self._followed: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(
        self, func: Any, classes: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.__name__
        if func is F.multi_head_attention_forward:
            options = {**kwargs, "need_weights": True, "average_attn_weights": False}
            self._add(self._here(), "multi_head_attention_forward", func(*args, **options)[1])
        elif func is F.scaled_dot_product_attention:
            self._add(self._here(), "SDPA", _sdpa_weights(*args, **kwargs))
        elif name in ("softmax", "_softmax") and isinstance(result, Tensor) and result.ndim > 2:
            self._followed[id(result)] = (result, result)
        elif self._followed:
            tensors = [item for item in args if isinstance(item, Tensor)]
            if name == "einsum" and len(args) == 2 and isinstance(args[1], (list, tuple)):
                tensors = list(args[1])
            elif name in _PRODUCTS and name != "einsum":
                tensors = tensors[:1]  # on the right stands a kernel (ConvBERT), not weights
            for item in tensors:
                pair = self._followed.get(id(item))
                if pair is None or pair[0] is not item:
                    continue
                if name in _PRODUCTS:
                    self._add(self._here(), "softmax", pair[1])
                elif name in _MOVES:
                    for moved in result if isinstance(result, (tuple, list)) else (result,):
                        if isinstance(moved, Tensor):
                            self._followed[id(moved)] = (moved, pair[1])
        return result


def _sdpa_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's documented formula of SDPA."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.softmax(scores, dim=-1).nan_to_num(0.0)
