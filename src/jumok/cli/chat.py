"""``jumok chat``: a conversation with a model, in its own chat template."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jumok.cli.chat_input import Interrupts, is_interactive, piped_messages, typed_messages
from jumok.cli.ending import Refusal
from jumok.cli.files import check_writable, write
from jumok.cli.generate import LARGEST_SEED
from jumok.cli.inputs import Model, file_text
from jumok.cli.printing import say, show
from jumok.cli.progress import telling
from jumok.cli.reader import Reader

if TYPE_CHECKING:
    from jumok.model.conversation import Conversation

HELP = """\
/new         begin anew; the system message stays
/undo        take back your last message and its answer
/save FILE   write the conversation as JSON; /load FILE goes on with it
/look        show after each answer which messages it read, or no longer
/help        this list
/exit        end; so do Ctrl-D and Ctrl-C twice
Ctrl-C stops an answer; what was said so far stays.
A line that ends with \\ goes on in the next; \"\"\" begins and ends a text of
several lines. A message that begins with a / is written with two: //."""

ROLES = ("system", "user", "assistant")


def chat(
    model: Model = "smollm2",
    system: Annotated[
        str | None, typer.Option(help="What the model is told before the conversation.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.2,
    top_p: Annotated[
        float, typer.Option(help="Choose among the likeliest with this probability.")
    ] = 0.9,
    tokens: Annotated[int, typer.Option(help="At most so many tokens an answer.")] = 512,
    seed: Annotated[int | None, typer.Option(help="Make the answers repeatable.")] = None,
    look: Annotated[
        bool, typer.Option("--look", help="Show after each answer which messages it read.")
    ] = False,
    segments: Annotated[
        str | None,
        typer.Option(
            "--segments", "-s", help="With --look: chat (each message), paragraphs or lines."
        ),
    ] = None,
) -> None:
    """Talk with a model in the terminal.

    From a pipe, each line is a message. /help lists what else can be typed.
    """
    from jumok.tokens.passages import MODES

    if tokens < 1:
        raise Refusal(f"--tokens {tokens}: at least 1")
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise Refusal(f"--seed {seed}: a whole number from 0 to {LARGEST_SEED}")
    if segments is not None and segments not in MODES:
        raise Refusal(f"--segments {segments}: choose {', '.join(MODES)}")
    if system is not None and not system.strip():
        raise Refusal("--system is empty")
    from jumok.model.conversation import Conversation
    from jumok.model.sampling import Sampler

    sampler = Sampler(temperature, top_p=top_p)
    with telling(f"loading {model}"):
        reader = Reader(model)
        decoder = reader.decoder()
    conversation = Conversation(
        decoder,
        reader.tokenizer,
        system=system,
        sampler=sampler,
        max_new_tokens=tokens,
        seed=seed,
    )
    if conversation.is_plain:
        say(
            f"jumok: note: {reader.name} has no chat template, so it was hardly taught to answer; "
            "messages are written as “User: …” and “Assistant: …”"
        )
    how = segments or "chat"
    talk = _Talk(conversation, reader.name, how, look or segments is not None)
    if is_interactive():
        talk.in_the_terminal()
    else:
        for message in piped_messages():
            if not talk.take(message):
                break


class _Talk:
    """One conversation: what is typed goes to the model or is a command."""

    def __init__(self, conversation: Conversation, name: str, how: str, looks: bool) -> None:
        self._conversation, self._name, self._how = conversation, name, how
        self._interactive = is_interactive()
        conversation.keeps_before = looks
        self._explained = False
        self._left_out = 0

    def in_the_terminal(self) -> None:
        """Until Ctrl-D, /exit, or Ctrl-C twice in a row."""
        context = self._conversation.model.config.context
        self._note(f"{self._name}, {context:,} tokens of context. /help lists what can be typed.")
        messages = typed_messages()
        interrupted = False
        while True:
            try:
                message = next(messages, None)
                if message is None:
                    print()
                    return
                interrupted = False
                if not self.take(message):
                    return
                interrupted = self._stopped
            except KeyboardInterrupt:
                print()
                if interrupted:
                    raise
                interrupted = True
                self._note("Ctrl-C once more ends the conversation; so do Ctrl-D and /exit.")
                messages = typed_messages()
            except (Refusal, ValueError) as error:
                self._note(str(error))

    def take(self, message: str) -> bool:
        """Answer a message or do what a command says; whether the conversation goes on."""
        self._stopped = False
        if message.startswith("//"):
            message = message[1:]
        elif message.startswith("/"):
            return self._do(*message[1:].split(maxsplit=1))
        self._answer(message)
        return True

    # -- commands ------------------------------------------------------------------------------

    def _do(self, command: str = "", argument: str = "") -> bool:
        alone = {
            "help": self._help,
            "new": self._new,
            "undo": self._undo,
            "look": self._look,
        }
        if command in ("exit", "quit", "bye"):
            return False
        if command in alone:
            if argument:
                raise Refusal(f"/{command} takes nothing after it; got {argument!r}")
            alone[command]()
        elif command in ("save", "load"):
            if not argument:
                raise Refusal(f"/{command} FILE: give the name of a file")
            path = Path(argument.strip("\"'")).expanduser()
            self._save(path) if command == "save" else self._load(path)
        else:
            raise Refusal(f"there is no command /{command}; /help lists them")
        return True

    def _help(self) -> None:
        print(HELP)

    def _new(self) -> None:
        self._conversation.new()
        self._left_out = 0
        self._note("A new conversation.")

    def _undo(self) -> None:
        if self._conversation.undo():
            self._note("Your last message and its answer are taken back.")
        else:
            self._note("There is nothing to take back.")

    def _look(self) -> None:
        wanted = not self._conversation.keeps_before
        self._conversation.keeps_before = wanted
        self._note(
            "After each answer: which messages it read." if wanted else "Reading is not shown."
        )

    def _save(self, path: Path) -> None:
        check_writable(path)
        messages = self._conversation.messages
        text = json.dumps(messages, ensure_ascii=False, indent=2) + "\n"
        write(path, lambda part: Path(part).write_text(text, "utf-8"))
        self._note(f"Wrote {len(messages)} messages to {path}.")

    def _load(self, path: Path) -> None:
        from jumok.tokens.chat import messages_in

        messages = messages_in(file_text(str(path)))
        if messages is None:
            raise Refusal(f'{path} is no JSON list of {{"role": …, "content": …}}')
        strange = [one["role"] for one in messages if one["role"] not in ROLES]
        if strange:
            raise Refusal(f"{path}: the role {strange[0]!r} is none of {', '.join(ROLES)}")
        self._conversation.load(messages)
        self._left_out = 0
        self._note(f"Read {len(messages)} messages from {path}.")
        if messages[-1]["role"] == "user":  # it waits for an answer
            self._answer(None)

    # -- answers -------------------------------------------------------------------------------

    def _answer(self, message: str | None) -> None:
        from jumok.tokens import printable

        conversation = self._conversation
        said = False
        with Interrupts() as interrupts:
            pieces = conversation.ask(message)
            with contextlib.closing(pieces):
                for piece in self._read(pieces):
                    if piece:
                        print(printable(piece), end="", flush=True)
                        said = True
                    if interrupts.noted:
                        break
            if said:
                print()
            self._stopped = interrupts.noted
            self._say_how_it_ended(said)
            if said and conversation.keeps_before and not interrupts.noted:
                self._show_what_it_read()
        if self._interactive:
            print()

    def _read(self, pieces: Iterator[str]) -> Iterator[str]:
        """The pieces; until the first one, a terminal is told that the prompt is being read."""
        with telling("reading"):
            for first in pieces:
                if first:
                    break
                yield first
            else:
                return
        yield first
        yield from pieces

    def _say_how_it_ended(self, said: bool) -> None:
        conversation = self._conversation
        turn = conversation.last
        assert turn is not None
        if conversation.left_out > self._left_out:
            context = conversation.model.config.context
            self._note(
                f"The conversation has outgrown the {context:,} tokens that {self._name} reads: "
                f"its oldest {conversation.left_out} messages are no longer read."
            )
        self._left_out = conversation.left_out
        if not said:
            why = "Stopped before a word" if self._stopped else f"{self._name} wrote nothing"
            self._note(f"{why}; your message is not kept.")
        elif self._stopped:
            self._note("Stopped; what was said stays.")
        elif turn.ending == "length":
            limit = conversation.max_new_tokens
            self._note(f"Cut off after {limit:,} tokens; --tokens N allows more.")
        elif turn.ending == "context":
            self._note(f"Cut off: no more than {self._name}'s context has room for.")

    def _show_what_it_read(self) -> None:
        from jumok.cli.chat_look import answer_read
        from jumok.view.segment_terminal import read_list

        found = answer_read(self._conversation, self._name, self._how)
        show(read_list(found, explained=not self._explained))
        self._explained = True

    def _note(self, text: str) -> None:
        """A word about the conversation, apart from it."""
        if not self._interactive:
            say(f"jumok: {text[0].lower()}{text[1:]}")
            return
        from rich.console import Console

        Console(highlight=False, markup=False, emoji=False).print(text, style="dim")
