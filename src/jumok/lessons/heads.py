"""How many heads are right: at a fixed width, more of them means narrower ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS
from jumok.lessons.small import fit, manual, one_thread, pieces
from jumok.model.config import Learned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 64
HEADS = (1, 2, 4, 8, 16, 32, 64)
LENGTH = 32
NAMES, SHOWN, ASKED = 16, 8, 4


def run(running: Running) -> Findings:
    text, fresh = manual()
    heads = (1, 4, 64) if running.quick else HEADS
    seeds = range(running.seed, running.seed + (1 if running.quick else 3))
    losses: dict[int, list[float]] = {}
    recalled: dict[int, list[float]] = {}
    for place, count in enumerate(heads):
        running.tell(f"{count} heads", place / len(heads))
        steps = 250 if running.quick else 500
        losses[count] = [_language(count, text, fresh, steps, seed) for seed in seeds]
        running.tell(f"{count} heads, retrieval", (place + 0.6) / len(heads))
        steps = 300 if running.quick else 500
        recalled[count] = [_recall(count, steps, seed) for seed in seeds]
    loss = {count: float(np.mean(found)) for count, found in losses.items()}
    right = {count: float(np.mean(found)) for count, found in recalled.items()}
    best = min(loss, key=lambda count: loss[count])
    best_recall = max(right, key=lambda count: right[count])
    good = [count for count in heads if loss[count] < loss[best] + 0.05]
    most = heads[-1]
    return Findings(
        tables=(
            Table(
                Words(
                    "emb_dim {width}, 2 layers, {seeds} seeds: mean (smallest–largest)",
                    "emb_dim {width}, 2층, 시드 {seeds}개: 평균 (최소–최대)",
                ).format(width=WIDTH, seeds=len(seeds)),
                (
                    Words("heads", "헤드"),
                    "head_dim",
                    Words("validation loss, nats", "검증 손실, nat"),
                    Words("retrieval: right answers", "찾기: 정답률"),
                ),
                [
                    (
                        count,
                        WIDTH // count,
                        f"{loss[count]:.3f} ({min(losses[count]):.3f}–{max(losses[count]):.3f})",
                        f"{right[count]:.0%} "
                        f"({min(recalled[count]):.0%}–{max(recalled[count]):.0%})",
                    )
                    for count in heads
                ],
            ),
        ),
        checks=(
            Check(
                Words(
                    "the most heads are not the best: they are too narrow to retrieve",
                    "헤드가 가장 많은 것이 가장 좋지는 않다: 너무 좁아서 찾지 못한다",
                ),
                right[most] < right[best_recall] - 0.1,
                f"{right[most]:.0%} ({most}) ↔ {right[best_recall]:.0%} ({best_recall})",
            ),
            Check(
                Words(
                    "nor is a single one: it can't look four names up at once",
                    "하나도 아니다: 이름 넷을 한꺼번에 찾지 못한다",
                ),
                right[1] < right[best_recall] - 0.1,
                f"{right[1]:.0%} (1) ↔ {right[best_recall]:.0%} ({best_recall})",
            ),
            Check(
                Words(
                    "for a small language model the number matters much",
                    "작은 언어 모델에서 그 수가 크게 중요하다",
                ),
                max(loss.values()) > loss[best] + 0.1,
                f"{loss[best]:.2f} ({best}) … {max(loss.values()):.2f} nats",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, losses, recalled),
        remark=Words(
            "For the language model the optimum is flat: {good} heads lie within 0.05 nats of the "
            "best. What is looked up decides: four things at once need about four heads, and a "
            "head of one number finds nothing.",
            "언어 모델의 최적점은 평평하다. 헤드 {good}개가 최선에서 0.05 nat 안에 있다. 무엇을 "
            "찾느냐가 정한다. 넷을 한꺼번에 찾으려면 헤드가 넷쯤 필요하고, 숫자 하나짜리 헤드는 "
            "아무것도 찾지 못한다.",
        ).format(good=", ".join(map(str, good))),
    )


class Writer(nn.Module):
    """A GPT of two layers over bytes, whose width is shared out among the heads."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.body = jumok.Decoder(
            jumok.Config(
                vocab_size=256, emb_dim=WIDTH, n_layers=2, n_heads=heads, context=LENGTH,
                positions=Learned(), norm="layer", feed_forward="gelu",
            )
        )  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(ids)  # type: ignore[no-any-return]


def _language(heads: int, text: Tensor, fresh: Tensor, steps: int, seed: int) -> float:
    """Loss on fresh text in nats, after training."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Writer(heads)

    fit(model, lambda: pieces(text, 16, LENGTH, random), steps)
    random.manual_seed(0)
    ids, answers = pieces(fresh, 256, LENGTH, random)
    with torch.no_grad(), one_thread():
        logits = model(ids)
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten()))


class Finder(nn.Module):
    """One layer over tokens with a name and a content; asked for the contents of four names."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.names = nn.Embedding(NAMES, WIDTH)
        self.contents = nn.Embedding(NAMES, WIDTH)
        self.asked = nn.ModuleList(nn.Embedding(NAMES, WIDTH) for _ in range(ASKED))
        self.attention = jumok.MultiHeadAttention(WIDTH, heads)
        self.head = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, ASKED * NAMES)
        )

    def forward(self, ids: Tensor) -> Tensor:
        names, contents, asked = ids.split([SHOWN, SHOWN, ASKED], dim=1)
        tokens = self.names(names) + self.contents(contents)
        pairs = zip(self.asked, asked.unbind(1), strict=True)
        question = torch.stack([table(name) for table, name in pairs]).sum(dim=0)
        x = torch.cat([tokens, question[:, None]], dim=1)
        return self.head(self.attention(x)[:, -1]).unflatten(-1, (ASKED, NAMES))  # type: ignore[no-any-return]


def _recall(heads: int, steps: int, seed: int) -> float:
    """Share of right answers after learning to look four names up at once."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Finder(heads)

    def batch(count: int = 128) -> tuple[Tensor, Tensor]:
        names = torch.rand(count, NAMES, generator=random).argsort(-1)[:, :SHOWN]
        contents = torch.randint(NAMES, (count, SHOWN), generator=random)
        order = torch.rand(count, SHOWN, generator=random).argsort(-1)[:, :ASKED]
        return torch.cat([names, contents, names.gather(1, order)], dim=1), contents.gather(
            1, order
        )

    fit(model, batch, steps, rate=3e-3)
    random.manual_seed(0)
    ids, answers = batch(1000)
    with torch.no_grad(), one_thread():
        return float((model(ids).argmax(-1) == answers).float().mean())


def _draw(
    figure: Figure,
    language: Language,
    losses: dict[int, list[float]],
    recalled: dict[int, list[float]],
) -> None:
    titles = (
        Words("validation loss, nats", "검증 손실, nat"),
        Words("retrieval: right answers", "찾기: 정답률"),
    )
    for number, (found, title) in enumerate(zip((losses, recalled), titles, strict=True)):
        axes = figure.add_subplot(1, 2, number + 1)
        heads = list(found)
        axes.plot(heads, [np.mean(found[h]) for h in heads], "o-", color=COLOURS[number])
        axes.fill_between(
            heads, [min(found[h]) for h in heads], [max(found[h]) for h in heads],
            color=COLOURS[number], alpha=0.15, linewidth=0,
        )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(heads, [f"{h}" for h in heads])
        axes.set_xlabel(Words("heads (width 64 in all)", "헤드 수 (전체 너비 64)").in_(language))
        axes.set_title(title.in_(language))
        if number:
            axes.set_ylim(0, 1.02)
            axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])


LESSON = Lesson(
    name="heads",
    claim=Words(
        "More heads are not always better: at a fixed width more heads are narrower ones, and "
        "there is a right number for a model's size.",
        "헤드가 많다고 늘 좋지는 않다. 너비가 정해져 있으면 헤드가 많을수록 좁아지고, 모델 크기에 "
        "맞는 수가 있다.",
    ),
    setup=Words(
        "GPTs of two layers, 64 wide, with 1 to 64 heads learn the bytes of Python's "
        "documentation and, apart from that, one layer learns to look four names up at once among "
        "eight; several seeds each.",
        "너비 64의 두 층 GPT를 헤드 1개에서 64개까지 바꾸어 파이썬 문서의 바이트를 배운다. 따로 "
        "한 층이 여덟 쌍 가운데 이름 넷의 내용을 한꺼번에 찾는 일을 배운다. 시드를 여러 개 쓴다.",
    ),
    run=run,
)
