"""The places where attention can be heard.

A `Listener` is pushed on torch's function-mode stack while a watched module runs. It sees
every torch function the model calls, lets each run exactly as it is, and picks out the
attention among them:

* ``F.scaled_dot_product_attention`` in all its forms, and jumok's own `fused.torch_attention`;
* ``F.multi_head_attention_forward``, with and without weights. (The fused inference paths of
  ``nn.MultiheadAttention`` and ``nn.TransformerEncoder`` call no Python function at all; torch
  leaves them by itself while a function mode is active.)
* transformers' attention functions, wrapped where the model looks them up: there the key
  heads are not yet repeated and the mask is one object shared by all layers.

What a call returns is then followed to the first linear map that takes it: the output
projection W_O, which norm-weighted views need.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from jumok import fused
from jumok.masks import Causal, Dense, Mask, join

aten = torch.ops.aten

# Position of the log-sum-exp in what each kernel returns: always the second.
_KERNELS_WITH_LSE = {
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}

# What only moves, retypes or copies the numbers of a tensor: following goes on.
_MOVES = {
    "transpose", "permute", "reshape", "view", "contiguous", "flatten", "unflatten", "squeeze",
    "unsqueeze", "swapaxes", "swapdims", "movedim", "moveaxis", "clone", "to", "type", "type_as",
    "float", "half", "bfloat16", "double", "view_as", "reshape_as", "detach", "alias", "__get__",
    "permute_copy", "transpose_copy", "_reshape_alias", "requires_grad_",
}  # fmt: skip


@dataclass(eq=False)
class Heard:
    """One attention call as it ran; shapes as in `AttentionCall`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None
    bias: Tensor | None
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    lse: Tensor | None = None
    projection: Tensor | None = None
    """W_O as (output width, heads · Dv), once the linear map has been seen."""
    projection_version: int | None = None
    projection_note: str = "no linear map was applied to the attention's output"
    ends: Tensor | None = None
    """The output of the first and the last token, heads joined (2, heads · Dv)."""


class _LseReader(TorchDispatchMode):
    """Reads the log-sum-exp that a fused kernel computes anyway and PyTorch throws away."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lse: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, classes: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten.scaled_dot_product_attention.default:
            # Under inference_mode the composite operator arrives whole.
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _KERNELS_WITH_LSE:
            self.lse = result[1]
        return result


class Listener(TorchFunctionMode):
    """Hears attention among the torch functions that run; `on_heard` gets each call."""

    def __init__(
        self, on_heard: Callable[[Heard], None], on_unheard: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._on_heard = on_heard
        self._on_unheard = on_unheard
        self._muted = False
        self._followed: dict[int, tuple[Tensor, Heard]] = {}
        self._weights_path: _WeightsPath | None = None
        self._softmaxed: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._masks: dict[
            int, tuple[weakref.ref[Tensor], int | None, Mask | None, Tensor | None]
        ] = {}

    def __torch_function__(
        self, func: Any, classes: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._muted:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._hear_sdpa(args, kwargs)
        if func is fused.torch_attention:
            return self._hear_fused(args, kwargs)
        if func is F.multi_head_attention_forward:
            self._weights_path = _WeightsPath(args[4] if len(args) > 4 else kwargs["num_heads"])
            try:
                with self:
                    return _multi_head_attention_body()(*args, **kwargs)
            finally:
                self._weights_path = None
        result = func(*args, **kwargs)
        busy = self._followed or self._softmaxed or self._weights_path is not None
        if busy or func.__name__ == "softmax":
            self._look_at(func.__name__, args, kwargs, result)
        return result

    def _look_at(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Whether an ordinary function is a step of attention by hand, or takes an output."""
        if self._weights_path is not None:
            heard = self._weights_path.step(name, args, kwargs, result, self._read_mask)
            if heard is not None:
                batch, heads = heard.q.shape[:2]
                self._emit(heard, result, result.reshape(batch, heads, *result.shape[1:]))
                return
        else:
            self._notice_softmax(name, args, result)
        if self._followed:
            self._follow(name, args, kwargs, result)

    def forget(self) -> None:
        """Let go of what is being followed; called when the outermost module has returned."""
        self._followed.clear()
        self._masks.clear()
        self._softmaxed.clear()

    # -- the places ---------------------------------------------------------------------------

    def _hear_sdpa(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with _LseReader() as reader:
            output: Tensor = F.scaled_dot_product_attention(*args, **kwargs)
        q, k, v, attn_mask, _, is_causal, scale = _sdpa_arguments(*args, **kwargs)
        q, k, v, attn_mask = _autocast(q, k, v, attn_mask)
        mask, bias = self._read_mask(_four_dimensional_mask(attn_mask, q, k))
        if is_causal:
            mask = join(mask, _top_left(q.shape[-2], k.shape[-2]))
        q4, k4, v4 = _four_dimensional(q, k, v)
        heard = Heard(q4, k4, v4, mask, bias, _scale(scale, q), lse=reader.lse)
        self._emit(heard, output, output.reshape(*q4.shape[:3], v4.shape[3]))
        return output

    def _hear_fused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        output, lse = fused.torch_attention(*args, **kwargs)
        call = fused.read_call(*args, **kwargs)
        heard = Heard(
            call.q, call.k, call.v, call.rule, call.bias, call.scale, call.softcap, call.sinks, lse
        )
        self._emit(heard, output, output.reshape(*call.q.shape[:3], call.v.shape[3]))
        return output, lse

    def transformers_interface(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap one of transformers' attention functions, if it is one whose meaning is known."""
        module = sys.modules.get("transformers.integrations.sdpa_attention")
        if module is None or self._muted:
            return function
        if function is not module.sdpa_attention_forward:
            self._on_unheard(f"transformers' {function.__name__}")
            return function

        def heard_function(
            layer: torch.nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Tensor | None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            self._muted = True
            try:
                with _LseReader() as reader:
                    result = function(layer, query, key, value, attention_mask, *args, **kwargs)
            finally:
                self._muted = False
            options = dict(zip(("dropout", "scaling", "is_causal"), args, strict=False)) | kwargs
            query, key, value, attention_mask = _autocast(query, key, value, attention_mask)
            n_queries, n_keys = query.shape[2], key.shape[2]
            causal = options.get("is_causal")
            causal = getattr(layer, "is_causal", True) if causal is None else causal
            mask, bias = self._read_mask(attention_mask)
            position_bias = options.get("position_bias")
            if attention_mask is None and causal and n_queries > 1:
                # Top-left, and keys after the last query are cut off before the kernel.
                mask = _top_left(n_queries, n_keys)
                if n_keys > n_queries:
                    key, value = key[:, :, :n_queries], value[:, :, :n_queries]
                    mask = Causal()
                    if position_bias is not None:
                        position_bias = position_bias[..., :n_queries]
            if position_bias is not None:
                bias = position_bias if bias is None else bias + position_bias
            lse = reader.lse
            if lse is not None:
                # One query of grouped heads runs as (key heads, group) instead of heads.
                lse = lse.reshape(query.shape[0], query.shape[1], n_queries)
            scale = _scale(options.get("scaling"), query)
            heard = Heard(query, key, value, mask, bias, scale, lse=lse)
            self._emit(heard, result[0], result[0].transpose(1, 2))
            return result

        return heard_function

    # -- what is common -----------------------------------------------------------------------

    def _read_mask(self, mask: Tensor | None) -> tuple[Mask | None, Tensor | None]:
        """A mask as the kernel takes it: booleans, or floats to be added exactly as they are."""
        if mask is None:
            return None, None
        version = None if mask.is_inference() else mask._version
        known = self._masks.get(id(mask))
        if known is not None and known[0]() is mask:
            # Nobody counts the writes to an inference tensor: compare it with the copy.
            same = _reads_as(mask, known[2], known[3]) if version is None else known[1] == version
            if same:
                return known[2], known[3]
        kept = mask.detach()
        rule: Mask | None
        bias: Tensor | None
        if mask.dtype == torch.bool:
            rule, bias = Dense(_owned(_at_least_2d(kept), version)), None
        elif bool(((kept == 0) | (kept == -math.inf)).all()):
            rule, bias = Dense(_at_least_2d(kept == 0)), None
        else:
            # What is merely very negative is not hidden: a row of nothing else is uniform.
            rule, bias = None, _owned(_at_least_2d(kept), version)
        self._masks[id(mask)] = (weakref.ref(mask), version, rule, bias)
        return rule, bias

    def _notice_softmax(self, name: str, args: Any, result: Any) -> None:
        """A softmax that becomes the left side of a product is attention written by hand."""
        if name == "softmax" and isinstance(result, Tensor) and result.ndim > 2:
            self._softmaxed[id(result)] = result
        elif self._softmaxed and args and isinstance(args[0], Tensor):
            if self._softmaxed.get(id(args[0])) is not args[0]:
                return
            if name in _MOVES or name == "dropout":
                self._softmaxed[id(result)] = result
            elif name in ("matmul", "__matmul__", "bmm"):
                self._on_unheard("a softmax and a product by hand")

    def _emit(self, heard: Heard, output: Tensor, by_heads: Tensor) -> None:
        """Pass a call on, and follow its output; `by_heads` is that as (B, H, T, Dv)."""
        if by_heads.numel():
            ends = torch.stack([by_heads[0, :, 0], by_heads[-1, :, -1]])
            heard.ends = ends.detach().flatten(1)
        if heard.lse is not None:
            lse = heard.lse.detach()
            n_queries = heard.q.shape[2]
            if lse.ndim == 4:  # cuDNN keeps a last dimension of 1
                lse = lse.squeeze(-1)
            lse = lse[..., :n_queries]  # one CUDA kernel rounds the number of rows up
            heard.lse = _lse_of_empty_rows(lse.reshape(heard.q.shape[:3]), heard)
        self._followed[id(output)] = (output, heard)
        self._on_heard(heard)

    def _follow(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        for argument in _tensors((*args, *kwargs.values())):
            entry = self._followed.get(id(argument))
            if entry is None or entry[0] is not argument:
                continue
            heard = entry[1]
            if name in _MOVES or (name == "dropout" and _is_off(args, kwargs)):
                if isinstance(result, Tensor) and result.numel() == argument.numel():
                    self._followed[id(result)] = (result, heard)
                return
            weight = _linear_weight(name, argument, args, kwargs)
            if weight is not None:
                width = heard.q.shape[1] * heard.v.shape[-1]
                if weight.shape[1] != width or argument.shape[-1] != width:
                    heard.projection_note = (
                        f"the linear map after the attention takes {argument.shape[-1]} numbers, "
                        f"not heads · head_dim = {width}"
                    )
                elif not _joined_by_heads(argument, heard.ends):
                    heard.projection_note = (
                        "the linear map after the attention does not take the heads of one token "
                        "side by side"
                    )
                else:
                    heard.projection = weight.detach()
                    heard.projection_version = None if weight.is_inference() else weight._version
                    heard.projection_note = "the first linear map that takes the output"
            elif any(
                out.is_floating_point() and out.numel() >= argument.numel()
                for out in _tensors(result if isinstance(result, (tuple, list)) else (result,))
            ):
                heard.projection_note = (
                    f"`{name.strip('_')}` stands between the attention's output and the next "
                    f"linear map"
                )
            else:
                return
            heard.ends = None
            self._followed = {
                key: pair for key, pair in self._followed.items() if pair[1] is not heard
            }
            return


@dataclass(eq=False)
class _WeightsPath:
    """``F.multi_head_attention_forward(need_weights=True)``: bmm, softmax, bmm by hand."""

    n_heads: int
    scores: Tensor | None = None
    weights: Tensor | None = None
    parts: tuple[Tensor, Tensor, Tensor | None] | None = field(default=None)

    def step(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        result: Any,
        read_mask: Callable[[Tensor | None], tuple[Mask | None, Tensor | None]],
    ) -> Heard | None:
        if name == "baddbmm" and self.scores is None:
            self.scores, self.parts = result, (args[1], args[2], args[0])
        elif name == "bmm" and self.scores is None:
            self.scores, self.parts = result, (args[0], args[1], None)
        elif args and args[0] is {"softmax": self.scores, "dropout": self.weights}.get(name, self):
            self.weights = result
        elif name == "bmm" and args[0] is self.weights and self.parts is not None:
            q, k_transposed, added = self.parts
            batch = q.shape[0] // self.n_heads

            def split(array: Tensor) -> Tensor:
                return array.reshape(batch, self.n_heads, *array.shape[1:])

            mask, bias = read_mask(added)
            if added is not None and added.shape[0] > 1:
                mask = Dense(split(mask.visible)) if isinstance(mask, Dense) else mask
                bias = split(bias) if bias is not None else None
            # The scale 1/√d is already in q here.
            k = split(k_transposed.transpose(1, 2))
            return Heard(split(q), k, split(args[1]), mask, bias, 1.0)
        return None


# -- transformers -----------------------------------------------------------------------------

_patch_lock = threading.Lock()
_patch_count = 0
_unpatched: Any = None


@contextmanager
def transformers_functions(current: Callable[[], Listener | None]) -> Iterator[None]:
    """While inside, transformers' look-up of an attention function asks `current` to listen.

    The model's configuration and the table of functions are left alone; for anything that is
    not being watched the look-up answers as ever.
    """
    global _patch_count, _unpatched
    modeling = sys.modules.get("transformers.modeling_utils")
    interface = getattr(modeling, "AttentionInterface", None)
    if interface is None or not hasattr(interface, "get_interface"):
        yield
        return
    with _patch_lock:
        if _patch_count == 0:
            _unpatched = original = interface.get_interface

            def get_interface(self: Any, attn_implementation: str, default: Any) -> Any:
                function = original(self, attn_implementation, default)
                listener = current()
                return function if listener is None else listener.transformers_interface(function)

            interface.get_interface = get_interface
        _patch_count += 1
    try:
        yield
    finally:
        with _patch_lock:
            _patch_count -= 1
            if _patch_count == 0:
                interface.get_interface = _unpatched


@functools.cache
def _multi_head_attention_body() -> Callable[..., Any]:
    """``F.multi_head_attention_forward`` without its first step, which asks for a function mode.

    A mode doesn't hear the functions that it calls itself, and this one, called again under the
    mode, would only come back to it. So the very same code runs with that one question answered
    by no; all that it calls is heard.
    """
    function = F.multi_head_attention_forward
    namespace = {**function.__globals__, "has_torch_function": lambda tensors: False}
    return types.FunctionType(
        function.__code__, namespace, argdefs=function.__defaults__, closure=function.__closure__
    )


# -- small things -----------------------------------------------------------------------------


def _sdpa_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float, bool, float | None]:
    return query, key, value, attn_mask, dropout_p, is_causal, scale


def _top_left(n_queries: int, n_keys: int) -> Mask:
    """torch's ``is_causal``: the first query on the first key."""
    return Causal() if n_queries == n_keys else Causal(offset=0)


def _scale(scale: float | None, q: Tensor) -> float:
    return 1.0 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)


def _at_least_2d(mask: Tensor) -> Tensor:
    return mask if mask.ndim >= 2 else mask.reshape(1, -1)


def _owned(tensor: Tensor, version: int | None) -> Tensor:
    """A copy, if the memory may be written to again (it has been, or nobody counts writes)."""
    return tensor if version == 0 else tensor.clone()


def _autocast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Any, ...]:
    """The arguments as autocast hands them to the kernel."""
    kind = q.device.type
    if not torch.is_autocast_enabled(kind):
        return q, k, v, mask
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        x.to(dtype) if x is not None and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in (q, k, v, mask)
    )


def _joined_by_heads(x: Tensor, ends: Tensor | None) -> bool:
    """Whether x has the heads of one token side by side: told by its first and last token."""
    if ends is None:
        return True
    rows = x.detach().reshape(-1, x.shape[-1])
    found = torch.stack([rows[0], rows[-1]])
    return torch.equal(found.nan_to_num(), ends.to(found.dtype).nan_to_num())


def _reads_as(mask: Tensor, rule: Mask | None, bias: Tensor | None) -> bool:
    """Whether a mask still says what was read from it."""
    mask = _at_least_2d(mask)
    if bias is not None:
        return torch.equal(mask, bias)
    assert isinstance(rule, Dense)
    return torch.equal(mask if mask.dtype == torch.bool else mask == 0, rule.visible)


def _four_dimensional(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, H, T, D) views of what SDPA takes: any leading dimensions, which may broadcast."""
    if q.is_nested or k.is_nested:
        raise ValueError(
            "attention over nested tensors cannot be recorded; pass a padded batch with its mask"
        )
    size = max(q.ndim, k.ndim, v.ndim, 3)
    q, k, v = (x.reshape(*(1,) * (size - x.ndim), *x.shape) for x in (q, k, v))
    if size == 3:
        q, k, v = q[:, None], k[:, None], v[:, None]
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    heads = (max(q.shape[-3], k.shape[-3]), max(k.shape[-3], v.shape[-3]))
    four = []
    for x, n_heads in ((q, heads[0]), (k, heads[1]), (v, heads[1])):
        x = x.expand(*batch, n_heads, *x.shape[-2:])
        four.append(x if len(batch) == 1 else x.flatten(0, len(batch) - 1))
    return four[0], four[1], four[2]


def _four_dimensional_mask(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask of a call whose inputs are not (B, H, T, D), in step with `_four_dimensional`."""
    size = max(q.ndim, k.ndim)
    if mask is None or size == 4 or mask.ndim <= 2:
        return mask
    if size == 3:
        return mask[:, None]
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])
    missing = size - mask.ndim
    mask = mask.reshape(*(1,) * missing, *mask.shape)
    return mask.expand(*batch, *mask.shape[-3:]).flatten(0, len(batch) - 1)


def _lse_of_empty_rows(lse: Tensor, heard: Heard) -> Tensor:
    """−inf for rows that see nothing, where a kernel says 0 (torch's CPU flash kernel does)."""
    if heard.mask is None and heard.bias is None:
        return lse
    suspects = lse == 0
    if not bool(suspects.any()):
        return lse
    n_queries, n_keys = heard.q.shape[2], heard.k.shape[2]
    sees = torch.zeros_like(suspects)
    step = max(1, (1 << 24) // max(n_keys, 1))
    for start in range(0, n_queries, step):
        rows = range(start, min(start + step, n_queries))
        tile: Any = True
        if heard.mask is not None:
            tile = heard.mask.tile(rows, range(n_keys), n_queries, n_keys, lse)
        if heard.bias is not None:
            bias = heard.bias
            part = bias if bias.shape[-2] == 1 else bias[..., rows.start : rows.stop, :]
            tile = (part > -math.inf) & tile
        if isinstance(tile, bool):
            sees[..., rows.start : rows.stop] = tile
        else:
            sees[..., rows.start : rows.stop] = tile.any(-1)
    return lse.masked_fill(suspects & ~sees, -math.inf)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (item for item in value if isinstance(item, Tensor))


def _is_off(args: Any, kwargs: Any) -> bool:
    """Whether a call of ``F.dropout(input, p, training)`` changes nothing."""
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    return not training or p == 0


def _linear_weight(name: str, x: Tensor, args: Any, kwargs: Any) -> Tensor | None:
    """The weight, as (output width, input width), if this call is a linear map of `x`."""
    if name == "linear" and (args[0] if args else kwargs.get("input")) is x:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        return weight if isinstance(weight, Tensor) else None
    position = {"addmm": 1, "mm": 0, "matmul": 0, "__matmul__": 0}.get(name)
    if position is not None and len(args) > position + 1 and args[position] is x:
        weight = args[position + 1]
        if weight.ndim == 2:
            transposed: Tensor = weight.T
            return transposed
    return None
