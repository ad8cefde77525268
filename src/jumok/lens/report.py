"""One row per head: what each head of a recording does, in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from jumok.lens.heads import DEFAULT, MEASURES, NEED_IDS, HeadSums, head_sums
from jumok.lens.recording import Recording
from jumok.tokens import as_tokenizer

__all__ = ["DEFAULT", "MEASURES", "HeadSums", "Report", "head_sums", "report"]

_SHARE = "{:.1%}"
_FORMATS = {
    "entropy": "{:.2f}",
    "distance": "{:.1f}",
    **dict.fromkeys(
        ("first", "itself", "previous", "most_read_share", "confidence", "positional",
         "duplicate", "induction", "prefix_matching", "special", "sink_rate"), _SHARE
    ),
    "concentration": "{:.2f}",
    "positional_offset": "{:+d}",
}  # fmt: skip

_TEXTS = ("name", "most_read_token")


class Report:
    """A table with one row per head, in the order of the layers.

    Becomes a DataFrame by the Arrow protocol (``polars.DataFrame(report)``,
    ``pandas.DataFrame.from_arrow(report)``; needs pyarrow), or from its columns
    (``pandas.DataFrame(report.columns)``).

    Attributes:
        columns: name → one value per head. All means are over the queries i that are real tokens
            and over the batch; w_ij is the weight on key j, p_i the position of query i.

            * ``layer``: number of the map, ``name``: its module path, ``head``: from 0;
            * ``entropy``: of the rows, −Σ_j w_ij ln w_ij, in nats: 0 reads one token, ln T reads
              T evenly;
            * ``distance``: how far away it reads, Σ_j w_ij |p_i − j|, in tokens;
            * ``first``: weight on the first token (in a GPT the "sink");
            * ``itself``: weight on the token's own position;
            * ``previous``: weight on the position before it;
            * ``most_read``: the position that receives most, ``most_read_share``: what part of
              all weight it receives;
            * ``most_read_token``: its label, if a tokenizer was given.

            With ``measures=…`` also:

            * ``sink_rate``: in what part of the sequences the first token receives more than
              0.3 of the weight of the mean query (Gu et al. 2024, "When Attention Sink Emerges
              in Language Models", ε = 0.3; averaged over heads it is their sink metric);
            * ``concentration``: Gini coefficient of the attention that the positions receive, 0
              all alike, towards 1 one position has it all (Hurley & Rickard 2009, "Comparing
              Measures of Sparsity"). Causal heads favour early positions, which more can see;
            * ``confidence``: the largest weight of a query (Voita et al. 2019, "Analyzing
              Multi-Head Self-Attention");
            * ``positional``: how often the largest weight lies at the commonest relative
              position, ``positional_offset``: which that is, −1 the token before (of equals the
              nearest). Voita et al. 2019 call a head positional from 90 % on, at −1 or +1;
            * ``window``: the smallest w such that keys less than w away hold 90 % of all weight,
              exact: what a sliding window would have to span, itself included;
            * ``duplicate``: weight on earlier occurrences of the query's own token, and
              ``induction``: on the tokens right after those (as in the head detector of
              TransformerLens, "mul"; Elhage et al. 2021, "A Mathematical Framework for
              Transformer Circuits");
            * ``prefix_matching``: the same as ``induction``, the mean over the queries alone
              whose token has occurred before (after Olsson et al. 2022, "In-context Learning and
              Induction Heads", who use repeated random tokens);
            * ``special``: weight on special tokens (Clark et al. 2019, "What Does BERT Look At?").

            Those that compare tokens are NaN where keys are no tokens of the recording's ids.
        note: which layers mix tokens without attention weights and so have no rows; shown below.
    """

    def __init__(self, columns: dict[str, Any], note: str = "") -> None:
        self.columns = columns
        self.note = note

    def __len__(self) -> int:
        return len(self.columns["head"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in range(len(self)):
            yield {name: _plain(values[row]) for name, values in self.columns.items()}

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        try:
            import pyarrow
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "an Arrow stream of the report needs pyarrow: pip install pyarrow. Without it: "
                "pandas.DataFrame(report.columns)",
                name="pyarrow",
            ) from None
        return pyarrow.table(self.columns).__arrow_c_stream__(requested_schema)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        hidden = {"layer"}
        if options.max_width < 110:  # numbers instead of module paths, labels of positions
            hidden = {"name"} | ({"most_read"} if "most_read_token" in self.columns else set())
        shown = [name for name in self.columns if name not in hidden]
        cells = {name: [_shown(name, value) for value in self.columns[name]] for name in shown}
        # Further columns get further tables, and so do those that have no room; each with the
        # names of the heads.
        keys = shown[:2]
        first = [name for name in shown[2:] if name in (*DEFAULT, "most_read_token")]
        parts: list[list[str]] = []
        for names in (first, [name for name in shown[2:] if name not in first]):
            used = options.max_width
            for name in names:
                width = (
                    _least_width(name, cells[name]) if names is first else _width(name, cells[name])
                )
                if used + width > options.max_width:
                    parts.append([])
                    used = sum(_width(key, cells[key]) for key in keys)
                parts[-1].append(name)
                used += width
        for number, part in enumerate(parts):
            title = "one row per head" if number == 0 else "one row per head, continued"
            table = Table(title=title, title_justify="left", box=None, header_style="bold")
            for name in [*keys, *part]:
                table.add_column(
                    name.replace("_", " "),
                    justify="left" if name in _TEXTS else "right",
                    min_width=max(map(len, name.split("_"))),
                )
            for row in zip(*(cells[name] for name in [*keys, *part]), strict=True):
                table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
            yield table
        if self.note:
            yield Text(self.note)

    def __repr__(self) -> str:
        console = Console(width=110, no_color=True, highlight=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())


def report(recording: Recording, tokenizer: Any = None, measures: Sequence[str] = ()) -> Report:
    """What each head does, in one pass over each layer and in memory linear in the tokens.

    Args:
        recording: from `jumok.watch` or `jumok.open`.
        tokenizer: ours or a transformers tokenizer, to show which token is read most. Needs the
            recording's ids.
        measures: further columns, such as ``["induction", "window"]``; see `Report`. Of a
            recording that was measured while the model ran (``watch(model, measure=…)``) the
            columns are those that were asked for then.

    Returns:
        One row per head; see `Report`.

    Raises:
        TypeError: not a recording.
        ValueError: an unknown measure; or a tokenizer or a measure that compares tokens, but the
            recording has no ids; or the special tokens are asked for without a tokenizer.
    """
    if not isinstance(recording, Recording):
        raise TypeError(
            f"report takes a recording, from jumok.watch or jumok.open; got "
            f"{type(recording).__name__}"
        )
    if isinstance(measures, str):
        raise TypeError(f"measures is a list of names, such as [{measures!r}]; got {measures!r}")
    names = tuple(dict.fromkeys((*DEFAULT, *measures)))
    live = [found for found in recording if found.measured is None]
    needing = [name for name in names if name in NEED_IDS]
    if recording.ids is None and (tokenizer is not None or (needing and live)):
        what = "to label" if tokenizer is not None else f"to compare for {', '.join(needing)}"
        instead = "the tokenizer" if tokenizer is not None else "these measures"
        raise ValueError(
            f"the recording has no token ids {what}: the model was not given any. Leave out "
            f"{instead}"
        )
    tokens = None if tokenizer is None else as_tokenizer(tokenizer)
    if "special" in names and tokens is None and live:
        raise ValueError(
            "which tokens are special is known to the tokenizer: "
            "jumok.report(recording, tokenizer, measures=['special'])"
        )
    special = None if tokens is None else tokens.special_ids
    rows: dict[str, list[Any]] = {"layer": [], "name": [], "head": []}
    for number, found in enumerate(recording):
        sums = found.measured
        if sums is None:
            sums = head_sums(found.call, names, ids=recording.ids, special=special)
        rows["layer"] += [number] * len(found.heads)
        rows["name"] += [found.name] * len(found.heads)
        rows["head"] += found.heads
        for name, values in sums.means().items():
            rows.setdefault(name, []).extend(values.tolist())
    columns: dict[str, Any] = {
        name: values if name == "name" else np.array(values) for name, values in rows.items()
    }
    if tokens is not None and "most_read" in columns:
        assert recording.ids is not None
        labels = tokens.labels(recording.ids[0].tolist())
        columns["most_read_token"] = [
            labels[at] if at < len(labels) else "" for at in columns["most_read"]
        ]
        for name in list(columns)[list(columns).index("most_read") + 1 : -1]:
            columns[name] = columns.pop(name)  # the label stands beside the position
    return Report(columns, recording.what_is_not_here if recording.without_attention else "")


def _shown(name: str, value: Any) -> str:
    return "–" if value != value else _FORMATS.get(name, "{}").format(value)  # NaN is not itself


def _least_width(name: str, cells: list[str]) -> int:
    """Cells of a column whose heading is broken into its words."""
    return max(*map(len, name.split("_")), *map(len, cells)) + 2


def _width(name: str, cells: list[str]) -> int:
    """What a column takes, with the space around it; long texts may be cut off."""
    longest = max(map(len, cells), default=0)
    return max(len(name), min(longest, 24) if name in _TEXTS else longest) + 2


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
