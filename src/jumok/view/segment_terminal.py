"""What `jumok look --segments` prints: the answer in words, a list with bars, and the table.

The lines also survive being pasted where there is no terminal. `markdown` has the same for a
report.
"""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from jumok.lens.segments import Part, Segments
from jumok.view.flow import bar, dimmed, fitted, indented, paragraph
from jumok.view.segment_wording import (
    APART,
    MOST_PARTS,
    answer,
    column_heads,
    cut_name,
    headline,
    heads_named,
    meaning,
    read_by,
    reader_name,
    row_name,
    short_meaning,
    times,
    title,
    without,
)
from jumok.view.wording import SHADES, percent

__all__ = ["look_segments", "markdown", "read_list"]

_LEAST_NAME = 14  # cells of a row's name in the table
_MOST_NAME = 36


def look_segments(data: Segments) -> RenderableType:
    """The answer in words, what the last passage read, the table, and what the numbers mean."""
    parts: list[RenderableType] = [
        paragraph((title(data), "bold"), f"  ·  read by {read_by(data)}"),
        "",
    ]
    wrote = answer(data)
    if wrote is not None:
        parts += [indented(paragraph((f"It wrote: “{wrote}”", "italic"))), ""]
    parts += [indented(paragraph(line)) for line in headline(data)]
    parts += ["", _List(data), "", *map(_as_paragraph, heads_named(data)), _Table(data), ""]
    return Group(*parts, *dimmed(meaning(data)))


def read_list(data: Segments, explained: bool = True) -> RenderableType:
    """What the last passage read, as a list alone; with a line on the numbers if ``explained``."""
    parts: list[RenderableType] = [_List(data)]
    if explained:
        parts += dimmed([f"  {line}" for line in short_meaning(data)])
    return Group(*parts)


def _as_paragraph(line: str) -> RenderableType:
    return Group(indented(paragraph(line)), "")


class _List:
    """What the last passage read, as bars: passages by their share, then what stands apart."""

    def __init__(self, data: Segments) -> None:
        self.data = data
        ranked = data.ranked()
        itself = [part for part in data.parts() if part.kind == "itself" and part.even > 0]
        self.rest = ranked[MOST_PARTS:]
        self.shown = ranked[:MOST_PARTS] + itself
        self.apart = [part for part in data.parts() if part.kind in APART and part.even > 0]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        listed = [*self.shown, *self.apart]
        if not listed:
            return
        names = [cell_len(row_name(part)) for part in listed]
        width = min(max(names), max(options.max_width - 42, 10))
        asked = any(part.loss is not None for part in listed)
        column = 12 if asked else 0
        space = min(max(options.max_width - width - 28 - column, 4), 40)
        longest = max(part.share for part in listed) or 1.0
        yield Text(
            f"  {'':{width}}   share   times  tokens{'  without' if asked else '':>{column}}", "dim"
        )
        for number, part in enumerate(listed):
            if number == len(self.shown):
                yield from self._more()
                yield Text("  apart:", "dim")
            plain = part.kind in ("segment", "itself")
            yield Text.assemble(
                "  ",
                set_cell_size(fitted(row_name(part), width), width),
                f"{percent(part.share):>8}{times(part):>8}{part.count:>8,}",
                f"{without(part):>{column}}  ",
                (
                    bar(part.share / longest, space, options.ascii_only),
                    SHADES[3] if plain else "dim",
                ),
                no_wrap=True,
            )
        if not self.apart:
            yield from self._more()

    def _more(self) -> Iterator[Text]:
        if self.rest:
            total = percent(sum(part.share for part in self.rest))
            yield Text(f"  … {len(self.rest):,} more segments: {total} together", "dim")


class _Table:
    """Who reads what, in per cent, if the columns have room; else where it can be had."""

    def __init__(self, data: Segments) -> None:
        self.data = data

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = column_heads(self.data)
        names = [_row(number, one.name) for number, one in enumerate(self.data.segments)]
        room = options.max_width - 2
        for digits in (1, 0):
            cells = _cells(self.data, digits)
            columns = zip(heads, *cells, strict=True)
            widths = [max(map(len, column)) + 2 for column in columns]
            name = min(max(map(cell_len, names)), _MOST_NAME, room - sum(widths))
            if name >= min(_LEAST_NAME, max(map(cell_len, names))):
                break
        else:
            yield from paragraph(
                f"  The whole table has {len(heads)} columns: --json, --markdown or --png F.png "
                "has it."
            ).__rich_console__(console, options)
            return
        yield Text("  Who reads (rows) how much of what (columns), in %:")
        yield Text(f"  {'':{name}}" + _line(heads, widths), "dim", no_wrap=True)
        for label, row in zip(names, cells, strict=True):
            yield Text(f"  {set_cell_size(fitted(label, name), name)}{_line(row, widths)}",
                       no_wrap=True)  # fmt: skip


def _row(number: int, name: str) -> str:
    return f"{number + 1}  {cut_name(name)}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _cells(data: Segments, digits: int) -> list[list[str]]:
    """The shares in per cent; – where the reader sees nothing of it."""
    total = data.share.total
    return [
        [
            f"{100 * share:.{digits}f}" if even > 0 else "–"
            for share, even in zip(shares, evens, strict=True)
        ]
        for shares, evens in zip(total.tolist(), data.even.tolist(), strict=True)
    ]


def markdown(data: Segments) -> str:
    """The same as Markdown: the answer in words, a table of what was read, and who reads what."""
    lines = [f"**{title(data)}** ({read_by(data)})", ""]
    wrote = answer(data)
    if wrote is not None:
        lines += [f"> {_escaped(wrote)}", ""]
    lines += [_escaped(" ".join(headline(data))), ""]
    ranked = data.ranked()
    parts = data.parts()
    listed: list[Part] = [
        *ranked,
        *(part for part in parts if part.kind == "itself"),
        *(part for part in parts if part.kind in APART),
    ]
    asked = any(part.loss is not None for part in listed)
    lines += [f"| {_escaped(reader_name(data))} read | share | times | tokens |"
              + (" without |" if asked else ""),
              "|:--|--:|--:|--:|" + ("--:|" if asked else "")]  # fmt: skip
    lines += [
        f"| {_escaped(row_name(part))} | {percent(part.share)} | {times(part)} | {part.count:,} |"
        + (f" {without(part)} |" if asked else "")
        for part in listed
    ]
    heads = column_heads(data)
    lines += ["", f"| reads ↓, in % of → | {' | '.join(heads)} |", f"|:--|{'--:|' * len(heads)}"]
    for number, (one, row) in enumerate(zip(data.segments, _cells(data, 1), strict=True)):
        lines.append(f"| {_escaped(_row(number, one.name))} | {' | '.join(row)} |")
    for line in [*heads_named(data), *meaning(data)]:
        lines += ["", _escaped(line)]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Nothing of the text becomes Markdown or HTML."""
    text = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#~" else sign for sign in text)
