"""One row per head: what each head of a recording does, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from jumok.lens.heads import DEFAULT, MEASURES, HeadSums, head_sums
from jumok.lens.recording import Recording
from jumok.tokens import as_tokenizer

__all__ = ["DEFAULT", "MEASURES", "HeadSums", "Report", "head_sums", "report"]

_FORMATS = {
    "entropy": "{:.2f}",
    "distance": "{:.1f}",
    "first": "{:.1%}",
    "itself": "{:.1%}",
    "previous": "{:.1%}",
    "most_read_share": "{:.1%}",
}


class Report:
    """A table with one row per head, in the order of the layers.

    Becomes a DataFrame by the Arrow protocol (``polars.DataFrame(report)``,
    ``pandas.DataFrame.from_arrow(report)``; needs pyarrow), or from its columns
    (``pandas.DataFrame(report.columns)``).

    Attributes:
        columns: name → one value per head. All means are over the queries that are real tokens
            and over the batch.

            * ``layer``: number of the map, ``name``: its module path, ``head``: from 0;
            * ``entropy``: of the rows, in nats: 0 reads one token, ln T reads T evenly;
            * ``distance``: how far away it reads, in tokens;
            * ``first``: weight on the first token (in a GPT the "sink");
            * ``itself``: weight on the token's own position;
            * ``previous``: weight on the position before it;
            * ``most_read``: the position that receives most, ``most_read_share``: what part of
              all weight it receives;
            * ``most_read_token``: its label, if a tokenizer was given.
    """

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

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
        table = Table(title="one row per head", title_justify="left", box=None, header_style="bold")
        shown = [name for name in self.columns if name not in hidden]
        for name in shown:
            text, heading = name in ("name", "most_read_token"), name.replace("_", " ")
            table.add_column(
                heading,
                justify="left" if text else "right",
                min_width=max(map(len, heading.split())),
            )
        for row in self:
            cells = (_FORMATS.get(name, "{}").format(row[name]) for name in shown)
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
        yield table

    def __repr__(self) -> str:
        console = Console(width=110, no_color=True, highlight=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())


def report(recording: Recording, tokenizer: Any = None) -> Report:
    """What each head does, in one pass over each layer and in memory linear in the tokens.

    Args:
        recording: from `jumok.watch` or `jumok.open`.
        tokenizer: ours or a transformers tokenizer, to show which token is read most. Needs the
            recording's ids.

    Returns:
        One row per head; see `Report`.

    Raises:
        TypeError: not a recording.
        ValueError: a tokenizer, but the recording has no ids.
    """
    if not isinstance(recording, Recording):
        raise TypeError(
            f"report takes a recording, from jumok.watch or jumok.open; got "
            f"{type(recording).__name__}"
        )
    if tokenizer is not None and recording.ids is None:
        raise ValueError(
            "the recording has no token ids to label: the model was not given any. Leave out the "
            "tokenizer"
        )
    rows: dict[str, list[Any]] = {name: [] for name in ("layer", "name", "head", *DEFAULT)}
    for number, found in enumerate(recording):
        heads = found.shape[1]
        rows["layer"] += [number] * heads
        rows["name"] += [found.name] * heads
        rows["head"] += range(heads)
        for name, values in head_sums(found.call).means().items():
            rows[name] += values.tolist()
    columns: dict[str, Any] = {
        name: values if name == "name" else np.array(values) for name, values in rows.items()
    }
    if tokenizer is not None:
        assert recording.ids is not None
        labels = as_tokenizer(tokenizer).labels(recording.ids[0].tolist())
        columns["most_read_token"] = [
            labels[at] if at < len(labels) else "" for at in columns["most_read"]
        ]
        columns["most_read_share"] = columns.pop("most_read_share")  # after what it is a share of
    return Report(columns)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
