"""Segments written by hand, for tests of what is shown."""

from __future__ import annotations

import dataclasses

import numpy as np

from jumok.lens.segment_tables import Tables
from jumok.lens.segments import Apart, Segment, Segments


def made(
    names: list[str],
    shares: list[list[float]],
    *,
    apart: tuple[str, ...] = ("first", "between"),
    answered: bool = True,
    count: int = 10,
) -> Segments:
    """Passages of ``count`` tokens in a GPT of two layers and two heads; a row for each."""
    share = np.array(shares, np.float32)
    visible = np.tri(len(names), share.shape[1], dtype=bool)
    visible[:, len(names) :] = True
    even = visible / visible.sum(axis=1, keepdims=True)
    weights = tuple(np.stack([share * part, share * (2 - part)]) for part in (0.5, 0.75))
    numbers = ((0, 1), (0, 1))
    raw = Tables((0, 1), numbers, weights, added=False)
    return Segments(
        model="toy",
        text="\n\n".join(names),
        tokens=count * share.shape[1],
        layers=(0, 1),
        causal=True,
        measure="share",
        note="weights times lengths",
        segments=tuple(
            Segment(name, f"{name} and more", (count * place, count * place + count), count)
            for place, name in enumerate(names)
        ),
        apart=tuple(Apart(kind, 1) for kind in apart),  # type: ignore[arg-type]
        answered=answered,
        share=Tables((0, 1), numbers, tuple(table / 2 for table in weights), added=True),
        raw=raw,
        even=even,
    )


POLICY = made(
    ["The warranty covers parts…", "Returns within 30 days…", "answer"],
    [
        [0.6, 0.0, 0.0, 0.3, 0.1],
        [0.2, 0.5, 0.0, 0.2, 0.1],
        [0.41, 0.08, 0.22, 0.25, 0.04],
    ],
)
# Without the first passage the answer is 20 times less likely, without the second 1.1 times more.
LEFT_OUT = dataclasses.replace(POLICY, losses=(float(np.log(20)), float(-np.log(1.1)), None))
KOREAN = made(
    ["보증은 물에 의한 고장을 다루지 않습니다…", "질문: 보증이 되나요?"],
    [[0.6, 0.0, 0.3, 0.1], [0.3, 0.4, 0.2, 0.1]],
    answered=False,
)
ALONE = made(["Just one passage"], [[0.7, 0.3]], apart=("first",), answered=False)
SILENT = made(["a", "b"], [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], apart=("first",), answered=False)
LONG = made(
    [f"passage {number}" for number in range(120)],
    [[1 / 60 if column < row else 0.4 if column == row else 0.0 for column in range(121)]
     for row in range(120)],
    apart=("first",),
)  # fmt: skip
