"""`AttentionMap` as an array: exact values, metadata without computing, limits and refusals."""

import itertools

import numpy as np
import pytest
import torch

import jumok
from jumok.lens import attention_map
from jumok.lens.attention_map import AttentionMap, readable_bytes
from jumok.lens.call import AttentionCall
from jumok.masks import Causal, Padding, Window


class Source:
    """A map's source that counts how often the record is asked for."""

    name = "layer"
    held_bytes = 123
    value_note = "none in this test"
    has_value_norms = False

    def __init__(self, call):
        self._call = call
        self.asked = 0

    @property
    def shape(self):
        return self._call.shape

    def call(self):
        self.asked += 1
        return self._call

    def value_norms(self):
        return None


def make(kind="torch", mask=None, heads=6, key_heads=2, queries=5, keys=7, **options):
    random = np.random.default_rng(0)
    q = random.standard_normal((2, heads, queries, 8)).astype(np.float32)
    k = random.standard_normal((2, key_heads, keys, 8)).astype(np.float32)
    arrays = {"q": q, "k": k, "v": k}
    visible = np.ones((2, keys), bool)
    visible[1, :3] = False
    if mask == "padded":
        mask = Causal() & Padding(visible if kind == "numpy" else torch.from_numpy(visible))
    if kind == "torch":
        arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
    call = AttentionCall(**arrays, mask=mask, bias=None, scale=0.35, **options)
    dense = None
    if mask is not None:
        dense = np.broadcast_to(
            np.asarray(mask.dense(queries, keys, arrays["q"])), (2, heads, queries, keys)
        )
    _, weights, _ = jumok.attention(
        q.astype(np.float64), k.astype(np.float64), k.astype(np.float64), dense, scale=0.35
    )
    return AttentionMap(Source(call)), weights


INDICES = [
    (...,), (0,), (-1,), (1, 3), (1, 3, -1), (0, 2, 4, 6), (slice(None), 1), (..., 0),
    (..., slice(1, 4), slice(2, None)), (0, ..., 3), (slice(0, 0),), (..., slice(None, None, -1)),
    (0, slice(None, None, 2), slice(None, None, 2), slice(1, None, 3)), (..., slice(5, 2), 0),
    (0, 0, slice(None, None, -1), slice(6, 1, -2)), (0, 0, slice(-1, None, -3)),
    (1, slice(5, None, -2), 2),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("mask", [None, Causal(), Window(2), "padded"], ids=str)
def test_any_index_gives_the_exact_weights(kind, mask):
    found, expected = make(kind, mask)
    for index in INDICES:
        part = found[index]
        assert isinstance(part, torch.Tensor if kind == "torch" else (np.ndarray, np.generic))
        assert part.dtype == (torch.float32 if kind == "torch" else np.float32)
        np.testing.assert_allclose(np.asarray(part), expected[index], atol=1e-6, err_msg=str(index))


def test_blocks_of_rows_join_without_a_seam(monkeypatch):
    found, expected = make(mask=Causal())
    monkeypatch.setattr(attention_map, "_BLOCK_BYTES", 4 * 6 * 7 * 2)  # two rows a block
    for index in INDICES:
        np.testing.assert_allclose(np.asarray(found[index]), expected[index], atol=1e-6)


def test_metadata_computes_nothing():
    found, _ = make()
    source = found._source
    assert (found.shape, found.ndim, found.size, len(found)) == ((2, 6, 5, 7), 4, 420, 2)
    assert found.nbytes == 1680
    assert "heads=6" in repr(found)
    assert source.asked == 0
    assert found.dtype == torch.float32
    assert found._source._call.lse is None


def test_conversion_to_other_libraries():
    found, expected = make(mask=Causal())
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-6)
    assert np.asarray(found, dtype=np.float64).dtype == np.float64
    np.testing.assert_allclose(np.from_dlpack(found), expected, atol=1e-6)
    with pytest.raises(ValueError, match="leave out copy=False"):
        np.array(found, copy=False)
    with pytest.raises(BufferError, match="without a copy"):
        found.__dlpack__(copy=False)
    for product in (lambda: found * 2, lambda: np.float32(2) * found, lambda: np.ones(7) + found):
        with pytest.raises(TypeError, match="the part you want first"):
            product()
    for row, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, other, atol=1e-6)


def test_the_byte_limit_names_the_size_and_what_to_do(monkeypatch):
    found, _ = make()
    monkeypatch.setattr(attention_map, "BYTE_LIMIT", 1000)
    with pytest.raises(ValueError, match=r"1.68 kB.*limit of 1 kB.*pooled\(512\)"):
        found[...]
    assert found[0].shape == (6, 5, 7)


@pytest.mark.parametrize(
    ("index", "error", "says"),
    [
        (2, IndexError, r"index 2 is out of range for the 2 batch"),
        ((0, 6), IndexError, "the 6 heads"),
        ((0, 0, -6), IndexError, "the 5 queries"),
        ((0, 0, 0, 0, 0), IndexError, r"5 indices, but a map has 4 axes"),
        ((..., ...), IndexError, "only one"),
        ([0, 1], TypeError, "integers, slices"),
        (None, TypeError, "NoneType"),
        (True, TypeError, "bool"),
        (1.0, TypeError, "float"),
    ],
)
def test_bad_indices_are_named(index, error, says):
    found, _ = make()
    with pytest.raises(error, match=says):
        found[index]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("mask", [None, Causal(), "padded"], ids=str)
def test_measures_against_the_definition(kind, mask):
    found, w = make(kind, mask)
    queries, keys = w.shape[-2:]
    position = np.arange(queries)[:, None] + keys - queries
    key = np.arange(keys)
    logs = np.log(np.where(w > 0, w, 1))
    real = np.ones((2, queries), bool)
    if mask == "padded":
        real[1, :1] = False  # its own key, 2, is padding
    checks = {
        "entropy": (found.entropy(), -(w * logs).sum(-1)),
        "distance": (found.distance(), (w * abs(position - key)).sum(-1)),
        "received": (found.received(), (w * real[:, None, :, None]).sum(-2)),
        "column": (found.column(3), w[..., 3]),
        "diagonal": (found.diagonal(-1), np.stack([w[..., i, i + 1] for i in range(queries)], -1)),
        "pooled": (found.pooled(100), w),
    }
    for name, (got, expected) in checks.items():
        np.testing.assert_allclose(np.asarray(got), expected, atol=1e-5, err_msg=name)
    indices, weights = (np.asarray(part) for part in found.top(3))
    np.testing.assert_allclose(weights, -np.sort(-w, axis=-1)[..., :3], atol=1e-6)
    for at in itertools.product(*map(range, indices.shape)):
        if indices[at] >= 0:
            assert abs(w[(*at[:3], indices[at])] - weights[at]) < 1e-6
        else:
            assert weights[at] == 0


def test_readable_bytes():
    sizes = {0: "0 B", 999: "999 B", 1500: "1.5 kB", 72.5e9: "72.5 GB", 4e12: "4 TB"}
    assert {count: readable_bytes(int(count)) for count in sizes} == sizes
