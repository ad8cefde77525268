"""Attention by hand: four tokens, every matrix shown, equal to what the fast kernels compute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

import jumok
from jumok import fused
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOKENS = ("Tom", "ate", "the", "dog")
# Four tokens in three dimensions: is it an animal or a person, a deed, a small word.
X = np.array([[1.0, 0.0, 0.1], [0.0, 1.0, 0.2], [0.1, 0.1, 1.0], [0.9, 0.1, 0.0]])
# A deed looks for animals and persons; they are found by being one, and hand over who they are.
W_Q = np.array([[0.5, 0.0], [2.0, 0.5], [0.2, 1.0]])
W_K = np.array([[1.5, 0.2], [0.1, 0.8], [0.3, 0.4]])
W_V = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])


def run(running: Running) -> Findings:
    q, k, v = X @ W_Q, X @ W_K, X @ W_V  # (4, 2) each
    products = q @ k.T  # (4, 4): how well key j fits query i
    scaled = products / math.sqrt(k.shape[-1])
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    output = weights @ v  # (4, 2)

    defined, defined_weights, _ = jumok.attention(q, k, v)
    fast, _ = fused.attention(*(x[None, None].astype(np.float32) for x in (q, k, v)))
    errors = {
        "jumok.attention": float(abs(defined - output).max()),
        "jumok.fused": float(abs(fast[0, 0] - output).max()),
        "weights": float(abs(defined_weights - weights).max()),
    }
    row_sums = weights.sum(axis=-1)
    alone = [
        float(abs(defined[i] - jumok.attention(q[i : i + 1], k, v)[0][0]).max()) for i in range(4)
    ]

    return Findings(
        tables=(
            _matrix(Words("X: the tokens' vectors", "X: 토큰의 벡터"), X),
            _matrix(Words("Q = X W_Q: what each looks for", "Q = X W_Q: 무엇을 찾는가"), q),
            _matrix(Words("K = X W_K: what each is found by", "K = X W_K: 무엇으로 찾아지는가"), k),
            _matrix(Words("V = X W_V: what each hands over", "V = X W_V: 무엇을 건네주는가"), v),
            _matrix(Words("Q Kᵀ: row reads column", "Q Kᵀ: 행이 열을 읽는다"), products, TOKENS),
            _matrix(Words("Q Kᵀ / √2", "Q Kᵀ / √2"), scaled, TOKENS),
            _matrix(
                Words("weights = softmax of each row", "가중치 = 행마다 소프트맥스"),
                weights,
                TOKENS,
            ),
            _matrix(Words("output = weights · V", "출력 = 가중치 · V"), output),
        ),
        checks=(
            Check(
                Words("every row of the weights sums to 1", "가중치의 모든 행은 합이 1이다"),
                bool(np.allclose(row_sums, 1)),
                ", ".join(f"{total:.6f}" for total in row_sums),
            ),
            Check(
                Words(
                    "the output is as long as the input and as wide as V",
                    "출력의 길이는 입력과 같고 너비는 V와 같다",
                ),
                output.shape == (len(X), v.shape[1]),
                f"{output.shape}",
            ),
            Check(
                Words(
                    "the hand-made result is what the library computes",
                    "손으로 계산한 값은 라이브러리의 값과 같다",
                ),
                max(errors.values()) < 1e-6,
                ", ".join(f"{name} ±{error:.0e}" for name, error in errors.items()),
            ),
            Check(
                Words(
                    "each row is computed from its own query alone",
                    "행마다 자기 쿼리만으로 계산된다",
                ),
                max(alone) < 1e-12,
                f"±{max(alone):.0e}",
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, products, scaled, weights),
    )


def _matrix(title: Words, matrix: np.ndarray, columns: tuple[str, ...] | None = None) -> Table:
    names = columns or tuple(str(i + 1) for i in range(matrix.shape[1]))
    rows = [(token, *(f"{x:.3f}" for x in row)) for token, row in zip(TOKENS, matrix, strict=True)]
    return Table(title, ("", *names), rows)


def _draw(
    figure: Figure,
    language: Language,
    products: np.ndarray,
    scaled: np.ndarray,
    weights: np.ndarray,
) -> None:
    titles = ("Q Kᵀ", "Q Kᵀ / √d", Words("weights, row by row", "가중치 (행마다)").in_(language))
    for number, (title, matrix) in enumerate(zip(titles, (products, scaled, weights), strict=True)):
        axes = figure.add_subplot(1, 3, number + 1)
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1 if number == 2 else float(products.max()))
        axes.set_xticks(range(4), TOKENS)
        axes.set_yticks(range(4), TOKENS if number == 0 else [""] * 4)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title)
        for i in range(4):
            for j in range(4):
                text = f"{matrix[i, j]:.0%}" if number == 2 else f"{matrix[i, j]:.2f}"
                dark = matrix[i, j] > 0.6 * (1 if number == 2 else products.max())
                axes.text(
                    j, i, text, ha="center", va="center", color="white" if dark else "#1a1a1a"
                )


LESSON = Lesson(
    name="steps",
    claim=Words(
        "Attention is five steps: project each token to a query, a key and a value; compare every "
        "query with every key; divide by √d; softmax each row into percentages; mix the values by "
        "them.",
        "어텐션은 다섯 단계다. 토큰마다 쿼리, 키, 값을 만들고, 모든 쿼리를 모든 키와 비교하고, "
        "√d로 나누고, 행마다 소프트맥스로 백분율을 만들고, 그 비율로 값을 섞는다.",
    ),
    setup=Words(
        "Four tokens with three numbers each and three hand-written matrices, in plain NumPy; the "
        "result is compared with the definition and with the fast kernel.",
        "토큰 네 개에 숫자 세 개씩, 손으로 쓴 행렬 세 개를 NumPy로 계산하고, 정의와 빠른 커널의 "
        "결과와 비교한다.",
    ),
    run=run,
)
