"""``F.multi_head_attention_forward``: SDPA inside, or, with weights, products by hand.

The fused inference paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoder`` call no
Python function at all; torch leaves them by itself while a function mode is active.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.nn import functional as F

if TYPE_CHECKING:
    from jumok.lens.taps.listener import Listener


def hear_multi_head(listener: Listener, function: Any, args: Any, kwargs: Any) -> Any:
    """Run ``F.multi_head_attention_forward`` so that what it calls is heard."""
    with listener:
        return body()(*args, **kwargs)


@functools.cache
def body() -> Callable[..., Any]:
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
