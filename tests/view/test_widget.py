"""The page in a notebook, from the kernel's side: messages, buffers, and giving up."""

import asyncio
import json
import threading

import numpy as np
import pytest

import jumok
import known_pages
from jumok.view.answers import Answer
from jumok.view.desk import MOST_WAITING
from jumok.view.questions import Questions
from jumok.view.stopping import Stopped
from jumok.view.widget import Conversation


@pytest.fixture(scope="module")
def recording():
    return known_pages.gpt(model=known_pages.decoder(init_std=0.4))


class Page:
    """Keeps what it is sent."""

    def __init__(self, questions):
        self.messages = []
        self.conversation = Conversation(questions, self.send)

    def send(self, message, buffers):
        json.dumps(message, allow_nan=False)
        self.messages.append((threading.current_thread(), message, buffers))

    def ask(self, number, name, **parameters):
        asked = {key: str(value) for key, value in parameters.items()}
        self.conversation.receive({"id": number, "name": name, "parameters": asked})


def arrays(message, buffers):
    return {
        one["name"]: np.frombuffer(buffer, one["type"]).reshape(one["shape"])
        for one, buffer in zip(message["arrays"], buffers, strict=True)
    }


def test_an_answer_with_its_buffers(recording):
    page = Page(Questions([recording], transport="widget"))
    page.ask(7, "row", map=1, head=2, query=50)  # no event loop: answered at once
    ((_, message, buffers),) = page.messages
    assert message["id"] == 7
    found = arrays(message, buffers)
    np.testing.assert_allclose(found["weights"], np.asarray(recording[1][0, 2, 50]), atol=1e-6)
    assert found["ranks"].dtype == np.int32
    page.ask(8, "about")
    assert page.messages[1][1]["fields"]["transport"] == "widget"
    page.ask(9, "row", map=77)
    assert page.messages[2][1]["code"] == "question"
    assert "a number from 0 to 2" in page.messages[2][1]["error"]
    page.conversation.close()


def test_answers_are_sent_from_the_event_loop(recording):
    """A kernel's sockets belong to one thread."""
    page = Page(Questions([recording]))

    async def notebook():
        for number in range(20):
            page.ask(number, "tile", map=number % 3, head=1, level=0, x=0, y=0)
        while len(page.messages) < 20:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(notebook(), 30))
    assert sorted(message["id"] for _, message, _ in page.messages) == list(range(20))
    assert {thread for thread, _, _ in page.messages} == {threading.current_thread()}
    page.conversation.close()


class Slow:
    """Answers when it is let."""

    def __init__(self):
        self.go, self.left = threading.Event(), 0

    def pace(self, name, parameters):
        return "at once"

    def answer(self, name, parameters, stop):
        try:
            while not self.go.wait(0.002):
                stop.check()
        except Stopped:
            self.left += 1
            raise
        return Answer({"name": name})


def test_a_question_that_is_taken_back_is_not_answered():
    slow = Slow()
    page = Page(slow)

    async def notebook():
        page.ask(1, "about")
        page.ask(2, "labels")
        await asyncio.sleep(0.02)
        page.conversation.receive({"id": 1, "cancel": True})
        page.conversation.receive({"id": 99, "cancel": True})
        while not slow.left:
            await asyncio.sleep(0.001)
        slow.go.set()
        while not page.messages:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(notebook(), 30))
    assert [message["id"] for _, message, _ in page.messages] == [2]
    assert page.conversation._desk.waiting == 0
    page.conversation.close()


def test_too_many_at_once():
    slow = Slow()
    page = Page(slow)

    async def notebook():
        for number in range(MOST_WAITING + 3):
            page.ask(number, "about")
        assert [message["code"] for _, message, _ in page.messages] == ["busy"] * 3
        slow.go.set()
        while len(page.messages) < MOST_WAITING + 3:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(notebook(), 30))
    page.conversation.close()


@pytest.mark.parametrize(
    "message",
    [None, "x", {}, {"id": "1", "name": "about"}, [1], {"id": None, "cancel": True}],
)
def test_what_is_no_message_is_ignored(recording, message):
    page = Page(Questions([recording]))
    page.conversation.receive(message)
    assert page.messages == []
    page.conversation.receive({"id": 1, "name": 3})
    page.conversation.receive({"id": 2, "name": "row", "parameters": {"map": 1}})
    assert [message["code"] for _, message, _ in page.messages] == ["question", "question"]
    page.conversation.close()


def test_show_makes_a_widget(recording, tmp_path):
    widget = jumok.show(recording)
    assert "mount" in widget._esm or "render" in widget._esm
    assert len(widget._css) > 100
    sent = []
    widget.send = lambda message, buffers=None: sent.append(message)
    widget._conversation._send = widget.send
    widget._handle_custom_msg({"id": 1, "name": "about", "parameters": {}}, [])
    assert sent[0]["fields"]["recordings"][0]["texts"][0]["labels"] == "text"
    widget.close()
    recording.save(tmp_path / "run.safetensors")
    opened = jumok.open(tmp_path / "run.safetensors")
    opened.texts = {}
    both = jumok.show(opened, known_pages.tokenizer(), recording)
    assert opened.texts["ids"][0].reading.text == known_pages.TEXT
    both.close()
