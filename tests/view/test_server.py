"""The page on a real address: who may ask, what comes back, and what happens under load."""

import gzip
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np
import pytest

import known_pages
from jumok.view import desk as desk_room
from jumok.view import server as server_room
from jumok.view.answers import Answer
from jumok.view.desk import MOST_WAITING, Desk
from jumok.view.questions import Questions
from jumok.view.server import Server
from jumok.view.stopping import Stopped


@pytest.fixture(scope="module")
def recording():
    return known_pages.gpt(model=known_pages.decoder(init_std=0.4))


class Running:
    """A server in a thread."""

    def __init__(self, questions):
        self.server = Server(questions)
        self.parts = urlsplit(self.server.url)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()

    def get(self, path, headers=(), *, method="GET", whole=False):
        """(status, headers, body); `path` is below the token's folder unless `whole`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.parts.port, timeout=60)
        try:
            target = path if whole else self.parts.path + path
            connection.putrequest(
                method, target, skip_host="host" in dict(headers), skip_accept_encoding=True
            )
            for name, value in dict(headers).items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def stop(self):
        self.server.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def running(recording):
    made = Running(Questions([recording]))
    yield made
    made.stop()


TILE = "api/tile?map=1&head=2&level=0&x=0&y=0"


# -- answers ----------------------------------------------------------------------------------


def test_the_page_and_its_parts(running):
    status, headers, body = running.get("")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    assert b'data-source="server"' in body
    assert b"://" not in body  # nothing from elsewhere
    for name, kind in (("viewer.js", "text/javascript"), ("viewer.css", "text/css")):
        status, headers, body = running.get(name)
        assert status == 200
        assert headers["Content-Type"].startswith(kind)
        assert len(body) > 1000
    status, headers, _ = running.get(running.parts.path.rstrip("/"), whole=True)
    assert status == 307
    assert headers["Location"] == running.parts.path


def test_numbers_come_as_they_are(running, recording):
    status, headers, body = running.get(TILE, {"Accept-Encoding": "gzip"})
    assert status == 200
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Encoding"] is None  # from this machine
    length = int.from_bytes(body[:4], "little")
    head = json.loads(body[4 : 4 + length])
    assert head["arrays"] == [{"name": "values", "shape": [132, 132], "type": "float32"}]
    values = np.frombuffer(body, "<f4", offset=4 + length).reshape(132, 132)
    np.testing.assert_allclose(values, np.asarray(recording[1][0, 2]), atol=1e-6)


def test_words_are_compressed_if_the_browser_likes_it(running):
    _, headers, body = running.get("api/labels", {"Accept-Encoding": "br, gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert headers["Vary"] == "Accept-Encoding"
    _, plain, bare = running.get("api/labels")
    assert plain["Content-Encoding"] is None
    assert gzip.decompress(body) == bare
    assert "</script>" not in bare.decode()[:20]
    assert json.loads(bare)["labels"][3] == "␣bank"


def test_what_may_be_kept(running):
    for path in (TILE, "api/labels", "api/about"):
        status, headers, _ = running.get(path)
        assert headers["Cache-Control"] == "private, max-age=86400, immutable"
        tag = headers["ETag"]
        status, headers, body = running.get(path, {"If-None-Match": f'"x", W/{tag}'})
        assert (status, body) == (304, b"")
    _, headers, _ = running.get("viewer.js")
    assert headers["Cache-Control"] == "no-cache"  # another version may come under this name
    status, _, body = running.get("viewer.js", {"If-None-Match": headers["ETag"]})
    assert (status, body) == (304, b"")
    assert running.get("api/nothing")[1]["Cache-Control"] == "no-store"


def test_head_has_no_body(running):
    status, headers, body = running.get(TILE, method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 132 * 132 * 4


# -- who may ask ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9999", "[::1]:80", "LOCALHOST:1"])
def test_names_of_this_machine_may_be_used(running, host):
    """Also with another port: that of a tunnel."""
    assert running.get("api/about", {"host": host})[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:80",
        "",
        "[",
        "a b",
        "evil.example@127.0.0.1",
        "127.0.0.1:a",
    ],
)
def test_other_names_may_not(running, host):
    """Else a page could let its own name point here, and read the answers."""
    assert running.get("api/about", {"host": host})[0] in (400, 421)


def test_without_the_token_nothing_is_given(running):
    token = running.parts.path.strip("/")
    for path in (
        "/",
        "/api/about",
        "/viewer.js",
        f"/{token[:-1]}/",
        f"/{token}x/",
        f"/{token.lower()}/",
        f"//{token}/",
        "/%2e%2e/",
        "/%ff/",
        "/favicon.ico",
    ):
        status, _, body = running.get(path, whole=True)
        assert status == 403, path
        assert token.encode() not in body
        assert b"layers" not in body
    assert len(token) >= 32
    other = Server(running.server._app.state.desk._questions)
    other._socket.close()
    assert urlsplit(other.url).path != running.parts.path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://x@127.0.0.1:{port}"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        # A link in a notebook or a mail that somebody followed.
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate",
          "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate",
          "Sec-Fetch-Dest": "iframe"}, 403),
    ],
)  # fmt: skip
def test_only_the_page_itself_may_ask(running, headers, status):
    port = str(running.parts.port)
    given = {name: value.replace("{port}", port) for name, value in headers.items()}
    assert running.get("api/about", given)[0] == status


def test_every_answer_forbids_what_the_page_does_not_need(running):
    for path, whole in (("", False), (TILE, False), ("/", True), ("api/nothing", False)):
        headers = running.get(path, whole=whole)[1]
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Server"] is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_changed(running, method):
    assert running.get("api/about", method=method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "viewer.js/../../questions.py",
        "assets/viewer.js",
        "api/",
        "api/../viewer.js",
        "api/about/",
        "index.html",
        "%00",
        "api",
    ],
)
def test_there_are_no_other_files(running, path):
    status, _, body = running.get(path)
    assert status == 404
    assert b"import" not in body


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("api/nothing", 404, "there is no question 'nothing'"),
        ("api/tile", 400, "map is missing"),
        ("api/tile?map=99&head=0&level=0&x=0&y=0", 400, "a number from 0 to 2"),
        ("api/tile?map=0&head=0&level=-1&x=0&y=0", 400, "a number from 0 to 0"),
        ("api/tile?map=0&map=1&head=0&level=0&x=0&y=0", 400, "given twice"),
        ("api/tile?map=0&head=0&level=0&x=0&y=0&z=1", 400, "there is no parameter 'z'"),
        ("api/row?map=0&head=0&query=%00%ff", 400, "a number from 0 to 131"),
        ("api/aligned", 422, "one recording"),
        ("api/about?" + "&".join(f"a{n}=1" for n in range(500)), 400, "it takes none"),
    ],
)
def test_a_malformed_question_gets_a_readable_word(running, path, status, said):
    got, headers, body = running.get(path)
    assert got == status
    assert headers["Content-Type"] == "application/json"
    assert said in json.loads(body)["error"]


def test_a_fault_is_said_and_ends_nothing(running, monkeypatch):
    questions = running.server._app.state.desk._questions
    monkeypatch.setitem(questions._handlers, "about", lambda *_: 1 / 0)
    status, _, body = running.get("api/about")
    assert status == 500
    assert json.loads(body)["code"] == "fault"
    assert "ZeroDivisionError" in json.loads(body)["error"]
    monkeypatch.undo()
    assert running.get("api/about")[0] == 200


# -- load -------------------------------------------------------------------------------------


def test_a_thousand_at_once(recording):
    """Those for whom there is no room are asked to come again; all get their tile in the end."""
    running = Running(Questions([recording]))
    statuses, lock = [], threading.Lock()

    def one(number):
        path = f"api/tile?map={number % 3}&head={number % 4}&level=0&x=0&y=0"
        for _ in range(200):
            status, headers, body = running.get(path)
            with lock:
                statuses.append(status)
            if status == 200:
                return len(body)
            assert status == 503
            assert headers["Retry-After"] == "1"
            time.sleep(0.05)
        raise AssertionError("never answered")

    try:
        with ThreadPoolExecutor(250) as pool:
            sizes = list(pool.map(one, range(1000)))
        assert len(set(sizes)) == 1
        assert statuses.count(200) == 1000
        assert running.server._app.state.desk.waiting == 0
    finally:
        running.stop()


class Slow:
    """Answers when it is let."""

    def __init__(self):
        self.go, self.left, self.begun = threading.Event(), 0, 0
        self._lock = threading.Lock()

    def pace(self, name, parameters):
        return parameters.get("pace", "slow")

    def answer(self, name, parameters, stop):
        with self._lock:
            self.begun += 1
        try:
            while not self.go.wait(0.005):
                stop.check()
            stop.check()
        except Stopped:
            with self._lock:
                self.left += 1
            raise
        return Answer({"name": name})


def test_when_the_queue_is_full_others_are_asked_to_come_again():
    slow = Slow()
    running = Running(slow)
    desk = running.server._app.state.desk
    answers = []
    try:
        with ThreadPoolExecutor(MOST_WAITING) as pool:
            for _ in range(MOST_WAITING):
                pool.submit(lambda: answers.append(running.get("api/about")[0]))
            _until(lambda: desk.waiting == MOST_WAITING)
            status, headers, body = running.get("api/about")
            assert (status, headers["Retry-After"]) == (503, "1")
            assert json.loads(body)["code"] == "busy"
            assert running.get("")[0] == 200  # the page itself still comes
            slow.go.set()
        assert answers == [200] * MOST_WAITING
        assert running.get("api/about")[0] == 200
    finally:
        slow.go.set()
        running.stop()


def test_who_leaves_is_not_computed_for():
    slow = Slow()
    running = Running(slow)
    desk = running.server._app.state.desk
    try:
        sockets = [socket.create_connection(("127.0.0.1", running.parts.port)) for _ in range(20)]
        for one in sockets:
            request = f"GET {running.parts.path}api/about HTTP/1.1\r\nHost: localhost\r\n\r\n"
            one.sendall(request.encode())
        _until(lambda: desk.waiting == 20 and slow.begun > 0)
        for one in sockets:
            one.close()
        _until(lambda: desk.waiting == 0)
        assert slow.begun == slow.left < 20  # those that had not begun never did
    finally:
        slow.go.set()
        running.stop()


def test_answers_do_not_wait_behind_slower_ones():
    slow = Slow()
    desk = Desk(slow)
    for _ in range(20):
        desk.ask("about", {})
    _until(lambda: slow.begun == desk_room._SLOW)
    cores = max(2, os.cpu_count() or 2)
    pictures = [desk.ask("about", {"pace": "soon"}) for _ in range(cores + 20)]
    _until(lambda: slow.begun == desk_room._SLOW + cores)
    pointer = desk.ask("about", {"pace": "at once"})
    _until(lambda: slow.begun == desk_room._SLOW + cores + 1)
    slow.go.set()
    for ticket in (pointer, *pictures):
        assert ticket.answer.result(10).fields == {"name": "about"}
    desk.close()


def test_the_server_ends_while_answers_are_computed():
    slow = Slow()
    running = Running(slow)
    one = socket.create_connection(("127.0.0.1", running.parts.port))
    one.sendall(f"GET {running.parts.path}api/about HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    _until(lambda: slow.begun == 1)
    running.stop()
    _until(lambda: slow.left == 1)
    one.close()


# -- addresses --------------------------------------------------------------------------------


def test_a_port_that_is_taken(running):
    with pytest.raises(OSError, match="in use"):
        Server(running.server._app.state.desk._questions, port=running.parts.port)


def test_a_page_that_was_not_built(monkeypatch, tmp_path, recording):
    monkeypatch.setattr(server_room.resources, "files", lambda name: tmp_path)
    with pytest.raises(FileNotFoundError, match="has not been built"):
        Server(Questions([recording]))


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_the_command_prints_its_address_first_and_ends_quietly(tmp_path, recording):
    path = tmp_path / "run.safetensors"
    recording.save(path)
    command = [sys.executable, "-m", "jumok", "view", str(path), "--no-open"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        url = urlsplit(process.stdout.readline().strip())
        assert (url.scheme, url.hostname) == ("http", "127.0.0.1")
        connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=30)
        connection.request("GET", f"{url.path}api/about")
        about = json.loads(connection.getresponse().read())
        connection.close()
        assert about["recordings"][0]["title"] == "run.safetensors"
        assert about["recordings"][0]["texts"][0]["labels"] == "text"
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=30)
        assert (process.returncode, out, error) == (130, "", "")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]


def _until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
