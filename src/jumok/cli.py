"""The command ``jumok``: one function a command.

What goes wrong is said in one line on stderr, with exit code 2; Ctrl-C ends with 130, quietly.
Everything heavy is imported when a command needs it, so that ``jumok --help`` is quick.
"""

import contextlib
import dataclasses
import errno
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jumok import __version__

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jumok.lens.recording import Recording
    from jumok.lens.sources import Sources
    from jumok.tokens import Tokenizer

__all__ = ["main"]

PICTURES = (".png", ".svg", ".pdf")
MOST_COMPARED = 6
MOST_BYTES = 4_000_000  # of a text; no model here reads as much
LARGEST_SEED = 2**63 - 1
READER_LEFT = 141  # 128 + SIGPIPE, as a shell counts
REPORT_LEGEND = (
    "entropy in nats: 0 reads one token, ln T reads T tokens evenly; distance in tokens; first, "
    "itself, previous: weight on the first token, on the token itself, on the one before it; most "
    "read: the token that receives most, and its part of all weight. Layers, heads and positions "
    "count from 0."
)
_EXTRA_OF = {
    "torch": "torch",
    "tokenizers": "torch",
    "gguf": "torch",
    "transformers": "hf",
    "matplotlib": "view",
}

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    help="Self-attention you can build, run and open.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Refusal(Exception):
    """Something the user can put right; the message says what, in one line."""


Model = Annotated[
    str, typer.Option("--model", "-m", help="minilm, smollm2, a model's folder or a .gguf file.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"jumok {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def look(
    text: Annotated[
        str | None, typer.Argument(help="The text to read.", show_default=False)
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="A second text: the same word in both, side by side.")
    ] = None,
    model: Model = "minilm",
    word: Annotated[
        str | None,
        typer.Option(
            "--word",
            "-w",
            help="The word to look at, wherever it occurs; bank finds Bank too, Bank only itself.",
        ),
    ] = None,
    token: Annotated[
        int | None,
        typer.Option(help="Instead of a word: one token's position, from 0; -1 is the last."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="A-B: average these layers only, from 0; one: A.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Read the text from a file; - is stdin.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Draw a picture: a .png, .svg or .pdf file.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Keep the recording: a file that jumok.open reads.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, nothing else.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Plain attention weights.")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="Tokens instead of words.")] = False,
) -> None:
    """Show where each word of a text takes its meaning from, in a real model.

    Shares are fractions of everything that attention brings to the word: weight times the length
    of what is handed over (Kobayashi et al. 2020).
    """
    text = _text(text, file)
    if against is not None:
        _check_text(against, "the text after --against")
    if against is not None and token is not None:
        raise Refusal("--token can't be compared between two texts; choose a --word")
    if word is not None and token is not None:
        raise Refusal(f"choose --word {word} or --token {token}, not both")
    chosen = None if layers is None else _layers(layers)
    if png is not None:
        _check_picture(png)
    _check_writable(png, save)

    reader = _Reader(model)

    def found(text: str, recording: "Recording") -> "Sources":
        from jumok.lens.sources import sources

        data = sources(
            recording,
            reader.tokenizer,
            word,
            token=token,
            text=text,
            layers=chosen,
            raw=raw,
            pieces=pieces,
        )
        if not data.queries:
            raise Refusal(f"{reader.name} reads no word in {_quoted(text)}")
        return dataclasses.replace(data, model=reader.name)

    recording = reader.read(text)
    if save is not None:
        recording.model_name = reader.name
        try:
            recording.save(save)
        except OSError as error:
            raise Refusal(f"can't write {save}: {error.strerror or error}") from error
        _say(f"wrote {save}")
    other = None
    if against is None:
        data = found(text, recording)
    else:
        with _named("in the first text"):
            data = found(text, recording)
        with _named("in the second text (--against)"):
            other = found(against, reader.read(against))
        if word is None:
            data, other = _shared_words(data, other)
    if png is not None:
        from jumok.view.figure import picture
        from jumok.view.fonts import quietly

        drawn = picture(data, other)
        with quietly():
            _write(png, lambda path: drawn.savefig(path, format=png.suffix[1:].lower()))
        _say(f"wrote {png}")
    if as_json:
        print(json.dumps(_as_dict(data, other), ensure_ascii=False, indent=2))
        return
    from jumok.view import terminal

    if other is not None:
        _show(terminal.compare(data, other))
    elif word is None and token is None:
        _show(terminal.overview(data))
    else:
        _show(terminal.look(data))


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on with.")],
    model: Model = "smollm2",
    tokens: Annotated[int, typer.Option(help="At most so many new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the likeliest with this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Make the choice repeatable.")] = None,
) -> None:
    """Continue a text with a GPT, printed as it comes."""
    if not prompt.strip():
        raise Refusal("the text is empty")
    if tokens < 1:
        raise Refusal(f"--tokens {tokens}: at least 1")
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise Refusal(f"--seed {seed}: a whole number from 0 to {LARGEST_SEED}")
    reader = _Reader(model)
    reader.generate(
        prompt, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )


@app.command()
def report(
    source: Annotated[
        str | None,
        typer.Argument(help="A recording's file, or a text to read.", show_default=False),
    ] = None,
    model: Model = "minilm",
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Read the text from a file; - is stdin.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list with an object for each head.")
    ] = False,
) -> None:
    """One row for each head: entropy, distance, what it reads most."""
    from jumok.lens.recording import open_recording
    from jumok.lens.report import report as made

    if source is not None and file is None and _is_recording(source):
        try:
            found = made(open_recording(source))
        except ValueError as error:
            if source.endswith(".safetensors"):
                raise
            raise Refusal(
                f"{source} is no recording; to read a text from a file: --file {source}"
            ) from error
    else:
        text = _text(source, file)
        reader = _Reader(model)
        found = made(reader.read(text), reader.tokenizer)
    if as_json:
        print(json.dumps(list(found), ensure_ascii=False, indent=2))
        return
    from rich.console import Group
    from rich.text import Text

    _show(Group(found, "", Text(REPORT_LEGEND, "dim")))


@app.command()
def models() -> None:
    """List the embedded models, and where they are kept."""
    from jumok.model.zoo import ZOO, cache_folder

    for name, entry in ZOO.items():
        folder = cache_folder() / f"{name}-{entry.version}"
        kept = (folder / "model.safetensors").is_file()
        print(f"{name:8} {entry.summary}")
        where = f"kept in {folder}" if kept else "not fetched yet"
        print(f"{'':8} {where} ({entry.sizes})")
    print(f"Models are kept in {cache_folder()}; JUMOK_CACHE names another folder.")


class _Reader:
    """A loaded model that reads texts under `watch`."""

    def __init__(self, name: str) -> None:
        from jumok.model.loading import load

        path = Path(name)
        self.name = path.stem if path.suffix == ".gguf" else path.name if path.is_dir() else name
        self.model, tokenizer = load(name)
        if tokenizer is None:
            raise Refusal(f"{name} has no tokenizer; put its tokenizer.json beside the weights")
        self.tokenizer: Tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        context = self.model.config.context
        if not ids:
            raise Refusal("the text is empty for this model: it gives no token")
        if len(ids) > context:
            raise Refusal(
                f"the text has {len(ids):,} tokens, {self.name} reads at most {context:,}; "
                "shorten it"
            )
        return ids

    def read(self, text: str) -> "Recording":
        import torch

        from jumok.lens.watch import watch
        from jumok.model.transformer import Decoder

        ids = torch.tensor([self.ids(text)])
        self._check_memory(ids.shape[1])
        keywords = {"last": 1} if isinstance(self.model, Decoder) else {}  # logits aren't needed
        with torch.inference_mode(), watch(self.model) as recording:
            self.model(ids, **keywords)
        return recording

    def _check_memory(self, tokens: int) -> None:
        """Refuse what can't fit, before the system ends the process without a word."""
        config = self.model.config
        size = next(self.model.parameters()).element_size()
        heads = config.n_heads + 2 * (config.n_kv_heads or config.n_heads)
        width = config.head_dim or config.emb_dim // config.n_heads
        needed = size * tokens * config.n_layers * heads * width  # queries, keys and values
        free = _free_memory()
        if free is not None and needed > free:
            raise Refusal(
                f"not enough memory: reading {tokens:,} tokens with {self.name} takes at least "
                f"{needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; shorten the text"
            )

    def generate(self, prompt: str, tokens: int, **sampling: Any) -> None:
        from jumok.model.generate import stream_text
        from jumok.model.transformer import Decoder
        from jumok.tokens import printable

        if not isinstance(self.model, Decoder):
            raise Refusal(f"{self.name} is an encoder and can't continue a text; try smollm2")
        pieces = stream_text(self.model, self.tokenizer, self.ids(prompt), tokens, **sampling)
        print(printable(prompt), end="", flush=True)
        for piece in pieces:
            print(printable(piece), end="", flush=True)
        print()


def _text(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise Refusal("give a text or --file, one of them")
    if file is not None:
        try:
            with sys.stdin.buffer if file == "-" else open(file, "rb") as opened:
                data = opened.read(MOST_BYTES + 1)
        except OSError as error:
            raise Refusal(f"can't read {file}: {error.strerror or error}") from error
        if len(data) > MOST_BYTES:
            raise Refusal(
                f"{file} is larger than {MOST_BYTES / 1e6:.0f} MB, more than a model reads; "
                "shorten it"
            )
        try:
            text = data.decode("utf-8-sig").strip("\n")
        except UnicodeDecodeError as error:
            raise Refusal(f"{file} is not UTF-8 text: byte {error.start:,} is no letter") from error
    assert text is not None
    _check_text(text, "the text" if file is None else file)
    return text


def _check_text(text: str, name: str) -> None:
    from jumok.tokens import has_words

    if not text.strip():
        raise Refusal(f"{name} is empty")
    if not has_words(text):
        raise Refusal(f"{name} has no word, only {_quoted(text)}")


def _quoted(text: str) -> str:
    from jumok.tokens import shortened, visible

    return f"“{visible(shortened(text))}”"


@contextlib.contextmanager
def _named(place: str) -> Iterator[None]:
    """Let what is refused inside say in which text."""
    try:
        yield
    except (Refusal, ValueError) as error:
        raise Refusal(f"{place}: {error}") from error


def _layers(text: str) -> list[int]:
    parts = text.strip().split("-")
    if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
        raise Refusal(f"--layers {text}: write A-B, two layers counted from 0, or one number")
    first, last = int(parts[0]), int(parts[-1])
    if first > last:
        raise Refusal(f"--layers {text}: the first layer comes after the last")
    return list(range(first, last + 1))


def _shared_words(left: "Sources", right: "Sources") -> "tuple[Sources, Sources]":
    """Only the queries whose word is in both texts."""
    inside = {query.word.casefold() for query in left.queries if _is_word(query.word)}
    inside &= {query.word.casefold() for query in right.queries}
    if not inside:
        raise Refusal("the two texts have no word in common; choose texts that share one")
    if len(inside) > MOST_COMPARED:
        names = [q.word for q in left.queries if q.word.casefold() in inside]
        raise Refusal(
            f"the texts share {len(inside)} words; choose one: --word {max(names, key=len)}"
        )

    def kept(data: "Sources") -> "Sources":
        queries = tuple(q for q in data.queries if q.word.casefold() in inside)
        return dataclasses.replace(data, queries=queries)

    return kept(left), kept(right)


def _is_word(text: str) -> bool:
    return any(sign.isalnum() for sign in text)


def _as_dict(data: "Sources", other: "Sources | None") -> dict[str, Any]:
    if other is None:
        return data.to_dict()
    from jumok.lens.sources import difference
    from jumok.view.wording import paired

    return {
        **data.to_dict(),
        "against": other.to_dict(),
        "differences": [
            {
                "word": first.word,
                "position": first.position,
                "against_position": second.position,
                "sources": [
                    {
                        "word": row.word,
                        "kind": row.kind,
                        "share": row.share,
                        "against": row.against,
                        "change": row.change,
                        "position": row.position,
                        "against_position": row.against_position,
                    }
                    for row in difference(first, second)
                ],
            }
            for first, second in paired(data, other)
        ],
    }


def _check_picture(path: Path) -> None:
    if path.suffix.lower() not in PICTURES:
        raise Refusal(f"--png {path}: the name must end in {', '.join(PICTURES)}")
    import matplotlib  # noqa: F401  (say that it is missing before the model runs)


def _check_writable(*paths: Path | None) -> None:
    """Refuse before the work, not after it, what can't be written."""
    for path in paths:
        if path is None:
            continue
        folder = path.parent
        if path.is_dir():
            raise Refusal(f"can't write {path}: it is a folder")
        if not folder.is_dir():
            raise Refusal(f"can't write {path}: there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            raise Refusal(f"can't write {path}: no permission to write in {folder}")


def _write(path: Path, write: Callable[[str], object]) -> None:
    """Let ``write`` fill a file beside ``path``, then put it in place at once."""
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(handle)
        write(name)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except OSError as error:
        raise Refusal(f"can't write {path}: {error.strerror or error}") from error
    finally:
        if name is not None:
            Path(name).unlink(missing_ok=True)  # only there if something went wrong


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _free_memory() -> int | None:
    """Bytes that may still be used, where the system says so (Linux, its containers too)."""

    def table(path: str) -> dict[str, int]:
        lines = (line.split() for line in Path(path).read_text().splitlines())
        return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}

    try:
        free = table("/proc/meminfo")["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        used = int((group / "memory.current").read_text())
        cached = table(str(group / "memory.stat"))["inactive_file"]
        free = min(free, int((group / "memory.max").read_text()) - used + cached)
    except (OSError, KeyError, ValueError):  # no such group, or one without a limit
        pass
    return free


def _is_recording(text: str) -> bool:
    try:
        return Path(text).suffix == ".safetensors" or Path(text).is_file()
    except OSError:  # a text longer than a path may be
        return False


def _show(renderable: "RenderableType") -> None:
    """Print; without a terminal, without colour and without spaces at the ends of lines."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        console.print(renderable)
        return
    with console.capture() as capture:
        console.print(renderable)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    said = str(error).lower()
    signs = ("out of memory", "allocate memory", "not enough memory", "failed to map segment")
    return isinstance(error, (RuntimeError, ImportError, OSError)) and any(s in said for s in signs)


def _complaint(error: Exception) -> str:
    """One line that says what went wrong and what to do."""
    if _out_of_memory(error):
        return "not enough memory for this model and text; try a shorter text or a smaller model"
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").split(".")[0]
        if package in _EXTRA_OF:
            return f"this needs {package}: pip install 'jumok[{_EXTRA_OF[package]}]'"
    if isinstance(error, (Refusal, ValueError, LookupError, OSError)):
        return _reason(error)
    kind = type(error).__name__
    return f"this is a fault in jumok ({kind}: {_reason(error)}); JUMOK_DEBUG=1 shows where"


def _short_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(f"jumok: note: {_reason(message) if isinstance(message, Warning) else message}")


def main(arguments: Iterable[str] | None = None) -> None:
    """Run the command line; ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Korean shows ?
    with warnings.catch_warnings():
        warnings.showwarning = _short_warning
        sys.exit(_run(None if arguments is None else list(arguments)))


def _run(arguments: list[str] | None) -> int:
    try:
        code = app(arguments, prog_name="jumok", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    except SystemExit:  # so does the parser end when the reader leaves while a command prints
        return READER_LEFT
    except Exception as error:
        if type(error).__name__ == "Abort":  # how the parser reports Ctrl-C
            return 130
        if os.environ.get("JUMOK_DEBUG"):
            raise
        if hasattr(error, "format_message"):  # the parser's: an unknown option and the like
            _say(f"jumok: {error.format_message().rstrip('.')}; see jumok --help")
        else:
            _say(f"jumok: {_complaint(error)}")
        return 2
    return code if isinstance(code, int) else 0
