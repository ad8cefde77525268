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
from jumok.view.fonts import font_family
from jumok.view.terminal import MOST_OCCURRENCES, Bars, Sentence, look, overview
from jumok.view.wording import (
    layers_named,
    percent,
    query_name,
    read_by,
    source_names,
    word_name,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["look_translation", "picture"]

MOST_READERS = 8  # words of the target that read one of the source

_MEANING = (
    "A share is how much of what cross-attention brings to the position that writes the word comes "
    "from there: weight × length of the value it hands over, all heads, mean of {layers}; all "
    "shares, those of special tokens included, make 100 %."
)
_MEANING_RAW = (
    "A number is the weight of cross-attention, mean of all heads and {layers} ({note}); all of "
    "them, those of special tokens included, make 100 %."
)


def look_translation(
    data: Translation, whole: Translation | None = None, wrote: bool = True
) -> RenderableType:
    """The target, what each of its words read of the source, and the source by itself.

    Args:
        data: from `jumok.lens.translation`.
        whole: what ``data`` is a part of, if single words were asked for: each is shown in full,
            and the source's likewise.
        wrote: whether the model wrote the target itself.
    """
    said = printable(shortened(" ".join(data.target.split()), 400)) or "nothing"
    read_from = printable(shortened(" ".join(data.reads.text.split()), 400))
    parts: list[RenderableType] = [
        paragraph(
            ("Which words of the source each word of the target read", "bold"),
            f"  ·  {read_by(data.reads)} of the decoder",
        ),
        "",
        indented(paragraph(("source  ", "dim"), (read_from, "italic"))),
        indented(paragraph((f"{'it wrote' if wrote else 'target'}  ", "dim"), (said, "italic"))),
        "",
    ]
    if whole is None:
        parts += [indented(_table(data)), ""]
    else:
        for query in data.reads.queries[:MOST_OCCURRENCES]:
            parts += [
                paragraph((f"What “{word_name(query.word)}” of the target read", "bold")),
                "",
                indented(Sentence(data.reads, query)),
                "",
                Bars(data.reads, query),
                "",
            ]
        for query in data.within.queries[:MOST_OCCURRENCES]:
            parts += [
                paragraph((f"Which words of the target read “{query_name(query)}”", "bold")),
                "",
                indented(_readers(whole, query)),
                "",
            ]
    form = _MEANING if data.reads.measure == "share" else _MEANING_RAW
    explained = form.format(layers=layers_named(data.reads.layers), note=data.reads.note)
    apart = [] if whole is not None else ["apart: special tokens of the source."]
    parts += [*dimmed([*apart, explained]), ""]
    if data.within.queries:
        parts += [paragraph(("Within the source, as the encoder reads it", "bold")), ""]
        parts += [(overview if whole is None else look)(data.within)]
    return Group(*parts)


def _readers(whole: Translation, source: Query) -> RenderableType:
    """The words of the target, those that read a word of the source most first."""
    shares = [(query.sources[source.position].share, query) for query in whole.reads.queries]
    ranked = sorted(shares, key=lambda one: -one[0])[:MOST_READERS]
    return Flow(
        [
            Text(f"{word_name(query.word)} {100 * share:.0f} %", _tint(share))
            for share, query in ranked
        ],
        gap=3,
    )


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
    from jumok.view.figure import (
        INK,
        MOST_NUMBERS,
        POINTS_PER_CM,
        SMALLEST,
        check_width,
        new_figure,
        thinned,
    )

    check_width(width)
    import matplotlib

    queries = data.reads.queries
    shares = 100 * np.array([[one.share for one in query.sources] for query in queries])
    rows, columns = shares.shape
    across_names = [shortened(name, 20) for name in source_names(queries[0]).values()]
    down_names = [shortened(word_name(query.word), 20) for query in queries]
    family = font_family("".join([*across_names, *down_names, data.reads.model]))
    height = width * 0.86 * min(max(rows / columns, 0.1), 1.5) + 3
    made = new_figure(width / 2.54, height / 2.54)
    made.set_layout_engine("constrained")
    axes = made.subplots()
    # One special token often takes most of a row; it shall not make all else pale.
    top = 125 * max((one.share for query in queries for one in query.ranked()), default=0.8)
    image = axes.imshow(
        shares, cmap=matplotlib.colormaps["YlOrBr"], vmin=0.0, vmax=top or 1.0, aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    cell = 0.8 * width * POINTS_PER_CM / columns
    size = max(min(8.5, 0.75 * cell), SMALLEST)
    across = thinned(columns, cell)
    down = thinned(rows, 0.7 * height * POINTS_PER_CM / rows)
    axes.set_xticks(across, [across_names[place] for place in across], rotation=60, ha="right",
                    rotation_mode="anchor", fontsize=size, family=family)  # fmt: skip
    axes.set_yticks(down, [down_names[place] for place in down], fontsize=size, family=family)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_parse_math(False)
    for column, source in enumerate(queries[0].sources):
        if source.kind != "word" and column in across:
            axes.get_xticklabels()[across.index(column)].set_color("#767676")
    numbers = columns <= MOST_NUMBERS
    if numbers:
        for (row, column), share in np.ndenumerate(shares):
            ink = "#ffffff" if share > 0.65 * top else INK
            axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=size,
                      color=ink)  # fmt: skip
    else:
        scale = made.colorbar(image, ax=axes, extend="max", aspect=40, pad=0.02)
        scale.set_label("share in %", fontsize=8.5)
        scale.ax.tick_params(labelsize=7)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0 if numbers else 2)
    axes.set_xlabel("the source, read by the encoder (grey: special tokens)", fontsize=8.5)
    axes.set_ylabel("the target", fontsize=8.5)
    axes.set_title(
        f"Which words of the source each word of the target read, in %\n{read_by(data.reads)} of "
        f"the decoder; each row sums to 100 %",
        fontsize=9,
        family=family,
        parse_math=False,
    )
    return made
