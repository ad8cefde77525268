"""What measuring a recorded attention costs, in units of the attention, and of the model.

    python benchmarks/measures.py [--rounds 15] [--tokens 2048 8192] [--part 1|2]

1. One layer in the shapes of SmolLM2-135M (9 query heads on 3 key heads of 64, causal), in forward
   attention calls. Every timing gets a fresh recording.
2. `report` of all 270 heads of SmolLM2-135M in float32, in forward passes of the model.

What is compared runs in turns, and the ratio is the median over the pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import jumok
from jumok import fused
from jumok.lens import measures
from jumok.lens.call import AttentionCall
from jumok.masks import Causal
from timing import interleaved
from watch import TEXT

TARGETS = {
    ("report", 8192): 1.6,
    ("report", 2048): 2.4,
    ("top(8)", 8192): 1.3,
    ("pooled(512)", 8192): 1.3,
    ("pooled(512, mean)", 8192): 1.0,
}
OF_THE_MODEL = {2048: 0.9, 8192: 1.2}

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


def one_layer(lengths: list[int], dtypes: list[str], rounds: int) -> None:
    table = Table(title="Cost of measuring one layer, in forward attention calls")
    for name in ("tokens", "dtype", "forward, ms", *WORK):
        table.add_column(name, justify="right")
    for tokens in lengths:
        for name in dtypes:
            dtype = getattr(torch, name)
            with torch.inference_mode():
                times = interleaved(
                    {"forward": forward, **WORK},
                    rounds,
                    prepare=lambda n=tokens, d=dtype: record(n, d),
                )
            cells = [str(tokens), name, f"{1e3 * times.medians['forward']:.1f}"]
            for work in WORK:
                target = TARGETS.get((work, tokens)) if name == "float32" else None
                limit = f" (≤ {target})" if target else ""
                cells.append(f"{times.ratio(work, 'forward'):.2f}{limit}")
            table.add_row(*cells)
    Console(width=140).print(table)


def whole_model(lengths: list[int], rounds: int) -> None:
    model, tokenizer = jumok.load("smollm2")
    print("Cost of reporting all 270 heads of SmolLM2, float32, in forward passes of the model")
    for tokens in lengths:
        ids = torch.tensor([tokenizer.encode(TEXT * (tokens // 24 + 1))[:tokens]])
        with torch.no_grad():
            with jumok.watch(model) as recording:
                model(ids)
            times = interleaved(
                {
                    "forward": lambda ids=ids: model(ids),
                    "report": lambda recording=recording: jumok.report(recording),
                },
                rounds if tokens < 4096 else 2,
                warm_up=0,
            )
        seconds, wanted = times.medians, OF_THE_MODEL.get(tokens)
        limit = f"   (wanted: at most {wanted})" if wanted else ""
        print(
            f"   {tokens:5d} tokens   forward {seconds['forward']:6.2f} s   report "
            f"{seconds['report']:6.2f} s   ratio {times.ratio('report', 'forward'):.2f}{limit}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--part", type=int, choices=(1, 2))
    chosen = parser.parse_args()
    if chosen.part in (None, 1):
        one_layer(chosen.tokens, chosen.dtype, chosen.rounds)
    if chosen.part in (None, 2):
        whole_model(chosen.tokens, min(chosen.rounds, 5))


if __name__ == "__main__":
    main()
