"""What an attention function was given, and what it may have made of it.

transformers' attention functions, and those that people register beside them, share the names of
their arguments: ``scaling``, ``softcap``, ``s_aux``, ``position_bias``, ``sliding_window``,
``is_causal``. A `Reading` says which of them a function heeds; `first_guess` is what the names
promise, `others` what else is possible. Which one is true, `verify` finds out from what ran.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from jumok.lens.taps.heard import Heard, autocast, scale_of
from jumok.lens.taps.mask_reader import MaskReader
from jumok.masks import Causal, Mask, Packed, Window, join

_LEADING = 5  # layer, query, key, value, mask: always first, whatever they are called


@dataclass(eq=False)
class Arguments:
    """One call's arguments: q (B, H, Tq, D), k and v with key heads not yet repeated."""

    layer: Any
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: dict[str, Any]
    is_eager: bool = False

    @classmethod
    def of_call(
        cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        """Read a call by the positions and names of its arguments; `None` if it is another one."""
        names = _names(function)
        given = dict(zip(names, args, strict=False)) | kwargs
        if len(names) < _LEADING or len(args) > len(names):
            return None
        leading = [given.pop(name, None) for name in names[:_LEADING]]
        layer, query, key, value, mask = leading
        for tensor in (query, key, value):
            if not isinstance(tensor, Tensor) or tensor.ndim != 4:
                return None
        query, key, value, _ = autocast(query, key, value, None)
        batch = max(len(query), len(key))  # learned queries may come without a batch
        query, key, value = (
            x if len(x) == batch else x.expand(batch, *x.shape[1:]) for x in (query, key, value)
        )
        return cls(layer, query, key, value, mask, given)

    @property
    def n_queries(self) -> int:
        return self.query.shape[2]

    @property
    def n_keys(self) -> int:
        return self.key.shape[2]

    @property
    def has_blocks(self) -> bool:
        """Whether the mask is FlexAttention's."""
        return type(self.mask).__name__ == "BlockMask"

    @property
    def has_mask(self) -> bool:
        return self.has_blocks or isinstance(self.mask, Tensor)

    @property
    def is_padding_mask(self) -> bool:
        """As flash attention takes it, (B, Tk)."""
        mask = self.mask
        if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.is_floating_point():
            return False
        return len(mask) == len(self.query) and mask.shape[1] <= self.n_keys

    @property
    def scaling(self) -> float:
        return scale_of(self.options.get("scaling"), self.query)

    @property
    def scalings(self) -> list[float]:
        """The factor of q·k as given, and what the layer knows of one."""
        layer = self.layer
        head_dim = getattr(layer, "head_dim", None)
        found = [getattr(layer, name, None) for name in ("scaling", "scale", "scale_factor")]
        found.append(head_dim**-0.5 if isinstance(head_dim, int) and head_dim else None)
        numbers = [float(x) for x in found if isinstance(x, (int, float))]
        return list(dict.fromkeys([self.scaling, scale_of(None, self.query), *numbers, 1.0]))

    @property
    def softcap(self) -> float | None:
        for value in (
            self.options.get("softcap"),
            getattr(self.layer, "attn_logit_softcapping", None),
        ):
            if isinstance(value, (int, float)) and value:
                return float(value)
        return None

    @property
    def sinks(self) -> Tensor | None:
        """One logit for each head (H,)."""
        for value in (
            self.options.get("s_aux"),
            self.options.get("sinks"),
            getattr(self.layer, "sinks", None),
        ):
            if isinstance(value, Tensor) and value.numel() == self.query.shape[1]:
                return value.reshape(-1)
        return None

    @property
    def bias(self) -> Tensor | None:
        bias = self.options.get("position_bias")
        return bias[..., : self.n_keys] if isinstance(bias, Tensor) else None

    @property
    def window(self) -> int | None:
        window = self.options.get("sliding_window")
        return window if isinstance(window, int) and 0 < window < self.n_keys else None

    @property
    def is_causal(self) -> bool:
        said = self.options.get("is_causal")
        return bool(getattr(self.layer, "is_causal", True) if said is None else said)

    @property
    def dropout(self) -> float:
        """The part of the weights that are dropped, if they are."""
        training = bool(getattr(self.layer, "training", False))
        return float(self.options.get("dropout") or 0.0) if training else 0.0

    @property
    def is_paged(self) -> bool:
        """Whether the keys of many requests lie in one table."""
        return any(self.options.get(name) is not None for name in ("block_table", "cache"))

    @property
    def form(self) -> tuple[Any, ...]:
        """Calls of one form are read alike."""
        mask = self.mask
        return (
            (type(mask).__name__, getattr(mask, "ndim", 0), getattr(mask, "dtype", None)),
            tuple(sorted(name for name, value in self.options.items() if value is not None)),
            self.n_queries == 1,
            self.query.dtype,
            self.window is not None,
            self.dropout > 0,
        )


@functools.lru_cache(maxsize=256)
def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


@dataclass(frozen=True)
class Reading:
    """Which of its arguments an attention function heeds."""

    mask: Literal["hides", "lowest", "added"] | None = "hides"
    """What becomes of it. Booleans may also be added as the smallest number, or as 0 and 1."""
    causal: Literal["last", "first"] | None = None
    """The last query on the last key, or the first on the first; `None` leaves it to the mask."""
    window: bool = False
    scaling: int = 0
    """Which one of `Arguments.scalings`."""
    softcap: bool = True
    sinks: bool = True
    bias: bool = True

    def heard(self, call: Arguments, masks: MaskReader) -> Heard:
        """The call, read this way."""
        n_queries, n_keys = call.n_queries, call.n_keys
        rule: Mask | None = None
        bias: Tensor | None = None
        if self.mask is not None and isinstance(call.mask, Tensor):
            if call.is_padding_mask:
                rule = masks.padding(call.mask, n_keys)
            elif self.mask == "hides" or call.mask.dtype != torch.bool:
                rule, bias = masks.read(call.mask, n_queries, n_keys)
            elif self.mask == "lowest":
                rule, bias = masks.lowest(call.mask, n_queries, n_keys)
            else:
                bias = masks.added(call.mask, n_keys)
        elif self.mask is not None and call.has_blocks:
            rule = masks.blocks(call.mask, n_queries, n_keys)
        if self.causal is not None and n_queries > 1:
            rule = join(rule, Causal() if self.causal == "last" else Causal(offset=0))
        if self.window and call.window is not None:
            # With causal, what lies ahead is hidden anyway.
            ahead = 0 if self.causal is not None else call.window - 1
            offset = 0 if self.causal == "first" else None
            rule = join(rule, Window(call.window, ahead, offset))
        if self.bias and call.bias is not None:
            bias = masks.both(masks.bias(call.bias), bias)
        return Heard(
            call.query,
            call.key,
            call.value,
            rule,
            bias,
            call.scalings[self.scaling],
            softcap=call.softcap if self.softcap else None,
            sinks=call.sinks if self.sinks else None,
        )


def first_guess(call: Arguments) -> Reading:
    """What the names of the arguments promise."""
    if call.is_padding_mask:
        # As flash attention: the mask says what is padding, and nothing else.
        return Reading(causal="last" if call.is_causal else None, window=True)
    if not call.has_mask and not call.is_eager and call.is_causal:
        return Reading(causal="last", window=True)
    return Reading()


def others(call: Arguments) -> Iterator[Reading]:
    """Everything else it may be, what is nearest to the first guess first."""
    first = first_guess(call)

    def either(known: Any, guess: bool) -> list[bool]:
        return [guess, not guess] if known is not None else [guess]

    choices: dict[str, list[Any]] = {
        "causal": list(dict.fromkeys([first.causal, None, "last", "first"]))
        if call.n_queries > 1
        else [first.causal],
        "window": either(call.window, first.window),
        "scaling": list(range(len(call.scalings))),
        "softcap": either(call.softcap, True),
        "sinks": either(call.sinks, True),
        "bias": either(call.bias, True),
        "mask": ["hides", None] if call.has_mask else ["hides"],
    }
    if isinstance(call.mask, Tensor) and call.mask.dtype == torch.bool:
        choices["mask"] = ["hides", "lowest", "added", None]
    combinations = [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]

    def distance(options: dict[str, Any]) -> int:
        return sum(value != choices[name][0] for name, value in options.items())

    for options in sorted(combinations, key=distance)[1:]:
        if distance(options) > 3:
            return
        yield dataclasses.replace(first, **options)


# -- functions of transformers whose source says what they do ------------------------------------


def sdpa_reading(call: Arguments, masks: MaskReader) -> Heard:
    """``sdpa_attention_forward``: causal is top-left, and later keys are cut off before."""
    n_queries = call.n_queries
    if call.mask is None and call.is_causal and n_queries > 1:
        bias = call.bias
        if call.n_keys > n_queries:
            call = dataclasses.replace(
                call,
                key=call.key[:, :, :n_queries],
                value=call.value[:, :, :n_queries],
                options=call.options
                | {"position_bias": None if bias is None else bias[..., :n_queries]},
            )
        return dataclasses.replace(_SDPA, causal="last").heard(call, masks)
    if call.bias is not None:
        return dataclasses.replace(_SDPA, mask="lowest").heard(call, masks)
    return _SDPA.heard(call, masks)


_SDPA = Reading(softcap=False, sinks=False)


def flash_reading(call: Arguments, masks: MaskReader) -> Heard:
    """``flash_attention_forward``, whose mask is (B, Tk) and whose sequences may be packed."""
    options = call.options
    mask = call.mask
    if mask is not None and mask.ndim != 2:
        raise Unreadable(f"flash attention with a mask of shape {tuple(mask.shape)}")
    if mask is not None and mask.shape[1] < call.n_keys:
        # The slots of a static cache that are not written yet.
        stop = mask.shape[1]
        call = dataclasses.replace(call, key=call.key[:, :, :stop], value=call.value[:, :, :stop])
    reading = Reading(causal="last" if call.is_causal else None, window=True)
    heard = dataclasses.replace(reading, sinks=False).heard(call, masks)
    heard.sinks = options.get("s_aux")
    heard.softcap = options.get("softcap")
    if mask is None:
        documents = _documents(call)
        if documents is not None:
            heard.mask = join(heard.mask, documents)
    elif heard.mask is not None and call.n_queries <= mask.shape[1]:
        heard.mask = join(heard.mask, masks.padded_queries(mask, call.n_queries))
    return heard


def _documents(call: Arguments) -> Mask | None:
    """Sequences that are packed into one row, by their boundaries or by their positions."""
    options, n_keys = call.options, call.n_keys
    starts, keys = options.get("cu_seq_lens_q"), options.get("cu_seq_lens_k")
    lengths = (options.get("max_length_q"), options.get("max_length_k"))
    positions = options.get("position_ids")
    if starts is not None and keys is not None and None not in lengths:
        if len(call.query) != 1 or not torch.equal(starts, keys):
            raise Unreadable("flash attention over sequences packed with unequal boundaries")
        is_start = torch.zeros(n_keys + 1, dtype=torch.int64, device=starts.device)
        is_start[starts.long()] = 1
        numbers = is_start[:n_keys].cumsum(0)
    elif isinstance(positions, Tensor) and len(call.query) == 1 and positions.shape[-1] > 1:
        flat = positions.reshape(-1)
        even = torch.arange(len(flat), device=flat.device) + flat.min()
        if len(flat) != n_keys or bool((flat == even).all()):
            return None
        numbers = (flat == flat.min()).cumsum(0)
    else:
        return None
    return Packed(numbers[None])


def flex_reading(call: Arguments, masks: MaskReader) -> Heard:
    """``flex_attention_forward``: a block mask, or floats of which head 0 is added to all."""
    if isinstance(call.mask, Tensor):
        call = dataclasses.replace(call, mask=call.mask[:, :1])
    heard = Reading(sinks=False).heard(call, masks)
    heard.softcap = call.options.get("softcap")
    heard.sinks = call.options.get("s_aux")
    return heard


PAGED = (
    "attention over a paged cache (continuous batching), where the keys of many requests lie in "
    "one table; run the model without it, with model(ids) or model.generate(ids)"
)


class Unreadable(Exception):
    """A call that cannot be recorded; the text says why, for the user."""
