"""What `jumok look` prints: rich renderables made from `Sources` alone.

Where the terminal has colour, the sentence is shaded; where it has none (a pipe, a file), a row
of blocks under the sentence says the same. Widths are counted in terminal cells, so that Korean
and emoji stay aligned.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from jumok.lens.sources import Difference, Head, Query, Source, Sources, difference
from jumok.tokens import visible

__all__ = ["Bars", "Sentence", "compare", "look", "meaning", "overview", "source_names"]

MOST_BARS = 10
MOST_SHADED_WORDS = 70
SMALL_LEAD = 0.01  # one percentage point
UNKNOWN = ("[UNK]", "<unk>")

# Amber, light to deep, for paper; and what is as quiet or loud on a dark as on a light terminal.
SHADES = ("#fff3d6", "#ffe0a3", "#ffc766", "#ffa726", "#f57c00")
_TERMINAL_SHADES = (None, "#bfa06a", "#d9a441", "#ffa726", "#f57c00")
_QUERY_STYLE = Style(color="#ffffff", bgcolor="#1f4e8c", bold=True)
_BLOCKS = "▁▂▃▄▅▆▇█"
_PART_BLOCKS = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"]


def shade(part: float) -> int | None:
    """Which of the shades stands for a share that is ``part`` (0 to 1) of the largest."""
    return None if part < 0.1 else min(int(part * len(SHADES)), len(SHADES) - 1)


def percent(share: float) -> str:
    """A fraction as a percentage with one digit: ``"39.6 %"``."""
    return f"{100 * share:.1f} %"


def points(change: float | None) -> str:
    """A difference of two fractions in percentage points: ``"+2.1"``."""
    return "" if change is None else f"{100 * change:+.1f}".replace("-", "−")


def source_names(query: Query) -> dict[int, str]:
    """A name for each source, by position; a word that occurs again is numbered."""
    total = Counter(source.word for source in query.sources)
    count: Counter[str] = Counter()
    names = {}
    for source in query.sources:
        count[source.word] += 1
        name = visible(source.word) if source.word.strip() != source.word else source.word
        repeated = total[source.word] > 1
        names[source.position] = f"{name} ({_ordinal(count[source.word])})" if repeated else name
    return names


def apart_name(source: Source, name: str) -> str:
    """How a source that is listed apart is called."""
    if source.kind == "itself":
        return "itself"
    return f"{name} (first token)" if source.kind == "first" else name


def query_title(query: Query) -> str:
    """``Where bank (2nd) takes its meaning from``; numbered where the text has several."""
    return f"Where {source_names(query)[query.position]} takes its meaning from"


def look(data: Sources, most: int = MOST_BARS) -> RenderableType:
    """Every query of ``data`` in full: sentence, bars, heads; then what the numbers mean."""
    parts: list[RenderableType] = []
    for query in data.queries:
        parts += [
            Text.assemble((query_title(query), "bold"), f"  ·  {read_by(data)}"),
            "",
            Padding(Sentence(data, query), (0, 0, 0, 2)),
            "",
            Bars(data, query, most),
            *(Padding(Text(line), (0, 0, 0, 2)) for line in remarks(data, query)),
            "",
            _Heads(query, min(most, 6)),
        ]
    return Group(*parts, *(Text(line, style="dim") for line in meaning(data)))


def overview(data: Sources) -> RenderableType:
    """Each word of the text in one line: the words it draws on most."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    table.add_column("word", overflow="fold", min_width=4)
    table.add_column("draws most on", overflow="fold")
    table.add_column("itself", justify="right", no_wrap=True)
    table.add_column("apart", justify="right", no_wrap=True)
    for query in data.queries:
        names = source_names(query)
        ranked = query.ranked()
        drawn = Text()
        for source in ranked[:3]:
            drawn.append(f"{names[source.position]} {100 * source.share:.0f} %   ", _tint(source))
        if not ranked:
            drawn.append("nothing but what stands apart", "dim")
        itself = sum(source.share for source in query.sources if source.kind == "itself")
        other = sum(s.share for s in query.sources if s.kind in ("first", "special"))
        table.add_row(
            Text(names[query.position], "bold"),
            drawn,
            Text(f"{100 * itself:.0f} %", "dim"),
            Text(f"{100 * other:.0f} %", "dim"),
        )
    first = "the first token" if data.causal else "special tokens"
    lines = [f"apart: {first}. Look closer at one word with --word WORD."]
    if data.causal:
        lines.append("A GPT's word sees only what stands to its left; try --model minilm for both.")
    return Group(
        Text(f"Where each word takes its meaning from  ·  {read_by(data)}"),
        "",
        Padding(table, (0, 0, 0, 2)),
        "",
        *(Text(line, style="dim") for line in [*lines, *meaning(data)]),
    )


def compare(left: Sources, right: Sources, most: int = MOST_BARS) -> RenderableType:
    """The same word in two texts, side by side, and the difference."""
    parts: list[RenderableType] = []
    for first, second in paired(left, right):
        grid = Table.grid(padding=(0, 1), collapse_padding=False, pad_edge=True, expand=True)
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        scale = max(largest_share(first), largest_share(second))  # one scale for both texts
        grid.add_row(Sentence(left, first, scale), Sentence(right, second, scale))
        grid.add_row("", "")
        bars = [Bars(left, first, most, scale), Bars(right, second, most, scale)]
        for one, other in (bars, bars[::-1]):  # and one width for both lists of names
            one.label_width = max(one.label_width, other.label_width)
        grid.add_row(*bars)
        grid.add_row(Text("\n".join(remarks(left, first))), Text("\n".join(remarks(right, second))))
        parts += [
            Text.assemble(
                (f"Where {first.word} takes its meaning from in two texts", "bold"),
                f"  ·  {read_by(left)}",
            ),
            "",
            grid,
            "",
            _differences(first, second),
            "",
        ]
    return Group(*parts, *(Text(line, style="dim") for line in meaning(left, right)))


def paired(left: Sources, right: Sources) -> list[tuple[Query, Query]]:
    """The queries of the same word in both texts; of unequal numbers of them, the last two."""

    def by_word(data: Sources) -> dict[str, list[Query]]:
        found: dict[str, list[Query]] = {}
        for query in data.queries:
            found.setdefault(query.word.casefold(), []).append(query)
        return found

    pairs = []
    others = by_word(right)
    for word, queries in by_word(left).items():
        like = others.get(word, [])
        if len(queries) != len(like):
            queries, like = queries[-1:], like[-1:]
        pairs += list(zip(queries, like, strict=False))
    return pairs or [(left.queries[-1], right.queries[-1])]  # 사과와 and 사과


def largest_share(query: Query) -> float:
    """Of the other plain words; what the shading and the bars are scaled to."""
    return max((source.share for source in query.ranked()), default=0.0)


def remarks(data: Sources, query: Query) -> list[str]:
    """What a reader must know before reading too much into these bars."""
    lines = []
    names = source_names(query)
    ranked = query.ranked()
    lead = query.lead()
    if lead is not None and lead < SMALL_LEAD:
        close = [s for s in ranked[1:4] if ranked[0].share - s.share < SMALL_LEAD]
        others = _listed([names[source.position] for source in close])
        lines.append(
            f"“{names[ranked[0].position]}” leads {others} by less than a point: "
            "read them as equal."
        )
    if data.causal:
        later = [s for s in query.unseen() if s.kind == "word" and _is_word(s.word)]
        if later:
            some = _listed([names[source.position] for source in later[:3]])
            more = ", …" if len(later) > 3 else ""
            lines.append(f"“{query.word}” cannot see {some}{more} in a GPT; try --model minilm.")
    return lines


def meaning(data: Sources, other: Sources | None = None) -> list[str]:
    """One line on what the number is, one on what it is not, and what else to know."""
    layers = _layers(data.layers)
    if data.measure == "share":
        number = (
            "A share is how much of what attention brings to the word comes from there: weight × "
            f"length of the value it hands over, all heads, mean of {layers}; all shares, "
            "itself and those apart included, make 100 %."
        )
    else:
        number = (
            f"A number is the attention weight, mean of all heads and {layers} "
            f"({data.note}); all of them, itself and those apart included, make 100 %."
        )
    lines = [number, "It shows where the model looks; by itself it doesn't explain what it does."]
    if data.causal:
        lines.append(
            "In a GPT the first token is a sink: heads with nothing to look for look there."
        )
    unknown = [
        word.text
        for text in (data, other)
        if text is not None
        for word in text.words
        if any(text.tokens[token] in UNKNOWN for token in word.tokens) and word.text not in UNKNOWN
    ]
    if unknown:
        some = _listed(list(dict.fromkeys(unknown))[:5]) + (", …" if len(unknown) > 5 else "")
        lines.append(f"Not in this model's vocabulary, so it read a blank: {some}.")
    return lines


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
        for line in _lines(_runs(self.data, self.query), options.max_width):
            text, marks = Text(no_wrap=True), ""
            for part, source in line:
                text.append(part, _shading(source, largest) if coloured else None)
                marks += _mark(source, largest, options.ascii_only) * cell_len(part)
            yield text
            if not coloured and marks.strip():
                yield Text(marks.rstrip(), no_wrap=True)


class Bars:
    """The ordered bar list of one query, then what is listed apart.

    A bar that would be longer than the room for it (a scale is given, and what is listed apart
    is larger) ends in an arrow.
    """

    def __init__(
        self, data: Sources, query: Query, most: int = MOST_BARS, scale: float | None = None
    ) -> None:
        self.data = data
        self.query = query
        self.most = most
        self.scale = largest_share(query) if scale is None else scale
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
                set_cell_size(_fitted(self._label(source), width), width),
                f"{percent(source.share):>8}  ",
                (
                    _bar(part, space, options.ascii_only),
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


def read_by(data: Sources) -> str:
    return f"read by {data.model or 'the model'}, {_layers(data.layers)}"


def _layers(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]}–{layers[-1]}"
    return f"layers {', '.join(map(str, layers))}"


class _Heads:
    """For each of the first sources, the heads that look most at it; as many as have room."""

    def __init__(self, query: Query, most: int) -> None:
        names = source_names(query)
        shown = [source for source in query.ranked()[:most] if source.heads]
        self.word = query.word
        self.rows = [(names[source.position], source.heads) for source in shown]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.rows:
            return
        yield Text(f"  The heads that look most from “{self.word}” at each (counted from 0):")
        room = options.max_width - 2
        width = min(max(cell_len(name) for name, _ in self.rows), room // 3)
        for name, heads in self.rows:
            cells = [_head(head) for head in heads[: max((room - width) // 24, 1)]]
            line = set_cell_size(_fitted(name, width), width) + "  "
            line += "".join(f"{cell:<24}" for cell in cells)
            yield Text(f"  {line.rstrip()}", no_wrap=True)
        yield ""


def _head(head: Head) -> str:
    return f"layer {head.layer} head {head.head}: {100 * head.weight:.0f} %"


def _differences(first: Query, second: Query) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    table.add_column("word", overflow="fold")
    for title in ("first text", "second text", "points"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in shown_differences(difference(first, second)):
        style = "dim" if row.kind != "word" else ""
        name = "itself" if row.kind == "itself" else visible(row.word)
        table.add_row(
            Text(name, style),
            Text("–" if row.share is None else percent(row.share), style),
            Text("–" if row.against is None else percent(row.against), style),
            Text(points(row.change), style),
        )
    return Padding(table, (0, 0, 0, 2))


def shown_differences(rows: Sequence[Difference], most: int = 14) -> list[Difference]:
    """The rows that tell most: plain words by their larger share, then those apart."""

    def larger(row: Difference) -> float:
        return max(row.share or 0.0, row.against or 0.0)

    seen = [row for row in rows if row.share is not None or row.against is not None]
    plain = sorted((row for row in seen if row.kind == "word"), key=lambda row: -larger(row))
    return [*plain[:most], *(row for row in seen if row.kind != "word")]


def excerpt(data: Sources, query: Query, most: int = MOST_SHADED_WORDS) -> range:
    """Positions of the words to show: all, or those around the query in a long text."""
    count = len(data.words)
    if count <= most:
        return range(count)
    start = min(max(query.position - most * 2 // 3, 0), count - most)
    return range(start, start + most)


def _runs(data: Sources, query: Query) -> Iterator[tuple[str, Source | None]]:
    """The text as runs: words with their source, what stands between them without."""
    shown = excerpt(data, query)
    place = data.words[shown[0]].start if shown else 0
    if shown and shown[0] > 0:
        yield "… ", None
    for position in shown:
        word = data.words[position]
        if word.special or word.end <= place:  # special, or one more piece of the same sign
            continue
        start = max(word.start, place)
        yield data.text[place:start], None
        yield data.text[start : word.end], query.sources[position]
        place = word.end
    finished = bool(shown) and shown[-1] == len(data.words) - 1
    yield (data.text[place:] if finished or not shown else " …"), None


def _lines(
    runs: Iterator[tuple[str, Source | None]], width: int
) -> Iterator[list[tuple[str, Source | None]]]:
    """Break runs into lines of at most ``width`` cells, between words where possible."""
    line: list[tuple[str, Source | None]] = []
    used = 0
    for text, source in runs:
        for number, paragraph in enumerate(text.replace("\t", "    ").split("\n")):
            if number:
                yield line
                line, used = [], 0
            for part in chop_cells(paragraph, max(width, 2)) if paragraph else []:
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


def _is_word(text: str) -> bool:
    return any(sign.isalnum() for sign in text)


def _tint(source: Source) -> str:
    return "bold" if source.share >= 0.2 else "" if source.share >= 0.05 else "dim"


def _bar(part: float, width: int, ascii_only: bool) -> str:
    if ascii_only:
        return "#" * min(round(part * width), width)
    if part > 1.0005:
        return "█" * (width - 1) + "▶"
    eighths = round(part * width * 8)
    return "█" * (eighths // 8) + _PART_BLOCKS[eighths % 8]


def _fitted(text: str, width: int) -> str:
    return text if cell_len(text) <= width else chop_cells(text, width - 1)[0] + "…"


def _listed(names: Sequence[str]) -> str:
    quoted = [f"“{name}”" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f" and {quoted[-1]}"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
