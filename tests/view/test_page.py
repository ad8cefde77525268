"""The page in one file: what lies in it, against what Python says."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
import torch

import jumok
import known_pages
from jumok.view import page as page_room
from jumok.view.page import MOST_BYTES, self_contained
from jumok.view.questions import Questions

DATA = re.compile(r'<script type="application/octet-stream" id="jumok-data">([^<]*)</script>')
KINDS = {"float32": "<f4", "int32": "<i4", "float16": "<f2", "uint8": "u1", "decimal": "<u2"}


def read(html):
    """The answers of a file: key → (fields, arrays)."""
    data = base64.b64decode(DATA.search(html)[1])
    length = int.from_bytes(data[:4], "little")
    answers = json.loads(zlib.decompress(data[4 : 4 + length], -15))["answers"]
    found = {}
    for key, entry in answers.items():
        arrays = {}
        for one in entry["arrays"]:
            start = 4 + length + one["offset"]
            block = zlib.decompress(data[start : start + one["length"]], -15)
            array = np.frombuffer(block, KINDS[one["type"]]).reshape(one["shape"])
            arrays[one["name"]] = array / 10_000 if one["type"] == "decimal" else array
        found[key] = entry["fields"], arrays
    return found


@pytest.fixture(scope="module")
def recording():
    return known_pages.gpt(model=known_pages.decoder(init_std=0.4))


@pytest.fixture(scope="module")
def html(recording):
    return self_contained(Questions([recording], transport="file"), title="<b> & c").html


@pytest.fixture(scope="module")
def answers(html):
    return read(html)


def test_single_weights_are_exact_to_the_digits_given(recording, answers):
    for number, found in enumerate(recording):
        for head in range(4):
            key = f"weights?head={head}&map={number}"
            arrays = answers[key][1]
            weights = np.asarray(found[0, head])
            assert np.abs(arrays["values"] - weights).max() <= 0.5e-4 + 1e-7
            np.testing.assert_array_equal(arrays["visible"], np.tri(132))


@pytest.mark.parametrize("measure", ["raw", "norm"])
def test_who_reads_whom(recording, answers, measure):
    questions = Questions([recording])
    asked = {"tokens": "40", "measure": measure}
    more = "&measure=norm" if measure == "norm" else ""
    own = "?measure=norm" if measure == "norm" else ""
    for key, place in ((f"layer?map=1{more}", {"map": "1"}), (f"shares{own}", {})):
        if key not in answers:  # the page leaves out what is as it would be anyway
            key = key.replace("shares", f"shares?measure={measure}").replace(
                "map=1", f"map=1&measure={measure}"
            )
        expected = questions.answer("reads", asked | place).arrays["shares"]
        np.testing.assert_allclose(answers[key][1]["values"][40], expected, atol=0.6e-4)


def test_vectors_give_the_steps(recording, answers):
    fields, arrays = answers["vectors?map=2"]
    call = recording[2].call
    for name, expected in (("q", call.q), ("k", call.k), ("v", call.v)):
        np.testing.assert_array_equal(arrays[name], np.asarray(expected)[0])
    assert fields == {}


def test_answers_are_python_s_own(recording, answers):
    questions = Questions([recording])
    for key, name, parameters in (
        ("labels", "labels", {}),
        ("passages", "passages", {}),
        ("passages?how=lines", "passages", {"how": "lines"}),
        ("passages?how=paragraphs", "passages", {}),
        ("heads?map=1&measures=all", "heads", {"map": "1", "measures": "all"}),
        ("grid?map=2", "grid", {"map": "2"}),
        ("grid?how=mean&map=2", "grid", {"map": "2", "how": "mean"}),
        ("segments", "segments", {}),
        ("segments?how=lines&map=1&measure=norm", "segments",
         {"how": "lines", "map": "1", "measure": "norm"}),
    ):  # fmt: skip
        expected = questions.answer(name, parameters)
        fields, arrays = answers[key]
        assert fields == json.loads(json.dumps(expected.fields)), key
        for array, values in expected.arrays.items():
            np.testing.assert_allclose(arrays[array], values, rtol=1e-3, atol=1e-6)
    about = answers["about"][0]
    assert about["transport"] == "file"
    assert about["left_out"] == ["Single weights are given to four digits."]
    assert [m["held"] for m in about["recordings"][0]["maps"]] == [[0, 1, 2, 3]] * 3


def test_nothing_of_the_text_is_markup(html):
    assert html.count("<script") == html.count("</script>") == 2
    assert "alert(1)" not in html
    assert "<title>&lt;b&gt; &amp; c</title>" in html
    assert html.count("<!--") == 0


def test_the_file_asks_nobody(html):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    assert "http" not in policy
    code = html[html.index('<script type="module">') + 22 : html.rindex("</script>")]
    import hashlib

    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert not re.search(r'(src|href)="(?!data:)', html)


def long_recording(tokens, layers=2):
    torch.manual_seed(0)
    config = jumok.Config(vocab_size=300, emb_dim=32, n_layers=layers, n_heads=4, context=4096)
    model = jumok.Decoder(config).eval()
    ids = torch.randint(0, 250, (1, tokens))
    with torch.no_grad(), jumok.watch(model) as recording:
        model(ids)
    return recording


def test_a_long_text_is_pooled_and_says_so():
    recording = long_recording(1200)
    page = self_contained(Questions([recording], transport="file"))
    answers = read(page.html)
    about = answers["about"][0]
    described = about["recordings"][0]["maps"][1]
    assert described["finest"] == 2  # 300 cells along each side
    assert described["held"] == [0, 1, 2, 3]
    assert not any(key.startswith(("weights", "vectors", "shares", "layer")) for key in answers)
    questions = Questions([recording])
    for level, x, y in ((2, 0, 0), (2, 1, 1), (3, 0, 0)):
        _, arrays = answers[f"tile?head=3&level={level}&map=1&x={x}&y={y}"]
        at = {"map": 1, "head": 3, "level": level, "x": x, "y": y}
        expected = questions.answer("tile", {k: str(v) for k, v in at.items()}).arrays["values"]
        np.testing.assert_allclose(arrays["values"], expected, rtol=1e-3, atol=1e-6)
    assert any("pooled" in sentence for sentence in page.left_out)
    assert any("jumok view" in sentence for sentence in page.left_out)


def test_a_file_is_never_larger_than_it_may_be(monkeypatch):
    script, style = page_room.assets()
    room = len(script) + len(style) + 250_000
    monkeypatch.setattr(page_room, "MOST_BYTES", room)
    recording = long_recording(300, layers=4)
    wanted = [(3, 2), (0, 1)]
    page = self_contained(Questions([recording], transport="file"), wanted)
    assert len(page.html.encode()) < room
    answers = read(page.html)
    about = answers["about"][0]
    held = [m["held"] for m in about["recordings"][0]["maps"]]
    assert 2 in held[3]
    assert 1 in held[0]
    assert sum(map(len, held)) < 16
    for number, heads in enumerate(held):
        for head in range(4):
            assert (f"weights?head={head}&map={number}" in answers) == (head in heads)
    missing = 16 - sum(map(len, held))
    assert f"The maps of {missing} of 16 heads are left out" in " ".join(page.left_out)
    with pytest.raises(ValueError, match=r"there is no head 9\.0"):
        self_contained(Questions([recording], transport="file"), [(9, 0)])
    assert MOST_BYTES == 10_000_000


def test_two_recordings_and_an_encoder_decoder():
    model = known_pages.decoder()
    both = [known_pages.gpt(text, model=model) for text in ("a bank.", "a river bank.")]
    answers = read(self_contained(Questions(both, transport="file")).html)
    assert answers["aligned"][0]["blocks"]
    assert "labels?recording=1" in answers
    assert "weights?head=0&map=0&recording=1" in answers
    answers = read(self_contained(Questions([known_pages.translated()], transport="file")).html)
    assert answers["labels?text=1"][0]["tokens"] == 9
    assert "shares?measure=norm&stack=1" in answers
    assert "weights?head=0&map=3" in answers
