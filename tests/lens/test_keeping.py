"""What `watch` keeps, and where: values or not, smaller numbers, some layers and heads, on disk."""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F

import jumok
from jumok.lens import space
from jumok.masks import Causal


class Layer(nn.Module):
    def __init__(self, groups=2):
        super().__init__()
        self.q, self.kv = nn.Linear(48, 48), nn.Linear(48, 2 * groups * 8)
        self.out = nn.Linear(48, 48)
        self.groups = groups

    def forward(self, x):
        q = self.q(x).unflatten(-1, (6, 8)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.groups, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, count=3):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer() for _ in range(count)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.randn(2, 11, 48, generator=torch.Generator().manual_seed(2))


def record(model=None, **options):
    model = model or Model()
    with torch.no_grad():
        plain = model(X)
        with jumok.watch(model, **options) as recording:
            assert torch.equal(model(X), plain)
    return recording


WHOLE = record()


def tensor(array):
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.array(array))


def assert_same(found, expected, heads=None, atol=1e-6):
    weights, norms = expected[...], expected.value_norms()
    if heads is not None:
        weights, norms = weights[:, heads], norms[:, heads]
    close = {"atol": atol, "rtol": 1e-5}
    torch.testing.assert_close(tensor(found[...]), weights, **close)
    torch.testing.assert_close(tensor(found.value_norms()), norms, atol=1e-5, rtol=1e-5)


def test_without_values_weights_and_norms_are_the_same():
    recording = record(keep="qk")
    for found, expected in zip(recording, WHOLE, strict=True):
        assert found.call.v is None
        assert_same(found, expected)
        assert found.value_note == expected.value_note
    assert recording.held_bytes < WHOLE.held_bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("to", [None, "disk"])
def test_smaller_numbers_give_rows_that_sum_to_one(dtype, to):
    recording = record(dtype=dtype, to=to)
    for found, expected in zip(recording, WHOLE, strict=True):
        assert found.call.q.dtype == found.call.v.dtype == dtype
        assert found.call.lse.dtype == torch.float32
        rounded = found.call.q.double(), found.call.k.double(), found.call.v.double()
        _, weights, lse = jumok.attention(*rounded, causal=True)
        torch.testing.assert_close(found[...].double(), weights, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found.call.lse.double(), lse, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found[...].sum(-1), torch.ones(2, 6, 11))
        torch.testing.assert_close(found[...], expected[...], atol=2e-2, rtol=0)


def test_numbers_that_are_small_already_stay_as_they_are():
    model = Model().bfloat16()
    with torch.no_grad(), jumok.watch(model, dtype=torch.float16) as found:
        model(X.bfloat16())
    assert found[0].call.q.dtype == torch.bfloat16
    assert found[0].record.lse is not None


def test_what_does_not_fit_half_precision_is_said():
    model = Model(1)
    model.layers[0].q.weight.data *= 1e6
    with pytest.raises(ValueError, match=r"does not fit torch.float16.*bfloat16"):
        record(model, dtype=torch.float16)


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (1, ["layers.1"]),
        ([0, 2], ["layers.0", "layers.2"]),
        (range(1, 3), ["layers.1", "layers.2"]),
        ("layers.2", ["layers.2"]),
        (["layers.[01]", 2], ["layers.0", "layers.1", "layers.2"]),
        ("layers", ["layers.0", "layers.1", "layers.2"]),
    ],
)
def test_some_layers(layers, names):
    recording = record(layers=layers)
    assert recording.names == names
    for found in recording:
        assert_same(found, WHOLE[found.name])


@pytest.mark.parametrize("heads", [[3], [0, 1, 2], [5, 0], [0, 4, 5], [1, 4], 2])
@pytest.mark.parametrize("to", [None, "disk"])
@pytest.mark.parametrize("keep", ["qk", "qkv"])
def test_some_heads_with_the_key_heads_they_read(heads, to, keep, tmp_path):
    recording = record(heads=heads, to=to, keep=keep)
    wanted = [heads] if isinstance(heads, int) else heads
    recording.save(tmp_path / "run.safetensors")
    for kind in (recording, jumok.open(tmp_path / "run.safetensors")):
        for found, expected in zip(kind, WHOLE, strict=True):
            assert found.heads == tuple(wanted)
            assert found.shape == (2, len(wanted), 11, 11)
            assert_same(found, expected, wanted)
    assert recording.held_bytes < WHOLE.held_bytes


def test_options_that_make_no_sense_are_refused():
    model = Model()
    for options, words in [
        ({"keep": "kv"}, "keep is 'qkv' or 'qk'"),
        ({"to": "gpu"}, "to is 'cpu', 'disk'"),
        ({"file": "a.safetensors"}, "goes with to='disk'"),
        ({"layers": [-1]}, "numbers count from 0"),
        ({"layers": []}, "no layer at all"),
        ({"heads": []}, "no head at all"),
        ({"measure": ["entropie"]}, "there are the measures"),
        ({"measure": ["entropy"], "to": "disk"}, "keeps no tensors"),
    ]:
        with pytest.raises(ValueError, match=words):
            jumok.watch(model, **options)
    for options in ({"dtype": "bfloat16"}, {"layers": [1.5]}, {"heads": ["3"]}):
        with pytest.raises(TypeError):
            jumok.watch(model, **options)
    with pytest.raises(ValueError, match=r"heads 0 to 5, so \[6\]"):
        record(heads=[6])
    with pytest.raises(FileNotFoundError, match="no folder"):
        record(to="disk", file="/nowhere/run.safetensors")
    with pytest.raises(ValueError, match=r"layers=\[7\].*3 attention modules"):
        record(layers=[7])


# -- on disk ----------------------------------------------------------------------------------


def test_a_record_on_disk_is_a_file_that_others_open(tmp_path):
    path = tmp_path / "run.safetensors"
    recording = record(to="disk", file=path)
    assert os.listdir(tmp_path) == ["run.safetensors"]
    opened = jumok.open(path)
    with safe_open(path, "numpy") as file:
        q = file.get_tensor("layers.1.q")
    np.testing.assert_array_equal(q, WHOLE[1].call.q.numpy())
    assert opened.names == recording.names == WHOLE.names
    for live, stored, expected in zip(recording, opened, WHOLE, strict=True):
        assert isinstance(live[...], torch.Tensor)
        assert isinstance(stored[...], np.ndarray)
        assert stored.value_note == expected.value_note
        assert_same(live, expected)
        assert_same(stored, expected)
        np.testing.assert_allclose(stored.call.lse, expected.call.lse, rtol=1e-6)
    recording.save(tmp_path / "again.safetensors")
    assert_same(jumok.open(tmp_path / "again.safetensors")[2], WHOLE[2])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_half_written_is_left(tmp_path, error, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = Model()
    path = tmp_path / "run.safetensors"
    path.write_bytes(b"from before")

    def interrupted(file):
        with torch.no_grad(), jumok.watch(model, to="disk", file=file):
            model(X)
            raise error

    for file in (path, None):
        with pytest.raises(error):
            interrupted(file)
    with pytest.raises(ValueError, match="no attention"), jumok.watch(model, to="disk", file=path):
        pass
    assert os.listdir(tmp_path) == ["run.safetensors"]
    assert path.read_bytes() == b"from before"


def test_a_temporary_file_goes_with_the_recording(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    recording = record(to="disk")
    assert len(os.listdir(tmp_path)) == 1
    assert_same(recording[0], WHOLE[0])
    del recording
    assert os.listdir(tmp_path) == []


def test_a_long_header_finds_room(tmp_path, monkeypatch):
    import jumok.lens.streaming as room

    monkeypatch.setattr(room, "_HEADER", 64)
    path = tmp_path / "run.safetensors"
    recording = record(to="disk", file=path)
    assert os.listdir(tmp_path) == ["run.safetensors"]
    assert_same(jumok.open(path)[1], WHOLE[1])
    assert_same(recording[1], WHOLE[1])


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_steps_on_disk_lie_in_pieces(tmp_path, dtype, monkeypatch):
    import jumok.lens.tracks as room

    monkeypatch.setattr(room, "_MANY_BYTES", 2000)

    class Step(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)

    q, k, v = torch.randn(3, 2, 2, 60, 8).to(dtype or torch.float32).unbind(0)
    model, path = Step(), tmp_path / "run.safetensors"
    with jumok.watch(model, to="disk", file=path) as recording:
        for start, stop in [(0, 20), *((n, n + 1) for n in range(20, 60))]:
            model(q[:, :, start:stop], k[:, :, :stop].clone(), v[:, :, :stop].clone())
    _, weights, _ = jumok.attention(*(x.double() for x in (q, k, v)), causal=True)
    opened = jumok.open(path)[0]
    assert len(opened._source.entry["q"]) > 2
    for found in (recording[0], opened):
        assert found.shape == (2, 2, 60, 60)
        got = tensor(found[...]).double()
        torch.testing.assert_close(got, weights, atol=1e-5, rtol=1e-4)
        part = tensor(found[1, 1, 18:23, 10:30]).double()
        torch.testing.assert_close(part, weights[1, 1, 18:23, 10:30], atol=1e-5, rtol=1e-4)
        diagonal = tensor(found.diagonal(-1)).double()
        torch.testing.assert_close(
            diagonal[..., 1:], weights.diagonal(-1, -2, -1), atol=1e-5, rtol=1e-4
        )
        entropy = tensor(found.entropy()).double()
        torch.testing.assert_close(
            entropy, torch.special.entr(weights).sum(-1), atol=1e-4, rtol=1e-4
        )
    assert opened.call.mask == Causal()


# -- measured ---------------------------------------------------------------------------------


def test_what_is_measured_on_the_fly_is_what_a_report_measures():
    names = ["entropy", "distance", "first", "itself", "previous"]
    model = Model()
    with torch.no_grad(), jumok.watch(model, measure=names) as recording:
        model(X)
        model(X[:1, :5])
    with torch.no_grad(), jumok.watch(model) as apart:
        model(X)
        model(X[:1, :5])
    found, expected = jumok.report(recording), jumok.report(apart)
    assert len(recording) == 3
    assert len(found) == 18
    for name in names:
        long, short = np.split(np.array(expected.columns[name]), 2)
        mean = (22 * long + 5 * short) / 27
        np.testing.assert_allclose(found.columns[name], mean, atol=1e-6, rtol=1e-5)
    with pytest.raises(ValueError, match=r"no tensors were kept: jumok.report\(recording\)"):
        recording[0][0, 0]
    assert recording.held_bytes < 20_000
    assert "layers.1" in repr(recording)


# -- what does not fit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"2[0-9.]+ kB.*are free in memory.*keep='qk'.*bfloat16.*to='disk'.*measure"),
        ({"to": "disk"}, r"are free on the disk of .*layers=.*measure"),
    ],
)
def test_a_record_that_would_not_fit_is_refused_before(monkeypatch, options, words):
    monkeypatch.setattr(space, "_LARGE", 0)
    monkeypatch.setattr(space, "free_bytes", lambda device: 20_000)
    monkeypatch.setattr(space, "free_disk", lambda folder: 20_000)
    with pytest.raises(ValueError, match=words):
        record(**options)
    assert len(record(layers=[0], heads=[0], **options)) == 1


def test_free_memory_is_known():
    free = space.free_bytes(torch.device("cpu"))
    if sys.platform == "linux":
        assert 1e6 < free < 1e15
    assert space.free_disk(Path(tempfile.gettempdir())) > 0
    assert space.free_bytes(torch.device("meta")) is None
