"""What rollout through all layers costs, in units of the model's own attention.

    python benchmarks/rollout.py [--rounds 3] [--tokens 8192]

SmolLM2-135M (30 layers × 9 heads), float32, recorded once; then the attention of all layers (one
fused call each) and the rollout of one query take turns, and the ratio is the median of the pairs.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F

import jumok
from timing import interleaved
from watch import TEXT


def record(tokens: int) -> Any:
    model, tokenizer = jumok.load("smollm2")
    ids = tokenizer.encode(TEXT * (tokens // 24 + 1))[:tokens]
    assert len(ids) == tokens
    with jumok.watch(model) as recording:
        model(torch.tensor([ids]))
    return recording


def attention(recording: Any) -> None:
    for found in recording:
        call = found.call
        F.scaled_dot_product_attention(call.q, call.k, call.v, is_causal=True, enable_gqa=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=8192)
    options = parser.parse_args()
    with torch.no_grad():
        recording = record(options.tokens)
        work = {
            "attention": lambda: attention(recording),
            "rollout": lambda: jumok.rollout(recording, -1),
            "norm-weighted": lambda: jumok.rollout(recording, -1, norm_weighted=True),
        }
        times = interleaved(work, options.rounds, warm_up=0)
    seconds = times.medians
    print(f"rollout of one query, SmolLM2, {len(recording)} layers, {options.tokens} tokens")
    print(f"   attention of the model  {seconds['attention']:6.2f} s")
    for name in ("rollout", "norm-weighted"):
        ratio = times.ratio(name, "attention")
        wanted = "   (wanted: at most 1.5)" if name == "rollout" else ""
        print(f"   {name:22s}  {seconds[name]:6.2f} s   ratio {ratio:.2f}{wanted}")


if __name__ == "__main__":
    main()
