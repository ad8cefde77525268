"""What the page costs: to open, to zoom, and with many who look at once.

    python benchmarks/page.py bertviz --peer FOLDER  # pip install --no-deps -t FOLDER bertviz
    python benchmarks/page.py open [--tokens 8192]
    python benchmarks/page.py tiles [--tokens 8192]
    python benchmarks/page.py tiles --tokens 131072 --heads 1
    python benchmarks/page.py clients [--clients 200] [--seconds 60]

`bertviz`: SmolLM2-135M, 270 heads, 512 tokens, recorded once. Each side starts from what it needs
(the recording; BertViz: the weights as tensors, which are not counted) in a process of its own:
seconds until a page is there that answers clicks, bytes sent for it, and the peak of memory above
the start.
`open`: seconds from the start of `jumok view` until its first row of heads has come. `tiles`: a
server's own time for one tile, and the pass for the coarse ones against `AttentionMap.pooled`.
`clients`: so many browsers' worth of panning over one recording, in a second process.

Recordings of `open`, `tiles` and `clients` are synthetic: random queries and keys of SmolLM2's
shape in bfloat16, causal.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import jumok
from jumok.lens.attention_map import AttentionMap
from jumok.lens.call import AttentionCall
from jumok.lens.measures import log_normalizers
from jumok.lens.part import part_of_head
from jumok.lens.recording import Recording
from jumok.masks import Causal
from jumok.view.questions import Questions
from jumok.view.server import Server
from jumok.view.stopping import Kept
from jumok.view.tiles import Head, TileMaker, levels

TILE = 256


# -- recordings -------------------------------------------------------------------------------


class Source:
    """A synthetic call as a recording has it."""

    measured, value_note, has_value_norms, held_bytes = None, "synthetic", False, 0

    def __init__(self, name: str, call: AttentionCall) -> None:
        self.name, self._call, self.shape = name, call, call.shape
        self.heads = tuple(range(call.shape[1]))

    def call(self) -> AttentionCall:
        return self._call

    def value_norms(self) -> None:
        return None


def synthetic(tokens: int, layers: int, heads: int, kv_heads: int, width: int = 64) -> Path:
    """The file of a made-up recording; it is kept for the next run."""
    name = f"jumok-page-{tokens}-{layers}-{heads}-{kv_heads}.safetensors"
    path = Path(tempfile.gettempdir()) / name
    if path.exists():
        return path
    print(f"making {path} …", flush=True)
    random_numbers = np.random.default_rng(0)
    maps = []
    for layer in range(layers):
        q, k = (
            random_numbers.normal(size=(1, n, tokens, width)).astype(np.float16)
            for n in (heads, kv_heads)
        )
        call = AttentionCall(q=q, k=k, v=None, mask=Causal(), bias=None, scale=width**-0.5)
        lse = log_normalizers(call)
        call = AttentionCall(q=q, k=k, v=None, mask=Causal(), bias=None, scale=width**-0.5, lse=lse)
        maps.append(AttentionMap(Source(f"layers.{layer}.attention", call)))
    recording = Recording("synthetic", maps)
    recording.ids = random_numbers.integers(0, 49_152, (1, tokens))
    recording.save(path)
    return path


def real(tokens: int) -> Path:
    """SmolLM2's recording of a text."""
    path = Path(tempfile.gettempdir()) / f"jumok-page-smollm2-{tokens}.safetensors"
    if not path.exists():
        import torch

        from watch import TEXT

        model, tokenizer = jumok.load("smollm2")
        ids = torch.tensor([tokenizer.encode(TEXT * 90)[:tokens]])
        with torch.inference_mode(), jumok.watch(model) as recording:
            model(ids, last=1)
        recording.save(path, tokenizer)
    return path


# -- what is measured -------------------------------------------------------------------------


def get(connection: http.client.HTTPConnection, url: str, path: str) -> bytes:
    """One answer; only 200 will do."""
    connection.request("GET", urlsplit(url).path + path)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {body[:200]!r}")
    return body


def memory() -> int:
    """Resident bytes of this process now; from here on `peak` counts anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Its largest since `memory`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def in_child(work: Any, *arguments: Any) -> Any:
    """The result of a function in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(work, arguments)


def our_page(path: Path) -> tuple[float, int, int]:
    """Seconds, bytes and memory until the grid's first row and a head's map are there."""
    import threading

    import starlette.applications  # noqa: F401
    import uvicorn  # noqa: F401

    before, start = memory(), time.perf_counter()
    server = Server(Questions([jumok.open(path)], files=[path], keep_files=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.url).port)
    size = 0
    answers = ("about", "labels", "grid?map=0", "reads?tokens=100&measure=norm",
               "tile?map=0&head=0&level=0&x=0&y=0")  # fmt: skip
    for asked in ("", "viewer.js", "viewer.css", *(f"api/{answer}" for answer in answers)):
        size += len(get(connection, server.url, asked))
    seconds = time.perf_counter() - start
    extra = peak() - before
    connection.close()
    server.stop()
    thread.join()
    return seconds, size, extra


def bertviz_page(path: Path, folder: str) -> tuple[float, int, int]:
    """The same of `bertviz.head_view`, until its page is written; the browser comes on top."""
    sys.path.append(folder)
    import torch
    from bertviz import head_view

    recording = jumok.open(path)
    weights = [torch.from_numpy(found[...]) for found in recording]
    labels = list(recording.texts["ids"][0].reading.labels)
    before, start = memory(), time.perf_counter()
    page = head_view(weights, labels, html_action="return")
    data = page.data.encode()
    return time.perf_counter() - start, len(data), peak() - before


def against_bertviz(options: argparse.Namespace) -> None:
    path = real(options.tokens)
    print(f"SmolLM2-135M, {options.tokens} tokens, 270 heads")
    ours = in_child(our_page, path)
    print(f"   jumok     {ours[0]:6.2f} s   {ours[1] / 1e6:8.2f} MB sent   "
          f"{ours[2] / 1e6:8.0f} MB memory", flush=True)  # fmt: skip
    theirs = in_child(bertviz_page, path, options.peer)
    print(f"   BertViz   {theirs[0]:6.2f} s   {theirs[1] / 1e6:8.2f} MB sent   "
          f"{theirs[2] / 1e6:8.0f} MB memory")  # fmt: skip
    times = [mine / own for mine, own in zip(theirs, ours, strict=True)]
    print(f"   {times[0]:.0f} times the time (wanted: 50), {times[1]:.0f} times the bytes (wanted: "
          f"500), {times[2]:.0f} times the memory (wanted: 10)")  # fmt: skip


def opening(options: argparse.Namespace) -> None:
    path = synthetic(options.tokens, options.layers, options.heads, max(1, options.heads // 3))
    print(f"{options.layers} layers × {options.heads} heads, {options.tokens:,} tokens, "
          f"{path.stat().st_size / 1e9:.2f} GB file")  # fmt: skip
    for _ in range(options.rounds):
        start = time.perf_counter()
        command = [sys.executable, "-m", "jumok", "view", str(path), "--no-open"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        listening = time.perf_counter() - start
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port)
        for asked in ("", "viewer.js", "viewer.css", "api/about", "api/labels"):
            get(connection, url, asked)
        page = time.perf_counter() - start
        get(connection, url, "api/tile?map=0&head=0&level=0&x=0&y=0")
        tile = time.perf_counter() - start
        get(connection, url, "api/grid?map=0")
        row = time.perf_counter() - start
        connection.close()
        process.terminate()
        process.wait()
        process.stdout.close()
        print(f"   address {listening:.2f} s, page and words {page:.2f} s (wanted: 2), a tile "
              f"{tile:.2f} s, first row of the grid {row:.2f} s", flush=True)  # fmt: skip


def tiles(options: argparse.Namespace) -> None:
    path = synthetic(options.tokens, 1, options.heads, max(1, options.heads // 3))
    recording = jumok.open(path)
    found = recording[0]
    count = levels(*found.shape[2:])
    print(f"{options.tokens:,} tokens, {count} levels")
    random.seed(0)
    maker = TileMaker(recording, Kept(0))  # nothing is kept: every tile is computed
    for level in range(count):
        head = Head(0, 0, 0)
        if not maker.is_direct(head, level):
            break
        times = []
        along = -(-options.tokens // (TILE << level))
        for _ in range(20 if level < 3 else 4):
            y = random.randrange(along)
            x = random.randrange(y + 1)
            start = time.perf_counter()
            maker.tile(head, level, x, y)
            times.append(time.perf_counter() - start)
        wanted = "   (wanted: 30)" if level == 0 else ""
        print(f"   level {level}: {1e3 * statistics.median(times):7.1f} ms, worst "
              f"{1e3 * max(times):7.1f} ms{wanted}", flush=True)  # fmt: skip
    times_of: dict[str, list[float]] = {"pooled max": [], "pooled mean": [], "pyramid": []}
    one = part_of_head(found.call, 0, 0, range(options.tokens), range(options.tokens))
    single = AttentionMap(Source("one", one))
    size = min(256, options.tokens)
    for turn in range(options.rounds):
        jobs: dict[str, Any] = {
            "pooled max": lambda: single.pooled(size, "max"),
            "pooled mean": lambda: single.pooled(size, "mean"),
            "pyramid": lambda: TileMaker(recording, Kept(0)).pyramid(Head(0, 0, 0)),
        }
        for name in list(jobs) if turn % 2 else list(jobs)[::-1]:
            start = time.perf_counter()
            jobs[name]()
            times_of[name].append(time.perf_counter() - start)
    for name, runs in times_of.items():
        ratio = statistics.median(a / b for a, b in zip(runs, times_of["pooled mean"], strict=True))
        print(
            f"   {name:12s} {statistics.median(runs):7.2f} s, {ratio:.2f} of pooled mean",
            flush=True,
        )
    coarse = TileMaker(recording, Kept(1 << 30)).tile(Head(0, 0, 0), count - 1, 0, 0, "max")[0]
    if options.tokens <= 8192:  # both sides computed the same
        np.testing.assert_allclose(coarse, single.pooled(256, "max")[0, 0], rtol=1e-4, atol=1e-7)


# -- many who look ----------------------------------------------------------------------------


async def pan(host: str, port: int, path: str, tokens: int, heads: int, until: float, seed: int,
              log: list[float], errors: list[str]) -> None:  # fmt: skip
    """One who pans and zooms: the next tile beside the last, as soon as that has come."""
    choose = random.Random(seed)
    reader, writer = await asyncio.open_connection(host, port)
    deepest = levels(tokens, tokens) - 1
    level, x, y, head = 0, 0, 0, choose.randrange(heads)
    try:
        while time.monotonic() < until:
            if choose.random() < 0.1:
                level = choose.randrange(min(4, deepest) + 1)
                head = choose.randrange(heads)
            along = -(-tokens // (TILE << level))
            x = min(max(x + choose.choice((-1, 0, 1)), 0), along - 1)
            y = min(max(y + choose.choice((-1, 0, 1)), 0), along - 1)
            asked = f"api/tile?map=0&head={head}&level={level}&x={x}&y={y}"
            start = time.perf_counter()
            writer.write(f"GET {path}{asked} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            head_lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            length = next(int(line.split(":")[1]) for line in head_lines
                          if line.lower().startswith("content-length:"))  # fmt: skip
            await reader.readexactly(length)
            status = int(head_lines[0].split()[1])
            if status == 503:
                await asyncio.sleep(1)
                continue
            if status != 200:
                errors.append(head_lines[0])
            log.append(time.perf_counter() - start)
    finally:
        writer.close()


def clients(options: argparse.Namespace) -> None:
    path = synthetic(options.tokens, 1, options.heads, max(1, options.heads // 3))
    command = [sys.executable, "-m", "jumok", "view", str(path), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = urlsplit(process.stdout.readline().strip())
    log: list[float] = []
    errors: list[str] = []
    resident: list[int] = []

    async def watch_memory(until: float) -> None:
        while time.monotonic() < until:
            text = Path(f"/proc/{process.pid}/statm").read_text()
            resident.append(int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE"))
            await asyncio.sleep(min(2, options.seconds / 10))

    async def everybody() -> None:
        until = time.monotonic() + options.seconds
        assert url.port is not None
        await asyncio.gather(
            watch_memory(until),
            *(
                pan("127.0.0.1", url.port, url.path, options.tokens, options.heads, until, seed,
                    log, errors)
                for seed in range(options.clients)
            ),
        )  # fmt: skip

    try:
        asyncio.run(everybody())
        assert process.poll() is None, "the server has ended"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
    log.sort()
    half = resident[len(resident) // 2 :]
    print(
        f"{options.clients} clients panning for {options.seconds} s over {options.tokens:,} tokens"
    )
    print(f"   {len(log):,} tiles, {len(log) / options.seconds:.0f} a second, {len(errors)} errors "
          f"{errors[:3]}")  # fmt: skip
    middle, slowest = (1e3 * log[int(part * len(log))] for part in (0.5, 0.99))
    print(f"   median {middle:.0f} ms, 99 % {slowest:.0f} ms")
    print(f"   memory {min(resident) / 1e6:.0f} MB at first, {max(half) / 1e6:.0f} MB at most in "
          f"the second half, {resident[-1] / 1e6:.0f} MB at the end")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["bertviz", "open", "tiles", "clients"])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--peer", help="folder that holds the package bertviz")
    options = parser.parse_args()
    options.tokens = options.tokens or (512 if options.what == "bertviz" else 8192)
    if options.what == "bertviz" and options.peer is None:
        parser.error("--peer: where is bertviz? pip install --no-deps --target FOLDER bertviz")
    run = {"bertviz": against_bertviz, "open": opening, "tiles": tiles, "clients": clients}
    run[options.what](options)


if __name__ == "__main__":
    main()
