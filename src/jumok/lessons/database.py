"""Attention as a soft dictionary: exact at temperature 0, and how much a key of width d holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPERATURES = (100.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.01)
WIDTHS = (8, 16, 24, 32, 48, 64, 96)
ENTRIES = 32


def run(running: Running) -> Findings:
    random = np.random.default_rng(running.seed)
    keys = random.standard_normal((ENTRIES, 64))
    keys *= 8 / np.linalg.norm(keys, axis=-1, keepdims=True)  # |k|² = d
    values = random.standard_normal((ENTRIES, 16))
    errors, means = {}, {}
    for temperature in TEMPERATURES:
        found, _, _ = jumok.attention(keys, keys, values, scale=1 / (8 * temperature))
        errors[temperature] = float(abs(found - values).max())
        means[temperature] = float(abs(found - values.mean(axis=0)).max())

    rounds = 20 if running.quick else 100
    capacity = {}
    for place, width in enumerate(WIDTHS):
        running.tell(f"d = {width}", place / len(WIDTHS))
        capacity[width] = _capacity(random, width, rounds)
    predicted = {width: math.exp(math.sqrt(width) - 0.5) for width in WIDTHS}
    slope, _ = np.polyfit(np.sqrt(WIDTHS), np.log([capacity[w] for w in WIDTHS]), 1)
    coldest, hottest = TEMPERATURES[-1], TEMPERATURES[0]
    return Findings(
        tables=(
            Table(
                Words(
                    "asked for each of {entries} entries (d = 64, scores divided by √d · "
                    "temperature)",
                    "항목 {entries}개를 하나씩 찾기 (d = 64, 점수를 √d · 온도로 나눔)",
                ).format(entries=ENTRIES),
                (
                    Words("temperature", "온도"),
                    Words("largest error", "가장 큰 오차"),
                    Words("distance from the mean of all", "전체 평균과의 거리"),
                ),
                [(t, errors[t], means[t]) for t in TEMPERATURES],
            ),
            Table(
                Words(
                    "entries until the right one has only half of the weight (temperature 1)",
                    "맞는 항목의 가중치가 절반이 될 때까지의 항목 수 (온도 1)",
                ),
                ("d", Words("measured", "측정"), "e^(√d − ½)"),
                [(width, round(capacity[width]), round(predicted[width])) for width in WIDTHS],
            ),
        ),
        checks=(
            Check(
                Words(
                    "as the temperature goes to 0 it looks up exactly",
                    "온도가 0에 가까우면 정확한 검색이 된다",
                ),
                errors[coldest] < 1e-9 < errors[1.0],
                f"±{errors[coldest]:.0e} ({coldest:g}) ↔ ±{errors[1.0]:.2f} (1)",
            ),
            Check(
                Words(
                    "hot, it answers with the mean of everything",
                    "뜨거우면 모든 값의 평균을 답한다",
                ),
                means[hottest] < 0.1 < means[1.0],
                f"±{means[hottest]:.3f} ({hottest:g}) ↔ ±{means[1.0]:.2f} (1)",
            ),
            Check(
                Words(
                    "in between it mixes: wider keys hold exponentially more entries",
                    "그 사이에서는 섞는다: 키가 넓을수록 담을 수 있는 항목이 지수적으로 는다",
                ),
                0.8 < slope < 1.2,
                f"ln(entries) = {slope:.2f} · √d + …",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, errors, capacity, predicted),
        remark=Words(
            "With the usual 1/√d a head of 64 dimensions tells about {held:,} random entries apart "
            "and one of 8 about {few}: a reason why very small heads retrieve badly. Learned keys "
            "can be colder: a model that makes its queries longer lowers its own temperature.",
            "보통의 1/√d에서 64차원 헤드는 무작위 항목 약 {held:,}개, 8차원 헤드는 약 {few}개를 "
            "구별한다. 너무 작은 헤드가 검색을 못하는 까닭이다. 학습된 모델은 쿼리를 길게 만들어 "
            "스스로 온도를 낮출 수 있다.",
        ).format(held=round(capacity[64]), few=round(capacity[8])),
    )


def _capacity(random: np.random.Generator, width: int, rounds: int) -> float:
    """How many entries until the right one's weight is one half, at temperature 1.

    The right key's score is √d; those of the others are drawn until they weigh as much together.
    """
    found = []
    limit = 1 << 17
    for _ in range(rounds):
        q = random.standard_normal(width)
        q *= math.sqrt(width) / np.linalg.norm(q)
        total, count, own = 0.0, 0, math.exp(math.sqrt(width))
        while total < own:
            k = random.standard_normal((min(limit, max(64, round(own / 8))), width))
            sums = np.cumsum(np.exp(k @ q / math.sqrt(width))) + total
            at = int(np.searchsorted(sums, own))
            count += min(at + 1, len(k))
            total = float(sums[-1])
        found.append(count)
    return float(np.median(found))


def _draw(
    figure: Figure,
    language: Language,
    errors: dict[float, float],
    capacity: dict[int, float],
    predicted: dict[int, float],
) -> None:
    left, right = figure.subplots(1, 2)
    left.plot(TEMPERATURES, [max(errors[t], 1e-16) for t in TEMPERATURES], "o-", color=COLOURS[0])
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel(Words("temperature", "온도").in_(language))
    left.set_title(Words("largest error of a look-up", "검색의 가장 큰 오차").in_(language))
    roots = np.sqrt(WIDTHS)
    right.plot(roots, [capacity[w] for w in WIDTHS], "o-", color=COLOURS[0])
    right.plot(roots, [predicted[w] for w in WIDTHS], "--", color=COLOURS[1])
    right.text(roots[3], predicted[WIDTHS[3]] / 4, "e^(√d − ½)", color=COLOURS[1])
    right.set_yscale("log")
    right.set_xticks(roots[::2], [f"{w}" for w in WIDTHS[::2]])
    right.set_xlabel("d")
    right.set_title(Words("entries it can tell apart", "구별할 수 있는 항목 수").in_(language))


LESSON = Lesson(
    name="database",
    claim=Words(
        "Attention is a look-up in a database whose answer is a mixture: an exact dictionary in "
        "the limit, and the wider the keys, the more entries it tells apart.",
        "어텐션은 답이 혼합으로 나오는 데이터베이스 검색이다. 극한에서는 정확한 사전이고, 키가 "
        "넓을수록 더 많은 항목을 구별한다.",
    ),
    setup=Words(
        "A dictionary of random keys of length √d and random values is asked for each of its keys, "
        "at temperatures from 100 to 0.01; then entries are added until the right one keeps only "
        "half of the weight, for keys of 8 to 96 dimensions.",
        "길이가 √d인 무작위 키와 무작위 값의 사전에서 키를 하나씩 찾으며 온도를 100에서 0.01까지 "
        "바꾼다. 그리고 맞는 항목의 가중치가 절반으로 줄 때까지 항목을 더하는 실험을 8에서 "
        "96차원의 키로 한다.",
    ),
    run=run,
)
