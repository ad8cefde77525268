"""The curves of a run as a picture: how the loss fell, how fast it went, at which rate."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jumok.training.log import Row
from jumok.training.report import Facts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "write_curves"]

_BLUE, _ORANGE, _GREY = "#2a6fb0", "#c8641e", "#666666"


def draw_curves(rows: list[Row], facts: Facts) -> Figure:
    """Loss and validation loss over the steps; below, the learning rate and the speed.

    Args:
        rows: of the log.
        facts: the logarithm of the vocabulary's size, the loss of a model that knows nothing, is
            drawn as a line.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.6), dpi=120, layout="constrained")
    panels: Any = figure.subplots(3, 1, sharex=True, height_ratios=[4, 1, 1])
    upper, rate, speed = panels
    losses = [row for row in rows if "loss" in row]
    middles = [  # each is a mean over the steps since the row before
        (before["step"] + row["step"]) / 2
        for before, row in zip([Row(step=0), *losses], losses, strict=False)
    ]
    upper.plot(middles, [r["loss"] for r in losses], label="training", color=_BLUE, linewidth=1.2)
    _line(upper, rows, "validation", "validation", color=_ORANGE, marker="o", markersize=3)
    highest = max((row["loss"] for row in rows if "loss" in row), default=0.0)
    blank = math.log(facts.vocab_size)
    if highest > 0.8 * blank:
        upper.axhline(blank, color=_GREY, linewidth=0.8, linestyle=":")
        upper.annotate(
            f"knows nothing: log {facts.vocab_size:,} = {blank:.2f}",
            (1, blank),
            xycoords=("axes fraction", "data"),
            xytext=(-4, -10),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=_GREY,
        )
    upper.set_ylabel("loss, nats per token")
    upper.legend(frameon=False, loc="lower left")
    _line(rate, rows, "learning_rate", None, color=_GREY, linewidth=1)
    rate.set_ylabel("learning\nrate", fontsize=8)
    _line(speed, rows, "tokens_per_second", None, color=_GREY, linewidth=1)
    speed.set_ylabel("tokens\na second", fontsize=8)
    speed.set_ylim(bottom=0)
    speed.set_xlabel("step")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.tick_params(labelsize=8)
    upper.set_title(f"{facts.folder} · {facts.model}", loc="left", fontsize=10)
    return figure


def write_curves(rows: list[Row], facts: Facts, path: Path) -> None:
    """`draw_curves` as a PNG, replaced whole.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
        OSError: it can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draw_curves(rows, facts).savefig(part, format="png")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _line(panel: Any, rows: list[Row], name: str, label: str | None, **look: Any) -> None:
    points = [(row["step"], row[name]) for row in rows if name in row]  # type: ignore[literal-required]
    if points:
        panel.plot(*zip(*points, strict=True), label=label, **look)
