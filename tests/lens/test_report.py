"""`report`: every column against the same statistic of the dense weights."""

import numpy as np
import pyarrow
import pytest
import torch
from torch import nn

import jumok
from jumok import fused
from jumok.lens.heads import MEASURES
from jumok.masks import Causal, Padding


class Heads(nn.Module):
    def __init__(self, *masks):
        super().__init__()
        self.masks = masks
        self.parts = nn.ModuleList(nn.Identity() for _ in masks)

    def forward(self, ids, q, k, v):
        for mask in self.masks:
            fused.attention(q, k, v, mask)
        return ids


LEFT = torch.tensor([[1] * 9, [0] * 4 + [1] * 5]).bool()


def record(*masks, batch=2):
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, heads, 9, 8, generator=random) for heads in (6, 2, 2))
    model = Heads(*masks)
    ids = torch.arange(9).repeat(batch, 1)
    with jumok.watch(model) as recording:
        model(ids, q, k, v)
    return recording


@pytest.mark.parametrize("mask", [None, Causal(), Causal() & Padding(LEFT), Padding(LEFT)], ids=str)
def test_every_column_against_the_dense_weights(mask):
    recording = record(mask, Causal())
    report = jumok.report(recording)
    assert len(report) == 12
    w = recording[0][...].double().numpy()
    padded = "Padding" in repr(mask)
    counted = LEFT.numpy() if padded else np.ones((2, 9), bool)

    def mean(values):
        return np.array([values[:, h][counted].mean() for h in range(6)])

    logs = np.log(np.where(w > 0, w, 1))
    apart = abs(np.arange(9)[:, None] - np.arange(9))
    first = w[..., 0].copy()
    if padded:
        first[1] = w[1, :, :, 4]
    previous = np.concatenate([np.zeros((2, 6, 1)), np.diagonal(w, -1, axis1=2, axis2=3)], axis=-1)
    expected = {
        "entropy": mean(-(w * logs).sum(-1)),
        "distance": mean((w * apart).sum(-1)),
        "first": mean(first),
        "itself": mean(np.diagonal(w, axis1=2, axis2=3)),
        "previous": mean(previous),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(report.columns[name][:6], values, atol=1e-5, err_msg=name)
    received = (w * counted[:, None, :, None]).sum((0, 2))
    np.testing.assert_array_equal(report.columns["most_read"][:6], received.argmax(-1))
    np.testing.assert_allclose(
        report.columns["most_read_share"][:6], received.max(-1) / counted.sum(), atol=1e-5
    )
    assert report.columns["layer"].tolist() == [0] * 6 + [1] * 6
    assert report.columns["head"].tolist() == [*range(6)] * 2
    assert report.columns["name"] == ["Heads"] * 6 + ["Heads#1"] * 6


def test_becomes_a_table_of_other_libraries():
    report = jumok.report(record(Causal()))
    table = pyarrow.table(report)
    assert table.num_rows == 6
    assert table.column_names == list(report.columns)
    np.testing.assert_array_equal(table["entropy"].to_numpy(), report.columns["entropy"])
    rows = list(report)
    assert rows[3]["head"] == 3
    assert isinstance(rows[3]["entropy"], float)


def test_prints_a_row_per_head():
    lines = repr(jumok.report(record(Causal()))).splitlines()
    assert lines[0].startswith("one row per head")
    assert sum("Heads" in line for line in lines) == 6


def test_labels_the_token_that_is_read_most():
    model, tokenizer = jumok.load("minilm")
    ids = tokenizer.encode("apple phone")
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.tensor([ids]))
    report = jumok.report(recording, tokenizer)
    labels = tokenizer.labels(ids)
    assert report.columns["most_read_token"] == [labels[at] for at in report.columns["most_read"]]
    recording.ids = None
    with pytest.raises(ValueError, match="no token ids to label"):
        jumok.report(recording, tokenizer)


def test_works_on_an_opened_recording(tmp_path):
    recording = record(Causal() & Padding(LEFT))
    recording.save(tmp_path / "run.safetensors")
    live, opened = jumok.report(recording), jumok.report(jumok.open(tmp_path / "run.safetensors"))
    for name in ("entropy", "distance", "first", "most_read_share"):
        np.testing.assert_allclose(live.columns[name], opened.columns[name], atol=1e-5)


def test_only_a_recording_can_be_reported():
    for other in (None, nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=f"got {type(other).__name__}"):
            jumok.report(other)


def test_further_columns_and_their_tables():
    recording = record(Causal())
    report = jumok.report(recording, measures=["window", "induction", "confidence", "sink_rate"])
    assert list(report.columns)[-4:] == ["window", "induction", "confidence", "sink_rate"]
    w = recording[0][...].double().numpy()
    np.testing.assert_allclose(report.columns["confidence"], w.max(-1).mean((0, 2)), atol=1e-5)
    assert (report.columns["induction"] == 0).all()  # no token occurs twice
    everything = jumok.report(recording, measures=[name for name in MEASURES if name != "special"])
    lines = repr(everything).splitlines()
    assert max(map(len, lines)) <= 110
    assert sum(line.startswith("one row per head") for line in lines) == 3
    for name in everything.columns:
        assert name == "layer" or name.split("_")[0] in repr(everything)


def test_further_columns_that_cannot_be_had():
    recording = record(Causal())
    with pytest.raises(ValueError, match="no such measure: \\['indction'\\]"):
        jumok.report(recording, measures=["indction"])
    with pytest.raises(TypeError, match=r"a list of names, such as \['window'\]"):
        jumok.report(recording, measures="window")
    with pytest.raises(ValueError, match="known to the tokenizer"):
        jumok.report(recording, measures=["special"])
    recording.ids = None
    with pytest.raises(ValueError, match="no token ids to compare for induction"):
        jumok.report(recording, measures=["induction"])


def test_special_tokens_are_those_of_the_tokenizer():
    model, tokenizer = jumok.load("minilm")
    ids = tokenizer.encode("apple phone")
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.tensor([ids]))
    report = jumok.report(recording, tokenizer, measures=["special"])
    ends = [0, len(ids) - 1]
    expected = np.concatenate([m[0][..., ends].sum(-1).mean(-1) for m in recording])
    np.testing.assert_allclose(report.columns["special"], expected, atol=1e-5)
    assert list(report.columns)[-4:] == [
        "most_read", "most_read_token", "most_read_share", "special"
    ]  # fmt: skip


def test_special_tokens_are_measured_on_the_fly():
    model, tokenizer = jumok.load("minilm")
    ids = torch.tensor([tokenizer.encode("apple phone")])
    special = tokenizer.special_ids
    with torch.no_grad():
        with jumok.watch(model, measure=["special"], special=special) as measured:
            model(ids)
        with jumok.watch(model) as recording:
            model(ids)
    expected = jumok.report(recording, tokenizer, measures=["special"])
    found = jumok.report(measured)
    np.testing.assert_allclose(found.columns["special"], expected.columns["special"], atol=1e-6)


def test_special_tokens_that_nobody_named_are_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"special=tokenizer.special_ids"):
        jumok.watch(model, measure=["special"])
    with pytest.raises(ValueError, match=r"goes with measure=\['special'"):
        jumok.watch(model, special=[1])
    for wrong in ("[CLS]", 3, ["[CLS]"]):
        with pytest.raises(TypeError, match="takes the ids of the special tokens"):
            jumok.watch(model, measure=["special"], special=wrong)


def test_tokens_cannot_be_compared_on_the_fly_where_the_model_is_given_none():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 4, 8)
    with (
        pytest.raises(ValueError, match="duplicate, induction compares tokens, but the model"),
        jumok.watch(layer, measure=["entropy", "duplicate", "induction"]),
    ):
        layer(x, x, x)


@pytest.mark.parametrize("width", [30, 50, 80, 110])
def test_no_column_is_lost_where_the_terminal_is_narrow(width):
    from rich.console import Console

    made = jumok.report(record(Causal()))
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(made)
    words = capture.get().split()
    hidden = {"name"} if width < 110 else {"layer"}
    for name in set(made.columns) - hidden:
        assert set(name.split("_")) <= set(words), name
    shown = round(100 * made.columns["itself"][0], 1)
    assert f"{shown}%" in words
