"""The passages of a text as a picture: a row for each that reads, a column for each that is read.

Above the map stands the answer in words; the columns have the numbers of the rows' names.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from jumok.lens.segments import Segments
from jumok.view.figure import (
    FAINT,
    INK,
    POINTS_PER_CM,
    QUERY_BLUE,
    SMALLEST,
    check_width,
    new_figure,
    thinned,
)
from jumok.view.flow import wrapped
from jumok.view.fonts import font_family
from jumok.view.segment_wording import column_heads, cut_name, headline, read_by, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["segment_figure"]

MOST_NUMBERS = 16  # columns whose cells have numbers
MOST_NAME = 34  # signs


def segment_figure(data: Segments, *, width: float = 16.0) -> "Figure":
    """Who reads what, in %, as a heat map with the passages' names.

    Args:
        data: from `jumok.segments`.
        width: of the figure, in cm.

    Raises:
        ValueError: no figure can have this width.
        ModuleNotFoundError: matplotlib is not installed; the message names the extra.
    """
    check_width(width)
    import matplotlib

    shares = 100 * data.share.total
    rows, columns = shares.shape
    passages = len(data.segments)
    names = [
        f"{number + 1}  {cut_name(one.name, MOST_NAME)}" for number, one in enumerate(data.segments)
    ]
    said = wrapped(" ".join(headline(data)), max(int(width * 6.2), 20))
    made = new_figure(width / 2.54, (3.2 + 0.42 * len(said) + _height(rows, width)) / 2.54)
    made.set_layout_engine("constrained")
    axes = made.subplots()
    family = font_family("".join([*names, *said, data.model]))
    colors = matplotlib.colormaps["YlOrBr"].with_extremes(bad="#e9e9e9")
    shown = np.ma.masked_where(data.even <= 0, shares)
    top = _top(shown[:, :passages])
    image = axes.imshow(
        shown, cmap=colors, vmin=0.0, vmax=top, aspect="auto", interpolation="nearest"
    )
    cell = 0.62 * width * POINTS_PER_CM / columns
    high = _height(rows, width) * POINTS_PER_CM / rows
    size = max(min(8.0, 0.45 * cell, 0.8 * high), SMALLEST)
    heads = column_heads(data)
    across = [*thinned(passages, cell), *range(passages, columns)]
    if columns > passages and cell < SMALLEST:  # no room for a name of each that stands apart
        across = [*thinned(passages - math.ceil(SMALLEST / cell), cell), passages]
        heads[passages] = "apart"
    down = thinned(rows, high)
    axes.set_xticks(across, [heads[place] for place in across], fontsize=size)
    for place, label in zip(across, axes.get_xticklabels(), strict=True):
        label.set_rotation(90 if place >= passages else 0)
    axes.set_yticks(down, [names[place] for place in down], fontsize=size, family=family)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_parse_math(False)
    if columns <= MOST_NUMBERS:
        for row, column in np.argwhere(~np.ma.getmaskarray(shown)):
            ink = "#ffffff" if shares[row, column] > 0.65 * top else INK
            axes.text(column, row, f"{shares[row, column]:.0f}", ha="center", va="center",
                      fontsize=size, color=ink)  # fmt: skip
    if passages < columns:
        axes.axvline(passages - 0.5, color=INK, linewidth=0.8)
    if data.answered and rows <= 40:
        axes.get_yticklabels()[-1].set_color(QUERY_BLUE)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0 if columns <= MOST_NUMBERS else 2)
    axes.set_xlabel("the segment that is read", fontsize=8.5)
    axes.set_ylabel("the segment that reads", fontsize=8.5)
    made.suptitle(
        "\n".join([f"{title(data)}  ·  {read_by(data)}", "", *said]),
        x=0.015,
        ha="left",
        fontsize=8,
        family=family,
        parse_math=False,
        color=INK,
    )
    scale = made.colorbar(image, ax=axes, extend="max", aspect=40, pad=0.02)
    scale.set_label("share in % of all that the segment reads", fontsize=8, color=FAINT)
    scale.ax.tick_params(labelsize=7)
    return made


def _top(shares: Any) -> float:
    """The share of the darkest colour: the largest of what others read of a passage.

    Of many passages one in a hundred may be larger, mostly neighbours.
    """
    rows, columns = np.indices(shares.shape)
    others = np.ma.masked_where(rows == columns, shares).compressed()
    if not others.size:
        return 100.0
    part = 100 if shares.shape[1] <= MOST_NUMBERS else 99
    return 1.25 * float(np.percentile(others, part)) or 100.0


def _height(rows: int, width: float) -> float:
    """Of the map, in cm."""
    return min(max(0.55 * rows, 3.0), 1.1 * width)
