"""`watch`: record the attention of any PyTorch model while it runs as it always does.

The model runs its own kernels; `hearing` says which calls are the model's and in which module
they ran, `keeping` what of a call is kept, and `tracks` to which map it belongs: the steps of a
decoding loop are joined into one.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from jumok.lens.attention_map import AttentionMap, readable_bytes
from jumok.lens.call import AttentionCall
from jumok.lens.chosen_layers import ChosenLayers
from jumok.lens.given_ids import GivenIds
from jumok.lens.heads import MEASURES, NEED_IDS, head_sums
from jumok.lens.hearing import Hearing
from jumok.lens.keeping import Keeper, read_policy
from jumok.lens.recording import Recording
from jumok.lens.slots import without_free_slots
from jumok.lens.space import Room, release_holes
from jumok.lens.streaming import Stream
from jumok.lens.tallies import Tally
from jumok.lens.taps import Heard
from jumok.lens.tracks import Track
from jumok.lens.without_attention import without_attention
from jumok.lens.writing import described


class watch(Hearing):
    """Record the attention of a PyTorch model, without changing what it computes.

    ```python
    with jumok.watch(model) as recording:
        model(ids)
    recording["layers.3.attention"].entropy()
    ```

    Heard are calls of ``F.scaled_dot_product_attention``, ``nn.MultiheadAttention``,
    ``nn.Transformer*``, FlexAttention, transformers' attention functions, jumok's own, and
    attention written by hand (a product of q and k, a softmax, a product with v), in the modules
    of `model`, in this thread or task, until the block ends.

    Outputs are bit-identical with and without, but for PyTorch's fused inference fast paths:
    ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` in eval mode, batch first and
    without gradients, run their ordinary kernels while watched. There real tokens agree within
    1e-6 (float32), and padded positions hold numbers where the fast path writes zeros. Modules
    under ``torch.compile`` run uncompiled while watched, and round as they do uncompiled.

    Kept are q, k, v and the log-sum-exp of every row, by reference where nothing can overwrite
    them: memory that grows with the number of tokens. The weights are never formed; only where
    scores are made in a way that nobody can read are they kept themselves, and a warning at the
    end of the block says where, why and how many bytes.

    The steps of a decoding loop with a cache are joined into one map, as long as scale, softcap
    and sinks stay the same; those of cross-attention where the self-attention of the same stack
    has gone on before it. Without a cache (``use_cache=False``) each step runs the whole text
    again and is a map of its own.

    Args:
        model: any `torch.nn.Module`.
        keep: ``"qkv"``, or ``"qk"`` to leave out the values: weights and their measures are the
            same, and the norms that norm-weighted shares need are taken while the model runs.
        dtype: a smaller type to store q, k and v in, such as ``torch.bfloat16``; what is as small
            already stays as it is. Weights are then those of the rounded q and k, each row
            normalised to sum to 1 again: near 1 %, not exact. The log-sum-exp stays float32.
        to: ``"cpu"`` moves the record off the device while that computes on; ``"disk"`` writes it
            to a file as the layers finish, so that it may be larger than the memory; `None`
            leaves it where it is.
        file: name of that file; it is there when the block has ended without an error, and
            `jumok.open` opens it. Without it a temporary file that goes with the recording, in
            the folder of temporary files (``TMPDIR``).
        layers: which attention modules: numbers in the order in which they run, a range, module
            paths (with ``*`` and ``?``; ``"model.layers.3"`` means all within), or several of
            these. The recording holds these only: ``recording[0]`` is the first of them.
        heads: which query heads, by number. ``m.shape`` counts the kept ones, and ``m.heads``
            says their numbers in the model.
        measure: names from `jumok.lens.heads.MEASURES`: they are computed as the model runs, and
            added up over all its forwards; no tensor is kept. `jumok.report` shows them.
        special: ids of the special tokens, which the measure ``"special"`` needs:
            ``tokenizer.special_ids`` of ours, ``tokenizer.all_special_ids`` of transformers'.
        gradients: keep also the gradient of each attention's output, (B, H, Tq, Dv), when
            ``backward`` runs, inside or after the block: what `jumok.relevance` needs. The
            forward must run with gradients; its results and gradients are the same as without.

    Raises:
        TypeError: `model` is no `torch.nn.Module`, `dtype` no `torch.dtype`, `layers` or `heads`
            no numbers, `special` no ids.
        ValueError: an unknown `keep`, `to` or measure, the measure ``"special"`` without the ids,
            or options that exclude each other; while the model runs: a record that would not fit
            into memory, a head that is not there, a batch that is reordered between steps (beam
            search), a measure that compares tokens where the model is given no ids; when the
            block has ended: no attention was heard, and the message says which modules ran and
            what to do.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        keep: Literal["qkv", "qk"] = "qkv",
        *,
        dtype: torch.dtype | None = None,
        to: Literal["cpu", "disk"] | None = None,
        file: str | os.PathLike[str] | None = None,
        layers: int | str | Iterable[int | str] | None = None,
        heads: int | Iterable[int] | None = None,
        measure: Sequence[str] | None = None,
        special: Iterable[int] | None = None,
        gradients: bool = False,
    ) -> None:
        super().__init__(model, "watch")
        self._recording = Recording(type(model).__name__)
        policy = read_policy(keep, dtype, to, heads)
        self._measure = _read_measure(measure, dtype, to, file)
        self._special = _read_special(special, self._measure)
        if file is not None and to != "disk":
            raise ValueError(f"watch(…, file={os.fspath(file)!r}) goes with to='disk'")
        self._file = None if file is None else Path(file)
        if gradients and (keep != "qkv" or to is not None or measure is not None):
            raise ValueError(
                "watch(…, gradients=True) keeps the values where the model has them: leave out "
                "keep, to and measure"
            )
        self._gradients = gradients
        self._layers = ChosenLayers(layers)
        self._keeper = Keeper(policy)
        self._room = Room(policy)
        self._stream: Stream | None = None
        self._modules: dict[str, int] = {}
        self._tracks: dict[str, list[Track]] = {}
        self._tallies: dict[tuple[str, int], Tally] = {}
        self._calls: dict[str, int] = {}
        self._unsettled: list[Track] = []
        self._grown: set[int] = set()
        self._sizes: dict[str, tuple[int, int]] = {}
        self._unheard: dict[str, str] = {}
        self._stored: dict[str, tuple[int, str]] = {}
        self._ids = GivenIds(model)

    def __enter__(self) -> Recording:
        if self._keeper.policy.place == "disk":
            self._stream = Stream(self._file)
            if self._stream.is_temporary:
                weakref.finalize(self._recording, self._stream.delete)
        self.open()
        return self._recording

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
            self._recording.without_attention = without_attention(
                self.model, self.ran, [*self._modules, *self._unheard]
            )
            if error is None and not len(self._recording):
                raise ValueError(self._nothing_heard())
            if error is None and self._stream is not None:
                self._finish(self._stream)
        finally:
            if self._stream is not None:
                self._stream.abandon()
        if error is None:
            self._say_what_is_missing()

    def _finish(self, stream: Stream) -> None:
        """Write what is still in memory, and the header."""
        tracks = [track for name in self._tracks for track in self._tracks[name]]
        entries = {track.name: track.filed(stream) for track in tracks}
        maps = [entries[found.name] for found in self._recording]
        recording = self._recording
        texts = {
            name: stream.put_shared(name, ids)
            for name, ids in (("ids", recording.ids), ("decoder_ids", recording.decoder_ids))
            if ids is not None
        }
        stream.finish(described(recording.model_name, maps, texts, recording.without_attention))

    def _say_what_is_missing(self) -> None:
        missing = {name: what for name, what in self._unheard.items() if name not in self._modules}
        if missing:
            names = ", ".join(list(missing)[:6]) + (" …" if len(missing) > 6 else "")
            warnings.warn(
                f"{len(missing)} attention modules ran unheard and are not in the recording: "
                f"{names} ({' and '.join(sorted(set(missing.values())))})",
                stacklevel=3,
            )
        if self._stored:
            warnings.warn(self._what_is_stored(), stacklevel=3)

    def _what_is_stored(self) -> str:
        names = ", ".join(list(self._stored)[:6]) + (" …" if len(self._stored) > 6 else "")
        size = readable_bytes(sum(count for count, _ in self._stored.values()))
        why = "; ".join(dict.fromkeys(words for _, words in self._stored.values()))
        return (
            f"of {len(self._stored)} attention modules the T × T weights, or a bias as large, had "
            f"to be kept, {size} in all: {names} ({why})"
        )

    def _nothing_heard(self) -> str:
        name = type(self.model).__name__
        if not self.ran and not self._unheard:
            return (
                f"no attention was heard: {name} did not run inside the `with` block. Call the "
                f"very module that was given to jumok.watch, in the same thread"
            )
        if self._modules:
            heard = ", ".join(list(self._modules)[:12]) + (" …" if len(self._modules) > 12 else "")
            return (
                f"nothing was recorded: layers={self._layers.written!r} chooses none of the "
                f"{len(self._modules)} attention modules that ran, numbered from 0: {heard}"
            )
        if self._unheard:
            what = "; ".join(f"{where}: {words}" for where, words in self._unheard.items())
            return f"no attention was heard in {name}. What ran unheard is {what}"
        classes = list(dict.fromkeys(self.ran.values()))
        kinds = ", ".join(classes[:12]) + (" …" if len(classes) > 12 else "")
        mixers = ", ".join(dict.fromkeys(self._recording.without_attention.values()))
        if mixers:
            return (
                f"no attention was heard in {name}: {mixers} mix tokens without attention weights. "
                f"There is nothing to record"
            )
        return (
            f"no attention was heard in {name}. These modules ran: {kinds}. Attention is a softmax "
            f"of products of queries and keys that is multiplied with values; a softmax over "
            f"features, a gate or a router is none"
        )

    # -- what is heard ------------------------------------------------------------------------

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Keep the token ids of this forward."""
        self._calls.clear()
        self._grown.clear()
        if module is self.model:
            self._ids.forward(args, kwargs)
        elif "encoder" in self.names.get(module, ""):
            self._ids.encoder(args, kwargs)
        self._keep_ids()

    def hear_nothing(self, name: str, what: str) -> None:
        """Remember that a module attends in a way that no tap hears."""
        self._unheard[name] = what

    def hear(self, name: str, heard: Heard, output: Tensor) -> Tensor | None:
        """Put one call into the map it belongs to."""
        self.follows_output = False
        number = self._modules.setdefault(name, len(self._modules))
        if not self._layers.include(number, name):
            self._note_growth(name, heard)
            return None
        call, refer = self._keeper.read(heard)
        if self._measure is not None:
            self._add_up(name, call)
            return None
        if heard.stored_because is not None and heard.bias is not None:
            before, _ = self._stored.get(name, (0, ""))
            self._stored[name] = (before + heard.bias.nbytes, heard.stored_because)
        call = without_free_slots(call)
        track, shared = self._goes_on(name, call)
        self._room.check(
            call, shared, self._stack[-1], self.names, self._layers, self.forwards, self._stream
        )
        if track is None:
            tracks = self._tracks.setdefault(name, [])
            full_name = f"{name}#{len(tracks)}" if tracks else name
            track = Track(full_name, self._keeper, self._keeper.policy.heads)
            track.add(heard, call, refer, 0, self.forwards)
            tracks.append(track)
            self._recording.append(AttentionMap(track))
        else:
            track.add(heard, call, refer, shared, self.forwards)
            self._append_ids(track)
        self.follows_output = track.awaits_projection
        self._unsettled.append(track)
        return self._with_gradient(track.name, output) if self._gradients else None

    def _with_gradient(self, name: str, output: Tensor) -> Tensor | None:
        """The output once more, so that its gradient can be taken."""
        if not output.requires_grad:
            return None
        heads, gradients = self._keeper.policy.heads, self._recording.output_gradients

        def take(gradient: Tensor) -> None:
            kept = gradient.detach()
            gradients[name] = kept if heads is None else kept[:, list(heads)]

        same = output.view_as(output)
        same.register_hook(take)
        return same

    def _add_up(self, name: str, call: AttentionCall) -> None:
        """Measure a call, and add it to what its module did in earlier forwards."""
        assert self._measure is not None
        place = self._calls.get(name, 0)  # a module may run several times in one forward
        self._calls[name] = place + 1
        tally = self._tallies.get((name, place))
        if tally is None:
            full_name = f"{name}#{place}" if place else name
            heads = self._keeper.policy.heads or tuple(range(call.shape[1]))
            tally = self._tallies[name, place] = Tally(full_name, heads)
            self._recording.append(AttentionMap(tally))
        ids = self._ids.new
        needing = [measure for measure in self._measure if measure in NEED_IDS]
        if needing and ids is None:
            raise ValueError(
                f"watch(…, measure=…): {', '.join(needing)} compares tokens, but the model was "
                f"given no token ids, integers (batch, tokens). Leave it out, or give the model "
                f"its ids"
            )
        if ids is not None and ids.shape != (call.shape[0], call.shape[3]):
            ids = None
        sums = head_sums(call, self._measure, ids=ids, special=self._special)
        tally.add(sums, call.shape)

    def _goes_on(self, name: str, call: AttentionCall) -> tuple[Track | None, int]:
        """The earlier record of a module that a call goes on with, and how many keys they share.

        In cross-attention the same keys and values say little: a learned memory is the same for
        every text. A call goes on only where this forward does: where self-attention has taken
        up, in it, what it left in the very forward that the earlier call was of.
        """
        tracks = self._tracks.get(name, [])
        for track in sorted(tracks, key=lambda track: -track.forward):
            if track.forward == self.forwards:
                continue
            shared = track.continued_by(call)
            if shared is None:
                continue
            if shared < call.k.shape[2]:
                self._grown.add(track.forward)
            elif track.forward not in self._grown:
                continue
            return track, shared
        return None, 0

    def _note_growth(self, name: str, heard: Heard) -> None:
        """Whether a module that is not recorded goes on with an earlier forward, by its sizes."""
        call = AttentionCall(heard.q, heard.k, heard.v, heard.mask, None, heard.scale)
        _, _, n_queries, n_keys = without_free_slots(call).shape
        forward, before = self._sizes.get(name, (0, 0))
        if 0 < before == n_keys - n_queries:
            self._grown.add(forward)
        self._sizes[name] = self.forwards, n_keys

    def module_ends(self, *, forward_is_over: bool) -> None:
        """Take over what came after the last calls: their output projections."""
        if not self._unsettled:
            return
        waiting, self._unsettled = self._unsettled, []
        for track in waiting:
            if not track.settle(forward_is_over=forward_is_over):
                self._unsettled.append(track)
                continue
            if self._stream is not None:
                track.file(self._stream)
            if track.is_long:
                release_holes()

    def _append_ids(self, track: Track) -> None:
        """When a later forward went on where the first map ended, so do its ids."""
        self._ids.go_on(track.shape[2])
        self._keep_ids()

    def _keep_ids(self) -> None:
        self._recording.ids = self._ids.ids
        self._recording.decoder_ids = self._ids.decoder_ids


def _read_measure(
    measure: Sequence[str] | None, dtype: Any, to: Any, file: Any
) -> tuple[str, ...] | None:
    if measure is None:
        return None
    names = (measure,) if isinstance(measure, str) else tuple(measure)
    unknown = [name for name in names if name not in MEASURES]
    if unknown or not names:
        raise ValueError(f"watch(…, measure={measure!r}): there are the measures {list(MEASURES)}")
    if dtype is not None or to is not None or file is not None:
        raise ValueError("watch(…, measure=…) keeps no tensors: leave out dtype, to and file")
    return names


def _read_special(special: Any, measure: tuple[str, ...] | None) -> tuple[int, ...] | None:
    is_measured = measure is not None and "special" in measure
    if special is None:
        if is_measured:
            raise ValueError(
                "watch(…, measure=['special']): which tokens are special is known to the "
                "tokenizer; say so with special=tokenizer.special_ids (of a transformers "
                "tokenizer: special=tokenizer.all_special_ids)"
            )
        return None
    if not is_measured:
        raise ValueError("watch(…, special=…) goes with measure=['special', …]")
    is_iterable = isinstance(special, Iterable) and not isinstance(special, str | bytes)
    ids = tuple(special) if is_iterable else (None,)
    if not all(hasattr(one, "__index__") for one in ids):
        raise TypeError(
            f"watch(…, special=…) takes the ids of the special tokens, such as "
            f"tokenizer.special_ids; got {special!r}"
        )
    return tuple(int(one) for one in ids)
