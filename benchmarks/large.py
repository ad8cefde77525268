"""A recording of 131,072 tokens: what opening it and looking at parts of it takes.

    python benchmarks/large.py                     all of it (about 2 minutes on two cores)
    python benchmarks/large.py --only 1            opening and looking
    python benchmarks/large.py --only 2            recording to disk, memory by number of layers

1. One layer of SmolLM2's shape (9 heads over 3 key heads of 64), bfloat16; its weights would take
   618 GB. Synthetic: q is random, the keys are those of 512 words in random order, so that the
   log-sum-exp is known exactly from how often each word has occurred so far. Every question is
   asked in a process of its own; memory is its peak above what it had after opening the file.
2. A model of 4 and of 32 layers over 8,192 tokens, recorded with ``to="disk"`` and in memory:
   peak memory above the same forward unwatched.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from timing import peak_memory

TOKENS = 131_072
HEADS, KEY_HEADS, WIDTH, WORDS = 9, 3, 64, 512
SCALE = WIDTH**-0.5

QUESTIONS = {
    "open": lambda m: m.shape,
    "a 256 × 256 tile": lambda m: m[0, 3, 90_000:90_256, 70_000:70_256],
    "a tile of all heads": lambda m: m[0, :, 90_000:90_256, 70_000:70_256],
    "a row": lambda m: m[0, 3, 100_000],
    "a row of all heads": lambda m: m[0, :, 100_000],
    "a column": lambda m: m[0, 3, :, 5_000],
    "a column of all heads": lambda m: m.column(5_000),
    "a diagonal of all heads": lambda m: m.diagonal(-1),
}


@dataclass(eq=False)
class Synthetic:
    """The source of a map that no model has made."""

    recorded: Any
    name: str = "synthetic"
    measured: None = None
    value_note: str = "no values"
    has_value_norms: bool = False
    held_bytes: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.recorded.shape  # type: ignore[no-any-return]

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(range(HEADS))

    def call(self) -> Any:
        return self.recorded

    def value_norms(self) -> None:
        return None


def write(path: Path, tokens: int) -> None:
    """The recording described at the top."""
    import torch

    from jumok.lens.attention_map import AttentionMap
    from jumok.lens.call import AttentionCall
    from jumok.lens.recording import Recording
    from jumok.masks import Causal

    random = torch.Generator().manual_seed(0)
    words = torch.randn(KEY_HEADS, WORDS, WIDTH, generator=random).bfloat16()
    ids = torch.randint(WORDS, (tokens,), generator=random)
    q = torch.empty(1, HEADS, tokens, WIDTH, dtype=torch.bfloat16)
    lse = torch.empty(1, HEADS, tokens)
    counts = torch.zeros(WORDS)
    for start in range(0, tokens, 4096):
        part = slice(start, min(start + 4096, tokens))
        occurred = torch.nn.functional.one_hot(ids[part], WORDS).cumsum(0) + counts
        counts = occurred[-1].float()
        for head in range(HEADS):
            rows = torch.randn(len(occurred), WIDTH, generator=random).bfloat16()
            scores = rows.float() @ words[head // (HEADS // KEY_HEADS)].float().T * SCALE
            q[0, head, part], lse[0, head, part] = rows, (scores + occurred.log()).logsumexp(-1)
    call = AttentionCall(q, words[None, :, ids], None, Causal(), None, SCALE, lse=lse)
    recording = Recording("synthetic", [AttentionMap(Synthetic(call))])
    recording.ids = ids[None].numpy()
    recording.save(path)


def opened(path: str) -> tuple[Any, str]:
    import jumok

    return jumok.open(path)[0], path


def unopened(path: str) -> tuple[None, str]:
    import jumok

    jumok.open  # noqa: B018  (load the code, not the file)
    return None, path


def ask(question: str, state: tuple[Any, str]) -> float:
    """Seconds of one question, asked for the first time."""
    import jumok

    start = time.perf_counter()
    found = state[0] if state[0] is not None else jumok.open(state[1])[0]
    QUESTIONS[question](found)
    return time.perf_counter() - start


@dataclass(frozen=True)
class Question:
    """Something to ask a child process; says what it took on its own output."""

    text: str

    def __call__(self, state: tuple[Any, str]) -> None:
        seconds = ask(self.text, state)
        again = ask(self.text, state)
        print(f"   {self.text:24s} {seconds:6.3f} s, again {again:6.3f} s", end="", flush=True)


def looking(tokens: int) -> None:
    import jumok

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.safetensors"
        write(path, tokens)
        print(f"1. {tokens:,} tokens, a file of {path.stat().st_size / 1e6:.0f} MB")
        found = jumok.open(path)[0]
        row = found[0, 3, tokens - 1]
        assert abs(float(row.sum()) - 1) < 1e-4, row.sum()
        assert np.array_equal(found.diagonal(-1)[0, 3, -1], row[-2])
        for question in QUESTIONS:
            prepare = unopened if question == "open" else opened
            peak, before = peak_memory(prepare, Question(question), str(path))
            print(f", {(peak - before) / 1e6:6.1f} MB", flush=True)
        print("   (wanted: open below 1 s, the others below 0.2 s and 100 MB)\n")


def layers(count: int, tokens: int) -> tuple[Any, Any]:
    """(model, input): so many attention layers of SmolLM2's shape."""
    import torch
    from torch.nn import functional as F

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(576, (HEADS + 2 * KEY_HEADS) * WIDTH)
            self.out = torch.nn.Linear(576, 576)

        def forward(self, x: Any) -> Any:
            heads = self.qkv(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2)
            q, k, v = heads.split([HEADS, KEY_HEADS, KEY_HEADS], dim=1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return x + self.out(y.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer() for _ in range(count))), torch.randn(1, tokens, 576)


def unwatched(state: tuple[Any, Any]) -> Any:
    import torch

    with torch.no_grad():
        return state[0](state[1])


def in_memory(state: tuple[Any, Any]) -> Any:
    import torch

    import jumok

    with torch.no_grad(), jumok.watch(state[0]) as recording:
        state[0](state[1])
    return recording


def on_disk(state: tuple[Any, Any]) -> Any:
    import torch

    import jumok

    with torch.no_grad(), jumok.watch(state[0], to="disk") as recording:
        state[0](state[1])
    return recording


def recording_to_disk(tokens: int) -> None:
    one = tokens * WIDTH * 4 * (HEADS + 2 * KEY_HEADS) / 1e6
    print(f"2. {tokens:,} tokens; q, k and v of one layer are {one:.0f} MB")
    for count in (4, 32):
        base = peak_memory(layers, unwatched, count, tokens)
        for work in (in_memory, on_disk):
            peak, before = peak_memory(layers, work, count, tokens)
            extra = (peak - before) - (base[0] - base[1])
            print(f"   {count:2d} layers, {work.__name__:10s} {extra / 1e6:7.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=int, choices=(1, 2), help="one of the two parts")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of the first part")
    options = parser.parse_args()
    if options.only in (None, 1):
        looking(options.tokens)
    if options.only in (None, 2):
        recording_to_disk(8192)


if __name__ == "__main__":
    main()
