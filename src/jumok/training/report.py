"""One page about a run, to be read in a browser: what was learned, on what, how, and how well."""

from __future__ import annotations

import base64
import math
import os
import shlex
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jumok.training.log import Row
from jumok.training.terminal import duration, rounded

__all__ = ["Facts", "page", "write_page"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem 1rem .2rem 0; text-align: left;
vertical-align: top; font-weight: normal; } th { opacity: .7; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .7rem 1rem;
border-radius: .4rem; } img { width: 100%; background: #fff; border-radius: .4rem; }
.given { opacity: .65; } .made { font-weight: 600; }
"""


@dataclass(frozen=True)
class Facts:
    """What is known about a run besides its log.

    Args:
        model: in one line.
        vocab_size: of it.
        lines: further names and values, in the order of the page.
        command: that makes the same run.
        finished: all steps are done.
        folder: of the run, as the user wrote it.
        family: "gpt", "bert" or "seq2seq".
    """

    model: str
    vocab_size: int
    lines: dict[str, str]
    command: str
    finished: bool
    folder: str
    family: str

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"{self.folder}: {self.model.split(':')[0]}"


def page(facts: Facts, rows: list[Row], picture: bytes | None) -> str:
    """The page as HTML that needs nothing besides itself."""
    shown = [_summary(facts, rows), _curves(picture), _samples(rows), _settings(facts)]
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width">'
        f"<title>{escape(facts.title)}</title><style>{_STYLE}</style>\n"
        f"<h1>{escape(facts.title)}</h1>\n"
        + "\n".join(part for part in shown if part)
        + "</html>\n"
    )


def write_page(facts: Facts, rows: list[Row], picture: Path, path: Path) -> None:
    """`page`, replaced whole.

    Args:
        facts: about the run.
        rows: of its log.
        picture: of the curves; it need not be there.
        path: of the page.
    """
    image = picture.read_bytes() if picture.exists() else None
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(page(facts, rows, image), "utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _summary(facts: Facts, rows: list[Row]) -> str:
    last = next((row for row in reversed(rows) if "loss" in row), None)
    scores = [row for row in rows if "validation" in row]
    lines = []
    if scores:
        best = min(scores, key=lambda row: row["validation"])
        end = scores[-1]["validation"]
        perplexity = f" (perplexity {rounded(math.exp(min(end, 700)))})"
        lines.append(("Validation loss", f"{end:.4f} nats per token{perplexity}"))
        if best is not scores[-1]:
            lines.append(("Its lowest", f"{best['validation']:.4f}, at step {best['step']:,}"))
    if last is not None:
        lines.append(("Training loss", f"{last['loss']:.4f} nats per token"))
        lines.append(("Steps", f"{last['step']:,}, {last['tokens']:,} tokens read"))
        took = f"{duration(last['seconds'])}, {rounded(last['tokens_per_second'])} tokens a second"
        if "share_of_peak" in last:
            took += f", {last['share_of_peak']:.0%} of the machine's measured peak"
        lines.append(("Time", took))
    if not facts.finished:
        lines.insert(0, ("State", "not finished: the same command goes on"))
    return _table(lines)


def _curves(picture: bytes | None) -> str:
    if picture is None:
        return ""
    encoded = base64.b64encode(picture).decode()
    return (
        f'<h2>Curves</h2>\n<img alt="loss, learning rate and speed over the steps" '
        f'src="data:image/png;base64,{encoded}">'
    )


def _samples(rows: list[Row]) -> str:
    parts = []
    with_samples = [row for row in rows if row.get("samples")]
    chosen = with_samples[:1] + with_samples[len(with_samples) // 2 :][:1] + with_samples[-1:]
    for row in {row["step"]: row for row in chosen}.values():
        text = "\n".join(
            f"<span class=given>{escape(given)}</span><span class=made>{escape(made)}</span>"
            for given, made in row["samples"]
        )
        parts.append(f"<p>After step {row['step']:,}:</p>\n<pre>{text}</pre>")
    if not parts:
        return ""
    return (
        "<h2>What it writes</h2>\n<p>Pale: what it was given. Strong: what it made of it.</p>\n"
        + "\n".join(parts)
    )


def _settings(facts: Facts) -> str:
    use = f">>> model, tokenizer = jumok.load({facts.folder!r})"
    if facts.family == "gpt":
        use += f'\n\n$ jumok generate "…" --model {shlex.quote(facts.folder)}'
    facts_of_model = _table([("Model", facts.model), *facts.lines.items()])
    return (
        f"<h2>How it was made</h2>\n{facts_of_model}\n<p>The same run again:</p>\n"
        f"<pre>{escape(facts.command)}</pre>\n<p>To use the model:</p>\n<pre>{escape(use)}</pre>"
    )


def _table(lines: list[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}<td>{escape(value)}\n" for name, value in lines
    )
    return f"<table>\n{rows}</table>"
