"""Corpora: what is in them, in which order, and where reading goes on."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from jumok.training.corpus import FRAGMENT, Corpus, Texts, read_corpus
from jumok.training.tasks import TASKS

LONG = "".join(f"Line {i} of a long text, with ü and 한글.\n" for i in range(8000))


def test_topics_are_pythons_manual() -> None:
    from pydoc_data.topics import topics

    corpus = read_corpus("topics")
    found = list(corpus.documents())
    assert found == [topics[name] for name in sorted(topics)]
    assert corpus.n_bytes == sum(len(text.encode()) for text in topics.values())
    assert not corpus.pairs


@pytest.mark.parametrize("document", [LONG, "x" * 200_000, "one two " * 30_000])
def test_a_long_document_comes_in_parts_that_are_the_whole(document: str) -> None:
    corpus = Texts("long", ["first", document, "last"])
    parts = list(corpus.fragments())
    assert max(len(part.text) for part in parts) <= FRAGMENT
    assert list(corpus.documents()) == ["first", document, "last"]
    assert (parts[0].first, parts[0].last) == (True, True)
    assert sum(part.first for part in parts) == sum(part.last for part in parts) == 3
    assert sum(part.n_bytes for part in parts) == corpus.n_bytes


def test_blank_documents_are_left_out() -> None:
    assert list(Texts("t", ["a", "", " \n", "b"]).documents()) == ["a", "b"]
    pairs = Texts("p", [("a", "b"), ("c", " "), ("", "d"), ("e", "e")])
    assert list(pairs.documents()) == [("a", "b"), ("e", "e")]


def test_a_fingerprint_is_of_the_content() -> None:
    assert Texts("t", ["ab", "c"]).fingerprint == Texts("u", ["ab", "c"]).fingerprint
    assert Texts("t", ["ab", "c"]).fingerprint != Texts("t", ["a", "bc"]).fingerprint


@pytest.mark.parametrize(
    "corpus",
    [
        Texts("t", ["a", LONG, "b", "c"]),
        Texts("p", [("a", "b"), (LONG, "c"), ("e", "e")]),
        read_corpus("task:copy:20"),
        read_corpus("task:dates:20", pairs=True),
    ],
    ids=["texts", "pairs", "task", "task of pairs"],
)
def test_reading_goes_on_at_every_place(corpus: Corpus) -> None:
    goes_on_everywhere(corpus)


def goes_on_everywhere(corpus: Corpus) -> None:
    every = list(corpus.fragments())
    for number, fragment in enumerate(every, start=1):
        if fragment.after is not None:
            assert list(corpus.fragments(fragment.after)) == every[number:]
    assert every[-1].after is not None


@pytest.mark.parametrize("task", TASKS)
def test_tasks_are_corpora_of_texts_and_of_pairs(task: str) -> None:
    texts = list(read_corpus(f"task:{task}:50").documents())
    pairs = list(read_corpus(f"task:{task}:50", pairs=True).documents())
    assert len(texts) == 50
    assert texts == [f"{source} = {target}" for source, target in pairs]
    assert list(read_corpus(f"task:{task}:70").documents())[:50] == texts
    other = list(itertools.islice(read_corpus(f"task:{task}:50:1").documents(), 50))
    assert other != texts


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("nowhere.txt", {}, "there is no corpus nowhere.txt: give a .txt"),
        ("task:cpoy", {}, "there is no task 'cpoy'; there are copy, reversal"),
        ("task:copy:many", {}, "task:NAME:EXAMPLES:SEED"),
        ("task:copy:0", {}, "at least 1"),
        ("topics", {"pairs": True}, "texts, not pairs"),
        ("topics", {"pairs": True, "fields": ["a"]}, "name two fields"),
        ("topics", {"fields": ["a", "b"]}, "name one field"),
    ],
)
def test_what_is_no_corpus_is_told(name: str, options: dict[str, object], said: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        read_corpus(name, **options)  # type: ignore[arg-type]


def test_a_folder_that_is_called_topics_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics" / "a.txt").write_text("mine")
    assert list(read_corpus(tmp_path / "topics").documents()) == ["mine"]
