"""Which passage read which, against the whole weights of the definition."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken

from jumok import definition
from jumok.lens import segment_layout as module
from jumok.lens.attention_map import AttentionMap
from jumok.lens.call import AttentionCall
from jumok.lens.recording import Recording
from jumok.lens.segment_tables import segment_tables
from jumok.lens.segments import Segments, segments
from jumok.masks import Causal, Mask, Padding, Window
from jumok.tokens import Tokenizer
from small_tokenizers import byte_level

HEADS = 3


@dataclass(eq=False)
class Source:
    """A call with known norms, as a map asks for it."""

    made: AttentionCall
    norms: Any
    name: str = "attention"
    held_bytes: int = 0
    heads: tuple[int, ...] = tuple(range(HEADS))
    measured: None = None
    value_note: str = "a gate stands between the attention and its output projection"

    @property
    def has_value_norms(self) -> bool:
        return self.norms is not None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.made.shape

    def call(self) -> AttentionCall:
        return self.made

    def value_norms(self) -> Any:
        return self.norms


def recorded(
    ids: list[list[int]], masks: list[Mask | None], norms: bool = True
) -> tuple[Recording, list[Any], list[Any]]:
    """A recording, the weights of its layers in float64, and the norms."""
    batch, size = len(ids), len(ids[0])
    maps, weights, lengths = [], [], []
    for layer, mask in enumerate(masks):
        rng = np.random.default_rng(layer)
        q, k = (rng.normal(size=(batch, HEADS, size, 8)).astype(np.float32) for _ in "qk")
        length = rng.uniform(0.1, 3, (batch, HEADS, size)).astype(np.float32)
        visible = np.ones((batch, HEADS, size, size), bool)
        if mask is not None:
            visible &= mask.dense(size, size, q)
        found = definition.attention(
            q.astype(float), k.astype(float), k.astype(float), mask=visible
        )
        weights.append(found[1])
        lengths.append(length.astype(float))
        call = AttentionCall(q, k, None, mask, None, scale=8**-0.5)
        maps.append(AttentionMap(Source(call, length if norms else None)))
    recording = Recording("toy", maps)
    recording.ids = np.array(ids)
    return recording, weights, lengths


def tokenizer() -> Tokenizer:
    backend = byte_level()
    marks = ["<|im_start|>", "<|im_end|>"]
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return Tokenizer(backend)


TOKENS = tokenizer()
TEXT = "Cats.\n\nDogs ate.\n\nWho ate?"
IDS = TOKENS.encode(TEXT)
#       Cats.        blank        Dogs ate.     blank          Who ate?
PLACES = [range(5), range(5, 7), range(7, 16), range(16, 18), range(18, 26)]


def shares_of(
    weights: list[Any], norms: list[Any], readers: list[Any], groups: list[Any], batch: int = 0
) -> Any:
    """The definition: rows averaged, columns added, (S, C)."""
    total = np.zeros((len(readers), len(groups)))
    for w, n in zip(weights, norms, strict=True):
        brought = (w[batch] * n[batch][:, None]).sum(0)
        whole = brought.sum(-1, keepdims=True)
        share = brought / np.where(whole > 0, whole, 1)
        for s, rows in enumerate(readers):
            for c, columns in enumerate(groups):
                total[s, c] += share[list(rows)][:, list(columns)].sum(-1).mean() / len(weights)
    return total


def test_shares_of_a_gpt_are_those_of_the_definition() -> None:
    recording, weights, norms = recorded([IDS], [Causal(), Window(9)])
    found = segments(recording, TOKENS)
    readers = [range(1, 5), range(7, 16), range(18, 26)]
    groups = [*readers, [0], [5, 6, 16, 17]]
    expected = shares_of(weights, norms, readers, groups)
    np.testing.assert_allclose(found.share.total, expected, atol=1e-6)
    ones = [np.ones_like(n) for n in norms]
    np.testing.assert_allclose(
        found.raw.total, shares_of(weights, ones, readers, groups), atol=1e-6
    )
    evenly = [np.where(w > 0, 1.0, 0.0) for w in weights]
    np.testing.assert_allclose(found.even, shares_of(evenly, ones, readers, groups), atol=1e-6)
    np.testing.assert_allclose(found.share.total.sum(-1), 1, atol=1e-6)
    assert found.share.by_layer.shape == (2, 3, 5)
    np.testing.assert_allclose(found.share.by_layer.mean(0), found.share.total)
    assert [table.shape for table in found.raw.heads] == [(HEADS, 3, 5)] * 2
    assert (found.causal, found.measure, found.layers, found.tokens) == (True, "share", (0, 1), 26)
    assert [(one.name, one.text, one.tokens, one.count) for one in found.segments] == [
        ("Cats.", "Cats.", (0, 5), 4),
        ("Dogs ate.", "Dogs ate.", (7, 16), 9),
        ("Who ate?", "Who ate?", (18, 26), 8),
    ]
    assert [(one.kind, one.count) for one in found.apart] == [("first", 1), ("between", 4)]


def test_an_encoder_has_no_sink() -> None:
    recording, weights, norms = recorded([IDS], [None])
    found = segments(recording, TOKENS, "lines")
    readers = [range(5), range(7, 16), range(18, 26)]
    expected = shares_of(weights, norms, readers, [*readers, [5, 6, 16, 17]])
    np.testing.assert_allclose(found.share.total, expected, atol=1e-6)
    assert [one.kind for one in found.apart] == ["between"]
    assert not found.causal


def test_the_answer_is_read_at_the_positions_that_wrote_it() -> None:
    more = TOKENS.encode(" Dogs!")
    recording, weights, norms = recorded([IDS + more], [Causal()])
    found = segments(recording, TOKENS, text=TEXT, prompt=len(IDS))
    readers = [range(1, 5), range(7, 16), range(18, 26), range(25, 31)]
    groups = [*readers[:3], range(26, 32), [0], [5, 6, 16, 17]]
    expected = shares_of(weights, norms, readers, groups)
    np.testing.assert_allclose(found.share.total, expected, atol=1e-6)
    assert found.answered
    assert found.segments[-1].name == "answer"
    assert found.segments[-1].text == "Dogs!"
    assert found.text == TEXT + " Dogs!"
    without_text = segments(recording, TOKENS, prompt=len(IDS))
    np.testing.assert_allclose(without_text.share.total, found.share.total)


def began_at(recording: Recording, first: int, keys: int) -> Recording:
    """What is recorded of the last tokens, where a cache held the others or the last of them."""
    maps = []
    for found in recording:
        call, norms = found.call, found.value_norms()
        late = AttentionCall(
            call.q[:, :, first:], call.k[:, :, keys:], None, call.mask, None, scale=call.scale
        )
        maps.append(AttentionMap(Source(late, norms[..., keys:])))
    return Recording("toy", maps)


@pytest.mark.parametrize("masks", [[Causal()], [Window(6)], [Causal(), Window(6)]])
def test_a_recording_that_begins_in_the_middle(masks: list[Mask | None]) -> None:
    ids = IDS + TOKENS.encode(" Dogs!")
    whole, _, _ = recorded([ids], masks)
    expected = segments(whole, TOKENS, text=TEXT, prompt=len(IDS))
    first = len(IDS) - 1
    keys = first - 5 if masks == [Window(6)] else 0  # the cache has dropped those before
    late = began_at(whole, first, keys)
    found = segments(late, TOKENS, text=TEXT, prompt=len(IDS), ids=ids)
    for one, other in ((found.share, expected.share), (found.raw, expected.raw)):
        np.testing.assert_allclose(one.total[-1], other.total[-1], atol=1e-6)
    np.testing.assert_allclose(found.even[-1], expected.even[-1])
    assert not found.even[:2].any()  # nothing is known of what was read before
    assert found.segments == expected.segments


def test_a_recording_with_other_queries_than_the_last_of_the_text() -> None:
    whole, _, _ = recorded([IDS], [None])
    with pytest.raises(ValueError, match="its queries aren't the last of the text's 26 tokens"):
        segments(whole, TOKENS, ids=IDS)


def test_an_answer_that_ends_within_a_character() -> None:
    more = TOKENS.encode("한글")[:-1]
    recording, _, _ = recorded([IDS + more], [Causal()])
    assert segments(recording, TOKENS, prompt=len(IDS)).segments[-1].text == "한"


def test_special_tokens_of_the_answer_do_not_read() -> None:
    more = [*TOKENS.encode("ab"), TOKENS.backend.token_to_id("<end>")]
    recording, weights, norms = recorded([IDS + more], [Causal()])
    found = segments(recording, TOKENS, prompt=len(IDS))
    expected = shares_of(weights, norms, [range(25, 27)], [range(26, 28), [28]])
    assert found.apart[1].kind == "special"
    np.testing.assert_allclose(found.share.total[-1, [3, 5]], expected[0], atol=1e-6)


CHAT = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi\n\nyou<|im_end|>\n"


@pytest.mark.parametrize("text", [CHAT, None])
def test_turns_of_a_chat(text: str | None) -> None:
    ids = TOKENS.encode(CHAT)
    recording, _, _ = recorded([ids], [Causal()])
    found = segments(recording, TOKENS, "chat", text=text)
    assert [(one.name, one.text) for one in found.segments] == [
        ("system", "Be kind."),
        ("user", "Hi\n\nyou"),
    ]
    assert [(one.kind, one.count) for one in found.apart] == [
        ("first", 1),
        ("special", 3),
        ("between", len("system\n\nuser\n\n")),
    ]
    paragraphs = segments(recording, TOKENS, "paragraphs", text=text)
    assert [one.text for one in paragraphs.segments] == ["Be kind.", "Hi", "you"]


@pytest.mark.parametrize(
    ("how", "names", "tokens"),
    [
        ([0, 7, 26], ["tokens 0–6", "tokens 7–25"], [(0, 7), (7, 26)]),
        (["Dogs", "ate?"], ["Dogs", "ate?"], [(7, 11), (22, 26)]),
        ({"A": "Cats.", "B": "Who"}, ["A", "B"], [(0, 5), (18, 21)]),
        ([{"name": "A", "start": 7, "end": 16}], ["A"], [(7, 16)]),
        (["Cats.", "", "Who"], ["Cats.", "", "Who"], [(0, 5), (5, 5), (18, 21)]),
    ],
)
def test_passages_as_named(how: Any, names: list[str], tokens: list[tuple[int, int]]) -> None:
    recording, _, _ = recorded([IDS], [Causal()])
    found = segments(recording, TOKENS, how)
    assert [one.name for one in found.segments] == names
    assert [one.tokens for one in found.segments] == tokens
    sums = found.share.total.sum(-1)
    assert np.allclose(sums, [1.0 if one.count else 0.0 for one in found.segments], atol=1e-6)


def test_a_token_belongs_to_the_passage_of_its_first_visible_character() -> None:
    tokens = Tokenizer(byte_level([("Ġ", "b")]))
    ids = tokens.encode("ab b a")
    assert tokens.labels(ids) == ["a", "b", "␣b", "␣", "a"]
    recording, _, _ = recorded([ids], [None])
    found = segments(recording, tokens, ["ab ", "b ", "a"])
    assert [one.tokens for one in found.segments] == [(0, 2), (2, 4), (4, 5)]


def test_a_passage_that_reads_nothing_is_all_zero() -> None:
    recording, _, _ = recorded([TOKENS.encode("a b")], [Causal()])
    found = segments(recording, TOKENS, ["a", "b"])
    assert found.segments[0].count == 0  # its only token is the first, which stands apart
    assert found.share.total[0].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert found.ranked(0) == []
    assert found.parts(0)[0].times is None


def test_padding_on_the_left() -> None:
    pad = [TOKENS.backend.token_to_id("<end>")] * 3
    visible = np.array([[False] * 3 + [True] * 26, [True] * 29])
    other = TOKENS.encode("x" * 29)
    recording, weights, norms = recorded([pad + IDS, other], [Causal() & Padding(visible)])
    found = segments(recording, TOKENS, text=TEXT)
    readers = [range(4, 8), range(10, 19), range(21, 29)]
    groups = [*readers, [3], [0, 1, 2], [8, 9, 19, 20]]
    expected = shares_of(weights, norms, readers, groups)
    np.testing.assert_allclose(found.share.total, expected, atol=1e-6)
    assert [one.kind for one in found.apart] == ["first", "special", "between"]


def test_layers_and_raw_weights() -> None:
    recording, weights, norms = recorded([IDS], [Causal(), Causal()])
    readers = [range(1, 5), range(7, 16), range(18, 26)]
    groups = [*readers, [0], [5, 6, 16, 17]]
    found = segments(recording, TOKENS, layers=[1], raw=True)
    ones = [np.ones_like(norms[1])]
    expected = shares_of(weights[1:], ones, readers, groups)
    np.testing.assert_allclose(found.share.total, expected, atol=1e-6)
    assert (found.layers, found.measure) == ((1,), "raw")
    done: list[tuple[int, int]] = []
    segments(recording, TOKENS, progress=lambda *now: done.append(now))
    assert done == [(1, 2), (2, 2)]


def test_without_an_output_projection_raw_weights_are_shown() -> None:
    recording, _, _ = recorded([IDS], [Causal()], norms=False)
    found = segments(recording, TOKENS)
    assert found.measure == "raw"
    assert found.note.startswith("plain attention weights: a gate stands between")
    assert found.share is found.raw


def test_the_heads_that_look_most() -> None:
    recording, weights, _ = recorded([IDS], [Causal(), Causal()])
    found = segments(recording, TOKENS)
    looks = [
        (float(w[0, h][18:26, 7:16].sum(-1).mean()), layer, h)
        for layer, w in enumerate(weights)
        for h in range(HEADS)
    ]
    best = [(layer, head) for _, layer, head in sorted(looks, reverse=True)[:3]]
    assert [(head.layer, head.head) for head in found.top_heads(-1, 1)] == best
    ranked = {part.position: part for part in found.ranked()}
    assert [(head.layer, head.head) for head in ranked[1].heads] == best
    shares = [part.share for part in found.ranked()]
    assert shares == sorted(shares, reverse=True)
    with pytest.raises(ValueError, match="no segment 3: they count from 0 to 2"):
        found.top_heads(0, 3)


def test_heads_have_their_numbers_in_the_model() -> None:
    recording, _, _ = recorded([IDS], [Causal()])
    recording[0]._source.heads = (4, 5, 9)  # type: ignore[misc]
    found = segments(recording, TOKENS)
    assert {head.head for head in found.top_heads(-1, 1)} == {4, 5, 9}
    assert segment_tables(recording, [0, 9], heads=[9]).heads[0].shape == (1, 1, 1)


def test_the_object_is_plain_json() -> None:
    recording, _, _ = recorded([IDS + TOKENS.encode("!")], [Causal(), Causal()])
    found = segments(recording, TOKENS, prompt=len(IDS))
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert read["segments"][1] == {
        "name": "Dogs ate.", "text": "Dogs ate.", "tokens": [7, 16], "count": 9,
    }  # fmt: skip
    assert np.shape(read["share"]) == np.shape(read["raw"]) == np.shape(read["even"]) == (4, 6)
    assert np.shape(read["by_layer"]) == (2, 6)
    assert [part["kind"] for part in read["last"]] == [
        "segment", "segment", "segment", "itself", "first", "between",
    ]  # fmt: skip
    assert sum(part["share"] for part in read["last"]) == pytest.approx(1)
    assert read["last"][1]["heads"][0].keys() == {"layer", "head", "weight"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "words"}, "segments 'words': choose paragraphs"),
        ({"how": "chat"}, "no turn of a chat"),
        ({"how": [0, 99]}, "bounds rise from 0 or more to at most 26"),
        ({"how": [3, 3]}, "bounds rise"),
        ({"how": ["birds"]}, "isn't in the text"),
        ({"layers": 9}, "no layer 9"),
        ({"batch": 4}, "no text 4"),
        ({"prompt": 26}, "prompt=26: the recording has 26 tokens"),
        ({"prompt": 0}, "prompt=0"),
        ({"text": "other"}, "gives other token ids"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    recording, _, _ = recorded([IDS], [Causal()])
    with pytest.raises(ValueError, match=message):
        segments(recording, TOKENS, **options)


def test_too_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SEGMENTS", 2)
    recording, _, _ = recorded([IDS], [Causal()])
    with pytest.raises(ValueError, match="has 3 segments, at most 2 can be shown; try paragraphs"):
        segments(recording, TOKENS)


# -- tables by bounds ------------------------------------------------------------------------


def test_tables_of_heads_equal_those_of_their_maps() -> None:
    recording, weights, norms = recorded([IDS], [Causal(), None])
    bounds = [0, 7, 18, 26]
    tables = recording.segments(bounds)
    for layer in (0, 1):
        expected = recording[layer].segments(bounds)[0]
        np.testing.assert_allclose(tables.heads[layer], expected, atol=1e-6)
    assert tables.by_layer.shape == (2, 3, 3)
    np.testing.assert_allclose(tables.total.sum(-1), 1, atol=1e-5)
    inner = segment_tables(recording, [7, 18], layers=[0], heads=[2])
    assert inner.layers == (0,)
    expected = weights[0][0, 2:3, 7:18, 7:18].sum(-1).mean(-1)
    np.testing.assert_allclose(inner.heads[0][:, 0, 0], expected, atol=1e-6)
    assert inner.head_numbers == ((2,),)
    shares = segment_tables(recording, [7, 18], norm_weighted=True)
    part = shares_of(weights, norms, [range(7, 18)], [range(7, 18)])
    np.testing.assert_allclose(shares.total, part, atol=1e-6)
    np.testing.assert_allclose(sum(shares.heads[0]), shares.by_layer[0], atol=1e-6)


def test_tables_that_can_not_be_had() -> None:
    recording, _, _ = recorded([IDS], [Causal()], norms=False)
    with pytest.raises(ValueError, match="bounds rise"):
        segment_tables(recording, [0, 99])
    with pytest.raises(ValueError, match="no head 3 in layer 0: its heads are 0, 1, 2"):
        segment_tables(recording, [0, 9], heads=[3])
    with pytest.raises(ValueError, match="attention has no norm-weighted"):
        segment_tables(recording, [0, 9], norm_weighted=True)
    with pytest.raises(ValueError, match="no self-attention map"):
        segment_tables(Recording("empty"), [0, 9])


def test_what_is_made_is_data() -> None:
    recording, _, _ = recorded([IDS], [Causal()])
    assert isinstance(segments(recording, TOKENS), Segments)
