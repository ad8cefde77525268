"""Writes in place, which change every tensor that shares the memory, and scores made of it.

Tensors that are made under ``torch.inference_mode`` count no versions, and ``.data`` has a count
of its own; so each write is looked for where it happens.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from jumok.lens.taps.heard import tensors_in

_OPERATORS = frozenset({
    "__iadd__", "__isub__", "__imul__", "__imatmul__", "__idiv__", "__itruediv__", "__ifloordiv__",
    "__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
})  # fmt: skip
_ASSIGNMENTS = frozenset({"__setitem__", "__set__"})
_WRITE_NOTHING = frozenset({"requires_grad_", "detach_", "share_memory_"})


def targets(name: str, args: Any, kwargs: Any, result: Any) -> list[Tensor]:
    """The tensors that a function has written to.

    Args:
        name: the function's ``__name__``.
        args: its arguments,
        kwargs: its named ones, and
        result: what it returned.
    """
    out = kwargs.get("out")
    if out is not None:
        return list(tensors_in((out,)))
    in_place = name.endswith("_") and not name.endswith("__") and name not in _WRITE_NOTHING
    if in_place or name in _OPERATORS or name in _ASSIGNMENTS or kwargs.get("inplace"):
        found = args[:1] or tuple(kwargs[key] for key in ("input", "self") if key in kwargs)
        return list(tensors_in(found))
    if name in ("dropout", "relu") and args and result is args[0]:
        return [result]
    return []


def memory_of(tensor: Tensor) -> int | None:
    """Where a tensor's storage begins; `None` if it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # a tensor inside a transform, a nested one
        return None
