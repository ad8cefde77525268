"""Attention written by hand: a product of q and k, a softmax, a product with v.

Every torch function of a watched module is seen. A product of two activations may be the birth
of scores, and is followed through what is done to it (scaled, capped, masked, viewed, cast) up
to a softmax. A softmax of such scores counts as attention once its result is contracted with
something over the very axis that it ran over; then q, k, v, mask and bias are recorded, as for a
fused kernel, in linear memory. Before that some rows are compared with the softmax that ran.
What cannot be understood is still recorded, as the weights themselves, and says so.

Not attention, and not recorded:

* a softmax of anything but products of two activations: the gates of routers and of pooling, and
  linear attention, whose softmax runs over the features of q and k;
* weights that are multiplied with a parameter: a classification head followed by a product with
  its embeddings, or a codebook. Nothing there is a token that is read;
* weights that are multiplied over another axis than that of their softmax (slot attention).

Tensors are followed by weak references. Held on to are q, k and what was added to the scores, no
longer than the scores live.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jumok.lens.taps.axes import Axis, Layout, Term, all_leaves, fresh, leaves, size_of
from jumok.lens.taps.heard import Heard, by_weights
from jumok.lens.taps.score_masks import SeenMasks
from jumok.lens.taps.score_reading import Reading, read
from jumok.lens.taps.scores import CannotRead, Scores
from jumok.lens.taps.transforms import is_batched
from jumok.lens.taps.writes import memory_of

if TYPE_CHECKING:
    from jumok.lens.taps.listener import Listener


@dataclass(frozen=True, eq=False)
class Plain:
    """A tensor of which only the layout is known, such as q with batch and heads in one.

    `source` is a smaller tensor that it repeats (key heads), in axes of the same layout.
    """

    layout: Layout
    source: Term | None = None


@dataclass(frozen=True, eq=False)
class Opaque:
    """Something was made of scores that is not understood."""

    layout: Layout | None
    why: str
    is_sum: bool = False
    """Whether it began as a sum over pairs of rows, which may as well be a mask."""


@dataclass(frozen=True, eq=False)
class Exponential:
    """exp(scores)."""

    of: Scores | Opaque
    layout: Layout | None


@dataclass(frozen=True, eq=False)
class Weights:
    """The softmax of scores over the axes `keys`, before dropout.

    `reading` is what the scores are; without one, `why` they could not be read, and `ran` is the
    softmax itself once something was made of it (until then it is the tensor that is followed).
    """

    layout: Layout
    keys: tuple[Axis, ...]
    reading: Reading | None
    why: str = ""
    ran: Term | None = None
    sink: int | None = None
    """Where a sink's column still is: 0 for the first, −1 for the last."""


@dataclass(frozen=True, eq=False)
class LogWeights:
    """The logarithms of weights."""

    of: Weights
    layout: Layout


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of exponentials or weights over one dimension, which is kept with size 1."""

    of: Exponential | Weights
    layout: Layout | None
    summed: tuple[Axis, ...]


@dataclass(frozen=True, eq=False)
class LogTotal:
    """The logarithm of the sum of the exponentials of scores over one dimension."""

    of: Scores
    layout: Layout
    summed: tuple[Axis, ...]


@dataclass(frozen=True, eq=False)
class Attention:
    """A whole call, its output as (B, H, Tq, Dv), and the way back from there."""

    heard: Heard
    by_heads: Tensor
    joined: Callable[[Tensor], Tensor]


Value = Plain | Scores | Opaque | Exponential | Weights | LogWeights | Total | LogTotal


class _Followed:
    """A tensor that is followed, and the version in which its meaning was noted."""

    __slots__ = ("reference", "value", "version")

    def __init__(self, reference: weakref.ref[Tensor], version: int | None, value: Value) -> None:
        self.reference, self.version, self.value = reference, version, value


class HandTap:
    """Follows scores from the product that they are born in to the product with the values."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.followed: dict[int, _Followed] = {}
        """What is followed, by the tensors' ids; empty most of the time."""
        self._seen = SeenMasks()

    def forget(self) -> None:
        """Follow nothing any more."""
        self.followed.clear()
        self._seen.forget()

    def value(self, tensor: Any) -> Value | None:
        """What is known of a tensor."""
        found = self.followed.get(id(tensor))
        if found is None or found.reference() is not tensor or not isinstance(tensor, Tensor):
            return None
        if found.version is not None and found.version != tensor._version:
            self.written(tensor)
            return self.followed[id(tensor)].value
        return found.value

    def follow(self, tensor: Tensor, value: Value) -> None:
        """Remember what a tensor is, as long as it lives."""
        key, followed = id(tensor), self.followed

        def gone(_: weakref.ref[Tensor], key: int = key) -> None:
            followed.pop(key, None)

        version = None if tensor.is_inference() else tensor._version
        followed[key] = _Followed(weakref.ref(tensor, gone), version, value)

    def wrote(self, tensor: Tensor) -> None:
        """A function that is seen has just written to a tensor: that one write is accounted for."""
        found = self.followed.get(id(tensor))
        if found is not None and found.version is not None and found.reference() is tensor:
            found.version += found.version + 1 == tensor._version

    def written(self, tensor: Tensor) -> None:
        """A tensor was written to by something that is not understood."""
        found = self.followed.get(id(tensor))
        if found is not None and found.reference() is tensor:
            self.follow(tensor, _written(found.value))

    def overwrote(self, target: Tensor) -> None:
        """A function has written to a tensor; others may be views of it, or made of it."""
        memory = memory_of(target)
        if memory is None:
            return
        for found in [*self.followed.values()]:
            tensor = found.reference()
            if tensor is None:
                continue
            if tensor is not target and memory_of(tensor) == memory:
                self.written(tensor)
            elif any(memory_of(part) == memory for part in _parts(found.value)):
                found.value = _spoiled(found.value)

    def is_made_of(self, value: Value, target: Tensor) -> bool:
        """Whether scores are made of what a tensor held before it was written to."""
        memory = memory_of(target)
        return memory is not None and any(memory_of(part) == memory for part in _parts(value))

    # -- the softmax --------------------------------------------------------------------------

    def softmax(self, value: Value, scores: Tensor | None, dim: int, result: Tensor) -> Weights:
        """What the softmax of followed scores is."""
        known = value.layout
        shape = result.shape
        if isinstance(value, Scores) and value.sinks is not None:
            columns = value.layout[-1]
            known = (*fresh(shape[:-1]), columns) if known is None else known
        layout = fresh(shape) if known is None else known
        keys = tuple(leaves(layout[dim % len(layout)]))
        if not isinstance(value, Scores):
            assert isinstance(value, Opaque)
            return Weights(layout, keys, None, value.why)
        if is_batched(result):
            return Weights(layout, keys, None, "attention by hand in torch.func.vmap")
        sink = None
        ran = result
        if value.sinks is not None:
            if dim % len(layout) != len(layout) - 1:
                return Weights(fresh(shape), keys, None, "a softmax over another axis than sinks")
            sink = 0 if value.sink_first else -1
            ran = result.narrow(-1, 0 if sink else 1, size_of(layout[-1]))
        try:
            reading = read(value, keys, self.listener.masks, self._seen, scores)
            if reading.agrees_with(Term(ran.detach(), layout)):
                return Weights(layout, keys, reading, sink=sink)
            why = "what was done to the scores is not understood"
        except CannotRead as error:
            why = str(error)
        return Weights(layout, keys, None, why, sink=sink)

    # -- the product with the values ----------------------------------------------------------

    def attend(
        self,
        weights: Weights,
        operand: Tensor,
        v: Term,
        features: list[Axis],
        result: Tensor,
        layout: Layout,
    ) -> Attention | None:
        """The call that ends in a product of weights and values.

        Args:
            weights: what is known of the weights.
            operand: the tensor of weights that was multiplied.
            v: the values.
            features: the axes that only they have.
            result: the output.
            layout: its axes.
        """
        reading = weights.reading
        if reading is not None:
            heads = reading.shared_heads + reading.other_heads
            batch, queries = reading.batch, reading.queries
            heard = reading.heard(v, features)
        else:
            ran = weights.ran or Term(operand, weights.layout)
            keys = leaves(weights.keys)
            axes = [axis for axis in all_leaves(ran.layout) if not _among(axis, keys)]
            # As many axes of queries as of keys, where an image's rows and columns are apart.
            several = [axis.size for axis in axes[-len(keys) :]] == [axis.size for axis in keys]
            count = len(keys) if several else 1
            others, queries = axes[:-count], axes[-count:]
            batch, heads = others[:1], others[1:]
            stored = ran.arranged([batch, heads, queries, keys], [True] * 4)
            values = v.arranged([batch, heads, keys, features], [True] * 4)
            if not is_batched(stored):
                # A row that sees nothing is NaN in models that hide by −inf.
                stored = stored.masked_fill(stored.isnan().all(-1, keepdim=True), 0.0)
                if not bool(((stored >= 0) & stored.isfinite()).all()):
                    self.listener.unheard(
                        f"weights below 0, or not finite, are no softmax ({weights.why})"
                    )
                    return None
            heard = by_weights(stored, values, weights.why)
        groups = [batch, heads, queries, features]
        by_heads = Term(result, layout).arranged(groups, [True] * 4)
        parts = tuple((leaf,) for group in groups for leaf in leaves(group))

        def joined(new: Tensor) -> Tensor:
            whole = Term(new.reshape([part[0].size for part in parts]), parts)
            return whole.arranged(layout, [True] * len(layout)).reshape(result.shape)

        return Attention(heard, by_heads, joined)


def derived(value: Weights, operand: Tensor, layout: Layout) -> Weights:
    """Weights after a function that only moves, retypes, drops out or gates them."""
    ran = value.ran
    if value.reading is None and ran is None and value.sink is None:
        ran = Term(operand, value.layout)
    return dataclasses.replace(value, layout=layout, ran=ran)


def _written(value: Value) -> Value:
    """What a tensor is after something unknown was written to it."""
    if isinstance(value, Plain):
        return Plain(value.layout)
    if isinstance(value, Weights):
        why = "the weights were written to in place"
        return dataclasses.replace(value, reading=None, why=why, ran=None)
    if isinstance(value, LogWeights):
        of = _written(value.of)
        assert isinstance(of, Weights)
        return LogWeights(of, value.layout)
    is_sum = isinstance(value, Opaque) and value.is_sum
    unknown = Opaque(value.layout, "the scores were written to in place", is_sum)
    return Exponential(unknown, value.layout) if isinstance(value, Exponential) else unknown


def _parts(value: Value) -> list[Tensor]:
    """The tensors that a record of a value would be made of."""
    if isinstance(value, Scores):
        terms = [side for product in value.products for side in (product.left, product.right)]
        terms += [term for term, _ in value.addends] + [fill.where for fill in value.fills]
        terms += [] if value.sinks is None else [value.sinks]
        return [term.tensor for term in terms]
    if isinstance(value, Weights) and value.reading is not None:
        reading = value.reading
        held = (reading.q, reading.k.tensor, reading.bias, reading.sinks)
        return [tensor for tensor in held if tensor is not None]
    if isinstance(value, Plain) and value.source is not None:
        return [value.source.tensor]
    if isinstance(value, (Exponential, LogWeights, Total, LogTotal)):
        return _parts(value.of)
    return []


def _spoiled(value: Value) -> Value:
    """What a tensor is after something that it was made of, and not itself, was written to."""
    why = "queries, keys or a bias were written to before the values were read"
    if isinstance(value, Plain):
        return Plain(value.layout)
    if isinstance(value, Weights):
        return dataclasses.replace(value, reading=None, why=why, ran=None)
    if isinstance(value, LogWeights):
        of = _spoiled(value.of)
        assert isinstance(of, Weights)
        return LogWeights(of, value.layout)
    unknown = Opaque(value.layout, why)
    return Exponential(unknown, value.layout) if isinstance(value, Exponential) else unknown


def is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, or a view of one."""
    kind = torch.nn.Parameter
    return isinstance(tensor, kind) or isinstance(tensor._base, kind)


def _among(axis: Axis, axes: list[Axis]) -> bool:
    return any(axis is one for one in axes)
