"""`Recording`: a sequence of maps, its table, and its file, which opens without torch."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F

import jumok
from jumok import fused
from jumok.lens.stored import FileArray
from jumok.masks import Causal, Dense, Padding, Steps, Window


class Layers(nn.Module):
    def __init__(self, *calls):
        super().__init__()
        self.layers = nn.ModuleList(calls)

    def forward(self, ids, *args):
        return [layer(*args) for layer in self.layers]


class Fused(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options
        torch.manual_seed(0)
        self.out = nn.Linear(48, 16)

    def forward(self, q, k, v):
        output, _ = fused.attention(q, k, v, **self.options)
        return self.out(output.transpose(1, 2).flatten(2))


VISIBLE = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]).bool()
SHARED = Padding(VISIBLE)
OPTIONS = [
    {"mask": Causal()},
    {"mask": Causal() & SHARED},
    {"mask": SHARED, "softcap": 4.0, "scale": 0.3},
    {"mask": Window(2), "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0, 1.0, 0.3])},
    {"mask": Window(2, ahead=1)},
    {"mask": Dense(torch.ones(5, 5).tril().bool()), "bias": torch.randn(1, 6, 5, 5)},
    {"mask": Steps(((Causal(), 3, 3), (None, 1, 4), (Causal(), 1, 5)))},
    {},
]


def record(dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 5, 8, generator=random).to(dtype) for heads in (6, 2, 2))
    model = Layers(*(Fused(**options).to(dtype) for options in OPTIONS))
    ids = torch.tensor([[5, 6, 7, 8, 9], [0, 0, 1, 2, 3]])
    with torch.no_grad(), jumok.watch(model) as recording:
        model(ids, q, k, v)
    return recording


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_saved_recording_gives_the_same_numbers(tmp_path, dtype):
    recording = record(dtype)
    recording.save(tmp_path / "run.safetensors")
    opened = jumok.open(tmp_path / "run.safetensors")
    assert opened.names == recording.names
    assert opened.model_name == "Layers"
    np.testing.assert_array_equal(opened.ids, recording.ids)
    for before, after in zip(recording, opened, strict=True):
        assert (after.shape, after.nbytes) == (before.shape, before.nbytes)
        weights = after[...]
        assert isinstance(weights, np.ndarray)
        np.testing.assert_allclose(weights, before[...].numpy(), atol=1e-6, rtol=1e-5)
        np.testing.assert_allclose(
            after.value_norms(), before.value_norms().numpy(), atol=1e-6, rtol=1e-6
        )
        assert after.value_note == before.value_note
        assert after.is_causal == before.is_causal
        np.testing.assert_allclose(after.entropy(), before.entropy().numpy(), atol=1e-5)
        assert after.call.v.shape == before.call.v.shape
    again = tmp_path / "again.safetensors"
    opened.save(again)  # from NumPy
    np.testing.assert_array_equal(jumok.open(again)[1][...], opened[1][...])


def test_a_mask_that_layers_share_is_held_and_written_once(tmp_path):
    recording = record()
    masks = [recording[n].call.mask for n in (1, 2)]
    assert masks[0].rules[1].visible is masks[1].visible
    recording.save(tmp_path / "run.safetensors")
    opened = jumok.open(tmp_path / "run.safetensors")
    masks = [opened[n].call.mask for n in (1, 2)]
    assert masks[0].rules[1].visible is masks[1].visible
    bare = sum(found.held_bytes for found in recording)
    assert recording.held_bytes == bare + 10 + 25 + 600  # padding once, a dense mask, a bias


def test_opens_without_torch(tmp_path):
    recording = record()
    recording.save(tmp_path / "run.safetensors")
    code = f"""
import sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, NoTorch())
import jumok, numpy
opened = jumok.open({str(tmp_path / "run.safetensors")!r})
print(repr(opened))
print(float(opened[1].entropy().sum()), float(opened[0][0, 3, -1, -1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    entropy, weight = map(float, done.stdout.splitlines()[-1].split())
    assert entropy == pytest.approx(float(recording[1].entropy().sum()), abs=1e-4)
    assert weight == pytest.approx(float(recording[0][0, 3, -1, -1]), abs=1e-6)
    assert "layers.0" in done.stdout


def test_is_a_sequence_with_names():
    recording = record()
    assert len(recording) == len(list(recording)) == 8
    assert recording["layers.3"] is recording[3] is recording[-5]
    assert [found.name for found in recording[1:3]] == ["layers.1", "layers.2"]
    with pytest.raises(KeyError, match=r"no attention named 'layer.3'.*layers.3"):
        recording["layer.3"]
    with pytest.raises(IndexError, match="has 8 maps"):
        recording[8]


def test_the_table_says_what_is_held_and_what_the_weights_would_take():
    lines = repr(record()).splitlines()
    assert lines[0].startswith("Layers: 8 attention maps")
    row = next(line for line in lines if "layers.2" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "2", "layers.2", "2", "6", "5", "5", "3.44 kB", "1.2 kB",
    ]  # fmt: skip


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    recording = record()
    path = tmp_path / "run.safetensors"
    recording.save(path)
    before = path.read_bytes()
    import jumok.lens.writing as room

    def half(specs, filename, metadata):
        with open(filename, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room, "serialize_file", half)
    with pytest.raises(OSError, match="No space left"):
        recording.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.safetensors"]
    with pytest.raises(FileNotFoundError, match="no folder"):
        recording.save(tmp_path / "nowhere" / "run.safetensors")


def test_what_is_no_recording_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no recording at .*absent"):
        jumok.open(tmp_path / "absent")
    whole = tmp_path / "run.safetensors"
    record().save(whole)
    content = whole.read_bytes()
    bad = {
        "empty": b"",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "cut": content[:-10],
        "longer": content + b"\0" * 8,
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name}' is not a whole safetensors file"):
            jumok.open(tmp_path / name)
    save_file({"a": np.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="but not a recording"):
        jumok.open(tmp_path / "weights.safetensors")
    newer = {"jumok": json.dumps({"format": 99, "model": "m", "maps": []})}
    save_file({"a": np.zeros(3)}, tmp_path / "newer.safetensors", newer)
    with pytest.raises(ValueError, match="newer jumok"):
        jumok.open(tmp_path / "newer.safetensors")


def test_arrays_stay_in_the_file_until_they_are_asked_for(tmp_path):
    record().save(tmp_path / "run.safetensors")
    opened = jumok.open(tmp_path / "run.safetensors")
    call = opened[0].call
    for array in (call.q, call.k, call.v):
        assert isinstance(array, FileArray)
    array = call.lse
    while array.base is not None and not isinstance(array, np.memmap):
        array = array.base
    assert isinstance(array, np.memmap)


def test_a_decoding_loop_is_saved_with_its_ids(tmp_path):
    class Step(nn.Module):
        def forward(self, ids, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)

    q, k, v = torch.randn(3, 1, 2, 6, 8)
    model = Step()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    with jumok.watch(model) as recording:
        for start, stop in ((0, 4), (4, 5), (5, 6)):
            part = slice(start, stop)
            model(ids[:, part], q[:, :, part], k[:, :, :stop].clone(), v[:, :, :stop].clone())
    recording.save(tmp_path / "run.safetensors")
    opened = jumok.open(tmp_path / "run.safetensors")
    assert opened[0].shape == (1, 2, 6, 6)
    assert opened.ids.tolist() == ids.tolist()
    _, weights, _ = jumok.attention(q.numpy(), k.numpy(), v.numpy(), causal=True)
    np.testing.assert_allclose(opened[0][...], weights, atol=1e-6)


def damaged(header, **changes):
    return json.dumps(header | changes)


def test_a_damaged_description_is_said(tmp_path):
    from safetensors import safe_open

    record().save(tmp_path / "run.safetensors")
    with safe_open(tmp_path / "run.safetensors", "numpy") as opened:
        header = json.loads(opened.metadata()["jumok"])
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    first = header["maps"][0]
    broken = [
        "{",
        "[]",
        json.dumps({key: value for key, value in header.items() if key != "maps"}),
        json.dumps({key: value for key, value in header.items() if key != "format"}),
        damaged(header, maps=[{key: value for key, value in first.items() if key != "q"}]),
        damaged(header, maps=[first | {"q": "nowhere"}]),
        damaged(header, maps=[first | {"shape": [2, 6, 5, 6]}]),
        damaged(header, maps=[first | {"shape": [2, 6]}]),
        damaged(header, maps=[first | {"mask": {"rule": "unknown"}}]),
        damaged(header, maps=[first | {"mask": {"rule": "dense", "visible": "nowhere"}}]),
        damaged(header, maps=[first | {"scale": None}]),
    ]
    for number, text in enumerate(broken):
        path = tmp_path / f"{number}.safetensors"
        save_file(arrays, path, {"jumok": text})
        with pytest.raises(ValueError, match=rf"{number}.safetensors"):
            jumok.open(path)
    with pytest.raises(FileNotFoundError, match="that is a folder"):
        jumok.open(tmp_path)
    with pytest.raises(IsADirectoryError, match="that is a folder"):
        record().save(tmp_path)
