"""Work in several threads: all of it, in order, and errors reach the caller."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from jumok.lens import threads


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_number_once_and_in_order(count: int) -> None:
    together = threading.Barrier(count, timeout=60)

    def work(number: int) -> int:
        together.wait()  # all of them run at the same time
        return number

    assert threads.in_threads(work, count) == list(range(count))


def test_an_error_reaches_the_caller() -> None:
    def work(number: int) -> int:
        raise ValueError(f"number {number}")

    with pytest.raises(ValueError, match="number 0"):
        threads.in_threads(work, 2)


def test_pytorch_has_threads_of_its_own() -> None:
    assert threads.useful_threads(torch.zeros(1)) == 1
    assert threads.useful_threads(np.zeros(1)) >= 1
