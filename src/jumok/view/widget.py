"""The page in a notebook: Jupyter, VS Code, Colab, marimo. No server, no port.

The page's questions come as messages ``{id, name, parameters}``; each is answered with the same id,
arrays as binary buffers. ``{id, cancel: true}`` gives a question up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

import numpy as np

from jumok.view.answers import Answer, Unanswered, described
from jumok.view.desk import Desk, Ticket
from jumok.view.questions import Questions
from jumok.view.server import assets
from jumok.view.stopping import Stopped

if TYPE_CHECKING:
    from jumok.lens.recording import Recording

__all__ = ["Conversation", "show"]

Send = Callable[[dict[str, Any], list[Any]], None]


class Conversation:
    """Messages of one page, answered.

    Args:
        questions: who answers.
        send: takes a message and its buffers to the page.
    """

    def __init__(self, questions: Questions, send: Send) -> None:
        self._desk = Desk(questions)
        self._send = send
        self._tickets: dict[int, Ticket] = {}

    def receive(self, message: Any) -> None:
        """Take one message from the page.

        Answers are computed in threads and sent from the event loop in which this is called, as a
        notebook's kernel wants it; without one, at once.
        """
        number = message.get("id") if isinstance(message, dict) else None
        if not isinstance(number, int):
            return
        if message.get("cancel"):
            ticket = self._tickets.pop(number, None)
            if ticket is not None:
                ticket.leave()
            return
        name, parameters = message.get("name"), message.get("parameters", {})
        if not isinstance(name, str) or not isinstance(parameters, dict):
            self._refuse(number, Unanswered("question", "a question has a name and parameters"))
            return
        try:
            ticket = self._desk.ask(name, parameters)
        except Unanswered as error:
            self._refuse(number, error)
            return
        self._tickets[number] = ticket
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            ticket.answer.exception()  # waits
            self._reply(number, ticket)
            return

        def there(_: Future[Answer]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._reply, number, ticket)

        ticket.answer.add_done_callback(there)

    def close(self) -> None:
        """The page is gone."""
        self._tickets.clear()
        self._desk.close()

    def _reply(self, number: int, ticket: Ticket) -> None:
        self._desk.give_back(ticket)
        if self._tickets.pop(number, None) is None:
            return  # nobody waits
        try:
            answer = ticket.answer.result()
        except Unanswered as error:
            self._refuse(number, error)
        except (Stopped, CancelledError):
            return
        except Exception as error:
            text = f"this is a fault in jumok ({type(error).__name__}: {error})"
            self._refuse(number, Unanswered("fault", text))
        else:
            buffers = [
                np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                for array in answer.arrays.values()
            ]
            head = {"id": number, "fields": answer.fields, "arrays": described(answer.arrays)}
            self._send(head, buffers)

    def _refuse(self, number: int, error: Unanswered) -> None:
        self._send({"id": number, **error.to_dict()}, [])


def show(recording: Recording, tokenizer: Any = None, against: Recording | None = None) -> Any:
    """The page about a recording as a notebook's widget; make it the last line of a cell.

    Args:
        recording: from `jumok.watch` or `jumok.open`.
        tokenizer: the model's, to name the tokens; not needed for a recording that knows its words
            (`Recording.label`, or a file saved with a tokenizer).
        against: a second recording, to compare with.

    Returns:
        A widget (anywidget) for Jupyter, VS Code, Colab and marimo.

    Raises:
        ValueError: the recording holds no queries and keys.
        FileNotFoundError: the page has not been built.
    """
    try:
        import anywidget
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "jumok.show needs anywidget, which is not installed: pip install 'jumok[view]'",
            name=error.name,
        ) from error

    recordings = [recording] if against is None else [recording, against]
    if tokenizer is not None:
        for one in recordings:
            one.label(tokenizer)
    questions = Questions(recordings, transport="widget")
    script, style = assets()

    class AttentionPage(anywidget.AnyWidget):
        """The page, and who answers it."""

        _esm = script.decode()
        _css = style.decode()

        def __init__(self) -> None:
            super().__init__()
            self._conversation = Conversation(questions, self.send)
            self.on_msg(lambda widget, message, buffers: self._conversation.receive(message))

        def close(self) -> None:
            self._conversation.close()
            super().close()

    return AttentionPage()
