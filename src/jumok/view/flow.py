"""Pieces of what a terminal shows: text that is broken between words only, bars, fitted names."""

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

_PART_BLOCKS = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"]


class Flow:
    """Pieces of text one after the other, broken into lines between them only."""

    def __init__(self, pieces: Sequence[Text], gap: int = 1) -> None:
        self.pieces = pieces
        self.gap = gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width, 1)
        line = Text(no_wrap=True)
        for piece in self.pieces:
            gap = self.gap if line.plain else 0
            if gap and line.cell_len + gap + piece.cell_len > width:
                yield line
                line, gap = Text(no_wrap=True), 0
            if piece.cell_len > width:  # nothing for it but to cut it
                *whole, piece = piece.wrap(console, width)
                yield from whole
            line.append(" " * gap)
            line.append_text(piece)
        yield line

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        sizes = [piece.cell_len for piece in self.pieces]
        whole = sum(sizes) + self.gap * (len(sizes) - 1)
        return Measurement(max(sizes), whole).clamp(1, options.max_width)


def paragraph(*parts: str | tuple[str, str]) -> Flow:
    """Words that are broken into lines, though never before a percent sign."""
    text = Text.assemble(*parts)
    words: list[Text] = []
    for word in text.split(" "):
        if word.plain.startswith("%") and words:
            words[-1].append(" ").append_text(word)
        else:
            words.append(word)
    return Flow(words)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most so many cells, broken between words; a sign of Hangul takes two."""
    lines = [""]
    for word in text.split():
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append("")
        *whole, word = chop_cells(word, width)
        if whole:
            lines[-1:] = [line for line in [lines[-1]] if line] + whole + [""]
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def indented(part: RenderableType) -> RenderableType:
    return Padding(part, (0, 0, 0, 2))


def dimmed(lines: Iterable[str]) -> Iterator[RenderableType]:
    return (paragraph((line, "dim")) for line in lines)


def bar(part: float, width: int, ascii_only: bool) -> str:
    if ascii_only:
        return "#" * min(round(part * width), width)
    eighths = round(part * width * 8)
    return "█" * (eighths // 8) + _PART_BLOCKS[eighths % 8]


def fitted(text: str, width: int) -> str:
    return text if cell_len(text) <= width else chop_cells(text, max(width - 1, 2))[0] + "…"
