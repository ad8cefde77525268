"""Why the scores are divided by √d: variance of q·k, saturation of the softmax, training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS
from jumok.lessons.small import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
KEYS = 64

Measured = dict[int, dict[int, tuple[float, float, float]]]
"""Width → scaled or not → variance, entropy, gradient."""


def run(running: Running) -> Findings:
    random = np.random.default_rng(running.seed)
    rounds = 200 if running.quick else 2000
    measured = {}
    for place, width in enumerate(WIDTHS):
        running.tell(f"d = {width}", 0.5 * place / len(WIDTHS))
        measured[width] = {scaled: _saturation(random, width, rounds, scaled) for scaled in (0, 1)}
    variances = [measured[width][0][0] for width in WIDTHS]
    slope = float(np.polyfit(np.log(WIDTHS), np.log(variances), 1)[0])

    steps = 100 if running.quick else 300
    trained = {}
    for number, (scaled, width) in enumerate((s, w) for s in (False, True) for w in (32, 512)):
        running.tell(f"training at d = {width}", 0.5 + number / 8)
        trained[scaled, width] = _train(width, scaled, steps, running.seed)

    gradients = {s: [measured[w][s][2] for w in WIDTHS] for s in (0, 1)}
    fall = gradients[0][0] / gradients[0][-1]
    steady = max(gradients[1]) / min(gradients[1])
    without, with_scale = trained[False, 512], trained[True, 512]
    rows = [
        (
            width,
            variances[place],
            *(measured[width][scaled][1] for scaled in (0, 1)),
            *(measured[width][scaled][2] for scaled in (0, 1)),
        )
        for place, width in enumerate(WIDTHS)
    ]
    return Findings(
        tables=(
            Table(
                Words(
                    "q·k of random vectors, softmax over {keys} keys (ln {keys} = {even:.2f})",
                    "무작위 벡터의 q·k, 키 {keys}개의 소프트맥스 (ln {keys} = {even:.2f})",
                ).format(keys=KEYS, even=math.log(KEYS)),
                (
                    "d",
                    Words("variance of q·k", "q·k의 분산"),
                    Words("entropy, nats", "엔트로피 (nat)"),
                    Words("with 1/√d", "1/√d 적용"),
                    Words("gradient", "기울기"),
                    Words("with 1/√d", "1/√d 적용"),
                ),
                rows,
            ),
            Table(
                Words(
                    "loss of a small retrieval model after {steps} steps (chance: {chance:.2f})",
                    "작은 검색 모델의 {steps}걸음 뒤 손실 (우연: {chance:.2f})",
                ).format(steps=steps, chance=math.log(16)),
                ("d", Words("without √d", "√d 없이"), Words("with √d", "√d로 나누어")),
                [(width, trained[False, width], trained[True, width]) for width in (32, 512)],
            ),
        ),
        checks=(
            Check(
                Words("the variance of q·k grows like d", "q·k의 분산은 d에 비례해 커진다"),
                abs(slope - 1) < 0.1,
                f"d^{slope:.2f}",
            ),
            Check(
                Words("without √d the softmax saturates", "√d 없이는 소프트맥스가 포화한다"),
                measured[4096][0][1] < 0.1 < 2 < measured[4096][1][1],
                f"{measured[4096][0][1]:.2f} nats ↔ {measured[4096][1][1]:.2f} (d = 4096)",
            ),
            Check(
                Words("its gradient vanishes then", "그러면 기울기가 사라진다"),
                fall > 5 and steady < 2,
                f"÷{fall:.0f} ↔ ÷{steady:.1f} (d = 8 → 4096)",
            ),
            Check(
                Words("a wide model trains worse without it", "넓은 모델은 √d 없이 더 못 배운다"),
                without > 1.1 * with_scale,
                f"{without:.2f} ↔ {with_scale:.2f} (d = 512)",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, measured),
    )


def _saturation(
    random: np.random.Generator, width: int, rounds: int, scaled: int
) -> tuple[float, float, float]:
    """Variance of q·k, entropy of the softmax (nats), size of its gradient.

    The gradient: the norm of the softmax's Jacobian diag(w) − w wᵀ, a mean over the rows.
    """
    q = random.standard_normal((rounds, width))
    k = random.standard_normal((KEYS, width))
    products = q @ k.T
    weights = jumok.softmax(products / math.sqrt(width) if scaled else products)
    logs = np.log(np.where(weights > 0, weights, 1))
    entropy = -(weights * logs).sum(-1)
    squares = (weights**2).sum(-1)
    square = squares - 2 * (weights**3).sum(-1) + squares**2
    norm = np.sqrt(np.maximum(square, 0))  # a weight of 1 may round below
    return float(products.var()), float(entropy.mean()), float(norm.mean())


class Finder(nn.Module):
    """One head: a query token names one of the keys shown; the answer is that key's value."""

    def __init__(self, width: int, scaled: bool) -> None:
        super().__init__()
        self.names = nn.Embedding(16, width)
        self.values = nn.Embedding(16, width)
        self.scale = 1 / math.sqrt(width) if scaled else 1.0
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.head = nn.Linear(width, 16)
        for table in (self.names, self.values):
            nn.init.normal_(table.weight)
        for projection in (self.q, self.k, self.v):  # so that q and k have variance 1
            nn.init.normal_(projection.weight, std=width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        asked, names, values = ids.split([1, 8, 8], dim=1)
        query = self.q(self.names(asked))[:, None]  # (B, 1, 1, E)
        keys = self.k(self.names(names))[:, None]  # (B, 1, 8, E)
        found, _, _ = jumok.attention(
            query, keys, self.v(self.values(values))[:, None], scale=self.scale
        )
        return self.head(found[:, 0, 0])  # type: ignore[no-any-return]


def _train(width: int, scaled: bool, steps: int, seed: int) -> float:
    """Loss at the end (nats, mean over the last tenth) of learning to look up."""
    torch.manual_seed(seed)
    model = Finder(width, scaled)

    def batch() -> tuple[Tensor, Tensor]:
        names = torch.rand(64, 16).argsort(-1)[:, :8]
        values = torch.randint(16, (64, 8))
        at = torch.randint(8, (64, 1))
        asked = names.gather(1, at)
        return torch.cat([asked, names, values], dim=1), values.gather(1, at)[:, 0]

    losses = fit(model, batch, steps, rate=1e-3)
    return float(np.mean(losses[-steps // 10 :]))


def _draw(figure: Figure, language: Language, measured: Measured) -> None:
    names = (
        Words("entropy of the softmax, nats", "소프트맥스의 엔트로피 (nat)"),
        Words("size of its gradient", "기울기의 크기"),
    )
    for number, name in enumerate(names):
        axes = figure.add_subplot(1, 2, number + 1)
        for scaled, label in ((0, Words("q·k", "q·k")), (1, Words("q·k / √d", "q·k / √d"))):
            values = [measured[width][scaled][number + 1] for width in WIDTHS]
            axes.plot(WIDTHS, values, marker="o", markersize=3, color=COLOURS[1 - scaled])
            axes.annotate(
                label.in_(language), (WIDTHS[-1], values[-1]), (0, 6), textcoords="offset points",
                color=COLOURS[1 - scaled], ha="right",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(WIDTHS[::3], [str(width) for width in WIDTHS[::3]])
        axes.set_xlabel("d")
        axes.set_ylim(bottom=0)
        axes.set_title(name.in_(language))


LESSON = Lesson(
    name="scaling",
    claim=Words(
        "Without √d the products q·k grow with d, the softmax saturates, and its gradient "
        "vanishes.",
        "√d로 나누지 않으면 q·k가 d와 함께 커져서 소프트맥스가 포화하고 기울기가 사라진다.",
    ),
    setup=Words(
        "Random queries and keys with variance 1, at widths d from 8 to 4,096: the variance of "
        "q·k, the entropy of the softmax and the norm of its Jacobian, with and without 1/√d; then "
        "a one-head model that learns to look values up, trained both ways.",
        "분산이 1인 무작위 쿼리와 키로 d를 8에서 4,096까지 바꾸며 q·k의 분산, 소프트맥스의 "
        "엔트로피, 야코비 행렬의 크기를 1/√d가 있을 때와 없을 때 잰다. 그리고 값을 찾는 헤드 "
        "하나짜리 모델을 두 방식으로 학습한다.",
    ),
    run=run,
)
