"""Scores and weights are followed through the functions that run, by a small rule for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.axes import fresh
from jumok.lens.taps.by_hand import (
    Attention,
    Exponential,
    HandTap,
    Opaque,
    Plain,
    Value,
    Weights,
    is_parameter,
)
from jumok.lens.taps.function_rules.arithmetic import plus
from jumok.lens.taps.function_rules.moves import of_property
from jumok.lens.taps.function_rules.table import RULES
from jumok.lens.taps.heard import tensors_in
from jumok.lens.taps.products import PRODUCTS, Products, labelled
from jumok.lens.taps.scores import Scores
from jumok.lens.taps.writes import targets


class Follower:
    """Asks, of each function that ran, what its result is."""

    def __init__(self, tap: HandTap) -> None:
        self._tap = tap
        self.value = tap.value
        self.softmax = tap.softmax
        self._products = Products(tap)

    def step(self, function: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Look at a function that has run; answers with its result, or with what replaces it."""
        whole_name = getattr(function, "__name__", "")
        name = whole_name.strip("_")
        written = targets(whole_name, args, kwargs, result)
        for target in written:
            self._tap.overwrote(target)
        if name in ("setitem", "set"):
            self._tap.written(args[0])
            return result
        if not isinstance(result, Tensor):
            for target in written:
                self._tap.written(target)
            return result
        if any(result is target for target in written):
            self._tap.wrote(result)
        try:
            value = self._value_of(name, function, args, kwargs, result)
        except Exception as error:
            # A function in a form that its rule does not know must not stop the user's model.
            self._tap.listener.unheard(f"a call of `{name}` that could not be read ({error})")
            value = None
        if isinstance(value, Attention):
            return self._tap.listener.emit(value.heard, result, value.by_heads, value.joined)
        if isinstance(value, Scores) and any(self._tap.is_made_of(value, one) for one in written):
            value = Opaque(value.layout, "the scores were written over what they were made of")
        if value is not None:
            self._tap.follow(result, value)
        elif args and result is args[0]:
            self._tap.written(result)
        return result

    def _value_of(
        self, name: str, function: Any, args: Any, kwargs: Any, result: Tensor
    ) -> Value | Attention | None:
        if name in PRODUCTS:
            product = labelled(name, args, kwargs)
            if product is None and name == "einsum":
                return self._several(args, result)
            if product is not None and isinstance(self.value(product.left), Exponential):
                self._tap.listener.unheard("attention by exp and sum is not recorded")
                return None
            value = None if product is None else self._products.hear(product, result)
            if value is None and result.ndim > 2:
                return self._mixed(name, args, kwargs, result)
            beta = float(kwargs.get("beta", 1))
            if isinstance(value, Scores) and name in ("baddbmm", "addmm") and beta:
                return plus(self, value, args[0], beta)
            return value
        if name in ROOTS and result.is_floating_point():
            return Opaque(fresh(result.shape), ROOTS[name])
        if name == "get":
            return of_property(self, function, args[0], result)
        if name in OUTER and self.value(args[0]) is None and is_outer(args, result):
            why = "the scores are made of sums, not products, of queries and keys"
            return Opaque(None, why, is_sum=True)
        rule = RULES.get(name)
        found = None if rule is None else rule(self, args, kwargs, result)
        if found is None and name not in ENDS:
            found = self._unknown(name, args, kwargs, result)
        return found

    def _several(self, args: Any, result: Tensor) -> Value | None:
        """An einsum of three tensors or more: scores that are no product of two, or an end."""
        operands = [*tensors_in(args)]
        if any(isinstance(self.value(operand), Weights) for operand in operands):
            self._tap.listener.unheard("a softmax in an einsum of three tensors is not recorded")
            return None
        activations = [one for one in operands if not is_parameter(one)]
        if len(activations) < 2 or result.ndim < 2 or not result.is_floating_point():
            return None
        return Opaque(fresh(result.shape), "the scores are a product of three tensors")

    def _mixed(self, name: str, args: Any, kwargs: Any, result: Tensor) -> Value | None:
        """Scores or weights times a parameter: heads that are mixed, or features summed up."""
        for argument in tensors_in((*args, *kwargs.values())):
            value = self.value(argument)
            if isinstance(value, (Scores, Opaque, Weights)) and argument.ndim > 3:
                return self._unknown(name, args, kwargs, result)
        return None

    def _unknown(self, name: str, args: Any, kwargs: Any, result: Tensor) -> Value | None:
        """After a function that has no rule scores are scores, but nobody knows which."""
        if not result.is_floating_point() or result.ndim < 2:
            return None
        for argument in tensors_in((*args, *kwargs.values())):
            value = self.value(argument)
            if value is None or isinstance(value, Plain):
                continue
            if result.numel() > argument.numel() and name not in GROW:
                return None
            same = result.shape == argument.shape
            if isinstance(value, Weights):
                if not same:
                    return None
                why = f"`{name}` stands between the softmax and the product with the values"
                return (
                    Weights(fresh(result.shape), (), None, why)
                    if not value.keys
                    else (dataclasses.replace(value, reading=None, why=why, ran=None))
                )
            if isinstance(value, Exponential):
                unknown = Opaque(value.layout, f"`{name}` is applied to the scores")
                return Exponential(unknown, value.layout) if same else None
            why = value.why if isinstance(value, Opaque) else f"`{name}` is applied to the scores"
            is_sum = isinstance(value, Opaque) and value.is_sum
            return Opaque(value.layout if same else None, why, is_sum)
        return None


# What may make scores larger: parts of them are repeated or put together.


# What may make scores larger: parts of them are repeated or put together.
GROW = frozenset({"cat", "concat", "gather", "take_along_dim", "index_select", "pad"})

# What nothing that is followed survives: it mixes or sums the last dimension, or is no part of
# any attention.
ENDS = frozenset({
    "layer_norm", "group_norm", "batch_norm", "rms_norm", "instance_norm", "embedding", "sum",
    "mean", "var", "std", "norm", "cos", "sin", "gelu", "silu", "sigmoid", "rsqrt", "cumsum",
    "cross_entropy", "conv1d", "conv3d", "scaled_dot_product_attention", "outer", "log_softmax",
    "max", "min", "amax", "amin", "logsumexp", "softmax", "expand", "repeat", "zeros_like",
    "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_empty", "new_full",
})  # fmt: skip


ROOTS = {"cdist": "the scores are distances, not products"}
"""Other functions that score queries against keys."""

OUTER = frozenset({"add", "sub", "mul"})

Question = Callable[[Any, Any], bool]
"""(args, result) → whether something may begin here."""


def _is_product(args: Any, result: Any) -> bool:
    # Nearly every product of a model is with a parameter; asked by the type, which is fast.
    return len(args) < 2 or type(args[1]) is not torch.nn.Parameter


def _becomes_three(args: Any, result: Any) -> bool:
    return bool(result.ndim == 3)


def _is_repeated(args: Any, result: Any) -> bool:
    return bool(result.ndim > 3)


def question_of(function: Any) -> Question | None:
    """What tells whether a call of a function may begin something; `None` if none does."""
    name = getattr(function, "__name__", "").strip("_")
    if name in OUTER:
        return is_outer
    if name in ("view", "reshape", "flatten", "view_as", "reshape_as"):
        return _becomes_three
    if name in ("expand", "repeat_interleave"):
        return _is_repeated
    return _is_product if name in PRODUCTS or name in ROOTS else None


def is_outer(args: Any, result: Any) -> bool:
    """Whether (…, Tq, 1, E) and (…, 1, Tk, E) were brought together, as in additive attention."""
    if len(args) < 2 or not isinstance(args[1], Tensor) or result.ndim < 4:
        return False
    one = args[0].shape
    if one == result.shape:
        return False
    one, other = one[-3:], args[1].shape[-3:]
    if len(one) != 3 or len(other) != 3 or one[2] != other[2] or one[2] == 1:
        return False
    return bool((one[0] == other[1] == 1 < one[1]) or (one[1] == other[0] == 1 < one[0]))
