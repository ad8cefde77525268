"""`watch`: record the attention of any PyTorch model while it runs as it always does.

The model runs its own kernels; `hearing` says which calls are the model's and in which module
they ran, `keeping` what of a call is kept, and `tracks` to which map it belongs: the steps of a
decoding loop are joined into one.
"""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jumok.lens.attention_map import AttentionMap, readable_bytes
from jumok.lens.call import AttentionCall
from jumok.lens.hearing import Hearing
from jumok.lens.keeping import Keeper, Policy
from jumok.lens.recording import Recording
from jumok.lens.slots import without_free_slots
from jumok.lens.taps import Heard
from jumok.lens.tracks import Track


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
    1e-6 (float32), and padded positions hold numbers where the fast path writes zeros.

    Kept are q, k, v and the log-sum-exp of every row, by reference where nothing can overwrite
    them: memory that grows with the number of tokens. The weights are never formed; only where
    scores are made in a way that nobody can read are they kept themselves, and a warning at the
    end of the block says where, why and how many bytes.

    Args:
        model: any `torch.nn.Module`.

    Raises:
        TypeError: `model` is no `torch.nn.Module`.
        ValueError: the block ended and no attention was heard; the message says which modules
            ran and what to do.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model, "watch")
        self._recording = Recording(type(model).__name__)
        self._keeper = Keeper(Policy())
        self._tracks: dict[str, list[Track]] = {}
        self._unsettled: list[Track] = []
        self._unheard: dict[str, str] = {}
        self._stored: dict[str, tuple[int, str]] = {}
        self._new_ids: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def __enter__(self) -> Recording:
        self.open()
        return self._recording

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is not None:
            return
        if not len(self._recording):
            raise ValueError(self._nothing_heard())
        missing = {name: what for name, what in self._unheard.items() if name not in self._tracks}
        if missing:
            names = ", ".join(list(missing)[:6]) + (" …" if len(missing) > 6 else "")
            warnings.warn(
                f"{len(missing)} attention modules ran unheard and are not in the recording: "
                f"{names} ({' and '.join(sorted(set(missing.values())))})",
                stacklevel=2,
            )
        if self._stored:
            warnings.warn(self._what_is_stored(), stacklevel=2)

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
        if not self.ran:
            return (
                f"no attention was heard: {name} did not run inside the `with` block. Call the "
                f"very module that was given to jumok.watch, in the same thread"
            )
        kinds = ", ".join(list(self.ran)[:12]) + (" …" if len(self.ran) > 12 else "")
        what = " and ".join(sorted(set(self._unheard.values())))
        advice = (
            f"What could not be heard: {what}"
            if what
            else "Attention is a softmax of products of queries and keys, multiplied with values; "
            "a softmax over features, a gate or a router is none. Scripted and traced modules "
            "(torch.jit) run no Python that could be listened to: watch the module they were "
            "made from"
        )
        return f"no attention was heard in {name}. These modules ran: {kinds}. {advice}"

    # -- what is heard ------------------------------------------------------------------------

    def forward_begins(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Keep the token ids of this forward: the first integer (batch, tokens) it is given."""
        if module is not self.model:
            return
        named = [kwargs[name] for name in ("input_ids", "ids") if name in kwargs]
        for value in (*named, *args):
            if isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point():
                if value.dtype == torch.bool:
                    continue
                self._new_ids = value.detach().cpu().numpy().astype(np.int64)
                if self._recording.ids is None:
                    self._recording.ids = self._new_ids
                return

    def hear_nothing(self, name: str, what: str) -> None:
        """Remember that a module attends in a way that no tap hears."""
        self._unheard[name] = what

    def hear(self, name: str, heard: Heard, output: Tensor) -> None:
        """Put one call into the map it belongs to."""
        if heard.stored_because is not None and heard.bias is not None:
            before, _ = self._stored.get(name, (0, ""))
            self._stored[name] = (before + heard.bias.nbytes, heard.stored_because)
        call, refer = self._keeper.read(heard)
        call = without_free_slots(call)
        track, shared = self._goes_on(name, call)
        if track is None:
            tracks = self._tracks.setdefault(name, [])
            full_name = f"{name}#{len(tracks)}" if tracks else name
            track = Track(full_name, self._keeper, self._keeper.policy.heads)
            tracks.append(track)
            track.add(heard, call, refer, 0, self.forwards)
            self._recording.append(AttentionMap(track))
        else:
            track.add(heard, call, refer, shared, self.forwards)
            self._append_ids(track)
        self._unsettled.append(track)

    def _goes_on(self, name: str, call: AttentionCall) -> tuple[Track | None, int]:
        """The earlier record of a module that a call goes on with, and how many keys they share."""
        for track in self._tracks.get(name, []):
            if track.forward < self.forwards:
                shared = track.continued_by(call)
                if shared is not None:
                    return track, shared
        return None, 0

    def module_ends(self, *, forward_is_over: bool) -> None:
        """Take over what came after the last calls: their output projections."""
        waiting = self._unsettled
        self._unsettled = [
            track for track in waiting if not track.settle(forward_is_over=forward_is_over)
        ]

    def _append_ids(self, track: Track) -> None:
        """When a later forward went on where the first map ended, so do its ids."""
        ids, new = self._recording.ids, self._new_ids
        if ids is None or new is None or ids.shape[0] != new.shape[0]:
            return
        if ids.shape[1] < track.shape[2] and ids.shape[1] + new.shape[1] == track.shape[2]:
            self._recording.ids = np.concatenate([ids, new], axis=1)
