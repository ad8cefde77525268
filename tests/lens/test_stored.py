"""Arrays in a file: whatever is asked for is what lies there, read or mapped."""

import itertools
import pickle

import numpy as np
import pytest

from jumok.lens import stored
from jumok.lens.stored import FileArray, OpenFile

random = np.random.default_rng(0)
BATCH, HEADS, TOKENS, WIDTH = 2, 3, 11, 4
PIECES = (5, 1, 0, 5)  # tokens
INDICES = [
    *itertools.product(
        (0, -1, 1),
        (2, -3, slice(None), slice(1, 3), slice(2, 1)),
        (slice(None), slice(3, 9), slice(-4, None), slice(0, 99), slice(7, 2)),
    ),
    (1, slice(1, 2)),
    # Others than those that the measures ask for.
    (0,),
    1,
    ...,
    (0, 1, 2),
    (0, slice(None), slice(None, None, 2)),
    (slice(None), 0, slice(1, 4)),
    (0, [2, 0], slice(1, 4)),
    (0, 0, slice(1, 4), 2),
    (..., slice(1, 3)),
]


def whole(dtype):
    numbers = random.normal(size=(BATCH, HEADS, TOKENS, WIDTH)).astype(np.float32)
    if dtype != "bfloat16":
        return numbers.astype(dtype), numbers.astype(dtype)
    bits = (numbers.view(np.uint32) >> 16).astype("<u2")
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def written(path, bits, pieces):
    """(mapped pieces, offsets) of an array that lies in a file after 6 other bytes."""
    parts = np.split(bits, np.cumsum(pieces)[:-1], axis=2)
    offsets, data = [], b"before"
    for part in parts:
        offsets.append(len(data))
        data += np.ascontiguousarray(part).tobytes()
    path.write_bytes(data)
    mapped = [
        np.memmap(path, bits.dtype, "r", at, part.shape) if part.size else part
        for at, part in zip(offsets, parts, strict=True)
    ]
    return mapped, offsets


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16", "float64"])
@pytest.mark.parametrize("pieces", [(TOKENS,), PIECES], ids=["one piece", "four pieces"])
def test_every_index_gives_what_lies_there(tmp_path, monkeypatch, dtype, pieces):
    monkeypatch.setattr(stored, "_CHUNK", 7)
    bits, values = whole(dtype)
    path = tmp_path / "array"
    mapped, offsets = written(path, bits, pieces)
    widen = dtype == "bfloat16"
    read = FileArray(mapped, widen=widen, file=OpenFile(path), offsets=offsets)
    copied = pickle.loads(pickle.dumps(read))
    only_mapped = FileArray(mapped, widen=widen)
    for array in (read, only_mapped, copied):
        assert array.shape == values.shape
        assert array.__dlpack_device__() == values.__dlpack_device__()
        for index in INDICES:
            found = array[index]
            assert found.dtype == values.dtype
            np.testing.assert_array_equal(found, values[index], err_msg=str(index))
    with pytest.raises(IndexError):
        read[2, 0, :]


def test_what_the_measures_ask_for_is_not_read_from_the_map(tmp_path):
    bits, values = whole("bfloat16")
    path = tmp_path / "array"
    _, offsets = written(path, bits, (TOKENS,))
    elsewhere = [np.zeros_like(bits)]
    array = FileArray(elsewhere, widen=True, file=OpenFile(path), offsets=offsets)
    np.testing.assert_array_equal(array[1, 0:2, 3:8], values[1, 0:2, 3:8])
    np.testing.assert_array_equal(array[0, 2, 3:8], values[0, 2, 3:8])
    np.testing.assert_array_equal(array[0, 1:3], values[0, 1:3])


def test_a_file_that_has_become_shorter_is_an_error(tmp_path):
    bits, _ = whole("float32")
    path = tmp_path / "array"
    _, offsets = written(path, bits, (TOKENS,))
    array = FileArray([bits], widen=False, file=OpenFile(path), offsets=offsets)
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(OSError, match="has become shorter"):
        array[1, 2, :]
