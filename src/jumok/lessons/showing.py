"""How a lesson's findings are shown: in a terminal, as a picture, and as a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jumok.lessons.lesson import VERDICTS, Check, Language, Result, Table, Verdict, Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

__all__ = ["markdown", "picture", "terminal"]

INK, FAINT = "#1a1a1a", "#767676"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Of Okabe and Ito: told apart by people who are colour-blind, too."""

_HEADINGS = {
    "claim": Words("Claim", "주장"),
    "setup": Words("How it is tested", "실험 방법"),
    "verdict": Words("Verdict", "판정"),
    "remark": Words("What else the numbers say", "숫자가 더 말해 주는 것"),
    "time": Words("{seconds} s on this machine", "이 컴퓨터에서 {seconds}초"),
    "quick": Words("quick setting", "빠른 설정"),
    "again": Words("Run it again", "다시 실행하기"),
}
_MARKS = {True: "✓", False: "✗"}


def picture(result: Result, language: Language = "en", width: float = 16.0) -> Figure:
    """The lesson's figure.

    Args:
        result: from `jumok.lessons.run`.
        language: of its texts.
        width: in cm.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from jumok.view.fonts import font_family, quietly

    style: Any = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "font.size": 9.0,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "axes.unicode_minus": False,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
    }
    with rc_context(style), quietly():
        figure = Figure(figsize=(width / 2.54, 0.55 * width / 2.54), layout="constrained")
        FigureCanvasAgg(figure)
        result.findings.draw(figure, language)
        texts = "".join(item.get_text() for item in figure.findobj(_is_text))  # type: ignore[attr-defined]
        family = font_family(texts)
        for item in figure.findobj(_is_text):
            item.set_fontfamily(family)  # type: ignore[attr-defined]
        figure.draw_without_rendering()
    return figure


def _is_text(item: object) -> bool:
    return hasattr(item, "set_fontfamily") and hasattr(item, "get_text")


def terminal(result: Result, language: Language = "en") -> RenderableType:
    """All of a lesson but its figure, for a terminal."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    lesson, findings = result.lesson, result.findings
    parts: list[RenderableType] = [
        Text.assemble((f"{lesson.name}  ", "bold"), lesson.claim.in_(language)),
        Padding(Text(lesson.setup.in_(language), style="dim"), (0, 0, 1, 2)),
    ]
    for table in findings.tables:
        parts.append(Text(table.title.in_(language), style="italic"))
        shown = RichTable(box=None, header_style="bold")
        kinds = [_is_number_column(table, place) for place in range(len(table.columns))]
        for name, numbers in zip(table.columns, kinds, strict=True):
            shown.add_column(_text(name, language), justify="right" if numbers else "left")
        for row in table.rows:
            shown.add_row(*(_text(cell, language) for cell in row))
        parts.append(Padding(shown, (0, 0, 1, 0)))
    for check in findings.checks:
        mark = _MARKS[check.holds]
        parts.append(Text(f"{mark} {check.statement.in_(language)}: {check.figures}"))
    verdict = VERDICTS[findings.verdict].in_(language)
    heading = _HEADINGS["verdict"].in_(language)
    parts.append(
        Text.assemble(("\n" + f"{heading}: {verdict}", "bold"), f"  ({_time(result, language)})")
    )
    if findings.remark is not None:
        parts.append(Text(findings.remark.in_(language)))
    return Group(*parts)


def markdown(result: Result, language: Language = "en", figure: str | None = None) -> str:
    """A lesson as a page.

    Args:
        result: from `jumok.lessons.run`.
        language: of the page.
        figure: the picture's file, as the page should name it.
    """
    from jumok.lessons import CONTENTS

    lesson, findings = result.lesson, result.findings
    title = CONTENTS[lesson.name].in_(language)
    verdict = VERDICTS[findings.verdict].in_(language)

    def heading(name: str) -> str:
        return _HEADINGS[name].in_(language)

    parts = [
        f"# {lesson.name}: {title}",
        f"**{heading('claim')}.** {lesson.claim.in_(language)}",
        f"**{heading('verdict')}: {verdict}.**",
        *([f"![{title}]({figure})"] if figure else []),
        f"**{heading('setup')}.** {lesson.setup.in_(language)}",
        "\n".join(_check_line(check, language) for check in findings.checks),
    ]
    for table in findings.tables:
        parts += [f"**{table.title.in_(language)}**", _markdown_table(table, language)]
    if findings.remark is not None:
        parts.append(f"**{heading('remark')}.** {findings.remark.in_(language)}")
    command = f"jumok lesson {lesson.name}" + (" --lang ko" if language == "ko" else "")
    command += " --quick" if result.quick else ""
    parts.append(f"{heading('again')} ({_time(result, language)}):")
    parts.append(f"```console\n$ {command}\n```")
    return "\n\n".join(parts) + "\n"


def write_page(result: Result, folder: Path, language: Language) -> Path:
    """The page and the picture of a lesson, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    image = f"{result.lesson.name}.svg"
    picture(result, language).savefig(folder / image)
    page = folder / f"{result.lesson.name}.md"
    page.write_text(markdown(result, language, image), encoding="utf-8")
    return page


def contents(verdicts: Mapping[str, Verdict], language: Language) -> str:
    """The first page of the book: one line a lesson, from its name and its verdict."""
    from jumok.lessons import CONTENTS

    title = Words("Lessons", "수업").in_(language)
    intro = Words(
        "Every claim of the textbook, run and measured. The verdicts are computed from the "
        "numbers that these pages show.",
        "교과서의 모든 주장을 실제로 실행하고 잰다. 판정은 이 쪽들에 보이는 숫자에서 계산된다.",
    ).in_(language)
    names = [Words("lesson", "수업"), Words("what it is about", "내용"), _HEADINGS["verdict"]]
    rows = [
        (
            f"[{name}]({name}.md)",
            about,
            VERDICTS[verdicts[name]],
        )
        for name, about in CONTENTS.items()
        if name in verdicts
    ]
    table = _markdown_table(Table(Words("", ""), tuple(names), rows), language)
    return f"# {title}\n\n{intro}\n\n{table}\n"


def _check_line(check: Check, language: Language) -> str:
    return f"- {_MARKS[check.holds]} {check.statement.in_(language)}: {check.figures}"


def _markdown_table(table: Table, language: Language) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    places = range(len(table.columns))
    rule = ["--:" if _is_number_column(table, place) else ":--" for place in places]
    rows = [[_text(cell, language) for cell in row] for row in table.rows]
    return "\n".join(
        [line([_text(n, language) for n in table.columns]), line(rule), *map(line, rows)]
    )


def _is_number_column(table: Table, place: int) -> bool:
    return all(
        not isinstance(row[place], Words) and _looks_like_number(row[place]) for row in table.rows
    )


def _looks_like_number(cell: object) -> bool:
    if isinstance(cell, str):
        return cell == "–" or cell.lstrip("+-−±×").strip()[:1].isdigit()
    return isinstance(cell, int | float)


def _text(cell: str | int | float | Words, language: Language) -> str:
    if isinstance(cell, Words):
        return cell.in_(language)
    if isinstance(cell, float):
        return number(cell)
    return f"{cell:,}" if isinstance(cell, int) else cell


def number(value: float) -> str:
    """Three significant digits, without an exponent where that is readable."""
    if value != value:
        return "–"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.1e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def _time(result: Result, language: Language) -> str:
    text = _HEADINGS["time"].in_(language).format(seconds=f"{result.seconds:.0f}")
    return f"{text}, {_HEADINGS['quick'].in_(language)}" if result.quick else text
