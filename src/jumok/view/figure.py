"""Pictures for papers and slides: the heat map of a head, and what `jumok look` shows.

Both are matplotlib figures that no global state knows of; ``savefig`` writes PNG, SVG or PDF.
Letters are drawn with the first installed font that has them, so that Korean, Chinese and
Japanese appear; a sign that no font has is named in a warning.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jumok.lens.sources import Query, Source, Sources, difference
from jumok.tokens import as_tokenizer, shortened
from jumok.view.fonts import font_family, quietly
from jumok.view.wording import (
    MOST_BARS,
    SHADES,
    apart_name,
    difference_name,
    first_words,
    is_overview,
    largest_share,
    longest_bar,
    meaning,
    not_compared,
    pair_title,
    paired,
    percent,
    points,
    query_title,
    read_by,
    remarks,
    runs,
    shade,
    shown_differences,
    source_names,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from jumok.lens.recording import Recording

__all__ = ["figure", "picture"]

MOST_LABELS = 48  # beyond this many tokens a map is pooled
POOLED_CELLS = 256
MOST_PANELS = 4  # queries with a panel of their own
MOST_NUMBERS = 20  # words whose shares are written into a table's cells
POINTS_PER_CM = 72 / 2.54
NARROWEST, WIDEST = 4.0, 100.0  # cm
SMALLEST = 5.5  # points: letters that can be read

INK, FAINT, QUERY_BLUE = "#1a1a1a", "#767676", "#1f4e8c"


def figure(
    recording: "Recording",
    tokenizer: Any,
    layer: int | str,
    head: int,
    *,
    query: int | None = None,
    batch: int = 0,
    width: float = 16.0,
) -> "Figure":
    """The attention of one head as a heat map, or of one query token as bars.

    Args:
        recording: what `jumok.watch` recorded, or `jumok.open` read.
        tokenizer: the model's; ours, a ``tokenizers.Tokenizer`` or a transformers tokenizer.
        layer: index or name of the recorded map.
        head: which head, from 0.
        query: one query token's position, negative from the end: bars instead of a map.
        batch: which text of the batch.
        width: of the figure, in cm.

    Returns:
        A matplotlib figure. Maps of more than 48 tokens are pooled: each cell shows the largest
        weight inside it, exactly.

    Raises:
        ValueError: there is no such head, query or text, or no figure of this width.
        IndexError, KeyError: there is no such layer.
        ModuleNotFoundError: matplotlib is not installed; the message names the extra.
    """
    check_width(width)
    attention = recording[layer]
    texts, heads, queries, keys = attention.shape
    for name, value, size in (("head", head, heads), ("text", batch, texts)):
        if not -size <= value < size:
            raise ValueError(
                f"{attention.name} has no {name} {value}: its weights are {attention.shape} "
                "(batch, heads, queries, keys)"
            )
    names = _token_names(recording, tokenizer, batch)
    title = f"{recording.model_name} · {attention.name}, head {head}"
    if query is not None:
        if not -queries <= query < queries:
            raise ValueError(f"there is no query token {query}: the map has 0 to {queries - 1}")
        row = _numpy(attention[batch, head, query])
        key_names = names if len(names) == keys else [str(place) for place in range(keys)]
        return _row(row, key_names, query % queries, title, width)
    if max(queries, keys) > MOST_LABELS:
        weights = _numpy(attention.pooled(POOLED_CELLS)[batch, head])
        return _heat(weights, (queries, keys), None, None, False, title, width)
    weights = _numpy(attention[batch, head])
    return _heat(
        weights,
        (queries, keys),
        names if len(names) == queries else None,
        names if len(names) == keys else None,
        attention.is_causal,
        title,
        width,
    )


def picture(data: Sources, against: Sources | None = None, *, width: float = 16.0) -> "Figure":
    """What `jumok look` shows, as a figure: the shaded sentence and the bars of each query.

    More than four queries without a chosen word are shown as one table instead: a row for each
    word that takes, a column for each word that gives. Of more than four occurrences of a chosen
    word, or pairs of them, the first four are drawn.

    Args:
        data: from `jumok.sources`.
        against: the same word in a second text, shown beside the first, with the difference.
        width: of the figure, in cm.

    Raises:
        ValueError: no figure can have this width.
        ModuleNotFoundError: matplotlib is not installed; the message names the extra.
    """
    check_width(width)
    if against is None and len(data.queries) > MOST_PANELS and is_overview(data):
        return _table(data, width)
    page_width = width * POINTS_PER_CM
    margin, gap = 10.0, 18.0
    texts = [data.text, *([against.text] if against is not None else [])]
    page = _Page(page_width, texts)
    top = margin + 4
    room = page_width - 2 * margin
    drawn = 0
    if against is None:
        for query in data.queries[:MOST_PANELS]:
            top = _heading(page, query_title(query), data, margin, top, room)
            scales = largest_share(query), longest_bar(query)
            top = _panel(page, data, query, margin, top, room, scales) + gap
        drawn = len(data.queries)
        lines = []
    else:
        column = (room - gap) / 2
        pairs = paired(data, against)
        for first, second in pairs[:MOST_PANELS]:
            top = _heading(page, pair_title(first, second), data, margin, top, room)
            scales = (
                max(largest_share(first), largest_share(second)),  # the same for both
                max(longest_bar(first), longest_bar(second)),
            )
            bottoms = [
                _panel(page, data, first, margin, top, column, scales),
                _panel(page, against, second, margin + column + gap, top, column, scales),
            ]
            top = _changes(page, first, second, margin, max(bottoms) + gap, room) + gap
        drawn = len(pairs)
        lines = not_compared(data, against)
    if drawn > MOST_PANELS:
        top = page.paragraph(margin, top, f"… {drawn - MOST_PANELS:,} more", 8, room) + 8
    for line in [*lines, *meaning(data, against)]:
        top = page.paragraph(margin, top, line, 7, room, FAINT)
    return page.finish(top + margin)


def check_width(width: float) -> None:
    _need_matplotlib()
    if not NARROWEST <= width <= WIDEST:
        raise ValueError(
            f"width={width!r}: a figure is {NARROWEST:g} to {WIDEST:g} cm wide, for instance 16"
        )


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "figures need matplotlib, which is not installed: pip install 'jumok[view]'",
            name=error.name,
        ) from error


class _Page:
    """A figure on which things are placed in points from the top left, before its height is known.

    Text is measured with the fonts it will be drawn with.
    """

    def __init__(self, width: float, texts: Iterable[str]) -> None:
        from matplotlib.backends.backend_agg import RendererAgg

        self.width = width
        self.family = font_family("".join(texts))
        self._renderer: Any = RendererAgg(10, 10, 72)  # type: ignore[no-untyped-call]
        self._drawing: list[Callable[[Axes], object]] = []

    def size_of(self, text: str, size: float, weight: str = "normal") -> float:
        """Width of ``text`` in points."""
        from matplotlib.font_manager import FontProperties

        properties = FontProperties(family=self.family, size=size, weight=weight)
        with quietly():
            measured = self._renderer.get_text_width_height_descent(text, properties, False)
        return float(measured[0])

    def write(
        self,
        left: float,
        top: float,
        text: str,
        size: float,
        color: str = INK,
        weight: str = "normal",
        align: str = "left",
    ) -> None:
        """Put one line of text with its top at ``top``."""
        baseline = top + size
        look: dict[str, Any] = {
            "fontsize": size,
            "color": color,
            "fontweight": weight,
            "family": self.family,
        }
        self._drawing.append(
            lambda axes: axes.text(left, baseline, text, ha=align, parse_math=False, **look)
        )

    def box(self, left: float, top: float, width: float, height: float, color: str) -> None:
        """Fill a rectangle."""
        from matplotlib.patches import Rectangle

        self._drawing.append(
            lambda axes: axes.add_patch(Rectangle((left, top), width, height, fc=color, lw=0))
        )

    def paragraph(
        self, left: float, top: float, text: str, size: float, width: float, color: str = INK
    ) -> float:
        """Text broken into lines between its words; where it ends."""
        line = ""
        for word in text.split():
            longer = f"{line} {word}".strip()
            if line and self.size_of(longer, size) > width:
                self.write(left, top, line, size, color)
                top += size * 1.4
                longer = word
            line = longer
        self.write(left, top, line, size, color)
        return top + size * 1.4

    def finish(self, height: float) -> "Figure":
        """The figure, ``height`` points high."""
        made = new_figure(self.width / 72, height / 72)
        axes = made.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, self.width)
        axes.set_ylim(height, 0)
        axes.axis("off")
        for draw in self._drawing:
            draw(axes)
        return made


def _heading(
    page: _Page, title: str, data: Sources, left: float, top: float, width: float
) -> float:
    """A panel's title and who read it, beside it or below it; where they end."""
    who = read_by(data)
    beside = page.size_of(title, 11, "bold") + 12 + page.size_of(who, 7.5) <= width
    page.write(left, top, _cut(page, title, 11, width, "bold"), 11, weight="bold")
    if beside:
        page.write(left + width, top, who, 7.5, FAINT, align="right")
        return top + 22
    return page.paragraph(left, top + 16, who, 7.5, width, FAINT) + 8


def _panel(
    page: _Page,
    data: Sources,
    query: Query,
    left: float,
    top: float,
    width: float,
    scales: tuple[float, float],
) -> float:
    """Shaded sentence, bars and remarks of one query; where they end.

    ``scales``: the shares of the deepest shade and of the longest bar.
    """
    darkest, longest = scales
    top = _sentence(page, data, query, left, top, width, darkest) + 8
    names = source_names(query)
    ranked, apart = query.ranked(), query.apart()
    rows = [(names[s.position], s) for s in ranked[:MOST_BARS]]
    rows += [(apart_name(s, names[s.position]), s) for s in apart]
    size, step = 8.0, 13.0
    label, room = width * 0.24, width * 0.76 - 40
    for number, (name, source) in enumerate(rows):
        if number == len(ranked[:MOST_BARS]):
            rest = ranked[MOST_BARS:]
            if rest:
                total = percent(sum(s.share for s in rest))
                page.write(left, top, f"… {len(rest)} more words: {total} together", 7, FAINT)
                top += step
            page.write(left, top + 3, "apart:", 7, FAINT)
            top += step + 2
        plain = source.kind == "word"
        page.write(left, top, _cut(page, name, size, label - 4), size, INK if plain else FAINT)
        bar = max(room * source.share / (longest or 1.0), 0.5)
        page.box(left + label, top + 1, bar, size, SHADES[3] if plain else "#c9c9c9")
        page.write(left + label + bar + 4, top, percent(source.share), size, FAINT)
        top += step
    for line in remarks(data, query):
        top = page.paragraph(left, top + 4, line, 7.5, width)
    return top


def _sentence(
    page: _Page,
    data: Sources,
    query: Query,
    left: float,
    top: float,
    width: float,
    scale: float,
) -> float:
    """The text with shaded words; where it ends."""
    size, step = 11.0, 19.0
    space = page.size_of("n n", size) - page.size_of("nn", size)
    right = left
    parts = [(part, source) for part, source in runs(data, query) if part]
    for number, (part, source) in enumerate(parts):
        text = " ".join(part.split())
        if "\n" in part:
            right, top = left, top + step
        spaces = part.count(" ") if not text else len(part) - len(part.lstrip())
        right += space * spaces if right > left else 0.0
        if not text:
            continue
        long = page.size_of(text, size)
        if right + long > left + width and right > left:
            right, top = left, top + step
        text = _cut(page, text, size, width)
        long = min(long, width)
        color = None if source is None else _word_color(source, scale)
        if color is not None:  # a little wider than the word, unless another one touches it
            before = 0.0 if number and parts[number - 1][0][-1].strip() else 1.5
            after = 0.0 if parts[number + 1 :] and parts[number + 1][0][0].strip() else 1.5
            page.box(right - before, top - 1, long + before + after, size + 6, color)
        itself = source is not None and source.kind == "itself"
        page.write(right, top + 1, text, size, "#ffffff" if itself else INK)
        right += long
        right += space * (len(part) - len(part.rstrip()))
    return top + step


def _word_color(source: Source, scale: float) -> str | None:
    if source.kind == "itself":
        return QUERY_BLUE
    level = shade(source.share / scale) if scale > 0 and source.kind == "word" else None
    return None if level is None else SHADES[level]


def _changes(
    page: _Page, first: Query, second: Query, left: float, top: float, width: float
) -> float:
    """The table of both shares and their difference; where it ends."""
    columns = [left, left + width * 0.45, left + width * 0.65, left + width * 0.85]
    for place, name in zip(columns[1:], ("first text", "second text", "points"), strict=True):
        page.write(place, top, name, 7.5, FAINT, align="right")
    top += 14
    for row in shown_differences(difference(first, second)):
        color = INK if row.kind == "word" else FAINT
        name = difference_name(row, first, second)
        cells = ["–" if share is None else percent(share) for share in (row.share, row.against)]
        page.write(left, top, _cut(page, name, 8, width * 0.35), 8, color)
        for place, cell in zip(columns[1:], [*cells, points(row.change)], strict=True):
            page.write(place, top, cell, 8, color, align="right")
        top += 12
    return top


def _table(data: Sources, width: float) -> "Figure":
    """Shares of all queries: a row for each word that takes, a column for each that gives.

    Of a long text, whose first words are the queries, those are the columns too.
    """
    import matplotlib

    part = first_words(data)
    count = data.queries[-1].position + 1 if part else len(data.words)
    names = [shortened(name, 20) for name in source_names(data.queries[0]).values()][:count]
    takers = [names[query.position] for query in data.queries]
    sources = [query.sources[:count] for query in data.queries]
    shares = 100 * np.array([[source.share for source in row] for row in sources])
    hidden = np.array([[not source.seen for source in row] for row in sources])
    rows, columns = shares.shape
    height = width * 0.86 * min(max(rows / columns, 0.3), 1.5) + 2
    made = new_figure(width / 2.54, height / 2.54)
    made.set_layout_engine("constrained")
    axes = made.subplots()
    family = font_family("".join(names))
    colors = matplotlib.colormaps["YlOrBr"].with_extremes(bad="#e9e9e9")
    shown = np.ma.masked_where(hidden, shares)
    plain = [s.share for query in data.queries for s in query.ranked()]
    top = 125 * max(plain, default=1.0)
    image = axes.imshow(
        shown, cmap=colors, vmin=0.0, vmax=top, aspect="auto", interpolation="nearest"
    )
    cell = 0.75 * width * POINTS_PER_CM / columns
    size = max(min(8.5, 0.75 * cell), SMALLEST)
    numbers = columns <= MOST_NUMBERS
    across = thinned(columns, cell)
    down = thinned(rows, 0.8 * height * POINTS_PER_CM / rows)
    axes.set_xticks(across, [names[place] for place in across], rotation=60, ha="right",
                    rotation_mode="anchor", fontsize=size, family=family)  # fmt: skip
    axes.set_yticks(down, [takers[place] for place in down], fontsize=size, family=family)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_parse_math(False)
    for row, found in enumerate(sources):
        for column, source in enumerate(found):
            if numbers and source.seen:
                ink = "#ffffff" if 100 * source.share > 0.65 * top else INK
                number = f"{100 * source.share:.0f}"
                axes.text(column, row, number, ha="center", va="center", fontsize=size, color=ink)
            if source.kind == "itself":
                axes.add_patch(_outline(column, row, min(1.2, 0.12 * cell)))
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0 if numbers else 2)
    axes.set_xlabel("the word it takes from (blue: itself)", fontsize=8.5)
    axes.set_ylabel("the word that takes", fontsize=8.5)
    title = f"Where each word takes its meaning from, in %  ·  {read_by(data)}"
    axes.set_title("\n".join([title, *part]), fontsize=9, family=family, parse_math=False)
    if not numbers:
        scale = made.colorbar(image, ax=axes, extend="max", aspect=40, pad=0.02)
        scale.set_label("share in %", fontsize=8.5)
        scale.ax.tick_params(labelsize=7)
    return made


def thinned(count: int, cell: float) -> range:
    """Which of ``count`` cells, ``cell`` points wide, have room for a label."""
    return range(0, count, max(1, math.ceil(1.5 * SMALLEST / cell)))


def _outline(column: int, row: int, width: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, fill=False, ec=QUERY_BLUE, lw=width)


def _cut(page: _Page, text: str, size: float, width: float, weight: str = "normal") -> str:
    if page.size_of(text, size, weight) <= width:
        return text
    while text and page.size_of(text + "…", size, weight) > width:
        text = text[:-1]
    return text + "…"


def _heat(
    weights: Any,
    shape: tuple[int, int],
    query_names: Sequence[str] | None,
    key_names: Sequence[str] | None,
    causal: bool,
    title: str,
    width: float,
) -> "Figure":
    queries, keys = shape
    inches = width / 2.54
    made = new_figure(inches, inches * min(max(queries / keys, 0.4), 1.6) * 0.92)
    made.set_layout_engine("constrained")
    axes = made.subplots()
    family = font_family("".join([*(query_names or ()), *(key_names or ()), title]))
    if causal:
        rows, columns = np.indices(weights.shape)
        weights = np.ma.masked_where(columns > rows + keys - queries, weights)
    import matplotlib

    colors = matplotlib.colormaps["YlOrBr"].with_extremes(bad="#e9e9e9")
    extent = (-0.5, keys - 0.5, queries - 0.5, -0.5)
    image = axes.imshow(
        weights, cmap=colors, vmin=0.0, extent=extent, aspect="auto", interpolation="nearest"
    )
    size = min(9.0, 300 / max(queries, keys))
    if key_names is not None:
        axes.set_xticks(range(keys), key_names, rotation=90, fontsize=size, family=family)
    if query_names is not None:
        axes.set_yticks(range(queries), query_names, fontsize=size, family=family)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_parse_math(False)
    note = "" if weights.shape == shape else ", the largest in each cell"
    axes.set_xlabel("key: the token that is read" + ("" if key_names else " (position)"))
    axes.set_ylabel("query: the token that reads" + ("" if query_names else " (position)"))
    axes.set_title(title, fontsize=9, family=family, parse_math=False)
    made.colorbar(image, ax=axes, label=f"attention weight{note}")
    return made


def _row(row: Any, names: Sequence[str], query: int, title: str, width: float) -> "Figure":
    """Weights of one query as bars, in the order of the text; the largest ones of a long text."""
    most = np.sort(np.argsort(-row, kind="stable")[:MOST_LABELS])
    shown = [names[place] for place in most]
    reader = names[query] if query < len(names) else str(query)
    made = new_figure(width / 2.54, (1.0 + 0.42 * len(shown)) / 2.54 + 0.6)
    made.set_layout_engine("constrained")
    axes = made.subplots()
    family = font_family("".join(shown) + title + reader)
    axes.barh(range(len(shown)), row[most], color=SHADES[3])
    axes.set_yticks(range(len(shown)), shown, fontsize=8, family=family)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel("attention weight")
    part = f", its {len(shown)} largest of {len(row)}" if len(shown) < len(row) else ""
    axes.set_title(f"{title}: what “{reader}” reads{part}", fontsize=9, family=family,
                   parse_math=False)  # fmt: skip
    return made


def new_figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=200)
    FigureCanvasAgg(made)
    return made


def _token_names(recording: "Recording", tokenizer: Any, batch: int) -> list[str]:
    if recording.ids is None:
        return []
    return as_tokenizer(tokenizer).labels(recording.ids[batch])


def _numpy(array: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    on_host = array.cpu() if hasattr(array, "cpu") else array
    return np.asarray(on_host)
