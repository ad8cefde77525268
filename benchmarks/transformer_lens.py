"""The same heads found, and what it costs, against TransformerLens.

    python -m venv peer
    peer/bin/pip install --constraint constraints.txt -e '.[torch,hf]' transformer-lens==4.3.0
    peer/bin/python benchmarks/transformer_lens.py [--rounds 5] [--part 1|2|3]

SmolLM2-135M, float32, the same weights and the same tokens for both:

1. previous-token, duplicate-token and induction scores of all 270 heads, ours from ``report``,
   theirs from ``detect_head`` (its default measure, "mul": the part of a head's attention that
   falls on the pattern): the ten highest heads of each, and the largest difference;
2. at 2,048 tokens, the time of `watch` and `report`, and of ``watch(model, measure=…)``, which
   keeps nothing, against TransformerLens with hooks on the attention patterns alone and the same
   statistics: from the cache of patterns (``run_with_cache``), and in the hooks themselves as each
   layer runs, keeping nothing: the leanest way there is;
3. the peak memory of each above a plain forward, in child processes.

TransformerLens is no dependency of anything else here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

# This file has the name that the peer has without its underscore: look for the peer elsewhere.
sys.path = [place for place in sys.path if Path(place).resolve() != Path(__file__).parent]
sys.path.append(str(Path(__file__).parent))

from timing import interleaved, peak_memory  # noqa: E402

TEXT = (
    "The bank of the river was muddy. The money was deposited in the bank, and the clerk who "
    "counted it looked out of the window at the water. "
)
NAMES = {
    "previous": "previous_token_head",
    "duplicate": "duplicate_token_head",
    "induction": "induction_head",
}


def ours(n_tokens: int) -> tuple[Any, Any]:
    """(transformers model with its own fused attention, ids)."""
    import torch
    from transformers import LlamaForCausalLM

    import jumok
    from jumok.model.zoo import model_folder

    _, tokenizer = jumok.load("smollm2")
    model = LlamaForCausalLM.from_pretrained(
        model_folder("smollm2"), dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    return model, torch.tensor([tokenizer.encode(TEXT * (n_tokens // 24 + 1))[:n_tokens]])


def theirs(n_tokens: int) -> tuple[Any, Any]:
    """(TransformerLens' bridge to the same model, ids)."""
    import torch
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from jumok.model.zoo import model_folder

    folder = str(model_folder("smollm2"))
    model = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(folder, hf_model=model, tokenizer=tokenizer)
    bridge.eval()
    return bridge, ours(n_tokens)[1]


def plain(state: tuple[Any, Any]) -> Any:
    import torch

    model, ids = state
    with torch.no_grad():
        model.model(ids)


def watched_report(state: tuple[Any, Any], measures: tuple[str, ...] = ()) -> Any:
    import torch

    import jumok

    model, ids = state
    with torch.no_grad():
        with jumok.watch(model.model) as recording:
            model.model(ids)
        return jumok.report(recording, measures=measures)


def measured_report(state: tuple[Any, Any]) -> Any:
    """Measured while the model runs; no tensor is kept."""
    import torch

    import jumok
    from jumok.lens.heads import DEFAULT

    model, ids = state
    with torch.no_grad():
        with jumok.watch(model.model, measure=DEFAULT) as recording:
            model.model(ids)
        return jumok.report(recording)


def statistics(pattern: Any) -> dict[str, Any]:
    """The columns of our report from a pattern (1, heads, queries, keys)."""
    import torch

    n = pattern.shape[-1]
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs().float()
    return {
        "entropy": torch.special.entr(pattern).sum(-1).mean(-1)[0],
        "distance": (pattern * distance).sum(-1).mean(-1)[0],
        "first": pattern[..., 0].mean(-1)[0],
        "itself": pattern.diagonal(dim1=-2, dim2=-1).mean(-1)[0],
        "previous": pattern.diagonal(-1, dim1=-2, dim2=-1).sum(-1)[0] / n,
        "most_read": pattern.sum(-2).argmax(-1)[0],
    }


def is_pattern(name: str) -> bool:
    return name.endswith("hook_pattern")


def cached_report(state: tuple[Any, Any]) -> list[dict[str, Any]]:
    """From the cache of all patterns."""
    import torch

    bridge, ids = state
    with torch.no_grad():
        _, cache = bridge.run_with_cache(ids, names_filter=is_pattern, return_type=None)
        return [statistics(cache["pattern", layer]) for layer in range(bridge.cfg.n_layers)]


def hooked_report(state: tuple[Any, Any]) -> list[dict[str, Any]]:
    """In the hooks; no pattern is kept."""
    import torch

    bridge, ids = state
    rows = []

    def see(pattern: Any, hook: Any) -> None:
        rows.append(statistics(pattern))

    with torch.no_grad():
        bridge.run_with_hooks(ids, return_type=None, fwd_hooks=[(is_pattern, see)])
    return rows


WAYS = {
    "jumok, watch + report": (ours, watched_report),
    "jumok, watch(measure=…)": (ours, measured_report),
    "TransformerLens, cache": (theirs, cached_report),
    "TransformerLens, in hooks": (theirs, hooked_report),
}


def same_heads(n_tokens: int) -> None:
    import numpy as np
    import torch
    from transformer_lens.head_detector import detect_head

    bridge, ids = theirs(n_tokens)
    text = bridge.tokenizer.decode(ids[0].tolist())
    tokens = bridge.to_tokens(text)  # what detect_head will run on
    model, _ = ours(n_tokens)
    report = watched_report((model, tokens), ("duplicate", "induction"))
    print(f"1. the same heads, SmolLM2, {tokens.shape[1]} tokens")
    for column, name in NAMES.items():
        with torch.no_grad():
            peer = detect_head(bridge, text, name).numpy().reshape(-1)
        mine = np.asarray(report.columns[column])
        best, other = (np.argsort(-values)[:10].tolist() for values in (mine, peer))
        print(
            f"   {column:10s} top ten agree: {set(best) == set(other)}, in the same order: "
            f"{best == other}; highest {divmod(best[0], 9)} {mine[best[0]]:.4f} and "
            f"{peer[other[0]]:.4f}; largest difference {abs(mine - peer).max():.1e} "
            f"(wanted: at most 1e-3)"
        )


def time(rounds: int, n_tokens: int) -> None:
    import numpy as np

    states = {ours: ours(n_tokens), theirs: theirs(n_tokens)}
    report, rows = watched_report(states[ours]), cached_report(states[theirs])
    worst = 0.0
    for column in ("entropy", "distance", "first", "itself", "previous"):
        values = np.concatenate([row[column].numpy() for row in rows])
        difference = abs(np.asarray(report.columns[column]) - values) / np.maximum(1, abs(values))
        worst = max(worst, float(difference.max()))
    work = {
        name: lambda state=states[prepare], way=way: way(state)
        for name, (prepare, way) in WAYS.items()
    }
    times = interleaved({"plain forward": lambda: plain(states[ours]), **work}, rounds, warm_up=0)
    print(f"2. all columns of the report, SmolLM2, {n_tokens} tokens")
    print(f"   largest relative difference: {worst:.1e}")
    for name, seconds in times.medians.items():
        print(f"   {name:26s}  {seconds:6.2f} s")
    cache, report_ = "TransformerLens, cache", "jumok, watch + report"
    print(f"   faster, cache:    {times.ratio(cache, report_):.2f}   (wanted: at least 2)")
    lean, measured = "TransformerLens, in hooks", "jumok, watch(measure=…)"
    print(f"   faster, in hooks: {times.ratio(lean, measured):.2f}", flush=True)


def memory(n_tokens: int) -> None:
    peak, before = peak_memory(ours, plain, n_tokens)
    base, extra = peak - before, {}
    print(f"3. memory above a plain forward, SmolLM2, {n_tokens} tokens")
    for name, (prepare, way) in WAYS.items():
        peak, before = peak_memory(prepare, way, n_tokens)
        extra[name] = peak - before - base
        print(f"   {name:26s}  {extra[name] / 1e9:6.2f} GB", flush=True)
    part = extra["jumok, watch + report"] / extra["TransformerLens, cache"]
    print(f"   of the cache:   {part:.3f}   (wanted: at most 0.125)")
    part = extra["jumok, watch(measure=…)"] / extra["TransformerLens, in hooks"]
    print(f"   of the hooks:   {part:.3f}")


def main() -> None:
    try:
        import transformer_lens  # noqa: F401
    except ModuleNotFoundError:
        print(
            "TransformerLens is not installed here; see the head of benchmarks/transformer_lens.py"
        )
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", type=int, choices=(1, 2, 3))
    options = parser.parse_args()
    if options.part in (None, 1):
        same_heads(200)
    if options.part in (None, 2):
        time(options.rounds, 2048)
    if options.part in (None, 3):
        memory(2048)


if __name__ == "__main__":
    main()
