"""What the causal mask is for: without it training looks perfect and generation fails."""

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

LENGTH, BATCH = 64, 16
PROMPT = "The statement "


def run(running: Running) -> Findings:
    text, fresh = manual()
    steps = 350 if running.quick else 1200
    models, losses = {}, {}
    for number, masked in enumerate((True, False)):
        running.tell(f"training {'with' if masked else 'without'} the mask", number / 2)
        torch.manual_seed(running.seed)
        models[masked] = Reader(masked)
        losses[masked] = _fit(models[masked], text, steps, running.seed)
    running.tell("generating", 0.97)
    random = torch.Generator().manual_seed(running.seed + 1)
    ids, answers = pieces(fresh, 64, LENGTH, random)
    written, seen_all = {}, {}
    with torch.no_grad(), one_thread():
        for masked, model in models.items():
            seen_all[masked] = _loss(model(ids), answers)
            # As when it writes: what is to come is not there yet.
            half = LENGTH // 2
            written[masked] = _loss(model(ids[:, :half])[:, -1], answers[:, half - 1])
        changed = ids.clone()
        changed[:, half:] = torch.randint(256, changed[:, half:].shape, generator=random)
        moved = {
            masked: float((model(ids) - model(changed))[:, :half].abs().max())
            for masked, model in models.items()
        }
        above = _above_the_diagonal(models[True], ids[:1])
        samples = {masked: _write(model) for masked, model in models.items()}
    last = {masked: float(np.mean(found[-steps // 10 :])) for masked, found in losses.items()}
    yes, no = Words("with the mask", "마스크 있음"), Words("without", "없음")
    return Findings(
        tables=(
            Table(
                Words(
                    f"loss for the next byte, in nats (a guess: {math.log(256):.2f})",
                    f"다음 바이트의 손실, nat (찍으면 {math.log(256):.2f})",
                ),
                ("", yes, no),
                [
                    (Words("in training", "학습할 때"), last[True], last[False]),
                    (
                        Words("fresh text, all of it seen", "새 글, 전부 보일 때"),
                        seen_all[True],
                        seen_all[False],
                    ),
                    (
                        Words("fresh text, as it is written", "새 글, 쓸 때처럼"),
                        written[True],
                        written[False],
                    ),
                ],
            ),
            Table(
                Words(
                    f"what they write after “{PROMPT.strip()}”",
                    f"“{PROMPT.strip()}” 다음에 쓰는 글",
                ),
                ("", ""),
                [(yes, samples[True]), (no, samples[False])],
            ),
        ),
        checks=(
            Check(
                Words(
                    "without the mask the training loss collapses",
                    "마스크가 없으면 학습 손실이 무너진다",
                ),
                last[False] < last[True] / 4,
                f"{last[False]:.3f} ↔ {last[True]:.2f}",
            ),
            Check(
                Words("and generation fails", "그리고 생성은 실패한다"),
                written[False] > written[True] + 1,
                f"{written[False]:.2f} ↔ {written[True]:.2f}",
            ),
            Check(
                Words(
                    "with it the weights above the diagonal are exactly 0",
                    "마스크가 있으면 대각선 위의 가중치는 정확히 0이다",
                ),
                above == 0,
                f"{above:g}",
            ),
            Check(
                Words(
                    "and what comes later never changes what was computed before",
                    "그리고 나중에 오는 것이 앞의 결과를 바꾸지 않는다",
                ),
                moved[True] == 0,
                f"±{moved[True]:g}",
            ),
            Check(
                Words(
                    "a model that sees both sides must compute everything again",
                    "양쪽을 보는 모델은 모두 다시 계산해야 한다",
                ),
                moved[False] > 0.1,
                f"±{moved[False]:.2f}",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, losses, written),
    )


class Reader(nn.Module):
    """Two blocks that predict the next byte, with or without the mask."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        config = jumok.Config(vocab_size=256, emb_dim=64, n_layers=2, n_heads=4, context=LENGTH)
        self.body = jumok.Decoder(config) if masked else jumok.Encoder(config)
        self.head = nn.Identity() if masked else nn.Linear(64, 256, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(ids))  # type: ignore[no-any-return]


def _fit(model: Reader, text: Tensor, steps: int, seed: int) -> list[float]:
    random = torch.Generator().manual_seed(seed)
    return fit(model, lambda: pieces(text, BATCH, LENGTH, random), steps)


def _loss(logits: Tensor, answers: Tensor) -> float:
    return float(nn.functional.cross_entropy(logits.flatten(0, -2), answers.flatten()))


def _above_the_diagonal(model: Reader, ids: Tensor) -> float:
    with jumok.watch(model) as recording:
        model(ids)
    above = torch.ones(LENGTH, LENGTH).triu(1) == 1
    return max(float(attention[...][..., above].abs().max()) for attention in recording)


def _write(model: Reader, count: int = 40) -> str:
    """What it finds likeliest, byte after byte."""
    ids = torch.tensor([list(PROMPT.encode())])
    for _ in range(count):
        ids = torch.cat([ids, model(ids[:, -LENGTH:])[:, -1:].argmax(-1)], dim=1)
    text = bytes(ids[0, len(PROMPT) :].tolist()).decode("latin-1")
    return "".join(sign if sign.isprintable() and sign != " " else "␣" for sign in text)


def _draw(
    figure: Figure,
    language: Language,
    losses: dict[bool, list[float]],
    written: dict[bool, float],
) -> None:
    axes = figure.add_subplot()
    labels = {True: Words("with the mask", "마스크 있음"), False: Words("without", "없음")}
    for colour, (masked, found) in zip(COLOURS, losses.items(), strict=False):
        smooth = np.convolve(found, np.ones(10) / 10, mode="valid")
        axes.plot(np.arange(len(smooth)) + 10, smooth, color=colour)
        axes.plot(len(found), written[masked], "D", color=colour, clip_on=False)
        axes.annotate(
            labels[masked].in_(language), (len(found) * 0.5, smooth[len(smooth) // 2]), (0, 8),
            textcoords="offset points", color=colour,
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel(Words("step", "걸음").in_(language))
    axes.set_title(
        Words(
            "loss in training (lines) and when it writes (diamonds), nats",
            "학습할 때(선)와 쓸 때(마름모)의 손실, nat",
        ).in_(language)
    )


LESSON = Lesson(
    name="causal",
    claim=Words(
        "A GPT must not see later tokens: their scores become −∞ and their weights exactly 0. "
        "Without the mask training is worthless; with it nothing computed earlier ever changes, "
        "while a model that sees both sides computes everything again.",
        "GPT는 뒤의 토큰을 보면 안 된다. 그 점수는 −∞, 가중치는 정확히 0이 된다. 마스크가 없으면 "
        "학습은 쓸모없고, 있으면 앞에서 계산한 것이 바뀌지 않는다. 양쪽을 보는 모델은 모두 다시 "
        "계산한다.",
    ),
    setup=Words(
        "Two models of two layers learn to predict the next byte of Python's own documentation, "
        "one with the mask and one without. Then they get fresh text, whole and cut off where the "
        "next byte is to be written; and the second half of a text is exchanged.",
        "두 층짜리 모델 둘이 파이썬 문서의 다음 바이트를 예측하도록 배운다. 하나는 마스크가 있고 "
        "하나는 없다. 그리고 새 글을 전부 보여 줄 때와 쓸 자리에서 끊었을 때를 재고, 글의 뒤쪽 "
        "절반을 바꾸어 본다.",
    ),
    run=run,
)
