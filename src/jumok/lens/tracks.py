"""The record behind one map: one attention call, or all steps of a decoding loop.

A call goes on where an earlier one ended if its keys and values begin with those of that one (all
of them, or the last ones, where a windowed cache has dropped the rest) and it brings as many new
keys as queries. In cross-attention keys and values are the same and the queries are others; that
is so for every text where they don't depend on the text, so `watch` asks for more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jumok.lens.call import AttentionCall
from jumok.lens.keeping import Keeper, own_bytes
from jumok.lens.norms import value_norms
from jumok.lens.rows import Rows
from jumok.lens.rules import mask_arrays, with_arrays, written_mask
from jumok.lens.stitching import Step, joined_bias, joined_rule
from jumok.lens.streaming import Stream
from jumok.lens.taps import Heard
from jumok.lens.taps.output_map import OutputMap
from jumok.lens.tiles import log_normalizers
from jumok.masks import Mask, Steps

_MANY_BYTES = 64 << 20  # of later steps, before they go to the file
_MANY_STEPS = 256  # from here on their masks are joined, so that no more than these are held


class Track:
    """The growing record of one attention.

    Args:
        name: module path.
        keeper: decides what is kept.
        heads: numbers of the query heads in the model; `None` for all.
    """

    def __init__(self, name: str, keeper: Keeper, heads: tuple[int, ...] | None) -> None:
        self.name = name
        self.forward = 0
        self._keeper = keeper
        self._heads = heads
        self._q, self._k, self._v, self._lse = Rows(), Rows(), Rows(), Rows()
        self._norms = Rows()
        self._probe, self._value_probe = Rows(), Rows()
        self._steps: list[Step] = []
        self._join_at = _MANY_STEPS
        self._guarded: list[tuple[str, Tensor, int]] = []
        self._has_lse = self._has_norms = True
        self._crossing = False
        self._projection: OutputMap | None = None
        self._projection_version: int | None = None
        self._note = ""
        self._sinks: Tensor | None = None
        self._unsettled: list[tuple[Heard, Tensor | None, int | None]] = []
        self._joined: AttentionCall | None = None

    # -- adding calls -------------------------------------------------------------------------

    def continued_by(self, call: AttentionCall) -> int | None:
        """How many of its keys a later call shares with the track, if it goes on where that ends.

        Raises:
            ValueError: it does, but the batch was put into another order.
        """
        total, keys, queries = len(self._k), int(call.k.shape[2]), int(call.q.shape[2])
        if _widths(call) != self._widths or call.k.shape[3] == 0 or not self._scores_as(call):
            return None
        if keys == total and self._has(0, call, keys):
            # Cross-attention: the same keys, other queries. The same queries are a new run.
            q = call.q.to(self._q.like.device, self._q.like.dtype)
            same = queries == self._last_queries and self._q.equal(len(self._q) - queries, q)
            return None if same else keys
        shared = keys - queries
        if self._crossing or not 0 < shared <= total:
            return None
        if self._has(total - shared, call, shared):
            return shared
        self._refuse_another_order(total - shared, call.k[:, :, :shared])
        return None

    def _scores_as(self, call: AttentionCall) -> bool:
        """Whether a call makes scores of q·k as the track does: one map has one scale."""
        if (call.scale, call.softcap) != (self._scale, self._softcap):
            return False
        if call.sinks is None or self._sinks is None:
            return call.sinks is self._sinks
        return torch.equal(self._sinks, call.sinks.to(self._sinks.device))

    def _has(self, start: int, call: AttentionCall, count: int) -> bool:
        """Whether the first `count` keys and values of a call are those from `start` on."""
        assert call.v is not None
        keys, values = call.k[:, :, :count], call.v[:, :, :count]
        if not self._are(self._k, self._probe, start, keys):
            return False
        return self._are(self._v, self._value_probe, start, values)

    def _are(self, mine: Rows, probe: Rows, start: int, rows: Tensor) -> bool:
        if len(probe):
            # They are not kept here: one component of each is compared where it was computed.
            return probe.equal(start, rows[..., :1].to(probe.like.dtype))
        return mine.equal(start, rows.to(mine.like.dtype))

    def _refuse_another_order(self, start: int, keys: Tensor) -> None:
        batch = keys.shape[0]
        if batch == 1 or keys.device != self._k.like.device:
            return
        if self._are(self._k, self._probe, start, keys):
            return  # the values are others: this is another text
        mine = torch.cat(self._k.between(start, start + keys.shape[2]), dim=2)
        order = []
        for new in keys.to(mine.dtype):
            found = [b for b, old in enumerate(mine) if torch.equal(old[:, -1], new[:, -1])]
            found = [b for b in found if torch.equal(mine[b], new)]
            if not found:
                return
            order.append(found[0])
        raise ValueError(
            f"{self.name}: between two steps the batch was put into the order {order}, as beam "
            f"search does. A map has one row of tokens for each batch element, so such steps "
            f"cannot be joined. Watch greedy search or sampling (num_beams=1), or run the finished "
            f"text through the model once: with jumok.watch(model): model(ids)"
        )

    def add(
        self, heard: Heard, call: AttentionCall, refer: frozenset[str], shared: int, forward: int
    ) -> None:
        """Add the queries of a call, and those of its keys that are new.

        Args:
            heard: the call as it was heard; its output projection is still to come.
            call: what `Keeper.read` made of it, with
            refer: what may be kept by reference.
            shared: from `continued_by`; 0 for the first call.
            forward: number of the model's forward.
        """
        keeper, first = self._keeper, not self._steps
        self.forward = forward
        self._joined = None
        if first:
            self._widths = _widths(call)
            self._scale, self._softcap = call.scale, call.softcap
        assert call.v is not None
        self._crossing = self._crossing or shared == call.k.shape[2]
        total = len(self._k)
        self._extend("q", self._q, call.q, 0, "q" in refer)
        self._extend("k", self._k, call.k, shared, "k" in refer)
        if call.k.device != self._k.like.device:
            self._probe.append(call.k[:, :, shared:, :1].clone())
        if self._norms_now or call.v.device != self._k.like.device:
            self._value_probe.append(call.v[:, :, shared:, :1].clone())
        values = None
        if keeper.policy.values:
            self._extend("v", self._v, call.v, shared, "v" in refer)
        if self._norms_now:
            values = call.v[:, :, shared:]
        if self.awaits_projection:
            version = None if values is None else version_of(values)
            self._unsettled.append((heard, values, version))
        if first and call.sinks is not None:
            self._guard("sinks", call.sinks, True)
            self._sinks = call.sinks.to(self._q.like.device)
        end = total + call.k.shape[2] - shared
        rule, bias = self._at_home(call)
        keys = range(end - call.k.shape[2], end)
        self._steps.append(Step(rule, bias, call.q.shape[2], keys))
        self._last_queries = call.q.shape[2]
        self._last_was_long = keeper.packs(call.q)
        self._add_lse(call, packed=first and keeper.packs(call.q) and "q" not in refer)
        if len(self._steps) > self._join_at:
            self._join_steps()

    def _add_lse(self, call: AttentionCall, *, packed: bool) -> None:
        """Add the normalizers of the last step: the kernel's own, if they are of what is kept."""
        keeper, first = self._keeper, len(self._steps) == 1
        rounds = keeper.policy.rounds(call.q) or keeper.policy.rounds(call.k)
        lse = None if rounds else call.lse
        if lse is None and keeper.policy.place == "disk":
            step = self._steps[-1]
            lse = log_normalizers(
                AttentionCall(
                    q=torch.cat(self._q.between(len(self._q) - step.n_queries, len(self._q)), 2),
                    k=torch.cat(self._k.between(step.keys.start, step.keys.stop), 2),
                    v=None,
                    mask=step.rule,
                    bias=step.bias,
                    scale=self._scale,
                    softcap=self._softcap,
                    sinks=self._sinks,
                )
            )
        self._has_lse = self._has_lse and lse is not None
        if lse is not None and self._has_lse:
            self._lse.append(keeper.hold(lse, refer=not packed, pack=packed) if first else lse)

    def _extend(self, what: str, rows: Rows, tensor: Tensor, shared: int, refer: bool) -> None:
        """Add what is new of a tensor, all rows behind the first `shared`."""
        keeper, new = self._keeper, tensor[:, :, shared:]
        if not len(rows):
            smaller = keeper.rounded(tensor)
            refer = refer or smaller is not tensor
            rows.append(keeper.hold(smaller, refer=refer))
            self._guard(what, tensor, refer and smaller is tensor)
        elif not new.shape[2]:
            return
        elif refer and shared == len(rows) and rows.may_become(tensor):
            # It begins with all earlier rows, which are let go.
            rows.replace(tensor)
            self._unguard(what)
            self._guard(what, tensor, True)
        else:
            rows.append(keeper.rounded(new))

    def _at_home(self, call: AttentionCall) -> tuple[Mask | None, Tensor | None]:
        """Mask and bias where the record is."""
        rule, bias = call.mask, call.bias
        home = self._q.like.device
        for array in mask_arrays(rule):
            self._guard("mask", array, isinstance(array, Tensor))
        if bias is not None:
            self._guard("bias", bias, True)
            bias = bias.to(home)
        if rule is not None and call.q.device != home:
            rule = with_arrays(rule, lambda array: array.to(home))
        return rule, bias

    def _guard(self, what: str, tensor: Tensor, by_reference: bool) -> None:
        """Remember the version of what is kept by reference: a later write is noticed."""
        if by_reference and not tensor.is_inference():
            self._guarded.append((what, tensor, tensor._version))

    def _unguard(self, what: str) -> None:
        self._guarded = [entry for entry in self._guarded if entry[0] != what]

    def _join_steps(self) -> None:
        """One step in place of many, if one rule says the same as theirs."""
        rule = joined_rule(self._steps, self.shape, self._q.like)
        if isinstance(rule, Steps) or any(step.bias is not None for step in self._steps):
            self._join_at *= 2
            return
        self._steps = [Step(rule, None, len(self._q), range(len(self._k)))]
        self._unguard("mask")

    # -- what comes after the call ------------------------------------------------------------

    @property
    def awaits_projection(self) -> bool:
        """Whether it still matters what takes a call's output: the first found map is kept."""
        return self._projection is None or self._norms_now

    def settle(self, *, forward_is_over: bool) -> bool:
        """Take over what the functions after the attention have shown: its output projection.

        Returns:
            Whether nothing is awaited any more.
        """
        while self._unsettled:
            heard, values, version = self._unsettled[0]
            if heard.projection is None and not forward_is_over:
                return False
            self._unsettled.pop(0)
            if self._projection is None:
                self._projection = heard.projection
                self._projection_version = heard.projection_version
            self._note = heard.projection_note
            if values is not None:
                self._settle_values(heard, values, version)
        return True

    def _settle_values(self, heard: Heard, values: Tensor, version: int | None) -> None:
        """Of values that are not kept, or not in memory, the norms are."""
        lost = version is not None and values._version != version
        if heard.projection is None or lost or not self._has_norms:
            self._has_norms = False
            if lost:
                self._note = "the values were overwritten in place before their norms were taken"
            return
        norms = value_norms(values, heard.projection, self.heads, self._group)
        self._norms.append(norms.to(self._q.like.device))

    @property
    def is_long(self) -> bool:
        """Whether its last call was long enough to leave holes in the heap."""
        return self._last_was_long

    # -- in a file ----------------------------------------------------------------------------

    def _rows(self) -> dict[str, Rows]:
        rows = {"q": self._q, "k": self._k, "v": self._v, "lse": self._lse}
        rows["value_norms"] = self._norms if self.has_value_norms else Rows()
        return {kind: part for kind, part in rows.items() if len(part)}

    def file(self, stream: Stream) -> None:
        """Move what is in memory to a file: the first call at once, later ones when large."""
        rows = self._rows()
        waiting = sum(own_bytes(part) for one in rows.values() for part in one.unfiled())
        if self._q.names and waiting < _MANY_BYTES:
            return
        self._check_unwritten()
        self._keeper.wait()
        for kind, part in rows.items():
            part.file(stream, f"{self.name}.{kind}")
            self._unguard(kind)

    def filed(self, stream: Stream) -> dict[str, Any]:
        """Move all of it to the file, and describe it as `writing.Writer.entry` does."""
        call = self.call()
        for kind, part in self._rows().items():
            part.file(stream, f"{self.name}.{kind}")
            self._unguard(kind)
        entry = {
            "name": self.name,
            "shape": list(self.shape),
            "heads": list(self.heads),
            "scale": self._scale,
            "softcap": self._softcap,
            "mask": written_mask(call.mask, f"{self.name}.mask", stream.put_shared),
            "value_note": self.value_note,
        }
        for kind, part in self._rows().items():
            entry[kind] = part.names if len(part.names) > 1 else part.names[0]
        for kind, array in (("bias", call.bias), ("sinks", call.sinks)):
            if array is not None:
                entry[kind] = stream.put_shared(f"{self.name}.{kind}", array)
        self._joined = None  # it held the rows that were in memory
        return entry

    # -- what a map asks for ------------------------------------------------------------------

    @property
    def _norms_now(self) -> bool:
        """Whether the norms of the values are taken while the model runs."""
        return not self._keeper.policy.values or self._keeper.policy.place == "disk"

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(range(self._widths[1])) if self._heads is None else self._heads

    @property
    def _group(self) -> int:
        return self._widths[1] // max(1, self._widths[3])

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads = self._widths[:2]
        return batch, heads, len(self._q), len(self._k)

    @property
    def held_bytes(self) -> int:
        rows = [self._q, self._k, self._v, self._lse]
        if self._norms_now:
            rows.append(self._norms)
        return sum(part.nbytes for part in rows)

    @property
    def measured(self) -> None:
        return None

    def call(self) -> AttentionCall:
        self._keeper.wait()
        self._check_unwritten()
        if self._joined is None:
            for what, rows in (("q", self._q), ("k", self._k), ("v", self._v)):
                if rows.is_split:  # it is about to be copied into one
                    self._unguard(what)
            self._joined = AttentionCall(
                q=self._q.whole(),
                k=self._k.whole(),
                v=self._v.whole() if len(self._v) else None,
                mask=joined_rule(self._steps, self.shape, self._q.like),
                bias=joined_bias(self._steps, self.shape),
                scale=self._scale,
                softcap=self._softcap,
                sinks=self._sinks,
                lse=self._lse.whole() if self._has_lse else None,
            )
        return self._joined

    def _check_unwritten(self) -> None:
        """That nothing was written to what is kept by reference."""
        for what, tensor, version in self._guarded:
            if tensor._version != version:
                raise ValueError(
                    f"{self.name}: the recorded {what} was overwritten in place after the "
                    f"attention call, so its weights are lost. Read the maps before the model "
                    f"runs again, or make the model write to a copy"
                )

    @property
    def has_value_norms(self) -> bool:
        if self._norms_now:
            return self._has_norms and len(self._norms) == len(self._k)
        projection = self._projection
        return projection is not None and version_of(projection) == self._projection_version

    @property
    def value_note(self) -> str:
        if self._unsettled:
            return self._unsettled[0][0].projection_note
        changed = self._projection is not None and not self.has_value_norms
        if changed and not self._norms_now:
            return "the output projection was changed after the recording, by a training step?"
        return self._note

    def value_norms(self) -> Tensor | None:
        if not self.has_value_norms:
            return None
        if len(self._norms) != len(self._k):
            assert self._projection is not None
            v = self._v.whole()
            self._norms.replace(value_norms(v, self._projection, self.heads, self._group))
        return self._norms.whole()

    # -- copies -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        self._keeper.wait()
        return self.__dict__ | {"_guarded": [(what, t, None) for what, t, _ in self._guarded]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Copies count their versions from the beginning.
        self.__dict__.update(state)
        self._guarded = []
        for what, tensor, _ in state["_guarded"]:
            self._guard(what, tensor, True)
        if self._projection is not None:
            self._projection_version = version_of(self._projection)


def version_of(tensor: Tensor | OutputMap) -> int | None:
    """How often it has been written to, or `None` where nobody counts."""
    return None if tensor.is_inference() else tensor._version


def _widths(call: AttentionCall) -> tuple[int, ...]:
    """All sizes that don't change from step to step: B, H, D, G, Dv."""
    batch, heads, _, width = call.q.shape
    assert call.v is not None
    return batch, heads, width, call.k.shape[1], call.v.shape[3]
