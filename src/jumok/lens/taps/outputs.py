"""What a call returns, followed to the linear map that takes it: the output projection W_O.

Norm-weighted views need W_O. It is found by watching, so that it is found in any model, however
the map is written: a linear layer, a product, an einsum; with an adapter beside it, ``W x +
s · B A x``, whose branches both take the output and are added; quantised, as long as its module
shows its weight and does what the weight says. What stands in between is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.heard import Heard, tensors_in
from jumok.lens.taps.output_map import OutputMap, Term
from jumok.lens.value_notes import NO_MAP

# What only moves, retypes or copies the numbers of a tensor: following goes on.
MOVES = {
    "transpose", "permute", "reshape", "view", "contiguous", "flatten", "unflatten", "squeeze",
    "unsqueeze", "swapaxes", "swapdims", "movedim", "moveaxis", "clone", "to", "type", "type_as",
    "float", "half", "bfloat16", "double", "view_as", "reshape_as", "detach", "alias", "__get__",
    "permute_copy", "transpose_copy", "_reshape_alias", "requires_grad_",
}  # fmt: skip
_TIMES = {"mul", "multiply", "__mul__", "__rmul__", "mul_"}
_OVER = {"div", "divide", "true_divide", "__truediv__", "div_"}
_MINUS = {"sub", "subtract", "__sub__"}
_PLUS = {"add", "__add__", "__radd__", "add_", "__iadd__"}

_PATIENCE = 64  # functions after one that isn't linear, for a module to turn out to be so


@dataclass(eq=False)
class _Way:
    """What is known of one call's output on its way."""

    heard: Heard
    ends: Tensor | None
    """The output of the first and the last token, heads joined (2, heads · Dv)."""
    found: tuple[Term, ...] = ()
    """The map that takes it, so far."""
    principal: Tensor | None = None
    """What that map gave."""
    spoiled: int = 0
    """How many functions ago something else than a linear map took the output; 0 for never."""
    is_bare: bool = True
    tensors: dict[int, _Followed] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return self.heard.q.shape[1] * self.heard.v.shape[-1]


@dataclass(frozen=True, eq=False)
class _Followed:
    """A tensor that is a linear map of an output: of no matrices while it is the output itself."""

    tensor: Tensor
    way: _Way
    terms: tuple[Term, ...]

    @property
    def is_output(self) -> bool:
        return not self.terms[0].matrices

    def times(self, factor: float | Tensor) -> tuple[Term, ...]:
        return tuple(term.times(factor) for term in self.terms)

    def is_for_each_row(self, other: Any) -> bool:
        """Whether something holds one number for each row of the map, the same for all tokens."""
        return (
            isinstance(other, Tensor)
            and not self.is_output
            and other.ndim < self.tensor.ndim
            and other.numel() == self.tensor.shape[-1] == other.shape[-1]
        )


class OutputFollower:
    """Follows the outputs of attention calls through the functions that take them."""

    def __init__(self) -> None:
        self.ways: list[_Way] = []
        """What is followed; empty most of the time."""

    def forget(self) -> None:
        """Follow nothing any more."""
        for way in self.ways:
            _settle(way)
        self.ways.clear()

    def start(self, output: Tensor, by_heads: Tensor, heard: Heard) -> None:
        """Follow the output of a call; `by_heads` is that as (B, H, Tq, Dv)."""
        ends = None
        if by_heads.numel():
            ends = torch.stack([by_heads[0, :, 0], by_heads[-1, :, -1]]).detach().flatten(1)
        way = _Way(heard, ends)
        way.tensors[id(output)] = _Followed(output, way, (Term(1.0, ()),))
        self.ways.append(way)

    def step(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Look at a function that has run."""
        taken = [
            followed
            for argument in tensors_in((*args, *kwargs.values()))
            if (followed := self._followed(argument)) is not None
        ]
        for way in [way for way in self.ways if way.spoiled]:
            way.spoiled += 1
            if way.spoiled > _PATIENCE:
                self._end(way)
        if not taken:
            return
        one = taken[0]
        if isinstance(result, Tensor):
            terms = _linear(name, taken, args, kwargs, result)
            if isinstance(terms, tuple):
                self._goes_on(one, result, terms)
                return
        else:
            terms = None
        if isinstance(terms, str):
            self._stops(one, terms)
        elif name in _PLUS and one.is_output:
            self._end(one.way)  # a residual sum takes it as it is
        elif _is_as_large(result, one.tensor):
            self._stops(
                one,
                f"`{name.strip('_')}` stands between the attention's output and the next linear "
                f"map",
            )
            if result is one.tensor:  # written to in place
                one.way.tensors.pop(id(result), None)

    def module_ran(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Look at a module that has run: it may be a linear map of no function known here."""
        for argument in tensors_in(args):
            one = self._followed(argument)
            if one is None or not one.is_output or one.way.found:
                continue
            way = one.way
            weight = _weight_by_effect(module, one, output)
            if weight is not None:
                way.is_bare = False
                way.found = tuple(Term(term.factor, (weight, *term.matrices)) for term in one.terms)
                self._end(way)
            elif isinstance(output, Tensor) and self._followed(output) is None:
                if not way.spoiled:
                    way.heard.projection_note = (
                        f"{type(module).__name__} takes the attention's output, and is no linear "
                        f"map that is known here"
                    )
                way.is_bare = False
                self._end(way)

    # -- one step -----------------------------------------------------------------------------

    def _followed(self, tensor: Tensor) -> _Followed | None:
        for way in self.ways:
            found = way.tensors.get(id(tensor))
            if found is not None and found.tensor is tensor:
                return found
        return None

    def _goes_on(self, one: _Followed, result: Tensor, terms: tuple[Term, ...]) -> None:
        way = one.way
        new = _Followed(result, way, terms)
        way.tensors[id(result)] = new
        if not terms[0].matrices:
            return
        if not way.found or way.principal is one.tensor or len(terms) > len(one.terms):
            # The first linear map, what becomes of its result, or a sum with another one.
            way.found, way.principal = terms, result
            way.is_bare = False
            way.spoiled = 0

    def _stops(self, one: _Followed, why: str) -> None:
        """Something that is no linear map takes it."""
        way = one.way
        if one.is_output:
            if not way.found and not way.spoiled:
                way.heard.projection_note = why
                way.is_bare = False
                way.spoiled = 1
        elif one.tensor is way.principal:
            self._end(way)
        else:
            del way.tensors[id(one.tensor)]

    def _end(self, way: _Way) -> None:
        _settle(way)
        self.ways.remove(way)


def _settle(way: _Way) -> None:
    """Say what has been found."""
    heard = way.heard
    if way.found:
        heard.projection = OutputMap(way.width, way.found)
        heard.projection_note = (
            "the first linear map that takes the output"
            if len(way.found) == 1
            else f"the sum of {len(way.found)} linear maps that take the output"
        )
    elif way.is_bare:
        heard.projection = OutputMap(way.width)
        heard.projection_note = NO_MAP
    if heard.projection is not None:
        matrix = heard.projection
        heard.projection_version = None if matrix.is_inference() else matrix._version
    way.tensors.clear()


# -- what is linear ------------------------------------------------------------------------------


def _linear(
    name: str, taken: list[_Followed], args: Any, kwargs: Any, result: Tensor
) -> tuple[Term, ...] | str | None:
    """The terms of a result, if it is a linear map of what is followed; or why it is not."""
    one = taken[0]
    if name in MOVES or (name == "dropout" and _is_off(args, kwargs)):
        return one.terms if result.numel() == one.tensor.numel() else None
    if name in _PLUS and len(taken) == 2 and taken[1].way is one.way:
        second = taken[1]
        if one.is_output or second.is_output or result.shape != one.tensor.shape:
            return None
        alpha = kwargs.get("alpha", 1)
        return (*one.terms, *second.times(alpha)) if isinstance(alpha, (int, float)) else None
    other = next((x for x in args if x is not one.tensor), None)
    if name in _PLUS | _MINUS and (one.is_for_each_row(other) or isinstance(other, (int, float))):
        # A bias; what is taken from it would change sides.
        return None if one.is_output or (args[0] is other and name in _MINUS) else one.terms
    if name in _TIMES | _OVER:
        if name in _TIMES and one.is_for_each_row(other):
            assert isinstance(other, Tensor)
            return one.times(other.detach().flatten())
        factor = other if isinstance(other, (int, float)) else None
        if factor is None or isinstance(factor, bool) or not factor:
            return None
        if name in _OVER:
            return one.times(1 / factor) if args[0] is one.tensor else None
        return one.times(float(factor))
    weight = _weight(name, one, args, kwargs)
    if not isinstance(weight, Tensor):
        return weight
    weight = weight.detach()
    if one.is_output:
        # An einsum has been looked at already.
        why = None if name == "einsum" else _does_not_fit(one, weight)
        return why or tuple(Term(term.factor, (weight,)) for term in one.terms)
    if weight.shape[0] > weight.shape[1] == one.terms[0].matrices[0].shape[0] and all(
        term.matrices[0].shape[0] < term.matrices[-1].shape[1] for term in one.terms
    ):
        # Down to a few numbers and up again: the two are one map.
        return tuple(Term(term.factor, (weight, *term.matrices)) for term in one.terms)
    return None


def _weight(name: str, one: _Followed, args: Any, kwargs: Any) -> Tensor | str | None:
    """The weight, as (output width, input width), if this call is a linear map of `x`."""
    x = one.tensor
    if name == "linear" and (args[0] if args else kwargs.get("input")) is x:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        return weight if isinstance(weight, Tensor) else None
    if name == "einsum" and one.is_output:
        return _einsum_weight(one, args)
    position = {"addmm": 1, "mm": 0, "matmul": 0, "__matmul__": 0}.get(name)
    if position is not None and len(args) > position + 1 and args[position] is x:
        weight = args[position + 1]
        if isinstance(weight, Tensor) and weight.ndim == 2:
            transposed: Tensor = weight.T
            return transposed
    return None


def _does_not_fit(one: _Followed, weight: Tensor) -> str | None:
    """Why a linear map is none of the joined heads of one token; `None` if it is."""
    width, taken = one.way.width, one.tensor.shape[-1]
    if weight.shape[1] != width or taken != width:
        return (
            f"the linear map after the attention takes {taken} numbers, not heads · head_dim = "
            f"{width}"
        )
    if not _joined_by_heads(one, one.tensor):
        return (
            "the linear map after the attention does not take the heads of one token side by side"
        )
    return None


def _joined_by_heads(one: _Followed, x: Tensor) -> bool:
    """Whether x has the heads of one token side by side: told by its first and last token."""
    ends = one.way.ends
    if ends is None:
        return True
    rows = x.detach().reshape(-1, x.shape[-1])
    found = torch.stack([rows[0], rows[-1]]).float().nan_to_num()
    expected = ends.float() * one.terms[0].factor
    expected = expected.nan_to_num()
    eps = max(torch.finfo(x.dtype).eps, torch.finfo(ends.dtype).eps)
    return torch.allclose(found, expected, rtol=4 * eps, atol=1e-30)


def _einsum_weight(one: _Followed, args: Any) -> Tensor | str | None:
    """W_O as an array of heads: (heads, Dv, output width) in any order."""
    if len(args) != 3 or not isinstance(args[0], str) or "->" not in args[0]:
        return None
    inputs, _, out = args[0].replace(" ", "").partition("->")
    names = inputs.split(",")
    at = 0 if args[1] is one.tensor else 1
    weight, x = args[2 - at], one.tensor
    if len(names) != 2 or "." in args[0] or not isinstance(weight, Tensor):
        return None
    mine, its = names[at], names[1 - at]
    summed = [label for label in mine if label in its and label not in out]
    made = [label for label in out if label in its and label not in mine]
    if len(summed) + len(made) != len(its) or not summed:
        return None
    kept = [label for label in mine if label not in summed]
    matrix = weight.permute(*(its.index(label) for label in (*made, *summed)))
    matrix = matrix.reshape(math.prod(matrix.shape[: len(made)]), -1)
    joined = x.permute(*(mine.index(label) for label in (*kept, *summed))).flatten(len(kept))
    if joined.shape[-1] != one.way.width:
        return _does_not_fit(one, matrix)
    if not _joined_by_heads(one, joined):
        return "the linear map after the attention does not take the heads of one token in order"
    return matrix


def _weight_by_effect(module: torch.nn.Module, one: _Followed, output: Any) -> Tensor | None:
    """The weight that a module shows, if its output is what the weight makes of the input."""
    x = one.tensor
    if not isinstance(output, Tensor) or output.shape[:-1] != x.shape[:-1] or not x.numel():
        return None
    if x.shape[-1] != one.way.width or not _joined_by_heads(one, x):
        return None
    for weight in _shown_weights(module):
        matrix = OutputMap(x.shape[-1], (Term(1.0, (weight,)),))
        if matrix.shape != (output.shape[-1], x.shape[-1]):
            continue
        with torch.no_grad():
            rows = x.detach().reshape(-1, x.shape[-1])[[0, -1]].float()
            made = output.detach().reshape(-1, output.shape[-1])[[0, -1]].float()
            bias = getattr(module, "bias", None)
            bias = bias() if callable(bias) else bias
            expected = rows @ matrix[:, : x.shape[-1]].T
            if isinstance(bias, Tensor):
                expected = expected + bias.detach().float()
            # Activations of 8 bits are off by up to 1 in 100.
            if (expected - made).norm() <= 0.05 * expected.norm():
                return weight
    return None


def _shown_weights(module: torch.nn.Module) -> Iterator[Tensor]:
    weight = getattr(module, "weight", None)
    weight = weight() if callable(weight) else weight
    if isinstance(weight, Tensor) and weight.ndim == 2:
        yield weight.detach()
        if not weight.is_quantized:
            yield weight.detach().T


def _is_as_large(result: Any, tensor: Tensor) -> bool:
    """Whether a result may be what carries on from a tensor."""
    return any(
        out.is_floating_point() and out.numel() >= tensor.numel()
        for out in tensors_in(result if isinstance(result, (tuple, list)) else (result,))
    )


def _is_off(args: Any, kwargs: Any) -> bool:
    """Whether a call of ``F.dropout(input, p, training)`` changes nothing."""
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    return not training or p == 0
