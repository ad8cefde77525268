"""Panning and zooming over a map of 131,072 × 131,072 weights, in frames of a real browser.

    python benchmarks/view_frames.py               about two minutes; needs Chromium
    python benchmarks/view_frames.py --tokens 8192

The page of `jumok view` on the synthetic recording of `benchmarks/large.py`, in Chromium without a
GPU, 1280 × 900 pixels. The mouse drags across and turns the wheel in and out, once over tiles that
have to come from the server, once over those that are there. Between two frames that the browser
draws lies the time that is told; 20 ms are 50 frames a second.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from large import TOKENS, write

SECONDS = 4
WATCH = """() => {
    window.frames_ = [];
    let last = null;
    const next = (now) => {
        if (last !== null) window.frames_.push(now - last);
        last = now;
        window.watching_ = requestAnimationFrame(next);
    };
    window.watching_ = requestAnimationFrame(next);
}"""
STOP = "() => { cancelAnimationFrame(window.watching_); return window.frames_; }"


def drag(page: Any, box: dict[str, float]) -> None:
    """To and fro across the map, without letting go."""
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(SECONDS * 50):
        way = (step % 100) / 100
        back = way if way < 0.5 else 1 - way
        page.mouse.move(x - 500 * back, y - 400 * back)
        page.wait_for_timeout(12)
    page.mouse.up()


def wheel(page: Any, box: dict[str, float]) -> None:
    """In to single weights and out again."""
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.7)
    for step in range(SECONDS * 50):
        page.mouse.wheel(0, -80 if step % 200 < 100 else 80)
        page.wait_for_timeout(12)


def told(name: str, frames: list[float]) -> None:
    frames.sort()
    late = sum(frame > 1000 / 50 * 1.25 for frame in frames) / len(frames)
    print(
        f"   {name:34s} {1000 / statistics.mean(frames):5.1f} frames/s; a frame takes "
        f"{statistics.median(frames):4.1f} ms, 95 % below {frames[int(0.95 * len(frames))]:4.1f} "
        f"ms, {late:.1%} over 25 ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    tokens = parser.parse_args().tokens
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no Chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "large.safetensors"
        write(path, tokens)
        command = [sys.executable, "-m", "jumok", "view", str(path), "--no-open"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
            browser = playwright.chromium.launch(executable_path=chromium, args=options)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            print(f"{tokens:,} tokens")
            half = tokens // 2
            for name, place in (
                ("the whole map", ""),
                ("in the middle, 0.5 pixels a weight", f"{half},{half - 2000},0.5"),
                ("single weights, with numbers", f"{half},{half - 30},40"),
            ):
                page.goto("about:blank")
                page.goto(f"{url}#view=map&head=3&map.at={place}")
                page.wait_for_selector(".plot")
                page.wait_for_timeout(3000)
                box = page.locator(".plot").bounding_box()
                for kind, move in (("drag", drag), ("drag again", drag), ("wheel", wheel)):
                    if kind != "wheel" and not place:
                        continue  # all is in sight: there is nowhere to go
                    page.evaluate(WATCH)
                    move(page, box)
                    told(f"{name}: {kind}", page.evaluate(STOP))
            browser.close()
        finally:
            server.terminate()
            server.wait()
    print("   (wanted: 50 frames/s)")


if __name__ == "__main__":
    main()
