"""One matrix for query and key, or two: symmetry, the pull of the diagonal, and direction."""

from __future__ import annotations

from dataclasses import dataclass
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

TEXT = "Tom ate the dog. The dog that lives next door had never bitten anybody before that day."
NOUNS, VERBS, WIDTH = 16, 4, 48
ASK = NOUNS + VERBS  # the token at the end: who did it?


def run(running: Running) -> Findings:
    random = np.random.default_rng(running.seed)
    x = random.standard_normal((64, 64))
    one, other = random.standard_normal((2, 64, 64)) / 8
    tied, separate = (x @ one) @ (x @ one).T, (x @ one) @ (x @ other).T
    asymmetry = [float(abs(s - s.T).mean() / abs(s).mean()) for s in (tied, separate)]
    running.tell("MiniLM's own queries", 0.05)
    real = _in_minilm()

    steps = 250 if running.quick else 1200
    accuracy = {}
    for number, setting in enumerate(SETTINGS):
        running.tell(setting.name.en, 0.1 + 0.9 * number / len(SETTINGS))
        accuracy[setting] = [_train(setting, tied, steps, running.seed) for tied in (True, False)]
    told = [setting for setting in SETTINGS if accuracy[setting][0] > 0.9]
    blind = [setting for setting in SETTINGS if accuracy[setting][1] < 0.6]
    first = SETTINGS[0]
    return Findings(
        tables=(
            Table(
                Words("scores with one matrix and with two", "행렬이 하나일 때와 둘일 때의 점수"),
                ("", Words("one", "하나"), Words("two", "둘")),
                [
                    (
                        Words(
                            "random: mean |s_ij − s_ji| / mean |s_ij|",
                            "무작위: |s_ij − s_ji| / |s_ij|",
                        ),
                        *asymmetry,
                    ),
                    (
                        Words(
                            "random: rows whose largest is the diagonal",
                            "무작위: 대각선이 가장 큰 행",
                        ),
                        *(_percent(_diagonal_first(s)) for s in (tied, separate)),
                    ),
                    (
                        Words(
                            "MiniLM: rows whose largest is the diagonal",
                            "MiniLM: 대각선이 가장 큰 행",
                        ),
                        *(_percent(one["first"]) for one in real),
                    ),
                    (
                        Words("MiniLM: weight on itself", "MiniLM: 자기 자신의 가중치"),
                        *(_percent(one["itself"]) for one in real),
                    ),
                ],
            ),
            Table(
                Words(
                    "who ate whom: right answers after training (a guess is 50 %)",
                    "누가 누구를 먹었나: 학습 뒤 정답률 (찍으면 50 %)",
                ),
                ("", Words("one matrix", "행렬 하나"), Words("two", "둘")),
                [(setting.name, *(_percent(x) for x in accuracy[setting])) for setting in SETTINGS],
            ),
        ),
        checks=(
            Check(
                Words("with one matrix the score is symmetric", "행렬이 하나면 점수가 대칭이다"),
                asymmetry[0] < 1e-12 < asymmetry[1],
                f"{asymmetry[0]:.0e} ↔ {asymmetry[1]:.2f}",
            ),
            Check(
                Words(
                    "then a token's product with itself is always the largest",
                    "그러면 자기 자신과의 곱이 언제나 가장 크다",
                ),
                min(_diagonal_first(tied), real[0]["first"]) == 1,
                f"{_percent(_diagonal_first(tied))} (random), "
                f"{_percent(real[0]['first'])} (MiniLM)",
            ),
            Check(
                Words(
                    "it is the largest more often than with two",
                    "두 행렬일 때보다 더 자주 가장 크다",
                ),
                _diagonal_first(tied) > _diagonal_first(separate)
                and real[0]["first"] > 1.5 * real[1]["first"],
                f"{_percent(real[0]['first'])} ↔ {_percent(real[1]['first'])} (MiniLM)",
            ),
            Check(
                Words(
                    "with one matrix a model can't tell who ate whom",
                    "행렬이 하나면 누가 누구를 먹었는지 모른다",
                ),
                not told,
                ", ".join(f"{s.name.en} {_percent(accuracy[s][0])}" for s in told)
                or "never above 90 %",
            ),
            Check(
                Words("with two it can, without anything else", "행렬이 둘이면 그것만으로 안다"),
                accuracy[first][1] > 0.9,
                f"{_percent(accuracy[first][1])} ({first.name.en})",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, accuracy),
        remark=Words(
            "Symmetric scores are no obstacle by themselves: what a model lacks without positions "
            "is order, and two matrices don't bring it ("
            + "; ".join(setting.name.en for setting in blind)
            + " stay at a guess). What rescues both is order from elsewhere: positions in the "
            "values, or a causal mask with a second layer.",
            "대칭인 점수 자체는 걸림돌이 아니다. 위치가 없으면 모델에는 순서가 없고, 행렬을 둘로 "
            "나누어도 순서는 생기지 않는다 ("
            + "; ".join(setting.name.ko for setting in blind)
            + ": 찍는 수준). 둘 다 살리는 것은 다른 데서 오는 순서, 곧 값에 담긴 위치나 인과 "
            "마스크와 둘째 층이다.",
        ),
    )


def _percent(part: float) -> str:
    return f"{part:.1%}".replace("%", " %")


def _diagonal_first(scores: np.ndarray) -> float:
    return float((scores.argmax(axis=-1) == np.arange(len(scores))).mean())


def _in_minilm() -> list[dict[str, float]]:
    """What becomes of MiniLM's heads if its queries are its keys, too; and its real heads."""
    model, tokenizer = jumok.load("minilm")
    assert tokenizer is not None
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.tensor([tokenizer.encode(TEXT)]))
    firsts: list[list[float]] = [[], []]
    own: list[list[float]] = [[], []]
    for attention in recording:
        q, k = attention.call.q[0].numpy(), attention.call.k[0].numpy()  # (H, T, D)
        for place, keys in enumerate((q, k)):
            scores = q @ keys.swapaxes(-1, -2) * attention.call.scale
            firsts[place] += [_diagonal_first(head) for head in scores]
            diagonal = jumok.softmax(scores).diagonal(axis1=-2, axis2=-1)
            own[place].append(float(diagonal.mean()))
    return [
        {"first": float(np.mean(first)), "itself": float(np.mean(itself))}
        for first, itself in zip(firsts, own, strict=True)
    ]


@dataclass(frozen=True)
class Setting:
    """What a model has beside Q and K to tell order by."""

    name: Words
    positions: bool = False
    causal: bool = False
    layers: int = 1


SETTINGS = (
    Setting(Words("1 layer", "층 1개")),
    Setting(Words("2 layers", "층 2개"), layers=2),
    Setting(Words("1 layer, causal", "층 1개, 인과"), causal=True),
    Setting(Words("2 layers, causal", "층 2개, 인과"), causal=True, layers=2),
    Setting(Words("1 layer, positions", "층 1개, 위치"), positions=True),
    Setting(Words("2 layers, positions", "층 2개, 위치"), positions=True, layers=2),
)


class Reader(nn.Module):
    """Reads "noun verb noun ?" and answers at the end which noun did it."""

    def __init__(self, setting: Setting, tied: bool) -> None:
        super().__init__()
        self.causal = setting.causal
        self.tokens = nn.Embedding(NOUNS + VERBS + 1, WIDTH)
        self.positions = nn.Embedding(4, WIDTH) if setting.positions else None
        self.layers = nn.ModuleList(Layer(tied) for _ in range(setting.layers))
        self.head = nn.Linear(WIDTH, NOUNS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight
        for layer in self.layers:
            x = layer(x, self.causal)
        return self.head(x[:, -1])  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = self.q if tied else nn.Linear(WIDTH, WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        y = self.norms[0](x)
        mixed, _, _ = jumok.attention(self.q(y), self.k(y), self.v(y), causal=causal)
        x = x + mixed
        return x + self.feed_forward(self.norms[1](x))  # type: ignore[no-any-return]


def _sentences(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Active ones, "Tom ate dog", so that the first noun did it; and who it was."""
    nouns = torch.rand(count, NOUNS, generator=random).argsort(-1)[:, :2]
    verbs = torch.randint(NOUNS, NOUNS + VERBS, (count, 1), generator=random)
    ask = torch.full((count, 1), ASK)
    return torch.cat([nouns[:, :1], verbs, nouns[:, 1:], ask], dim=1), nouns[:, 0]


def _train(setting: Setting, tied: bool, steps: int, seed: int) -> float:
    """Share of right answers on fresh sentences, after training."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Reader(setting, tied)
    fit(model, lambda: _sentences(128, random), steps)
    ids, answer = _sentences(2000, random)
    with torch.no_grad(), one_thread():
        return float((model(ids).argmax(-1) == answer).float().mean())


def _draw(figure: Figure, language: Language, accuracy: dict[Setting, list[float]]) -> None:
    axes = figure.add_subplot()
    places = np.arange(len(SETTINGS))
    labels = (Words("one matrix", "행렬 하나"), Words("two matrices", "행렬 둘"))
    for number, label in enumerate(labels):
        values = [accuracy[setting][number] for setting in SETTINGS]
        axes.bar(
            places + 0.4 * (number - 0.5), values, 0.36, color=COLOURS[number],
            label=label.in_(language),
        )  # fmt: skip
    axes.axhline(0.5, color="#767676", linewidth=0.8, linestyle="--")
    axes.text(-0.5, 0.52, Words("a guess", "찍기").in_(language), color="#767676")
    axes.set_xticks(places, [s.name.in_(language).replace(", ", "\n") for s in SETTINGS])
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set_title(Words("who ate whom: right answers", "누가 누구를 먹었나: 정답률").in_(language))
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, 0.98))


LESSON = Lesson(
    name="query-key",
    claim=Words(
        "With one matrix for queries and keys a token's product with itself is always the largest "
        "and the score is symmetric, so that “Tom ate the dog” and “The dog ate Tom” can't be told "
        "apart by direction.",
        "쿼리와 키에 같은 행렬을 쓰면 자기 자신과의 곱이 언제나 가장 크고 점수가 대칭이라서 “Tom "
        "ate the dog”와 “The dog ate Tom”을 방향으로 구별할 수 없다.",
    ),
    setup=Words(
        "Scores of random vectors with one matrix and with two; MiniLM's heads with their queries "
        "in the place of their keys; and small models that learn to answer who ate whom, with one "
        "matrix and with two, with and without positions, causal mask and second layer.",
        "무작위 벡터의 점수를 행렬 하나와 둘로 재고, MiniLM의 헤드에서 키 자리에 쿼리를 넣어 보고, "
        "누가 누구를 먹었는지 답하는 작은 모델을 행렬 하나와 둘로, 위치·인과 마스크·둘째 층을 "
        "바꾸어 가며 학습한다.",
    ),
    run=run,
)
