"""Pictures for papers and slides: the heat map of a head, and what `jumok look` shows.

Both are matplotlib figures that no global state knows of; ``savefig`` writes PNG, SVG or PDF.
Letters are drawn with the first installed font that has them, so that Korean, Chinese and
Japanese appear; a sign that no font has is named in a warning.
"""

import functools
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jumok.lens.sources import Query, Source, Sources, difference
from jumok.tokens import as_tokenizer, visible
from jumok.view.wording import (
    MOST_BARS,
    SHADES,
    apart_name,
    excerpt,
    largest_share,
    meaning,
    paired,
    percent,
    points,
    query_title,
    read_by,
    remarks,
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

_INK, _FAINT, _QUERY_BLUE = "#1a1a1a", "#767676", "#1f4e8c"
_FALLBACKS = (
    "Noto Sans CJK KR",
    "Noto Sans CJK JP",
    "Noto Sans KR",
    "Apple SD Gothic Neo",
    "Malgun Gothic",
    "NanumGothic",
    "Source Han Sans",
    "Microsoft YaHei",
    "PingFang SC",
    "Noto Sans Symbols 2",
    "Noto Emoji",
    "Segoe UI Emoji",
    "Segoe UI Symbol",
    "Arial Unicode MS",
)


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
        ValueError: there is no such head, query or text.
        IndexError, KeyError: there is no such layer.
        ModuleNotFoundError: matplotlib is not installed; the message names the extra.
    """
    _need_matplotlib()
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

    More than four queries are shown as one table instead: a row for each word that takes, a
    column for each word that gives.

    Args:
        data: from `jumok.sources`.
        against: the same word in a second text, shown beside the first, with the difference.
        width: of the figure, in cm.
    """
    _need_matplotlib()
    if against is None and len(data.queries) > MOST_PANELS:
        return _table(data, width)
    page_width = width * POINTS_PER_CM
    margin, gap = 10.0, 18.0
    texts = [data.text, *([against.text] if against is not None else [])]
    page = _Page(page_width, texts)
    top = margin + 4
    if against is None:
        for query in data.queries:
            page.write(margin, top, query_title(query), 11, weight="bold")
            page.write(page_width - margin, top, read_by(data), 7.5, _FAINT, align="right")
            scale = largest_share(query)
            top = _panel(page, data, query, margin, top + 22, page_width - 2 * margin, scale) + gap
    else:
        column = (page_width - 2 * margin - gap) / 2
        for first, second in paired(data, against):
            page.write(margin, top, f"Where {first.word} takes its meaning from", 11, weight="bold")
            page.write(page_width - margin, top, read_by(data), 7.5, _FAINT, align="right")
            scale = max(largest_share(first), largest_share(second))  # one scale for both
            bottoms = [
                _panel(page, data, first, margin, top + 22, column, scale),
                _panel(page, against, second, margin + column + gap, top + 22, column, scale),
            ]
            top = _changes(page, first, second, margin, max(bottoms) + gap, page_width - 2 * margin)
            top += gap
    for line in meaning(data, against):
        top = page.paragraph(margin, top, line, 7, page_width - 2 * margin, _FAINT)
    return page.finish(top + margin)


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
        with _no_glyph_warnings():
            measured = self._renderer.get_text_width_height_descent(text, properties, False)
        return float(measured[0])

    def write(
        self,
        left: float,
        top: float,
        text: str,
        size: float,
        color: str = _INK,
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
        self, left: float, top: float, text: str, size: float, width: float, color: str = _INK
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
        made = _new_figure(self.width / 72, height / 72)
        axes = made.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, self.width)
        axes.set_ylim(height, 0)
        axes.axis("off")
        for draw in self._drawing:
            draw(axes)
        return made


def _panel(
    page: _Page,
    data: Sources,
    query: Query,
    left: float,
    top: float,
    width: float,
    scale: float,
) -> float:
    """Shaded sentence, bars and remarks of one query; where they end."""
    top = _sentence(page, data, query, left, top, width, scale) + 8
    names = source_names(query)
    ranked, apart = query.ranked(), query.apart()
    rows = [(names[s.position], s) for s in ranked[:MOST_BARS]]
    rows += [(apart_name(s, names[s.position]), s) for s in apart]
    largest = max((source.share for _, source in rows), default=0.0)
    largest = min(max(largest, scale), 2 * scale) or 1.0  # what stands apart hides nothing
    size, step = 8.0, 13.0
    label, room = width * 0.24, width * 0.76 - 40
    for number, (name, source) in enumerate(rows):
        if number == len(ranked[:MOST_BARS]):
            rest = ranked[MOST_BARS:]
            if rest:
                total = percent(sum(s.share for s in rest))
                page.write(left, top, f"… {len(rest)} more words: {total} together", 7, _FAINT)
                top += step
            page.write(left, top + 3, "apart:", 7, _FAINT)
            top += step + 2
        plain = source.kind == "word"
        page.write(left, top, _cut(page, name, size, label - 4), size, _INK if plain else _FAINT)
        bar = min(max(room * source.share / largest, 0.5), room)
        page.box(left + label, top + 1, bar, size, SHADES[3] if plain else "#c9c9c9")
        number_text = percent(source.share)
        if source.share > largest:
            number_text = f"▸ {number_text}"
        page.write(left + label + bar + 4, top, number_text, size, _FAINT)
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
    positions = excerpt(data, query)
    space = page.size_of("n n", size) - page.size_of("nn", size)
    right = left
    place = data.words[positions[0]].start if positions else 0
    for position in positions:
        word, source = data.words[position], query.sources[position]
        if word.special or word.end <= place:
            continue
        between = data.text[place : max(word.start, place)]
        text = data.text[max(word.start, place) : word.end]
        place = word.end
        if "\n" in between + text:
            right, top = left, top + step
        right += space * between.count(" ") if right > left else 0.0
        text = " ".join(text.split())
        if not text:
            continue
        long = page.size_of(text, size)
        if right + long > left + width and right > left:
            right, top = left, top + step
        text = _cut(page, text, size, width)
        long = min(long, width)
        color = _word_color(source, scale)
        if color is not None:
            before = 1.5 if between or right == left else 0.0
            after = 0.0 if data.text[word.end : word.end + 1].strip() else 1.5
            page.box(right - before, top - 1, long + before + after, size + 6, color)
        itself = source.kind == "itself"
        page.write(right, top + 1, text, size, "#ffffff" if itself else _INK)
        right += long
    return top + step


def _word_color(source: Source, scale: float) -> str | None:
    if source.kind == "itself":
        return _QUERY_BLUE
    level = shade(source.share / scale) if scale > 0 and source.kind == "word" else None
    return None if level is None else SHADES[level]


def _changes(
    page: _Page, first: Query, second: Query, left: float, top: float, width: float
) -> float:
    """The table of both shares and their difference; where it ends."""
    columns = [left, left + width * 0.45, left + width * 0.65, left + width * 0.85]
    for place, name in zip(columns[1:], ("first text", "second text", "points"), strict=True):
        page.write(place, top, name, 7.5, _FAINT, align="right")
    top += 14
    for row in shown_differences(difference(first, second)):
        color = _INK if row.kind == "word" else _FAINT
        name = "itself" if row.kind == "itself" else visible(row.word)
        cells = ["–" if share is None else percent(share) for share in (row.share, row.against)]
        page.write(left, top, _cut(page, name, 8, width * 0.35), 8, color)
        for place, cell in zip(columns[1:], [*cells, points(row.change)], strict=True):
            page.write(place, top, cell, 8, color, align="right")
        top += 12
    return top


def _table(data: Sources, width: float) -> "Figure":
    """Shares of all queries: a row for each word that takes, a column for each that gives."""
    import matplotlib

    names = list(source_names(data.queries[0]).values())
    takers = [names[query.position] for query in data.queries]
    shares = np.array([[source.share for source in query.sources] for query in data.queries])
    hidden = np.array([[not source.seen for source in query.sources] for query in data.queries])
    rows, columns = shares.shape
    made = _new_figure(width / 2.54, (width * 0.86 * min(max(rows / columns, 0.3), 1.5) + 2) / 2.54)
    made.set_layout_engine("constrained")
    axes = made.subplots()
    family = font_family("".join(names))
    colors = matplotlib.colormaps["YlOrBr"].with_extremes(bad="#e9e9e9")
    shown = np.ma.masked_where(hidden, shares)
    plain = [s.share for query in data.queries for s in query.ranked()]
    top = max(plain, default=1.0) * 1.25
    axes.imshow(shown, cmap=colors, vmin=0.0, vmax=top, aspect="auto")
    size = min(8.5, 260 / columns)
    axes.set_xticks(range(columns), names, rotation=60, ha="right", rotation_mode="anchor",
                    fontsize=size, family=family)  # fmt: skip
    axes.set_yticks(range(rows), takers, fontsize=size, family=family)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_parse_math(False)
    for row, query in enumerate(data.queries):
        for column, source in enumerate(query.sources):
            if columns <= MOST_NUMBERS and source.seen:
                ink = "#ffffff" if source.share > 0.65 * top else _INK
                number = f"{100 * source.share:.0f}"
                axes.text(column, row, number, ha="center", va="center", fontsize=size, color=ink)
            if source.kind == "itself":
                axes.add_patch(_outline(column, row))
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("the word it takes from (blue: itself)")
    axes.set_ylabel("the word that takes")
    title = f"Where each word takes its meaning from, in %  ·  {read_by(data)}"
    axes.set_title(title, fontsize=9, family=family, parse_math=False)
    return made


def _outline(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, fill=False, ec=_QUERY_BLUE, lw=1.2)


def _cut(page: _Page, text: str, size: float, width: float) -> str:
    if page.size_of(text, size) <= width:
        return text
    while text and page.size_of(text + "…", size) > width:
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
    made = _new_figure(inches, inches * min(max(queries / keys, 0.4), 1.6) * 0.92)
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
    made = _new_figure(width / 2.54, (1.0 + 0.42 * len(shown)) / 2.54 + 0.6)
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


def _new_figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=200)
    FigureCanvasAgg(made)
    return made


def font_family(text: str) -> list[str]:
    """Font families that together have every sign of ``text``; warns of signs none has."""
    from matplotlib.font_manager import fontManager

    needed = {sign for sign in text if not sign.isspace() and not _is_joiner(sign)}
    family = ["DejaVu Sans"]
    needed -= _signs_of("DejaVu Sans")
    installed = {entry.name for entry in fontManager.ttflist}
    for name in [*_FALLBACKS, *sorted(installed - set(_FALLBACKS))]:
        if not needed:
            break
        if name in installed and needed & _signs_of(name):
            family.append(name)
            needed -= _signs_of(name)
    if needed:
        signs = " ".join(sorted(needed)[:10])
        warnings.warn(
            f"no installed font can draw {signs}: boxes stand in their place; install one that "
            "can, such as Noto Sans CJK or Noto Emoji",
            stacklevel=2,
        )
    return family


@functools.cache
def _signs_of(name: str) -> frozenset[str]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    try:
        path = findfont(FontProperties(family=name), fallback_to_default=False)
        return frozenset(chr(code) for code in get_font(path).get_charmap())
    except (ValueError, RuntimeError, OSError):  # a broken or vanished font file
        return frozenset()


def _is_joiner(sign: str) -> bool:
    return unicodedata.category(sign) in ("Cf", "Mn", "Cc")


class _no_glyph_warnings(warnings.catch_warnings):
    """matplotlib warns of each missing sign again and again; `font_family` has said it once."""

    def __enter__(self) -> Any:
        result = super().__enter__()
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        return result


def _token_names(recording: "Recording", tokenizer: Any, batch: int) -> list[str]:
    if recording.ids is None:
        return []
    return as_tokenizer(tokenizer).labels(recording.ids[batch])


def _numpy(array: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    on_host = array.cpu() if hasattr(array, "cpu") else array
    return np.asarray(on_host)
