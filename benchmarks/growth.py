"""How time and memory of `watch` and `report` grow with the number of tokens.

    python benchmarks/growth.py [--tokens 1024 2048 4096 8192 16384 32768]

A model of two attention layers of four heads of 64, causal, float32, each size in child processes
of its own: memory is the peak above that of the plain forward. Printed are the exponents that fit
best (least squares of the logarithms), over all sizes and over the upper half.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

from timing import peak_memory

TOKENS = (1024, 2048, 4096, 8192, 16384, 32768)


def prepare(tokens: int) -> tuple[Any, Any]:
    import torch
    from torch import nn

    import jumok

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                jumok.MultiHeadAttention(256, 4, causal=True) for _ in range(2)
            )

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = x + layer(x)
            return x

    torch.manual_seed(0)
    return Model().eval(), torch.randn(1, tokens, 256)


def plain(state: tuple[Any, Any]) -> None:
    import torch

    model, x = state
    with torch.no_grad():
        model(x)


def watched(state: tuple[Any, Any]) -> None:
    import torch

    import jumok

    model, x = state
    with torch.no_grad():
        with jumok.watch(model) as recording:
            model(x)
        jumok.report(recording)


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of the line through the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(max(value, 1e-9)) for value in values]
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum(
        (a - middle) ** 2 for a in x
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    sizes = parser.parse_args().tokens
    seconds, memory = [], []
    watched(prepare(256))  # everything loaded
    print("tokens   plain, s   watch + report, s   extra memory, MB   weights would take, GB")
    for tokens in sizes:
        state = prepare(tokens)
        runs: dict[Any, list[float]] = {plain: [], watched: []}
        for _ in range(5 if tokens <= 4096 else 2):
            for work, found in runs.items():
                start = time.perf_counter()
                work(state)
                found.append(time.perf_counter() - start)
        del state
        seconds.append(min(runs[watched]))
        peaks = [peak_memory(prepare, work, tokens)[0] for work in (plain, watched)]
        memory.append(peaks[1] - peaks[0])
        print(
            f"{tokens:6d}   {min(runs[plain]):8.3f}   {seconds[-1]:17.3f}   "
            f"{memory[-1] / 1e6:16.1f}   {2 * 4 * 4 * tokens**2 / 1e9:22.2f}",
            flush=True,
        )
    for name, values, wanted in (("time", seconds, 2.0), ("memory", memory, 1.05)):
        half = len(sizes) // 2
        every, upper = exponent(sizes, values), exponent(sizes[half:], values[half:])
        print(
            f"{name} grows with the tokens to the power {every:.2f}; in the upper half {upper:.2f}"
            f"   (wanted: at most {wanted})"
        )


if __name__ == "__main__":
    main()
