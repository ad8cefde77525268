"""What is kept of an attention call: which heads, in which numbers, by reference or as a copy.

A tensor is kept by reference where nothing can overwrite it and where it would keep no other
memory alive; everything else is copied. Long queries go on a shelf, so that a recording leaves no
holes in the heap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jumok.lens.call import AttentionCall
from jumok.lens.taps import Heard
from jumok.masks import Both, Dense, Mask, Steps, join


@dataclass(frozen=True)
class Policy:
    """What `watch` holds of each call.

    Attributes:
        values: whether the values are kept; without them the norms that norm-weighted views need
            are computed while the model runs.
        dtype: what q, k and v are stored in where that is smaller than what they are.
        place: ``"cpu"`` or ``"disk"``; `None` for the tensor's own device.
        heads: which query heads; `None` for all.
    """

    values: bool = True
    dtype: torch.dtype | None = None
    place: str | None = None
    heads: tuple[int, ...] | None = None

    def stored_dtype(self, tensor: Tensor) -> torch.dtype:
        """What a tensor of q, k or v is stored in: never something larger."""
        if self.dtype is not None and self.dtype.itemsize < tensor.element_size():
            return self.dtype
        return tensor.dtype

    def rounds(self, tensor: Tensor) -> bool:
        """Whether storing the tensor changes its numbers."""
        return self.stored_dtype(tensor) != tensor.dtype


def read_policy(keep: Any, dtype: Any, to: Any, heads: Any) -> Policy:
    """The policy that a user wrote as options of `watch`.

    Raises:
        ValueError: an unknown option, or no heads.
        TypeError: `dtype` is no type of floats, or `heads` no numbers.
    """
    if keep not in ("qk", "qkv"):
        raise ValueError(f"watch(…, keep={keep!r}): keep is 'qkv' or 'qk', without the values")
    if to not in (None, "cpu", "disk"):
        raise ValueError(f"watch(…, to={to!r}): to is 'cpu', 'disk', or None to stay on the device")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"watch(…, dtype={dtype!r}): dtype is a torch type, such as torch.bfloat16")
    chosen = None
    if heads is not None:
        wanted = [heads] if hasattr(heads, "__index__") else list(heads)
        if not all(hasattr(one, "__index__") and not isinstance(one, bool) for one in wanted):
            raise TypeError(f"watch(…, heads={heads!r}): heads are numbers, such as [3, 7]")
        chosen = tuple(dict.fromkeys(one.__index__() for one in wanted))
        if not chosen:
            raise ValueError(f"watch(…, heads={heads!r}) chooses no head at all")
    return Policy(keep == "qkv", dtype, to, chosen)


class Keeper:
    """Turns heard calls into what is kept of them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._shelf = Shelf()
        self._moving: set[torch.device] = set()

    def read(self, heard: Heard) -> tuple[AttentionCall, frozenset[str]]:
        """The call without its graph and with the wanted heads, still in the model's memory.

        Returns:
            The call, and which of ``q``, ``k``, ``v`` may be kept by reference: their memory is
            not written to (it has not been in place, as a cache is, and somebody counts the
            writes, as nobody does in inference mode), and they would not keep alive more than
            themselves and their companions (as slices of something larger would).
        """
        sizes: dict[int, int] = {}
        three = {"q": heard.q, "k": heard.k, "v": heard.v}
        storages: dict[str, tuple[int, int]] = {}
        for name, tensor in three.items():
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
            storages[name] = key, storage.nbytes()
            sizes[key] = sizes.get(key, 0) + own_bytes(tensor)
        referable = set()
        for name, tensor in three.items():
            key, whole = storages[name]
            pinned = whole > sizes[key] + 4096
            if not (pinned or tensor.is_inference() or tensor._version > 0):
                referable.add(name)
        call = AttentionCall(
            q=heard.q.detach(),
            k=heard.k.detach(),
            v=heard.v.detach(),
            mask=heard.mask,
            bias=None if heard.bias is None else heard.bias.detach(),
            scale=heard.scale,
            softcap=heard.softcap,
            sinks=None if heard.sinks is None else heard.sinks.detach(),
            lse=None if heard.lse is None else heard.lse.detach(),
        )
        if self.policy.heads is not None:
            return chosen_heads(call, self.policy.heads), frozenset()
        if not self.policy.values and len(sizes) < 3:
            return call, frozenset()  # q or k would keep the values alive
        alone = len(sizes) == 3 or "q" not in referable
        if alone and not heard.q.requires_grad and self._shelf.takes(heard.q):
            referable.discard("q")
        return call, frozenset(referable)

    def packs(self, tensor: Tensor) -> bool:
        """Whether a copy of it goes on the shelf."""
        return self._shelf.takes(tensor)

    def hold(self, tensor: Tensor, *, refer: bool, pack: bool = False) -> Tensor:
        """What is kept of a tensor: itself where that is allowed, or a copy.

        Args:
            tensor: (B, H, T, …).
            refer: whether it may be kept by reference.
            pack: whether a copy goes on the shelf though it is short.
        """
        if self.policy.place is not None and not tensor.is_cpu:
            # Into pinned memory, while the device computes on; `wait` before it is read.
            self._moving.add(tensor.device)
            return tensor.to("cpu", non_blocking=True)
        if refer:
            return tensor
        return self._shelf.put(tensor) if pack or self._shelf.takes(tensor) else tensor.clone()

    def rounded(self, tensor: Tensor) -> Tensor:
        """One of q, k and v in the numbers it is stored in: another tensor, or itself.

        Raises:
            ValueError: it does not fit the smaller type.
        """
        if not self.policy.rounds(tensor):
            return tensor
        dtype = self.policy.stored_dtype(tensor)
        smaller = tensor.to(dtype)
        if not bool(smaller.isfinite().all()) and bool(tensor.isfinite().all()):
            raise ValueError(
                f"a tensor of the attention, of shape {tuple(tensor.shape)}, holds "
                f"{float(tensor.abs().max()):.3g}, which does not fit {dtype}; "
                f"watch(…, dtype=torch.bfloat16) holds all that float32 holds, with fewer digits"
            )
        return smaller

    def wait(self) -> None:
        """Until all that moves from a device has arrived."""
        for device in self._moving:
            torch.accelerator.synchronize(device)
        self._moving.clear()

    def __getstate__(self) -> dict[str, Any]:
        self.wait()
        return self.__dict__ | {"_shelf": Shelf()}  # a copy of a recording has no use for it


class Shelf:
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
        """Whether it is long and in main memory."""
        return tensor.is_cpu and tensor.numel() * tensor.element_size() >= self._LONG

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


def own_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's own numbers; what only repeats counts once."""
    count = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= length if stride else 1
    return count * tensor.element_size()


# -- heads ------------------------------------------------------------------------------------


def chosen_heads(call: AttentionCall, heads: Sequence[int]) -> AttentionCall:
    """The call of some query heads, with the key heads that they read.

    Raises:
        ValueError: there is no such head.
    """
    n_heads = call.shape[1]
    wrong = [head for head in heads if not 0 <= head < n_heads]
    if wrong:
        raise ValueError(
            f"watch(…, heads={list(heads)}): an attention of this model has the heads 0 to "
            f"{n_heads - 1}, so {wrong} are not there"
        )
    read = [head // call.group for head in heads]
    each = len(heads) // len(set(read))
    grouped = [head for head in dict.fromkeys(read) for _ in range(each)]
    key_heads = list(dict.fromkeys(read)) if grouped == read else read
    chosen = list(heads)
    bias = call.bias
    if bias is not None and bias.ndim >= 3 and bias.shape[-3] > 1:
        bias = bias[..., chosen, :, :]
    return dataclasses.replace(
        call,
        q=call.q[:, chosen],
        k=call.k[:, key_heads],
        v=None if call.v is None else call.v[:, key_heads],
        mask=None if call.mask is None else _mask_of_heads(call.mask, chosen),
        bias=bias,
        sinks=None if call.sinks is None else call.sinks[chosen],
        lse=None if call.lse is None else call.lse[:, chosen],
    )


def _mask_of_heads(mask: Mask, heads: list[int]) -> Mask:
    if isinstance(mask, Both):
        return join(*(_mask_of_heads(rule, heads) for rule in mask.rules))
    if isinstance(mask, Steps):
        return Steps(
            tuple(
                (None if rule is None else _mask_of_heads(rule, heads), queries, keys)
                for rule, queries, keys in mask.parts
            )
        )
    if isinstance(mask, Dense) and mask.visible.ndim >= 3 and mask.visible.shape[-3] > 1:
        return Dense(mask.visible[..., heads, :, :])
    return mask
