"""docs/architectures.md, from the results of `compare.check`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

HEARD = "heard and equal"
PARTS = "heard in part, or not equal"
UNHEARD = "not heard"
NO_SOFTMAX = "no softmax to compare with"
PART_OF = "part of another"
NOT_RUN = "not run here"

MEANING = {
    HEARD: "every attention call was heard, both under eager and under the implementation that the "
    "model chooses, and every weight of a real token agrees with eager's own",
    PARTS: "what is missing or differs is said in the last column",
    UNHEARD: "the reason is in the last column",
    NO_SOFTMAX: "there are no attention weights in it, or none of the form (batch, heads, queries, "
    "keys)",
    PART_OF: "a configuration without a model class of its own",
    NOT_RUN: "no tiny model or no inputs were found that run on this machine; the error is quoted",
}

INTRODUCTION = """# Architectures

Every model type of transformers {transformers}, watched. Each is built tiny with random weights
and run on two sequences, one of them padded: once with `attn_implementation="eager"` and once with
the implementation that it chooses by itself. Every weight of the lens is compared with eager's
own, which is caught without the lens; of padding, only the keys count. Outputs must be
bit-identical with and without `watch`.

*Error* is the largest difference of any weight, in float32, tolerance {tolerance:.0e}. Where a
model's own implementations differ from each other by more than that (a mask that eager adds and
SDPA does not), the map is compared with what the same run computed, and the note says so. *How* is
where the calls were heard: at transformers' attention `interface`, at PyTorch's `SDPA` or
`multi_head_attention_forward`, or `by hand`: followed from the product of queries and keys through
a softmax to the product with the values. *Weights stored* means that no q and k could be found
behind the softmax, so that the weights themselves are held.

`scripts/architectures` writes this page, in about five minutes on two cores;
`scripts/architectures --only NAME` shows one architecture in full.
"""


def page(results: list[dict[str, Any]], versions: dict[str, str], tolerance: float) -> str:
    """The whole page; `results` in the order of its rows."""
    kinds = {name: [r for r in results if kind(r) == name] for name in MEANING}
    text = [
        INTRODUCTION.format(**versions, tolerance=tolerance, seconds="about five"),
        f"{len(results)} architectures with {versions['torch']}:\n".replace(
            "with ", "with PyTorch "
        ),
        "| | architectures | |",
        "|---|---|---|",
        *(f"| {name} | {len(found)} | {MEANING[name]} |" for name, found in kinds.items()),
        "",
    ]
    for name in (HEARD, PARTS, UNHEARD):
        if kinds[name]:
            text += [f"## {name.capitalize()}", "", *_rows(kinds[name]), ""]
    for name in (NO_SOFTMAX, NOT_RUN, PART_OF):
        if kinds[name]:
            text += [f"## {name.capitalize()}", "", *_reasons(kinds[name]), ""]
    return "\n".join(text).rstrip() + "\n"


def kind(result: dict[str, Any]) -> str:
    """Under which heading an architecture belongs."""
    reason = result.get("why_not")
    if reason is not None:
        if reason.startswith("a part of"):
            return PART_OF
        return NO_SOFTMAX if result.get("runs") or result.get("no_softmax") else NOT_RUN
    if not result["reference"]:
        return NO_SOFTMAX
    if all(not _faults(run) for run in result["runs"]):
        return HEARD
    return UNHEARD if not any(run["maps"] for run in result["runs"]) else PARTS


def _faults(run: dict[str, Any]) -> list[str]:
    faults = [run["failure"]] if run["failure"] else []
    for what in ("missing", "extra", "wrong", "shapes"):
        if run[what]:
            faults.append(f"{what}: {len(run[what])}, such as {run[what][0]}")
    if run["identical"] is False:
        faults.append("outputs differ when watched")
    return faults


def _rows(results: list[dict[str, Any]]) -> Iterable[str]:
    yield "| architecture | model | maps | how | error, eager | error, default | notes |"
    yield "|---|---|---|---|---|---|---|"
    for result in results:
        runs = {run["run"]: run for run in result["runs"]}
        eager, default = runs["eager"], runs.get("default", runs["eager"])
        how = default["how"] or eager["how"]
        places = ", ".join(
            f"{name} {count}" if len(how) > 1 else name for name, count in how.items()
        )
        if default["implementation"] not in ("eager", "?") and places:
            places += f" ({default['implementation']})"
        maps = max(eager["maps"], default["maps"])
        yield (
            f"| {result['architecture']} | {result['model']} | {maps} | {places} "
            f"| {_number(eager)} | {_number(default)} | {_notes(result)} |"
        )


def _number(run: dict[str, Any]) -> str:
    return "" if run["error"] is None else f"{run['error']:.0e}".replace("e-0", "e-")


def _notes(result: dict[str, Any]) -> str:
    notes = []
    for run in result["runs"]:
        notes += [f"{run['run']}: {fault}" for fault in _faults(run)]
        if run["disagree"]:
            worst = max(float(text.rpartition(": ")[2]) for text in run["disagree"])
            notes.append(f"its eager and {run['implementation']} differ by {worst:.0e}")
    notes += {remark: None for run in result["runs"] for remark in run["remarks"]}
    if result["no_attention"]:
        notes.append(f"without attention weights: {', '.join(result['no_attention'])}")
    return _plain("; ".join(notes))


def _reasons(results: list[dict[str, Any]]) -> Iterable[str]:
    yield "| architecture | model | why |"
    yield "|---|---|---|"
    for result in results:
        reason = result.get("why_not") or ", ".join(result["no_attention"]) or "no softmax in it"
        yield f"| {result['architecture']} | {result.get('model', '')} | {_plain(reason)} |"


def _plain(text: str) -> str:
    """Safe inside a cell of a table, and no longer than a few lines."""
    text = re.sub(r"/\S*/site-packages/", "…/", " ".join(text.split()))  # no path of one machine
    text = text if len(text) <= 300 else text[:297] + "…"
    for sign, instead in (
        ("|", "\\|"),
        ("<", "&lt;"),
        ("`", ""),
        ("[", "("),
        ("]", ")"),
        ("*", "\\*"),
    ):
        text = text.replace(sign, instead)
    return text
