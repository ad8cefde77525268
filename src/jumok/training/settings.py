"""Everything that a training run is asked for, in one frozen dataclass."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

__all__ = ["OPTIONS", "SIZES", "Size", "Training"]

Family = Literal["gpt", "bert", "seq2seq"]
Schedule = Literal["cosine", "constant", "vaswani"]
Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Size:
    """How large a model is, and the rate at which such a model learns well.

    Args:
        emb_dim: width E of the residual stream.
        n_layers: number of blocks L; of each side for an encoder-decoder half of it.
        n_heads: number of attention heads H.
        context: tokens that it sees at most.
        learning_rate: the highest of a run.
        batch: rows of a step.
    """

    emb_dim: int
    n_layers: int
    n_heads: int
    context: int
    learning_rate: float
    batch: int


SIZES = {
    "tiny": Size(128, 4, 4, 256, 2e-3, 16),
    "small": Size(384, 6, 6, 256, 1e-3, 32),
    "medium": Size(512, 8, 8, 512, 8e-4, 64),
    "base": Size(768, 12, 12, 1024, 6e-4, 256),
    "large": Size(1024, 24, 16, 1024, 3e-4, 512),
}

# What may change when a run goes on: how long, how it is watched, and where it computes.
_FREE = {
    "out",
    "tokens",
    "steps",
    "log_every",
    "evaluate_every",
    "evaluation_batches",
    "snapshot_every",
    "keep",
    "prompt",
    "device",
    "parallel",
    "compile",
    "data",
}
# Options of the command line that are not named as the setting is.
OPTIONS = {"n_layers": "--layers", "n_heads": "--heads", "base": "--from", "fields": "--field"}

_STEPS = 1000  # of a run that says neither steps nor tokens


@dataclass(frozen=True)
class Training:
    """What to train, on what, and how.

    Args:
        corpus: a ``.txt``, ``.md``, ``.jsonl`` or ``.parquet`` file, a folder of them, "topics"
            (the reference manual that every Python carries), or a generated task: "task:copy",
            "task:reversal", "task:induction", "task:dates", "task:sums".
        out: folder of the run. The same training again goes on where it has stopped.
        fields: of ``.jsonl`` and ``.parquet``: the name of the text, or of source and target,
            where they are not called "text", or "source" and "target".
        family: "gpt" guesses the next token, "bert" masked tokens, "seq2seq" a target from a
            source.
        size: "tiny", "small", "medium", "base" or "large"; see `SIZES`.
        emb_dim: width E instead of the size's.
        n_layers: number of blocks L instead of the size's; of each side for "seq2seq".
        n_heads: number of heads H instead of the size's.
        context: tokens of a row T instead of the size's.
        apart: documents that lie in one row don't see each other ("gpt").
        base: a model to go on from: "smollm2", a folder, …; its family and size hold then.
        tokenizer: "bytes", "bpe" (trained on the corpus), or a folder. `None`: the base's, or
            "bpe".
        vocab_size: of a "bpe" that is trained.
        data: folder of the tokenised corpus, which runs may share. `None`: ``out/data``.
        validation: share of the corpus that is kept for the validation loss.
        steps: optimizer steps; 1,000 if neither these nor ``tokens`` are given.
        tokens: tokens to read, instead of steps.
        batch: rows of a step, of all processes together. `None`: the size's.
        micro_batch: rows at once; the gradients of several are added up. `None`: all.
        learning_rate: the highest. `None`: the size's; a twentieth of it for a base, a fifth with
            ``lora``.
        schedule: "cosine" (up in a straight line, down to a tenth along a cosine), "constant"
            (after the line), or "vaswani" (Vaswani et al. 2017, equation 3, which sets its own
            rate).
        warm_up: steps in which the rate rises. `None`: a tenth of them, 2,000 at most.
        weight_decay: of matrices, decoupled (Loshchilov & Hutter 2019); not of biases and norms.
        betas: of AdamW.
        clip: the largest norm of the gradient. 0: not clipped.
        dropout: probability of dropping a component.
        label_smoothing: share of a target spread over the vocabulary. `None`: 0.1 for "seq2seq",
            else 0.
        average: decay of a moving average of the weights, which is then what is evaluated and
            saved. `None`: no average.
        lora: rank of low-rank adapters; all other weights stay as they are. `None`: no adapters.
        lora_alpha: their scale is this over their rank. `None`: twice the rank.
        dtype: of matrix products: "auto" (bfloat16 where the processor has it), "float32" or
            "bfloat16". Weights are float32 always.
        compile: compile blocks with ``torch.compile``. `None`: on a GPU, if there is a compiler.
        recompute: keep only the input of each block for backward (activation checkpointing).
        parallel: "ddp" or "fsdp", under ``torchrun``.
        device: "cpu", "cuda", …. `None`: a GPU if there is one.
        seed: of weights, order and dropout.
        log_every: steps between two lines of the log.
        evaluate_every: steps between two validation losses. `None`: a tenth of the run.
        evaluation_batches: how many batches make a validation loss, at most.
        snapshot_every: steps between two snapshots. `None`: as ``evaluate_every``.
        keep: how many of the newest snapshots stay, besides the best.
        prompt: what the sample text goes on from. `None`: the first words of the validation text.

    Raises:
        ValueError: a value that can't be.
    """

    corpus: str
    out: str
    fields: tuple[str, ...] = ()
    family: Family = "gpt"
    size: str = "tiny"
    emb_dim: int | None = None
    n_layers: int | None = None
    n_heads: int | None = None
    context: int | None = None
    apart: bool = False
    base: str | None = None
    tokenizer: str | None = None
    vocab_size: int = 4096
    data: str | None = None
    validation: float = 0.05
    steps: int | None = None
    tokens: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    learning_rate: float | None = None
    schedule: Schedule = "cosine"
    warm_up: int | None = None
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    dropout: float = 0.0
    label_smoothing: float | None = None
    average: float | None = None
    lora: int | None = None
    lora_alpha: float | None = None
    dtype: Precision = "auto"
    compile: bool | None = None
    recompute: bool = False
    parallel: str | None = None
    device: str | None = None
    seed: int = 0
    log_every: int = 10
    evaluate_every: int | None = None
    evaluation_batches: int = 20
    snapshot_every: int | None = None
    keep: int = 2
    prompt: str | None = None

    def __post_init__(self) -> None:
        for name in ("corpus", "out", "base", "tokenizer", "data"):  # paths are welcome
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, str(value))
        for name in ("betas", "fields"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, known in (
            ("family", get_args(Family)),
            ("size", tuple(SIZES)),
            ("schedule", get_args(Schedule)),
            ("dtype", get_args(Precision)),
            ("parallel", (None, "ddp", "fsdp")),
        ):
            if getattr(self, name) not in known:
                names = ", ".join(str(one) for one in known if one is not None)
                raise ValueError(f"{name}={getattr(self, name)!r}: one of {names}")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value != int(value) or value < 1):
                raise ValueError(f"{name}={value!r}: a whole number, at least 1")
        for name, below in _SHARES.items():
            value = getattr(self, name)
            if value is not None and not (0 <= value < 1 or (value == 1 and not below)):
                end = "below 1" if below else "1"
                raise ValueError(f"{name}={value!r}: a number from 0 to {end}")
        for name in ("learning_rate", "lora_alpha"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r}: a number above 0")
        for name in ("weight_decay", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)!r}: a number from 0")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas!r}: two numbers from 0 to below 1")
        if self.warm_up is not None and self.warm_up < 0:
            raise ValueError(f"warm_up={self.warm_up}: a number of steps from 0")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed}: a whole number from 0 to {2**63 - 1}")
        self._check_together()

    def _check_together(self) -> None:
        if self.steps is not None and self.tokens is not None:
            raise ValueError(
                f"steps={self.steps} and tokens={self.tokens}: give one of them, the other follows"
            )
        if self.schedule == "vaswani" and self.learning_rate is not None:
            raise ValueError(
                f"schedule='vaswani' sets the learning rate by itself: leave out "
                f"learning_rate={self.learning_rate}, or choose schedule='cosine'"
            )
        if self.schedule == "vaswani" and self.warm_up == 0:
            raise ValueError("schedule='vaswani' needs warm_up of at least 1 step")
        if self.lora is not None and self.base is None:
            raise ValueError(
                f"lora={self.lora}: adapters are for a model that has learned: name it as base"
            )
        if self.lora_alpha is not None and self.lora is None:
            raise ValueError(f"lora_alpha={self.lora_alpha}: give the rank too, as lora")
        if self.base is not None:
            for name in ("emb_dim", "n_layers", "n_heads"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name}={getattr(self, name)}: the size of {self.base!r} is settled; "
                        f"leave it out, or leave out base"
                    )
        if self.micro_batch is not None and self.micro_batch > self.rows:
            raise ValueError(
                f"micro_batch={self.micro_batch} is more than the batch of {self.rows} rows"
            )

    # What follows from it --------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Of the run."""
        return Path(self.out).expanduser()

    @property
    def data_folder(self) -> Path:
        """Of the tokenised corpus."""
        return self.folder / "data" if self.data is None else Path(self.data).expanduser()

    @property
    def rows(self) -> int:
        """Rows of a step, of all processes together."""
        return SIZES[self.size].batch if self.batch is None else self.batch

    @property
    def highest_rate(self) -> float:
        """The learning rate at the end of the warm-up."""
        if self.learning_rate is not None:
            return self.learning_rate
        share = 1.0 if self.base is None else 0.05 if self.lora is None else 0.2
        return SIZES[self.size].learning_rate * share

    def smoothing_of(self, family: str) -> float:
        """The share of a target that is spread over the vocabulary, for a model of that family."""
        if self.label_smoothing is not None:
            return self.label_smoothing
        return 0.1 if family == "seq2seq" else 0.0

    def n_steps(self, tokens_per_step: int) -> int:
        """How many steps the run has."""
        if self.tokens is not None:
            return math.ceil(self.tokens / tokens_per_step)
        return _STEPS if self.steps is None else self.steps

    @property
    def command(self) -> str:
        """The command line that asks for the same."""
        words = ["jumok", "train", self.corpus, "--out", self.out]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("corpus", "out") or value == field.default:
                continue
            option = OPTIONS.get(field.name, f"--{field.name.replace('_', '-')}")
            if isinstance(value, bool):
                words.append(option if value else option.replace("--", "--no-", 1))
            elif field.name == "fields":
                words += [word for one in value for word in (option, one)]
            else:
                values = value if isinstance(value, tuple) else (value,)
                words += [option, *(str(one) for one in values)]
        return shlex.join(words)

    # Kept beside the run ---------------------------------------------------------------------

    def to_json(self) -> str:
        """All settings, as ``training.json`` has them."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Training:
        """Settings from `to_json`.

        Raises:
            ValueError: it is none.
        """
        values: Any = json.loads(text)
        known = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or not {"corpus", "out"} <= set(values) <= known:
            raise ValueError("these are no settings of a training")
        return cls(**values)

    def differences(self, other: Training) -> dict[str, tuple[Any, Any]]:
        """Settings that another run must share and does not: name → (its value, ours)."""
        return {
            field.name: (theirs, ours)
            for field in fields(self)
            if field.name not in _FREE
            and (theirs := getattr(other, field.name)) != (ours := getattr(self, field.name))
        }


_COUNTS = (
    "emb_dim",
    "n_layers",
    "n_heads",
    "context",
    "vocab_size",
    "steps",
    "tokens",
    "batch",
    "micro_batch",
    "lora",
    "log_every",
    "evaluate_every",
    "evaluation_batches",
    "snapshot_every",
    "keep",
)
_SHARES = {  # name → must it be below 1?
    "validation": True,
    "dropout": True,
    "average": True,
    "label_smoothing": False,
}
