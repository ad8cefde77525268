"""From the first layer to the last: what is read, and what could already be said."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THIRDS = (Words("first", "처음"), Words("middle", "가운데"), Words("last", "마지막"))


def run(running: Running) -> Findings:
    running.tell("loading smollm2", 0.0)
    model, tokenizer = jumok.load("smollm2")
    assert isinstance(model, jumok.Decoder)
    rows, tokens = (2, 64) if running.quick else (6, 160)
    ids = _passages(tokenizer, rows, tokens, running.seed)
    running.tell("reading", 0.1)
    states, recording = _read(model, ids)
    report = jumok.report(recording, tokenizer)
    n_layers = len(states) - 1
    heads = len(report) // n_layers
    entropy, distance, first = (
        np.reshape(report.columns[name], (n_layers, heads)).mean(axis=1)
        for name in ("entropy", "distance", "first")
    )
    running.tell("what each layer could already say", 0.4)
    losses, agreements = _lens(model, states, ids)
    thirds = np.array_split(np.arange(n_layers), 3)
    costs = []
    for place, third in enumerate(thirds):
        running.tell(f"without the attention of layers {third[0]}–{third[-1]}", 0.5 + place / 6)
        chosen = [(int(layer), head) for layer in third for head in range(heads)]
        costs.append(jumok.ablation_effect(model, ids, chosen, "mean").change)
    steps = [float(losses[third[0]] - losses[third[-1] + 1]) for third in thirds]
    agreed = [float(agreements[third[0]]) for third in thirds] + [float(agreements[-1])]
    gained = np.diff(agreed)
    names = [
        Words(f"{name.en}: {third[0]}–{third[-1]}", f"{name.ko}: {third[0]}–{third[-1]}")
        for name, third in zip(THIRDS, thirds, strict=True)
    ]
    return Findings(
        tables=(
            Table(
                Words(
                    "SmolLM2 by thirds, {rows} passages of {tokens} tokens",
                    "SmolLM2를 셋으로 나눈 값, 토큰 {tokens}개짜리 글 {rows}개",
                ).format(rows=rows, tokens=tokens),
                (
                    Words("layers", "층"),
                    Words("entropy, nats", "엔트로피, nat"),
                    Words("distance, tokens", "거리, 토큰"),
                    Words("weight on the first token", "첫 토큰의 가중치"),
                    Words("loss without its attention, nats", "어텐션이 없을 때의 손실, nat"),
                    Words("loss that it takes away, nats", "줄이는 손실, nat"),
                ),
                [
                    (
                        names[place],
                        f"{entropy[third].mean():.2f}",
                        f"{distance[third].mean():.1f}",
                        f"{first[third].mean():.0%}",
                        f"+{costs[place]:.2f}",
                        f"{steps[place]:.2f}",
                    )
                    for place, third in enumerate(thirds)
                ],
            ),
            Table(
                Words(
                    "what the residual stream could already say, read with the model's own head",
                    "잔차 흐름이 이미 말할 수 있는 것, 모델 자신의 출력층으로 읽음",
                ),
                (
                    Words("after layer", "층 다음"),
                    Words("loss of the next token, nats", "다음 토큰의 손실, nat"),
                    Words("agrees with the final answer", "최종 답과 같음"),
                ),
                [
                    (
                        f"{layer}" if layer else Words("embedding", "임베딩"),
                        f"{losses[layer]:.2f}",
                        f"{agreements[layer]:.0%}",
                    )
                    for layer in sorted({0, *range(5, n_layers, 5), n_layers - 1, n_layers})
                ],
            ),
        ),
        checks=(
            Check(
                Words(
                    "blocks near the input relate: their attention costs most to lose",
                    "입력에 가까운 블록이 관계를 찾는다: 그 어텐션을 잃으면 가장 비싸다",
                ),
                bool(costs[0] > 1.2 * max(costs[1:])),
                ", ".join(f"+{cost:.2f}" for cost in costs) + " nats",
            ),
            Check(
                Words(
                    "blocks near the output prepare the answer: most of it is settled there",
                    "출력에 가까운 블록이 답을 준비한다: 답은 대부분 거기서 정해진다",
                ),
                bool(gained[-1] > 0.5),
                ", ".join(f"{share:.0%}" for share in agreed) + " of the final answers",
            ),
            Check(
                Words(
                    "by then all reading is done: without the attention of the last third the "
                    "loss is the same",
                    "그때는 읽기가 끝나 있다: 마지막 3분의 1의 어텐션이 없어도 손실이 같다",
                ),
                costs[-1] < 0.1,
                f"+{costs[-1]:.2f} nats",
            ),
        ),
        draw=lambda figure, language: _draw(
            figure, language, entropy, distance, losses, agreements
        ),
        remark=Words(
            "That heads read further in late layers is mostly the first token, on which ever more "
            "weight rests. And the lens is unfair to early layers: they write in other directions "
            "than the head reads, so a loss above that of guessing evenly (10.8 nats) says that "
            "they can't be read with it, not that they know nothing.",
            "뒤쪽 층의 헤드가 더 멀리 읽는 것은 대부분 첫 토큰 때문이며, 거기에 점점 더 많은 "
            "가중치가 놓인다. 로짓 렌즈는 앞쪽 층에 불리하다. 앞쪽 층은 출력층이 읽는 것과 다른 "
            "방향으로 쓰므로, 고르게 찍는 손실(10.8 nat)보다 큰 값은 그것으로 읽을 수 없다는 "
            "뜻이지 아는 것이 없다는 뜻이 아니다.",
        ),
    )


def _passages(tokenizer: object, rows: int, tokens: int, seed: int) -> Tensor:
    """Passages of Python's reference manual, (rows, tokens)."""
    random = np.random.default_rng(seed)
    texts = [text for text in topics.values() if len(text) > 12 * tokens]
    found = []
    for place in random.choice(len(texts), rows, replace=False):
        ids = tokenizer.encode(texts[place][: 12 * tokens])  # type: ignore[attr-defined]
        found.append(ids[:tokens])
    return torch.tensor(found)


def _read(model: jumok.Decoder, ids: Tensor) -> tuple[list[Tensor], jumok.Recording]:
    """The residual stream (B, T, E) before the first block and after each, and the attention."""
    states: list[Tensor] = []
    hooks = [
        model.layers[0].register_forward_pre_hook(lambda _, given: states.append(given[0])),
        *(
            layer.register_forward_hook(lambda _, __, output: states.append(output))
            for layer in model.layers
        ),
    ]
    with torch.no_grad(), jumok.watch(model) as recording:
        model(ids)
    for hook in hooks:
        hook.remove()
    return states, recording


def _lens(model: jumok.Decoder, states: list[Tensor], ids: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """After each layer: the loss of the next token, and the share of final answers it agrees with.

    The logit lens (nostalgebraist 2020): the last norm and the head, applied too early.
    """
    losses, answers = [], []
    with torch.no_grad():
        for state in states:
            logits = nn.functional.linear(model.norm(state), model.head_weight)
            losses.append(
                float(
                    nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
                )
            )
            answers.append(logits.argmax(-1))
    agreements = [float((answer == answers[-1]).float().mean()) for answer in answers]
    return np.array(losses), np.array(agreements)


def _draw(
    figure: Figure,
    language: Language,
    entropy: np.ndarray,
    distance: np.ndarray,
    losses: np.ndarray,
    agreements: np.ndarray,
) -> None:
    left, right = figure.subplots(1, 2)
    layers = np.arange(len(entropy))
    left.plot(layers, distance, "o-", markersize=3, color=COLOURS[0])
    left.set_ylim(bottom=0)
    left.set_title(Words("how far the heads read, tokens", "헤드가 읽는 거리, 토큰").in_(language))
    right.plot(np.arange(len(agreements)), agreements, "o-", markersize=3, color=COLOURS[1])
    right.set_ylim(0, 1.02)
    right.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    right.set_title(Words("final answers already there", "이미 나와 있는 최종 답").in_(language))
    left.set_xlabel(Words("layer", "층").in_(language))
    right.set_xlabel(Words("after so many layers", "지나온 층의 수").in_(language))


LESSON = Lesson(
    name="layers",
    claim=Words(
        "Blocks near the input find relations between tokens; blocks near the output prepare the "
        "answer.",
        "입력에 가까운 블록은 토큰 사이의 관계를 찾고, 출력에 가까운 블록은 답을 준비한다.",
    ),
    setup=Words(
        "SmolLM2 reads passages of Python's reference manual. Of each layer: how evenly and how "
        "far its heads read, and what the model would answer if it ended there (logit lens). Then "
        "each third of the layers loses its attention: every head hands on its mean.",
        "SmolLM2가 파이썬 설명서의 글을 읽는다. 층마다 헤드가 얼마나 고르게, 얼마나 멀리 읽는지, "
        "거기서 끝난다면 무엇을 답할지(로짓 렌즈) 잰다. 그다음 층을 셋으로 나누어 한 몫씩 "
        "어텐션을 없앤다. 헤드마다 제 평균만 건넨다.",
    ),
    run=run,
)
