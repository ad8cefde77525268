"""``jumok train``: teach a model a corpus, or go on where that has stopped."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jumok.cli.ending import Refusal

if TYPE_CHECKING:
    from jumok.training.settings import Training

_CORPUS = (
    "A .txt, .md, .jsonl or .parquet file, a folder of them, topics (Python's reference manual), "
    "or a generated task: task:copy, task:reversal, task:induction, task:dates, task:sums."
)
FAILED = 2
STOPPED = 130  # as a shell counts a process that Ctrl-C has ended


def train(
    corpus: Annotated[str, typer.Argument(help=_CORPUS)],
    out: Annotated[
        str,
        typer.Option(help="Folder of the run. The same command goes on in it.", metavar="FOLDER"),
    ],
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="Of .jsonl and .parquet: name of the text (seq2seq: twice).", metavar="NAME"
        ),
    ] = None,
    family: Annotated[
        str,
        typer.Option(help="gpt (next token), bert (masked tokens), seq2seq (source to target)."),
    ] = "gpt",
    size: Annotated[str, typer.Option(help="tiny, small, medium, base or large.")] = "tiny",
    emb_dim: Annotated[int | None, typer.Option(help="Width, instead of the size's.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks, instead of the size's.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads, instead of the size's.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="Documents in a row don't see each other (gpt).")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option("--from", help="A model to go on from: smollm2, a folder, …", metavar="MODEL"),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="bytes, bpe (trained here; the default) or a folder.", metavar="KIND"),
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Of a bpe that is trained.")] = 4096,
    data: Annotated[
        str | None,
        typer.Option(help="Where tokens lie, for several runs. Default: in OUT.", metavar="FOLDER"),
    ] = None,
    validation: Annotated[float, typer.Option(help="Share of the corpus kept to check.")] = 0.05,
    steps: Annotated[
        int | None, typer.Option(help="Steps of the optimizer. Default: 1000.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens to read, instead of steps.")] = None,
    batch: Annotated[int | None, typer.Option(help="Rows of a step.")] = None,
    micro_batch: Annotated[
        int | None, typer.Option(help="Rows at once, if a step's don't fit into memory.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The highest. Default: the size's.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="cosine, constant or vaswani (of 2017).")
    ] = "cosine",
    warm_up: Annotated[int | None, typer.Option(help="Steps in which the rate rises.")] = None,
    weight_decay: Annotated[float, typer.Option(help="Of matrices.")] = 0.1,
    betas: Annotated[tuple[float, float], typer.Option(help="Of AdamW.")] = (0.9, 0.95),
    clip: Annotated[float, typer.Option(help="Largest norm of the gradient; 0: any.")] = 1.0,
    dropout: Annotated[float, typer.Option(help="Probability of dropping a component.")] = 0.0,
    label_smoothing: Annotated[
        float | None, typer.Option(help="Default: 0.1 for seq2seq, else 0.")
    ] = None,
    average: Annotated[
        float | None,
        typer.Option(help="Keep a moving average of the weights, with this decay (as 0.999)."),
    ] = None,
    lora: Annotated[
        int | None, typer.Option(help="Train adapters of this rank alone; needs --from.")
    ] = None,
    lora_alpha: Annotated[float | None, typer.Option(help="Default: twice the rank.")] = None,
    dtype: Annotated[str, typer.Option(help="Of products: auto, float32 or bfloat16.")] = "auto",
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile the blocks.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Less memory for a third more time.")
    ] = False,
    parallel: Annotated[str | None, typer.Option(help="ddp or fsdp, under torchrun.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, … Default: a GPU if any.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order and dropout.")] = 0,
    log_every: Annotated[int, typer.Option(help="Steps between lines of the log.")] = 10,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Steps between validation losses. Default: a tenth.")
    ] = None,
    evaluation_batches: Annotated[int, typer.Option(help="Batches of a validation loss.")] = 20,
    snapshot_every: Annotated[
        int | None, typer.Option(help="Steps between snapshots. Default: every 10 minutes.")
    ] = None,
    keep: Annotated[int, typer.Option(help="Newest snapshots that stay, besides the best.")] = 2,
    prompt: Annotated[str | None, typer.Option(help="What the sample text goes on from.")] = None,
) -> int:
    """Teach a model a corpus; the same command again goes on where that has stopped.

    The folder holds the model (jumok.load and transformers read it), snapshots, a log, curves
    and report.html. Ctrl-C finishes the step and saves.
    """
    options = dict(locals())
    try:
        training = settings_of(options)
    except Refusal:
        if not _is_main():
            return FAILED
        raise

    from jumok.training.loop import DivergedError, train
    from jumok.training.parallel import LostProcessError, MainProcessError, MissingDeviceError
    from jumok.training.snapshot import SnapshotError

    try:
        result = train(training)
    except MainProcessError:
        return FAILED
    except (LostProcessError, MissingDeviceError) as error:  # of this process alone
        raise Refusal(str(error)) from error
    except (DivergedError, SnapshotError, ValueError) as error:  # the same in all processes
        if not _is_main():
            return FAILED
        raise Refusal(str(error)) from error
    return 0 if result.finished else STOPPED


def _is_main() -> bool:
    """Whether this process speaks for all that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"


def settings_of(options: dict[str, Any]) -> "Training":
    """The settings that the options ask for."""
    from jumok.training.settings import OPTIONS, Training

    settings = {**options, "fields": options["field"] or ()}
    del settings["field"]
    for option, name in (("layers", "n_layers"), ("heads", "n_heads")):
        settings[name] = settings.pop(option)
    try:
        return Training(**settings)
    except ValueError as error:
        raise Refusal(_as_options(str(error), list(settings), OPTIONS)) from error


def _as_options(message: str, names: list[str], special: dict[str, str]) -> str:
    """``n_layers=0: …`` as it was typed: ``--layers 0: …``."""
    for name in sorted(names, key=len, reverse=True):
        if message.startswith(f"{name}="):
            option = special.get(name, f"--{name.replace('_', '-')}")
            return f"{option} {message.removeprefix(f'{name}=')}"
    return message
