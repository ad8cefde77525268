"""Work on NumPy arrays in several threads.

PyTorch shares every operation out among the cores; NumPy runs it on one, but lets go of Python's
lock meanwhile. So NumPy arrays are worked on in several threads, each with tiles of its own.
(With PyTorch that was tried too, one core a thread: what is saved at the end of each operation
is lost again by waiting for Python's lock.)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from array_api_compat import array_namespace, is_numpy_namespace

from jumok.lens.call import Array

Result = TypeVar("Result")

_MOST = 8  # with more, they would wait for Python's lock


def useful_threads(like: Array) -> int:
    """How many threads to compute with on arrays such as this one."""
    if not is_numpy_namespace(array_namespace(like)):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, _MOST)


def in_threads(work: Callable[[int], Result], count: int) -> list[Result]:
    """``[work(0), …, work(count - 1)]``, each in a thread of its own."""
    if count <= 1:
        return [work(0)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))
