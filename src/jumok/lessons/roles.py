"""Heads with a role, found in SmolLM2 by where they read, and confirmed by taking them away."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = 6
"""So many of each role are taken away."""
REPEATED = 24
Head = tuple[int, int]


@dataclass(frozen=True)
class Question:
    """A text, the word in it that settles what comes next, and a right and a wrong next word."""

    text: str
    word: str
    right: str
    wrong: str


def _agreements() -> list[Question]:
    """Subject and verb, with a noun of the other number between them."""
    nouns = (
        ("key", "to the", "cabinet"), ("author", "of the", "book"), ("dog", "near the", "house"),
        ("picture", "on the", "wall"), ("boy", "with the", "ball"), ("car", "behind the", "truck"),
        ("teacher", "of the", "student"), ("bird", "in the", "tree"),
    )  # fmt: skip
    found = []
    for noun, between, other in nouns:
        found.append(Question(f"The {noun}s {between} {other}", f"{noun}s", " are", " is"))
        found.append(Question(f"The {noun} {between} {other}s", noun, " is", " are"))
    return found


def _coreferences() -> list[Question]:
    """A name, and the pronoun that goes on about it."""
    lines = (
        "Last week {} was late because", "After lunch {} said that",
        "In the evening {} fell asleep when", "Yesterday {} was tired, and so",
    )  # fmt: skip
    names = (("Mary", " she", " he"), ("John", " he", " she"), ("Sarah", " she", " he"),
             ("David", " he", " she"))  # fmt: skip
    return [
        Question(line.format(name), name, right, wrong)
        for line in lines
        for name, right, wrong in names
    ]


ROLES = {
    "previous": Words("the token before", "바로 앞 토큰"),
    "induction": Words("what followed last time", "지난번에 뒤따른 것"),
    "sink": Words("the first token (sink)", "첫 토큰 (싱크)"),
    "agreement": Words("the verb's subject", "동사의 주어"),
    "coreference": Words("the pronoun's name", "대명사의 이름"),
}


def run(running: Running) -> Findings:
    running.tell("loading smollm2", 0.0)
    model, tokenizer = jumok.load("smollm2")
    random = np.random.default_rng(running.seed)
    draws = 4 if running.quick else 20
    repeated, fresh = (_repeated(tokenizer, random, 4) for _ in range(2))
    sets = {"agreement": _agreements(), "coreference": _coreferences()}
    running.tell("looking for heads", 0.1)
    weights = _weights(model, tokenizer, repeated)
    n_heads = len(weights["previous"][0])
    measures: dict[str, tuple[Tensor, Callable[[Tensor], float]]] = dict.fromkeys(
        ("previous", "induction", "sink"), (fresh, lambda logits: _second_time(logits, fresh))
    )
    for name, questions in sets.items():  # found on one half, confirmed on the other
        half = len(questions) // 2
        weights[name] = _read_by_last(model, tokenizer, questions[:half])
        measures[name] = _asked(tokenizer, questions[half:])
    chosen = {name: _highest(found) for name, found in weights.items()}
    whole, without, instead = {}, {}, {}
    for place, (name, heads) in enumerate(chosen.items()):
        running.tell(f"without {name}", 0.2 + 0.8 * place / len(chosen))
        ids, measure = measures[name]
        with torch.no_grad():
            whole[name] = measure(model(ids))
        without[name] = _without(model, ids, measure, heads) - whole[name]
        instead[name] = [
            _without(model, ids, measure, _others(heads, n_heads, random)) - whole[name]
            for _ in range(draws)
        ]
    usual = {name: float(np.mean(found)) for name, found in instead.items()}
    return Findings(
        tables=(
            Table(
                Words(
                    "the {n} heads that read it most, and what becomes of the loss without them "
                    "(nats; the mean of {draws} draws of other heads of the same layers)",
                    "그것을 가장 많이 읽는 헤드 {n}개와, 없을 때 손실의 변화 (nat; 같은 층의 다른 "
                    "헤드를 {draws}번 뽑은 평균)",
                ).format(n=HEADS, draws=draws),
                (
                    Words("it reads", "읽는 것"),
                    Words("heads (layer.head)", "헤드 (층.헤드)"),
                    Words("weight", "가중치"),
                    Words("without them", "없을 때"),
                    Words("without others", "다른 헤드가 없을 때"),
                ),
                [
                    (
                        about,
                        ", ".join(f"{layer}.{head}" for layer, head in chosen[name]),
                        f"{np.mean([weights[name][head] for head in chosen[name]]):.0%}",
                        f"{without[name]:+.2f}",
                        f"{usual[name]:+.2f}",
                    )
                    for name, about in ROLES.items()
                ],
            ),
        ),
        checks=tuple(
            Check(statement, holds, f"{without[name]:+.2f} ↔ {usual[name]:+.2f} nats")
            for name, statement, holds in (
                (
                    "previous",
                    Words(
                        "heads that read the token before are needed to repeat a text",
                        "바로 앞 토큰을 읽는 헤드는 글을 되풀이하는 데 필요하다",
                    ),
                    _needed(without["previous"], usual["previous"]),
                ),
                (
                    "induction",
                    Words("and so are induction heads", "귀납 헤드도 그렇다"),
                    _needed(without["induction"], usual["induction"]),
                ),
                (
                    "agreement",
                    Words(
                        "heads that read the subject are needed for the number of the verb",
                        "주어를 읽는 헤드는 동사의 수에 필요하다",
                    ),
                    _needed(without["agreement"], usual["agreement"]),
                ),
                (
                    "coreference",
                    Words(
                        "heads that read the name are needed for the pronoun",
                        "이름을 읽는 헤드는 대명사에 필요하다",
                    ),
                    _needed(without["coreference"], usual["coreference"]),
                ),
            )
        ),
        draw=lambda figure, language: _draw(figure, language, without, instead),
        remark=Words(
            "Loss: of the second time of a repeated row of words, or, for verb and pronoun, of "
            "choosing the right one of two. A head that rests on the first token does nothing much "
            "there ({sink}): high weight alone proves no role.",
            "손실은 되풀이한 낱말 줄의 두 번째에 대한 것이거나, 동사와 대명사에서는 둘 중 옳은 "
            "것을 고르는 손실이다. 첫 토큰에 머무는 헤드는 거기서 별일을 하지 않는다 ({sink}). 큰 "
            "가중치만으로는 역할이 증명되지 않는다.",
        ).format(sink=f"{without['sink']:+.2f} ↔ {usual['sink']:+.2f}"),
    )


def _needed(without: float, usual: float) -> bool:
    return without > 2 * max(usual, 0.0) + 0.05


def _repeated(tokenizer: Any, random: np.random.Generator, rows: int) -> Tensor:
    """Rows of words in no order, each row twice, (rows, 2 REPEATED)."""
    found = sorted(set(re.findall(r"\b[a-z]{4,8}\b", topics["if"] + topics["try"])))
    ids = [tokenizer.encode(f" {word}") for word in found]
    single = np.array([one[0] for one in ids if len(one) == 1])
    words = [random.choice(single, REPEATED, replace=False) for _ in range(rows)]
    return torch.tensor(np.concatenate([words, words], axis=1))


def _second_time(logits: Tensor, ids: Tensor) -> float:
    """The loss of the second half of repeated rows, nats per token."""
    logits, answers = logits[:, REPEATED:-1], ids[:, REPEATED + 1 :]
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten()))


def _weights(model: Any, tokenizer: Any, ids: Tensor) -> dict[str, np.ndarray]:
    """How much each head (layers, heads) reads of the token before, by induction, of the first."""
    with torch.no_grad(), jumok.watch(model) as recording:
        model(ids)
    columns = jumok.report(recording, tokenizer, measures=["prefix_matching"]).columns
    shape = (len(recording), -1)
    names = {"previous": "previous", "induction": "prefix_matching", "sink": "first"}
    return {role: np.reshape(columns[name], shape) for role, name in names.items()}


def _read_by_last(model: Any, tokenizer: Any, questions: list[Question]) -> np.ndarray:
    """How much each head (layers, heads) reads of the word from the last token, the mean."""
    found = []
    for question in questions:
        ids = tokenizer.encode(question.text)
        place = [tokenizer.decode([one]).strip() for one in ids].index(question.word)
        with torch.no_grad(), jumok.watch(model) as recording:
            model(torch.tensor([ids]))
        found.append([one[0, :, -1, place].numpy() for one in recording])
    return np.mean(found, axis=0)  # type: ignore[no-any-return]


def _asked(tokenizer: Any, questions: list[Question]) -> tuple[Tensor, Callable[[Tensor], float]]:
    """The texts, filled up on the right, and the loss of choosing the right next word, in nats."""
    texts = [tokenizer.encode(question.text) for question in questions]
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    last = torch.tensor([len(text) - 1 for text in texts])
    answers = torch.tensor(
        [[tokenizer.encode(word)[0] for word in (q.right, q.wrong)] for q in questions]
    )

    def measure(logits: Tensor) -> float:
        pairs = logits[torch.arange(len(texts)), last].gather(1, answers)  # (B, 2)
        return float(-pairs.log_softmax(-1)[:, 0].mean())

    return ids, measure


def _highest(weights: np.ndarray) -> list[Head]:
    order = np.argsort(-weights, axis=None)[:HEADS]
    return [(int(place) // weights.shape[1], int(place) % weights.shape[1]) for place in order]


def _others(heads: list[Head], n_heads: int, random: np.random.Generator) -> list[Head]:
    """As many heads of the same layers, chosen at random among the others."""
    found: list[Head] = []
    for layer, _ in heads:
        left = [head for head in range(n_heads) if (layer, head) not in (*heads, *found)]
        if left:
            found.append((layer, int(random.choice(left))))
    return found


def _without(
    model: Any, ids: Tensor, measure: Callable[[Tensor], float], heads: list[Head]
) -> float:
    with torch.no_grad(), jumok.ablate(model, heads):
        return measure(model(ids))


def _draw(
    figure: Figure,
    language: Language,
    without: dict[str, float],
    instead: dict[str, list[float]],
) -> None:
    axes = figure.add_subplot()
    for number, name in enumerate(ROLES):
        place = len(ROLES) - number
        axes.plot(
            instead[name], [place] * len(instead[name]), "o", color="#767676", alpha=0.5,
            markersize=4, label=None if number else Words("other heads", "다른 헤드").in_(language),
        )  # fmt: skip
        axes.plot(
            without[name], place, "D", color=COLOURS[1],
            label=None if number else Words("heads of the role", "역할을 맡은 헤드").in_(language),
        )  # fmt: skip
    axes.axvline(0, color="#767676", linewidth=0.8)
    axes.set_yticks(range(len(ROLES), 0, -1), [about.in_(language) for about in ROLES.values()])
    axes.set_ylim(0.5, len(ROLES) + 0.5)
    axes.set_xlabel(
        Words("change of the loss without them, nats", "없을 때 손실의 변화, nat").in_(language)
    )
    axes.legend(loc="best")


LESSON = Lesson(
    name="roles",
    claim=Words(
        "Heads look at different relations: what stood before, what followed last time, the "
        "subject of a verb, the name that a pronoun means.",
        "헤드는 서로 다른 관계를 본다. 바로 앞의 토큰, 지난번에 뒤따른 것, 동사의 주어, 대명사가 "
        "가리키는 이름을 본다.",
    ),
    setup=Words(
        "In SmolLM2 the six heads are found that read each of these most: on rows of words that "
        "come twice, and on sixteen sentences about verbs and sixteen about pronouns. Then they "
        "are taken away, on other rows and sentences, and so are as many other heads of the same "
        "layers, chosen at random.",
        "SmolLM2에서 이것을 각각 가장 많이 읽는 헤드 여섯 개를 찾는다. 두 번 나오는 낱말 줄, "
        "동사에 관한 문장 열여섯 개, 대명사에 관한 문장 열여섯 개를 쓴다. 그다음 다른 줄과 "
        "문장에서 그 헤드를 없애고, 같은 층의 다른 헤드도 무작위로 그만큼 없애 본다.",
    ),
    run=run,
)
