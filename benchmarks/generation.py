"""How fast models write and read, against transformers and against the memory.

    python benchmarks/generation.py              all of it (about 15 minutes on two cores)
    python benchmarks/generation.py --quick      fewer rounds, perplexity of a shorter text
    python benchmarks/generation.py --only 1     one of the three parts

SmolLM2-135M, in turns in one process:

1. 128 new tokens after a prompt of 22, batch 1, likeliest tokens: float32 against transformers'
   `generate` in float32 (the same tokens), and against the time that reading the weights once a
   token takes, measured with a matrix-vector product of the same bytes; then our ways with fewer
   bits against transformers' fastest own (the best of float32, bfloat16 and float16 here; a
   static cache and `torch.compile` were tried and gave at most 7 % more).
2. What those ways cost: perplexity on CPython's own help texts, read as they are when generating.
3. A prompt of 2,048 tokens read at once, against transformers' forward (sdpa), same dtype.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import jumok
from jumok.model.linear import linear
from jumok.model.zoo import model_folder
from timing import interleaved

PROMPT = (
    "The bank of the river was muddy. The money was deposited in the bank, and the clerk who "
    "counted it"
)
NEW = 128
WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16": {"dtype": "float16"},
    "int8": {"weights": "int8"},
    "int4": {"weights": "int4"},
}


def peer(dtype: str) -> Any:
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return LlamaForCausalLM.from_pretrained(
        model_folder("smollm2"), dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()


def peer_writes(model: Any, ids: Tensor) -> Callable[[], Tensor]:
    settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    mask = torch.ones_like(ids)
    return lambda: model.generate(ids, attention_mask=mask, pad_token_id=0, **settings)


def we_write(model: Any, ids: Tensor) -> Callable[[], Tensor]:
    return lambda: jumok.generate(model, ids, NEW, 0, stop=None)


def weight_bytes(model: Any) -> int:
    """What a step reads: every weight once, the tied table as the head."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())


def reading(size: int) -> Callable[[], Tensor]:
    """The product of one vector with a float32 matrix of so many bytes, at our fastest."""
    matrix = torch.ones(size // 4 // 576 // 16 * 16, 576)
    vector = torch.ones(1, 576)
    return lambda: linear(vector, matrix)


def writing(rounds: int) -> None:
    print(f"1. {NEW} new tokens, batch 1")
    ours = {name: jumok.load("smollm2", **options)[0] for name, options in WAYS.items()}
    tokenizer = jumok.load("smollm2")[1]
    assert tokenizer is not None
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    theirs = {name: peer(name) for name in ("float32", "bfloat16", "float16")}
    same = torch.equal(we_write(ours["float32"], ids)(), peer_writes(theirs["float32"], ids)())
    size = weight_bytes(ours["float32"])
    work = {f"jumok {name}": we_write(model, ids) for name, model in ours.items()}
    work |= {f"transformers {name}": peer_writes(model, ids) for name, model in theirs.items()}
    read = reading(size)
    work["reading"] = lambda: [read() for _ in range(NEW)]
    with torch.inference_mode():
        times = interleaved(work, rounds)
    medians = times.medians
    print(f"   float32: the same {NEW} tokens as transformers: {same}")
    for name, seconds in medians.items():
        print(f"   {name:24s} {NEW / seconds:6.1f} tokens/s")
    print(f"   reading {size / 1e6:.0f} MB: {size * NEW / medians['reading'] / 1e9:.1f} GB/s")
    fastest = min(theirs, key=lambda name: medians[f"transformers {name}"])
    ratio = times.ratio("transformers float32", "jumok float32")
    print(f"   float32 against transformers float32: {ratio:.2f}   (wanted: at least 1.5)")
    share = times.ratio("reading", "jumok float32")
    print(f"   float32 against reading the weights:  {share:.2f}   (wanted: at least 0.7)")
    for name in ours:
        ratio = times.ratio(f"transformers {fastest}", f"jumok {name}")
        print(f"   {name} against transformers {fastest}: {ratio:.2f}   (wanted of one: 2.5)")
    print(flush=True)


def perplexity(model: Any, pieces: Tensor) -> float:
    """Of (pieces, tokens), fed a few tokens at a time, as they are when generating."""
    total = 0.0
    with torch.inference_mode():
        for piece in pieces:
            cache, inputs = model.new_cache(len(piece)), piece[None, :-1]
            logits = [model(part, None, cache)[0].float() for part in inputs.split(16, dim=1)]
            total += F.cross_entropy(torch.cat(logits), piece[1:], reduction="sum").item()
    return math.exp(total / (pieces.numel() - len(pieces)))


def rounding(n_pieces: int) -> None:
    tokenizer = jumok.load("smollm2")[1]
    assert tokenizer is not None
    ids = torch.tensor(tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics))))
    pieces = ids[: len(ids) // 513 * 513].view(-1, 513)
    pieces = pieces[:: max(1, len(pieces) // n_pieces)][:n_pieces]
    print(f"2. perplexity of {pieces.numel():,} tokens of pydoc_data.topics")
    base = 0.0
    for name, options in WAYS.items():
        found = perplexity(jumok.load("smollm2", **options)[0], pieces)
        base = base or found
        print(f"   {name:8s} {found:.3f}  {found / base - 1:+.2%}   (wanted: at most +1 %)")
    print(flush=True)


def prefill(rounds: int) -> None:
    tokenizer = jumok.load("smollm2")[1]
    assert tokenizer is not None
    ids = torch.tensor([tokenizer.encode(PROMPT * 120)[:2048]])
    for dtype in ("float32", "bfloat16"):
        mine, other = jumok.load("smollm2", dtype=dtype)[0], peer(dtype)
        work: dict[str, Callable[[], Any]] = {
            "jumok": lambda mine=mine: mine(ids, last=1),
            "transformers": lambda other=other: other(ids, logits_to_keep=1).logits,
        }
        with torch.inference_mode():
            times = interleaved(work, rounds)
        ratio = times.ratio("transformers", "jumok")
        print(
            f"3. 2,048 tokens read, {dtype}: {times.medians['jumok']:.2f} s, transformers "
            f"{times.medians['transformers']:.2f} s, ratio {ratio:.2f}   (wanted: at least 1.0)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a shorter text")
    parser.add_argument("--only", type=int, choices=(1, 2, 3), help="one of the three parts")
    options = parser.parse_args()
    if options.only in (None, 1):
        writing(2 if options.quick else 7)
    if options.only in (None, 2):
        rounding(4 if options.quick else 16)
    if options.only in (None, 3):
        prefill(2 if options.quick else 5)


if __name__ == "__main__":
    main()
