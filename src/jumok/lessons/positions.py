"""Attention alone has no order; four ways to give it one, and how far each of them carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import jumok
from jumok import positions
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS
from jumok.lessons.small import fit, manual, one_thread, pieces

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINED, TESTED = 128, 512
HEADS, WIDTH = 4, 64
KINDS = {
    "none": Words("none", "없음"),
    "learned": Words("learned", "학습된 위치"),
    "sinusoidal": Words("sinusoidal", "사인·코사인"),
    "rotary": Words("rotary", "회전 (RoPE)"),
    "alibi": Words("ALiBi", "ALiBi"),
}
PARTS = ((0, 32), (32, 128), (128, 256), (256, 384), (384, 512))


def run(running: Running) -> Findings:
    text, fresh = manual()
    steps = 200 if running.quick else 1000
    shuffled, ordered = _order(running.seed)
    losses: dict[str, list[float]] = {}
    for number, kind in enumerate(KINDS):
        running.tell(KINDS[kind].en, number / len(KINDS))
        model = _trained(kind, text, steps, running.seed)
        losses[kind] = _losses(model, fresh, 8 if running.quick else 32, running.seed + 1)
    # What a later place in the text costs or brings, against the last places of training.
    rise = {kind: found[-1] - found[1] for kind, found in losses.items()}
    trained = {kind: found[1] for kind, found in losses.items()}
    with_order = [kind for kind in KINDS if kind != "none"]
    return Findings(
        tables=(
            Table(
                Words(
                    "loss for the next byte by its place, in nats (trained on {trained} tokens)",
                    "다음 바이트의 손실을 자리별로, nat (토큰 {trained}개로 학습)",
                ).format(trained=TRAINED),
                ("", *(f"{low}–{high - 1}" for low, high in PARTS)),
                [(KINDS[kind], *(f"{x:.2f}" for x in found)) for kind, found in losses.items()],
            ),
        ),
        checks=(
            Check(
                Words(
                    "without positions a shuffled text gives the shuffled outputs, to the last "
                    "digit",
                    "위치가 없으면 섞은 글의 출력은 섞인 출력과 끝자리까지 같다",
                ),
                shuffled < 1e-12,
                f"±{shuffled:.0e}",
            ),
            Check(
                Words("with them it does not", "위치가 있으면 그렇지 않다"),
                ordered > 1e-2,
                f"±{ordered:.2f}",
            ),
            Check(
                Words(
                    "a GPT with positions predicts better than one without",
                    "위치가 있는 GPT가 없는 GPT보다 잘 예측한다",
                ),
                min(trained[kind] for kind in with_order) < trained["none"] - 0.1,
                ", ".join(f"{KINDS[kind].en} {trained[kind]:.2f}" for kind in KINDS),
            ),
            Check(
                Words(
                    "a bias that grows with distance carries beyond the length of the training",
                    "거리에 따라 커지는 편향은 학습한 길이를 넘어서도 통한다",
                ),
                rise["alibi"] < 0.05,
                f"{rise['alibi']:+.2f} nats",
            ),
            Check(
                Words("so do the other three", "나머지 셋도 그렇다"),
                max(rise[kind] for kind in with_order) < 0.05,
                ", ".join(f"{KINDS[kind].en} {rise[kind]:+.2f}" for kind in with_order[:-1]),
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, losses),
        remark=Words(
            "A GPT without positions is not blind to order: the causal mask lets every token know "
            "how many stand before it, which is why its loss is only somewhat higher.",
            "위치가 없는 GPT도 순서를 전혀 모르지는 않는다. 인과 마스크 덕분에 토큰마다 앞에 몇 "
            "개가 있는지 알 수 있어서 손실이 조금 높을 뿐이다.",
        ),
    )


def _order(seed: int) -> tuple[float, float]:
    """Largest change of the outputs when a text is shuffled and they are shuffled back."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((32, WIDTH))
    matrices = random.standard_normal((3, WIDTH, WIDTH)) / 8
    order = random.permutation(32)

    def attend(x: np.ndarray) -> np.ndarray:
        return jumok.attention(*(x @ matrix for matrix in matrices))[0]  # type: ignore[no-any-return]

    plain = attend(x)[order] - attend(x[order])
    waves = positions.sinusoidal(32, WIDTH)
    placed = attend(x + waves)[order] - attend(x[order] + waves)
    return float(abs(plain).max()), float(abs(placed).max())


class Writer(nn.Module):
    """A GPT of two layers over bytes, with one of the `KINDS` of positions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.tokens = nn.Embedding(256, WIDTH)
        self.learned = nn.Embedding(TESTED, WIDTH)
        self.layers = nn.ModuleList(Layer(kind) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.learned.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.kind == "learned":
            x = x + self.learned.weight[: ids.shape[1]]
        if self.kind == "sinusoidal":
            x = x + 0.1 * torch.from_numpy(positions.sinusoidal(ids.shape[1], WIDTH)).float()
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(self.norm(x), self.tokens.weight)


class Layer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        bias = None
        if self.kind == "rotary":
            turn = positions.rotary_phases(
                np.arange(tokens), positions.rotary_frequencies(WIDTH // HEADS, 10_000.0)
            )
            cos, sin = (torch.from_numpy(np.asarray(one)).float() for one in turn)
            q, k = positions.rotate(q, cos, sin), positions.rotate(k, cos, sin)
        if self.kind == "alibi":
            bias = torch.from_numpy(positions.alibi_bias(HEADS, tokens, tokens)).float()
        mixed, _, _ = jumok.attention(q, k, v, causal=True, bias=bias)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norms[1](x))  # type: ignore[no-any-return]


def _trained(kind: str, text: Tensor, steps: int, seed: int) -> Writer:
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Writer(kind)
    fit(model, lambda: pieces(text, 8, TRAINED, random), steps)
    return model


def _losses(model: Writer, text: Tensor, count: int, seed: int) -> list[float]:
    """Loss in each of the `PARTS` of texts that are longer than those of the training."""
    random = torch.Generator().manual_seed(seed)
    found = []
    with torch.no_grad(), one_thread():
        for _ in range(count):
            ids, answers = pieces(text, 4, TESTED, random)
            logits = model(ids)
            found.append(
                nn.functional.cross_entropy(
                    logits.flatten(0, 1), answers.flatten(), reduction="none"
                ).view(4, -1)
            )
    losses = torch.cat(found).mean(dim=0)
    return [float(losses[low:high].mean()) for low, high in PARTS]


def _draw(figure: Figure, language: Language, losses: dict[str, list[float]]) -> None:
    axes = figure.add_subplot()
    centres = [(low + high) / 2 for low, high in PARTS]
    for colour, (kind, found) in zip(COLOURS, losses.items(), strict=False):
        axes.plot(centres, found, "o-", color=colour, label=KINDS[kind].in_(language))
    axes.axvline(TRAINED, color="#767676", linewidth=0.8, linestyle="--")
    axes.text(
        TRAINED + 4, axes.get_ylim()[1], Words("trained up to here", "여기까지 학습").in_(language),
        color="#767676", va="top",
    )  # fmt: skip
    axes.set_xlabel(Words("place in the text", "글에서의 자리").in_(language))
    axes.set_title(Words("loss for the next byte, nats", "다음 바이트의 손실, nat").in_(language))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


LESSON = Lesson(
    name="positions",
    claim=Words(
        "Attention alone has no order: positions must be added, as sines and cosines of many "
        "frequencies, as learned vectors, by turning queries and keys, or as a bias that grows "
        "with distance. A good one carries beyond the length of the training.",
        "어텐션만으로는 순서를 모른다. 여러 주파수의 사인과 코사인, 학습된 벡터, 쿼리와 키의 "
        "회전, 거리에 따라 커지는 편향으로 위치를 넣어야 한다. 좋은 방식은 학습한 길이를 넘어서도 "
        "통한다.",
    ),
    setup=Words(
        "A text of random vectors is shuffled, with and without positions, in float64. Then five "
        "GPTs of two layers learn the bytes of Python's documentation from pieces of 128 tokens "
        "and are tested on pieces of 512.",
        "무작위 벡터의 글을 위치가 있을 때와 없을 때 float64로 섞어 본다. 그리고 두 층 GPT 다섯이 "
        "파이썬 문서의 바이트를 128토큰 조각으로 배우고 512토큰 조각으로 시험을 본다.",
    ),
    run=run,
)
