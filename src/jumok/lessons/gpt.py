"""A GPT from nothing: what three minutes of Python's reference manual teach it."""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS
from jumok.training.log import Row, read_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT = "The "
QUICK: dict[str, Any] = {
    "tokenizer": "bytes", "emb_dim": 64, "n_layers": 2, "n_heads": 4, "context": 64, "batch": 16,
    "steps": 400, "evaluation_batches": 4, "evaluate_every": 100,
}  # fmt: skip
FULL: dict[str, Any] = {
    "tokenizer": "bpe", "vocab_size": 1024, "size": "tiny", "context": 128, "steps": 900,
    "evaluate_every": 100,
}  # fmt: skip


def run(running: Running) -> Findings:
    chosen = QUICK if running.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "data")
        running.tell("a model that has learned nothing", 0.0)
        # One step at a rate of almost nothing: the weights that the training begins with.
        nothing = {**chosen, "steps": 1, "learning_rate": 1e-9, "evaluate_every": 1}
        before = jumok.Training(
            "topics", out=f"{folder}/before", data=data, seed=running.seed, **nothing
        )
        jumok.train(before, show=False)
        running.tell("training", 0.1)
        after = jumok.Training(
            "topics", out=f"{folder}/after", data=data, seed=running.seed, **chosen
        )
        result = jumok.train(after, show=False)
        running.tell("writing", 0.9)
        rows = read_rows(result.folder / "log.jsonl")
        models = [jumok.load(place) for place in (before.folder, result.folder)]
        samples = [_samples(*pair, running) for pair in models]
        reports = [_report(*pair) for pair in models]
        frequency = _frequency(models[1][1])
    assert result.validation is not None
    known = set(re.findall(r"[A-Za-z]{3,}", "\n".join(topics.values())))
    real = [_real(texts, known) for texts in samples]
    heads = [max(report.columns["previous"]) for report in reports]
    vocabulary = models[1][0].config.vocab_size
    return Findings(
        tables=(
            Table(
                Words(
                    "{tokens:,} tokens read in {seconds:.0f} s",
                    "{seconds:.0f}초 동안 토큰 {tokens:,}개를 읽음",
                ).format(tokens=result.tokens, seconds=result.seconds),
                ("", Words("before", "전"), Words("after", "후")),
                [
                    (
                        Words("validation loss, nats per token", "검증 손실, 토큰당 nat"),
                        f"{math.log(vocabulary):.2f}",
                        f"{result.validation:.2f}",
                    ),
                    (
                        Words("words that exist, of those it writes", "쓴 낱말 중 있는 낱말"),
                        *(f"{share:.0%}" for share in real),
                    ),
                    (
                        Words(
                            "most weight of a head on the token before",
                            "바로 앞 토큰에 대한 헤드의 최대 가중치",
                        ),
                        *(f"{share:.0%}" for share in heads),
                    ),
                ],
            ),
            Table(
                Words("what it writes after “The ”", "“The ” 다음에 쓰는 글"),
                ("", Words("sample", "보기")),
                [
                    (Words("before", "전"), _printable(samples[0][0])),
                    (Words("after", "후"), _printable(samples[1][0])),
                ],
            ),
        ),
        checks=(
            Check(
                Words(
                    "it learns more than how frequent each token is",
                    "토큰마다 얼마나 잦은지보다 더 많이 배운다",
                ),
                result.validation < frequency - 0.5,
                f"{result.validation:.2f} ↔ {frequency:.2f} nats",
            ),
            Check(
                Words("it writes words that exist", "있는 낱말을 쓴다"),
                real[1] > real[0] + 0.2,
                f"{real[0]:.0%} → {real[1]:.0%}",
            ),
            Check(
                Words(
                    "its heads find work: one of them reads the token before",
                    "헤드가 할 일을 찾는다: 그중 하나는 바로 앞 토큰을 읽는다",
                ),
                heads[1] > 3 * heads[0],
                f"{heads[0]:.0%} → {heads[1]:.0%}",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, rows, frequency, reports),
        remark=Words(
            "Before training the loss is that of guessing evenly among {n} tokens. Words that "
            "exist are no sentences that are true: what it has read is one manual, a few times.",
            "학습 전의 손실은 토큰 {n}개를 고르게 찍을 때의 값이다. 있는 낱말을 쓴다고 옳은 문장은 "
            "아니다. 읽은 것은 설명서 하나, 몇 번뿐이다.",
        ).format(n=f"{vocabulary:,}"),
    )


def _samples(model: Any, tokenizer: Any, running: Running) -> list[str]:
    """Four texts of 150 tokens."""
    ids = torch.tensor([tokenizer.encode(PROMPT)] * 4)
    room = model.config.context - ids.shape[1]
    found = jumok.generate(model, ids, min(150, room), 0.8, stop=None, seed=running.seed)
    return [tokenizer.decode(row.tolist()) for row in found]


def _real(texts: list[str], known: set[str]) -> float:
    """The share of words of three letters or more that the manual has, too."""
    written = [word for text in texts for word in re.findall(r"[A-Za-z]{3,}", text)]
    return sum(word in known for word in written) / max(1, len(written))


def _report(model: Any, tokenizer: Any) -> Any:
    """What each head does with a passage of the manual."""
    text = topics["if"]
    ids = torch.tensor([tokenizer.encode(text)[: model.config.context]])
    with torch.no_grad(), jumok.watch(model) as recording:
        model(ids)
    return jumok.report(recording, tokenizer)


def _frequency(tokenizer: Any) -> float:
    """The least loss of a model that knows only how frequent each token is, in nats."""
    counts = Counter(token for text in topics.values() for token in tokenizer.encode(text))
    shares = np.array(list(counts.values())) / counts.total()
    return float(-(shares * np.log(shares)).sum())


def _printable(text: str) -> str:
    return re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text))[:150]


def _draw(
    figure: Figure, language: Language, rows: list[Row], frequency: float, reports: list[Any]
) -> None:
    left, right = figure.subplots(1, 2)
    learned = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    checked = [(row["step"], row["validation"]) for row in rows if "validation" in row]
    for number, (points, label) in enumerate(
        ((learned, Words("training", "학습")), (checked, Words("validation", "검증")))
    ):
        left.plot(
            *zip(*points, strict=True), "o-" if number else "-", markersize=3,
            color=COLOURS[number], label=label.in_(language),
        )  # fmt: skip
    left.axhline(
        frequency, color="#767676", linewidth=0.8, linestyle="--",
        label=Words("frequencies only", "빈도만").in_(language),
    )  # fmt: skip
    left.set_ylim(bottom=0)
    left.set_xlabel(Words("step", "걸음").in_(language))
    left.set_title(Words("loss, nats per token", "손실, 토큰당 nat").in_(language))
    left.legend()
    labels = (Words("before", "전"), Words("after", "후"))
    for number, (report, label) in enumerate(zip(reports, labels, strict=True)):
        shares = report.columns["previous"]
        places = np.arange(len(shares)) + 0.4 * number - 0.2
        right.bar(places, shares, 0.4, color=COLOURS[1 - number], label=label.in_(language))
    columns = reports[0].columns
    names = [
        f"{layer}.{head}" for layer, head in zip(columns["layer"], columns["head"], strict=True)
    ]
    right.set_xticks(range(len(names)), names, rotation=90 if len(names) > 8 else 0)
    right.set_ylim(0, 1)
    right.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    right.set_xlabel(Words("layer.head", "층.헤드").in_(language))
    right.set_title(Words("weight on the token before", "바로 앞 토큰의 가중치").in_(language))
    right.legend()


LESSON = Lesson(
    name="gpt",
    claim=Words(
        "Positions, attention, residual connections, normalisation and feed-forward networks make "
        "one block; stacked, they are a GPT, which learns to write from text alone.",
        "위치, 어텐션, 잔차 연결, 정규화, 피드포워드가 한 블록을 이루고, 쌓으면 GPT가 된다. "
        "GPT는 글만으로 쓰는 법을 배운다.",
    ),
    setup=Words(
        "A GPT with fresh weights is trained with jumok.train on the reference manual that every "
        "Python carries. It writes before and after, its loss is compared with that of a model "
        "that knows only frequencies, and its heads are read.",
        "새 가중치의 GPT를 jumok.train으로 파이썬마다 들어 있는 설명서에서 학습한다. 전과 후에 "
        "글을 쓰게 하고, 손실을 빈도만 아는 모델과 견주고, 헤드를 읽는다.",
    ),
    run=run,
)
