"""The array libraries that every numerical test runs on."""

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import settings

LIBRARIES = {"numpy": np, "strict": array_api_strict, "torch": torch}

every_library = pytest.mark.parametrize("xp", LIBRARIES.values(), ids=LIBRARIES.keys())

# Each property runs once per library.
many_examples = settings(max_examples=30)


def array(xp: Any, values: Any, dtype: str = "float64") -> Any:
    """Numbers as an array of one library."""
    return xp.asarray(np.array(values, dtype=dtype))


def numbers(x: Any) -> np.ndarray:
    """An array of any library as NumPy float64 (booleans and integers stay as they are)."""
    if isinstance(x, torch.Tensor):
        x = x.detach()
        x = x.double() if x.is_floating_point() else x
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def same(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Equal shapes, and values within a tolerance, absolute and relative."""
    found, expected = numbers(found), numbers(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
