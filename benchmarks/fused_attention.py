"""What `jumok.fused.attention` costs beside the plain way and beside PyTorch's own function.

    python benchmarks/fused_attention.py [--rounds 9] [--only numpy|torch]

NumPy: against ``softmax(q @ k.T / sqrt(d)) @ v`` at 4,096 tokens × 8 heads, with peak memory.
PyTorch: against ``F.scaled_dot_product_attention`` on the same input, from 1 token on.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from jumok import fused
from timing import interleaved, peak_extra_memory

TOKENS, HEADS, WIDTH = 4096, 8, 64


def numpy_inputs() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shape = (1, HEADS, TOKENS, WIDTH)
    return [random.standard_normal(shape, dtype=np.float32) for _ in range(3)]


def plain(qkv: list[np.ndarray], causal: bool = False) -> np.ndarray:
    q, k, v = qkv
    scores = q @ k.swapaxes(-1, -2) / np.float32(math.sqrt(q.shape[-1]))
    if causal:
        scores = np.where(np.tri(TOKENS, dtype=np.bool_), scores, -np.float32(np.inf))
    parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: np.ndarray = parts / parts.sum(axis=-1, keepdims=True) @ v
    return result


def ours(qkv: list[np.ndarray], causal: bool = False) -> Any:
    return fused.attention(*qkv, causal=causal)


def on_numpy(rounds: int) -> Table:
    table = Table(title=f"NumPy, {TOKENS:,} tokens × {HEADS} heads × {WIDTH}, float32")
    for name in ("", "plain, s", "jumok, s", "times faster (≥ 4)", "extra MB, plain", "jumok"):
        table.add_column(name, justify="right")
    qkv = numpy_inputs()
    memory = [f"{peak_extra_memory(numpy_inputs, work) / 1e6:.0f}" for work in (plain, ours)]
    for name, causal in (("all to all", False), ("causal", True)):
        times = interleaved(
            {"plain": lambda c=causal: plain(qkv, c), "jumok": lambda c=causal: ours(qkv, c)},
            rounds,
        )
        table.add_row(
            name,
            *(f"{times.medians[who]:.2f}" for who in ("plain", "jumok")),
            f"{times.ratio('plain', 'jumok'):.1f}",
            *(memory if not causal else ("", "")),
        )
    return table


def torch_cases(tokens: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What each call gets besides q, k and v: PyTorch's, ours."""
    padding = torch.ones(1, 1, 1, tokens, dtype=torch.bool)
    padding[..., -(tokens // 8 + 1) :] = tokens == 1
    dense = torch.ones(tokens, tokens, dtype=torch.bool).tril() & padding[0, 0]
    floats = torch.zeros(1, 1, tokens, tokens).masked_fill(~dense, -math.inf)
    return {
        "all to all": ({}, {}),
        "causal": ({"is_causal": True}, {"causal": True}),
        "padding": ({"attn_mask": padding}, {"mask": padding}),
        "booleans": ({"attn_mask": dense}, {"mask": dense}),
        "floats": ({"attn_mask": floats}, {"mask": floats}),
    }


def on_torch(rounds: int) -> Table:
    table = Table(title="PyTorch, 9 query / 3 key heads × 64, float32: jumok beside SDPA")
    for name in ("tokens", "", "SDPA, µs", "jumok, µs", "difference, µs", "ratio"):
        table.add_column(name, justify="right")
    for tokens in (1, 16, 64, 256, 1024, 2048, 4096):
        q = torch.randn(1, 9, tokens, 64)
        k, v = torch.randn(2, 1, 3, tokens, 64)
        for name, (theirs, mine) in torch_cases(tokens).items():
            calls: dict[str, Callable[[], Any]] = {
                "SDPA": lambda q=q, k=k, v=v, o=theirs: F.scaled_dot_product_attention(
                    q, k, v, enable_gqa=True, **o
                ),
                "jumok": lambda q=q, k=k, v=v, o=mine: fused.attention(q, k, v, **o),
            }
            repeat = max(1, 2048 // (tokens * max(1, tokens // 64)))
            with torch.inference_mode():
                times = interleaved(calls, max(rounds, 30 if tokens < 2048 else 0), repeat=repeat)
            table.add_row(
                f"{tokens:,}",
                name,
                *(f"{1e6 * times.medians[who]:,.1f}" for who in ("SDPA", "jumok")),
                f"{1e6 * times.difference('jumok', 'SDPA'):+,.1f}",
                f"{times.ratio('jumok', 'SDPA'):.3f}" + (" (≤ 1.03)" if tokens >= 1024 else ""),
            )
        table.add_section()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=("numpy", "torch"))
    chosen = parser.parse_args()
    console = Console(width=120)
    if chosen.only != "torch":
        console.print(on_numpy(chosen.rounds))
    if chosen.only != "numpy":
        console.print(on_torch(chosen.rounds))


if __name__ == "__main__":
    main()
