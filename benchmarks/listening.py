"""What listening costs while a model runs: short and long forwards, and generation.

    python benchmarks/listening.py [--rounds 5] [--model smollm2]

SmolLM2-135M, float32. The watched run (the block is opened and closed each time) and the plain
one take turns, and the ratio is the median of the pairs. Both must give the same, bit for bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

import jumok
from timing import interleaved
from watch import TEXT


def watched(model: Any, run: Callable[[], Any]) -> Any:
    with jumok.watch(model):
        return run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="smollm2")
    options = parser.parse_args()
    model, tokenizer = jumok.load(options.model)
    ids = torch.tensor([tokenizer.encode(TEXT * 90)[:2048]])

    def generate() -> Any:
        return jumok.generate(model, ids[:, :256], max_new_tokens=64, temperature=0, stop=None)

    cases: dict[str, tuple[Callable[[], Any], int, float]] = {
        "forward, 16 tokens": (lambda: model(ids[:, :16]), 4 * options.rounds, 1.3),
        "forward, 2,048 tokens": (lambda: model(ids), options.rounds, 1.03),
        "64 greedy steps after 256 tokens": (generate, options.rounds, 1.25),
    }
    print(f"{options.model}, watched and plain, {torch.get_num_threads()} threads")
    with torch.no_grad():
        for name, (run, rounds, wanted) in cases.items():
            assert torch.equal(watched(model, run), run()), f"{name}: outputs differ"
            times = interleaved(
                {"plain": run, "watched": lambda run=run: watched(model, run)}, rounds, warm_up=0
            )
            seconds, ratio = times.medians, times.ratio("watched", "plain")
            print(
                f"   {name:33s} plain {1e3 * seconds['plain']:7.1f} ms   watched "
                f"{1e3 * seconds['watched']:7.1f} ms   ratio {ratio:.2f}   (wanted: {wanted})",
                flush=True,
            )


if __name__ == "__main__":
    main()
