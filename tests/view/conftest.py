"""A real browser on the real page, for the tests called test_browser_*.

Without Chromium they are skipped, and the last lines of the run say so; with
``JUMOK_NEEDS_BROWSER=1`` (as in ``.ci/run``) they fail instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import jumok

ROOT = Path(__file__).parents[2]
PASSAGE = (
    "The bank of the river was muddy after the rain. A boat lay in the reeds.\n\n"
    "The money was deposited in the bank on Monday. The clerk of the bank counted it twice.\n\n"
    "강가의 둑은 진흙투성이였다. 은행은 월요일에 문을 연다. 😊\n\n"
    "Some write <b>markup</b> or </script> into a text; it is shown as it was written. "
)
"""What the recorded model reads, several times over."""


def _without_browser(reason: str) -> None:
    if os.environ.get("JUMOK_NEEDS_BROWSER"):
        pytest.fail(f"the browser tests must run: {reason}")
    pytest.skip(f"browser tests: {reason}")


@pytest.fixture(scope="module")  # longer, its event loop would be in the way of other tests
def chromium() -> Iterator[Any]:
    """A running Chromium, driven by Playwright."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        _without_browser("no Chromium (Debian: apt-get install chromium fonts-noto-cjk)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def smollm2_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of SmolLM2 reading 300 tokens, with its words."""
    import torch

    model, tokenizer = jumok.load("smollm2")
    ids = tokenizer.encode(PASSAGE * 4)[:300]
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.tensor([ids]))
    recording.label(tokenizer)
    path = tmp_path_factory.mktemp("recorded") / "smollm2.safetensors"
    recording.save(path)
    return path


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path) -> Any:
    """The same recording, as Python opens it."""
    return jumok.open(smollm2_file)


@contextmanager
def served(*recordings: Any, titles: tuple[str, ...] = ()) -> Iterator[str]:
    """The page of some recordings on an address of this machine."""
    from jumok.view.questions import Questions
    from jumok.view.server import Server

    questions = Questions(recordings, titles=list(titles) or None)
    server = Server(questions)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.url
    finally:
        server.stop()
        thread.join()


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    """Shows recordings until the tests of a file are done: ``serve(first, second) → url``."""
    with ExitStack() as stack:
        yield lambda *recordings, titles=(): stack.enter_context(served(*recordings, titles=titles))


@pytest.fixture(scope="session")
def smollm2_url(smollm2: Any) -> Iterator[str]:
    """Where the page of the recording is."""
    with served(smollm2, titles=("smollm2.safetensors",)) as url:
        yield url


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages, each in a browser of its own; what goes wrong inside fails the test.

    ``open_page(url, "view=map&map=3", width=360, dark=True, language="ko-KR")``
    """
    contexts: list[Any] = []
    faults: list[str] = []

    def open_one(
        url: str,
        address: str = "",
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        language: str = "en-US",
        **options: Any,
    ) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            locale=language,
            reduced_motion="reduce",
            **options,
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: said.type == "error" and faults.append(said.text))
        page.on(
            "request", lambda request: _is_foreign(request.url, url) and faults.append(request.url)
        )
        page.goto(f"{url}#{address}" if address else url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


def _is_foreign(asked: str, page: str) -> bool:
    return not asked.startswith(("data:", "blob:", page.split("#")[0].rsplit("/", 1)[0]))


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, as the lock file of the page pins it."""
    file = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
    if not file.exists():  # the bundle came ready, in an sdist
        subprocess.run([sys.executable, ROOT / "ui" / "build.py", "--version"], check=True)
    return file.read_text(encoding="utf-8")


@pytest.fixture
def serious_faults(axe: str) -> Callable[[Any], list[str]]:
    """What axe-core finds wrong with a page (opened with ``bypass_csp=True``), if it is serious."""

    def find(page: Any) -> list[str]:
        page.evaluate(axe)
        found = page.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{fault['id']}: {node['target']}: {node['failureSummary']}"
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]

    return find
