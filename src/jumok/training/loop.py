"""`train`: from the settings to a model that has learned, or to the step where it was stopped.

A step is: the rows of this process, in micro-batches; the loss of each summed over its targets
and divided by the targets of the whole step; gradients clipped; AdamW. Between steps, and only
there, a run is evaluated, saved and stopped.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from jumok.model.config import EncoderDecoderConfig
from jumok.model.loading import save as save_model
from jumok.tokens import Tokenizer
from jumok.training import parallel, snapshot
from jumok.training.batches import Batch, Batches, new_batches
from jumok.training.compiling import compile_blocks, wants_compiling
from jumok.training.corpus import Corpus, read_corpus
from jumok.training.curves import write_curves
from jumok.training.folder import claim
from jumok.training.log import Log, Row
from jumok.training.machine import flops_of, has_bfloat16, machine_name, peak_flops
from jumok.training.new_tokenizer import new_tokenizer
from jumok.training.objective import Objective, recomputing
from jumok.training.optimiser import MovingAverage, new_optimiser, rate, set_rate
from jumok.training.parallel import World
from jumok.training.report import Facts, write_page
from jumok.training.samples import sample
from jumok.training.settings import Training
from jumok.training.sizes import (
    Model,
    describe,
    family_of,
    load_base,
    new_model,
    plain,
    row_length,
)
from jumok.training.stopping import Stop
from jumok.training.terminal import Silence, Terminal, rounded
from jumok.training.token_file import TokenFile
from jumok.training.tokenise import tokenise

__all__ = ["DivergedError", "TrainingResult", "train"]

_SECONDS_BETWEEN_SNAPSHOTS = 600.0  # where no number of steps is given
_SECONDS_BETWEEN_PICTURES = 60.0  # of the curves
_SECONDS_BETWEEN_RETRIES = 30.0  # of a snapshot that could not be written
_SECONDS_BETWEEN_SIGNS = 0.25  # of life, on the terminal


class DivergedError(ArithmeticError):
    """The loss or its gradient is no longer a number; the weights before that step are kept."""


@dataclass(frozen=True)
class TrainingResult:
    """What has come out of a training.

    Args:
        folder: of the run: `jumok.load` and transformers read the model in it.
        step: how many steps are done.
        steps: how many there are.
        loss: of the last line of the log, in nats per target.
        validation: the last validation loss, in nats per target; `None` if there was none.
        tokens: read in all.
        seconds: of training, over all starts.
    """

    folder: Path
    step: int
    steps: int
    loss: float
    validation: float | None
    tokens: int
    seconds: float

    @property
    def finished(self) -> bool:
        """Whether all steps are done: Ctrl-C stops a run before."""
        return self.step >= self.steps


def train(training: Training, *, show: bool = True) -> TrainingResult:
    """Train a model, or go on where the same training has stopped.

    The folder of the run holds the model at the end, and all the while snapshots, a log, curves
    and a page about it. Ctrl-C finishes the step, saves a snapshot and returns; a second one ends
    at once. After that, or when the process was killed, the same call goes on from the last
    snapshot, and ends with the same weights as if nothing had happened.

    Args:
        training: what to train, on what, and how.
        show: say on standard error how it goes.

    Returns:
        The folder, and how far training has come.

    Raises:
        ValueError: settings that don't fit together, the corpus, the model or the run in the
            folder.
        OSError: files that can't be read or written.
        DivergedError: the loss is no longer a number.
        SnapshotError: the last snapshot could not be written.

    Example:
        >>> result = jumok.train(jumok.Training("topics", out="runs/first", steps=200))
        >>> model, tokenizer = jumok.load(result.folder)
    """
    world = parallel.join(training.parallel, training.device)
    try:
        with ExitStack() as stack:
            stack.enter_context(world.guard())
            terminal = stack.enter_context(Terminal() if show and world.is_main else Silence())
            with world.main_first():
                stack.enter_context(claim(training, world.is_main))
            return _Run(training, world, terminal).go()
    finally:
        world.leave()


class _Run:
    """A training on its way: everything it needs, made once."""

    def __init__(self, training: Training, world: World, terminal: Silence) -> None:
        self.training, self.world, self.terminal = training, world, terminal
        self.folder = training.folder
        device = world.device
        if training.rows % world.size:
            raise ValueError(
                f"batch={training.rows} rows can't be shared by {world.size} processes: take a "
                f"multiple of {world.size}"
            )
        base: tuple[Model, Tokenizer] | None = None
        with world.main_first():
            base = None if training.base is None else load_base(training)
            self.family = training.family if base is None else family_of(base[0])
            self.corpus = read_corpus(
                training.corpus, pairs=self.family == "seq2seq", fields=training.fields
            )
            self.tokenizer = self._tokenizer(self.corpus, base)
            self.tokens = tokenise(
                self.corpus,
                self.tokenizer,
                training.data_folder,
                validation=training.validation,
                family=self.family,
                tell=terminal.tell,
            )
        torch.manual_seed(training.seed)  # the same weights in all processes
        self.model = new_model(training, self.tokenizer) if base is None else base[0]
        if training.lora is not None:
            from jumok.training.lora import add_lora

            add_lora(self.model, training.lora, training.lora_alpha or 2 * training.lora)
        frozen = snapshot.fingerprint_of_frozen(self.model)
        self.model.to(device).train()
        self.dtype = _dtype(training, device)
        self.module = world.wrap(
            Objective(self.model, training.smoothing_of(self.family)),
            torch.bfloat16 if self.dtype == torch.bfloat16 else None,
        )
        self.context = row_length(training, self.model)
        self.batches = self._batches(self.tokens.train)
        self.validation = self._batches(self.tokens.validation) if training.validation else None
        self.steps = training.n_steps(self.batches.tokens_per_batch)
        average = None
        if training.average is not None:
            average = MovingAverage(self.model, training.average)
        self.state = snapshot.State(
            self.module,
            new_optimiser(self.module, training),
            average,
            numbers=_numbers(),
            frozen=frozen,
        )
        snapshots = self.folder / "snapshots"
        found = snapshot.latest(snapshots, world)
        if found is not None:
            snapshot.load(found, self.state, world)
        else:
            torch.manual_seed(training.seed + 1 + world.rank)  # other dropout in each process
        with world.main_first():
            if world.is_main:
                size = snapshot.bytes_of_snapshot(self.module, average is not None)
                snapshot.require_room(snapshots, size, training.keep)
        self.log = Log(self.folder, self.state.step) if world.is_main else None
        self.stop = Stop(terminal.say)
        self.saved = self.state.step if found is not None else -1
        self.last_try = self.drawn = time.monotonic()
        self.peak = 0.0

    # Before the first step -------------------------------------------------------------------

    def _tokenizer(self, corpus: Corpus, base: tuple[Model, Tokenizer] | None) -> Tokenizer:
        if base is not None and self.training.tokenizer is None:
            return base[1]
        kind = "bpe" if self.training.tokenizer is None else self.training.tokenizer
        return new_tokenizer(
            kind,
            corpus,
            self.training.vocab_size,
            self.training.data_folder,
            self.terminal.tell,
            family=self.family,
        )

    def _batches(self, tokens: TokenFile) -> Batches:
        config = self.model.config
        begins = config.decoder.bos_id if isinstance(config, EncoderDecoderConfig) else None
        return new_batches(
            self.family,
            tokens,
            self.tokenizer,
            batch=self.training.rows,
            context=self.context,
            seed=self.training.seed,
            apart=self.training.apart,
            bos_id=begins,
        )

    def _introduce(self) -> None:
        say, training = self.terminal.say, self.training
        say(describe(self.model))
        passes = self.steps / self.batches.n_batches
        say(
            f"{self.corpus.name}: {self.tokens.train.n_tokens:,} tokens to learn from"
            + (f", {self.tokens.validation.n_tokens:,} to check" if self.validation else "")
            + f"; {self.steps:,} steps of {self.batches.tokens_per_batch:,} tokens read it "
            f"{rounded(passes)} times"
        )
        peak = f", {rounded(self.peak / 1e9)} GFLOP/s" if self.peak else ""
        say(f"{machine_name(self.world.device)}, {_name(self.dtype)}{peak}")
        if self.world.size > 1:
            say(f"{self.world.size} processes, {self.world.parallel}")
        if self.state.step:
            say(f"going on after step {self.state.step:,}, from {training.folder / 'snapshots'}")

    # The run ---------------------------------------------------------------------------------

    def go(self) -> TrainingResult:
        """All steps that are left."""
        self.peak = peak_flops(self.world.device, self.dtype)
        self._introduce()
        if self.state.step >= self.steps:  # what a killed process has left is written, too
            self.terminal.say(f"all {self.steps:,} steps are done already; more go on from here")
            return self._end()
        with ExitStack() as stack:
            stack.enter_context(self.stop.listening())
            if self.training.recompute:
                stack.enter_context(recomputing(self.model))
            self._compile()
            self._learn()
        return self._end()

    def _compile(self) -> None:
        if not wants_compiling(self.training.compile, self.world.device):
            return
        self.terminal.tell("compiling", 0)
        batch = self.batches(self.state.step, self.world.rank, self.world.size)

        def try_out() -> None:
            with self._autocast():
                loss = self.module(self._parts(batch)[0].to(self.world.device))
            loss.backward()

        reason = compile_blocks(self.model, try_out)
        self.state.optimiser.zero_grad(set_to_none=True)
        if reason is not None:
            self.terminal.say(f"note: not compiled: {reason}")

    def _learn(self) -> None:
        training, state, window = self.training, self.state, self.state.numbers
        every = training.evaluate_every or max(1, self.steps // 10)
        clock = shown = time.perf_counter()
        while state.step < self.steps and not self._asked_to_stop():
            step = state.step
            set_rate(state.optimiser, rate(training, step, self.steps, self._emb_dim))
            loss, targets, norm = self._step(step)
            state.step += 1
            now = time.perf_counter()
            took, clock = now - clock, now
            _add(window, loss * targets, targets, self.batches.tokens_per_batch, took, norm)
            done = state.step == self.steps
            if state.step % training.log_every == 0 or done:
                row = self._row()
                window.update(_numbers(window))
                self._write(row)
                self.terminal.step(row, self.steps, self._seconds_left(row))
                shown = now
            elif now - shown > _SECONDS_BETWEEN_SIGNS:
                row = self._row()
                self.terminal.step(row, self.steps, self._seconds_left(row))
                shown = now
            if state.step % every == 0 or done:
                self._evaluate()
            if self._time_to_save() and not done:
                self._save()
            clock = time.perf_counter()

    def _step(self, step: int) -> tuple[float, float, float]:
        """One step: its loss per target, the targets, and the norm of the gradient."""
        world, state, training = self.world, self.state, self.training
        batch = self.batches(step, world.rank, world.size)
        parts = self._parts(batch)
        (targets,) = world.sum(float(batch.n_targets))
        share = 1.0 / max(1.0, targets)
        summed = 0.0
        with self._autocast():  # around all parts: weights are cast once
            for number, part in enumerate(parts):
                with world.last(self.module, number == len(parts) - 1):
                    loss = self.module(part.to(world.device))
                    with torch.autocast(world.device.type, enabled=False):
                        (loss * share).backward()
                summed += float(loss.detach())
        (summed,) = world.sum(summed)
        loss_per_target = summed * share
        learn = [p for p in self.module.parameters() if p.requires_grad]
        norm = parallel.clip(learn, training.clip or math.inf)
        if not (math.isfinite(loss_per_target) and math.isfinite(norm)):
            self._diverged(step, loss_per_target, norm)
        state.optimiser.step()
        state.optimiser.zero_grad(set_to_none=True)
        if isinstance(state.average, MovingAverage):
            state.average.update()
        return loss_per_target, targets, norm

    def _parts(self, batch: Batch) -> list[Batch]:
        rows = self.training.micro_batch
        return [batch] if rows is None else batch.split(rows)

    def _diverged(self, step: int, loss: float, norm: float) -> None:
        snapshots = self.folder / "snapshots"
        last = snapshots / f"step-{self.saved:08d}"
        kept = f"the last good snapshot is {last}" if self.saved >= 0 else "there is no snapshot"
        what = f"loss is {loss}" if not math.isfinite(loss) else f"gradient's norm is {norm}"
        raise DivergedError(
            f"the {what} at step {step + 1:,} (learning rate "
            f"{rate(self.training, step, self.steps, self._emb_dim):.3g}); {kept}. Begin anew in "
            f"another folder with a smaller learning rate or a longer warm-up"
        )

    # Between steps ---------------------------------------------------------------------------

    @torch.no_grad()
    def _evaluate(self) -> None:
        """The validation loss and a sample, written down; the run itself is not touched."""
        row: Row = {"step": self.state.step}
        with self._at_rest():
            if self.validation is not None:
                row["validation"] = self.state.validation = self._loss_on(self.validation)
            shown = self.batches if self.validation is None else self.validation
            whole = self.world.whole(self.model)
            if whole is not None:
                assert isinstance(whole, Model)
                row["samples"] = sample(
                    whole, self.tokenizer, shown(0), self.training.prompt, self.training.seed
                )
        self._write(row)
        self.terminal.evaluated(row)
        if time.monotonic() - self.drawn > _SECONDS_BETWEEN_PICTURES:  # one takes a second or two
            self._draw()

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """In eval mode, with the averaged weights if there are any, and its own random numbers."""
        average = self.state.average
        devices = [self.world.device] if self.world.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), _swapped(average):
            self.module.eval()
            try:
                yield
            finally:
                self.module.train()

    def _loss_on(self, batches: Batches) -> float:
        total = count = 0.0
        for number in range(min(batches.n_batches, self.training.evaluation_batches)):
            batch = batches(number, self.world.rank, self.world.size)
            with self._autocast():
                for part in self._parts(batch):
                    total += float(self.module(part.to(self.world.device)))
            count += batch.n_targets
        total, count = self.world.sum(total, count)
        return total / max(1.0, count)

    def _time_to_save(self) -> bool:
        every, step = self.training.snapshot_every, self.state.step
        since = time.monotonic() - self.last_try
        late = every is None and since > _SECONDS_BETWEEN_SNAPSHOTS
        again = self._missed and since > _SECONDS_BETWEEN_RETRIES
        if every is not None and step % every == 0:
            return True
        return self.world.agree(late or again)  # clocks differ

    _missed = False

    def _save(self) -> None:
        """A snapshot. A full disk is told, and tried again later."""
        self.last_try = time.monotonic()
        try:
            snapshot.save(self.folder / "snapshots", self.state, self.world, self.training.keep)
        except snapshot.SnapshotError as error:
            self._missed = True
            self.terminal.say(f"note: {error}; training goes on, and I try again")
            return
        self._missed = False
        self.saved = self.state.step

    def _write(self, row: Row) -> None:
        if self.log is None:
            return
        self.log.add(row)
        for note in self.log.notes:
            self.terminal.say(f"note: {note}")
        self.log.notes.clear()

    def _row(self) -> Row:
        """A line of the log about the steps since the last one."""
        numbers, state = self.state.numbers, self.state
        speed = numbers["window_tokens"] / max(1e-9, numbers["window_seconds"])
        row: Row = {
            "step": state.step,
            "loss": numbers["window_loss"] / max(1.0, numbers["window_targets"]),
            "learning_rate": float(state.optimiser.param_groups[0]["lr"]),
            "gradient_norm": numbers["norm"],
            "tokens_per_second": speed,
            "tokens": numbers["tokens"],
            "seconds": numbers["seconds"],
        }
        if self.peak and self._flops_per_token:
            row["share_of_peak"] = self._flops_per_token * speed / (self.peak * self.world.size)
        return row

    @cached_property
    def _flops_per_token(self) -> float:
        return flops_of(self.model, self.batches(0)) / self.batches.tokens_per_batch

    def _seconds_left(self, row: Row) -> float | None:
        left = (self.steps - row["step"]) * self.batches.tokens_per_batch
        speed = row["tokens_per_second"]
        return left / speed if speed else None

    # The end ---------------------------------------------------------------------------------

    def _end(self) -> TrainingResult:
        finished = self.state.step >= self.steps
        if self.saved != self.state.step:
            snapshot.save(self.folder / "snapshots", self.state, self.world, self.training.keep)
            self.saved = self.state.step
        self._export()
        if self.log is not None:
            self.log.close()
        self._draw(report=True)
        result = self._result()
        if finished:
            self.terminal.say(f"done: the model, its curves and a report are in {self.folder}")
        else:
            self.terminal.say(
                f"stopped after step {self.state.step:,} of {self.steps:,}; the same command goes "
                f"on from there"
            )
        return result

    def _export(self) -> None:
        """The model as a folder that others read."""
        with _swapped(self.state.average):
            whole = self.world.whole(self.model)
            if whole is None:
                return
            assert isinstance(whole, Model)
            if self.training.lora is not None:
                from jumok.training.lora import merge_lora, write_adapter

                whole.config = plain(whole.config)
                write_adapter(whole, self.folder / "adapter", str(self.training.base))
                merge_lora(whole)
            whole.config = plain(whole.config)
            save_model(whole, self.folder, self.tokenizer)

    def _facts(self) -> Facts:
        """What the curves and the report say about the run besides its log."""
        training = self.training
        lines = {
            "Begun from": training.base or "fresh weights",
            "Corpus": f"{self.corpus.name}, {self.tokens.train.n_tokens:,} tokens",
            "Tokenizer": repr(self.tokenizer),
            "Steps": f"{self.steps:,} of {training.rows} rows of {self.context} tokens",
            "Learning rate": f"{training.highest_rate:.3g} at most, {training.schedule}",
            "Precision": _name(self.dtype),
            "Machine": machine_name(self.world.device),
            "Its measured peak": f"{rounded(self.peak / 1e9)} GFLOP/s of matrix products",
            "PyTorch": torch.__version__,
        }
        if training.schedule == "vaswani":
            lines["Learning rate"] = "that of Vaswani et al. 2017"
        if training.lora is not None:
            lines["Adapters"] = f"LoRA of rank {training.lora}"
        return Facts(
            model=describe(self.model),
            vocab_size=self.model.config.vocab_size,
            lines=lines,
            command=training.command,
            finished=self.state.step >= self.steps,
            folder=training.out,
            family=self.family,
        )

    def _draw(self, report: bool = False) -> None:
        """The curves, and the page about the run; what can't be written is told."""
        if self.log is None:
            return
        self.drawn = time.monotonic()
        facts, picture = self._facts(), self.folder / "curves.png"
        try:
            write_curves(self.log.rows, facts, picture)
        except ModuleNotFoundError:
            if report:
                self.terminal.say("note: no curves are drawn: pip install 'jumok[train]'")
        except OSError as error:
            self.terminal.say(f"note: {picture} can't be written ({error.strerror or error})")
        if report:
            write_page(facts, self.log.rows, picture, self.folder / "report.html")

    def _result(self) -> TrainingResult:
        rows = [] if self.log is None else self.log.rows
        losses = [row["loss"] for row in rows if "loss" in row]
        loss = self.world.share(losses[-1] if losses else math.nan)
        numbers = self.state.numbers
        return TrainingResult(
            self.folder,
            self.state.step,
            self.steps,
            loss,
            self.state.validation,
            numbers["tokens"],
            numbers["seconds"],
        )

    # Small things ----------------------------------------------------------------------------

    @property
    def _emb_dim(self) -> int:
        return self.model.config.emb_dim

    def _autocast(self) -> torch.autocast:
        kind = self.world.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def _asked_to_stop(self) -> bool:
        return self.world.agree(self.stop.asked)


@contextmanager
def _swapped(average: Any) -> Iterator[None]:
    """The weights' mean in their place, if there is one."""
    if average is None:
        yield
        return
    average.swap()
    try:
        yield
    finally:
        average.swap()


def _numbers(before: dict[str, Any] | None = None) -> dict[str, Any]:
    """What is counted: over the run, and since the last line of the log."""
    window = {"window_loss": 0.0, "window_targets": 0.0, "window_tokens": 0, "window_seconds": 0.0}
    return {**(before or {"tokens": 0, "seconds": 0.0, "norm": 0.0}), **window}


def _add(
    numbers: dict[str, Any], loss: float, targets: float, tokens: int, seconds: float, norm: float
) -> None:
    numbers["window_loss"] += loss
    numbers["window_targets"] += targets
    for name, value in (("tokens", tokens), ("seconds", seconds)):
        numbers[name] += value
        numbers[f"window_{name}"] += value
    numbers["norm"] = norm


def _dtype(training: Training, device: torch.device) -> torch.dtype:
    if training.dtype == "auto":
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    if training.dtype == "bfloat16" and not has_bfloat16(device):
        warnings.warn(
            "dtype='bfloat16': this processor has no matrix products in it, so it is emulated, "
            "and slow",
            stacklevel=2,
        )
    return torch.bfloat16 if training.dtype == "bfloat16" else torch.float32


def _name(dtype: torch.dtype) -> str:
    return "bfloat16 products on float32 weights" if dtype == torch.bfloat16 else "float32"
