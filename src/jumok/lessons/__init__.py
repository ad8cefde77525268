"""Lessons: every claim of the textbook, run on this machine, measured and judged.

One file a lesson, all of one shape: a `Lesson` with a claim and a ``run`` that returns
`Findings`: tables, one figure, and checks, from which the verdict is computed. Lessons use public
jumok functions only, so that they double as examples of the library.
"""

from importlib import import_module

from jumok.lessons.lesson import Findings, Lesson, Words, run

__all__ = ["CONTENTS", "Findings", "Lesson", "find", "run"]

CONTENTS: dict[str, Words] = {
    "steps": Words("attention by hand, every matrix shown", "손으로 계산하는 어텐션, 모든 행렬"),
    "scaling": Words("why the scores are divided by √d", "점수를 √d로 나누는 까닭"),
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
