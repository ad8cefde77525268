"""What the page asks and what it is told; free of how it is carried.

A local server, a notebook's kernel and the page's own file all ask `Questions.answer`. Every
question, its parameters and the shape of its answer are written down in ``ui/QUESTIONS.md``.
NumPy alone for a recording from a file.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from jumok import __version__
from jumok.lens.heads import DEFAULT, MEASURES, NEED_IDS, head_sums
from jumok.view import one_head, passages
from jumok.view.answers import Answer, Unanswered, plain
from jumok.view.asked import Asked
from jumok.view.contents import Contents, MapPlace
from jumok.view.described import described
from jumok.view.shares import Shares
from jumok.view.stopping import Kept, Stop
from jumok.view.tiles import TILE, Head, How, TileFolder, TileMaker, levels, small_maps
from jumok.view.tracing import trace

if TYPE_CHECKING:
    from jumok.lens.attention_map import AttentionMap
    from jumok.lens.recording import Recording
    from jumok.lens.tiles import Tile

__all__ = ["QUESTIONS", "Pace", "Questions", "fingerprint"]

Transport = Literal["server", "widget", "file"]

ROOM = 256 << 20
"""Bytes of results that are kept in memory."""

_LABELS = 8192  # of one answer
_MOST_WORD = 4096  # tokens of a word
_MOST_ALIGNED = 200_000  # tokens of two texts together

QUESTIONS: dict[str, tuple[str, ...]] = {
    "about": (),
    "labels": ("recording", "text", "batch", "start", "count"),
    "aligned": ("text", "batch"),
    "grid": ("recording", "map", "batch", "size", "how"),
    "tile": (
        "recording", "map", "batch", "head", "level", "x", "y", "how", "scaled", "draft",
    ),
    "weight": ("recording", "map", "batch", "head", "query", "key"),
    "row": ("recording", "map", "batch", "head", "query"),
    "column": ("recording", "map", "batch", "head", "key"),
    "reads": ("recording", "stack", "map", "batch", "head", "tokens", "side", "measure"),
    "steps": ("recording", "map", "batch", "head", "query", "count", "keys"),
    "flow": (
        "recording", "stack", "batch", "tokens", "residual", "measure", "edges", "lowest",
    ),
    "heads": ("recording", "map", "measures"),
    "passages": ("recording", "stack", "batch", "how"),
    "segments": ("recording", "stack", "map", "batch", "head", "how", "measure"),
}  # fmt: skip
"""Name of each question → its parameters."""

_AT_ONCE = {"about", "labels", "weight", "row", "column", "steps", "passages"}

Pace = Literal["at once", "soon", "slow"]


class Questions:
    """Answers about one recording, or two that are compared.

    Args:
        recordings: from `jumok.watch` or `jumok.open`.
        titles: what people call them; by default the model's names.
        files: where they lie, if in files; what takes long to compute is kept beside them.
        transport: how the page asks.
        keep_files: whether anything may be kept beside the files.
        room: bytes of results that are kept in memory.

    Raises:
        ValueError: there is nothing in a recording that can be shown.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        titles: Sequence[str] | None = None,
        files: Sequence[Path | None] | None = None,
        *,
        transport: Transport = "server",
        keep_files: bool = True,
        room: int = ROOM,
    ) -> None:
        assert 1 <= len(recordings) <= 2
        self._kept = Kept(room)
        self._transport = transport
        self.contents: list[Contents] = []
        self._tiles: list[TileMaker] = []
        self._shares: list[Shares] = []
        for number, recording in enumerate(recordings):
            if not len(recording):
                raise ValueError(f"{recording.model_name}: the recording holds no attention map")
            if any(found.measured is not None for found in recording):
                raise ValueError(
                    "this recording was measured while the model ran (watch(model, measure=…)) and "
                    "holds no queries and keys: there are no weights to show. jumok.report shows "
                    "what was measured; for the page record without measure="
                )
            file = files[number] if files else None
            mark = fingerprint(file) if file is not None else secrets.token_hex(8)
            title = titles[number] if titles else recording.model_name
            self.contents.append(Contents(recording, title, mark))
            folder = None
            if file is not None and keep_files:
                folder = TileFolder(file.with_name(f"{file.name}.tiles"), mark)
            key = (number, mark)
            self._tiles.append(TileMaker(recording, self._kept, key, folder))
            self._shares.append(Shares(recording, self._kept, key))
        self._handlers: dict[str, Callable[[Asked, Stop], Answer]] = {
            name: getattr(self, f"_{name}") for name in QUESTIONS
        }

    def answer(
        self, name: str, parameters: Mapping[str, str] | None = None, stop: Stop | None = None
    ) -> Answer:
        """The answer to one question.

        Args:
            name: one of `QUESTIONS`.
            parameters: of the question, as text.
            stop: says when nobody waits any more.

        Raises:
            Unanswered: there is no such question, it is malformed, or it cannot be answered.
            Stopped: nobody waits.
        """
        handler, stop = self._handlers.get(name), stop or Stop()
        if handler is None:
            raise Unanswered(
                "unknown", f"there is no question {name[:40]!r}; there are {', '.join(QUESTIONS)}"
            )
        return handler(Asked(name, parameters or {}, QUESTIONS[name]), stop)

    def pace(self, name: str, parameters: Mapping[str, str]) -> Pace:
        """How long an answer takes: it should wait behind none that takes longer.

        What the pointer asks comes at once, pictures soon, what passes over a whole map is slow.
        """
        if name in _AT_ONCE or name not in QUESTIONS:
            return "at once"
        if name == "reads":
            slow = parameters.get("side") == "read_by" and parameters.get("measure") == "norm"
            return "slow" if slow else "at once"
        if name != "tile":
            return "slow"
        try:
            asked = Asked(name, parameters, QUESTIONS[name])
            which = self._recording(asked)
            number = self._map(asked, which)
            level = asked.whole("level", 64)
            direct = self._tiles[which].is_direct(Head(number, 0, 0), level)
        except Unanswered:
            return "at once"  # to say that it is wrong
        direct = direct and parameters.get("scaled", "0") == "0"
        return "soon" if direct or parameters.get("draft") == "1" else "slow"

    # -- what is asked about ------------------------------------------------------------------

    def _recording(self, asked: Asked) -> int:
        return asked.whole("recording", len(self.contents), 0)

    def _map(self, asked: Asked, which: int) -> int:
        return asked.whole("map", len(self.contents[which].recording), what="one of the maps")

    def _head(self, asked: Asked) -> tuple[int, AttentionMap, Head]:
        """Which recording, and which head of it."""
        which = self._recording(asked)
        number = self._map(asked, which)
        found = self.contents[which].recording[number]
        batch = asked.whole("batch", found.shape[0], 0, what="a sequence of the batch")
        head = asked.whole("head", found.shape[1], what="a head of this map")
        return which, found, Head(number, batch, head)

    def _batch_of(self, asked: Asked, which: int, number: int) -> int:
        size = self.contents[which].recording[number].shape[0]
        return asked.whole("batch", size, 0, what="a sequence of the batch")

    def _stack(self, asked: Asked, which: int) -> int:
        stacks = self.contents[which].stacks
        if not stacks:
            raise Unanswered("unable", "this recording has no self-attention")
        return asked.whole("stack", len(stacks), 0, what="one of the stacks of layers")

    def _text_of_map(self, which: int, place: MapPlace, side: str) -> tuple[int | None, int, int]:
        """Of the queries or the keys: which text, its first token, how many tokens it has."""
        text = place.query_text if side == "query" else place.key_text
        first = place.first_query if side == "query" else place.first_key
        return text, first, 0 if text is None else self.contents[which].texts[text].tokens

    # -- answers ------------------------------------------------------------------------------

    def _about(self, asked: Asked, stop: Stop) -> Answer:
        return Answer(
            {
                "version": __version__,
                "tile": TILE,
                "transport": self._transport,
                "recordings": [described(contents) for contents in self.contents],
                "compared": self._compared(),
                "left_out": [],
            }
        )

    def _compared(self) -> dict[str, bool] | None:
        if len(self.contents) < 2:
            return None
        first, second = self.contents
        names = [[(m.name, m.shape[1]) for m in one.recording] for one in self.contents]
        shapes = [[(m.name, m.shape) for m in one.recording] for one in self.contents]
        ids = [
            [None if text.ids is None else text.ids.tolist() for text in one.texts]
            for one in self.contents
        ]
        return {
            "same_model": first.recording.model_name == second.recording.model_name
            and names[0] == names[1],
            "same_tokens": ids[0] == ids[1] and None not in ids[0],
            "same_shape": shapes[0] == shapes[1],
        }

    def _labels(self, asked: Asked, stop: Stop) -> Answer:
        texts = self.contents[self._recording(asked)].texts
        text = texts[asked.whole("text", len(texts), 0, what="one of the texts")]
        batch = asked.whole("batch", text.batch, 0, what="a sequence of the batch")
        start = asked.whole("start", max(1, text.tokens), 0, what="a token")
        count = asked.whole("count", _LABELS + 1, _LABELS, 1)
        end = min(start + count, text.tokens)
        labels = list(text.labels(batch)[start:end])
        fields: dict[str, Any] = {"start": start, "tokens": text.tokens, "labels": labels}
        if not text.labelled:
            inside = range(start, end)
            words = {
                "text": labels,
                "before": ["" if token == 0 else " " for token in inside],
                "tokens": [[token] for token in inside],
                "special": [],
            }
            return Answer(fields | {"special": [], "first_word": start, "words": words})
        one = text.labelled[batch]
        special = [token for token in one.special if start <= token < end]
        all_words = one.reading.words
        firsts = np.array([word.tokens[0] for word in all_words])
        low, high = np.searchsorted(firsts, [start, end]).tolist()
        chosen = all_words[low:high]
        place = max((word.end for word in all_words[:low]), default=0)
        before = []
        for word in chosen:
            before.append("" if word.special else one.reading.text[place : word.start])
            place = place if word.special else max(place, word.end)
        words = {
            "text": [word.text for word in chosen],
            "before": before,
            "tokens": [list(word.tokens) for word in chosen],
            "special": [low + number for number, word in enumerate(chosen) if word.special],
        }
        return Answer(fields | {"special": special, "first_word": low, "words": words})

    def _aligned(self, asked: Asked, stop: Stop) -> Answer:
        if len(self.contents) < 2:
            raise Unanswered("unable", "there is one recording: nothing to align it with")
        count = min(len(contents.texts) for contents in self.contents)
        text = asked.whole("text", count, 0, what="one of the texts")
        texts = [contents.texts[text] for contents in self.contents]
        batch = asked.whole("batch", min(one.batch for one in texts), 0)
        labels = [list(one.labels(batch)) for one in texts]

        def compute(stop: Stop) -> list[list[int]]:
            if sum(map(len, labels)) > _MOST_ALIGNED:  # what both begin with
                pairs = zip(*labels, strict=False)
                same = next((n for n, (a, b) in enumerate(pairs) if a != b), min(map(len, labels)))
                return [[0, 0, same]] if same else []
            found = SequenceMatcher(None, labels[0], labels[1], autojunk=len(labels[1]) > 4000)
            blocks = [list(block) for block in found.get_matching_blocks()]
            return [block for block in blocks if block[2]]

        return Answer({"blocks": self._kept.get(("aligned", text, batch), compute, stop)})

    def _grid(self, asked: Asked, stop: Stop) -> Answer:
        which = self._recording(asked)
        number = self._map(asked, which)
        batch = self._batch_of(asked, which, number)
        size = asked.whole("size", 65, 32, 1)
        how = cast(How, asked.choice("how", ("max", "mean")))
        found = self.contents[which].recording[number]
        small = self._kept.get(
            (which, "grid", number, batch, size, how),
            lambda stop: small_maps(found.call, batch, size, how, stop),
            stop,
        )
        fields = {"cell": small.cell, "exact": small.exact, "rows_read": small.rows_read,
                  "rows": found.shape[2]}  # fmt: skip
        return Answer(fields, {"values": small.values})

    def _tile(self, asked: Asked, stop: Stop) -> Answer:
        which, found, head = self._head(asked)
        count = levels(*found.shape[2:])
        level = asked.whole("level", count, what="a level of this map")
        across, down = (-(-size // (TILE << level)) for size in (found.shape[3], found.shape[2]))
        x = asked.whole("x", across, what="a tile of this level")
        y = asked.whole("y", down, what="a tile of this level")
        how = cast(How, asked.choice("how", ("max", "mean")))
        scaled, draft = (asked.choice(name, ("0", "1")) == "1" for name in ("scaled", "draft"))
        values, exact = self._tiles[which].tile(
            head, level, x, y, how, scaled=scaled, draft=draft, stop=stop
        )
        return Answer({"exact": exact}, {"values": np.asarray(values, np.float32)})

    def _weight(self, asked: Asked, stop: Stop) -> Answer:
        _, found, head = self._head(asked)
        query = asked.whole("query", found.shape[2], what="a row of this map")
        key = asked.whole("key", found.shape[3], what="a column of this map")
        return one_head.weight(found, head.batch, head.head, query, key)

    def _row(self, asked: Asked, stop: Stop) -> Answer:
        _, found, head = self._head(asked)
        query = asked.whole("query", found.shape[2], what="a row of this map")
        return one_head.row(found, head.batch, head.head, query)

    def _column(self, asked: Asked, stop: Stop) -> Answer:
        _, found, head = self._head(asked)
        key = asked.whole("key", found.shape[3], what="a column of this map")
        return one_head.column(found, head.batch, head.head, key)

    def _steps(self, asked: Asked, stop: Stop) -> Answer:
        which, found, head = self._head(asked)
        queries, keys = found.shape[2:]
        query = asked.whole("query", queries, what="a row of this map")
        count = asked.whole("count", 65, 6, 1)
        further = asked.wholes("keys", keys, 64, "a column of this map")
        place = self.contents[which].places[head.map]
        own = None
        if place.kind == "self":
            own = query + place.first_query - place.first_key
        return one_head.steps(
            found, head.batch, head.head, query, count=count, further=further, own_key=own
        )

    def _reads(self, asked: Asked, stop: Stop) -> Answer:
        which = self._recording(asked)
        contents = self.contents[which]
        side = cast(Literal["reads", "read_by"], asked.choice("side", ("reads", "read_by")))
        norm = asked.choice("measure", ("raw", "norm")) == "norm"
        if "map" in asked:
            numbers: tuple[int, ...] = (self._map(asked, which),)
        elif "head" in asked:
            raise asked.wrong("head goes with map: which map is it of?")
        else:
            numbers = contents.stacks[self._stack(asked, which)].maps
        found, place = contents.recording[numbers[0]], contents.places[numbers[0]]
        batch = self._batch_of(asked, which, numbers[0])
        head = None
        if "head" in asked:
            head = asked.whole("head", found.shape[1], what="a head of this map")
        own, other = ("query", "key") if side == "reads" else ("key", "query")
        lengths = {"query": found.shape[2], "key": found.shape[3]}
        _, start, size = self._text_of_map(which, place, own)
        size = size or start + lengths[own]
        tokens = asked.wholes("tokens", size, _MOST_WORD, "a token of the text")
        places = [token - start for token in tokens if 0 <= token - start < lengths[own]]
        if not places:
            raise asked.wrong(
                f"tokens: give the word's, among {start} to {start + lengths[own] - 1}"
            )
        first = contents.first_token(numbers[0], batch)
        _, other_start, other_size = self._text_of_map(which, place, other)
        apart = [] if first is None else [first - other_start]
        if place.kind == "self":
            apart += [token - other_start for token in tokens]
        apart = [column for column in apart if 0 <= column < lengths[other]]
        result = self._shares[which].of(
            numbers, batch, places, side, head=head, norm=norm, apart=apart, stop=stop
        )
        shares, seen = result.shares, result.seen
        if other_size:  # by the tokens of the text, also those that are not in the map
            end = other_start + len(shares)
            shares, seen = np.zeros(other_size, np.float32), np.zeros(other_size, bool)
            shares[other_start:end], seen[other_start:end] = result.shares, result.seen
        fields = {
            "measure": result.measure,
            "note": result.note,
            "first": first,
            "hidden": _runs(~seen),
            "heads": [
                {"map": one.map, "head": one.head, "token": one.token + other_start,
                 "weight": one.weight}
                for one in result.strongest
            ],
        }  # fmt: skip
        return Answer(fields, {"shares": shares})

    def _flow(self, asked: Asked, stop: Stop) -> Answer:
        which = self._recording(asked)
        contents = self.contents[which]
        stack = contents.stacks[self._stack(asked, which)]
        maps = [contents.recording[number] for number in stack.maps]
        queries, keys = maps[0].shape[2:]
        if queries != keys:
            raise Unanswered(
                "unable", "the recording begins in the middle of its text: the way down needs all"
            )
        batch = self._batch_of(asked, which, stack.maps[0])
        start = contents.places[stack.maps[0]].first_key
        tokens = asked.wholes("tokens", start + keys, _MOST_WORD, "a token of the text")
        inside = [token - start for token in tokens if token >= start]
        if not inside:
            raise asked.wrong("tokens: which token is to be traced?")
        residual = asked.number("residual", 0.0, 1.0, 0.5)
        norm = asked.choice("measure", ("raw", "norm")) == "norm"
        count = asked.whole("edges", 2001, 240)
        lowest = asked.whole("lowest", len(maps), 0, what="a layer to end before")
        key = (which, "flow", stack.maps, batch, tuple(inside), residual, norm, count)
        above = (self._kept.known((*key, layer)) for layer in range(lowest + 1, len(maps)))
        begun = next((found for found in above if found is not None), None)
        traced = self._kept.get(
            (*key, lowest),
            lambda stop: trace(
                maps, batch, inside, residual=residual, norm=norm, edges=count, lowest=lowest,
                begun=begun, stop=stop,
            ),
            stop,
            lambda found: 2 * found.layers.nbytes + found.edges.nbytes,
        )  # fmt: skip
        edges = traced.edges.copy()
        edges[:, 1:] += start
        layers = np.zeros((len(traced.layers), start + keys), np.float32)
        layers[:, start:] = traced.layers
        return Answer(
            {
                "maps": list(stack.maps),
                "note": traced.note,
                "measure": traced.measure,
                "kept": list(traced.kept),
                "lowest": traced.lowest,
            },
            {"layers": layers, "edges": edges, "amounts": traced.amounts},
        )

    def _heads(self, asked: Asked, stop: Stop) -> Answer:
        which = self._recording(asked)
        contents, number = self.contents[which], self._map(asked, which)
        found, place = contents.recording[number], contents.places[number]
        text = None if place.key_text is None else contents.texts[place.key_text]
        names: Sequence[str] = DEFAULT
        if asked.choice("measures", ("default", "all")) == "all":
            known = text is not None and text.ids is not None
            unknown = {"special"} if known else set(NEED_IDS)
            if known and text is not None and text.labelled:
                unknown = set()
            names = [name for name in MEASURES if name not in unknown]
        ids = None if text is None else text.ids
        special: set[int] = set()
        if text is not None and ids is not None:
            for row, one in zip(ids, text.labelled, strict=False):
                special |= {int(row[token]) for token in one.special}
        means = self._kept.get(
            (which, "heads", number, tuple(names)),
            lambda stop: head_sums(
                found.call, names, ids=ids, special=special, also=[_Ends(stop)]
            ).means(),
            stop,
            lambda means: sum(values.nbytes for values in means.values()),
        )
        count = len(found.heads)
        columns: dict[str, Any] = {
            "layer": [number] * count,
            "name": [found.name] * count,
            "head": list(found.heads),
        }
        for name, values in means.items():
            columns[name] = plain(values)
            if name == "most_read_share" and text is not None and text.labels_are != "positions":
                labels = text.labels(0)
                columns["most_read_token"] = [
                    labels[place.first_key + int(at)] for at in means["most_read"]
                ]
        return Answer({"columns": columns})

    def _layout(self, asked: Asked) -> tuple[int, int, int, passages.Layout]:
        """Which recording, stack and sequence, and its passages."""
        which = self._recording(asked)
        contents, stack = self.contents[which], self._stack(asked, which)
        number = contents.stacks[stack].maps[0]
        batch = self._batch_of(asked, which, number)
        at = contents.stacks[stack].text
        if at is None:
            raise Unanswered("unable", "nobody knows the tokens of this text")
        text = contents.texts[at]
        how = asked.choice("how", passages.modes(text))
        key = (which, "layout", stack, batch, how)
        found = self._kept.get(
            key,
            lambda stop: passages.layout(text, how, batch, contents.first_token(number, batch)),
            Stop(),
            lambda found: int(found.groups.nbytes),
        )
        return which, stack, batch, found

    def _passages(self, asked: Asked, stop: Stop) -> Answer:
        return Answer(self._layout(asked)[-1].to_dict())

    def _segments(self, asked: Asked, stop: Stop) -> Answer:
        which, stack, batch, found = self._layout(asked)
        contents = self.contents[which]
        maps = contents.stacks[stack].maps
        at = head = None
        if "map" in asked:
            number = self._map(asked, which)
            if number not in maps:
                raise asked.wrong(f"map {number} is not in stack {stack}")
            at = maps.index(number)
            if "head" in asked:
                heads = contents.recording[number].shape[1]
                head = asked.whole("head", heads, what="a head of this map")
        elif "head" in asked:
            raise asked.wrong("head goes with map: which map is it of?")
        norm = asked.choice("measure", ("raw", "norm")) == "norm"
        tables = passages.passage_tables(
            contents, (which, stack), batch, found, norm, self._kept, stop
        )
        return Answer(
            found.to_dict() | {"measure": tables.measure, "note": tables.note},
            {"shares": tables.table(at, head), "even": tables.even},
        )


def fingerprint(file: Path) -> str:
    """What tells a file from another, and from itself after a change."""
    state = file.stat()
    with file.open("rb") as opened:
        head = opened.read(1 << 16)
    mark = f"{state.st_size} {state.st_mtime_ns}".encode()
    return hashlib.sha256(mark + head).hexdigest()[:16]


class _Ends:
    """Ends a pass over the tiles when nobody waits any more."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def see(self, weights: Any, tile: Tile) -> None:
        self._stop.check()


def _runs(where: np.ndarray[Any, np.dtype[Any]]) -> list[list[int]]:
    """Ranges [first, stop) in which a boolean array is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], where, [False]]).astype(np.int8)))
    return [[int(first), int(stop)] for first, stop in edges.reshape(-1, 2)]
