"""What a call returns, followed to the first linear map that takes it: the output projection W_O.

Norm-weighted views need W_O. It is found by watching, so that it is found in any model; what
stands in between is said.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jumok.lens.taps.heard import Heard, tensors_in

# What only moves, retypes or copies the numbers of a tensor: following goes on.
MOVES = {
    "transpose", "permute", "reshape", "view", "contiguous", "flatten", "unflatten", "squeeze",
    "unsqueeze", "swapaxes", "swapdims", "movedim", "moveaxis", "clone", "to", "type", "type_as",
    "float", "half", "bfloat16", "double", "view_as", "reshape_as", "detach", "alias", "__get__",
    "permute_copy", "transpose_copy", "_reshape_alias", "requires_grad_",
}  # fmt: skip


class OutputFollower:
    """Follows the outputs of attention calls through the functions that take them."""

    def __init__(self) -> None:
        self._followed: dict[int, tuple[Tensor, Heard]] = {}

    def __bool__(self) -> bool:
        return bool(self._followed)

    def forget(self) -> None:
        """Follow nothing any more."""
        self._followed.clear()

    def start(self, output: Tensor, by_heads: Tensor, heard: Heard) -> None:
        """Follow the output of a call; `by_heads` is that as (B, H, Tq, Dv)."""
        if by_heads.numel():
            ends = torch.stack([by_heads[0, :, 0], by_heads[-1, :, -1]])
            heard.ends = ends.detach().flatten(1)
        self._followed[id(output)] = (output, heard)

    def step(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        for argument in tensors_in((*args, *kwargs.values())):
            entry = self._followed.get(id(argument))
            if entry is None or entry[0] is not argument:
                continue
            heard = entry[1]
            if name in MOVES or (name == "dropout" and _is_off(args, kwargs)):
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
                for out in tensors_in(result if isinstance(result, (tuple, list)) else (result,))
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


def _joined_by_heads(x: Tensor, ends: Tensor | None) -> bool:
    """Whether x has the heads of one token side by side: told by its first and last token."""
    if ends is None:
        return True
    rows = x.detach().reshape(-1, x.shape[-1])
    found = torch.stack([rows[0], rows[-1]])
    return torch.equal(found.nan_to_num(), ends.to(found.dtype).nan_to_num())


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
