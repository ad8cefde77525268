"""What watching costs, and what it costs the others.

    python benchmarks/watch.py                 all of it (about 15 minutes on two cores)
    python benchmarks/watch.py --quick         fewer rounds, no 8,192 tokens

SmolLM2-135M (30 layers × 9 heads), the same transformers model for both sides:

1. a watched forward against a plain one, outputs compared bit by bit;
2. `watch` and `report` against transformers' eager `output_attentions=True` and the same
   statistics from its tensors: time in turns, peak memory above a plain forward, each in a
   child process of its own;
3. our peak memory at 8,192 tokens, where the weights are 72 GB.
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Any

from timing import Timings, interleaved, peak_memory

TEXT = (
    "The bank of the river was muddy. The money was deposited in the bank, and the clerk who "
    "counted it looked out of the window at the water. "
)


def prepare(implementation: str, dtype: str, n_tokens: int) -> tuple[Any, Any]:
    """(transformers model, ids): SmolLM2 with the given attention implementation."""
    import torch
    from transformers import LlamaForCausalLM

    import jumok
    from jumok.model.zoo import model_folder

    _, tokenizer = jumok.load("smollm2")
    model = LlamaForCausalLM.from_pretrained(
        model_folder("smollm2"),
        dtype=getattr(torch, dtype),
        attn_implementation=implementation,
        max_position_embeddings=8192,
    ).eval()
    ids = tokenizer.encode(TEXT * (n_tokens // 24 + 1))
    assert len(ids) >= n_tokens
    return model, torch.tensor([ids[:n_tokens]])


def plain(state: tuple[Any, Any]) -> Any:
    import torch

    model, ids = state
    with torch.no_grad():
        return model.model(ids).last_hidden_state


def watched(state: tuple[Any, Any]) -> Any:
    import torch

    import jumok

    model, ids = state
    with torch.no_grad(), jumok.watch(model.model):
        return model.model(ids).last_hidden_state


def watched_report(state: tuple[Any, Any]) -> Any:
    import torch

    import jumok

    model, ids = state
    with torch.no_grad():
        with jumok.watch(model.model) as recording:
            model.model(ids)
        return jumok.report(recording)


def eager_report(state: tuple[Any, Any]) -> Any:
    """The same statistics from the weights that transformers' eager attention returns."""
    import torch

    model, ids = state
    with torch.no_grad():
        attentions = model.model(ids, output_attentions=True).attentions
        rows = []
        n = ids.shape[1]
        distance = (torch.arange(n)[:, None] - torch.arange(n)).abs().float()
        for weights in attentions:
            w = weights.float()
            rows.append(
                {
                    "entropy": torch.special.entr(w).sum(-1).mean(-1),
                    "distance": (w * distance).sum(-1).mean(-1),
                    "first": w[..., 0].mean(-1),
                    "itself": w.diagonal(dim1=-2, dim2=-1).mean(-1),
                    "previous": w.diagonal(-1, dim1=-2, dim2=-1).sum(-1) / n,
                    "most_read": w.sum(-2).argmax(-1),
                }
            )
        return rows


def check_same(ours: Any, theirs: list[dict[str, Any]], tolerance: float) -> float:
    """Largest difference between our report and the peer's statistics."""
    import numpy as np

    worst = 0.0
    for column in ("entropy", "distance", "first", "itself", "previous"):
        peer = np.concatenate([row[column][0].numpy() for row in theirs])
        mine = np.asarray(ours.columns[column])
        worst = max(worst, float((abs(mine - peer) / np.maximum(1, abs(peer))).max()))
    assert worst < tolerance, worst
    return worst


def watching(rounds: int) -> None:
    import torch

    print("1. a watched forward against a plain one, SmolLM2, 2,048 tokens")
    state = prepare("sdpa", "float32", 2048)
    same = torch.equal(plain(state), watched(state))
    times = interleaved({"plain": lambda: plain(state), "watched": lambda: watched(state)}, rounds)
    print(f"   outputs bit-identical: {same}")
    print(f"   plain {times.medians['plain']:.2f} s   watched {times.medians['watched']:.2f} s")
    print(f"   ratio {times.ratio('watched', 'plain'):.3f}   (wanted: at most 1.03)\n")


def against_eager(dtype: str, rounds: int) -> None:
    print(f"2. watch + report against eager output_attentions, SmolLM2, 2,048 tokens, {dtype}")
    times, worst = timed_against_eager(dtype, rounds)
    base = memory("sdpa", dtype, 2048, plain)
    extra = {
        "jumok": memory("sdpa", dtype, 2048, watched_report) - base,
        "eager": memory("eager", dtype, 2048, eager_report) - base,
    }
    seconds = times.medians
    print(f"   largest relative difference of the statistics: {worst:.1e}")
    print(f"   plain forward  {seconds['plain']:6.2f} s")
    for name in ("jumok", "eager"):
        print(
            f"   {name:13s}  {seconds[name]:6.2f} s   {extra[name] / 1e9:.2f} GB above a plain one"
        )
    faster = times.ratio("eager", "jumok")
    wanted = 2 if dtype == "float32" else 4
    print(f"   eager / jumok, time:   {faster:.2f}   (wanted: at least {wanted})")
    smaller = extra["jumok"] / extra["eager"]
    print(f"   jumok / eager, memory: {smaller:.3f}   (wanted: at most 0.1)\n", flush=True)


def timed_against_eager(dtype: str, rounds: int) -> tuple[Timings, float]:
    """Times in turns, and the largest difference between the statistics of both sides."""
    mine, peer = prepare("sdpa", dtype, 2048), prepare("eager", dtype, 2048)
    worst = check_same(
        watched_report(mine), eager_report(peer), 1e-3 if dtype == "float32" else math.inf
    )
    work = {
        "jumok": lambda: watched_report(mine),
        "eager": lambda: eager_report(peer),
        "plain": lambda: plain(mine),
    }
    return interleaved(work, rounds), worst


def memory(implementation: str, dtype: str, n_tokens: int, work: Any, repeats: int = 2) -> float:
    """Median over child processes of the peak that `work` adds to the loaded model."""
    found = []
    for _ in range(repeats):
        peak, before = peak_memory(prepare, work, implementation, dtype, n_tokens)
        found.append(peak - before)
    return statistics.median(found)


def long_input(dtype: str) -> None:
    base = memory("sdpa", dtype, 8192, plain, 1)
    mine = memory("sdpa", dtype, 8192, watched_report, 1)
    wanted = 1.2 if dtype == "float32" else 0.6
    print(
        f"3. watch + report, SmolLM2, 8,192 tokens, {dtype}: {(mine - base) / 1e9:.2f} GB above a "
        f"plain forward   (wanted: below {wanted}; the weights would take 72 GB)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 8,192 tokens")
    parser.add_argument("--only", type=int, choices=(1, 2, 3), help="one of the three parts")
    options = parser.parse_args()
    rounds = 3 if options.quick else 7
    if options.only in (None, 1):
        watching(2 * rounds)
    if options.only in (None, 2):
        for dtype in ("float32", "bfloat16"):
            against_eager(dtype, rounds)
    if options.only in (None, 3) and not options.quick:
        for dtype in ("float32", "bfloat16"):
            long_input(dtype)


if __name__ == "__main__":
    main()
