"""Which passage of a long text did a passage read?

For a reading passage s and a passage t that is read, the share is the mean over the tokens i of
s of Σ_{j in t} share_ij: how much of what attention brings to s comes from t, by the length of
the vectors that are mixed (`jumok.lens.sources` has the formula), added over the heads and
averaged over the layers. The raw share takes the weights w_ij instead, averaged over heads and
layers. One pass over the tiles of each layer, in memory that grows with the tokens, not their
square.

The first token of a GPT, into which heads pour what they don't need (the sink, Xiao et al.
2023), special tokens and what stands between the passages are counted apart. Shares are of all
keys: what stands apart is never divided away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jumok.lens.segment_layout import Apart, Layout, Segment, real_positions
from jumok.lens.segment_tables import Tables, measure_passages
from jumok.lens.selection import last_queries, recorded_ids, self_attention
from jumok.lens.sources import Head
from jumok.lens.value_notes import norms_to_weigh_with
from jumok.tokens import as_tokenizer
from jumok.tokens.passages import Beginnings

if TYPE_CHECKING:
    from jumok.lens.recording import Recording

__all__ = ["Apart", "Part", "Segment", "Segments", "segments"]

Numbers = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["segment", "itself", "first", "special", "between"]
Progress = Callable[[int, int], None]

TOP_HEADS = 3


@dataclass(frozen=True)
class Part:
    """What one passage reads of another, or of what stands apart.

    Attributes:
        name: of the passage that is read; what stands apart has its kind for a name.
        position: its place among the passages, from 0; `None` for what stands apart.
        kind: "segment", "itself" or one of `Apart`.
        count: how many tokens it has.
        share: fraction (0 to 1) of everything that is read; what `Segments.measure` says.
        raw: mean attention weight over heads and layers, 0 to 1.
        even: the share if the reader read all tokens that it sees evenly: what its length and
            place alone would give.
        heads: the heads of which it receives the largest weight, strongest first.
        loss: what the answer's log-probability loses without it, in nats; `None` if unknown.
    """

    name: str
    position: int | None
    kind: Kind
    count: int
    share: float
    raw: float
    even: float
    heads: tuple[Head, ...] = ()
    loss: float | None = None

    @property
    def times(self) -> float | None:
        """share / even: above 1 it is read more than its length alone would give."""
        return self.share / self.even if self.even > 0 else None


@dataclass(frozen=True, eq=False)
class Segments:
    """Which passage reads which; what `jumok look --segments` shows.

    Attributes:
        model: the model's name.
        text: the text, the model's answer included.
        tokens: how many tokens it has.
        layers: indices of the layers that were averaged, from 0.
        causal: whether tokens see only what stands to their left.
        measure: "share" (weights times the length of what is handed over) or "raw" (weights).
        note: why `measure` is what it is.
        segments: the passages, S; the answer is the last.
        apart: what is counted apart, the last columns of every table.
        answered: whether the last passage is what the model wrote.
        share: tables (S, C) of `measure`; C = S + len(apart) columns.
        raw: tables of the plain weights.
        even: float64 (S, C), what an even reader would read.
        losses: what the answer's log-probability loses without each passage, in nats, S long;
            `None` for the answer and where it wasn't asked for (`jumok.leave_out`).
    """

    model: str
    text: str
    tokens: int
    layers: tuple[int, ...]
    causal: bool
    measure: Literal["share", "raw"]
    note: str
    segments: tuple[Segment, ...]
    apart: tuple[Apart, ...]
    answered: bool
    share: Tables
    raw: Tables
    even: Numbers
    losses: tuple[float | None, ...] | None = None

    def parts(self, reader: int = -1) -> list[Part]:
        """What one passage, by default the last, reads of each passage and of what stands apart.

        In the order of the columns; their shares sum to 1. Of a passage without tokens all are 0.
        """
        reader = self._place(reader)
        share, raw = self.share.total[reader], self.raw.total[reader]
        found = []
        columns: list[Segment | Apart] = [*self.segments, *self.apart]
        for place, column in enumerate(columns):
            inside = place if isinstance(column, Segment) else None
            kind: Kind = "segment" if isinstance(column, Segment) else column.kind
            found.append(
                Part(
                    name=column.name if isinstance(column, Segment) else column.kind,
                    position=inside,
                    kind="itself" if place == reader else kind,
                    count=column.count,
                    share=float(share[place]),
                    raw=float(raw[place]),
                    even=float(self.even[reader, place]),
                    loss=self._loss(reader, inside),
                )
            )
        return found

    def ranked(self, reader: int = -1, heads: int = TOP_HEADS) -> list[Part]:
        """The other passages that the reader sees, largest share first; the first with heads.

        Args:
            reader: the passage that reads.
            heads: how many heads of each of the first three to name.
        """
        found = [one for one in self.parts(reader) if one.kind == "segment" and one.even > 0]
        found.sort(key=lambda part: -part.share)
        return [
            dataclasses.replace(part, heads=self.top_heads(reader, part.position or 0, heads))
            if place < TOP_HEADS
            else part
            for place, part in enumerate(found)
        ]

    def top_heads(self, reader: int, read: int, most: int = TOP_HEADS) -> tuple[Head, ...]:
        """The heads that give the most weight from one passage to another, strongest first."""
        reader, read = self._place(reader), self._place(read)
        found = [
            Head(layer, head, float(weight))
            for layer, numbers, table in zip(
                self.raw.layers, self.raw.head_numbers, self.raw.heads, strict=True
            )
            for head, weight in zip(numbers, table[:, reader, read], strict=True)
        ]
        return tuple(sorted(found, key=lambda head: -head.weight)[:most])

    def _loss(self, reader: int, read: int | None) -> float | None:
        last = len(self.segments) - 1
        return None if self.losses is None or read is None or reader != last else self.losses[read]

    def _place(self, number: int) -> int:
        size = len(self.segments)
        if not -size <= number < size:
            raise ValueError(f"there is no segment {number}: they count from 0 to {size - 1}")
        return number % size

    def to_dict(self) -> dict[str, Any]:
        """The object that `jumok look --segments --json` prints: plain values only."""
        reader = len(self.segments) - 1
        heads = {part.position: part.heads for part in self.ranked(reader)}
        return {
            "model": self.model,
            "text": self.text,
            "tokens": self.tokens,
            "layers": list(self.layers),
            "causal": self.causal,
            "measure": self.measure,
            "note": self.note,
            "answered": self.answered,
            "segments": [
                {"name": one.name, "text": one.text, "tokens": list(one.tokens),
                 "count": one.count}
                for one in self.segments
            ],
            "apart": [{"kind": one.kind, "count": one.count} for one in self.apart],
            "share": self.share.total.tolist(),
            "raw": self.raw.total.tolist(),
            "even": self.even.tolist(),
            "last": [
                {
                    "name": part.name,
                    "position": part.position,
                    "kind": part.kind,
                    "count": part.count,
                    "share": part.share,
                    "raw": part.raw,
                    "even": part.even,
                    "times": part.times,
                    "loss": part.loss,
                    "heads": [dataclasses.asdict(head) for head in heads.get(part.position, ())],
                }
                for part in self.parts(reader)
            ],
            "by_layer": self.share.by_layer[:, reader].tolist(),
        }  # fmt: skip


def segments(
    recording: Recording,
    tokenizer: Any,
    how: str | Sequence[Any] | Beginnings = "paragraphs",
    *,
    text: str | None = None,
    prompt: int | None = None,
    layers: int | Iterable[int] | None = None,
    batch: int = 0,
    raw: bool = False,
    progress: Progress | None = None,
    ids: Sequence[int] | None = None,
) -> Segments:
    """How much each passage of a text reads of each, in a recorded forward pass or generation.

    Args:
        recording: of a model that read one text: self-attention maps (B, H, T, T).
        tokenizer: the model's; ours, a ``tokenizers.Tokenizer`` or a transformers tokenizer.
        how: "paragraphs" (between blank lines), "lines", "chat" (the turns of a chat template);
            or the bounds of the passages in tokens, both ends included, such as ``[0, 120, 800]``;
            or what they are: a list of texts, a mapping of names to texts, objects with "name"
            and "text" (or "start" and "end" in characters).
        text: the text that the model read; without it, it is rebuilt from the token ids.
        prompt: how many tokens the prompt has, where the model went on: what it wrote is the last
            passage, the answer. Its readers are the positions that wrote it, each one before its
            token.
        layers: which layers to average, from 0; all of them by default.
        batch: which text of the batch.
        raw: show plain attention weights instead of norm-weighted shares.
        progress: called with (layers that are measured, all of them).
        ids: the token ids of the whole text, without padding, where the recording begins in its
            middle, as a cache held the beginning already: its maps are (1, H, Tq, Tk), with the
            last of the tokens as queries. Passages without a recorded query read nothing.

    Raises:
        ValueError: passages, layers or a text that are not in the recording; more than 512
            passages.
        TypeError: ``how`` describes no passages.

    Example:
        >>> found = jumok.segments(recording, tokenizer, "paragraphs")
        >>> found.ranked()[0].name  # what the last paragraph reads most
        'The warranty covers parts and…'
    """
    tokenizer = as_tokenizer(tokenizer)
    whole = recorded_ids(recording, tokenizer, text, batch) if ids is None else list(ids)
    size = len(whole)
    if prompt is None:
        prompt = size
    elif not 0 < prompt < size:
        raise ValueError(
            f"prompt={prompt}: the recording has {size} tokens; give the number of those that the "
            "prompt has, at least 1 and fewer than all"
        )
    maps = (self_attention if ids is None else last_queries)(recording, layers, size)
    causal = all(attention.is_causal for _, attention in maps)
    layout = Layout(tokenizer, whole, prompt, how, text)
    real = real_positions(maps[0][1], batch) if ids is None else np.ones(size, bool)
    groups, found, apart = layout.grouped(int(np.argmax(real)) if causal else None)
    readers = layout.readers(groups, len(found), real)

    norms, note = norms_to_weigh_with([attention for _, attention in maps], raw)
    columns = len(found) + len(apart)
    measured = measure_passages(maps, norms, groups, columns, readers, batch, progress)
    return Segments(
        model=recording.model_name,
        text=layout.text,
        tokens=size,
        layers=tuple(layer for layer, _ in maps),
        causal=causal,
        measure="raw" if norms is None else "share",
        note=note,
        segments=found,
        apart=apart,
        answered=prompt < size,
        share=measured.share,
        raw=measured.raw,
        even=measured.even,
    )
