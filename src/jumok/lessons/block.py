"""What each part of the block is for: residual, normalisation, feed-forward, dropout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS
from jumok.lessons.small import fit, manual, one_thread, pieces

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEADS, LENGTH = 32, 2, 32
RATE = 2e-3
LITTLE = 1024
PARTS = {
    "nothing": Words("nothing removed", "다 있음"),
    "residual": Words("no residual", "잔차 없음"),
    "norm": Words("no normalisation", "정규화 없음"),
    "both": Words("neither of the two", "둘 다 없음"),
    "feed-forward": Words("no feed-forward", "순방향망 없음"),
}


def run(running: Running) -> Findings:
    text, fresh = manual()
    depths = (2, 24) if running.quick else (2, 8, 24)
    steps = 100 if running.quick else 400
    losses, gradients = {}, {}
    count = len(depths) * len(PARTS)
    for number, (depth, without) in enumerate((d, p) for d in depths for p in PARTS):
        running.tell(f"{depth} layers, {PARTS[without].en}", 0.8 * number / count)
        torch.manual_seed(running.seed)
        model = Writer(depth, without)
        gradients[depth, without] = _gradients(model, text, running.seed)
        losses[depth, without] = _train(model, text, fresh, steps, running.seed)[1]
    deep = depths[-1]
    running.tell("a high learning rate", 0.8)
    fast = {
        part: _train(Writer(deep, part), text, fresh, steps, running.seed, 10 * RATE)[1]
        for part in ("nothing", "norm")
    }
    running.tell("dropout", 0.9)
    small = 300 if running.quick else 1000
    with_dropout, without_dropout = (
        _train_on_little(rate, text, fresh, small, running.seed) for rate in (0.2, 0.0)
    )
    first = {part: gradients[deep, part][0] for part in PARTS}
    whole = losses[deep, "nothing"]
    return Findings(
        tables=(
            Table(
                Words(
                    "validation loss after {steps} steps, in nats (a guess: {chance:.2f})",
                    "{steps}걸음 뒤 검증 손실, nat (찍으면 {chance:.2f})",
                ).format(steps=steps, chance=math.log(256)),
                (Words("layers", "층"), *PARTS.values()),
                [(depth, *(f"{losses[depth, part]:.2f}" for part in PARTS)) for depth in depths],
            ),
            Table(
                Words(
                    "gradient at the first layer before training (norm), and how many times it is "
                    "larger at the last",
                    "학습 전 첫 층의 기울기 크기와 마지막 층이 몇 배인지",
                ),
                (Words("layers", "층"), *PARTS.values()),
                [(depth, *(_pair(gradients[depth, part]) for part in PARTS)) for depth in depths],
            ),
            Table(
                Words(
                    "dropout: {size:,} bytes of text, read again and again ({steps} steps)",
                    "드롭아웃: 글 {size:,}바이트를 되풀이해 읽기 ({steps}걸음)",
                ).format(size=LITTLE, steps=small),
                ("", Words("training loss", "학습 손실"), Words("validation loss", "검증 손실")),
                [
                    (Words("dropout 0.2", "드롭아웃 0.2"), *with_dropout),
                    (Words("no dropout", "없음"), *without_dropout),
                ],
            ),
        ),
        checks=(
            Check(
                Words(
                    "without residual and normalisation gradients vanish in a deep model",
                    "잔차와 정규화가 없으면 깊은 모델에서 기울기가 사라진다",
                ),
                first["both"] < first["nothing"] / 1e6,
                f"{first['both']:.0e} ↔ {first['nothing']:.1f} ({deep} layers)",
            ),
            Check(
                Words(
                    "a deep model learns only with residuals", "깊은 모델은 잔차가 있어야 배운다"
                ),
                losses[deep, "residual"] > whole + 0.3,
                f"{losses[deep, 'residual']:.2f} ↔ {whole:.2f} ({deep} layers)",
            ),
            Check(
                Words(
                    "normalisation keeps a deep model steady at ten times the learning rate",
                    "정규화는 학습률을 열 배로 해도 깊은 모델을 안정시킨다",
                ),
                not fast["norm"] < fast["nothing"] + 0.2,
                f"{fast['norm']:.2f} ↔ {fast['nothing']:.2f} ({deep} layers)",
            ),
            Check(
                Words("the feed-forward network lowers the loss", "순방향망은 손실을 낮춘다"),
                all(losses[d, "feed-forward"] > losses[d, "nothing"] for d in depths),
                ", ".join(
                    f"{losses[d, 'feed-forward']:.2f} ↔ {losses[d, 'nothing']:.2f} ({d} layers)"
                    for d in depths
                ),
            ),
            Check(
                Words(
                    "dropout narrows the gap between training and fresh text",
                    "드롭아웃은 학습한 글과 새 글의 차이를 줄인다",
                ),
                _gap(with_dropout) < _gap(without_dropout),
                f"{_gap(with_dropout):.2f} ↔ {_gap(without_dropout):.2f}",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, losses, gradients, depths),
        remark=Words(
            "Normalisation alone keeps the gradients' size ({kept:.1f} in the first of {deep} "
            "layers without residuals), but not their use: without residuals attention averages "
            "the tokens until all are alike (Dong et al. 2021), and the model learns no more than "
            "how often each byte occurs. At the usual learning rate a model of this size does "
            "without normalisation ({bare:.2f} ↔ {whole:.2f}).",
            "정규화만으로도 기울기의 크기는 남는다 (잔차 없는 {deep}층의 첫 층에서 {kept:.1f}). "
            "그러나 쓸모는 남지 않는다. 잔차가 없으면 어텐션이 토큰을 평균 내어 모두 같아지고 "
            "(Dong 외 2021), 모델은 바이트의 빈도밖에 배우지 못한다. 보통의 학습률에서는 이 "
            "크기의 모델은 정규화 없이도 배운다 ({bare:.2f} ↔ {whole:.2f}).",
        ).format(kept=first["residual"], deep=deep, bare=losses[deep, "norm"], whole=whole),
    )


def _pair(found: list[float]) -> str:
    return f"{found[0]:.1e} (×{found[-1] / max(found[0], 1e-30):.1g})"


def _gap(losses: tuple[float, float]) -> float:
    return losses[1] - losses[0]


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); one part may be missing."""

    def __init__(self, without: str, dropout: float) -> None:
        super().__init__()
        self.without = without
        self.attention = jumok.MultiHeadAttention(WIDTH, HEADS, causal=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.norms = nn.ModuleList(
            nn.Identity() if without in ("norm", "both") else nn.LayerNorm(WIDTH) for _ in range(2)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self._add(x, self.attention(self.norms[0](x)))
        if self.without == "feed-forward":
            return x
        return self._add(x, self.feed_forward(self.norms[1](x)))

    def _add(self, x: Tensor, more: Tensor) -> Tensor:
        more = self.dropout(more)
        return more if self.without in ("residual", "both") else x + more


class Writer(nn.Module):
    """A GPT over bytes."""

    def __init__(self, depth: int, without: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(without, dropout) for _ in range(depth))
        self.norm = nn.Identity() if without in ("norm", "both") else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def _gradients(model: Writer, text: Tensor, seed: int) -> list[float]:
    """Norm of the gradient of each block, from the first to the last."""
    ids, answers = pieces(text, 16, LENGTH, torch.Generator().manual_seed(seed))
    with one_thread():
        nn.functional.cross_entropy(model(ids).flatten(0, 1), answers.flatten()).backward()
    found = [
        float(nn.utils.get_total_norm(p.grad for p in block.parameters() if p.grad is not None))
        for block in model.blocks
    ]
    model.zero_grad()
    return found


def _train(
    model: Writer, text: Tensor, fresh: Tensor, steps: int, seed: int, rate: float = RATE
) -> tuple[float, float]:
    """Loss on the text of the training and on fresh text, in nats, after training."""
    random = torch.Generator().manual_seed(seed)
    fit(model, lambda: pieces(text, 16, LENGTH, random), steps, rate=rate)
    model.eval()
    losses = []
    with torch.no_grad(), one_thread():
        for source in (text, fresh):
            ids, answers = pieces(source, 128, LENGTH, torch.Generator().manual_seed(seed + 1))
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), answers.flatten())
            losses.append(float(loss))
    return losses[0], losses[1]


def _train_on_little(
    rate: float, text: Tensor, fresh: Tensor, steps: int, seed: int
) -> tuple[float, float]:
    torch.manual_seed(seed)
    return _train(Writer(2, "nothing", rate), text[:LITTLE], fresh, steps, seed)


def _draw(
    figure: Figure,
    language: Language,
    losses: dict[tuple[int, str], float],
    gradients: dict[tuple[int, str], list[float]],
    depths: tuple[int, ...],
) -> None:
    left, right = figure.subplots(1, 2)
    places = np.arange(len(depths))
    for number, (part, name) in enumerate(PARTS.items()):
        values = [losses[depth, part] for depth in depths]
        left.bar(
            places + 0.17 * (number - 2), values, 0.15, color=COLOURS[number],
            label=name.in_(language),
        )  # fmt: skip
        found = [max(x, 1e-30) for x in gradients[depths[-1], part]]
        right.plot(np.arange(len(found)) + 1, found, color=COLOURS[number])
    left.set_xticks(places, [str(depth) for depth in depths])
    left.set_xlabel(Words("layers", "층").in_(language))
    left.set_title(Words("validation loss, nats", "검증 손실, nat").in_(language))
    right.set_yscale("log")
    right.set_xlabel(Words("layer", "층").in_(language))
    title = Words("gradient before training, {n} layers", "학습 전 기울기, {n}층")
    right.set_title(title.format(n=depths[-1]).in_(language))
    figure.legend(loc="outside lower center", ncols=3)


LESSON = Lesson(
    name="block",
    claim=Words(
        "Around attention stand residual connections, so that gradients pass; normalisation, for "
        "stability; a feed-forward network, for what is not linear; and dropout.",
        "어텐션 둘레에는 기울기가 지나가도록 잔차 연결이, 안정을 위해 정규화가, 비선형성을 위해 "
        "순방향망이, 그리고 드롭아웃이 있다.",
    ),
    setup=Words(
        "Small GPTs over the bytes of Python's documentation, 2 to 24 layers deep, whole and with "
        "one part removed: gradients before training, loss after it. Dropout is tested where it "
        "matters: on a text so short that it is soon learned by heart.",
        "파이썬 문서의 바이트를 배우는 작은 GPT를 2층에서 24층까지, 온전하게 그리고 한 부분씩 빼고 "
        "학습한다. 학습 전의 기울기와 학습 뒤의 손실을 잰다. 드롭아웃은 금방 외울 만큼 짧은 글에서 "
        "시험한다.",
    ),
    run=run,
)
