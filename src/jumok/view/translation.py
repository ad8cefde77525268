"""What `jumok look` shows of an encoder-decoder: in the terminal and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jumok.lens.sources import Query
from jumok.lens.translation import Translation
from jumok.tokens import printable, shortened
from jumok.view.flow import Flow, dimmed, indented, paragraph
from jumok.view.terminal import MOST_OCCURRENCES, Bars, Sentence, look, overview
from jumok.view.wording import layers_named, percent, read_by, source_names, word_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["look_translation", "picture"]

_MEANING = (
    "A share is how much of what cross-attention brings to the position that writes the word comes "
    "from there: weight × length of the value it hands over, all heads, mean of {layers}; all "
    "shares, those of special tokens included, make 100 %."
)
_MEANING_RAW = (
    "A number is the weight of cross-attention, mean of all heads and {layers} ({note}); all of "
    "them, those of special tokens included, make 100 %."
)


def look_translation(data: Translation, chosen: bool = False, wrote: bool = True) -> RenderableType:
    """The target, what each of its words read of the source, and the source by itself.

    Args:
        data: from `jumok.lens.translation`.
        chosen: its words were asked for: each is shown in full, and the source's likewise.
        wrote: whether the model wrote the target itself.
    """
    said = printable(shortened(" ".join(data.target.split()), 400)) or "nothing"
    parts: list[RenderableType] = [
        paragraph(
            ("Which words of the source each word of the target read", "bold"),
            f"  ·  {read_by(data.reads)} of the decoder",
        ),
        "",
        indented(paragraph((f"{'It wrote' if wrote else 'Target'}: “{said}”", "italic"))),
        "",
    ]
    if chosen:
        for query in data.reads.queries[:MOST_OCCURRENCES]:
            parts += [
                paragraph((f"What “{word_name(query.word)}” of the target read", "bold")),
                "",
                indented(Sentence(data.reads, query)),
                "",
                Bars(data.reads, query),
                "",
            ]
    else:
        parts += [indented(_table(data)), ""]
    form = _MEANING if data.reads.measure == "share" else _MEANING_RAW
    explained = form.format(layers=layers_named(data.reads.layers), note=data.reads.note)
    parts += [*dimmed([explained]), ""]
    if data.within.queries:
        parts += [(look if chosen else overview)(data.within)]
    return Group(*parts)


def _table(data: Translation) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    table.add_column("target", overflow="fold", min_width=6)
    table.add_column("read most of the source", overflow="fold")
    table.add_column("apart", justify="right", no_wrap=True)
    for query in data.reads.queries:
        names = source_names(query)
        read = [Text(f"{names[one.position]} {100 * one.share:.0f} %", _tint(one.share))
                for one in query.ranked()[:3]]  # fmt: skip
        nothing = [Text("nothing but special tokens", "dim")]
        table.add_row(
            Text(word_name(query.word), "bold"),
            Flow(read or nothing, gap=3),
            Text(percent(_apart(query)), "dim"),
        )
    return table


def _apart(query: Query) -> float:
    return sum(source.share for source in query.apart())


def _tint(share: float) -> str:
    return "bold" if share >= 0.2 else "" if share >= 0.05 else "dim"


def picture(data: Translation, *, width: float = 16.0) -> Figure:
    """The shares as a table in colour: a row for each word of the target, a column for each of
    the source.

    Args:
        data: from `jumok.lens.translation`.
        width: of the figure, in cm.
    """
    from jumok.view.figure import heat_map

    shares = np.array([[one.share for one in query.sources] for query in data.reads.queries])
    title = f"{data.reads.model}: source words (columns) that each target word (rows) read"
    return heat_map(
        shares,
        [word_name(query.word) for query in data.reads.queries],
        [word_name(word.text) for word in data.reads.words],
        title,
        width,
    )
