"""``jumok chat``: from a pipe, and typed into a real terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

import torch

import jumok
from cli.conftest import byte_tokenizer
from jumok.tokens import Tokenizer
from jumok.tokens.characters import BYTE_OF_SIGN

TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}\n{{ message.content }}</s>\n"
    "{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LETTERS = {id for id, sign in enumerate(BYTE_OF_SIGN) if "a" <= sign <= "z"}


@pytest.fixture(scope="module")
def talkers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models that write letters without an end: one that answers, one without a template."""
    torch.manual_seed(0)
    config = jumok.Config(
        258, 16, 3, 2, context=4000, eos_ids=(257,), init_std=0.4,
        suppressed_ids=tuple(set(range(258)) - LETTERS),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("talkers")
    plain = byte_tokenizer(special=False)
    chatty = Tokenizer(plain.backend, {**plain.config, "chat_template": TEMPLATE})
    small = replace(config, context=120)
    for name, one, tokens in (("chat", config, chatty), ("plain", config, plain),
                              ("small", small, chatty)):  # fmt: skip
        jumok.save(jumok.Decoder(one), folder / name, tokens)
    return {name: str(folder / name) for name in ("chat", "plain", "small")}


@pytest.fixture
def talk(run: Any, talkers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Talk with a model from a pipe: (exit code, stdout, stderr)."""

    def call(text: str | bytes, *arguments: str, model: str = "chat") -> tuple[int, str, str]:
        data = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        found: tuple[int, str, str] = run("chat", "-m", talkers[model], "--tokens", "8", *arguments)
        return found

    return call


def test_each_line_of_a_pipe_is_a_message(talk: Any) -> None:
    code, out, err = talk("hello\n\nand you?\n", "--seed", "3")
    assert code == 0
    one, two = out.splitlines()
    assert re.fullmatch("[a-z]{8}", one)
    assert re.fullmatch("[a-z]{8}", two)
    assert err.count("cut off after 8 tokens; --tokens N allows more") == 2
    assert talk("hello\n\nand you?\n", "--seed", "3")[1] == out


def test_the_file_of_a_conversation(talk: Any, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    _, out, err = talk(f"안녕\nwhy\n/undo\n//slash\n/save {path}\n", "--temperature", "0",
                       "--system", "be kind")  # fmt: skip
    said = out.splitlines()
    messages = json.loads(path.read_text("utf-8"))
    assert messages == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "안녕"},
        {"role": "assistant", "content": said[0]},
        {"role": "user", "content": "/slash"},
        {"role": "assistant", "content": said[2]},
    ]
    assert f"wrote 5 messages to {path}" in err
    # What is loaded is gone on with as if it had been said here; an open question is answered.
    _, again, _ = talk(f"/load {path}\nnext\n", "--temperature", "0")
    _, whole, _ = talk("안녕\n//slash\nnext\n", "--temperature", "0", "--system", "be kind")
    assert again == whole.splitlines()[2] + "\n"
    path.write_text(json.dumps(messages[:4]), "utf-8")
    _, answered, _ = talk(f"/load {path}\n", "--temperature", "0")
    assert answered == said[2] + "\n"


def test_new_forgets_and_exit_ends(talk: Any) -> None:
    _, out, err = talk("a\n/new\na\n/exit\na\n", "--temperature", "0")
    one, two = out.splitlines()
    assert one == two
    assert "a new conversation" in err


@pytest.mark.parametrize("how", ["chat", "lines"])
def test_look_shows_what_an_answer_read(talk: Any, how: str) -> None:
    options = ("--temperature", "0", "--segments", how)
    _, out, _ = talk("hello you\nand then?\n", *options)
    plain = talk("hello you\nand then?\n", "--temperature", "0")[1].splitlines()
    answers = [line for line in out.splitlines() if re.fullmatch("[a-z]{8}", line)]
    assert answers == plain  # watching changes nothing
    lists = re.split("[a-z]{8}\n", out)[1:]
    named = {
        "chat": (["user: hello you"],
                 ["user 1: hello you", f"assistant: {plain[0]}", "user 2: and then?"]),
        "lines": (["hello you"], ["hello you", plain[0], "and then?"]),
    }[how]  # fmt: skip
    for names, found in zip(named, lists, strict=True):
        for name in [*names, "answer (itself)", "the first token", "between the segments"]:
            (line,) = [line for line in found.splitlines() if name in line]
            assert "%" in line
        shares = [float(share) for share in re.findall(r"(\d+\.\d) %", found)]
        assert sum(shares) == pytest.approx(100, abs=0.5)
    assert lists[0].count("what mattered") == 1  # said once
    assert "what mattered" not in lists[1]


def test_what_look_measures_is_what_a_whole_forward_says(talkers: dict[str, str]) -> None:
    from jumok.cli.chat_look import answer_read
    from jumok.model.conversation import Conversation

    model, tokenizer = jumok.load(talkers["chat"])
    assert isinstance(model, jumok.Decoder)
    talk = Conversation(model, tokenizer, max_new_tokens=9)
    talk.keeps_before = True
    for question in ("hello", "and you?", "한글"):
        list(talk.ask(question))
    turn = talk.last
    assert turn is not None
    found = answer_read(talk, "toy", "chat")
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.tensor([[*turn.prompt_ids, *turn.answer_ids]]))
    names = [part.name for part in found.segments[:-1]]
    texts = [(name, message["content"]) for name, message in zip(names, turn.messages, strict=True)]
    expected = jumok.segments(
        recording, tokenizer, texts, text=turn.prompt, prompt=len(turn.prompt_ids)
    )
    assert [one.name for one in expected.segments] == [one.name for one in found.segments]
    for one, other in zip(found.parts(), expected.parts(), strict=True):
        assert (one.name, one.kind, one.count) == (other.name, other.kind, other.count)
        assert one.share == pytest.approx(other.share, abs=1e-5)
        assert one.even == pytest.approx(other.even)


def test_look_can_be_switched(talk: Any) -> None:
    _, out, err = talk("a\n/look\nb\n/look\nc\n", "--temperature", "0")
    assert out.count("answer (itself)") == 1
    assert "after each answer: which messages it read" in err
    assert "reading is not shown" in err


def test_a_conversation_that_outgrows_the_context(talk: Any) -> None:
    _, out, err = talk("one\ntwo\nthree\nfour\nfive\n", model="small")
    assert len(out.splitlines()) == 5
    said = [line for line in err.splitlines() if "outgrown" in line]
    assert "has outgrown the 120 tokens that small reads" in said[0]
    assert "oldest 4 messages are no longer read" in said[0]


def test_a_model_without_a_template_says_so(talk: Any) -> None:
    code, out, err = talk("hello\n", model="plain")
    assert code == 0
    assert re.fullmatch("[a-z]{8}\n", out)
    assert "plain has no chat template" in err


def refusal(found: tuple[int, str, str]) -> str:
    code, _, err = found
    assert code == 2
    assert "Traceback" not in err
    return err.splitlines()[-1]


def test_what_is_refused(
    talk: Any, refused: Any, folders: dict[str, str], talkers: dict[str, str], tmp_path: Path
) -> None:
    assert "there is no command /nonsense" in refusal(talk("/nonsense\n"))
    assert "/save FILE: give the name" in refusal(talk("/save\n"))
    assert "/new takes nothing after it; got 'x'" in refusal(talk("/new x\n"))
    assert "can't read" in refusal(talk(f"/load {tmp_path / 'none.json'}\n"))
    (tmp_path / "text.json").write_text("hello")
    assert "is no JSON list of" in refusal(talk(f"/load {tmp_path / 'text.json'}\n"))
    (tmp_path / "role.json").write_text('[{"role": "tool", "content": "a"}]')
    assert "the role 'tool' is none of system" in refusal(talk(f"/load {tmp_path / 'role.json'}\n"))
    assert "there is no folder" in refusal(talk(f"a\n/save {tmp_path / 'no' / 'f.json'}\n"))
    assert "line 2 is not UTF-8" in refusal(talk(b"a\n\xff\n"))
    assert "the message needs" in refusal(talk("x" * 150 + "\n", model="small"))
    assert "is an encoder" in refused("chat", "-m", folders["encoder"])
    name = talkers["chat"]
    assert "--tokens 0" in refused("chat", "-m", name, "--tokens", "0")
    assert "temperature=-1.0" in refused("chat", "-m", name, "--temperature", "-1")
    assert "top_p=2.0" in refused("chat", "-m", name, "--top-p", "2")
    assert "--seed -1" in refused("chat", "-m", name, "--seed", "-1")
    assert "--segments rows: choose" in refused("chat", "-m", name, "--segments", "rows")
    assert "--system is empty" in refused("chat", "-m", name, "--system", " ")


# -- in a terminal ---------------------------------------------------------------------------

pty = pytest.importorskip("pty") if os.name == "posix" else None


class Terminal:
    """A program in a terminal of its own: what it shows, and keys for it."""

    def __init__(self, *arguments: str) -> None:
        assert pty is not None
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jumok", *arguments],
            stdin=slave, stdout=slave, stderr=slave, close_fds=True,
            preexec_fn=lambda: os.login_tty(slave),
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        )  # fmt: skip
        os.close(slave)
        self.shown = ""
        self._data = b""

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, pattern: str, seconds: float = 100) -> str:
        """What is shown until the pattern has appeared after what was waited for before."""
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < end, f"{pattern!r} never came: {self.shown!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self._data += os.read(self._master, 65536)
                except OSError as error:  # how Linux says that the program has ended
                    raise AssertionError(f"{pattern!r} never came: {self.shown!r}") from error
                self.shown = self._data.decode(errors="ignore")
        seen, rest = self.shown[: found.end()], self.shown[found.end() :]
        self.shown, self._data = rest, rest.encode()
        return seen

    def interrupt(self) -> None:
        """Ctrl-C at the prompt."""
        time.sleep(0.5)  # readline loses one that comes between the prompt and its waiting
        self.press("\x03")

    def ended(self) -> int:
        """The exit code, when all that it shows has been read."""
        with contextlib.suppress(AssertionError):
            self.until("never shown", seconds=30)
        return self.process.wait(timeout=1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(talkers: dict[str, str]) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal("chat", "-m", talkers["chat"], "--temperature", "0", *arguments))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


READY = r"> (?:\x1b\[\?2004h)?\Z|\x1b\[\?2004h> \Z"


@pytest.mark.skipif(os.name != "posix", reason="terminals are different there")
def test_a_conversation_that_is_typed(terminal: Any, tmp_path: Path) -> None:
    screen = terminal("--tokens", "3500", "--look")
    path = tmp_path / "talk.json"
    assert "chat, 4,000 tokens of context" in screen.until(READY)
    screen.press("hellx\x7fo\r")  # a mistake and a backspace
    screen.until("[a-z]{30}")
    screen.press("\x03")
    screen.until("Stopped; what was said stays")
    screen.until(READY)
    screen.press("\x1b[200~one\ntwo: 한글\n\nthree\x1b[201~")  # pasted
    screen.until("three")
    screen.press("\r")
    screen.until("[a-z]{30}")
    screen.press("\x03")
    screen.until("Stopped")
    screen.until(READY)
    screen.press(f"/save {path}\r")
    screen.until("Wrote 4 messages")
    first, said, second, _ = json.loads(path.read_text("utf-8"))
    assert first == {"role": "user", "content": "hello"}
    assert len(said["content"]) >= 30
    assert second == {"role": "user", "content": "one\ntwo: 한글\n\nthree"}
    screen.until(READY)
    screen.press("/nonsense\r")
    screen.until("there is no command /nonsense")
    screen.until(READY)
    screen.press('"""a\r')
    screen.until("… ")
    screen.press('b"""\r')
    screen.until("[a-z]{30}")
    screen.press("\x03")
    screen.until(READY)
    screen.press(f"/save {path}\r")
    screen.until("Wrote 6 messages")
    assert json.loads(path.read_text("utf-8"))[4]["content"] == "a\nb"
    screen.until(READY)
    screen.press("more\r")
    screen.until("[a-z]{30}")
    screen.press("\x03")
    screen.until(READY)
    screen.interrupt()  # again, right after an answer was stopped
    assert screen.ended() == 130


@pytest.mark.skipif(os.name != "posix", reason="terminals are different there")
def test_ctrl_c_and_ctrl_d_at_the_prompt(terminal: Any) -> None:
    screen = terminal("--tokens", "5", "--look")
    screen.until(READY)
    screen.press("not sent")
    screen.until("not sent")
    screen.interrupt()
    screen.until("Ctrl-C once more ends")
    screen.until(READY)
    screen.press("hello\r")
    shown = screen.until(READY)
    assert "Cut off after 5 tokens" in shown
    assert "user: hello" in shown
    assert "Traceback" not in shown
    screen.interrupt()
    screen.until("Ctrl-C once more ends")
    screen.until(READY)
    screen.press("\x04")
    assert screen.ended() == 0
