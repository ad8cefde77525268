"""Training a GPT-2 of about 10 million parameters, context 256: `jumok.train` against a plain loop.

The peer is a plain PyTorch loop around transformers' ``GPT2LMHeadModel`` with what is best for
it: SDPA, no cache, fused AdamW, and autocast for bfloat16. Both begin with the same weights and
read the same batches of the same tokens. Sides run in processes that take turns; tokens a second
are of the median step, our log, evaluation and gradient clipping included.

    python benchmarks/training.py                  # speed and memory
    python benchmarks/training.py --equal          # the loss of 200 steps, side by side

Two shapes: ``bpe`` has a vocabulary of 8,192, which a BPE trained on a small corpus has (width
256, 10 layers); ``gpt2`` has the vocabulary of GPT-2, 50,257, which leaves width 160 and 6 layers.
``--gelu fused`` gives the peer PyTorch's own tanh-GELU in place of GPT-2's published one, which
transformers computes in eight operations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

SHAPES = {  # vocabulary, width, layers, heads
    "bpe": (8192, 256, 10, 8),
    "gpt2": (50257, 160, 6, 5),
}
CONTEXT = 256
RATE, DECAY, CLIP = 6e-4, 0.1, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["bpe"], choices=list(SHAPES))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--gelu", choices=["published", "fused"], default="published")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--side", nargs=3, metavar=("SIDE", "DTYPE", "FOLDER"))
    options = parser.parse_args()
    if options.side:
        print(json.dumps(run_side(*options.side, options)))
        return
    if options.equal:
        options.rows, options.steps, options.rounds = 4, 200, 1
    for shape in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder), shape, options)
            for dtype in options.dtypes:
                compare(Path(folder), shape, dtype, options)


def compare(folder: Path, shape: str, dtype: str, options: argparse.Namespace) -> None:
    """Run both sides in turns, and print what came out."""
    found: dict[str, list[dict[str, Any]]] = {"jumok": [], "plain": []}
    for number in range(options.rounds):
        for side in ("jumok", "plain") if number % 2 else ("plain", "jumok"):
            command = [sys.executable, __file__, "--side", side, dtype, str(folder)]
            command += ["--rows", str(options.rows), "--steps", str(options.steps)]
            command += ["--gelu", options.gelu]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
    speeds = {side: [run["speed"] for run in runs] for side, runs in found.items()}
    ratio = statistics.median(a / b for a, b in zip(*speeds.values(), strict=True))
    ours, theirs = (min(run["peak"] for run in found[side]) for side in ("jumok", "plain"))
    our_part, their_part = (min(run["above"] for run in found[side]) for side in ("jumok", "plain"))
    print(f"{shape}, {dtype}, {options.rows} rows of {CONTEXT} tokens, peer's GELU {options.gelu}:")
    for side in found:
        print(f"  {side}: {statistics.median(speeds[side]):,.0f} tokens/s (median step)")
    print(f"  speed {ratio:.2f} times the plain loop's")
    print(
        f"  peak memory {ours / 2**20:,.0f} against {theirs / 2**20:,.0f} MiB: {ours / theirs:.2f}"
    )
    print(
        f"  above the loaded libraries {our_part / 2**20:,.0f} against "
        f"{their_part / 2**20:,.0f} MiB: {our_part / their_part:.2f}"
    )
    losses = [found[side][0]["losses"] for side in ("jumok", "plain")]
    apart = max(abs(one - other) for one, other in zip(*losses, strict=True))
    print(
        f"  loss after {len(losses[0])} steps {losses[0][-1]:.5f} and {losses[1][-1]:.5f}; the "
        f"largest difference of any step {apart:.1e}"
    )


# Both sides -----------------------------------------------------------------------------------


def prepare(folder: Path, shape: str, options: argparse.Namespace) -> None:
    """The weights that both begin with, and the tokens that both read."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from jumok.training.corpus import read_corpus
    from jumok.training.new_tokenizer import new_tokenizer
    from jumok.training.tokenise import tokenise

    vocabulary, width, layers, heads = SHAPES[shape]
    corpus = read_corpus("topics")
    tokenizer = new_tokenizer("bpe", corpus, 8192, folder / "data")
    tokenise(corpus, tokenizer, folder / "data")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=CONTEXT,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    model.save_pretrained(folder / "weights")
    tokenizer.save(folder / "weights")
    n_weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"{shape}: {n_weights / 1e6:.2f} million parameters", flush=True)


def run_side(side: str, dtype: str, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """Speed, memory and losses of one side, in this process."""
    quieten()
    run = run_jumok if side == "jumok" else run_plain
    before, seconds, losses = run(Path(folder), dtype, options)
    peak = status("VmHWM")
    speed = options.rows * CONTEXT / statistics.median(seconds[1:])
    return {"speed": speed, "peak": peak, "above": peak - before, "losses": losses}


def run_jumok(
    folder: Path, dtype: str, options: argparse.Namespace
) -> tuple[int, list[float], list[float]]:
    import torch  # noqa: F401

    import jumok
    from jumok.training.log import read_rows

    jumok.train  # noqa: B018  (loads it)
    before = status("VmRSS")
    with tempfile.TemporaryDirectory() as out:
        training = jumok.Training(
            "topics",
            out,
            base=str(folder / "weights"),
            data=folder / "data",
            context=CONTEXT,
            batch=options.rows,
            steps=options.steps,
            validation=0.0,
            learning_rate=RATE,
            schedule="constant",
            warm_up=0,
            weight_decay=DECAY,
            clip=CLIP,
            dtype=dtype,
            log_every=1,
        )
        jumok.train(training, show=False)
        rows = [row for row in read_rows(Path(out) / "log.jsonl") if "loss" in row]
    times = [0.0, *(row["seconds"] for row in rows)]
    return (
        before,
        [after - start for start, after in pairwise(times)],
        [row["loss"] for row in rows],
    )


def run_plain(
    folder: Path, dtype: str, options: argparse.Namespace
) -> tuple[int, list[float], list[float]]:
    import torch
    from transformers import GPT2LMHeadModel

    from jumok.tokens import Tokenizer
    from jumok.training.batches import new_batches
    from jumok.training.token_file import TokenFile

    before = status("VmRSS")
    changes = {"activation_function": "gelu_pytorch_tanh"} if options.gelu == "fused" else {}
    model = GPT2LMHeadModel.from_pretrained(
        folder / "weights", attn_implementation="sdpa", use_cache=False, **changes
    )
    model.train()
    tokens, tokenizer = (
        TokenFile(folder / "data" / "tokens.safetensors"),
        Tokenizer.from_folder(folder / "weights"),
    )
    batches = new_batches("gpt", tokens, tokenizer, batch=options.rows, context=CONTEXT, seed=0)
    matrices = [weight for weight in model.parameters() if weight.ndim >= 2]
    others = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)
    seconds, losses = [], []
    for step in range(options.steps):
        start = time.perf_counter()
        batch = batches(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(input_ids=batch.ids, labels=batch.targets, shift_labels=batch.targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return before, seconds, losses


def quieten() -> None:
    """No progress bars of transformers between the figures."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}: memory is measured on Linux only")


if __name__ == "__main__":
    main()
