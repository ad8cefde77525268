"""The wall of T×T weights: what attention holds in memory, dense, fused and lazy."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import jumok
from jumok import fused
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS, WIDTH = 2, 64
DENSE = "dense"
WAYS = {
    DENSE: Words("all weights at once", "모든 가중치를 한꺼번에"),
    "fused": Words("fused, no weights kept", "퓨즈드: 가중치를 남기지 않음"),
    "lazy": Words("a row and a tile of a lazy map", "게으른 맵의 한 행과 한 타일"),
}


def run(running: Running) -> Findings:
    lengths = (512, 1024, 2048, 4096) if running.quick else (1024, 2048, 4096, 8192, 16384, 32768)
    longest_dense = 2048 if running.quick else 8192
    peaks: dict[str, dict[int, float]] = {way: {} for way in WAYS}
    seconds: dict[str, dict[int, float]] = {way: {} for way in WAYS}
    errors = []
    random = np.random.default_rng(running.seed)
    for place, tokens in enumerate(lengths):
        running.tell(f"{tokens:,} tokens", (place / len(lengths)) ** 2)
        q, k, v = random.standard_normal((3, 1, HEADS, tokens, WIDTH), dtype=np.float32)
        with tempfile.TemporaryDirectory() as folder:
            recorded = _recorded(q, k, v, Path(folder) / "one.safetensors")
            works = _works(q, k, v, recorded)
            if tokens > longest_dense:
                del works[DENSE]
            results = {}
            for way, work in works.items():
                results[way], peaks[way][tokens], seconds[way][tokens] = _measured(work)
            if DENSE in results:
                weights = results[DENSE][1]
                errors.append(float(abs(results["lazy"][0] - weights[0, 0, -1]).max()))
                errors.append(float(abs(results["fused"][0] - results[DENSE][0]).max()))
    slopes = {way: _slope(peaks[way]) for way in WAYS}
    longest = lengths[-1]
    whole = HEADS * longest**2 * 4
    return Findings(
        tables=(
            Table(
                Words(
                    f"peak of extra memory in MB ({HEADS} heads of {WIDTH}, float32)",
                    f"추가 메모리의 최댓값, MB (헤드 {HEADS}개, 너비 {WIDTH}, float32)",
                ),
                (Words("tokens", "토큰"), *(WAYS[way] for way in WAYS)),
                [(f"{t:,}", *(_megabytes(peaks[way].get(t)) for way in WAYS)) for t in lengths],
            ),
            Table(
                Words("time in seconds (NumPy)", "시간 (초, NumPy)"),
                (Words("tokens", "토큰"), *(WAYS[way] for way in WAYS)),
                [
                    (
                        f"{t:,}",
                        *((f"{seconds[way][t]:.3f}" if t in seconds[way] else "–") for way in WAYS),
                    )
                    for t in lengths
                ],
            ),
        ),
        checks=(
            Check(
                Words("the dense weights grow with T²", "조밀한 가중치는 T²으로 커진다"),
                abs(slopes[DENSE] - 2) < 0.15,
                f"T^{slopes[DENSE]:.2f}",
            ),
            Check(
                Words("fused attention grows with T", "퓨즈드 어텐션은 T로 커진다"),
                slopes["fused"] < 1.2,
                f"T^{slopes['fused']:.2f}",
            ),
            Check(
                Words(
                    "a lazy map gives exact weights for a small part of the memory",
                    "게으른 맵은 적은 메모리로 정확한 가중치를 준다",
                ),
                max(errors) < 1e-5 and peaks["lazy"][longest] < whole / 20,
                f"±{max(errors):.0e}, {_megabytes(peaks['lazy'][longest])} MB of "
                f"{whole / 1e6:,.0f} MB ({longest:,} tokens)",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, peaks),
        remark=Words(
            "At {tokens:,} tokens the weights of a model with 30 layers × 9 heads would take "
            "{terabytes:.1f} TB. Time is another matter: fused attention computes every weight, "
            "too, so it stays quadratic; only what is kept is linear.",
            "토큰 {tokens:,}개에서 30층 × 9헤드 모델의 가중치는 {terabytes:.1f} TB가 된다. 시간은 "
            "다른 문제다. 퓨즈드 어텐션도 모든 가중치를 계산하므로 시간은 제곱으로 늘고, 남겨 "
            "두는 것만 선형이다.",
        ).format(tokens=32768, terabytes=270 * 32768**2 * 4 / 1e12),
    )


def _works(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, recorded: Any
) -> dict[str, Callable[[], Any]]:
    return {
        DENSE: lambda: jumok.attention(q, k, v, causal=True),
        "fused": lambda: fused.attention(q, k, v, causal=True),
        "lazy": lambda: (recorded[0, 0, -1], recorded[0, 0, -256:, -256:]),
    }


def _recorded(q: np.ndarray, k: np.ndarray, v: np.ndarray, path: Path) -> Any:
    """The attention of q, k and v as a lazy map, opened from a file with NumPy alone."""

    class Model(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(q, k, v, is_causal=True)

    model = Model()
    with torch.no_grad(), jumok.watch(model, keep="qk") as recording:
        model(*(torch.from_numpy(x) for x in (q, k, v)))
    recording.save(path)
    return jumok.open(path)[0]


def _measured(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a function gives, the peak of bytes that NumPy took for it, and seconds."""
    work_start = time.perf_counter()
    work()
    seconds = time.perf_counter() - work_start
    tracemalloc.start()
    try:
        result = work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, float(peak), seconds


def _slope(peaks: dict[int, float]) -> float:
    lengths = list(peaks)
    return float(np.polyfit(np.log(lengths), np.log([peaks[t] for t in lengths]), 1)[0])


def _megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.1f}"


def _draw(figure: Figure, language: Language, peaks: dict[str, dict[int, float]]) -> None:
    axes = figure.add_subplot()
    for colour, (way, found) in zip(COLOURS, peaks.items(), strict=False):
        lengths = list(found)
        axes.plot(lengths, [found[t] / 1e6 for t in lengths], "o-", color=colour)
        axes.annotate(
            WAYS[way].in_(language), (lengths[-1], found[lengths[-1]] / 1e6), (0, 7),
            textcoords="offset points", ha="right", color=colour,
        )  # fmt: skip
    everything = sorted({t for found in peaks.values() for t in found})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(everything, [f"{t:,}" for t in everything])
    axes.set_xlabel(Words("tokens", "토큰").in_(language))
    axes.set_title(Words("peak of extra memory, MB", "추가 메모리의 최댓값, MB").in_(language))


LESSON = Lesson(
    name="memory",
    claim=Words(
        "The scores are a T×T matrix: memory for the weights grows with the square of the length. "
        "Fused attention avoids the matrix, and a lazy map still shows every weight.",
        "점수는 T×T 행렬이라서 가중치의 메모리는 길이의 제곱으로 커진다. 퓨즈드 어텐션은 그 "
        "행렬을 만들지 않고, 게으른 맵은 그래도 모든 가중치를 보여 준다.",
    ),
    setup=Words(
        "The same causal attention in NumPy, with all weights, fused, and as a lazy map of a "
        "recording, at growing lengths; every byte that NumPy takes is counted.",
        "같은 인과 어텐션을 NumPy로, 모든 가중치와 함께, 퓨즈드로, 녹화의 게으른 맵으로 길이를 "
        "늘려 가며 계산하고, NumPy가 쓰는 바이트를 모두 센다.",
    ),
    run=run,
)
