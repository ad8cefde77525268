"""Where passages begin and end."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies

from jumok.tokens.passages import Passage, beginning, cut, read_description, read_passages, turns

CHATML = (
    "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nA\n\nB\nC<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def said(text: str, passages: list[Passage]) -> list[tuple[str, str]]:
    return [(passage.name, text[passage.start : passage.end]) for passage in passages]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_paragraphs_and_lines(end: str) -> None:
    text = f"{end}One a.{end}{end}Two{end}  b {end}{end} \t{end}{end}Three"
    assert [part for _, part in said(text, cut(text, "paragraphs"))] == [
        "One a.",
        f"Two{end}  b",
        "Three",
    ]
    assert [part for _, part in said(text, cut(text, "lines"))] == ["One a.", "Two", "b", "Three"]


def test_one_paragraph_is_one_passage() -> None:
    assert cut("just this", "paragraphs") == [Passage("just this", 0, 9)]


def test_a_passage_is_named_by_its_beginning() -> None:
    assert beginning("a  b\nc") == "a b c"
    assert beginning("The warranty covers parts and labour for two years.") == (
        "The warranty covers parts and…"
    )
    assert len(beginning("x" * 100)) <= 32


def test_in_a_chat_paragraphs_are_those_of_its_turns() -> None:
    assert [part for _, part in said(CHATML, cut(CHATML, "paragraphs"))] == [
        "Be kind.",
        "A",
        "B\nC",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHATML, [("system", "Be kind."), ("user", "A\n\nB\nC")]),
        (
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>",
            [("user", "Hi"), ("assistant", "Yes")],
        ),
        (
            "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
            [("user", "Hi")],
        ),
        (
            "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>Yes",
            [("user", "Hi"), ("assistant", "Yes")],
        ),
        (
            "<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n",
            [("user", "Hi")],
        ),
        (
            "<|system|>\nA</s>\n<|user|>\nHi<|end|>\n<|assistant|>\n",
            [("system", "A"), ("user", "Hi")],
        ),
        (
            "<｜User｜>Hi<｜Assistant｜>Yes<｜end▁of▁sentence｜>",
            [("user", "Hi"), ("assistant", "Yes")],
        ),
        (
            "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST] Yes </s><s>[INST] More [/INST]",
            [("system", "Be kind."), ("user 1", "Hi"), ("assistant", "Yes"), ("user 2", "More")],
        ),
        (
            "[SYSTEM_PROMPT]A[/SYSTEM_PROMPT][INST]Hi[/INST]Yes",
            [("system", "A"), ("user", "Hi"), ("assistant", "Yes")],
        ),
        ("no chat at all", []),
    ],
)
def test_turns_are_found_by_the_marks_of_templates(
    text: str, expected: list[tuple[str, str]]
) -> None:
    assert said(text, turns(text)) == expected


@given(strategies.text(alphabet="ab \n\r\t.", max_size=60))
def test_passages_are_in_order_and_hold_all_that_is_visible(text: str) -> None:
    for how in ("paragraphs", "lines"):
        if not text.strip():
            with pytest.raises(ValueError, match="it is empty"):
                cut(text, how)
            continue
        found = cut(text, how)
        assert all(a.end < b.start for a, b in pairwise(found))
        parts = [text[passage.start : passage.end] for passage in found]
        assert all(part == part.strip() != "" for part in parts)
        assert "".join("".join(parts).split()) == "".join(text.split())


TEXT = "one two one three"


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (["one", "one", "three"], [("one", 0, 3), ("one", 8, 11), ("three", 12, 17)]),
        ([("A", "two"), ["B", "three"]], [("A", 4, 7), ("B", 12, 17)]),
        ({"A": "two"}, [("A", 4, 7)]),
        (
            [{"name": "A", "text": "two"}, {"start": 8, "end": 17}],
            [("A", 4, 7), ("one three", 8, 17)],
        ),
        ([Passage("A", 0, 3)], [("A", 0, 3)]),
        (["one", ""], [("one", 0, 3), ("", 3, 3)]),
    ],
)
def test_passages_as_named(described: Any, expected: list[tuple[str, int, int]]) -> None:
    assert [(one.name, one.start, one.end) for one in read_passages(described, TEXT)] == expected


@pytest.mark.parametrize(
    ("described", "error", "message"),
    [
        (["four"], ValueError, "segment 1 .'four'. isn't in the text; "),
        (
            ["three", "two"],
            ValueError,
            "segment 2 .'two'. isn't in the text after the segment before",
        ),
        ([{"start": 0, "end": 99}], ValueError, "from 0 to 99, but the text has 17 characters"),
        ([{"start": 5, "end": 3}], ValueError, "from 5 to 3"),
        (
            [{"start": 0, "end": 5}, {"start": 3, "end": 6}],
            ValueError,
            "begins at 3, before the end",
        ),
        ([], ValueError, "no segment is named"),
        ([7], TypeError, "segment 1 is 7: give its text"),
        ([{"name": "A"}], TypeError, "give its text"),
        (7, TypeError, "give paragraphs, lines, chat, or a list of texts"),
    ],
)
def test_what_describes_no_passage(described: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_passages(described, TEXT)


def test_unknown_modes_and_texts_without_a_chat() -> None:
    with pytest.raises(ValueError, match="segments 'words': choose paragraphs, lines, chat"):
        cut("a", "words")
    with pytest.raises(ValueError, match="no turn of a chat was found"):
        cut("a", "chat")


def test_a_file_that_names_segments() -> None:
    assert read_description(json.dumps({"A": "one"})) == {"A": "one"}
    found = read_description("first: one\n\n second : three\n")
    assert said(TEXT, found.passages(TEXT)) == [("first", "one two one"), ("second", "three")]
    with pytest.raises(ValueError, match="line 2 is 'nothing'"):
        read_description("A: one\nnothing")
    with pytest.raises(ValueError, match="it is no JSON"):
        read_description("[1,")
