"""Who sees whom: masks as rules.

A rule answers for any tile of the (queries, keys) plane without building the plane:
`True` (everything in the tile is visible), `False` (nothing is), or a boolean array that
broadcasts to (batch, heads, rows, columns), `True` where the query may attend to the key.
So a causal mask over 100,000 tokens costs nothing to keep, and fast code skips the tiles
that are empty and does no masking in those that are full.

Rules are joined with ``&``. Query i stands at key position ``i + offset``; without an
offset of its own a rule puts the *last* query on the *last* key (``offset = n_keys -
n_queries``), which is what a KV cache needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

Array = Any


class Mask:
    """The rule that says which keys each query may attend to."""

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        """Visibility of the tile ``rows`` × ``columns``.

        Args:
            rows: query indices, a range with step 1 inside ``range(n_queries)``.
            columns: key indices, likewise inside ``range(n_keys)``.
            n_queries: number of queries of the whole plane.
            n_keys: number of keys of the whole plane.
            like: any array of the kind (library and device) that the answer should have.

        Returns:
            `True`, `False`, or a boolean array that broadcasts to
            (batch, heads, rows, columns).
        """
        raise NotImplementedError

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        """The smallest known range of keys outside which no query of ``rows`` sees anything."""
        return range(n_keys)

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        """Whether the rule by itself keeps every query from all keys after its own position."""
        return False

    def dense(self, n_queries: int, n_keys: int, like: Array) -> Array:
        """The whole plane as a boolean array of two or four dimensions.

        This is the T×T array that rules are there to avoid: for the definition and for tests.
        """
        tile = self.tile(range(n_queries), range(n_keys), n_queries, n_keys, like)
        if isinstance(tile, bool):
            xp = array_namespace(like)
            return xp.full((n_queries, n_keys), tile, dtype=xp.bool, device=device(like))
        return tile

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return join(self, other)


@dataclass(frozen=True)
class Everything(Mask):
    """Every query sees every key."""

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        return True


@dataclass(frozen=True)
class _Band(Mask):
    """Keys from ``before`` positions behind the query to ``ahead`` positions after it.

    `None` means no bound on that side.
    """

    before: int | None
    ahead: int | None
    offset: int | None

    def _start(self, n_queries: int, n_keys: int) -> int:
        return n_keys - n_queries if self.offset is None else self.offset

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        if not rows:
            return range(0)
        offset = self._start(n_queries, n_keys)
        low, high = 0, n_keys
        if self.before is not None:
            low = max(low, rows[0] + offset - self.before)
        if self.ahead is not None:
            high = min(high, rows[-1] + offset + self.ahead + 1)
        return range(min(low, n_keys), max(high, low, 0)) if high > low else range(0)

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        return self.ahead is not None and (
            self._start(n_queries, n_keys) + self.ahead <= n_keys - n_queries
        )

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        if not rows or not columns:
            return True
        offset = self._start(n_queries, n_keys)
        # Key minus query position: smallest and largest in the tile.
        nearest = columns[0] - (rows[-1] + offset)
        farthest = columns[-1] - (rows[0] + offset)
        low = -self.before if self.before is not None else nearest
        high = self.ahead if self.ahead is not None else farthest
        if low <= nearest and farthest <= high:
            return True
        if farthest < low or high < nearest:
            return False
        xp = array_namespace(like)
        place = device(like)
        query = xp.arange(rows.start, rows.stop, dtype=xp.int64, device=place)[:, None] + offset
        key = xp.arange(columns.start, columns.stop, dtype=xp.int64, device=place)[None, :]
        if nearest >= low:
            return key <= query + high
        if farthest <= high:
            return key >= query + low
        return (key >= query + low) & (key <= query + high)


class Causal(_Band):
    """Each query sees its own position and all earlier ones.

    Args:
        offset: query i stands at key position ``i + offset``. `None` puts the last query on
            the last key; 0 is top-left, as in ``is_causal`` of PyTorch.
    """

    def __init__(self, offset: int | None = None) -> None:
        super().__init__(before=None, ahead=0, offset=offset)

    def __repr__(self) -> str:
        return "Causal()" if self.offset is None else f"Causal(offset={self.offset})"


class Window(_Band):
    """Each query sees ``size`` keys: its own position and the ``size - 1`` before it.

    Args:
        size: number of keys, the query's own included (flash-attention's and ONNX's
            ``left_window_size=W`` is ``Window(W + 1)``).
        ahead: how many later keys are visible as well; `None` for all of them.
        offset: as in `Causal`.
    """

    def __init__(self, size: int, ahead: int | None = 0, offset: int | None = None) -> None:
        if size < 1:
            raise ValueError(
                f"Window(size={size}): a window counts the query's own key, so size is at least 1"
            )
        if ahead is not None and ahead < 0:
            raise ValueError(f"Window(ahead={ahead}): ahead is 0 or more, or None for all keys")
        super().__init__(before=size - 1, ahead=ahead, offset=offset)

    @property
    def size(self) -> int:
        """Number of keys a query sees behind it, its own included."""
        assert self.before is not None
        return self.before + 1

    def __repr__(self) -> str:
        extra = "" if self.ahead == 0 else f", ahead={self.ahead}"
        extra += "" if self.offset is None else f", offset={self.offset}"
        return f"Window({self.size}{extra})"


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Some keys are no real tokens: nobody sees them.

    Args:
        visible: boolean (batch, keys), `True` for a real token.
    """

    visible: Array

    def __post_init__(self) -> None:
        if self.visible.ndim != 2:
            raise ValueError(
                f"Padding takes a (batch, keys) boolean array; got shape "
                f"{tuple(self.visible.shape)}. For a mask of each query use Dense."
            )

    def __repr__(self) -> str:
        return f"Padding(visible of shape {tuple(self.visible.shape)})"

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        if self.visible.shape[-1] != n_keys:
            raise ValueError(
                f"the padding mask has {self.visible.shape[-1]} keys, shape "
                f"{tuple(self.visible.shape)}, but there are {n_keys} keys"
            )
        return self.visible[:, None, None, columns.start : columns.stop]


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """Any boolean array that broadcasts to (batch, heads, queries, keys), `True` = visible."""

    visible: Array

    def __repr__(self) -> str:
        return f"Dense(visible of shape {tuple(self.visible.shape)})"

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        found = tuple(self.visible.shape[-2:])
        if len(found) < 2 or any(
            have not in (1, want) for have, want in zip(found, (n_queries, n_keys), strict=True)
        ):
            raise ValueError(
                f"the mask has shape {tuple(self.visible.shape)}; its last two dimensions must be "
                f"(queries, keys) = ({n_queries}, {n_keys}), or 1 to repeat"
            )
        part = self.visible if found[0] == 1 else self.visible[..., rows.start : rows.stop, :]
        return part if found[1] == 1 else part[..., columns.start : columns.stop]


@dataclass(frozen=True, eq=False)
class Both(Mask):
    """What all of several rules let through. Made by ``a & b``."""

    rules: tuple[Mask, ...]

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        answer: bool | Array = True
        for rule in self.rules:
            tile = rule.tile(rows, columns, n_queries, n_keys, like)
            if tile is False:
                return False
            if tile is not True:
                answer = tile if answer is True else answer & tile
        return answer

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        parts = [rule.visible_columns(rows, n_queries, n_keys) for rule in self.rules]
        low, high = max(part.start for part in parts), min(part.stop for part in parts)
        return range(low, max(low, high))

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        return any(rule.is_causal(n_queries, n_keys) for rule in self.rules)


@dataclass(frozen=True, eq=False)
class Steps(Mask):
    """The rules of successive calls over one growing sequence of keys, one below the other.

    Args:
        parts: (rule or `None`, number of queries, number of keys) of each call, in order. Keys
            that a call did not have yet are hidden from its queries.
    """

    parts: tuple[tuple[Mask | None, int, int], ...]

    def _pieces(self, rows: range) -> Iterator[tuple[Mask, range, int, int]]:
        start = 0
        for rule, n_queries, n_keys in self.parts:
            low, high = max(rows.start, start), min(rows.stop, start + n_queries)
            if low < high:
                yield rule or Everything(), range(low - start, high - start), n_queries, n_keys
            start += n_queries

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        parts = [
            rule.visible_columns(piece, part_queries, part_keys)
            for rule, piece, part_queries, part_keys in self._pieces(rows)
        ]
        parts = [part for part in parts if part]
        if not parts:
            return range(0)
        return range(min(part.start for part in parts), max(part.stop for part in parts))

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        start = n_keys - n_queries
        for rule, part_queries, part_keys in self.parts:
            start += part_queries
            # The part's last query stands on its last key, and sees nothing that came later.
            causal = part_queries == 1 or (
                rule is not None and rule.is_causal(part_queries, part_keys)
            )
            if start != part_keys or not causal:
                return False
        return True

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        xp = array_namespace(like)
        answers: list[bool | Array] = []
        heights: list[int] = []
        for rule, piece, part_queries, part_keys in self._pieces(rows):
            known = range(columns.start, max(columns.start, min(columns.stop, part_keys)))
            tile = rule.tile(piece, known, part_queries, part_keys, like) if known else False
            if tile is not False and len(known) < len(columns):
                wide = as_tile(tile, like)
                shape = (*wide.shape[:-2], len(piece), len(known))
                later = (*wide.shape[:-2], len(piece), len(columns) - len(known))
                tile = xp.concat(
                    [
                        xp.broadcast_to(wide, shape),
                        xp.zeros(later, dtype=xp.bool, device=device(like)),
                    ],
                    axis=-1,
                )
            answers.append(tile)
            heights.append(len(piece))
        for single in (True, False):
            if all(answer is single for answer in answers):
                return single
        arrays = [as_tile(answer, like) for answer in answers]
        leading = np.broadcast_shapes(*(tuple(array.shape[:-2]) for array in arrays))
        return xp.concat(
            [
                xp.broadcast_to(array, (*leading, height, len(columns)))
                for array, height in zip(arrays, heights, strict=True)
            ],
            axis=-2,
        )


def join(*masks: Mask | None) -> Mask:
    """All of the rules at once; `None` and `Everything` add nothing."""
    flat: list[Mask] = []
    for mask in masks:
        if mask is None or isinstance(mask, Everything):
            continue
        flat.extend(mask.rules if isinstance(mask, Both) else [mask])
    if not flat:
        return Everything()
    return flat[0] if len(flat) == 1 else Both(tuple(flat))


def read_mask(mask: Mask | Array | None) -> tuple[Mask | None, Array | None]:
    """Read a mask as users write it, into a rule and an additive bias.

    * a `Mask`: itself;
    * booleans: `True` = may attend (as SDPA and ONNX; ``torch.nn.MultiheadAttention`` has it
      the other way round);
    * integers of only 0 and 1: the same as booleans;
    * floats: added to the scores; values at or below half of the smallest finite number of
      their type hide the key.

    Args:
        mask: one of these, broadcastable to (…, queries, keys), or `None`.

    Returns:
        ``(rule, bias)``, either of which may be `None`.

    Raises:
        ValueError: other integers; floats of only 0 and 1 with a 1 in them, which could mean
            either.
        TypeError: anything else.
    """
    if mask is None:
        return None, None
    if isinstance(mask, Mask):
        return mask, None
    if isinstance(mask, (list, tuple)):
        mask = np.asarray(mask)
    try:
        xp = array_namespace(mask)
    except TypeError:
        raise TypeError(
            f"a mask is a boolean, 0/1 integer or additive float array, or a rule such as "
            f"jumok.masks.Causal(); got {type(mask).__name__}"
        ) from None
    if xp.isdtype(mask.dtype, "bool"):
        return _dense(mask), None
    if xp.isdtype(mask.dtype, "integral"):
        if not bool(xp.all((mask == 0) | (mask == 1))):
            values = xp.unique_values(mask)
            wrong = [int(values[i]) for i in range(min(5, values.shape[0]))]
            raise ValueError(
                f"an integer mask holds only 1 (may attend) and 0 (may not); this one of shape "
                f"{tuple(mask.shape)} holds {wrong}. For scores to be added, pass floats."
            )
        return _dense(mask == 1), None
    if xp.isdtype(mask.dtype, "real floating"):
        if mask.ndim and bool(xp.any(mask == 1) & xp.all((mask == 0) | (mask == 1))):
            raise ValueError(
                f"a float mask of only 0. and 1. (shape {tuple(mask.shape)}) is ambiguous: pass "
                f"`mask == 1` if 1 means 'may attend', or `where(mask == 1, -inf, 0.)` if 1 "
                f"means 'hidden'; floats are added to the scores"
            )
        visible = mask > xp.finfo(mask.dtype).min / 2
        if bool(xp.all(visible)):
            return None, mask
        if bool(xp.all(~visible | (mask == 0))):
            return _dense(visible), None
        return _dense(visible), xp.where(visible, mask, xp.zeros_like(mask))
    raise TypeError(f"a mask of dtype {mask.dtype} has no meaning; pass booleans or floats")


def _dense(visible: Array) -> Mask:
    if visible.ndim < 2:
        visible = visible[None, :] if visible.ndim else visible[None, None]
    return Dense(visible)


def as_tile(tile: bool | Array, like: Array) -> Array:
    """A tile's answer as a boolean array (0-dimensional for `True` and `False`)."""
    if isinstance(tile, bool):
        xp = array_namespace(like)
        return xp.asarray(tile, dtype=xp.bool, device=device(like))
    return tile
