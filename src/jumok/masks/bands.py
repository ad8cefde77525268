"""Rules that follow from positions alone: a few numbers say who sees whom.

Query i stands at key position ``i + offset``; without an offset of its own a rule puts the
last query on the last key (``offset = n_keys - n_queries``), which is what a KV cache needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from array_api_compat import array_namespace, device

from jumok.masks.rule import Array, Mask


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

    def hides_nothing(self, n_queries: int, n_keys: int) -> bool:
        """Whether every query sees every key."""
        offset = self._start(n_queries, n_keys)
        everything_before = self.before is None or self.before >= n_queries - 1 + offset
        return everything_before and (self.ahead is None or self.ahead >= n_keys - 1 - offset)

    def is_plain(self, n_queries: int, n_keys: int) -> bool:
        """Whether it hides exactly what `Causal()` hides."""
        offset = self._start(n_queries, n_keys)
        everything_before = self.before is None or self.before >= n_queries - 1 + offset
        return everything_before and self.ahead == n_keys - n_queries - offset

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


@dataclass(frozen=True)
class Chunked(Mask):
    """Each query sees its own chunk of keys: positions are cut into pieces of ``size``.

    Local attention of Llama 4 is ``Chunked(8192) & Causal()``.

    Args:
        size: number of positions in a chunk; the first chunk starts at key 0.
        offset: as in `Causal`.
    """

    size: int
    offset: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"Chunked(size={self.size}): a chunk has at least 1 position")

    def __repr__(self) -> str:
        extra = "" if self.offset is None else f", offset={self.offset}"
        return f"Chunked({self.size}{extra})"

    def _chunks(self, rows: range, n_queries: int, n_keys: int) -> tuple[int, int]:
        """First and last chunk of some queries."""
        offset = n_keys - n_queries if self.offset is None else self.offset
        return (rows[0] + offset) // self.size, (rows[-1] + offset) // self.size

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        if not rows:
            return range(0)
        first, last = self._chunks(rows, n_queries, n_keys)
        low, high = max(first * self.size, 0), min((last + 1) * self.size, n_keys)
        return range(low, high) if low < high else range(0)

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        return self.size == 1 and (self.offset is None or self.offset <= n_keys - n_queries)

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        if not rows or not columns:
            return True
        first, last = self._chunks(rows, n_queries, n_keys)
        left, right = columns[0] // self.size, columns[-1] // self.size
        if first == last == left == right:
            return True
        if right < first or last < left:
            return False
        xp, place = array_namespace(like), device(like)
        offset = n_keys - n_queries if self.offset is None else self.offset
        query = xp.arange(rows.start, rows.stop, dtype=xp.int64, device=place)[:, None] + offset
        key = xp.arange(columns.start, columns.stop, dtype=xp.int64, device=place)[None, :]
        return key // self.size == query // self.size


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Causal after a prefix that everybody sees whole, as in a prefix language model.

    A query sees its own position, all earlier ones, and all of the first ``length`` keys
    (Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 3.2.1; PaliGemma's image and
    prompt).

    Args:
        length: number of keys of the prefix: one for all, or an integer array (batch,).
        offset: as in `Causal`.
    """

    length: int | Array
    offset: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) and self.length.ndim == 0:
            object.__setattr__(self, "length", int(self.length))
        if not isinstance(self.length, int) and self.length.ndim != 1:
            raise ValueError(
                f"Prefix takes one length or a (batch,) integer array; got shape "
                f"{tuple(self.length.shape)}"
            )
        if self._ends[0] < 0:
            raise ValueError(f"Prefix(length={self._ends[0]}): a length is 0 or more")

    def __repr__(self) -> str:
        length = self.length
        said = length if isinstance(length, int) else f"lengths of shape {tuple(length.shape)}"
        return f"Prefix({said}{'' if self.offset is None else f', offset={self.offset}'})"

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """The shortest and the longest prefix."""
        if isinstance(self.length, int):
            return self.length, self.length
        xp = array_namespace(self.length)
        return int(xp.min(self.length)), int(xp.max(self.length))

    def _start(self, n_queries: int, n_keys: int) -> int:
        return n_keys - n_queries if self.offset is None else self.offset

    def visible_columns(self, rows: range, n_queries: int, n_keys: int) -> range:
        if not rows:
            return range(0)
        last = rows[-1] + self._start(n_queries, n_keys)
        return range(min(max(last + 1, self._ends[1]), n_keys))

    def is_causal(self, n_queries: int, n_keys: int) -> bool:
        shift = n_keys - n_queries
        return self._start(n_queries, n_keys) <= shift and self._ends[1] <= max(shift + 1, 0)

    def tile(
        self, rows: range, columns: range, n_queries: int, n_keys: int, like: Array
    ) -> bool | Array:
        if not rows or not columns:
            return True
        offset = self._start(n_queries, n_keys)
        shortest, longest = self._ends
        if columns[-1] <= rows[0] + offset or columns[-1] < shortest:
            return True
        if columns[0] > rows[-1] + offset and columns[0] >= longest:
            return False
        xp, place = array_namespace(like), device(like)
        query = xp.arange(rows.start, rows.stop, dtype=xp.int64, device=place)[:, None] + offset
        key = xp.arange(columns.start, columns.stop, dtype=xp.int64, device=place)[None, :]
        length = self.length
        if not isinstance(length, int):
            length = length[:, None, None, None]
        return (key <= query) | (key < length)
