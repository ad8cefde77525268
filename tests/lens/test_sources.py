"""Where a word takes its meaning from: shares by hand, then a real model."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tokenizers import pre_tokenizers

from jumok.lens.sources import Query, Source, difference, sources
from known_maps import Map, Recorded, recorded, softmax_rows, tokenizer


def by_hand(maps: list[Map], query: int) -> tuple[list[float], list[float]]:
    """Shares and raw weights of one token, term by term."""
    tokens = maps[0].shape[-1]
    share, raw = [0.0] * tokens, [0.0] * tokens
    for m in maps:
        heads = m.shape[1]
        brought = [
            sum(float(m.weights[0, h, query, j]) * float(m.norms[0, h, j]) for h in range(heads))
            for j in range(tokens)
        ]
        for j in range(tokens):
            share[j] += brought[j] / sum(brought) / len(maps)
            raw[j] += (
                sum(float(m.weights[0, h, query, j]) for h in range(heads)) / heads / len(maps)
            )
    return share, raw


# -- the number ------------------------------------------------------------------------------


def test_shares_are_the_formula_term_by_term() -> None:
    tokens = tokenizer()
    recording = recorded("an apple and orange", tokens)
    (query,) = sources(recording, tokens, "apple").queries
    share, raw = by_hand(recording, 2)
    assert [source.share for source in query.sources] == pytest.approx(share, abs=1e-7)
    assert [source.raw for source in query.sources] == pytest.approx(raw, abs=1e-7)
    assert sum(source.share for source in query.sources) == pytest.approx(1)
    assert sum(source.raw for source in query.sources) == pytest.approx(1)


def test_a_head_that_hands_over_nothing_gives_nothing() -> None:
    tokens = tokenizer(special=False)
    # Head 0 reads "orange" only but hands over vectors of length 0; head 1 reads "an".
    weights = np.zeros((2, 2, 2))
    weights[0, :, 1], weights[1, :, 0] = 1, 1
    data = sources(Recorded([Map(weights, [[0, 0], [2, 5]])], tokens.encode("an orange")), tokens)
    assert [s.share for s in data.queries[1].sources] == [1.0, 0.0]
    assert [s.raw for s in data.queries[1].sources] == [0.5, 0.5]


def test_a_layer_counts_the_same_however_long_its_vectors_are() -> None:
    tokens = tokenizer(special=False)
    to_first, to_second = np.array([[[1.0, 0], [1, 0]]]), np.array([[[0, 1.0], [0, 1]]])
    maps = [Map(to_first, [[1000, 1000]]), Map(to_second, [[0.001, 0.001]])]
    (query,) = sources(Recorded(maps, tokens.encode("an orange")), tokens, "orange").queries
    assert [source.share for source in query.sources] == pytest.approx([0.5, 0.5])


def test_columns_of_pieces_are_added_and_rows_averaged() -> None:
    whole, split = tokenizer(), tokenizer(whole=False)
    recording = recorded("an apple orange", split)  # [CLS] an ap ##ple orange [SEP]
    assert recording.ids is not None
    assert len(recording.ids[0]) == len(whole.encode("an apple orange")) + 1
    data = sources(recording, split)
    apple, orange = data.queries[1], data.queries[2]
    rows = [by_hand(recording, 2), by_hand(recording, 3)]
    assert apple.tokens == (2, 3)
    expected = [(a + b) / 2 for a, b in zip(rows[0][0], rows[1][0], strict=True)]
    assert apple.sources[2].share == pytest.approx(expected[2] + expected[3])
    assert apple.sources[3].share == pytest.approx(expected[4])
    share, raw = by_hand(recording, 4)
    assert orange.sources[2].word == "apple"
    assert orange.sources[2].share == pytest.approx(share[2] + share[3])
    assert orange.sources[2].raw == pytest.approx(raw[2] + raw[3])


def test_only_the_chosen_layers_are_averaged() -> None:
    tokens = tokenizer()
    recording = recorded("an apple", tokens, layers=4)
    for layers, chosen in ((1, [1]), ([0, 3], [0, 3]), (range(1, 3), [1, 2]), (-1, [3])):
        data = sources(recording, tokens, "apple", layers=layers)
        share, _ = by_hand([recording[layer] for layer in chosen], 2)
        assert data.layers == tuple(chosen)
        assert [s.share for s in data.queries[0].sources] == pytest.approx(share)


def test_raw_weights_on_request_and_where_shares_would_be_wrong() -> None:
    tokens = tokenizer()
    recording = recorded("an apple", tokens)
    assert sources(recording, tokens, "apple").measure == "share"
    asked = sources(recording, tokens, "apple", raw=True)
    recording[1].norms = None
    forced = sources(recording, tokens, "apple")
    for data in (asked, forced):
        assert data.measure == "raw"
        assert all(s.share == s.raw for s in data.queries[0].sources)
    assert "a gate stands between" in forced.note
    assert "as asked for" in asked.note


def test_the_heads_that_look_most_at_a_word() -> None:
    tokens = tokenizer(whole=False)
    recording = recorded("an apple orange", tokens)
    (query,) = sources(recording, tokens, "orange").queries
    apple = query.sources[2]
    looks = {
        (layer, head): float(recording[layer].weights[0, head, 4, 2:4].sum())
        for layer in range(2)
        for head in range(3)
    }
    best = sorted(looks, key=lambda head: -looks[head])[:3]
    assert [(head.layer, head.head) for head in apple.heads] == best
    assert [head.weight for head in apple.heads] == pytest.approx([looks[head] for head in best])


def test_only_the_chosen_rows_are_asked_for() -> None:
    tokens = tokenizer()
    text = " ".join(["an"] * 120 + ["apple"] + ["and"] * 120)
    recording = recorded(text, tokens, layers=1)
    sources(recording, tokens, "apple")
    assert recording[0].asked == [3 * 1 * 243]


def test_rows_that_are_near_come_together() -> None:
    tokens = tokenizer()
    recording = recorded(" ".join((["apple"] + ["and"] * 3) * 30 + ["an"] * 40 + ["apple"]), tokens)
    data = sources(recording, tokens, "apple")
    # Rows 1 to 117 of 163, every fourth, in blocks of at most 64; then row 161 alone.
    assert recording[0].asked == [rows * 3 * 163 for rows in (61, 53, 1)]
    for query in (data.queries[3], data.queries[20], data.queries[-1]):
        share, _ = by_hand(recording, query.position)
        assert [source.share for source in query.sources] == pytest.approx(share)


def test_many_rows_come_in_blocks() -> None:
    tokens = tokenizer()
    recording = recorded(" ".join(["an", "apple"] * 99), tokens, layers=1)
    data = sources(recording, tokens)
    assert max(recording[0].asked) <= 3 * 64 * 200
    share, _ = by_hand(recording, 130)
    assert [s.share for s in data.queries[129].sources] == pytest.approx(share)


# -- which words -----------------------------------------------------------------------------


def test_every_occurrence_is_a_query_in_order() -> None:
    tokens = tokenizer()
    recording = recorded("apple and apple phone apple", tokens)
    data = sources(recording, tokens, "apple")
    assert [query.position for query in data.queries] == [1, 3, 5]
    assert [s.kind for s in data.queries[1].sources] == [
        "special", "word", "word", "itself", "word", "word", "special",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "places"), [("apple", [1, 3, 5]), ("Apple", [1]), ("APPLE", [5]), ("ApplE", [1, 3, 5])]
)
def test_case_counts_only_where_a_capital_is_typed(word: str, places: list[int]) -> None:
    tokens = tokenizer()
    text = "Apple and apple and APPLE"  # unknown to this vocabulary, yet they are in the text
    recording = recorded(text, tokens)
    found = sources(recording, tokens, word, text=text).queries
    assert [query.position for query in found] == places


def test_a_token_as_the_query() -> None:
    tokens = tokenizer(whole=False)
    recording = recorded("an apple", tokens)
    for number in (3, -2):
        (query,) = sources(recording, tokens, token=number).queries
        assert (query.word, query.tokens, query.position) == ("##ple", (3,), 2)
        assert query.sources[2].kind == "itself"
        assert query.sources[1].share == pytest.approx(by_hand(recording, 3)[0][1])


def test_pieces_instead_of_words() -> None:
    tokens = tokenizer(whole=False)
    recording = recorded("an apple", tokens)
    queries = sources(recording, tokens, "apple", pieces=True).queries
    assert [source.word for source in queries[0].sources] == ["[CLS]", "an", "ap", "##ple", "[SEP]"]
    assert [(query.word, query.tokens) for query in queries] == [("ap", (2,)), ("##ple", (3,))]
    for query in queries:
        assert query.sources[1].share == pytest.approx(by_hand(recording, query.position)[0][1])
    every = sources(recording, tokens, pieces=True)
    assert [query.word for query in every.queries] == ["an", "ap", "##ple"]
    assert [(word.start, word.end) for word in every.words] == [
        (0, 0),
        (0, 2),
        (3, 5),
        (5, 8),
        (8, 8),
    ]


def test_of_a_long_text_the_first_words_are_queries() -> None:
    tokens = tokenizer()
    data = sources(recorded(" ".join(["orange"] * 300), tokens, layers=1), tokens)
    assert [query.position for query in data.queries] == list(range(1, 201))
    assert len(data.queries[0].sources) == 302


def test_of_a_very_long_text_fewer_words_are_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jumok.lens.sources.MOST_PAIRS", 100)
    tokens = tokenizer()
    assert len(sources(recorded(" ".join(["an"] * 18), tokens), tokens).queries) == 5  # × 20
    assert len(sources(recorded(" ".join(["an"] * 180), tokens), tokens).queries) == 1


def test_what_nobody_sees_is_no_query() -> None:
    tokens = tokenizer(special=False)
    ids = [*tokens.encode("an"), 2, *tokens.encode("apple")]
    text = "an \u200b apple"
    tokens.backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    recording = Recorded([Map(softmax_rows(1, 3, 3), np.ones((1, 3)))], ids)
    data = sources(recording, tokens, text=text)
    assert [query.word for query in data.queries] == ["an", "apple"]


def test_first_token_special_tokens_and_the_word_itself_are_apart() -> None:
    tokens = tokenizer(special=False)
    recording = recorded("an apple and orange", tokens, causal=True)
    (query,) = sources(recording, tokens, "and").queries
    assert [source.kind for source in query.sources] == ["first", "word", "itself", "word"]
    assert [source.word for source in query.apart()] == ["and", "an"]
    assert [source.word for source in query.ranked()] == ["apple"]
    assert sum(s.share for s in [*query.ranked(), *query.apart()]) == pytest.approx(1)


def test_the_first_token_comes_after_the_padding() -> None:
    tokens = tokenizer(special=False)
    ids = [0, 0, *tokens.encode("an apple and")]  # [CLS] serves as padding here
    weights = softmax_rows(2, 5, 5, causal=True)
    weights[:, :, :2] = 0
    recording = Recorded([Map(weights, np.ones((2, 5)))], ids)
    (query,) = sources(recording, tokens, "and").queries
    assert [s.kind for s in query.sources] == ["special", "special", "first", "word", "itself"]
    assert [s.seen for s in query.sources] == [False, False, True, True, True]


def test_what_a_gpt_cannot_see() -> None:
    tokens = tokenizer(special=False)
    data = sources(recorded("an apple and orange", tokens, causal=True), tokens, "apple")
    assert data.causal
    assert [source.word for source in data.queries[0].unseen()] == ["and", "orange"]
    assert all(source.share == 0 and not source.heads for source in data.queries[0].unseen())
    both = sources(recorded("an apple and orange", tokens), tokens, "apple")
    assert not both.causal
    assert not both.queries[0].unseen()


def test_the_lead() -> None:
    def query(*shares: float) -> Query:
        found = [Source("a", p, (p,), s, s, "word", True, ()) for p, s in enumerate(shares)]
        return Query("a", 9, (9,), tuple(found))

    assert query(0.2, 0.5, 0.1).lead() == pytest.approx(0.3)
    assert query(0.2).lead() is None


# -- two texts -------------------------------------------------------------------------------


def test_the_difference_between_two_texts() -> None:
    tokens = tokenizer()
    first, second = "an apple and an orange", "Apple phone an"
    (left,) = sources(recorded(first, tokens), tokens, "apple", text=first).queries
    (right,) = sources(recorded(second, tokens), tokens, "Apple", text=second).queries
    rows = difference(left, right)
    assert [(row.word, row.kind) for row in rows] == [
        ("[CLS]", "special"), ("an", "word"), ("apple", "itself"), ("and", "word"),
        ("an", "word"), ("orange", "word"), ("[SEP]", "special"), ("phone", "word"),
    ]  # fmt: skip
    itself, phone, an, second_an = rows[2], rows[7], rows[1], rows[4]
    assert itself.change == pytest.approx(right.sources[1].share - left.sources[2].share)
    assert (phone.share, phone.change) == (None, None)
    assert an.against == right.sources[3].share
    assert second_an.against is None
    assert (an.position, an.against_position) == (1, 3)
    assert (phone.position, phone.against_position) == (None, 2)
    assert (second_an.position, second_an.against_position) == (4, None)


# -- the promise of --json -------------------------------------------------------------------


def test_the_object_holds_what_the_documentation_says() -> None:
    tokens = tokenizer(whole=False)
    data = sources(recorded("an apple", tokens), tokens, "apple", text="an apple")
    found = json.loads(json.dumps(data.to_dict()))
    assert found == data.to_dict()
    assert list(found) == [
        "model", "text", "tokens", "words", "layers", "causal", "measure", "note", "queries",
    ]  # fmt: skip
    assert found["tokens"] == ["[CLS]", "an", "ap", "##ple", "[SEP]"]
    assert found["words"] == ["[CLS]", "an", "apple", "[SEP]"]
    (query,) = found["queries"]
    assert list(query) == ["word", "position", "tokens", "sources"]
    assert [source["word"] for source in query["sources"]] == found["words"]
    assert [source["tokens"] for source in query["sources"]] == [[0], [1], [2, 3], [4]]
    assert list(query["sources"][0]) == [
        "word", "position", "tokens", "share", "raw", "kind", "seen", "heads",
    ]  # fmt: skip
    assert list(query["sources"][0]["heads"][0]) == ["layer", "head", "weight"]


def test_the_data_cannot_be_changed() -> None:
    tokens = tokenizer()
    data = sources(recorded("an apple", tokens), tokens)
    with pytest.raises(FrozenInstanceError):
        data.model = "other"  # type: ignore[misc]


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word": "pear"}, "no word 'pear'; its words: an, apple, and, orange"),
        ({"word": "apple", "token": 1}, "not both"),
        ({"token": 6}, "no token 6: the text has tokens 0 to 5"),
        ({"token": -7}, "no token -7"),
        ({"layers": 2}, "no layer 2: the recording has 0 to 1"),
        ({"layers": []}, "no layer was chosen"),
        ({"batch": 1}, "no text 1 in this recording: it holds 1"),
        ({"text": "an orange"}, "gives other token ids"),
    ],
)
def test_refusals_name_what_was_asked_for(options: dict[str, Any], message: str) -> None:
    tokens = tokenizer()
    with pytest.raises(ValueError, match=message):
        sources(recorded("an apple and orange", tokens), tokens, **options)


def test_layers_that_are_no_numbers() -> None:
    tokens = tokenizer()
    with pytest.raises(TypeError, match=r"layers='0-3' are no whole numbers; .*range\(0, 4\)"):
        sources(recorded("an apple", tokens), tokens, layers="0-3")  # type: ignore[arg-type]


def test_a_giant_word_is_named_by_its_ends() -> None:
    tokens = tokenizer()
    text = "x" * 5000
    with pytest.raises(ValueError, match="no word") as caught:
        sources(recorded(text, tokens), tokens, "y" * 5000, text=text)
    assert len(str(caught.value)) < 140


def test_a_map_over_other_tokens_is_left_out_and_refused_by_name() -> None:
    tokens = tokenizer()
    recording = recorded("an apple", tokens)
    recording.append(Map(softmax_rows(3, 4, 9), None))  # cross-attention
    assert sources(recording, tokens, "apple").layers == (0, 1)
    with pytest.raises(ValueError, match=r"layer 2 has the shape \(1, 3, 4, 9\)"):
        sources(recording, tokens, "apple", layers=2)


def test_without_ids_the_text_is_needed() -> None:
    tokens = tokenizer()
    recording = recorded("an apple", tokens)
    recording.ids = None
    with pytest.raises(ValueError, match="holds no token ids; give the text"):
        sources(recording, tokens, "apple")
    assert sources(recording, tokens, "apple", text="an apple").queries[0].word == "apple"


# -- a real model ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> Any:
    torch = pytest.importorskip("torch")
    from jumok import load, watch

    model, tokens = load("minilm")

    def read(text: str) -> tuple[Any, Any]:
        with torch.inference_mode(), watch(model) as recording:
            model(torch.tensor([tokens.encode(text)]))
        return recording, tokens

    return read


def test_apple_takes_from_phone_what_orange_shares_with_an_and_and(minilm: Any) -> None:
    recording, tokens = minilm("apple phone")
    (query,) = sources(recording, tokens, "apple").queries
    assert query.ranked()[0].word == "phone"
    assert query.ranked()[0].share == pytest.approx(0.40, abs=0.01)
    recording, tokens = minilm("an apple and orange")
    (query,) = sources(recording, tokens, "apple").queries
    ranked = query.ranked()
    assert [source.word for source in ranked] == ["orange", "an", "and"]
    assert ranked[0].share == pytest.approx(0.18, abs=0.005)
    lead = query.lead()
    assert lead is not None
    assert 0 < lead < 0.01


def test_hangul_comes_out_as_the_words_of_the_text(minilm: Any) -> None:
    text = "나는 사과와 오렌지를 먹었다."
    recording, tokens = minilm(text)
    data = sources(recording, tokens, "사과와", text=text)
    assert [word.text for word in data.words[1:-1]] == ["나는", "사과와", "오렌지를", "먹었다", "."]
    assert len(data.queries[0].tokens) == 6  # ㅅㅏ ㄱㅘ ㅇㅘ
    assert data.queries[0].ranked()[0].word == "오렌지를"
    stem = sources(recording, tokens, "사과", text=text)  # found with its particle
    assert stem.queries == data.queries
    rebuilt = sources(recording, tokens, "사과와")
    assert [source.share for source in rebuilt.queries[0].sources] == pytest.approx(
        [source.share for source in data.queries[0].sources]
    )
