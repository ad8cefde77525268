"""``jumok generate``: continue texts with a GPT, translate them, or fill in their masks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jumok.cli.ending import Refusal
from jumok.cli.inputs import Model, check_text, file_text, named
from jumok.cli.printing import say

if TYPE_CHECKING:
    from jumok.model.added_text import AddedText
    from jumok.model.speculative import Draft
    from jumok.tokens import Tokenizer

LARGEST_SEED = 2**63 - 1
AT_ONCE = 16  # prompts in one batch


def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="The texts to go on with; for a translator, sources.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", help="A file of prompts, one a line; - is stdin."),
    ] = None,
    model: Model = "smollm2",
    tokens: Annotated[int, typer.Option(help="At most so many new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the likeliest with this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Make the choice repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End a text before this; may be given several times.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="int8 or int4: rounded weights, faster on a CPU.")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="A smaller model of the same tokenizer that guesses ahead, or lookup."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt.")] = False,
) -> None:
    """Continue texts with a GPT, printed as they come.

    A model with an encoder and a decoder (Marian, T5) reads the prompts and writes its own texts.
    An encoder with a masked-token head fills in [MASK], the surest first.
    """
    texts = _prompts(prompts, file)
    if tokens < 1:
        raise Refusal(f"--tokens {tokens}: at least 1")
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise Refusal(f"--seed {seed}: a whole number from 0 to {LARGEST_SEED}")
    if weights not in (None, "int8", "int4"):
        raise Refusal(f"--weights {weights}: int8 or int4")
    if any(not string for string in stop or ()):
        raise Refusal("--stop is empty")
    from jumok.model.sampling import Sampler

    Sampler(temperature, top_k, top_p)  # refuses before anything is loaded
    from jumok.model.loading import load
    from jumok.model.transformer import Encoder
    from jumok.model.writing import Writer

    network, tokenizer = load(model, weights=weights)  # type: ignore[arg-type]
    if tokenizer is None:
        raise Refusal(f"{model} has no tokenizer; put its tokenizer.json beside the weights")
    printer = _Printer(len(texts), as_json)
    if isinstance(network, Encoder) and network.masked_head is not None:
        _fill_in(network, tokenizer, texts, printer)
        return
    if not isinstance(network, Writer):
        raise Refusal(
            f"{model} is an encoder without a masked-token head: it can't continue a text or fill "
            "one in; try smollm2"
        )
    options = {"top_k": top_k, "top_p": top_p, "stop_strings": tuple(stop or ())}
    writer = _Writer(network, tokenizer, tokens, temperature, seed, options)
    guesses = _read_draft(draft)
    if len(texts) == 1 or guesses is not None:
        for text in texts:
            pieces = writer.pieces(text, guesses)
            printer.begin(text, writer.repeats_prompt)
            for piece in pieces:
                printer.add(piece)
            printer.end(writer.finish, writer.n_new, tokens)
    else:
        for start in range(0, len(texts), AT_ONCE):
            for text, added, finish, n_new in writer.batch(texts[start : start + AT_ONCE]):
                printer.begin(text, writer.repeats_prompt)
                printer.add(added)
                printer.end(finish, n_new, tokens)
    if guesses is not None and guesses.passes:
        say(
            f"jumok: the draft guessed {guesses.guessed:,} tokens, {guesses.kept:,} were kept: "
            f"{guesses.written:,} tokens in {guesses.passes:,} passes of the model"
        )


def _prompts(prompts: list[str] | None, file: str | None) -> list[str]:
    if bool(prompts) == (file is not None):
        raise Refusal("give prompts or --file, one of them")
    if prompts:
        for number, text in enumerate(prompts, 1):
            if not text.strip():
                raise Refusal(
                    "the text is empty" if len(prompts) == 1 else f"text {number} is empty"
                )
        return prompts
    assert file is not None
    text = file_text(file)
    check_text(text, file)
    return [line for line in text.split("\n") if line.strip()]


def _read_draft(name: str | None) -> Draft | None:
    from jumok.model.speculative import Draft

    if name is None or name == "lookup":
        return None if name is None else Draft("lookup")
    from jumok.model.loading import load

    try:
        return Draft(load(name)[0])  # type: ignore[arg-type]
    except TypeError as error:
        raise Refusal(f"--draft {name}: {error}") from error


class _Writer:
    """A model that writes, and how each text ended.

    Attributes:
        repeats_prompt: a text is the prompt and what follows it.
        finish: "end" where the model ended the text, "stop" at a stop string, "tokens" where it
            was cut off.
        n_new: how many tokens were added.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        tokens: int,
        temperature: float,
        seed: int | None,
        options: dict[str, Any],
    ) -> None:
        from jumok.model.writing import Translator

        self._model, self._tokenizer, self._tokens = model, tokenizer, tokens
        self._temperature, self._seed, self._options = temperature, seed, options
        self.repeats_prompt = not isinstance(model, Translator)
        self.finish, self.n_new = "tokens", 0

    def pieces(self, text: str, draft: Draft | None) -> Iterator[str]:
        """What is added to one prompt, as it comes."""
        from jumok.model.added_text import AddedText
        from jumok.model.generate import stream

        added = AddedText(self._tokenizer, self._options["stop_strings"])
        ids = self._ids(text)
        steps = stream(
            self._model, [ids], self._tokens, self._temperature,
            tokenizer=self._tokenizer, seed=self._seed, draft=draft, **self._options,
        )  # fmt: skip
        return self._pieces(steps, added)

    def _pieces(self, steps: Iterator[Any], added: AddedText) -> Iterator[str]:
        new: list[int] = []
        for step in steps:
            new.append(int(step[0]))
            added.push(new[-1])
            if piece := added.take():
                yield piece
        if piece := added.finish():
            yield piece
        self._note(new, added)

    def batch(self, texts: list[str]) -> list[tuple[str, str, str, int]]:
        """(prompt, what is added, how it ended, number of tokens) of each."""
        import torch

        from jumok.model.added_text import AddedText
        from jumok.model.generate import stream

        rows = []
        for number, text in enumerate(texts, 1):
            with named(f"text {number}"):
                rows.append(self._ids(text))
        longest = max(map(len, rows))
        ids = torch.tensor([[row[0]] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        steps = stream(
            self._model, ids, self._tokens, self._temperature,
            tokenizer=self._tokenizer, seed=self._seed, mask=mask, **self._options,
        )  # fmt: skip
        columns = [step.tolist() for step in steps]
        found = []
        for row, text in enumerate(texts):
            added = AddedText(self._tokenizer, self._options["stop_strings"])
            new: list[int] = []
            for column in columns:
                new.append(column[row])
                added.push(new[-1])
                if added.stopped or new[-1] in self._model.config.eos_ids:
                    break
            whole = added.take() + added.finish()
            self._note(new, added)
            found.append((text, whole, self.finish, self.n_new))
        return found

    def _ids(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text)
        context = self._model.config.context if self.repeats_prompt else None
        if not ids:
            raise Refusal("the text is empty for this model: it gives no token")
        if context is not None and len(ids) >= context:
            raise Refusal(
                f"the text has {len(ids):,} tokens, the model reads at most {context:,}; shorten it"
            )
        return ids

    def _note(self, new: list[int], added: AddedText) -> None:
        self.n_new = len(new)
        ended = bool(new) and new[-1] in self._model.config.eos_ids
        self.finish = "stop" if added.stopped else "end" if ended else "tokens"


@dataclass
class _Printer:
    """Texts on standard output: one as it comes, several apart from each other, or as JSON."""

    count: int
    as_json: bool
    number: int = 0
    prompt: str = ""
    text: str = ""

    def begin(self, prompt: str, repeats_prompt: bool) -> None:
        self.number += 1
        self.prompt, self.text = prompt, ""
        if self.as_json:
            return
        if self.count > 1:
            self._print(
                ("\n" if self.number > 1 else "") + f"── {self.number} of {self.count} ──\n"
            )
        if repeats_prompt:
            self._print(prompt)

    def add(self, piece: str) -> None:
        self.text += piece
        if not self.as_json:
            self._print(piece)

    def end(self, finish: str, n_new: int, tokens: int) -> None:
        if self.as_json:
            self.write_json({"text": self.text, "tokens": n_new, "finish": finish})
            return
        self._print("\n")
        if finish == "tokens":
            which = f"text {self.number} was " if self.count > 1 else ""
            say(f"jumok: {which}cut off after {tokens:,} tokens; --tokens sets how many")

    def write_json(self, fields: dict[str, Any]) -> None:
        print(json.dumps({"prompt": self.prompt, **fields}, ensure_ascii=False), flush=True)

    def _print(self, text: str) -> None:
        from jumok.tokens import printable

        print(printable(text), end="", flush=True)


def _fill_in(model: Any, tokenizer: Tokenizer, texts: list[str], printer: _Printer) -> None:
    from jumok.model.filling import fill

    for text in texts:
        printer.begin(text, False)
        whole, filled = fill(model, tokenizer, text)
        if printer.as_json:
            printer.write_json({"text": whole, "filled": [vars(one) for one in filled]})
            continue
        printer.add(whole + "\n")
        for one in filled:
            others = ", ".join(f"{word} {share:.0%}" for word, share in one.others)
            say(f"jumok: {one.text} {one.share:.0%} (next: {others})")
