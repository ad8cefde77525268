"""From a click on the address to small maps of all heads: SmolLM2 over 2,048 tokens.

    python benchmarks/view_grid.py                 about a minute; needs Chromium

`jumok view` on a recording of 30 layers of 9 heads, opened in Chromium without a GPU, with a server
that has answered nothing yet. Told is the time from the start of loading until the first layer's
nine heads are drawn, until all in sight are, and until all 270 are (scrolled through).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DRAWN = 'document.querySelectorAll("[data-drawn=true]").length'
WAITING = 'document.querySelectorAll("[data-drawn=false]").length'


def record(path: Path, tokens: int) -> None:
    import pydoc_data.topics

    import torch

    import jumok

    model, tokenizer = jumok.load("smollm2")
    topics = pydoc_data.topics.topics
    ids = tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics)))[:tokens]
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.tensor([ids]))
    recording.label(tokenizer)
    recording.save(path)


def opened(browser: Any, path: Path) -> tuple[float, float, float]:
    """Seconds until the first row, all in sight, and all heads."""
    command = [sys.executable, "-m", "jumok", "view", str(path), "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        start = time.perf_counter()
        page.goto(url)
        page.wait_for_function(f"() => {DRAWN} >= 9")
        first = time.perf_counter() - start
        page.wait_for_function(f"() => {WAITING} === 0")
        sight = time.perf_counter() - start
        for layer in range(4, 30, 3):
            page.evaluate(f"scrollTo(0, document.documentElement.scrollHeight * {layer} / 29)")
            page.wait_for_timeout(30)
            page.wait_for_function(f"() => {WAITING} === 0")
        everything = time.perf_counter() - start
        page.close()
        return first, sight, everything
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no Chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "smollm2.safetensors"
        record(path, arguments.tokens)
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        print(f"270 heads of {arguments.tokens:,} tokens")
        for _ in range(arguments.rounds):
            first, sight, everything = opened(browser, path)
            print(
                f"   first row {first:.2f} s, all in sight {sight:.2f} s, all heads "
                f"{everything:.2f} s"
            )
        browser.close()
    print("   (wanted: the first row within a second)")


if __name__ == "__main__":
    main()
