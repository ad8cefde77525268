"""transformers' attention functions, wrapped where a model looks them up.

There the key heads are not yet repeated and the mask is one object shared by all layers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jumok.lens.taps.heard import Heard, autocast, scale_of, top_left
from jumok.lens.taps.kernels import LseReader
from jumok.masks import Causal

if TYPE_CHECKING:
    from jumok.lens.taps.listener import Listener


def listened_to(listener: Listener, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap one of transformers' attention functions, if it is one whose meaning is known."""
    module = sys.modules.get("transformers.integrations.sdpa_attention")
    if module is None or listener.is_muted:
        return function
    if function is not module.sdpa_attention_forward:
        listener.unheard(f"transformers' {function.__name__}")
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
        with listener.muted(), LseReader() as reader:
            result = function(layer, query, key, value, attention_mask, *args, **kwargs)
        options = dict(zip(("dropout", "scaling", "is_causal"), args, strict=False)) | kwargs
        query, key, value, attention_mask = autocast(query, key, value, attention_mask)
        n_queries, n_keys = query.shape[2], key.shape[2]
        causal = options.get("is_causal")
        causal = getattr(layer, "is_causal", True) if causal is None else causal
        mask, bias = listener.masks.read(attention_mask)
        position_bias = options.get("position_bias")
        if attention_mask is None and causal and n_queries > 1:
            # Top-left, and keys after the last query are cut off before the kernel.
            mask = top_left(n_queries, n_keys)
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
        scale = scale_of(options.get("scaling"), query)
        heard = Heard(query, key, value, mask, bias, scale, lse=lse)
        output = listener.emit(
            heard, result[0], result[0].transpose(1, 2), lambda new: new.transpose(1, 2)
        )
        return result if output is result[0] else (output, *result[1:])

    return heard_function


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
                return function if listener is None else listened_to(listener, function)

            interface.get_interface = get_interface
        _patch_count += 1
    try:
        yield
    finally:
        with _patch_lock:
            _patch_count -= 1
            if _patch_count == 0:
                interface.get_interface = _unpatched
