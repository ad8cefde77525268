"""Every answer of the page against the weights, and against the definition in float64."""

import json

import numpy as np
import pytest
import torch

import jumok
import known_pages
from jumok.lens.sources import sources
from jumok.view.answers import Answer, Unanswered
from jumok.view.questions import QUESTIONS, Questions
from jumok.view.stopping import Stop, Stopped


@pytest.fixture(scope="module")
def recording():
    return known_pages.gpt(model=known_pages.decoder(init_std=0.4))


@pytest.fixture(scope="module")
def questions(recording):
    return Questions([recording])


def ask(questions, name, **parameters):
    return questions.answer(name, {key: str(value) for key, value in parameters.items()})


def unpacked(data):
    """An answer from its bytes, as the browser reads it."""
    length = int.from_bytes(data[:4], "little")
    head, start, arrays = json.loads(data[4 : 4 + length]), 4 + length, {}
    assert start % 4 == 0
    for one in head["arrays"]:
        kind = {"float32": "<f4", "int32": "<i4"}[one["type"]]
        size = int(np.prod(one["shape"]))
        arrays[one["name"]] = np.frombuffer(data, kind, size, start).reshape(one["shape"])
        start += 4 * size
    assert start == len(data)
    return Answer(head["fields"], arrays)


def definition(found, batch=0):
    """Weights, scores and output of a map in float64, from its q, k and v."""
    call = found.call
    q, k, v = (torch.as_tensor(np.asarray(one)).double() for one in (call.q, call.k, call.v))
    out, weights, _ = jumok.attention(q, k, v, causal=found.is_causal, scale=call.scale)
    return weights[batch].numpy(), out[batch].numpy(), q[batch].numpy(), k[batch].numpy()


# -- about and labels -------------------------------------------------------------------------


def test_about_says_what_there_is(questions, recording):
    about = ask(questions, "about").fields
    (one,) = about["recordings"]
    size = recording.ids.shape[1]
    assert about["compared"] is None
    assert one["texts"] == [{"tokens": size, "words": 60, "batch": 1, "labels": "text"}]
    assert one["stacks"][0]["maps"] == [0, 1, 2]
    assert one["passages"] == ["paragraphs", "lines", "even"]
    found = one["maps"][1]
    assert (found["name"], found["heads"], found["queries"]) == ("layers.1.attention", 4, size)
    assert (found["kind"], found["causal"], found["levels"]) == ("self", True, 1)
    assert found["has_values"]
    assert found["has_norms"]
    json.dumps(about, allow_nan=False)


@pytest.mark.parametrize("count", [8192, 7, 50])
def test_labels_give_the_whole_text_in_pieces(questions, recording, count):
    size = recording.ids.shape[1]
    labels, text, tokens, special = [], "", [], []
    for start in range(0, size, count):
        part = ask(questions, "labels", start=start, count=count).fields
        assert part["first_word"] == len(tokens)
        labels += part["labels"]
        tokens += part["words"]["tokens"]
        special += part["special"]
        hidden = [number - part["first_word"] for number in part["words"]["special"]]
        words = zip(part["words"]["before"], part["words"]["text"], strict=True)
        text += "".join(a + b for at, (a, b) in enumerate(words) if at not in hidden)
    assert labels == list(recording.texts["ids"][0].reading.labels)
    assert text == known_pages.TEXT
    assert sorted(token for word in tokens for token in word) == list(range(size))
    assert special == [size - 1]


def test_tokens_that_nobody_names(recording):
    bare = jumok.Recording("Decoder", list(recording))
    bare.ids = recording.ids
    part = ask(Questions([bare]), "labels", start=3, count=2).fields
    assert part["labels"] == [f"‹{number}›" for number in recording.ids[0, 3:5]]
    assert part["words"]["tokens"] == [[3], [4]]
    bare.ids = None
    questions = Questions([bare])
    part = ask(questions, "labels", start=3, count=2).fields
    assert part["labels"] == ["3", "4"]
    assert ask(questions, "about").fields["recordings"][0]["texts"][0]["labels"] == "positions"
    columns = ask(questions, "heads", map=0, measures="all").fields["columns"]
    assert "induction" not in columns
    assert "most_read_token" not in columns
    assert ask(questions, "reads", tokens=5).arrays["shares"].sum() == pytest.approx(1)


# -- one head ---------------------------------------------------------------------------------


def test_weights_rows_and_columns_are_exact(questions, recording):
    weights = definition(recording[1])[0][2]
    size = len(weights)
    tile = ask(questions, "tile", map=1, head=2, level=0, x=0, y=0)
    np.testing.assert_allclose(tile.arrays["values"], weights, atol=1e-5)
    for query in (0, 5, size - 1):
        row = ask(questions, "row", map=1, head=2, query=query)
        np.testing.assert_allclose(row.arrays["weights"], weights[query], atol=1e-5)
        order = np.argsort(-weights[query, : query + 1], kind="stable")
        ranks = np.zeros(size, int)
        ranks[order] = np.arange(1, query + 2)
        np.testing.assert_array_equal(row.arrays["ranks"], ranks)
        own = weights[query, : query + 1]
        entropy = -(own * np.log(own)).sum()
        assert row.fields["sum"] == pytest.approx(1, abs=1e-5)
        assert row.fields["entropy"] == pytest.approx(entropy, abs=1e-4)
        assert row.fields["visible"] == query + 1
        for key in {0, query // 2, query}:
            one = ask(questions, "weight", map=1, head=2, query=query, key=key).fields
            assert one["weight"] == pytest.approx(weights[query, key], abs=1e-5)
            assert one["rank"] == ranks[key]
            assert one["visible"] == query + 1
    hidden = ask(questions, "weight", map=1, head=2, query=3, key=9).fields
    assert hidden == {"weight": 0.0, "rank": None, "visible": 4, "score": None}
    column = ask(questions, "column", map=1, head=2, key=40)
    np.testing.assert_allclose(column.arrays["weights"], weights[:, 40], atol=1e-5)
    assert column.fields["received"] == pytest.approx(weights[:, 40].sum(), abs=1e-4)
    assert (column.arrays["ranks"][:40] == 0).all()
    assert column.arrays["ranks"][weights[:, 40].argmax()] == 1


def test_steps_are_the_textbook(questions, recording):
    found, head, query = recording[1], 3, 30
    weights, output, q, k = definition(found)
    answer = ask(questions, "steps", map=1, head=head, query=query, count=4, keys="2,7")
    fields, keys = answer.fields, answer.fields["keys"]
    largest = set(np.argsort(-weights[head, query])[:4].tolist())
    assert set(keys) == largest | {2, 7, query, query + 1}
    product = k[head // 2] @ q[head, query]
    np.testing.assert_allclose(fields["product"], product[keys], atol=1e-9)
    np.testing.assert_allclose(fields["scaled"], product[keys] * found.call.scale, atol=1e-9)
    seen = [key <= query for key in keys]
    assert fields["visible"] == seen
    assert fields["score"][-1] is None
    np.testing.assert_allclose(fields["weight"], weights[head, query, keys], atol=1e-12)
    exponential = np.array(fields["exponential"], float)
    np.testing.assert_allclose(exponential / fields["total"], fields["weight"], atol=1e-12)
    assert fields["shown_weight"] == pytest.approx(weights[head, query, keys].sum())
    assert fields["visible_keys"] == query + 1
    assert fields["rank"][-1] is None
    np.testing.assert_allclose(answer.arrays["output"], output[head, query], atol=1e-6)
    v = np.asarray(found.call.v[0, head // 2], np.float64)
    partial = weights[head, query, keys] @ v[keys]
    np.testing.assert_allclose(answer.arrays["partial"], partial, atol=1e-6)
    np.testing.assert_allclose(answer.arrays["q"], q[head, query], atol=1e-6)
    np.testing.assert_allclose(answer.arrays["k"], k[head // 2][keys], atol=1e-6)


def test_steps_without_values():
    recording = known_pages.gpt(keep="qk")
    answer = ask(Questions([recording]), "steps", map=0, head=0, query=3)
    assert not answer.fields["has_values"]
    assert set(answer.arrays) == {"q", "k"}


# -- words ------------------------------------------------------------------------------------


def word_shares(recording, norm):
    """(tokens, tokens) by all layers, from the definition and the recorded norms."""
    layers = []
    for found in recording:
        weights = definition(found)[0]
        if norm:
            weights = weights * np.asarray(found.value_norms()[0], np.float64)[:, None]
            weights = weights.sum(0)
            weights /= weights.sum(-1, keepdims=True)
        layers.append(weights if norm else weights.mean(0))
    return np.stack(layers)


@pytest.mark.parametrize("measure", ["raw", "norm"])
def test_what_a_word_reads_and_who_reads_it(questions, recording, measure):
    layers = word_shares(recording, measure == "norm")
    tokens = [33, 34]
    word = {"tokens": "33,34", "measure": measure}
    for more, shares in (({}, layers.mean(0)), ({"map": 2}, layers[2])):
        reads = ask(questions, "reads", **word, **more)
        np.testing.assert_allclose(reads.arrays["shares"], shares[tokens].mean(0), atol=1e-6)
        assert reads.fields["measure"] == measure
        assert reads.fields["first"] == 0
        assert reads.fields["hidden"] == [[35, len(shares)]]
        read_by = ask(questions, "reads", **word, **more, side="read_by")
        np.testing.assert_allclose(read_by.arrays["shares"], shares[:, tokens].sum(1), atol=1e-6)
        assert read_by.fields["hidden"] == [[0, 33]]
    weights = np.stack([definition(found)[0] for found in recording])[:, :, tokens].mean(2)
    weights[..., [0, *tokens]] = 0
    strongest = ask(questions, "reads", **word).fields["heads"][0]
    at = np.unravel_index(weights.argmax(), weights.shape)
    assert (strongest["map"], strongest["head"], strongest["token"]) == at
    assert strongest["weight"] == pytest.approx(weights.max(), abs=1e-6)


@pytest.mark.parametrize("side", ["reads", "read_by"])
@pytest.mark.parametrize("measure", ["raw", "norm"])
def test_one_head_alone(questions, recording, side, measure):
    shares = definition(recording[1])[0][2]
    if measure == "norm":
        shares = shares * np.asarray(recording[1].value_norms()[0, 2], np.float64)
        shares /= shares.sum(-1, keepdims=True)
    got = ask(questions, "reads", tokens=20, map=1, head=2, side=side, measure=measure)
    expected = shares[20] if side == "reads" else shares[:, 20]
    np.testing.assert_allclose(got.arrays["shares"], expected, atol=1e-6)


def test_shares_are_those_of_look(questions, recording):
    data = sources(recording, known_pages.tokenizer(), word="river", text=known_pages.TEXT)
    query = data.queries[0]
    got = ask(questions, "reads", tokens=",".join(map(str, query.tokens)), measure="norm")
    for source in query.sources:
        share = got.arrays["shares"][list(source.tokens)].sum()
        assert share == pytest.approx(source.share, abs=1e-6)


@pytest.mark.parametrize("measure", ["raw", "norm"])
def test_flow_is_rollout(questions, recording, measure):
    answer = ask(questions, "flow", tokens="60,61", residual=0.4, measure=measure, edges=300)
    expected = jumok.rollout(recording, [60, 61], residual=0.4, norm_weighted=measure == "norm")
    layers = answer.arrays["layers"]
    np.testing.assert_allclose(layers[:-1], expected.layers.numpy().mean(1), atol=1e-6)
    assert layers[-1].tolist() == [0.5 if place in (60, 61) else 0 for place in range(132)]
    shares = word_shares(recording, measure == "norm")
    edges, amounts = answer.arrays["edges"], answer.arrays["amounts"]
    assert len(edges) == len(amounts) > 100
    for (layer, above, below), amount in zip(edges[::7].tolist(), amounts[::7], strict=True):
        passed = 0.6 * shares[layer, above, below] + 0.4 * (above == below)
        assert amount == pytest.approx(layers[layer + 1, above] * passed, abs=1e-6)
    for layer, kept in enumerate(answer.fields["kept"]):
        assert kept == pytest.approx(amounts[edges[:, 0] == layer].sum(), abs=1e-5)


@pytest.mark.parametrize("measure", ["raw", "norm"])
def test_flow_goes_on_from_where_it_was(recording, measure):
    parameters = {"tokens": 60, "measure": measure}
    whole = ask(Questions([recording]), "flow", **parameters)
    stepwise = Questions([recording])
    for lowest in (2, 1, 0):
        part = ask(stepwise, "flow", **parameters, lowest=lowest)
        assert part.fields["lowest"] == lowest
        assert not part.arrays["layers"][:lowest].any()
        known = whole.arrays["layers"][lowest:]
        np.testing.assert_array_equal(part.arrays["layers"][lowest:], known)
        there = whole.arrays["edges"][:, 0] >= lowest
        np.testing.assert_array_equal(part.arrays["edges"], whole.arrays["edges"][there])
        np.testing.assert_array_equal(part.arrays["amounts"], whole.arrays["amounts"][there])
        assert part.fields["kept"][lowest:] == whole.fields["kept"][lowest:]


# -- tables -----------------------------------------------------------------------------------


def test_heads_are_the_report(questions, recording):
    tokens = known_pages.tokenizer()
    report = jumok.report(recording, tokens, ["induction", "special", "window"])
    for number in range(3):
        columns = ask(questions, "heads", map=number, measures="all").fields["columns"]
        assert {"induction", "special", "positional_offset"} < set(columns)
        for name in set(report.columns) & set(columns):
            expected = [row[name] for row in report if row["layer"] == number]
            assert columns[name] == pytest.approx(expected) if name != "most_read_token" else True
        labels = [row["most_read_token"] for row in report if row["layer"] == number]
        assert columns["most_read_token"] == labels


@pytest.mark.parametrize("how", ["paragraphs", "lines"])
def test_segments_are_those_of_look(questions, recording, how):
    expected = jumok.segments(recording, known_pages.tokenizer(), how, text=known_pages.TEXT)
    places = ask(questions, "passages", how=how).fields
    assert [one["name"] for one in places["segments"]] == [one.name for one in expected.segments]
    assert [one["count"] for one in places["segments"]] == [one.count for one in expected.segments]
    assert [one["kind"] for one in places["apart"]] == [one.kind for one in expected.apart]
    for measure, tables in (("norm", expected.share), ("raw", expected.raw)):
        whole = ask(questions, "segments", how=how, measure=measure)
        assert whole.fields["measure"] == measure
        np.testing.assert_allclose(whole.arrays["shares"], tables.total, atol=1e-6)
        np.testing.assert_allclose(whole.arrays["even"], expected.even, atol=1e-6)
        layer = ask(questions, "segments", how=how, measure=measure, map=1)
        np.testing.assert_allclose(layer.arrays["shares"], tables.by_layer[1], atol=1e-6)
        head = ask(questions, "segments", how=how, measure=measure, map=1, head=2)
        np.testing.assert_allclose(head.arrays["shares"], tables.heads[1][2], atol=1e-6)


def test_an_answer_is_read_for_by_the_positions_that_wrote_it():
    recording = known_pages.generated()
    expected = jumok.segments(recording, known_pages.tokenizer(), "paragraphs", prompt=131)
    got = ask(Questions([recording]), "segments", measure="norm")
    assert got.fields["segments"][-1]["name"] == "answer"
    np.testing.assert_allclose(got.arrays["shares"], expected.share.total, atol=1e-6)


def test_even_parts_of_a_text_without_words(recording):
    bare = jumok.Recording("Decoder", list(recording))
    got = ask(Questions([bare]), "segments")
    assert len(got.fields["segments"]) == 16
    tables = recording.segments([one["first"] for one in got.fields["segments"]] + [132])
    # The first token stands apart, so the first part reads without it.
    np.testing.assert_allclose(got.arrays["shares"][1:, 1:16], tables.total[1:, 1:], atol=1e-6)


def test_the_grid_is_every_head_small(questions, recording):
    for how in ("max", "mean"):
        grid = ask(questions, "grid", map=0, size=16, how=how)
        cell, weights = grid.fields["cell"], definition(recording[0])[0]
        assert cell == 16
        for head, row, column in ((0, 0, 0), (3, 8, 2), (1, 5, 5)):
            part = weights[head, row * 16 : row * 16 + 16, column * 16 : column * 16 + 16]
            value = grid.arrays["values"][head, row, column]
            assert value == pytest.approx(getattr(part, how)(), abs=1e-6)


# -- other models -----------------------------------------------------------------------------


def test_an_encoder_decoder_has_two_texts():
    recording = known_pages.translated()
    questions = Questions([recording])
    (one,) = ask(questions, "about").fields["recordings"]
    assert [text["tokens"] for text in one["texts"]] == [3, 9]
    assert [(stack["name"], stack["text"]) for stack in one["stacks"]] == [
        ("encoder.layers", 0),
        ("decoder.layers", 1),
    ]
    cross = [number for number, m in enumerate(one["maps"]) if m["kind"] == "cross"]
    assert len(cross) == 2
    for number in cross:
        described = one["maps"][number]
        assert (described["query_text"], described["key_text"]) == (1, 0)
        assert described["stack"] is None
        weights = definition(recording[number])[0]
        reads = ask(questions, "reads", map=number, tokens=5)
        np.testing.assert_allclose(reads.arrays["shares"], weights[:, 5].mean(0), atol=1e-6)
        assert reads.fields["first"] is None
        read_by = ask(questions, "reads", map=number, tokens=2, side="read_by")
        np.testing.assert_allclose(read_by.arrays["shares"], weights[..., 2].mean(0), atol=1e-6)
        steps = ask(questions, "steps", map=number, head=1, query=4)
        assert steps.fields["own_key"] is None
    flow = ask(questions, "flow", stack=1, tokens=8)
    assert flow.arrays["layers"].shape == (3, 9)


def test_a_cross_attention_is_known_by_name_where_both_texts_are_as_long():
    tokens = known_pages.tokenizer()
    torch.manual_seed(1)
    config = jumok.EncoderDecoderConfig.vaswani(300, 32, 1, 4, 64, 0.0, bos_id=261)
    model = jumok.EncoderDecoder(config).eval()
    ids = torch.tensor([tokens.encode("the bank")])
    with torch.no_grad(), jumok.watch(model) as recording:
        model(ids, ids + 1)
    (one,) = ask(Questions([recording]), "about").fields["recordings"]
    places = [(m["kind"], m["query_text"], m["key_text"]) for m in one["maps"]]
    assert places == [("self", 0, 0), ("self", 1, 1), ("cross", 1, 0)]


def test_a_padded_batch():
    tokens, model = known_pages.tokenizer(), known_pages.decoder(init_std=0.4)
    ids = torch.tensor([tokens.encode("the bank"), [0, 0, 66]])
    mask = torch.tensor([[1, 1, 1], [0, 0, 1]])
    with torch.no_grad(), jumok.watch(model) as recording:
        model(ids, mask=mask)
    recording.label(tokens)
    questions = Questions([recording])
    assert ask(questions, "labels", batch=1).fields["labels"][2] == tokens.labels([66])[0]
    reads = ask(questions, "reads", batch=1, tokens=2)
    np.testing.assert_allclose(reads.arrays["shares"], [0, 0, 1], atol=1e-6)
    assert reads.fields["first"] == 2
    assert reads.fields["hidden"] == [[0, 2]]


def test_a_recording_that_begins_in_the_middle():
    tokens, model = known_pages.tokenizer(), known_pages.decoder(init_std=0.4)
    ids = torch.tensor([tokens.encode("the bank raised its rates")])
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, :5], cache=cache)
        with jumok.watch(model) as recording:
            model(ids[:, 5:], cache=cache)
    recording.ids = ids.numpy()
    recording.label(tokens)
    questions = Questions([recording])
    described = ask(questions, "about").fields["recordings"][0]["maps"][0]
    assert (described["first_query"], described["first_key"]) == (5, 0)
    weights = definition(recording[0])[0]
    reads = ask(questions, "reads", map=0, tokens=9)
    np.testing.assert_allclose(reads.arrays["shares"], weights[:, 4].mean(0), atol=1e-6)
    assert ask(questions, "steps", map=0, head=0, query=4).fields["own_key"] == 9
    with pytest.raises(Unanswered, match="middle of its text"):
        ask(questions, "flow", tokens=9)
    with pytest.raises(Unanswered, match="among 5 to"):
        ask(questions, "reads", tokens=2)


def test_two_recordings_are_compared():
    model = known_pages.decoder(init_std=0.4)
    one, other = (known_pages.gpt(text, model=model) for text in ("a bank.", "a river bank."))
    questions = Questions([one, other], ["one", "other"])
    compared = ask(questions, "about").fields["compared"]
    assert compared == {"same_model": True, "same_tokens": False, "same_shape": False}
    labels = [ask(questions, "labels", recording=which).fields["labels"] for which in (0, 1)]
    blocks = ask(questions, "aligned").fields["blocks"]
    for first, second, count in blocks:
        assert labels[0][first : first + count] == labels[1][second : second + count]
    assert sum(count for _, _, count in blocks) == len(labels[0])
    same = Questions([one, known_pages.gpt("a bank.", model=known_pages.decoder())])
    assert ask(same, "about").fields["compared"] == {
        "same_model": True, "same_tokens": True, "same_shape": True
    }  # fmt: skip
    weights = [np.asarray(definition(found)[0]) for found in (one[2], other[2])]
    for which, expected in enumerate(weights):
        row = ask(questions, "row", recording=which, map=2, head=1, query=2)
        np.testing.assert_allclose(row.arrays["weights"], expected[1, 2], atol=1e-5)


# -- a file, without torch --------------------------------------------------------------------


def test_a_saved_recording_answers_alike(tmp_path, questions, recording):
    path = tmp_path / "run.safetensors"
    recording.save(path)
    opened = Questions([jumok.open(path)], files=[path])
    for name, parameters in {
        "labels": {},
        "grid": {"map": 1},
        "tile": {"map": 1, "head": 2, "level": 0, "x": 0, "y": 0},
        "row": {"map": 1, "head": 2, "query": 50},
        "column": {"map": 1, "head": 2, "key": 50},
        "weight": {"map": 1, "head": 2, "query": 50, "key": 8},
        "steps": {"map": 1, "head": 2, "query": 50},
        "reads": {"tokens": "33,34", "measure": "norm", "side": "read_by"},
        "flow": {"tokens": 40, "measure": "norm"},
        "heads": {"map": 1, "measures": "all"},
        "passages": {},
        "segments": {"measure": "norm"},
    }.items():
        live, saved = ask(questions, name, **parameters), ask(opened, name, **parameters)
        assert live.fields.keys() == saved.fields.keys()
        if name in ("labels", "passages"):
            assert live.fields == saved.fields
        for array in live.arrays:
            np.testing.assert_allclose(saved.arrays[array], live.arrays[array], atol=1e-5)


def test_questions_never_import_torch(tmp_path, recording):
    import subprocess
    import sys

    path = tmp_path / "run.safetensors"
    recording.save(path)
    code = f"""
import sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torch", "tokenizers"):
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, NoTorch())
import jumok
from jumok.view.questions import Questions
q = Questions([jumok.open({str(path)!r})])
for name, more in (("about", {{}}), ("labels", {{}}), ("grid", {{"map": "0"}}),
                   ("segments", {{"measure": "norm"}}), ("flow", {{"tokens": "3"}}),
                   ("heads", {{"map": "0", "measures": "all"}})):
    q.answer(name, more).to_bytes()
print(q.answer("labels").fields["labels"][3])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "␣bank"


# -- wrong questions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("nothing", {}, "there is no question 'nothing'"),
        ("about", {"map": 1}, "it takes none"),
        ("tile", {}, "map is missing: a number from 0 to 2"),
        ("tile", {"map": 3}, "map='3'"),
        ("tile", {"map": -1}, "map='-1'"),
        ("tile", {"map": "1e3"}, "a number from 0 to 2"),
        ("tile", {"map": "٣"}, "a number from 0 to 2"),
        ("tile", {"map": 0, "head": 4, "level": 0, "x": 0, "y": 0}, "a number from 0 to 3"),
        ("tile", {"map": 0, "head": 0, "level": 1, "x": 0, "y": 0}, "a number from 0 to 0"),
        ("tile", {"map": 0, "head": 0, "level": 0, "x": 1, "y": 0}, "x='1'"),
        ("tile", {"map": 0, "head": 0, "level": 0, "x": 0, "y": 0, "how": "min"}, "max, mean"),
        ("grid", {"map": 0, "size": 65}, "a number from 1 to 64"),
        ("grid", {"map": 0, "size": 0}, "a number from 1 to 64"),
        ("row", {"map": 0, "head": 0, "query": 132}, "a number from 0 to 131"),
        ("row", {"map": 0, "head": 0, "query": "9" * 5000}, "a number from 0 to 131"),
        ("reads", {}, "tokens: give the word's"),
        ("reads", {"tokens": "1,1"}, "different numbers"),
        ("reads", {"tokens": "1,x"}, "different numbers"),
        ("reads", {"tokens": "1", "head": 2}, "head goes with map"),
        ("reads", {"tokens": "1", "batch": 1}, "a number from 0 to 0"),
        ("labels", {"text": 1}, "one of the texts"),
        ("labels", {"recording": 1}, "a number from 0 to 0"),
        ("flow", {"tokens": "1", "residual": "nan"}, "a number from 0 to 1"),
        ("flow", {"tokens": "1", "residual": "2"}, "a number from 0 to 1"),
        ("flow", {"tokens": "1", "residual": "٠"}, "a number from 0 to 1"),
        ("flow", {"tokens": "1", "residual": "0_1"}, "a number from 0 to 1"),
        ("flow", {"tokens": "1", "lowest": "3"}, "a layer to end before"),
        ("flow", {"tokens": "1", "edges": "2001"}, "a number from 0 to 2000"),
        ("steps", {"map": 0, "head": 0, "query": 1, "keys": "500"}, "different numbers"),
        ("segments", {"how": "chat"}, "choose paragraphs, lines, even"),
        ("segments", {"map": 0, "head": 9}, "a number from 0 to 3"),
        ("heads", {"map": 0, "measures": "\x1b[31m"}, "choose default, all"),
        ("aligned", {}, "one recording"),
        ("labels", {"../../etc/passwd": "1"}, "there is no parameter"),
    ],
)
def test_a_wrong_question_says_what_is_possible(questions, name, parameters, said):
    with pytest.raises(Unanswered) as caught:
        ask(questions, name, **parameters)
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)
    expected = {"nothing": "unknown", "aligned": "unable"}.get(name, "question")
    assert caught.value.code == expected


def test_no_question_waits_for_one_that_takes_longer(questions):
    fine = {"map": "1", "head": "0", "level": "0", "x": "0", "y": "0"}
    assert questions.pace("weight", {"map": "1"}) == "at once"
    assert questions.pace("reads", {"tokens": "1"}) == "at once"
    assert questions.pace("tile", fine) == "soon"
    assert questions.pace("tile", fine | {"level": "7", "draft": "1"}) == "soon"
    assert questions.pace("tile", fine | {"level": "7"}) == "slow"
    assert questions.pace("tile", fine | {"scaled": "1"}) == "slow"
    assert questions.pace("reads", {"tokens": "1", "side": "read_by", "measure": "norm"}) == "slow"
    assert questions.pace("heads", {"map": "0"}) == "slow"
    assert questions.pace("tile", {"map": "x"}) == "at once"  # to say that it is wrong
    assert questions.pace("nothing", {}) == "at once"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("grid", {"map": 0, "size": 9}),
        ("heads", {"map": 2}),
        ("flow", {"tokens": 50, "residual": 0.3}),
        ("flow", {"tokens": 50, "residual": 0.3, "measure": "norm"}),
        ("segments", {"how": "even"}),
        ("reads", {"tokens": 50, "side": "read_by", "measure": "norm"}),
    ],
)
def test_work_ends_when_the_asker_leaves(recording, name, parameters):
    class Later(Stop):
        """Leaves while the answer is being computed."""

        asked = 0

        def is_set(self):
            self.asked += 1
            return self.asked > 1

    questions = Questions([recording])
    with pytest.raises(Stopped):
        questions.answer(name, {key: str(value) for key, value in parameters.items()}, Later())
    ask(questions, name, **parameters)  # another one gets it


def test_every_answer_goes_over_the_wire_and_back(questions):
    for name, parameters in {
        "row": {"map": 1, "head": 2, "query": 5},
        "flow": {"tokens": 4},
        "segments": {},
    }.items():
        answer = ask(questions, name, **parameters)
        again = unpacked(answer.to_bytes())
        assert again.fields == json.loads(json.dumps(answer.fields))
        assert again.arrays.keys() == answer.arrays.keys()
        for key, array in answer.arrays.items():
            np.testing.assert_array_equal(again.arrays[key], array)
    assert json.loads(ask(questions, "passages").to_bytes())["how"] == "paragraphs"


def test_every_question_is_described():
    from pathlib import Path

    described = (Path(__file__).parents[2] / "ui" / "QUESTIONS.md").read_text("utf-8")
    for name, parameters in QUESTIONS.items():
        assert f"## `{name}`" in described, name
        for parameter in parameters:
            assert f"`{parameter}`" in described or f"`{parameter} " in described, parameter


def test_what_was_only_measured_has_no_page():
    recording = known_pages.gpt(measure=["entropy"])
    with pytest.raises(ValueError, match="record without measure="):
        Questions([recording])
    with pytest.raises(ValueError, match="holds no attention map"):
        Questions([jumok.Recording("none")])
