"""transformers' attention functions, wrapped where a model looks them up.

There the key heads are not yet repeated and the mask is one object shared by all layers. The
function is the one under the key that the model already uses: transformers' own, the model's
``eager_attention_forward``, or one that somebody registered. It runs as ever; what it was given
is read by the names of the arguments (`readings`), and the reading is compared with what it gave
(`verify`), once for each layer and form of call.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jumok.lens.taps import readings
from jumok.lens.taps.heard import Heard, by_weights
from jumok.lens.taps.kernels import LseReader
from jumok.lens.taps.mask_reader import MaskReader
from jumok.lens.taps.readings import Arguments, Unreadable
from jumok.lens.taps.verify import Ran, agreement

if TYPE_CHECKING:
    from jumok.lens.taps.listener import HeldBack, Listener

_INTEGRATIONS = "transformers.integrations"
_Read = Callable[[Arguments, MaskReader], Heard]

# Functions whose source says what they do: the first guess is right, but for what a kernel
# doesn't support and drops.
_KNOWN: dict[tuple[str, str], _Read] = {
    (f"{_INTEGRATIONS}.sdpa_attention", "sdpa_attention_forward"): readings.sdpa_reading,
    (f"{_INTEGRATIONS}.flash_attention", "flash_attention_forward"): readings.flash_reading,
    (f"{_INTEGRATIONS}.flex_attention", "flex_attention_forward"): readings.flex_reading,
}


def listened_to(
    listener: Listener, function: Callable[..., Any], name: str | None, is_eager: bool
) -> Callable[..., Any]:
    """Wrap one of transformers' attention functions.

    Args:
        listener: hears what it does.
        function: found under
        name: the model's attention implementation.
        is_eager: it is the model's own, which masks by its mask alone.
    """
    if listener.is_muted:
        return function
    if isinstance(function, _HeardFunction):
        heard = function
    else:
        heard = _HeardFunction(listener, function, is_eager)
    if name is not None and name.startswith("paged|"):
        listener.unheard(readings.PAGED)
        return heard.function
    return heard


class _HeardFunction:
    """An attention function that tells the listener what it does."""

    def __init__(self, listener: Listener, function: Callable[..., Any], is_eager: bool) -> None:
        self.function = function
        self._listener, self._is_eager = listener, is_eager
        self.__name__ = _name_of(function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        listener, function = self._listener, self.function
        call = Arguments.of_call(function, args, kwargs)
        if call is None:
            return function(*args, **kwargs)  # the inner taps may hear something
        call.is_eager = self._is_eager
        if call.is_paged:
            listener.unheard(readings.PAGED)
            with listener.muted():
                return function(*args, **kwargs)
        if function is _known_function(*_SDPA):
            with listener.muted(), LseReader() as reader:
                result = function(*args, **kwargs)
            heard, by_heads = self._read(lambda: _sdpa(call, result, reader.lse, listener.masks))
            if heard is None or by_heads is None:
                return result
            return _passed_on(listener, heard, result, by_heads)
        # What follows from the arguments is known to be all, or to give its weights: the inner
        # taps need not listen.
        is_plain = self._is_eager or _is_known(function) or _found_before(call, function)
        with listener.aside() if is_plain else nullcontext(), listener.held_back() as inner:
            result = function(*args, **kwargs)
        heard, by_heads = self._read(
            lambda: _verified(call, function, result, listener.masks), inner
        )
        if heard is None or by_heads is None:
            return result
        return _passed_on(listener, heard, result, by_heads)

    def _read(
        self, read: Callable[[], tuple[Heard, Tensor]], inner: HeldBack | None = None
    ) -> tuple[Heard | None, Tensor | None]:
        """Read a call that has run. What cannot be read is said, and never stops the model."""
        listener = self._listener
        try:
            with listener.muted():
                return read()
        except Unreadable as error:
            words = str(error)
        except Exception as error:
            words = f"`{self.__name__}`, in a form not known here ({error})"
        if inner is None or not inner.release():
            listener.unheard(words)
        return None, None


def _sdpa(
    call: Arguments, result: Any, lse: Tensor | None, masks: MaskReader
) -> tuple[Heard, Tensor]:
    heard = readings.sdpa_reading(call, masks)
    if lse is not None:
        # One query of grouped heads runs as (key heads, group) instead of heads.
        heard.lse = lse.reshape(*heard.q.shape[:3])
    return heard, _by_heads(result, heard.q, heard.v)


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


_SDPA = (f"{_INTEGRATIONS}.sdpa_attention", "sdpa_attention_forward")


def _known_function(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _is_known(function: Callable[..., Any]) -> bool:
    return any(function is _known_function(*place) for place in _KNOWN)


def _passed_on(listener: Listener, heard: Heard, result: Any, by_heads: Tensor) -> Any:
    is_tuple = isinstance(result, (tuple, list))
    first: Tensor = result[0] if is_tuple else result
    output = listener.emit(
        heard, first, by_heads, lambda new: new.transpose(1, 2).reshape(first.shape)
    )
    if output is first:
        return result
    return (output, *result[1:]) if is_tuple else output


def _by_heads(result: Any, query: Tensor, value: Tensor) -> Tensor:
    """The output (B, Tq, H, Dv) of an attention function as (B, H, Tq, Dv)."""
    output = result[0] if isinstance(result, (tuple, list)) else result
    batch, heads, n_queries, _ = query.shape
    shape = (batch, n_queries, heads, value.shape[-1])
    joined = (batch, n_queries, heads * value.shape[-1])
    if not isinstance(output, Tensor) or tuple(output.shape) not in (shape, joined):
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise Unreadable(
            f"an attention function whose output is {found} where (batch, queries, heads, "
            f"width) = {shape} was expected"
        )
    return output.reshape(shape).transpose(1, 2)


# -- the verified reading ----------------------------------------------------------------------

# A reading, or `None` where none holds, and what to say of it.
_Found = tuple[_Read | None, str | None]

# Of each layer: what was found for which function and form of call.
_found: weakref.WeakKeyDictionary[Any, dict[Any, _Found]] = weakref.WeakKeyDictionary()
_ENOUGH_KEYS = 8  # with fewer, a wrong reading may agree by chance
_CHANGED = "the attention function itself changes what it has mixed"


def _found_before(call: Arguments, function: Callable[..., Any]) -> bool:
    return _readings_of(call.layer).get((function, call.form), (None, None))[0] is not None


def _readings_of(layer: Any) -> dict[Any, _Found]:
    return _found.setdefault(layer, {}) if isinstance(layer, torch.nn.Module) else {}


def _verified(
    call: Arguments,
    function: Callable[..., Any],
    result: Any,
    masks: MaskReader,
) -> tuple[Heard, Tensor]:
    """The reading that agrees with what ran; else what ran itself, if the function gave it.

    Returns:
        The call, and its output as (B, H, Tq, Dv).
    """
    by_heads = _by_heads(result, call.query, call.value)
    known = _readings_of(call.layer)
    key = (function, call.form)
    weights = _weights(result, call)
    if key not in known:
        if call.n_keys < _ENOUGH_KEYS:
            known = {}
        known[key] = _search(call, function, Ran(by_heads, weights, call.dropout), masks)
    read, note = known[key]
    if read is None:
        return _stored(call, function, weights), by_heads
    heard = read(call, masks)
    if note is not None:
        heard.projection_note, heard.is_followed = note, False
    return heard, by_heads


def _search(call: Arguments, function: Callable[..., Any], ran: Ran, masks: MaskReader) -> _Found:
    """The first reading that agrees with all that ran, else with the output, else the weights."""
    by_output: _Read | None = None
    by_weights_alone: _Read | None = None
    for read in _candidates(call, function):
        found = agreement(read(call, masks), ran)
        if found.is_full:
            return read, None
        if found.output:
            by_output = by_output or read
        if found.weights:
            by_weights_alone = by_weights_alone or read
    if by_output is not None:
        return by_output, None
    return by_weights_alone, _CHANGED


def _stored(call: Arguments, function: Callable[..., Any], weights: Tensor | None) -> Heard:
    """Nothing is known but the weights."""
    name = _name_of(function)
    if weights is None:
        raise Unreadable(
            f"`{name}`, whose output does not follow from its query, key, value, mask and "
            f"options by any reading known here, and which returns no weights"
        )
    why = f"`{name}` gives other weights than follow from its query, key, mask and options"
    return by_weights(weights, call.value, why, q=call.query, k=call.key)


def _candidates(call: Arguments, function: Callable[..., Any]) -> Iterator[_Read]:
    for (module, name), read in _KNOWN.items():
        if function is _known_function(module, name):
            yield read
    yield readings.first_guess(call).heard
    for reading in readings.others(call):
        yield reading.heard


def _weights(result: Any, call: Arguments) -> Tensor | None:
    """What a function returned beside its output, if these are weights (B, H, Tq, Tk)."""
    found = result[1] if isinstance(result, (tuple, list)) and len(result) > 1 else None
    shape = (*call.query.shape[:3], call.n_keys)
    return found if isinstance(found, Tensor) and tuple(found.shape) == shape else None


# -- the look-up -------------------------------------------------------------------------------

_patch_lock = threading.Lock()
_patch_count = 0
_unpatched: dict[str, Any] = {}


@contextmanager
def transformers_functions(current: Callable[[], Listener | None]) -> Iterator[None]:
    """While inside, transformers' look-up of an attention function asks `current` to listen.

    The model's configuration and the table of functions are left alone; for anything that is
    not being watched the look-up answers as ever.
    """
    global _patch_count
    modeling = sys.modules.get("transformers.modeling_utils")
    interface = getattr(modeling, "AttentionInterface", None)
    if interface is None:
        yield
        return
    with _patch_lock:
        if _patch_count == 0:
            _patch(interface, current)
        _patch_count += 1
    try:
        yield
    finally:
        with _patch_lock:
            _patch_count -= 1
            if _patch_count == 0:
                _restore(interface)


def _patch(interface: Any, current: Callable[[], Listener | None]) -> None:
    for name in ("__getitem__", "get_interface"):
        if name in vars(interface):
            _unpatched[name] = vars(interface)[name]
    look_up = interface.__getitem__

    def __getitem__(self: Any, key: str) -> Any:
        function, listener = look_up(self, key), current()
        return function if listener is None else listened_to(listener, function, key, False)

    interface.__getitem__ = __getitem__
    if not hasattr(interface, "get_interface"):  # before transformers 5
        return
    get = interface.get_interface

    def get_interface(self: Any, attn_implementation: str, default: Any) -> Any:
        function, listener = get(self, attn_implementation, default), current()
        if listener is None:
            return function
        return listened_to(listener, function, attn_implementation, function is default)

    interface.get_interface = get_interface


def _restore(interface: Any) -> None:
    for name in ("__getitem__", "get_interface"):
        if name in _unpatched:
            setattr(interface, name, _unpatched.pop(name))
        elif name in vars(interface):
            delattr(interface, name)
