"""A recording: the attention calls of a model, in order, and how they are kept in a file.

The file is safetensors: the arrays of every call, and one JSON object under the metadata key
``jumok`` that says what they are. It opens with NumPy alone; arrays stay in the file, mapped
into memory, until they are asked for.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from safetensors import SafetensorError, safe_open

from jumok.lens.attention_map import AttentionMap, readable_bytes
from jumok.lens.call import Array
from jumok.lens.rules import mask_arrays
from jumok.lens.stored import StoredArrays, StoredCall
from jumok.lens.writing import FORMAT, Writer, described

if TYPE_CHECKING:
    from jumok.lens.labelled import LabelledText
    from jumok.lens.segment_tables import Tables


class Recording(Sequence[AttentionMap]):
    """The attention maps of a model's run, in the order of the calls.

    ``recording[3]`` is the fourth map, ``recording["layers.3.attention"]`` the one of that
    module (``name#1``, ``name#2`` for further calls of the same module).

    Attributes:
        model_name: class name of the model, or what it was called.
        ids: token ids the model was given, NumPy (batch, tokens), those of later decode steps
            appended; `None` if it was given none.
        decoder_ids: the same of an encoder-decoder's decoder; `None` of any other model.
        texts: "ids" and "decoder_ids" → what these tokens say, one text for each sequence of the
            batch, after `label` or from a file that was saved with it; empty before.
        without_attention: modules that ran and mix tokens without attention weights (Mamba,
            linear attention, FNet, RWKV, or a layer that skips its attention): path → class name.
        output_gradients: name of a map → the gradient of its attention's output, before the
            output projection (B, H, Tq, Dv), after ``backward`` of a model that was watched with
            ``gradients=True``; see `jumok.relevance`. They are not saved.
    """

    def __init__(self, model_name: str, maps: Sequence[AttentionMap] = ()) -> None:
        self.model_name = model_name
        self.ids: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self.decoder_ids: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self.texts: dict[str, tuple[LabelledText, ...]] = {}
        self.without_attention: dict[str, str] = {}
        self.output_gradients: dict[str, Array] = {}
        self._maps = list(maps)

    def __len__(self) -> int:
        return len(self._maps)

    @overload
    def __getitem__(self, index: int | str) -> AttentionMap: ...

    @overload
    def __getitem__(self, index: slice) -> list[AttentionMap]: ...

    def __getitem__(self, index: int | str | slice) -> AttentionMap | list[AttentionMap]:
        if isinstance(index, str):
            for found in self._maps:
                if found.name == index:
                    return found
            near = difflib.get_close_matches(index, self.names, n=3, cutoff=0.3)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise KeyError(f"no attention named {index!r} was recorded.{hint}")
        if not isinstance(index, slice) and not -len(self) <= index < len(self):
            raise IndexError(f"recording[{index}]: the recording has {len(self)} maps")
        return self._maps[index]

    def append(self, found: AttentionMap) -> None:
        """Add a map at the end; `jumok.watch` does this while the model runs."""
        self._maps.append(found)

    @property
    def names(self) -> list[str]:
        """Names of the maps, in order."""
        return [found.name for found in self._maps]

    @property
    def nbytes(self) -> int:
        """Bytes that all weights would take in float32. None of them are held."""
        return sum(found.nbytes for found in self._maps)

    @property
    def held_bytes(self) -> int:
        """Bytes that are really held; a mask shared by several maps counts once."""
        shared: dict[int, int] = {}
        total = 0
        for found in self._maps:
            total += found.held_bytes
            for array in _shared_arrays(found):
                shared[id(array)] = _array_bytes(array)
        return total + sum(shared.values())

    def segments(
        self,
        bounds: Sequence[int],
        *,
        layers: int | Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
        norm_weighted: bool = False,
        batch: int = 0,
    ) -> Tables:
        """How much each passage reads of each, of every head, of every layer and on average.

        `jumok.segments` finds the passages by itself and sets apart what is no passage; see
        `jumok.lens.segment_tables.segment_tables` for the arguments.
        """
        from jumok.lens.segment_tables import segment_tables

        return segment_tables(
            self, bounds, layers=layers, heads=heads, norm_weighted=norm_weighted, batch=batch
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(title=f"{self.model_name}: {len(self)} attention maps", title_justify="left")
        for heading, justify in (
            ("", "right"), ("layer", "left"), ("batch", "right"), ("heads", "right"),
            ("queries", "right"), ("keys", "right"), ("held", "right"), ("as weights", "right"),
        ):  # fmt: skip
            table.add_column(heading, justify=justify, no_wrap=heading != "layer")  # type: ignore[arg-type]
        for number, found in enumerate(self._maps):
            table.add_row(
                str(number),
                found.name,
                *map(str, found.shape),
                readable_bytes(found.held_bytes),
                readable_bytes(found.nbytes),
            )
        table.add_section()
        table.add_row(
            "", "all", "", "", "", "", readable_bytes(self.held_bytes), readable_bytes(self.nbytes)
        )
        yield table
        if self.without_attention:
            yield Text(self.what_is_not_here)

    @property
    def what_is_not_here(self) -> str:
        """One line about `without_attention`: which layers have no map, and why."""
        by_class: dict[str, list[str]] = {}
        for name, kind in self.without_attention.items():
            by_class.setdefault(kind, []).append(name)
        parts = [
            f"{kind} ({', '.join(names[:3])}{f' and {len(names) - 3} more' * (len(names) > 3)})"
            for kind, names in by_class.items()
        ]
        return f"no attention weights here: {'; '.join(parts)}"

    def __repr__(self) -> str:
        console = Console(width=100, no_color=True, highlight=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()

    def label(self, tokenizer: Any, text: str | None = None, prompt: int | None = None) -> None:
        """Read the token ids with their tokenizer, so that the recording knows its words.

        Fills `texts`; `save` then keeps labels, words and passages in the file.

        Args:
            tokenizer: the model's; ours, a ``tokenizers.Tokenizer`` or a transformers tokenizer.
            text: what the model read (the prompt, if it went on), where that was one text;
                without it, it is rebuilt from the ids.
            prompt: how many tokens the prompt has, if the model went on.

        Raises:
            ValueError: the recording has no ids, or ``text`` has others.
        """
        from jumok.lens.labelled import labelled
        from jumok.tokens import as_tokenizer

        if self.ids is None and self.decoder_ids is None:
            raise ValueError("the recording has no token ids to label: the model was given none")
        found = {}
        if self.ids is not None:
            found["ids"] = tuple(
                labelled(tokenizer, row.tolist(), text if len(self.ids) == 1 else None, prompt)
                for row in self.ids
            )
        if self.decoder_ids is not None:
            target = as_tokenizer(tokenizer).target
            found["decoder_ids"] = tuple(labelled(target, row.tolist()) for row in self.decoder_ids)
        self.texts = found

    def save(self, path: str | os.PathLike[str], tokenizer: Any = None) -> None:
        """Write the recording to one safetensors file, which `jumok.open` opens without torch.

        The file appears under its name only when it is complete. Output projections are not
        written; the norms of the values through them are, so that norm-weighted shares can
        still be had.

        Args:
            path: name of the file.
            tokenizer: the model's: the file then knows its words, too; see `label`.
        """
        if tokenizer is not None:
            self.label(tokenizer)
        writer = Writer()
        maps = [writer.entry(found) for found in self._maps]
        written: dict[str, Any] = {}
        for name, ids in (("ids", self.ids), ("decoder_ids", self.decoder_ids)):
            if ids is not None:
                written[name] = writer.add(name, ids)
        if self.texts:
            from jumok.lens.labelled import written_text

            written["texts"] = {
                kind: [
                    writer.add(f"texts.{kind}.{number}", written_text(text))
                    for number, text in enumerate(texts)
                ]
                for kind, texts in self.texts.items()
            }
        writer.write(Path(path), described(self.model_name, maps, written, self.without_attention))


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording that `Recording.save` wrote. Needs no torch.

    The arrays stay in the file until a map is used; weights come out as NumPy arrays.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a whole safetensors file, or not a recording.
    """
    file = Path(path)
    if not file.is_file():
        what = "that is a folder" if file.is_dir() else "there is no such file"
        raise FileNotFoundError(f"no recording at {os.fspath(path)!r}: {what}")
    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
    except SafetensorError as error:
        raise ValueError(
            f"{os.fspath(path)!r} is not a whole safetensors file ({error}); was it cut off, or is "
            f"it something else?"
        ) from None
    if "jumok" not in metadata:
        raise ValueError(
            f"{os.fspath(path)!r} is a safetensors file but not a recording; record a model with "
            f"jumok.watch and write it with recording.save(path)"
        )
    try:
        header = json.loads(metadata["jumok"])
        version = int(header["format"])
        if version <= FORMAT:
            return _read(header, StoredArrays(file))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(
            f"{os.fspath(path)!r}: the description of the recording is damaged "
            f"({type(error).__name__}: {error}); record the model again"
        ) from None
    raise ValueError(
        f"{os.fspath(path)!r} was written by a newer jumok (format {version}, this one reads up to "
        f"{FORMAT}); update jumok to open it"
    )


def _read(header: dict[str, Any], arrays: StoredArrays) -> Recording:
    sources = [StoredCall(entry, arrays) for entry in header["maps"]]
    for source in sources:
        source.check()
    recording = Recording(str(header["model"]), [AttentionMap(source) for source in sources])
    if "ids" in header:
        recording.ids = np.array(arrays[header["ids"]])
    if "decoder_ids" in header:
        recording.decoder_ids = np.array(arrays[header["decoder_ids"]])
    if "texts" in header:
        from jumok.lens.labelled import read_written_text

        recording.texts = {
            str(kind): tuple(read_written_text(arrays[name]) for name in names)
            for kind, names in header["texts"].items()
        }
    recording.without_attention = dict(header.get("without_attention", {}))
    return recording


# -- bytes ------------------------------------------------------------------------------------


def _shared_arrays(found: AttentionMap) -> Iterator[Array]:
    """Arrays of a map that others may share: masks and biases."""
    if found.measured is not None:
        return
    call = found.record
    if call.bias is not None:
        yield call.bias
    yield from mask_arrays(call.mask)


def _array_bytes(array: Array) -> int:
    return int(array.nbytes)
