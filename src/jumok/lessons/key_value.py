"""One matrix for key and value, or two: what to search by against what to fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS
from jumok.lessons.small import fit, one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES, CONTENTS, SHOWN = 32, 32, 8
WIDTHS = (4, 8, 16, 32)


def run(running: Running) -> Findings:
    steps = 300 if running.quick else 1500
    seeds = range(1 if running.quick else 3)
    found: dict[tuple[bool, int], list[tuple[float, float]]] = {}
    for number, (tied, width) in enumerate((t, w) for t in (True, False) for w in WIDTHS):
        running.tell(f"{'one matrix' if tied else 'two'}, d = {width}", number / 8)
        found[tied, width] = [_train(tied, width, steps, running.seed + s) for s in seeds]
    accuracy = {key: float(np.mean([one[0] for one in runs])) for key, runs in found.items()}
    losses = {key: float(np.mean([one[1] for one in runs])) for key, runs in found.items()}
    narrow, wide = WIDTHS[0], WIDTHS[-1]
    return Findings(
        tables=(
            Table(
                Words(
                    "right answers of a look-up among {shown} pairs after {steps} steps",
                    "쌍 {shown}개 가운데 찾기의 정답률, {steps}걸음 뒤",
                ).format(shown=SHOWN, steps=steps),
                (
                    Words("head_dim", "헤드 너비"),
                    Words("one matrix", "행렬 하나"),
                    Words("two", "둘"),
                    Words("loss, one", "손실, 하나"),
                    Words("loss, two", "손실, 둘"),
                ),
                [
                    (
                        width,
                        *(f"{accuracy[tied, width]:.1%}" for tied in (True, False)),
                        *(losses[tied, width] for tied in (True, False)),
                    )
                    for width in WIDTHS
                ],
            ),
        ),
        checks=(
            Check(
                Words(
                    "with one matrix a narrow head mixes up what to search by and what to fetch",
                    "행렬이 하나면 좁은 헤드는 찾는 기준과 가져올 것을 뒤섞는다",
                ),
                accuracy[True, narrow] < accuracy[False, narrow] - 0.1,
                f"{accuracy[True, narrow]:.0%} ↔ {accuracy[False, narrow]:.0%} (d = {narrow})",
            ),
            Check(
                Words("two matrices learn it at every width", "행렬이 둘이면 모든 너비에서 배운다"),
                min(accuracy[False, w] for w in WIDTHS) > 0.95,
                ", ".join(f"d = {w}: {accuracy[False, w]:.0%}" for w in WIDTHS),
            ),
            Check(
                Words("one matrix can't learn it at all", "행렬이 하나면 전혀 배우지 못한다"),
                accuracy[True, wide] < 0.5,
                f"{accuracy[True, wide]:.0%} (d = {wide})",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, accuracy),
        remark=Words(
            "One matrix has half of the room: name and content share the same {narrow} numbers. A "
            "wide head can keep them apart in different dimensions, which is why models with tied "
            "or squeezed keys and values (as in multi-head latent attention) can work at all.",
            "행렬이 하나면 자리가 절반이다. 이름과 내용이 같은 숫자 {narrow}개를 나누어 쓴다. "
            "넓은 헤드는 둘을 다른 차원에 나누어 담을 수 있고, 그래서 키와 값을 묶거나 압축한 "
            "모델(MLA 등)도 작동한다.",
        ).format(narrow=narrow),
    )


class Finder(nn.Module):
    """One head over tokens that each carry a name and a content; asked for a name's content."""

    def __init__(self, tied: bool, width: int) -> None:
        super().__init__()
        self.names = nn.Embedding(NAMES, 64)
        self.contents = nn.Embedding(CONTENTS, 64)
        self.q = nn.Linear(64, width, bias=False)
        self.k = nn.Linear(64, width, bias=False)
        self.v = self.k if tied else nn.Linear(64, width, bias=False)
        self.head = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, CONTENTS))

    def forward(self, ids: Tensor) -> Tensor:
        asked, names, contents = ids.split([1, SHOWN, SHOWN], dim=1)
        tokens = self.names(names) + self.contents(contents)
        found, _, _ = jumok.attention(self.q(self.names(asked)), self.k(tokens), self.v(tokens))
        return self.head(found[:, 0])  # type: ignore[no-any-return]


def _batch(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    names = torch.rand(count, NAMES, generator=random).argsort(-1)[:, :SHOWN]
    contents = torch.randint(CONTENTS, (count, SHOWN), generator=random)
    at = torch.randint(SHOWN, (count, 1), generator=random)
    return torch.cat([names.gather(1, at), names, contents], dim=1), contents.gather(1, at)[:, 0]


def _train(tied: bool, width: int, steps: int, seed: int) -> tuple[float, float]:
    """Share of right answers, and loss in nats, on fresh dictionaries."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Finder(tied, width)
    fit(model, lambda: _batch(128, random), steps, rate=4e-3)
    ids, answers = _batch(4000, random)
    with torch.no_grad(), one_thread():
        logits = model(ids)
    right = float((logits.argmax(-1) == answers).float().mean())
    return right, float(nn.functional.cross_entropy(logits, answers))


def _draw(figure: Figure, language: Language, accuracy: dict[tuple[bool, int], float]) -> None:
    axes = figure.add_subplot()
    labels = {True: Words("one matrix", "행렬 하나"), False: Words("two matrices", "행렬 둘")}
    for colour, tied in zip(COLOURS, labels, strict=False):
        values = [accuracy[tied, width] for width in WIDTHS]
        axes.plot(WIDTHS, values, "o-", color=colour, label=labels[tied].in_(language))
    axes.axhline(1 / CONTENTS, color="#767676", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set_xlabel("head_dim")
    axes.set_title(Words("look-up: right answers", "찾기: 정답률").in_(language))
    axes.legend(loc="upper left")


LESSON = Lesson(
    name="key-value",
    claim=Words(
        "With one matrix for keys and values, what to search by and what to fetch are mixed up; "
        "two matrices let each be learned.",
        "키와 값에 같은 행렬을 쓰면 찾는 기준과 가져올 내용이 뒤섞인다. 나누면 각각을 배울 수 "
        "있다.",
    ),
    setup=Words(
        "Eight tokens, each with a name and a content, and a question: what is the content of this "
        "name? One head learns it, with one matrix for keys and values and with two, for head_dim "
        "4 to 32.",
        "토큰 여덟 개가 이름과 내용을 하나씩 가진다. 이 이름의 내용은 무엇인가? 헤드 하나가 키와 "
        "값의 행렬이 하나일 때와 둘일 때, 헤드 너비 4에서 32까지 이것을 배운다.",
    ),
    run=run,
)
