"""What is said about segments."""

from __future__ import annotations

import dataclasses

from jumok.view.segment_wording import (
    answer,
    cut_name,
    headline,
    heads_named,
    meaning,
    reader_name,
    title,
    without,
)
from known_segments import ALONE, KOREAN, LEFT_OUT, LONG, POLICY, SILENT


def test_the_answer_in_words() -> None:
    assert title(POLICY) == "Which passage did the answer read?"
    assert headline(POLICY) == [
        "The answer took 41.0 % from 1 “The warranty covers parts…”, 8.0 % from 2 “Returns "
        "within 30 days…” and 22.0 % from itself.",
        "Apart: the first token (the sink) 25.0 %, between the segments 4.0 %.",
        "For their length, most from 1 (×2.1) and 2 (×0.4).",
    ]
    assert answer(POLICY) == "answer and more"
    assert heads_named(POLICY) == [
        "Heads that look most at 1 “The warranty covers parts…”, counted from 0: "
        "layer 0 head 1 (61.5 %), layer 1 head 1 (51.2 %), layer 1 head 0 (30.8 %)."
    ]


def test_what_the_answer_could_do_without() -> None:
    assert headline(LEFT_OUT)[-1] == (
        "Left out, the same answer would be less likely: without 1 “The warranty covers parts…” "
        "20 times."
    )
    idle = dataclasses.replace(POLICY, losses=(0.1, None, None))
    assert headline(idle)[-1].startswith("No passage by itself is needed")
    said = " ".join(meaning(LEFT_OUT))
    assert "read the prompt once more" in said
    assert "--leave-out" not in said
    assert "--leave-out" in " ".join(meaning(POLICY))
    parts = LEFT_OUT.parts()
    assert [without(part) for part in parts] == ["÷20", "×1.1", "", "", ""]
    assert without(dataclasses.replace(parts[0], loss=40.0)) == "÷10⁶+"
    assert without(dataclasses.replace(parts[0], loss=-40.0)) == "×10⁶+"
    assert without(dataclasses.replace(parts[0], loss=0.0)) == "÷1.0"


def test_without_an_answer_the_last_passage_is_the_reader() -> None:
    assert reader_name(KOREAN) == "2 “질문: 보증이 되나요?”"
    assert headline(KOREAN)[0].startswith("2 “질문: 보증이 되나요?” took 30.0 % from 1 “보증은")
    assert answer(KOREAN) is None


def test_one_passage_reads_itself() -> None:
    assert headline(ALONE) == [
        "1 “Just one passage” took 70.0 % from itself.",
        "Apart: the first token (the sink) 30.0 %.",
    ]
    assert heads_named(ALONE) == []


def test_a_passage_that_reads_nothing_says_so() -> None:
    assert headline(SILENT) == ["2 “b” has no token that could read."]


def test_a_small_lead_is_called_one() -> None:
    assert "Between segment 1 and segment 2 lies less than a point: read them as equal." in (
        headline(LONG)
    )


def test_what_the_numbers_mean() -> None:
    said = " ".join(meaning(POLICY))
    for part in ("positions it wrote the answer with", "an even reader", "not what it could do",
                 "a sink", "the marks of a chat", "layers 0–1"):  # fmt: skip
        assert part in said
    assert "(--generate N" in said
    encoder = dataclasses.replace(POLICY, causal=False, answered=False)
    assert "(--model smollm2 --generate N" in " ".join(meaning(encoder))
    raw = dataclasses.replace(POLICY, measure="raw", note="as asked for")
    assert "is the attention weight" in meaning(raw)[0]
    assert "as asked for" in meaning(raw)[0]
    assert "a sink" not in " ".join(meaning(dataclasses.replace(POLICY, apart=())))


def test_names_are_short_and_steer_no_terminal() -> None:
    assert cut_name("a\x1b[31m\n b") == "a\\u{1b}[31m b"
    assert len(cut_name("x" * 100)) == 40
