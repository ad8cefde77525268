"""Why not a recurrent network: time, gradients over distance, copying; and what attention costs."""

from __future__ import annotations

import time
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

LETTERS, NOISE = 8, 24
ASK = LETTERS + NOISE
KINDS = {
    "rnn": Words("RNN", "RNN"),
    "lstm": Words("LSTM", "LSTM"),
    "transformer": Words("Transformer", "트랜스포머"),
}


def run(running: Running) -> Findings:
    distances = (10, 100) if running.quick else (10, 50, 200, 500)
    lengths = (64, 256, 1024) if running.quick else (64, 256, 1024, 4096)
    steps = 150 if running.quick else 300
    sizes = {kind: _size(_new(kind)) for kind in KINDS}
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for place, length in enumerate(lengths):
        running.tell(f"time at {length:,} tokens", 0.3 * place / len(lengths))
        for kind in KINDS:
            times[kind].append(_microseconds(kind, length))
    running.tell("gradients", 0.3)
    gradients = {kind: _gradients(kind, running.seed) for kind in KINDS}
    copied: dict[str, list[float]] = {kind: [] for kind in KINDS}
    total = sum(distances)
    done = 0.0
    for distance in distances:
        for kind in KINDS:
            running.tell(f"copying over {distance}", 0.35 + 0.65 * done / total)
            copied[kind].append(_copy(kind, distance, steps, running.seed))
            done += distance / 3
    far = distances[-1]
    decay = {kind: found[0] / max(found[-1], 1e-30) for kind, found in gradients.items()}
    one_step = {kind: times[kind][1] for kind in KINDS}
    grows = times["transformer"][-1] / times["transformer"][1]
    flat = times["lstm"][-1] / times["lstm"][1]
    return Findings(
        tables=(
            Table(
                Words(
                    "microseconds per training token, one text on one core, forward and back",
                    "학습 토큰 하나의 시간 (마이크로초, 글 하나, 코어 하나, 순전파와 역전파)",
                ),
                ("", Words("weights", "가중치"), *(f"{t:,}" for t in lengths)),
                [
                    (KINDS[kind], f"{sizes[kind]:,}", *(f"{x:.2f}" for x in times[kind]))
                    for kind in KINDS
                ],
            ),
            Table(
                Words(
                    "how much the last output depends on an input so many tokens back (norm)",
                    "마지막 출력이 몇 토큰 앞의 입력에 의존하는 정도 (기울기의 크기)",
                ),
                ("", *(f"{back}" for back in BACK)),
                [(KINDS[kind], *found) for kind, found in gradients.items()],
            ),
            Table(
                Words(
                    "right answers: which letter stood at the beginning ({steps} steps; a guess: "
                    "{chance:.1%})",
                    "맨 앞에 어떤 글자가 있었는지 맞히기 ({steps}걸음, 찍으면 {chance:.1%})",
                ).format(steps=steps, chance=1 / LETTERS),
                (Words("distance", "거리"), *(f"{d}" for d in distances)),
                [(KINDS[kind], *(f"{x:.0%}" for x in copied[kind])) for kind in KINDS],
            ),
        ),
        checks=(
            Check(
                Words(
                    "computing token after token makes training at least twice as slow here",
                    "토큰을 하나씩 계산하면 여기서 학습이 적어도 두 배 느리다",
                ),
                one_step["lstm"] > 2 * one_step["transformer"],
                f"LSTM {one_step['lstm']:.0f} ↔ {one_step['transformer']:.0f} µs a token "
                f"({lengths[1]} tokens)",
            ),
            Check(
                Words("its gradients vanish over distance", "기울기가 거리에 따라 사라진다"),
                decay["rnn"] > 1e3 and decay["lstm"] > 1e3,
                f"÷{decay['rnn']:.0e} (RNN), ÷{decay['lstm']:.0e} (LSTM), {BACK[0]} → {BACK[-1]}",
            ),
            Check(
                Words(
                    "attention connects any two tokens in one step",
                    "어텐션은 어느 두 토큰이든 한 걸음에 잇는다",
                ),
                decay["transformer"] < 10,
                f"÷{decay['transformer']:.1f}",
            ),
            Check(
                Words(
                    "so it copies over a distance where a recurrent network fails",
                    "그래서 순환 신경망이 실패하는 거리에서도 베낀다",
                ),
                copied["transformer"][-1] > 0.95 and copied["rnn"][-1] < 0.5,
                f"{copied['transformer'][-1]:.0%} ↔ {copied['lstm'][-1]:.0%} (LSTM), "
                f"{copied['rnn'][-1]:.0%} (RNN) over {far}",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, gradients, copied, distances),
        remark=Words(
            "On one core nothing runs in parallel in any case; what attention gains by computing "
            "all tokens at once shows on many cores and on GPUs. And what is paid for it: "
            "attention looks at all pairs. From {short:,} to {long:,} tokens a token costs "
            "×{grows:.1f} with attention and ×{flat:.1f} with an LSTM.",
            "코어가 하나면 어차피 아무것도 병렬로 돌지 않는다. 모든 토큰을 한꺼번에 계산하는 "
            "이득은 코어가 많거나 GPU일 때 드러난다. 그 값으로 어텐션은 모든 쌍을 본다. 토큰 "
            "{short:,}개에서 {long:,}개로 늘면 토큰 하나가 어텐션은 ×{grows:.1f}, LSTM은 "
            "×{flat:.1f} 비싸진다.",
        ).format(short=lengths[1], long=lengths[-1], grows=grows, flat=flat),
    )


BACK = (1, 5, 20, 50, 100)


class Recurrent(nn.Module):
    """Two layers of an RNN or an LSTM."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        width = {"rnn": 172, "lstm": 86}[kind]
        self.embedding = nn.Embedding(ASK + 1, 64)
        layer = {"rnn": nn.RNN, "lstm": nn.LSTM}[kind]
        self.body = layer(64, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, ASK + 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids))[0])  # type: ignore[no-any-return]


class Attending(nn.Module):
    """Two blocks of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.body = jumok.Decoder(
            jumok.Config(
                vocab_size=ASK + 1, emb_dim=64, n_layers=2, n_heads=4, context=8192,
                norm="layer", feed_forward="gelu",
            )
        )  # fmt: skip

        self.embedding = self.body.embedding

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(ids)  # type: ignore[no-any-return]


def _new(kind: str) -> Recurrent | Attending:
    return Attending() if kind == "transformer" else Recurrent(kind)


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _microseconds(kind: str, length: int) -> float:
    """Of one token in a training step on one text, on one core, best of five."""
    model = _new(kind)
    ids = torch.randint(ASK, (1, length))
    best = float("inf")
    with one_thread():
        for _ in range(5):
            start = time.perf_counter()
            nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            best = min(best, time.perf_counter() - start)
    return 1e6 * best / ids.numel()


def _gradients(kind: str, seed: int) -> list[float]:
    """Norm of the derivative of the last output by the input so many tokens back, untrained."""
    found = np.zeros(len(BACK))
    rounds = 8
    for number in range(rounds):
        torch.manual_seed(seed + number)
        model = _new(kind)
        embedding = model.embedding
        kept: list[Tensor] = []

        def keep(_: object, __: object, output: Tensor, kept: list[Tensor] = kept) -> None:
            output.retain_grad()
            kept.append(output)

        hook = embedding.register_forward_hook(keep)
        ids = torch.randint(ASK, (1, BACK[-1] + 1))
        with one_thread():
            logits = model(ids)[0, -1]
            (logits * torch.randn_like(logits)).sum().backward()
        hook.remove()
        (states,) = kept
        assert states.grad is not None
        lengths = states.grad[0].norm(dim=-1)
        found += [float(lengths[-1 - back]) / rounds for back in BACK]
    return [float(x) for x in found]


def _copy(kind: str, distance: int, steps: int, seed: int) -> float:
    """Share of right answers after learning to remember the first letter."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = _Last(_new(kind))

    def batch(count: int = 32) -> tuple[Tensor, Tensor]:
        letters = torch.randint(LETTERS, (count, 1), generator=random)
        noise = torch.randint(LETTERS, ASK, (count, distance - 1), generator=random)
        return torch.cat([letters, noise, torch.full((count, 1), ASK)], dim=1), letters[:, 0]

    fit(model, batch, steps, rate=3e-3)
    ids, answers = batch(256)
    with torch.no_grad():
        return float((model(ids)[:, 0].argmax(-1) == answers).float().mean())


class _Last(nn.Module):
    """Only what is said at the end."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(ids)[:, -1:]  # type: ignore[no-any-return]


def _draw(
    figure: Figure,
    language: Language,
    gradients: dict[str, list[float]],
    copied: dict[str, list[float]],
    distances: tuple[int, ...],
) -> None:
    left, right = figure.subplots(1, 2)
    for colour, (kind, name) in zip(COLOURS, KINDS.items(), strict=False):
        left.plot(BACK, [max(x, 1e-20) for x in gradients[kind]], "o-", color=colour)
        right.plot(distances, copied[kind], "o-", color=colour, label=name.in_(language))
    left.set_yscale("log")
    left.set_xlabel(Words("tokens back", "몇 토큰 앞").in_(language))
    left.set_title(Words("gradient over distance", "거리에 따른 기울기").in_(language))
    right.set_xscale("log")
    right.set_xticks(distances, [str(d) for d in distances])
    right.minorticks_off()
    right.set_ylim(0, 1.03)
    right.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    right.set_xlabel(Words("distance", "거리").in_(language))
    right.set_title(Words("copying: right answers", "베끼기: 정답률").in_(language))
    figure.legend(loc="outside lower center", ncols=len(KINDS))


LESSON = Lesson(
    name="rnn",
    claim=Words(
        "A recurrent network computes token after token; the past is squeezed into one state, and "
        "gradients vanish over distance. Attention connects any two tokens in one step, all of "
        "them at once.",
        "순환 신경망은 토큰을 하나씩 계산하고, 과거를 상태 하나에 눌러 담으며, 기울기가 거리에 "
        "따라 사라진다. 어텐션은 어느 두 토큰이든 한 걸음에, 모두 한꺼번에 잇는다.",
    ),
    setup=Words(
        "An RNN, an LSTM and a Transformer with about as many weights: time per training token at "
        "growing lengths, the derivative of the last output by inputs further and further back, "
        "and learning to remember the first letter over growing distances.",
        "가중치 수가 비슷한 RNN, LSTM, 트랜스포머로 길이를 늘려 가며 학습 토큰의 시간을, 점점 더 "
        "앞에 있는 입력에 대한 마지막 출력의 미분을, 그리고 점점 먼 첫 글자를 기억하는 학습을 "
        "잰다.",
    ),
    run=run,
)
