"""``F.multi_head_attention_forward``, with and without weights.

The fused inference paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoder`` call no
Python function at all; torch leaves them by itself while a function mode is active.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from jumok.lens.taps.heard import Heard
from jumok.masks import Dense, Mask


@dataclass(eq=False)
class WeightsPath:
    """``F.multi_head_attention_forward(need_weights=True)``: bmm, softmax, bmm by hand."""

    n_heads: int
    scores: Tensor | None = None
    weights: Tensor | None = None
    parts: tuple[Tensor, Tensor, Tensor | None] | None = field(default=None)

    @classmethod
    def of_call(cls, args: Any, kwargs: Any) -> WeightsPath:
        return cls(args[4] if len(args) > 4 else kwargs["num_heads"])

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
