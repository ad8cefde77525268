"""What measuring a recorded attention call costs, in units of one forward attention call.

    python benchmarks/measures.py [--rounds 15] [--tokens 2048 8192]

Shapes of SmolLM2-135M: 9 query heads on 3 key heads of 64, causal. Every timing gets a fresh
recording; forward call and measures run in turns, and the ratio is the median over the pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from jumok import fused
from jumok.lens import measures
from jumok.lens.call import AttentionCall
from jumok.masks import Causal
from timing import interleaved

TARGETS = {
    ("report", 8192): 1.6,
    ("report", 2048): 2.4,
    ("top(8)", 8192): 1.5,
    ("pooled(512)", 8192): 1.5,
    ("pooled(512, mean)", 8192): 1.5,
}

WORK: dict[str, Callable[[AttentionCall], Any]] = {
    "report": measures.measure,
    "entropy": lambda call: measures.measure(call, quantities=("entropy",)),
    "top(8)": lambda call: measures.top(call, 8),
    "pooled(512)": lambda call: measures.pooled(call, 512),
    "pooled(512, mean)": lambda call: measures.pooled(call, 512, "mean"),
    "lse": measures.log_normalizers,
}


def record(tokens: int, dtype: torch.dtype) -> AttentionCall:
    """A fresh recording with the lse that the kernel gives."""
    q = torch.randn(1, 9, tokens, 64).to(dtype)
    k, v = torch.randn(2, 1, 3, tokens, 64).to(dtype)
    _, lse = fused.attention(q, k, v, causal=True)
    return AttentionCall(q, k, v, Causal(), None, 0.125, lse=lse)


def forward(call: AttentionCall) -> Any:
    return F.scaled_dot_product_attention(call.q, call.k, call.v, is_causal=True, enable_gqa=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    chosen = parser.parse_args()
    table = Table(title="Cost of measuring one layer, in forward attention calls")
    for name in ("tokens", "dtype", "forward, ms", *WORK):
        table.add_column(name, justify="right")
    for tokens in chosen.tokens:
        for name in chosen.dtype:
            dtype = getattr(torch, name)
            with torch.inference_mode():
                times = interleaved(
                    {"forward": forward, **WORK},
                    chosen.rounds,
                    prepare=lambda n=tokens, d=dtype: record(n, d),
                )
            cells = [str(tokens), name, f"{1e3 * times.medians['forward']:.1f}"]
            for work in WORK:
                target = TARGETS.get((work, tokens)) if name == "float32" else None
                limit = f" (≤ {target})" if target else ""
                cells.append(f"{times.ratio(work, 'forward'):.2f}{limit}")
            table.add_row(*cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
