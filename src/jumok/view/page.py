"""The page as one file: no server, no network; it can be sent by mail and opens from a disk.

What the page would ask is answered beforehand and lies in the file, each array compressed by
itself. Of texts of up to 512 tokens the single weights of as many heads as fit are there, to four
digits; of longer texts their maps are pooled. What does not fit in 10 MB is left out, and the page
says so. The format is described in ``ui/QUESTIONS.md``.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from array_api_compat import array_namespace

from jumok.lens.attention_map import AttentionMap
from jumok.lens.value_notes import norms_to_weigh_with
from jumok.view.answers import Answer, Unanswered, json_bytes
from jumok.view.questions import Questions
from jumok.view.server import assets
from jumok.view.tiles import TILE, levels

__all__ = ["MOST_BYTES", "MOST_TOKENS", "SelfContained", "self_contained"]

Numbers = np.ndarray[Any, np.dtype[Any]]

MOST_BYTES = 10_000_000
"""What a file may take."""

MOST_TOKENS = 512
"""Longer texts are pooled."""

_UNIT = 1e-4  # of a weight
_MOST_PASSES = 1 << 33  # weights of a recording that the table of heads is made of
_POOLED = 512  # cells along each side of a pooled map

_DEFAULTS: dict[str, dict[str, str]] = {
    "": {"recording": "0", "batch": "0", "stack": "0"},
    "labels": {"text": "0", "start": "0", "count": "8192"},
    "grid": {"size": "32", "how": "max"},
    "tile": {"how": "max", "scaled": "0", "draft": "0"},
    "heads": {"measures": "default"},
    "segments": {"measure": "raw"},
}


@dataclass(frozen=True)
class SelfContained:
    """A page in one file.

    Attributes:
        html: the file.
        left_out: sentences about what it does not hold.
    """

    html: str
    left_out: tuple[str, ...]


class _Full(Exception):
    """It does not fit any more."""


class _Blocks:
    """Answers and their arrays, as long as there is room.

    Args:
        room: bytes.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.answers: dict[str, dict[str, Any]] = {}
        self._blocks: list[bytes] = []
        self._size = 0
        self._json = 0

    def add(
        self,
        name: str,
        parameters: dict[str, Any],
        answer: Answer,
        kinds: dict[str, str] | None = None,
        *,
        always: bool = False,
    ) -> None:
        """Put an answer in.

        Args:
            name: of the question.
            parameters: of it.
            answer: as the page gets it.
            kinds: as what its arrays are written: "decimal", "float16", "uint8".
            always: the page cannot do without.

        Raises:
            _Full: it does not fit, and was not put in.
        """
        blocks, headings, at = [], [], self._size
        for heading, array in answer.arrays.items():
            kind = (kinds or {}).get(heading, array.dtype.name)
            block = _deflated(_written(array, kind))
            headings.append({"name": heading, "shape": list(array.shape), "type": kind,
                             "offset": at, "length": len(block)})  # fmt: skip
            blocks.append(block)
            at += len(block)
        entry = {"fields": answer.fields, "arrays": headings}
        said = len(_deflated(json_bytes(entry))) + len(name) + 40
        if at + self._json + said > self.room and not always:
            raise _Full
        self.answers[_key(name, parameters)] = entry
        self._blocks += blocks
        self._size = at
        self._json += said

    def packed(self) -> bytes:
        """Everything, as it lies in the file."""
        head = _deflated(json_bytes({"answers": self.answers}))
        return b"".join([len(head).to_bytes(4, "little"), head, *self._blocks])


def self_contained(
    questions: Questions, heads: Sequence[tuple[int, int]] = (), title: str = "jumok"
) -> SelfContained:
    """The page and its answers in one HTML file below 10 MB.

    Args:
        questions: who answers; made with ``transport="file"``.
        heads: (map, head) whose single weights come first; as many others as fit follow.
        title: of the page.

    Raises:
        FileNotFoundError: the page has not been built.
        ValueError: there is no such head.
    """
    script, style = assets()
    code = script.replace(b"</script", rb"\x3c/script").replace(b"<!--", rb"\x3c!--")
    shell = len(code) + len(style) + 4000
    maker = _Maker(questions, _Blocks((MOST_BYTES - shell) * 3 // 4 - 50_000))
    maker.fill(heads)
    digest = base64.b64encode(hashlib.sha256(code).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    html = "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{_escaped(title)}</title>\n",
            "<style>",
            style.decode().replace("</", r"<\/"),
            "</style>\n</head>\n<body>\n",
            '<div id="jumok-viewer" data-source="file"></div>\n',
            '<script type="application/octet-stream" id="jumok-data">',
            base64.b64encode(maker.blocks.packed()).decode(),
            '</script>\n<script type="module">',
            code.decode(),
            "</script>\n</body>\n</html>\n",
        ]
    )
    assert len(html.encode()) < MOST_BYTES
    return SelfContained(html, tuple(maker.left_out))


class _Maker:
    """Fills the blocks, what matters most first."""

    def __init__(self, questions: Questions, blocks: _Blocks) -> None:
        self._questions = questions
        self.blocks = blocks
        self.left_out: list[str] = []

    def fill(self, heads: Sequence[tuple[int, int]]) -> None:
        about = self._questions.answer("about").fields
        recordings = about["recordings"]
        for which, one in enumerate(recordings):
            self._labels(which, one)
            self._passages(which, one)
        for which, one in enumerate(recordings):
            self._grids(which, one)
            self._table(which, one)
        if len(recordings) > 1:
            self._ask("aligned", {}, always=True)
        whole = self.blocks.room
        for which, one in enumerate(recordings):
            self._shares(which, one)
            self._check(heads, one)
            self._heads(which, one, heads)
        # Single heads and single layers share what is left; the vectors get the rest.
        for part, fill in ((0.55, self._heads), (0.85, self._layers), (0.9, self._heads)):
            self.blocks.room = int(part * whole)
            for which, one in enumerate(recordings):
                fill(which, one)
        self.blocks.room = whole
        for which, one in enumerate(recordings):
            self._vectors(which, one["maps"])
            self._say(one)
        about["left_out"] = self.left_out
        self.blocks.room += 40_000  # was kept back for this
        self.blocks.add("about", {}, Answer(about), always=True)

    def _ask(
        self,
        name: str,
        parameters: dict[str, Any],
        kinds: dict[str, str] | None = None,
        *,
        always: bool = False,
    ) -> bool:
        """Put an answer in; whether it was there and fitted."""
        try:
            answer = self._questions.answer(name, {k: str(v) for k, v in parameters.items()})
            self.blocks.add(name, parameters, answer, kinds, always=always)
        except (Unanswered, _Full):
            return False
        return True

    def _labels(self, which: int, one: dict[str, Any]) -> None:
        for number, text in enumerate(one["texts"]):
            for start in range(0, text["tokens"], 8192):
                at = {"recording": which, "text": number, "start": start}
                if not self._ask("labels", at):
                    self.left_out.append(f"The words from token {start:,} on are left out.")
                    return

    def _passages(self, which: int, one: dict[str, Any]) -> None:
        for stack, described in enumerate(one["stacks"]):
            if described["text"] is None:
                continue
            for how in one["passages"]:
                self._ask_how("passages", {"recording": which, "stack": stack}, how, one)

    def _ask_how(
        self, name: str, parameters: dict[str, Any], how: str, one: dict[str, Any]
    ) -> None:
        """Passages cut in one way; the first way also where none is named."""
        self._ask(name, parameters | {"how": how})
        if how == one["passages"][0]:
            self._alias(name, parameters | {"how": how}, parameters)

    def _alias(self, name: str, parameters: dict[str, Any], other: dict[str, Any]) -> None:
        """The same answer under another name."""
        found = self.blocks.answers.get(_key(name, parameters))
        if found is not None:
            self.blocks.answers[_key(name, other)] = found

    def _grids(self, which: int, one: dict[str, Any]) -> None:
        count, done = len(one["maps"]), 0
        for how in ("max", "mean"):
            for number in range(count):
                at = {"recording": which, "map": number, "how": how}
                if not self._ask("grid", at, {"values": "float16"}):
                    break
                done += 1
        if done < 2 * count:
            self.left_out.append("Small maps of some layers are left out.")

    def _table(self, which: int, one: dict[str, Any]) -> None:
        maps = one["maps"]
        if sum(m["heads"] * m["queries"] * m["keys"] for m in maps) > _MOST_PASSES:
            self.left_out.append("The table of heads is left out: it would take long to compute.")
            return
        for number in range(len(maps)):
            at: dict[str, Any] = {"recording": which, "map": number}
            if not self._ask("heads", at | {"measures": "all"}):
                self.left_out.append("The table of heads is left out.")
                return
            self._alias("heads", at | {"measures": "all"}, at)
        for stack, described in enumerate(one["stacks"]):
            for how in one["passages"][:2] if described["text"] is not None else ():
                for measure in ("raw", "norm"):
                    at = {"recording": which, "stack": stack, "measure": measure}
                    self._ask_how("segments", at, how, one)
                    for number in described["maps"]:
                        self._ask_how("segments", at | {"map": number}, how, one)

    # -- short texts: who reads whom ----------------------------------------------------------

    def _shares(self, which: int, one: dict[str, Any]) -> None:
        """What every token reads by all layers."""
        recording = self._questions.contents[which].recording
        for stack, described in enumerate(one["stacks"]):
            maps = [recording[number] for number in described["maps"]]
            if max(maps[0].shape[2:]) > MOST_TOKENS:
                self.left_out.append(
                    f"The text has {maps[0].shape[3]:,} tokens: which word reads which is held for "
                    f"up to {MOST_TOKENS}. Open the recording with jumok view to see it."
                )
                continue
            for measure in ("norm", "raw"):
                matrices = _matrices(maps, measure == "norm")
                if matrices:
                    at = {"recording": which, "stack": stack, "measure": measure}
                    self._put("shares", at, {"values": np.mean(matrices, axis=0)})

    def _layers(self, which: int, one: dict[str, Any]) -> None:
        """What every token reads by each layer."""
        recording = self._questions.contents[which].recording
        for measure in ("norm", "raw"):
            missing = 0
            for described in one["stacks"]:
                maps = [recording[number] for number in described["maps"]]
                if max(maps[0].shape[2:]) > MOST_TOKENS:
                    continue
                matrices = _matrices(maps, measure == "norm")
                for number, matrix in zip(described["maps"], matrices, strict=bool(matrices)):
                    at = {"recording": which, "map": number, "measure": measure}
                    missing += not self._put("layer", at, {"values": matrix})
            if missing:
                kind = "weights times values" if measure == "norm" else "plain weights"
                self.left_out.append(
                    f"What words read in a single layer ({kind}) is left out for {missing} layers, "
                    "and with it the flow through the layers."
                )

    def _put(self, name: str, parameters: dict[str, Any], arrays: dict[str, Numbers]) -> bool:
        kinds = {heading: "uint8" if heading == "visible" else "decimal" for heading in arrays}
        try:
            self.blocks.add(name, parameters, Answer({}, arrays), kinds)
        except _Full:
            return False
        return True

    # -- heads --------------------------------------------------------------------------------

    def _check(self, heads: Sequence[tuple[int, int]], one: dict[str, Any]) -> None:
        maps = one["maps"]
        for number, head in heads:
            if number >= len(maps) or head >= maps[number]["heads"]:
                raise ValueError(
                    f"there is no head {number}.{head}: layers 0 to {len(maps) - 1}, heads 0 to "
                    f"{maps[0]['heads'] - 1}"
                )

    def _heads(
        self, which: int, one: dict[str, Any], wanted: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Single weights, or pooled maps, of the wanted heads; of as many as fit if none is."""
        maps = one["maps"]
        for number, head in wanted or self._spread(which, one):
            described = maps[number]
            held = described["held"] = described["held"] or []
            if head in held:
                continue
            short = max(described["queries"], described["keys"]) <= MOST_TOKENS
            try:
                (self._weights if short else self._pooled)(which, number, head, described)
            except _Full:
                continue
            held.append(head)
            held.sort()

    def _say(self, one: dict[str, Any]) -> None:
        """What is left out of the heads."""
        maps = one["maps"]
        every = sum(m["heads"] for m in maps)
        missing = every - sum(len(m["held"]) for m in maps)
        if missing:
            self.left_out.append(
                f"The maps of {missing} of {every} heads are left out; their small maps are in the "
                "grid."
            )
        if any(m["finest"] for m in maps):
            self.left_out.append(
                "The text is long: its maps are pooled, and single weights are left out. Open the "
                "recording with jumok view to see them."
            )
        else:
            self.left_out.append("Single weights are given to four digits.")

    def _spread(self, which: int, one: dict[str, Any]) -> list[tuple[int, int]]:
        """All heads, those first that read few tokens and not the first one."""
        scores = []
        for number, described in enumerate(one["maps"]):
            at = _key("heads", {"recording": which, "map": number, "measures": "all"})
            columns = self.blocks.answers.get(at, {}).get("fields", {}).get("columns", {})
            for head in range(described["heads"]):
                entropy = columns["entropy"][head] if columns else head
                sink = columns["first"][head] if columns else 0
                scores.append(((sink or 0) > 0.5, entropy or 0, number, head))
        return [(number, head) for _, _, number, head in sorted(scores)]

    def _weights(self, which: int, number: int, head: int, described: dict[str, Any]) -> None:
        found = self._questions.contents[which].recording[number]
        weights = _numpy(found[0, head])
        at = {"recording": which, "map": number, "head": head}
        arrays = {"values": weights, "visible": _visible(found, head)}
        self.blocks.add(
            "weights", at, Answer({}, arrays), {"values": "decimal", "visible": "uint8"}
        )

    def _pooled(self, which: int, number: int, head: int, described: dict[str, Any]) -> None:
        """The tiles of the levels that have at most 512 cells along each side."""
        queries, keys = described["queries"], described["keys"]
        finest = (-(-max(queries, keys) // _POOLED) - 1).bit_length()
        described["finest"] = finest
        for level in range(levels(queries, keys) - 1, finest - 1, -1):
            side = TILE << level
            for y in range(-(-queries // side)):
                for x in range(-(-keys // side)):
                    at = {"recording": which, "map": number, "head": head, "level": level,
                          "x": x, "y": y}  # fmt: skip
                    if not self._ask("tile", at, {"values": "float16"}):
                        raise _Full

    def _vectors(self, which: int, maps: list[dict[str, Any]]) -> None:
        """q, k and v of as many maps as fit."""
        recording = self._questions.contents[which].recording
        missing = 0
        for number in range(len(maps)):
            found = recording[number]
            call = found.call
            plain = call.bias is None and call.sinks is None
            if max(found.shape[2:]) > MOST_TOKENS or not plain or call.v is None:
                missing += 1
                continue
            xp = array_namespace(call.q)
            arrays = {
                name: _numpy(xp.astype(array[0], xp.float32))
                for name, array in (("q", call.q), ("k", call.k), ("v", call.v))
            }
            arrays["visible"] = _visible(found, 0)
            at = {"recording": which, "map": number}
            try:
                self.blocks.add("vectors", at, Answer({}, arrays), {"visible": "uint8"})
            except _Full:
                missing += 1
        if missing:
            self.left_out.append(
                f"The steps of the calculation are left out for {missing} of {len(maps)} layers."
            )


def _matrices(maps: Sequence[AttentionMap], norm: bool) -> list[Numbers]:
    """What every query reads of every key in each layer; nothing where norms are not known."""
    norms, _ = norms_to_weigh_with(maps, raw=not norm)
    if norm and norms is None:
        return []
    made = []
    for number, found in enumerate(maps):
        weights = _numpy(found[0])
        if norms is None:
            made.append(weights.mean(0))
            continue
        brought = (weights * _numpy(norms[number][0])[:, None]).sum(0)
        total = brought.sum(-1, keepdims=True)
        made.append(brought / np.where(total > 0, total, 1))
    return made


def _visible(found: AttentionMap, head: int) -> Numbers:
    """What the mask lets see, uint8 (queries, keys)."""
    _, _, queries, keys = found.shape
    scores = _numpy(found.call.scores([0], [head], range(queries), range(keys)))[0, 0]
    return np.asarray(scores > np.finfo(np.float32).min / 2, np.uint8)


def _written(array: Numbers, kind: str) -> bytes:
    if kind == "decimal":
        return np.rint(array / _UNIT).astype("<u2").tobytes()
    kinds = {"float32": "<f4", "int32": "<i4", "float16": "<f2", "uint8": "u1"}
    return np.ascontiguousarray(array, kinds[kind]).tobytes()


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def _key(name: str, parameters: dict[str, Any]) -> str:
    """How a question is called in the file: without what is as it would be anyway."""
    usual = _DEFAULTS[""] | _DEFAULTS.get(name, {})
    said = sorted(
        (key, str(value)) for key, value in parameters.items() if usual.get(key) != str(value)
    )
    query = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in said)
    return f"{name}?{query}" if query else name


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _numpy(array: Any) -> Numbers:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)
