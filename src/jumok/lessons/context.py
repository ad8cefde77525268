"""The same word with two meanings: where it reads from, and how far its vectors move apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS
from jumok.tokens import words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Meaning:
    """A text, the word in it, and the neighbour that gives it its meaning there."""

    text: str
    word: str
    giver: str


MEANINGS = (
    Meaning("apple phone", "apple", "phone"),
    Meaning("an apple and orange", "apple", "orange"),
    Meaning("The bank of the river was muddy.", "bank", "river"),
    Meaning("The money was deposited in the bank.", "bank", "money"),
)
# Two texts of one meaning, and one of another; what gives the meaning stands before the word, so
# that a GPT sees it, too.
TRIPLES = (
    ("By the river they sat on the bank.", "The boat left the water and reached the bank.",
     "He put all his money in the bank.", "bank"),
    ("She saved her money at the bank.", "He got a loan of money from the bank.",
     "After the rain the river flooded the bank.", "bank"),
    ("She ate a pear, a peach and an apple.", "From the tree he picked a ripe apple.",
     "The new phone and the computer were made by apple.", "apple"),
    ("At night out of the cave flew a bat.", "The small flying animal in the cave was a bat.",
     "He hit the baseball hard with his bat.", "bat"),
    ("After the cold winter came the spring.", "The flowers bloom and the birds sing in spring.",
     "The mattress creaked because of a broken spring.", "spring"),
    ("The lamp in the dark room gave a bright light.", "The sun rose and the window let in light.",
     "The bag was empty and therefore very light.", "light"),
)  # fmt: skip
MODELS = ("minilm", "smollm2")


def run(running: Running) -> Findings:
    shares: dict[str, list[tuple[float, float]]] = {}
    distances: dict[str, np.ndarray] = {}
    right: dict[str, int] = {}
    for number, name in enumerate(MODELS):
        running.tell(f"loading {name}", number / 2)
        model, tokenizer = jumok.load(name)
        running.tell(f"{name} reads", number / 2 + 0.2)
        shares[name] = [_share(model, tokenizer, meaning) for meaning in MEANINGS]
        running.tell(f"{name}, layer by layer", number / 2 + 0.3)
        distances[name], right[name] = _apart(model, tokenizer)
    last = {name: (found[0, -1], found[1, -1]) for name, found in distances.items()}
    apple = [shares["minilm"][place][0] for place in (0, 1)]
    above = [share > even for share, even in shares["minilm"]]
    return Findings(
        tables=(
            Table(
                Words(
                    "what share of the word's new content comes from the neighbour (and how much "
                    "an even reader would take)",
                    "낱말의 새 내용 가운데 이웃에서 오는 몫 (고르게 읽을 때의 몫)",
                ),
                (Words("text", "글"), "", "MiniLM", "SmolLM2"),
                [
                    (
                        meaning.text,
                        f"{meaning.word} ← {meaning.giver}",
                        *(_shared(*shares[name][place]) for name in MODELS),
                    )
                    for place, meaning in enumerate(MEANINGS)
                ],
            ),
            Table(
                Words(
                    "distance of the word's vectors (1 − cosine), mean over {n} words",
                    "낱말 벡터의 거리 (1 − 코사인), 낱말 {n}개의 평균",
                ).format(n=len(TRIPLES)),
                (
                    Words("model", "모델"),
                    Words("layer", "층"),
                    Words("same meaning", "같은 뜻"),
                    Words("another meaning", "다른 뜻"),
                ),
                [
                    (name, f"{layer}", *(f"{distances[name][kind, layer]:.3f}" for kind in (0, 1)))
                    for name in MODELS
                    for layer in _some(distances[name].shape[1])
                ],
            ),
        ),
        checks=(
            Check(
                Words(
                    "a word takes a good part of its content from the neighbour that gives the "
                    "meaning",
                    "낱말은 뜻을 정하는 이웃에서 내용을 많이 가져온다",
                ),
                sum(above) > len(above) / 2,
                ", ".join(_shared(*one) for one in shares["minilm"]) + " (MiniLM)",
            ),
            Check(
                Words("apple reads phone more than orange", "apple은 orange보다 phone을 더 읽는다"),
                apple[0] > apple[1],
                f"{apple[0]:.0%} ↔ {apple[1]:.0%} (MiniLM)",
            ),
            Check(
                Words(
                    "its vectors end further apart for another meaning than for the same",
                    "뜻이 다르면 같을 때보다 벡터가 더 멀어진다",
                ),
                all(other > same for same, other in last.values()),
                ", ".join(f"{n} {same:.2f} ↔ {other:.2f}" for n, (same, other) in last.items()),
            ),
            Check(
                Words(
                    "the vector alone tells the meanings apart",
                    "벡터만으로 뜻을 구별할 수 있다",
                ),
                right["minilm"] == len(TRIPLES),
                ", ".join(f"{name} {right[name]}/{len(TRIPLES)}" for name in MODELS),
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, distances),
        remark=Words(
            "A GPT sees only what stands to the left: in “apple phone” its apple is read before "
            "phone is there, so it can't take anything from it. Shares of attention say what is "
            "mixed in, not that it decides the answer.",
            "GPT는 왼쪽만 본다. “apple phone”에서 apple을 읽을 때 phone은 아직 없으므로 아무것도 "
            "가져올 수 없다. 어텐션의 몫은 무엇이 섞이는지를 말할 뿐, 그것이 답을 정한다는 뜻은 "
            "아니다.",
        ),
    )


def _shared(share: float, even: float) -> str:
    return f"{share:.0%} ({even:.0%})" if even else "–"


def _share(model: Any, tokenizer: Any, meaning: Meaning) -> tuple[float, float]:
    """The share of the giver in what the word takes, and that of an even reader."""
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.tensor([tokenizer.encode(meaning.text)]))
    found = jumok.sources(recording, tokenizer, word=meaning.word)
    query = found.queries[-1]
    share = sum(source.share for source in query.sources if source.word == meaning.giver)
    seen = query.tokens[-1] + 1 if found.causal else len(found.tokens)
    giver = next(word for word in found.words if word.text == meaning.giver)
    count = sum(token < seen for token in giver.tokens)
    return share, count / seen


def _apart(model: Any, tokenizer: Any) -> tuple[np.ndarray, int]:
    """Distances of the word's vectors: (same or another meaning, layer), and right answers."""
    rows = []
    for texts in TRIPLES:
        one, same, other = (_vectors(model, tokenizer, text, texts[3]) for text in texts[:3])
        rows.append([_distance(one, same), _distance(one, other)])  # (2, layers)
    found = np.array(rows)
    return found.mean(axis=0), int((found[:, 0, -1] < found[:, 1, -1]).sum())


def _vectors(model: Any, tokenizer: Any, text: str, word: str) -> np.ndarray:
    """The word's vector after each block (layers, E): the mean over its tokens."""
    ids = tokenizer.encode(text)
    found: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _, __, output: found.append(output[0]))
        for layer in model.layers
    ]
    with torch.no_grad():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    places = [one.tokens for one in words(tokenizer, ids, text) if one.text == word][-1]
    return np.stack([state[list(places)].mean(dim=0).numpy() for state in found])


def _distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """1 − cosine, layer by layer."""
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    distance: np.ndarray = 1 - (one * other).sum(-1) / lengths
    return distance


def _some(count: int) -> list[int]:
    return sorted({0, count // 2, count - 1})


def _draw(figure: Figure, language: Language, distances: dict[str, np.ndarray]) -> None:
    labels = (Words("same meaning", "같은 뜻"), Words("another meaning", "다른 뜻"))
    for number, (name, found) in enumerate(distances.items()):
        axes = figure.add_subplot(1, 2, number + 1)
        layers = np.arange(found.shape[1])
        for kind, label in enumerate(labels):
            axes.plot(
                layers, found[kind], "o-", markersize=3, color=COLOURS[kind],
                label=label.in_(language),
            )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_xlabel(Words("layer", "층").in_(language))
        title = Words("{name}: distance of the word's vectors", "{name}: 낱말 벡터의 거리")
        axes.set_title(title.format(name=name).in_(language))
        axes.legend(loc="upper left")


LESSON = Lesson(
    name="context",
    claim=Words(
        "A word's vector changes with its neighbours: apple next to orange is a fruit, next to "
        "phone a brand; bank by a river, or with money. Attention decides how many percent of its "
        "new meaning it takes from each word.",
        "낱말의 벡터는 이웃에 따라 바뀐다. orange 옆의 apple은 과일이고 phone 옆에서는 상표다. "
        "bank는 강가도 되고 은행도 된다. 어텐션은 새 뜻의 몇 퍼센트를 어느 낱말에서 가져올지 "
        "정한다.",
    ),
    setup=Words(
        "MiniLM (sees both sides) and SmolLM2 (a GPT) read the textbook's sentences: the share of "
        "the neighbour by norm-weighted attention, a mean over all layers. Then six words with two "
        "meanings: the distance between the word's vectors in two texts of the same meaning and in "
        "two of different meanings, layer by layer.",
        "양쪽을 보는 MiniLM과 GPT인 SmolLM2가 교과서의 문장을 읽는다. 이웃의 몫은 노름을 곱한 "
        "어텐션의 모든 층 평균이다. 그리고 뜻이 둘인 낱말 여섯 개에 대해, 뜻이 같은 두 글과 다른 "
        "두 글에서 낱말 벡터의 거리를 층마다 잰다.",
    ),
    run=run,
)
