"""What `jumok look` prints: rich renderables made from `Sources` alone.

Where the terminal has colour, the sentence is shaded; where it has none (a pipe, a file), a row
of blocks under the sentence says the same. Widths are counted in terminal cells, so that Korean
and emoji stay aligned.
"""

from collections.abc import Iterator

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from jumok.lens.sources import Head, Query, Source, Sources, difference
from jumok.view.flow import Flow, bar, dimmed, fitted, indented, paragraph
from jumok.view.wording import (
    MOST_BARS,
    SHADES,
    apart_name,
    difference_name,
    first_words,
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
    word_name,
)

__all__ = ["Bars", "Sentence", "compare", "look", "overview"]

MOST_OCCURRENCES = 10
SIDE_BY_SIDE = 56  # columns that two texts side by side need

# The shades of paper, as quiet or loud on a dark as on a light terminal.
_TERMINAL_SHADES = (None, "#bfa06a", "#d9a441", "#ffa726", "#f57c00")
_QUERY_STYLE = Style(color="#ffffff", bgcolor="#1f4e8c", bold=True)
_BLOCKS = "▁▂▃▄▅▆▇█"


def look(data: Sources, most: int = MOST_BARS) -> RenderableType:
    """The queries of ``data`` in full: sentence, bars, heads; then what the numbers mean."""
    parts: list[RenderableType] = []
    for query in data.queries[:MOST_OCCURRENCES]:
        parts += [
            paragraph((query_title(query), "bold"), f"  ·  {read_by(data)}"),
            "",
            indented(Sentence(data, query)),
            "",
            Bars(data, query, most),
            *(indented(paragraph(line)) for line in remarks(data, query)),
            "",
            _Heads(query, min(most, 6)),
        ]
    parts += _more(len(data.queries), "occurrences")
    return Group(*parts, *dimmed(meaning(data)))


def overview(data: Sources) -> RenderableType:
    """Each word of the text in one line: the words it draws on most."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    table.add_column("word", overflow="fold", min_width=4)
    table.add_column("draws most on", overflow="fold")
    table.add_column("itself", justify="right", no_wrap=True)
    table.add_column("apart", justify="right", no_wrap=True)
    for query in data.queries:
        names = source_names(query)
        drawn = [
            Text(f"{names[source.position]} {100 * source.share:.0f} %", _tint(source))
            for source in query.ranked()[:3]
        ]
        itself = sum(source.share for source in query.sources if source.kind == "itself")
        other = sum(s.share for s in query.sources if s.kind in ("first", "special"))
        table.add_row(
            Text(names[query.position], "bold"),
            Flow(drawn or [Text("nothing but what stands apart", "dim")], gap=3),
            Text(f"{100 * itself:.0f} %", "dim"),
            Text(f"{100 * other:.0f} %", "dim"),
        )
    first = "the first token" if data.causal else "special tokens"
    lines = [f"apart: {first}. Look closer at one word with --word WORD.", *first_words(data)]
    if data.causal:
        lines.append("A GPT's word sees only what stands to its left; try --model minilm for both.")
    return Group(
        paragraph(f"Where each word takes its meaning from  ·  {read_by(data)}"),
        "",
        indented(table),
        "",
        *dimmed([*lines, *meaning(data)]),
    )


def compare(left: Sources, right: Sources, most: int = MOST_BARS) -> RenderableType:
    """The same word in two texts, side by side, and the difference."""
    parts: list[RenderableType] = []
    pairs = paired(left, right)
    for first, second in pairs[:MOST_OCCURRENCES]:
        parts += [
            paragraph((pair_title(first, second), "bold"), f"  ·  {read_by(left)}"),
            "",
            _Pair(left, first, right, second, most),
            "",
            _differences(first, second),
            "",
        ]
    parts += _more(len(pairs), "pairs")
    return Group(*parts, *dimmed([*not_compared(left, right), *meaning(left, right)]))


def _more(count: int, what: str) -> list[RenderableType]:
    if count <= MOST_OCCURRENCES:
        return []
    return [paragraph(f"… {count - MOST_OCCURRENCES:,} more {what}; --json has all."), ""]


class _Pair:
    """One query in two texts, side by side where there is room for both; on one scale."""

    def __init__(
        self, left: Sources, first: Query, right: Sources, second: Query, most: int
    ) -> None:
        self.shade = max(largest_share(first), largest_share(second))
        longest = max(longest_bar(first, most), longest_bar(second, most))
        self.texts = [(left, first), (right, second)]
        self.bars = [Bars(data, query, most, longest) for data, query in self.texts]
        for one, other in (self.bars, self.bars[::-1]):  # and one width for both lists of names
            one.label_width = max(one.label_width, other.label_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sentences = [Sentence(data, query, self.shade) for data, query in self.texts]
        notes = [
            Group(*(paragraph(line) for line in remarks(data, query))) for data, query in self.texts
        ]
        if options.max_width < SIDE_BY_SIDE:
            for parts in zip(
                ("first text:", "second text:"), sentences, self.bars, notes, strict=True
            ):
                name, sentence, bars, note = parts
                yield Text(name, "dim")
                yield indented(sentence)
                yield ""
                yield bars
                yield indented(note)
                yield ""
            return
        grid = Table.grid(padding=(0, 1), collapse_padding=False, pad_edge=True, expand=True)
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(*sentences)
        grid.add_row("", "")
        grid.add_row(*self.bars)
        grid.add_row(*notes)
        yield grid


class Sentence:
    """The text with each word shaded by its share for one query.

    Args:
        data: from `jumok.sources`.
        query: one of its queries.
        scale: the share that has the deepest shade; that of the first source by default.
    """

    def __init__(self, data: Sources, query: Query, scale: float | None = None) -> None:
        self.data = data
        self.query = query
        self.scale = largest_share(query) if scale is None else scale

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system in ("256", "truecolor") and not console.no_color
        largest = self.scale
        for line in _lines(runs(self.data, self.query), options.max_width):
            text, marks = Text(no_wrap=True), ""
            for part, source in line:
                text.append(part, _shading(source, largest) if coloured else None)
                marks += _mark(source, largest, options.ascii_only) * cell_len(part)
            yield text
            if not coloured and marks.strip():
                yield Text(marks.rstrip(), no_wrap=True)


class Bars:
    """The ordered bar list of one query, then what is listed apart, all on one scale.

    Args:
        data: from `jumok.sources`.
        query: one of its queries.
        most: how many words have a bar; the others are summed up.
        scale: the share of the longest bar; that of the longest in this list by default.
    """

    def __init__(
        self, data: Sources, query: Query, most: int = MOST_BARS, scale: float | None = None
    ) -> None:
        self.data = data
        self.query = query
        self.most = most
        self.scale = longest_bar(query, most) if scale is None else scale
        self.names = source_names(query)
        self.shown, self.apart = query.ranked()[:most], query.apart()
        self.label_width = max((cell_len(self._label(s)) for s in self._listed()), default=0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.label_width, max(options.max_width // 2 - 4, 8))
        space = min(max(options.max_width - width - 13, 4), 44)
        if not self.shown:
            yield Text("  nothing but what stands apart", "dim")
        for number, source in enumerate(self._listed()):
            if number == len(self.shown):
                yield from self._rest()
                yield Text("  apart:", "dim")
            part = source.share / self.scale if self.scale > 0 else 0.0
            yield Text.assemble(
                "  ",
                set_cell_size(fitted(self._label(source), width), width),
                f"{percent(source.share):>8}  ",
                (
                    bar(part, space, options.ascii_only),
                    SHADES[3] if source.kind == "word" else "dim",
                ),
                no_wrap=True,
            )

    def _listed(self) -> list[Source]:
        return [*self.shown, *self.apart]

    def _label(self, source: Source) -> str:
        return apart_name(source, self.names[source.position])

    def _rest(self) -> Iterator[Text]:
        rest = self.query.ranked()[self.most :]
        if rest:
            total = percent(sum(source.share for source in rest))
            yield Text(f"  … {len(rest)} more words: {total} together", "dim")


class _Heads:
    """For each of the first sources, the heads that look most at it; as many as have room."""

    def __init__(self, query: Query, most: int) -> None:
        names = source_names(query)
        shown = [source for source in query.ranked()[:most] if source.heads]
        self.word = word_name(query.word)
        self.rows = [(names[source.position], source.heads) for source in shown]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.rows:
            return
        yield Text(f"  The heads that look most from “{self.word}” at each (counted from 0):")
        room = options.max_width - 2
        width = min(max(cell_len(name) for name, _ in self.rows), room // 3)
        for name, heads in self.rows:
            cells = [_head(head) for head in heads[: max((room - width) // 24, 1)]]
            line = set_cell_size(fitted(name, width), width) + "  "
            line += "".join(f"{cell:<24}" for cell in cells)
            yield Text(f"  {line.rstrip()}", no_wrap=True)
        yield ""


def _head(head: Head) -> str:
    return f"layer {head.layer} head {head.head}: {100 * head.weight:.0f} %"


def _differences(first: Query, second: Query) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    table.add_column("word", overflow="fold", min_width=6)
    for title in ("first text", "second text", "points"):
        table.add_column(title, justify="right", min_width=7)  # as wide as "100.0 %"
    for row in shown_differences(difference(first, second)):
        style = "dim" if row.kind != "word" else ""
        table.add_row(
            Text(difference_name(row, first, second), style),
            Text("–" if row.share is None else percent(row.share), style),
            Text("–" if row.against is None else percent(row.against), style),
            Text(points(row.change), style),
        )
    return Padding(table, (0, 0, 0, 2))


def _lines(
    runs: Iterator[tuple[str, Source | None]], width: int
) -> Iterator[list[tuple[str, Source | None]]]:
    """Break runs into lines of at most ``width`` cells, between words where possible."""
    line: list[tuple[str, Source | None]] = []
    used = 0
    for text, source in runs:
        for number, whole in enumerate(text.replace("\t", "    ").split("\n")):
            if number:
                yield line
                line, used = [], 0
            for part in chop_cells(whole, max(width, 2)) if whole else []:
                size = cell_len(part)
                if used + size > width:
                    yield line
                    line, used = [], 0
                    part = part.lstrip(" ") if source is None else part
                    size = cell_len(part)
                if part:
                    line.append((part, source))
                    used += size
    if line:
        yield line


def _shading(source: Source | None, largest: float) -> Style | None:
    if source is None:
        return None
    if source.kind == "itself":
        return _QUERY_STYLE
    level = shade(source.share / largest) if largest > 0 and source.kind == "word" else None
    color = None if level is None else _TERMINAL_SHADES[level]
    return None if color is None else Style(color="#000000", bgcolor=color)


def _mark(source: Source | None, largest: float, ascii_only: bool) -> str:
    if source is not None and source.kind == "itself":
        return "^"
    if source is None or source.kind != "word" or largest <= 0 or source.share <= 0:
        return " "
    blocks = "12345678" if ascii_only else _BLOCKS
    return blocks[min(int(source.share / largest * len(blocks)), len(blocks) - 1)]


def _tint(source: Source) -> str:
    return "bold" if source.share >= 0.2 else "" if source.share >= 0.05 else "dim"
