"""`watch`: record the attention of any PyTorch model while it runs as it always does.

The model runs its own kernels; the listener in `taps` hears each attention call, and this room
decides whose it is (the module it ran in), what of it is kept, and to which map it belongs:
the steps of a decoding loop are stitched into one map.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import warnings
from contextlib import ExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jumok.lens.attention_map import AttentionMap
from jumok.lens.call import AttentionCall
from jumok.lens.recording import Recording, mask_arrays
from jumok.lens.taps import Heard, Listener, transformers_functions
from jumok.masks import Both, Causal, Dense, Mask, Padding, Steps, Window, join

# The watches that are open in this context (thread, asyncio task).
_open: ContextVar[tuple[watch, ...]] = ContextVar("jumok_watches", default=())


class _Thread(threading.local):
    """What is running in this thread."""

    depth = 0
    listener: Listener | None = None
    exits = ExitStack()


_running = _Thread()


class watch:
    """Record the attention of a PyTorch model, without changing what it computes.

    ```python
    with jumok.watch(model) as recording:
        model(ids)
    recording["layers.3.attention"].entropy()
    ```

    Heard are calls of ``F.scaled_dot_product_attention``, ``nn.MultiheadAttention``,
    ``nn.Transformer*``, transformers' SDPA attention and jumok's own, in the modules of `model`,
    in this thread or task, until the block ends.

    Outputs are bit-identical with and without, but for PyTorch's fused inference fast paths:
    ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` in eval mode, batch first and
    without gradients, run their ordinary kernels while watched. There real tokens agree within
    1e-6 (float32), and padded positions hold numbers where the fast path writes zeros.

    Kept are q, k, v and the log-sum-exp of every row, by reference where nothing can overwrite
    them: memory that grows with the number of tokens. The weights are never formed.

    Args:
        model: any `torch.nn.Module`.

    Raises:
        TypeError: `model` is no `torch.nn.Module`.
        ValueError: the block ended and no attention was heard; the message says which modules
            ran and what to do.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        if not isinstance(model, torch.nn.Module):
            hint = ""
            if isinstance(model, tuple):
                hint = "; jumok.load returns (model, tokenizer): watch the first of the two"
            raise TypeError(f"watch takes a torch.nn.Module, got {type(model).__name__}{hint}")
        self._model = model
        self._names = {module: name for name, module in reversed(list(model.named_modules()))}
        self._stack: list[torch.nn.Module] = []
        self._ran: dict[str, None] = {}
        self._unheard: dict[str, str] = {}
        self._shelf = _Shelf()
        self._thread = 0
        self._forward = 0
        self._tracks: dict[str, list[_Track]] = {}
        self._new_ids: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self._recording = Recording(type(model).__name__)
        self._exits: ExitStack | None = None

    def __enter__(self) -> Recording:
        if self._exits is not None:
            raise ValueError("this watch is open already; make another one: jumok.watch(model)")
        self._exits = ExitStack()
        self._thread = threading.get_ident()
        if "torch._dynamo" in sys.modules:
            # A compiled module would run past every tap, or trace them.
            self._exits.enter_context(torch.compiler.set_stance("force_eager"))
        for module in self._names:
            before = module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
            after = module.register_forward_hook(self._after, always_call=True)
            self._exits.callback(before.remove)
            self._exits.callback(after.remove)
        self._exits.enter_context(transformers_functions(_listening))
        _open.set((*_open.get(), self))
        self._exits.callback(self._close)
        return self._recording

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._exits is not None
        self._exits.close()
        if error is not None:
            return
        if not len(self._recording):
            raise ValueError(self._nothing_heard())
        missing = {name: what for name, what in self._unheard.items() if name not in self._tracks}
        if missing:
            names = ", ".join(list(missing)[:6]) + (" …" if len(missing) > 6 else "")
            warnings.warn(
                f"{len(missing)} attention modules ran unheard and are not in the recording: "
                f"{names} ({' and '.join(sorted(set(missing.values())))}). Load a transformers "
                f'model with attn_implementation="sdpa"; attention by hand is not heard yet',
                stacklevel=2,
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> watch:
        # A copy of a watched model carries the hooks, but is not what is being watched.
        return self

    def _close(self) -> None:
        _open.set(tuple(other for other in _open.get() if other is not self))
        while self._stack:  # a forward that never returned
            self._leave()

    def _nothing_heard(self) -> str:
        name = type(self._model).__name__
        if not self._ran:
            return (
                f"no attention was heard: {name} did not run inside the `with` block. Call the "
                f"very module that was given to jumok.watch, in the same thread"
            )
        kinds = ", ".join(list(self._ran)[:12]) + (" …" if len(self._ran) > 12 else "")
        configuration = getattr(self._model, "config", None)
        implementation = getattr(configuration, "_attn_implementation", None)
        advice = (
            f'This transformers model runs its "{implementation}" attention; load it with '
            f'attn_implementation="sdpa"'
            if implementation not in (None, "sdpa")
            else "Attention is heard where a model calls F.scaled_dot_product_attention, "
            "nn.MultiheadAttention or jumok's own; a model that multiplies and applies softmax "
            "by hand is not heard yet"
        )
        return f"no attention was heard in {name}. These modules ran: {kinds}. {advice}"

    # -- hooks --------------------------------------------------------------------------------

    def _is_mine(self, module: torch.nn.Module) -> bool:
        """Whether a module runs for this watch: in its context, and in its thread."""
        inside = self in _open.get() and threading.get_ident() == self._thread
        return inside and module in self._names

    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not self._is_mine(module):
            return
        if not self._stack:
            self._forward += 1
            if module is self._model:
                self._see_ids(args, kwargs)
        self._stack.append(module)
        self._ran[type(module).__name__] = None
        if _running.depth == 0:
            _running.listener = Listener(_heard, _unheard)
            _running.exits = ExitStack()
            _running.exits.enter_context(_running.listener)
        _running.depth += 1

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        # A hook that runs although its module's pre-hook did not (an error before it) is no exit.
        if self._is_mine(module) and module in self._stack:
            while self._leave() is not module:
                pass

    def _leave(self) -> torch.nn.Module:
        module = self._stack.pop()
        _running.depth -= 1
        if _running.depth == 0:
            _running.exits.close()
            assert _running.listener is not None
            _running.listener.forget()
            _running.listener = None
        return module

    def _see_ids(self, args: Any, kwargs: Any) -> None:
        """Keep the token ids of this forward: the first integer (batch, tokens) it is given."""
        named = [kwargs[name] for name in ("input_ids", "ids") if name in kwargs]
        for value in (*named, *args):
            if isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point():
                if value.dtype == torch.bool:
                    continue
                self._new_ids = value.detach().cpu().numpy().astype(np.int64)
                if self._recording.ids is None:
                    self._recording.ids = self._new_ids
                return

    # -- calls --------------------------------------------------------------------------------

    def _here(self) -> str:
        module = self._stack[-1]
        return self._names[module] or type(module).__name__

    def note_unheard(self, what: str) -> None:
        """Remember that the innermost module attends in a way that no tap hears."""
        self._unheard[self._here()] = what

    def record(self, heard: Heard) -> None:
        """Put one call into the map it belongs to."""
        name = self._here()
        _cut_unwritten_slots(heard)
        referenced = _keep(heard, self._shelf)
        tracks = self._tracks.setdefault(name, [])
        for track in tracks:
            if track.forward < self._forward and track.extended_by(heard):
                track.append(heard, referenced, self._forward)
                self._append_ids(track)
                return
        full_name = f"{name}#{len(tracks)}" if tracks else name
        track = _Track(full_name, heard, referenced, self._forward)
        tracks.append(track)
        self._recording.append(AttentionMap(track))

    def _append_ids(self, track: _Track) -> None:
        """When a later forward went on where the first map ended, so do its ids."""
        ids, new = self._recording.ids, self._new_ids
        if ids is None or new is None or ids.shape[0] != new.shape[0]:
            return
        if ids.shape[1] < track.shape[2] and ids.shape[1] + new.shape[1] == track.shape[2]:
            self._recording.ids = np.concatenate([ids, new], axis=1)


def _listening_watches() -> list[watch]:
    here = threading.get_ident()
    return [one for one in _open.get() if one._stack and one._thread == here]


def _heard(heard: Heard, output: Tensor) -> None:
    for watching in _listening_watches():
        watching.record(heard)


def _unheard(what: str) -> None:
    for watching in _listening_watches():
        watching.note_unheard(what)


def _listening() -> Listener | None:
    return _running.listener if _listening_watches() else None


# -- what is kept -----------------------------------------------------------------------------


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


class _Shelf:
    """Large blocks of memory into which long queries and their lse are packed.

    Queries, and the lse of their rows, are short-lived in the model; kept one by one among its
    other short-lived tensors they would leave the heap full of holes that nothing fits into (at
    8,192 tokens of a model of 30 layers these held as much again as the record). Keys and values
    stay where they are: a model with a cache keeps them anyway.
    """

    _BLOCK = 64 << 20  # bytes; memory that is never written to is never taken
    _LONG = 8 << 20  # below this the holes are small and a copy costs more than it saves

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def takes(self, tensor: Tensor) -> bool:
        """Whether it is long, in main memory, and not kept for a backward pass anyway."""
        size = tensor.numel() * tensor.element_size()
        return tensor.is_cpu and size >= self._LONG and not tensor.requires_grad

    def put(self, tensor: Tensor) -> Tensor:
        """A contiguous copy on the shelf."""
        size = tensor.numel() * tensor.element_size()
        # Outside inference mode, so that a block may serve calls inside and outside it.
        with torch.inference_mode(False), torch.no_grad():
            if self._used + size > len(self._block):
                self._block = torch.empty(max(self._BLOCK, size), dtype=torch.uint8)
                self._used = 0
            place = self._block[self._used : self._used + size]
            self._used += -(-size // 64) * 64
            return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _keep(heard: Heard, shelf: _Shelf) -> list[tuple[str, Tensor]]:
    """Turn a call's tensors into what is kept of them; those kept by reference are returned.

    A tensor is copied if its memory may be overwritten (it has been written to in place, as a
    cache is, or nobody counts the writes, as in inference mode), or if it would keep alive more
    memory than itself and its companions (a slice of a fused qkv). Long queries and their lse go
    on the shelf.
    """
    referenced: list[tuple[str, Tensor]] = []
    sizes: dict[int, int] = {}
    for tensor in (heard.q, heard.k, heard.v):
        key = tensor.untyped_storage().data_ptr()
        sizes[key] = sizes.get(key, 0) + _own_bytes(tensor)
    for name in ("q", "k", "v"):
        tensor = getattr(heard, name)
        storage = tensor.untyped_storage()
        together = sizes[storage.data_ptr()]
        pinned = storage.nbytes() > together + 4096
        alone = together == _own_bytes(tensor)
        if name == "q" and shelf.takes(tensor) and (alone or pinned):
            heard.q = shelf.put(tensor)
            heard.lse = None if heard.lse is None else shelf.put(heard.lse)
        elif tensor.is_inference() or tensor._version > 0 or pinned:
            setattr(heard, name, tensor.detach().clone())
        else:
            setattr(heard, name, tensor.detach())
            referenced.append((name, tensor.detach()))
    if heard.mask is not None:
        referenced += [("mask", array) for array in mask_arrays(heard.mask)]
    if heard.bias is not None:
        heard.bias = heard.bias.detach()  # without the graph that made it
        referenced.append(("bias", heard.bias))
    if heard.sinks is not None:
        heard.sinks = heard.sinks.detach()
        referenced.append(("sinks", heard.sinks))
    return referenced


def _own_bytes(tensor: Tensor) -> int:
    count = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= length if stride else 1
    return count * tensor.element_size()


@dataclasses.dataclass(eq=False)
class _Part:
    """The queries of one call of a track."""

    q: Tensor
    lse: Tensor | None
    mask: Mask | None
    bias: Tensor | None
    n_keys: int


class _Track:
    """The growing record behind one map: one call, or the steps of a decoding loop."""

    def __init__(
        self, name: str, heard: Heard, referenced: list[tuple[str, Tensor]], forward: int
    ) -> None:
        self.name = name
        self.forward = forward
        self._heard = heard
        self._parts: list[_Part] = []
        self._guarded: list[tuple[str, Tensor, int]] = []
        self._merged: AttentionCall | None = None
        self._norms: Tensor | None = None
        self._crossing = False
        self._add(heard, referenced)

    def _add(self, heard: Heard, referenced: list[tuple[str, Tensor]]) -> None:
        # K and V contain those of the earlier steps, which are let go.
        self._k, self._v = heard.k, heard.v
        self._guarded = [entry for entry in self._guarded if entry[0] not in ("k", "v")]
        for what, tensor in referenced:
            self._guard(what, tensor)
        self._parts.append(_Part(heard.q, heard.lse, heard.mask, heard.bias, heard.k.shape[2]))
        self._merged = self._norms = None

    def _guard(self, what: str, tensor: Tensor) -> None:
        """Remember the version of what is kept by reference: a later write is noticed."""
        if isinstance(tensor, Tensor) and not tensor.is_inference():
            self._guarded.append((what, tensor, tensor._version))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_guarded": [(what, t, None) for what, t, _ in self._guarded]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Copies count their versions from the beginning.
        self.__dict__.update(state)
        self._guarded = []
        for what, tensor, _ in state["_guarded"]:
            self._guard(what, tensor)
        if self._heard.projection is not None:
            self._heard.projection_version = _version(self._heard.projection)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, _, _ = self._parts[0].q.shape
        return batch, heads, sum(part.q.shape[2] for part in self._parts), self._k.shape[2]

    @property
    def held_bytes(self) -> int:
        parts = [*(part.q for part in self._parts), self._k, self._v]
        parts += [part.lse for part in self._parts if part.lse is not None]
        return sum(_own_bytes(tensor) for tensor in parts)

    # -- stitching ----------------------------------------------------------------------------

    def extended_by(self, heard: Heard) -> bool:
        """Whether this later call goes on where the track ends."""
        last = self._parts[-1]
        before, now = self._k, heard.k
        if now.shape[:2] != before.shape[:2] or now.shape[3] != before.shape[3]:
            return False
        if (heard.q.shape[0], heard.q.shape[1]) != tuple(last.q.shape[:2]):
            return False
        n_before, n_now = before.shape[2], now.shape[2]
        new_queries = heard.q.shape[2]
        if n_now == n_before + new_queries:
            return not self._crossing and torch.equal(now[:, :, :n_before], before)
        if n_now == n_before and torch.equal(now, before):
            # Cross-attention: the same keys, other queries. The same queries are a new run.
            same = heard.q.shape == last.q.shape and torch.equal(heard.q, last.q)
            self._crossing = self._crossing or not same
            return not same
        return False

    def append(self, heard: Heard, referenced: list[tuple[str, Tensor]], forward: int) -> None:
        """Add the queries of a call that `extended_by` has accepted."""
        self.forward = forward
        self._add(heard, referenced)

    # -- what a map asks for ------------------------------------------------------------------

    def call(self) -> AttentionCall:
        for what, tensor, version in self._guarded:
            if tensor._version != version:
                raise ValueError(
                    f"{self.name}: the recorded {what} was overwritten in place after the "
                    f"attention call, so its weights are lost. Read the maps before the model "
                    f"runs again, or make the model write to a copy"
                )
        if self._merged is None:
            parts, heard = self._parts, self._heard
            queries = [part.q for part in parts]
            lses = [part.lse for part in parts if part.lse is not None]
            self._merged = AttentionCall(
                q=queries[0] if len(queries) == 1 else torch.cat(queries, dim=2),
                k=self._k,
                v=self._v,
                mask=_stitched_mask(parts, self.shape),
                bias=_stitched_bias(parts, self.shape),
                scale=heard.scale,
                softcap=heard.softcap,
                sinks=heard.sinks,
                lse=(lses[0] if len(lses) == 1 else torch.cat(lses, dim=2))
                if len(lses) == len(parts)
                else None,
            )
        return self._merged

    @property
    def has_value_norms(self) -> bool:
        projection = self._heard.projection
        return projection is not None and _version(projection) == self._heard.projection_version

    @property
    def value_note(self) -> str:
        if self._heard.projection is not None and not self.has_value_norms:
            return "the output projection was changed after the recording, by a training step?"
        return self._heard.projection_note

    def value_norms(self) -> Tensor | None:
        projection = self._heard.projection
        if projection is None or not self.has_value_norms:
            return None
        if self._norms is None:
            call = self.call()
            assert call.v is not None
            batch, heads, _, keys = self.shape
            width = call.v.shape[-1]
            norms = torch.empty(batch, heads, keys, dtype=torch.float32, device=call.v.device)
            for head in range(heads):
                weight = projection[:, head * width : (head + 1) * width].float()
                for start in range(0, keys, 1024):
                    v = call.v[:, head // call.group, start : start + 1024].float()
                    norms[:, head, start : start + 1024] = (v @ weight.T).norm(dim=-1)
            self._norms = norms
        return self._norms


def _cut_unwritten_slots(heard: Heard) -> None:
    """Cut off keys at the end that are all zero and that nobody may see: a cache's free slots."""
    n_queries, n_keys = heard.q.shape[2], heard.k.shape[2]
    if heard.mask is None or n_keys <= n_queries or bool(heard.k[:, :, -1].any()):
        return
    written = heard.k.ne(0).any(dim=-1).any(dim=0).any(dim=0).nonzero()
    stop = int(written[-1]) + 1 if len(written) else 0
    tile: Any = heard.mask.tile(range(n_queries), range(stop, n_keys), n_queries, n_keys, heard.q)
    if tile is True or (tile is not False and bool(tile.any())):
        return
    heard.mask = _first_keys(heard.mask, stop, n_queries, n_keys)
    heard.k, heard.v = heard.k[:, :, :stop], heard.v[:, :, :stop]
    if heard.bias is not None and heard.bias.shape[-1] > 1:
        heard.bias = heard.bias[..., :stop]


def _first_keys(mask: Mask, stop: int, n_queries: int, n_keys: int) -> Mask:
    """The rule over the first `stop` of its keys."""
    if isinstance(mask, Both):
        return join(*(_first_keys(rule, stop, n_queries, n_keys) for rule in mask.rules))
    if isinstance(mask, Padding):
        return Padding(mask.visible[:, :stop])
    if isinstance(mask, Dense):
        return mask if mask.visible.shape[-1] == 1 else Dense(mask.visible[..., :stop])
    offset = n_keys - n_queries
    if isinstance(mask, Causal):
        return Causal(offset if mask.offset is None else mask.offset)
    if isinstance(mask, Window):
        return Window(mask.size, mask.ahead, offset if mask.offset is None else mask.offset)
    return mask


def _stitched_mask(parts: list[_Part], shape: tuple[int, int, int, int]) -> Mask | None:
    """One rule for all steps: the simplest that says the same."""
    if len(parts) == 1:
        return parts[0].mask
    if _plainly_causal(parts, shape):
        return Causal()
    if all(part.mask is None for part in parts) and len({part.n_keys for part in parts}) == 1:
        return None
    return Steps(tuple((part.mask, part.q.shape[2], part.n_keys) for part in parts))


def _plainly_causal(parts: list[_Part], shape: tuple[int, int, int, int]) -> bool:
    position = shape[3] - shape[2]
    for part in parts:
        position += part.q.shape[2]
        alone = part.q.shape[2] == 1 and part.mask is None
        if not alone and not (isinstance(part.mask, Causal) and part.mask.offset is None):
            return False
        if position != part.n_keys:
            return False
    return True


def _stitched_bias(parts: list[_Part], shape: tuple[int, int, int, int]) -> Tensor | None:
    """The biases of all steps, one below the other; keys that came later get 0 (and are hidden)."""
    if all(part.bias is None for part in parts):
        return None
    if len(parts) == 1:
        return parts[0].bias
    found = [part.bias for part in parts if part.bias is not None]
    leading = torch.broadcast_shapes(*(bias.shape[:-2] for bias in found))
    whole = found[0].new_zeros(*leading, shape[2], shape[3])
    start = 0
    for part in parts:
        stop = start + part.q.shape[2]
        if part.bias is not None:
            whole[..., start:stop, : part.n_keys] = part.bias
        start = stop
    return whole
