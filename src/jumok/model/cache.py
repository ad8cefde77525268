"""Keys and values of earlier tokens, so that the next token costs one row of attention.

A causal model never changes what it computed for earlier tokens: their keys and values are
kept, and only the new tokens go through the layers. Layers with a sliding window keep no more
than the window can still see.

B batch, G key heads, T tokens, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jumok.masks import Mask

__all__ = ["EncoderDecoderCache", "KeyValueCache", "LayerCache"]


class LayerCache:
    """Keys and values of one layer, in a buffer that grows geometrically.

    Args:
        window: how many keys a query sees, its own included; `None` for all.
        room: how many tokens the buffer holds from the beginning, if that is known. A layer
            with a window takes no more than a few windows.
    """

    def __init__(self, window: int | None = None, room: int | None = None) -> None:
        self.window = window
        self._room = room or 0
        if window is not None:
            self._room = min(self._room, 4 * window)
        self._keys: Tensor | None = None  # (B, G, room, D)
        self._values: Tensor | None = None
        self._start = self._stop = 0  # the part of the buffer that is still needed

    @property
    def n_keys(self) -> int:
        """How many earlier keys the next query may still see."""
        return self._stop - self._start

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens.

        Args:
            keys: (B, G, T, D)
            values: (B, G, T, Dv)

        Returns:
            Keys and values that the new tokens may see, their own included,
            (B, G, n_keys + T, D): views of the buffer.

        Raises:
            ValueError: the batch differs from that of the tokens before.
        """
        new = keys.shape[2]
        if self._keys is not None and self._keys.shape[0] != keys.shape[0]:
            raise ValueError(
                f"the cache holds a batch of {self._keys.shape[0]}, the new tokens are a batch of "
                f"{keys.shape[0]}; reset() the cache or make a new one"
            )
        if keys.requires_grad or values.requires_grad:
            # Writing into a buffer would cut the graph, so gradients cost a copy a step.
            keys, values = self._joined(keys, values)
            self._keys, self._values = keys, values
            self._start, self._stop = 0, keys.shape[2]
        else:
            self._make_room(keys, values)
            assert self._keys is not None
            assert self._values is not None
            end = self._stop + new
            # narrow() is what slices come to, in a third of the time
            self._keys.narrow(2, self._stop, new).copy_(keys)
            self._values.narrow(2, self._stop, new).copy_(values)
            self._stop = end
            keys = self._keys.narrow(2, self._start, end - self._start)
            values = self._values.narrow(2, self._start, end - self._start)
        if self.window is not None:
            self._start = max(self._start, self._stop - self.window + 1)
        return keys, values

    def _joined(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self._keys is None or self._values is None:
            return keys, values
        kept = slice(self._start, self._stop)
        return (
            torch.cat([self._keys[:, :, kept], keys], dim=2),
            torch.cat([self._values[:, :, kept], values], dim=2),
        )

    def _make_room(self, keys: Tensor, values: Tensor) -> None:
        """Have a buffer with room for the new tokens behind the old ones."""
        new = keys.shape[2]
        if self._keys is not None and self._values is not None:
            usable = torch.is_inference_mode_enabled() or not self._keys.is_inference()
            if usable and self._stop + new <= self._keys.shape[2]:
                return
        kept = self.n_keys
        needed = kept + new
        room = self._room if needed <= self._room else max(64, needed * 5 // 4)
        old_keys, old_values, part = self._keys, self._values, slice(self._start, self._stop)
        batch, heads, _, width = keys.shape
        self._keys = keys.new_empty(batch, heads, room, width)
        self._values = values.new_empty(batch, heads, room, values.shape[-1])
        if old_keys is not None and old_values is not None:
            self._keys[:, :, :kept] = old_keys[:, :, part]
            self._values[:, :, :kept] = old_values[:, :, part]
        self._start, self._stop = 0, kept

    def start_without(self, count: int, length: int) -> int | None:
        """Where the needed keys would begin in the buffer, without the last ``count`` tokens.

        Args:
            count: how many tokens are taken back.
            length: how many are left.

        Returns:
            The place, or `None` where the window has dropped a key that is needed then.
        """
        if self.window is None:
            return self._start
        needed = min(length, self.window - 1)
        start = self._stop - count - needed
        return start if start >= 0 else None

    def take_back(self, count: int, start: int) -> None:
        """Forget the last ``count`` tokens; ``start`` is from `start_without`."""
        self._start, self._stop = start, self._stop - count

    def fork(self) -> LayerCache:
        """A copy that goes its own way."""
        twin = LayerCache(self.window, self._room)
        if self._keys is not None and self._values is not None:
            kept = slice(self._start, self._stop)
            twin._keys = self._keys[:, :, kept].clone()
            twin._values = self._values[:, :, kept].clone()
            twin._stop = self.n_keys
        return twin


class KeyValueCache:
    """The keys and values of all layers, and which of the tokens were real.

    Pass it to a `Decoder` with the next tokens only: ``model(ids, cache=cache)``. Get one from
    ``model.new_cache()``.

    Args:
        windows: for each layer, how many keys a query sees, or `None` for all.
        room: how many tokens will come, if that is known: memory is taken once then.

    Attributes:
        length: number of tokens that the model has seen, padding included.
        visible: (B, length), `True` for a real token; `None` while all are.
    """

    def __init__(self, windows: Sequence[int | None], room: int | None = None) -> None:
        self.windows, self.room = tuple(windows), room
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next tokens are the first."""
        self.layers = [LayerCache(window, self.room) for window in self.windows]
        self.length = 0
        self.visible: Tensor | None = None

    def truncate(self, length: int) -> bool:
        """Forget all tokens but the first ``length``, to go on from there with others.

        Returns:
            Whether it could be done: not where a window has dropped keys that are needed again.
            The cache is then as it was; `reset` it and read the text anew.

        Raises:
            ValueError: the cache has seen fewer tokens.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"truncate({length}): the cache holds {self.length} tokens")
        count = self.length - length
        starts = [layer.start_without(count, length) for layer in self.layers]
        if not count:
            return True
        if any(start is None for start in starts):
            return False
        for layer, start in zip(self.layers, starts, strict=True):
            assert start is not None
            layer.take_back(count, start)
        self.length = length
        self.visible = None if self.visible is None else self.visible[:, :length]
        return True

    def fork(self) -> KeyValueCache:
        """A copy that goes its own way, to try several continuations of one text."""
        twin = KeyValueCache(self.windows, self.room)
        self._copy_to(twin)
        return twin

    def _copy_to(self, twin: KeyValueCache) -> None:
        twin.layers = [layer.fork() for layer in self.layers]
        twin.length, twin.visible = self.length, self.visible

    def admit(self, batch: int, new: int, mask: Tensor | None) -> Tensor | None:
        """Count new tokens in before they go through the layers.

        Args:
            batch: B
            new: how many tokens T.
            mask: (B, T) booleans, `True` for a real token; `None` if all are.

        Returns:
            The mask of all tokens so far (B, length), or `None` if all are real.
        """
        if mask is not None or self.visible is not None:
            place = mask if mask is not None else self.visible
            assert place is not None
            if self.visible is None:
                self.visible = place.new_ones(batch, self.length)
            if mask is None:
                mask = place.new_ones(batch, new)
            self.visible = torch.cat([self.visible, mask], dim=1)
        self.length += new
        return self.visible


class EncoderDecoderCache(KeyValueCache):
    """The cache of an `EncoderDecoder`: of its target, and of the source, which is read once.

    Attributes:
        source: for each layer, keys and values of the source (B, G, Ts, D); `None` before.
        source_rule: which of the source's tokens are real, `None` if all are.
    """

    def reset(self) -> None:
        """Forget everything: the next tokens are the first, of another source."""
        super().reset()
        self.source: list[tuple[Tensor, Tensor]] | None = None
        self.source_rule: Mask | None = None

    def hold(self, source: list[tuple[Tensor, Tensor]], rule: Mask | None) -> None:
        """Keep what the encoder has made of a source.

        Raises:
            ValueError: a target was begun that reads another source.
        """
        if self.length:
            raise ValueError(
                f"the cache holds {self.length} tokens of a target that reads another source; "
                f"reset() it, or pass source_ids=None to go on"
            )
        self.source, self.source_rule = source, rule

    def fork(self) -> EncoderDecoderCache:
        """A copy that goes its own way; both read the same source."""
        twin = EncoderDecoderCache(self.windows, self.room)
        self._copy_to(twin)
        twin.source, twin.source_rule = self.source, self.source_rule
        return twin
