"""Whose attention is heard: that of one model, in one thread or task, while a block is open.

Several may be open at once, over each other or over parts of the same model; one listener per
thread serves them all. Calls outside the model's own forward are nobody's.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from contextvars import ContextVar
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from jumok.lens.taps import Heard, Listener, transformers_functions
from jumok.lens.taps.stance import uncompiled
from jumok.lens.unwinding import watch_errors

_graph_task = torch._C._current_graph_task_id

# Those that are open in this context (thread, asyncio task).
_open: ContextVar[tuple[Hearing, ...]] = ContextVar("jumok_hearings", default=())


# Modules of one function that is neither attention nor a linear map: the caller's hooks are enough.
_ATOMS = frozenset({
    torch.nn.Dropout, torch.nn.Identity, torch.nn.Embedding, torch.nn.GELU, torch.nn.SiLU,
    torch.nn.ReLU, torch.nn.Tanh, torch.nn.Sigmoid,
})  # fmt: skip


def _is_altered(module: torch.nn.Module) -> bool:
    """Whether somebody has put another forward, or other modules, into one."""
    return "forward" in vars(module) or bool(module._modules)


class _Thread(threading.local):
    """What is running in this thread."""

    depth = 0
    listener: Listener | None = None
    exits = ExitStack()


_running = _Thread()


class Hearing:
    """Hears the attention of one model; what to do with it is for who derives from this.

    Args:
        model: any `torch.nn.Module`.
        purpose: the public name it serves, for messages.

    Raises:
        TypeError: `model` is no `torch.nn.Module`.
    """

    def __init__(self, model: torch.nn.Module, purpose: str) -> None:
        if not isinstance(model, torch.nn.Module):
            hint = ""
            if isinstance(model, tuple):
                hint = f"; jumok.load returns (model, tokenizer): {purpose} the first of the two"
            raise TypeError(f"{purpose} takes a torch.nn.Module, got {type(model).__name__}{hint}")
        self.model = model
        self.purpose = purpose
        self.names = {module: name for name, module in reversed(list(model.named_modules()))}
        self.ran: dict[str, str] = {}
        """Path and class name of the modules that ran, in order."""
        self.forwards = 0
        """Number of forwards that have begun."""
        self.follows_output = True
        """Whether it matters what takes the output of the call that was heard last."""
        self._stack: list[torch.nn.Module] = []
        self._once: dict[torch.nn.Module, RemovableHandle] = {}
        self._thread = 0
        self._exits: ExitStack | None = None

    # -- what comes in ------------------------------------------------------------------------

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """The outermost module is about to run."""

    def hear(self, name: str, heard: Heard, output: Tensor) -> Tensor | None:
        """One call in the module `name`; another output (B, H, Tq, Dv) may be put in its place."""
        raise NotImplementedError

    def hear_nothing(self, name: str, what: str) -> None:
        """Attention ran in the module `name` in a way that no tap hears."""

    def module_ends(self, *, forward_is_over: bool) -> None:
        """A module has returned."""

    # -- opening and closing ------------------------------------------------------------------

    def open(self) -> None:
        """Begin to hear."""
        if self._exits is not None:
            raise ValueError(
                f"this {self.purpose} is open already; make another one: "
                f"jumok.{self.purpose}(model, …)"
            )
        self._exits = ExitStack()
        self._thread = threading.get_ident()
        self._exits.enter_context(uncompiled())
        for module in self.names:
            if isinstance(module, torch.jit.ScriptModule):
                self._note_script(module)
                continue
            if type(module) in _ATOMS and module is not self.model and not _is_altered(module):
                self._note_once(module)
                continue
            before = module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
            after = module.register_forward_hook(self._after, always_call=True)
            self._exits.callback(before.remove)
            self._exits.callback(after.remove)
            self._exits.callback(watch_errors(module, self._stack, self._left_by_error))
        self._exits.enter_context(transformers_functions(_listening))
        _open.set((*_open.get(), self))
        self._exits.callback(self._end)

    def _note_once(self, module: torch.nn.Module) -> None:
        """Note that a module ran which nothing can be heard in, and take no time afterwards."""
        handle = module.register_forward_pre_hook(self._ran_once)
        self._once[module] = handle
        assert self._exits is not None
        self._exits.callback(handle.remove)

    def _ran_once(self, module: torch.nn.Module, args: Any) -> None:
        if self._stack and self._is_mine(module):
            self.ran[self.names[module]] = type(module).__name__
            self._once.pop(module).remove()

    def _note_script(self, module: torch.jit.ScriptModule) -> None:
        """Say of a scripted or traced module that attends, and is no part of another, so."""
        name = self.names[module]
        inside = any(
            isinstance(other, torch.jit.ScriptModule) and (not path or name.startswith(path + "."))
            for other, path in self.names.items()
            if other is not module
        )
        graph = "" if inside else str(module.inlined_graph)
        if "aten::softmax" in graph or "scaled_dot_product" in graph:
            self.hear_nothing(
                name or type(module).__name__,
                "compiled by torch.jit, which runs no Python that could be listened to: watch the "
                "module that it was made from",
            )

    def close(self) -> None:
        """Hear no more."""
        assert self._exits is not None
        self._exits.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Hearing:
        # A copy of a heard model carries the hooks, but is not what is being heard.
        return self

    def __reduce__(self) -> tuple[type[_Deaf], tuple[()]]:
        return _Deaf, ()  # likewise for a file of the model

    def _end(self) -> None:
        _open.set(tuple(other for other in _open.get() if other is not self))
        while self._stack:  # a forward that never returned
            self._leave()
        self.module_ends(forward_is_over=True)

    # -- hooks --------------------------------------------------------------------------------

    def _is_mine(self, module: torch.nn.Module) -> bool:
        """Whether a module runs for this one: in its context, and in its thread."""
        if _graph_task() != -1:
            return False  # a backward pass runs it once more, for a checkpoint of activations
        inside = self in _open.get() and get_ident() == self._thread
        return inside and module in self.names

    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not self._is_mine(module):
            return
        if not self._stack:
            self.forwards += 1
            self.forward_begins(module, args, kwargs)
        self._stack.append(module)
        self.ran[self.names[module]] = type(module).__name__
        running = _running.__dict__  # of this thread; an attribute would look it up each time
        depth = running.get("depth", 0)
        if depth == 0:
            _running.listener = Listener(_heard, _unheard)
            _running.exits = ExitStack()
            _running.exits.enter_context(_running.listener)
        running["depth"] = depth + 1

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        # A hook that runs although its module's pre-hook did not (an error before it) is no exit.
        stack = self._stack
        if not stack or not self._is_mine(module):
            return
        if stack[-1] is module or module in stack:
            listener = _running.listener
            if listener is not None:
                listener.module_ran(module, args, output)
            while self._leave() is not module:
                pass

    def _left_by_error(self, module: torch.nn.Module, depth: int) -> None:
        """Leave what a call has entered and not left, an interrupt say."""
        if self._is_mine(module):
            while len(self._stack) > depth:
                self._leave()

    def _leave(self) -> torch.nn.Module:
        module = self._stack.pop()
        running = _running.__dict__
        depth = running["depth"] = running.get("depth", 0) - 1
        if depth:
            self.module_ends(forward_is_over=False)
            return module
        _running.exits.close()
        assert _running.listener is not None
        _running.listener.forget()  # and say what is known by now of outputs on their way
        _running.listener = None
        for hearing in _open.get() if self in _open.get() else (self, *_open.get()):
            hearing.module_ends(forward_is_over=True)
        return module

    @property
    def here(self) -> str:
        """Path of the innermost module that is running."""
        module = self._stack[-1]
        return self.names[module] or type(module).__name__


class _Deaf:
    """What stands in the hooks of a model that was saved while it was heard."""

    def _before(self, module: Any, args: Any, kwargs: Any) -> None: ...

    def _after(self, module: Any, args: Any, output: Any) -> None: ...

    def _ran_once(self, module: Any, args: Any) -> None: ...


def _listening_now() -> list[Hearing]:
    here = threading.get_ident()
    return [one for one in _open.get() if one._stack and one._thread == here]


def _heard(heard: Heard, output: Tensor) -> Tensor | None:
    replaced, follows = None, False
    for hearing in _listening_now():
        other = hearing.hear(hearing.here, heard, output if replaced is None else replaced)
        replaced = replaced if other is None else other
        follows = follows or hearing.follows_output
    if not follows:
        heard.is_followed = False
        return replaced
    # The output is still followed to the linear map that takes it, by the shapes alone.
    heard.q, heard.k, heard.v = (_only_the_shape(x) for x in (heard.q, heard.k, heard.v))
    heard.mask = heard.bias = heard.lse = None
    return replaced


def _unheard(what: str) -> None:
    for hearing in _listening_now():
        hearing.hear_nothing(hearing.here, what)


def _listening() -> Listener | None:
    return _running.listener if _listening_now() else None


def _only_the_shape(tensor: Tensor) -> Tensor:
    return tensor.new_empty(1).expand(tensor.shape)
