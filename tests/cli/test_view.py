"""``jumok view``, and the page of ``jumok look``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import jumok
from jumok.cli import view as view_room
from jumok.view import server as server_room


class Served:
    """A server that ends at once."""

    all: list[Any] = []  # noqa: RUF012

    def __init__(self, questions: Any, host: str, port: int) -> None:
        self.questions, self.host, self.port = questions, host, port
        self.url = f"http://{host}:{port or 4711}/token/"
        self.all.append(self)

    def run(self) -> None:
        pass


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been served; a browser is never opened."""
    monkeypatch.setattr(Served, "all", [])
    monkeypatch.setattr(server_room, "Server", Served)
    monkeypatch.setattr(view_room.webbrowser, "get", lambda: SimpleNamespace(name="chromium"))
    monkeypatch.setattr(view_room.webbrowser, "open", lambda url: Served.all.append(url) or True)
    return Served.all


@pytest.fixture
def saved(run: Any, folders: dict[str, str], tmp_path: Path) -> str:
    path = tmp_path / "run.safetensors"
    code, _, _ = run("look", "an apple", "-m", folders["encoder"], "--save", str(path))
    assert code == 0
    return str(path)


def _labels(questions: Any, recording: int = 0) -> list[str]:
    found = questions.answer("labels", {"recording": str(recording)}).fields["labels"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("browser", ["/usr/bin/w3m", None])
def test_no_browser_takes_the_terminal(
    run: Any, served: list[Any], saved: str, monkeypatch: pytest.MonkeyPatch, browser: str | None
) -> None:
    def get() -> SimpleNamespace:
        if browser is None:
            raise view_room.webbrowser.Error("could not locate runnable browser")
        return SimpleNamespace(name=browser)

    monkeypatch.setattr(view_room.webbrowser, "get", get)
    monkeypatch.setattr(view_room.webbrowser, "open", lambda url: browser is not None)
    code, out, err = run("view", saved, "--port", "8123")
    assert (code, out) == (0, "http://127.0.0.1:8123/token/\n")
    assert "open the address above" in err
    assert len(served) == 1


def test_a_recording_is_served(run: Any, served: list[Any], saved: str) -> None:
    code, out, err = run("view", saved, "--port", "8123")
    assert (code, out, err) == (0, "http://127.0.0.1:8123/token/\n", "")
    server, url = served
    assert url == "http://127.0.0.1:8123/token/"
    assert _labels(server.questions) == ["<s>", *"an", "␣", *"apple", "</s>"]
    about = server.questions.answer("about").fields
    assert about["recordings"][0]["title"] == "run.safetensors"
    assert about["recordings"][0]["model"] == "encoder"
    run("view", saved, "--no-open")
    assert len(served) == 3


def test_two_recordings_are_compared(run: Any, served: list[Any], saved: str) -> None:
    run("view", saved, saved, "--no-open")
    about = served[0].questions.answer("about").fields
    title = f"{Path(saved).parent.name}/run.safetensors"
    assert [one["title"] for one in about["recordings"]] == [title, title]
    assert about["compared"]["same_tokens"]


def test_a_file_that_does_not_know_its_words(
    run: Any, refused: Any, served: list[Any], saved: str, folders: dict[str, str]
) -> None:
    recording = jumok.open(saved)
    recording.texts = {}
    bare = str(Path(saved).with_name("bare.safetensors"))
    recording.save(bare)
    run("view", bare, "--no-open")
    assert _labels(served[0].questions)[1] == "‹64›"
    run("view", bare, "--no-open", "--tokenizer", folders["encoder"])
    assert _labels(served[1].questions)[1] == "a"
    assert "no tokenizer.json" in refused("view", bare, "--tokenizer", str(Path(saved).parent))


def test_an_address_for_everybody_is_warned_of(run: Any, served: list[Any], saved: str) -> None:
    code, out, err = run("view", saved, "--no-open", "--host", "0.0.0.0")
    assert code == 0
    assert out.count("\n") == 1
    assert "open to the network" in err
    assert served[0].host == "0.0.0.0"
    for local in ("localhost", "127.0.0.2", "::1"):
        assert run("view", saved, "--no-open", "--host", local)[2] == ""


def test_look_serves_what_it_read(run: Any, served: list[Any], folders: dict[str, str]) -> None:
    code, out, _ = run(
        "look", "an apple", "-m", folders["encoder"], "--serve", "--no-open", "--port", "8124"
    )
    assert (code, out) == (0, "http://127.0.0.1:8124/token/\n")
    assert "".join(_labels(served[0].questions)[1:3]) == "an"
    run("look", "an apple", "--against", "apple an", "-m", folders["encoder"], "--serve",
        "--word", "apple", "--no-open")  # fmt: skip
    about = served[1].questions.answer("about").fields
    assert [one["title"] for one in about["recordings"]] == ["an apple", "apple an"]
    run("look", "an apple", "-m", folders["gpt"], "--segments", "paragraphs", "--generate", "3",
        "--serve", "--no-open")  # fmt: skip
    questions = served[2].questions
    found = questions.answer("passages", {"how": "paragraphs"}).fields["segments"]
    assert [one["name"] for one in found] == ["an apple", "answer"]


def test_the_page_as_a_file(run: Any, folders: dict[str, str], tmp_path: Path, saved: str) -> None:
    file = tmp_path / "look.html"
    code, out, err = run(
        "look", "an apple", "-m", folders["encoder"], "--html", str(file), "--heads", "2.1,0.0"
    )
    assert code == 0
    assert "apple" in out  # what look says is still printed
    assert f"wrote {file}" in err
    assert "four digits" in err
    html = file.read_text()
    assert "<title>an apple</title>" in html
    other = tmp_path / "view.html"
    code, out, err = run("view", saved, "--html", str(other))
    assert (code, out) == (0, "")
    assert "<title>run.safetensors</title>" in other.read_text()


def test_what_cannot_be_is_refused_before_the_work(
    refused: Any, folders: dict[str, str], tmp_path: Path, saved: str, monkeypatch: Any
) -> None:
    gpt = folders["gpt"]
    said = refused("look", "an apple", "-m", "no such model", "--html", "page.txt")
    assert "must end in .html" in said
    said = refused(
        "look", "an apple", "-m", "no such model", "--html", str(tmp_path / "a" / "b.html")
    )
    assert "there is no folder" in said
    said = refused("look", "an apple", "-m", "no such model", "--heads", "1.2")
    assert "it goes with --html" in said
    said = refused("view", saved, "--html", str(tmp_path / "a.html"), "--heads", "1,2")
    assert "write layer.head" in said
    said = refused("view", saved, "--html", str(tmp_path / "a.html"), "--heads", "7.0")
    assert "there is no head 7.0: layers 0 to 2, heads 0 to 1" in said
    assert not (tmp_path / "a.html").exists()
    assert "no recording at" in refused("view", str(tmp_path / "none.safetensors"))
    assert "from 0 to 65535" in refused("view", saved, "--port", "70000")
    monkeypatch.setattr(server_room.resources, "files", lambda name: tmp_path)
    for command in (["view", saved], ["look", "an apple", "-m", gpt, "--serve"]):
        assert "has not been built" in refused(*command)


def test_a_port_that_is_taken_is_said(refused: Any, saved: str) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused("view", saved, "--no-open", "--port", str(port))
    assert f"port {port} at 127.0.0.1 is taken" in said
    assert "can't listen at 192.0.2.1" in refused("view", saved, "--no-open", "--host", "192.0.2.1")
