"""Modules that are left by an error of any kind, an interrupt too.

PyTorch runs the hooks that it always calls for an `Exception`, but not for a `KeyboardInterrupt`
or a `SystemExit`. So the call itself is wrapped, where a compiled module keeps the call that it
was compiled to: an attribute that copies and files of the model leave out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Any

_PLACE = "_compiled_call_impl"
_lock = threading.Lock()  # one model may be watched in several threads


class _Call:
    """A module's call that says when it was left by an error."""

    __slots__ = ("before", "left", "module", "stack")

    def __init__(self, module: Any, stack: Sized, left: Callable[[Any, int], None]) -> None:
        self.module, self.stack, self.left = module, stack, left
        self.before = vars(module).get(_PLACE)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        depth = len(self.stack)
        try:
            return (self.before or self.module._call_impl)(*args, **kwargs)
        except BaseException:
            self.left(self.module, depth)
            raise


def watch_errors(module: Any, stack: Sized, left: Callable[[Any, int], None]) -> Callable[[], None]:
    """Say when a call of a module ends with an error.

    Args:
        module: any `torch.nn.Module` but a scripted one.
        stack: what grows and shrinks as modules begin and return.
        left: gets the module, and how long the stack was before the call.

    Returns:
        What puts the module back; several may be undone in any order.
    """
    with _lock:
        call = vars(module)[_PLACE] = _Call(module, stack, left)

    def undo() -> None:
        with _lock:
            found, outer = vars(module).get(_PLACE), None
            while isinstance(found, _Call) and found is not call:
                found, outer = found.before, found
            if found is not call:  # somebody has put another one there
                return
            if outer is not None:
                outer.before = call.before
            elif call.before is not None:
                vars(module)[_PLACE] = call.before
            else:
                del vars(module)[_PLACE]

    return undo
