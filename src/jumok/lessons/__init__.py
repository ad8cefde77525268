"""Lessons: every claim of the textbook, run on this machine, measured and judged.

One file a lesson, all of one shape: a `Lesson` with a claim and a ``run`` that returns
`Findings`: tables, one figure, and checks, from which the verdict is computed. Lessons use public
jumok functions only, so that they double as examples of the library.
"""

from importlib import import_module

from jumok.lessons.lesson import Findings, Lesson, Words, run

__all__ = ["CONTENTS", "Findings", "Lesson", "find", "run"]

CONTENTS: dict[str, Words] = {
    "context": Words(
        "a word's vector changes with its neighbours", "낱말의 벡터는 이웃에 따라 바뀐다"
    ),
    "steps": Words("attention by hand, every matrix shown", "손으로 계산하는 어텐션, 모든 행렬"),
    "scaling": Words("why the scores are divided by √d", "점수를 √d로 나누는 까닭"),
    "query-key": Words("one matrix for query and key, or two", "쿼리와 키: 행렬 하나 아니면 둘"),
    "key-value": Words("one matrix for key and value, or two", "키와 값: 행렬 하나 아니면 둘"),
    "causal": Words("what the causal mask is for", "인과 마스크가 하는 일"),
    "heads": Words("how many heads are right", "알맞은 헤드 수"),
    "layers": Words("what early and late layers do", "앞쪽 층과 뒤쪽 층이 하는 일"),
    "positions": Words("attention alone has no order", "어텐션만으로는 순서를 모른다"),
    "block": Words("what each part of the block is for", "블록의 부분마다 하는 일"),
    "rnn": Words("why not a recurrent network", "순환 신경망 대신 어텐션인 까닭"),
    "cache": Words("what the KV cache saves", "KV 캐시가 아껴 주는 것"),
    "database": Words("attention as a soft dictionary", "부드러운 사전으로서의 어텐션"),
    "memory": Words("the wall of T×T weights", "T×T 가중치의 벽"),
    "translate": Words("the encoder-decoder of 2017", "2017년의 인코더-디코더"),
}
"""The names of all lessons, in the order of the textbook, and what each is about."""


def find(name: str) -> Lesson:
    """A lesson by its name.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in CONTENTS:
        raise ValueError(f"there is no lesson {name!r}; there are {', '.join(CONTENTS)}")
    lesson = import_module(f"jumok.lessons.{name.replace('-', '_')}").LESSON
    assert isinstance(lesson, Lesson), name
    return lesson
