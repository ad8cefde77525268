"""The Transformer of 2017: an encoder, a decoder, and cross-attention that follows the order."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS
from jumok.lessons.small import one_thread
from jumok.model.config import EncoderDecoderConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# fmt: off
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)
# fmt: on
PAD, BEGIN, END = 0, 1, 2
DAYS = tuple(f"{day}." for day in range(1, 32))
VOCABULARY = ("", "begin", "end", *"0123456789", "-", "the", "of", *MONTHS, *DAYS)
IDS = {word: number for number, word in enumerate(VOCABULARY)}
SHOWN = (["the", "14.", "of", "March", *"1879"], list("1879-03-14"))
PARTS = {  # of the target: from where to where
    "year": (Words("year", "연"), range(4)),
    "month": (Words("month", "월"), range(5, 7)),
    "day": (Words("day", "일"), range(8, 10)),
}


def run(running: Running) -> Findings:
    steps = 260 if running.quick else 1500
    tested = 300 if running.quick else 2000
    dates = random.Random(f"translate/{running.seed}")
    model = _new_model()
    losses = _train(model, dates, steps, running)
    running.tell("translating", 0.9)
    asked = [_pair(dates) for _ in range(tested)]
    sources, targets = _rows(asked)
    with one_thread():
        found = jumok.generate(model, sources, 12, temperature=0, mask=sources != PAD)
    exact = float((found == targets).all(dim=1).float().mean())
    running.tell("cross-attention", 0.95)
    weights = _cross_attention(model, asked[:200])
    shares = {part: _share(weights, asked[:200], part) for part in PARTS}
    straight = _straight(weights, asked[:200])
    lowest = min(shares.values(), key=lambda pair: pair[0] / pair[1])
    right = {form: _right(found, targets, asked, form) for form in range(3)}
    return Findings(
        tables=(
            Table(
                Words(
                    "{n} new dates, translated token by token", "새 날짜 {n}개를 토큰마다 번역"
                ).format(n=tested),
                (Words("as in", "보기"), Words("wholly right", "모두 맞음")),
                [
                    (" ".join(_written(form, 14, 3, list("1879"))), f"{right[form]:.1%}")
                    for form in range(3)
                ],
            ),
            Table(
                Words(
                    "what the written part reads of the same part in the source: share of the "
                    "weight, mean over all layers and heads",
                    "쓰는 부분이 원문의 같은 부분을 읽는 몫: 가중치의 비율, 모든 층과 헤드의 평균",
                ),
                (
                    Words("part", "부분"),
                    Words("reads its source", "제 원문을 읽는 몫"),
                    Words("an even reader", "고르게 읽을 때"),
                ),
                [
                    (PARTS[part][0], f"{share:.0%}", f"{even:.0%}")
                    for part, (share, even) in shares.items()
                ],
            ),
        ),
        checks=(
            Check(
                Words("more than 99 % of new dates come out right", "새 날짜의 99 % 넘게 맞는다"),
                exact > 0.99,
                f"{exact:.1%}",
            ),
            Check(
                Words(
                    "while it writes a part, it reads that part of the source",
                    "어느 부분을 쓰는 동안 원문의 그 부분을 읽는다",
                ),
                lowest[0] > 1.25 * lowest[1],
                ", ".join(
                    f"{PARTS[part][0].en} {share:.0%} ↔ {even:.0%}"
                    for part, (share, even) in shares.items()
                ),
            ),
            Check(
                Words(
                    "so the reading jumps with the order, and doesn't go from left to right",
                    "그래서 읽는 곳은 순서를 따라 건너뛰며 왼쪽에서 오른쪽으로 가지 않는다",
                ),
                straight < 0,
                f"r = {straight:.2f}",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, losses, _example(model)),
        remark=Words(
            "r is the correlation of a target token's position with the mean position that it "
            "reads: +1 for a translation word by word. Shares stay below 100 %: they are means "
            "over all layers and heads, and after two layers of the encoder every source token "
            "knows something of its neighbours, so a decoder need not read the very token.",
            "r은 목표 토큰의 자리와 그것이 읽는 평균 자리의 상관이다. 낱말마다 차례로 옮기면 "
            "+1이다. 몫은 100 %에 못 미친다. 모든 층과 헤드의 평균이고, 인코더 두 층을 지나면 "
            "원문의 토큰마다 이웃을 조금씩 알고 있어서, 디코더가 바로 그 토큰을 읽지 않아도 되기 "
            "때문이다.",
        ),
    )


def _new_model() -> jumok.EncoderDecoder:
    config = EncoderDecoderConfig.vaswani(
        len(VOCABULARY), emb_dim=64, n_layers=2, n_heads=4, dropout=0.0, bos_id=BEGIN,
        eos_ids=(END,), pad_id=PAD, context=16,
    )  # fmt: skip
    return jumok.EncoderDecoder(config)


def _written(form: int, day: int, month: int, year: list[str]) -> list[str]:
    """A date as people write it, in one of three orders."""
    name = MONTHS[month - 1]
    orders = ([f"{day}.", name, *year], [name, f"{day}.", *year], ["the", f"{day}.", "of", name])
    return orders[form] if form < 2 else [*orders[2], *year]


def _pair(dates: random.Random) -> tuple[int, list[str], list[str]]:
    """The form, a date in it, and the same as in ISO 8601."""
    day, month, year = dates.randrange(1, 32), dates.randrange(1, 13), dates.randrange(1000, 2100)
    form = dates.randrange(3)
    digits = list(str(year))
    return form, _written(form, day, month, digits), [*f"{year}-{month:02}-{day:02}"]


def _rows(pairs: list[tuple[int, list[str], list[str]]]) -> tuple[Tensor, Tensor]:
    """Ids of the sources (B, 8), padded, and of the targets (B, 12), from begin to end."""
    sources = torch.full((len(pairs), 8), PAD)
    targets = torch.empty(len(pairs), 12, dtype=torch.int64)
    for row, (_, source, target) in enumerate(pairs):
        sources[row, : len(source)] = torch.tensor([IDS[word] for word in source])
        targets[row] = torch.tensor([BEGIN, *(IDS[word] for word in target), END])
    return sources, targets


def _train(
    model: jumok.EncoderDecoder, dates: random.Random, steps: int, running: Running
) -> list[float]:
    """The loss of each step, in nats per token."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98))
    losses = []
    with one_thread():
        for step in range(steps):
            running.tell(f"step {step}", 0.9 * step / steps)
            for group in optimiser.param_groups:
                group["lr"] = 2e-3 * min((step + 1) / 60, 1.0) * max(0.02, 1 - step / steps)
            sources, targets = _rows([_pair(dates) for _ in range(64)])
            logits = model(sources, targets[:, :-1], sources != PAD)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            losses.append(loss.item())
    model.eval()
    return losses


def _cross_attention(
    model: jumok.EncoderDecoder, pairs: list[tuple[int, list[str], list[str]]]
) -> np.ndarray:
    """Weights (B, target, source), the mean over all layers and heads.

    Row t is what is read while target token t is written, that is by the token before it.
    """
    sources, targets = _rows(pairs)
    with torch.no_grad(), jumok.watch(model) as recording:
        model(sources, targets[:, :-1], sources != PAD)
    cross = [found[:].mean(dim=1) for found in recording if "cross_attention" in found.name]
    return torch.stack(cross).mean(dim=0).numpy()[:, :10]


def _places(source: list[str], part: str) -> list[int]:
    """Where a part of the date stands in the source."""
    kinds = {"year": tuple("0123456789"), "month": MONTHS, "day": DAYS}
    return [place for place, word in enumerate(source) if word in kinds[part]]


def _share(
    weights: np.ndarray, pairs: list[tuple[int, list[str], list[str]]], part: str
) -> tuple[float, float]:
    """The weight of a part on itself, and that of an even reader."""
    rows = list(PARTS[part][1])
    found, even = [], []
    for row, (_, source, _) in zip(weights, pairs, strict=True):
        places = _places(source, part)
        found.append(row[rows][:, places].sum(-1).mean())
        even.append(len(places) / len(source))
    return float(np.mean(found)), float(np.mean(even))


def _straight(weights: np.ndarray, pairs: list[tuple[int, list[str], list[str]]]) -> float:
    """Correlation of the target's positions with the mean positions that they read."""
    rows = [place for _, places in PARTS.values() for place in places]
    read = weights[:, rows] @ np.arange(weights.shape[-1])  # (B, 8)
    found = [np.corrcoef(rows, one)[0, 1] for one in read]
    return float(np.mean(found))


def _right(
    found: Tensor, targets: Tensor, pairs: list[tuple[int, list[str], list[str]]], form: int
) -> float:
    rows = [row for row, pair in enumerate(pairs) if pair[0] == form]
    return float((found[rows] == targets[rows]).all(dim=1).float().mean())


def _example(model: jumok.EncoderDecoder) -> np.ndarray:
    return _cross_attention(model, [(2, *SHOWN)])[0]  # type: ignore[no-any-return]


def _draw(figure: Figure, language: Language, losses: list[float], weights: np.ndarray) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    left.plot(losses, color=COLOURS[0], linewidth=1)
    left.set_yscale("log")
    left.set_xlabel(Words("step", "걸음").in_(language))
    left.set_title(Words("training loss, nats per token", "학습 손실, 토큰당 nat").in_(language))
    right.imshow(weights, cmap="Blues", vmin=0, aspect="auto")
    right.set_xticks(range(8), SHOWN[0], rotation=45)
    right.set_yticks(range(10), SHOWN[1])
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    right.set_title(Words("what each written token reads", "쓰는 토큰마다 읽는 곳").in_(language))


LESSON = Lesson(
    name="translate",
    claim=Words(
        "The Transformer of 2017 has an encoder that reads and a decoder that writes; its "
        "cross-attention finds for each word to be written the words of the source that it comes "
        "from, wherever they stand.",
        "2017년의 트랜스포머에는 읽는 인코더와 쓰는 디코더가 있다. 교차 어텐션은 쓸 낱말마다 "
        "그것이 온 원문의 낱말을 어디에 있든 찾아낸다.",
    ),
    setup=Words(
        "An encoder-decoder with two layers a side, 64 wide, learns from nothing to write dates "
        "as ISO 8601 does: “the 14. of March 1879” becomes 1879-03-14, so that what stands last "
        "is written first. Then it translates new dates, and its cross-attention is compared with "
        "an even reader's.",
        "양쪽 두 층, 너비 64의 인코더-디코더가 날짜를 ISO 8601로 쓰는 법을 처음부터 배운다. "
        "“the 14. of March 1879”는 1879-03-14가 되어, 마지막에 있는 것을 처음에 쓴다. 그다음 새 "
        "날짜를 번역하고, 교차 어텐션을 고르게 읽는 경우와 견준다.",
    ),
    run=run,
)
