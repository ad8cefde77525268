"""The page on a local address: `jumok view`.

Whoever knows the address, which holds a random token, may ask; nobody else, and no page of another
origin, also not by a name that was made to point here (DNS rebinding). Questions wait in a bounded
queue; one whose asker has left is given up.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import sys
import traceback
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

from jumok.view.answers import Answer, Unanswered, json_bytes
from jumok.view.desk import Desk
from jumok.view.questions import Questions
from jumok.view.stopping import Stopped

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Server", "application", "assets"]

_STATUS = {"question": 400, "forbidden": 403, "unknown": 404, "unable": 422, "busy": 503}
_RETRY_AFTER = "1"  # seconds
_SMALL = 1000  # bytes that are not worth compressing

_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "worker-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_PAGE = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>jumok</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="viewer.css">
</head>
<body>
<div id="jumok-viewer" data-source="server"></div>
<script type="module" src="viewer.js"></script>
</body>
</html>
"""


def assets() -> tuple[bytes, bytes]:
    """The page's script and style sheet.

    Raises:
        FileNotFoundError: they have not been built.
    """
    folder = resources.files("jumok.view") / "assets"
    try:
        return (folder / "viewer.js").read_bytes(), (folder / "viewer.css").read_bytes()
    except OSError as error:
        raise FileNotFoundError(
            f"the page has not been built: there is no viewer.js and viewer.css in {folder}. An "
            f"installed jumok has them; from a clone: pip install -e . builds them"
        ) from error


def application(
    questions: Questions, token: str, *, names: frozenset[str] = frozenset()
) -> Starlette:
    """The page and its answers as an ASGI application.

    Args:
        questions: who answers.
        token: first part of every path.
        names: further host names that may be asked for; addresses and localhost always may.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import RedirectResponse
    from starlette.routing import Route

    script, style = assets()
    desk = Desk(questions)
    answers = _Answers(desk)

    def fixed(data: bytes, kind: str) -> Callable[[Request], Any]:
        async def give(request: Request) -> Response:
            return _response(request, data, kind, "no-cache")

        return give

    async def enter(request: Request) -> Response:
        return RedirectResponse(f"/{token}/")

    made = Starlette(
        routes=[
            Route(f"/{token}", enter),
            Route(f"/{token}/", fixed(_PAGE, "text/html; charset=utf-8")),
            Route(f"/{token}/viewer.js", fixed(script, "text/javascript; charset=utf-8")),
            Route(f"/{token}/viewer.css", fixed(style, "text/css; charset=utf-8")),
            Route(f"/{token}/api/{{name}}", answers.give),
        ],
        middleware=[Middleware(_Guard, token=token, names=names)],
    )
    made.state.desk = desk
    made.router.redirect_slashes = False
    return made


class _Guard:
    """Lets only those in who know the token and come from the page itself."""

    def __init__(self, app: ASGIApp, token: str, names: frozenset[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import PlainTextResponse

        reason = self._refused(scope, Headers(scope=scope))

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if reason is not None:
            status, text = reason
            await PlainTextResponse(text, status)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _refused(self, scope: Scope, headers: Any) -> tuple[int, str] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return 421, "This server does not go by that name."
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        foreign = site is not None and site not in ("same-origin", "none")
        if origin is not None and origin.partition("://")[2].lower() != hosts[0].lower():
            foreign = True
        if foreign and not _is_navigation(headers):
            return 403, "Only the page itself may ask."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "Only GET."
        given = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._token):
            return 403, "Not the address of this run: that is in the terminal that runs jumok view."
        return None

    def _is_ours(self, host: str) -> bool:
        """An address, localhost, or a name that was given; the port may be that of a tunnel."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        return _is_address(found[1].strip("[]")) or _bare(host) in self._names | {"localhost"}


def _bare(host: str) -> str:
    return host.rsplit(":", 1)[0].lower().rstrip(".")


def _is_navigation(headers: Any) -> bool:
    """A link that somebody followed: the page is opened, not read by another page."""
    return (
        headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and headers.get("origin") is None
    )


class _Answers:
    """Answers over HTTP.

    Args:
        desk: where questions wait.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def give(self, request: Request) -> Response:
        """Answer one request, or give it up when its asker leaves."""
        from starlette.responses import Response

        name, parameters = request.path_params["name"], dict(request.query_params)
        if len(parameters) < len(request.query_params.multi_items()):
            return _refusal(Unanswered("question", f"{name}: a parameter is given twice"))
        try:
            ticket = self._desk.ask(name, parameters)
        except Unanswered as error:
            return _refusal(error)
        left = asyncio.ensure_future(_left(request.receive))
        answer = asyncio.wrap_future(ticket.answer)
        try:
            both: set[asyncio.Future[Any]] = {answer, left}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                ticket.leave()
                # Its place is free only when it has really ended.
                await asyncio.wait({answer})
            return self._response(request, answer.result())
        except Unanswered as error:
            return _refusal(error)
        except (Stopped, asyncio.CancelledError):
            return Response(status_code=499)
        except Exception as error:
            if os.environ.get("JUMOK_DEBUG"):
                traceback.print_exc(file=sys.stderr)
            text = f"this is a fault in jumok ({type(error).__name__}: {error})"
            return _refusal(Unanswered("fault", text))
        finally:
            left.cancel()
            ticket.leave()
            self._desk.give_back(ticket)

    @staticmethod
    def _response(request: Request, answer: Answer) -> Response:
        draft = answer.fields.get("exact") is False
        cache = "no-store" if draft else "private, max-age=86400, immutable"
        far = request.client is not None and not _is_loopback(request.client.host)
        squeeze = far or not answer.arrays  # numbers go faster as they are, unless the way is long
        return _response(request, answer.to_bytes(), answer.media_type, cache, squeeze=squeeze)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _response(
    request: Request, data: bytes, kind: str, cache: str, *, squeeze: bool = True
) -> Response:
    """Bytes, compressed where that pays, or the word that the browser has them already."""
    from starlette.responses import Response

    tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
    headers = {"Cache-Control": cache, "ETag": tag, "Vary": "Accept-Encoding"}
    known = request.headers.get("if-none-match", "")
    if tag in [one.strip().removeprefix("W/") for one in known.split(",")]:
        return Response(status_code=304, headers=headers)
    if squeeze and len(data) > _SMALL and "gzip" in request.headers.get("accept-encoding", ""):
        data, headers["Content-Encoding"] = _squeezed(data), "gzip"
        headers["ETag"] = f"W/{tag}"
    return Response(data, headers=headers, media_type=kind)


@functools.lru_cache(maxsize=8)
def _squeezed(data: bytes) -> bytes:
    return gzip.compress(data, 4 if len(data) < 1 << 20 else 1, mtime=0)


def _refusal(error: Unanswered) -> Response:
    from starlette.responses import Response

    headers = {"Cache-Control": "no-store"}
    if error.code == "busy":
        headers["Retry-After"] = _RETRY_AFTER
    return Response(
        json_bytes(error.to_dict()), _STATUS.get(error.code, 500), headers, "application/json"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server:
    """The page on an address of this machine.

    Args:
        questions: who answers.
        host: address to listen at.
        port: of it; 0 for a free one.

    Attributes:
        url: where the page is, token included.

    Raises:
        OSError: the address cannot be had.
        FileNotFoundError: the page has not been built.
    """

    def __init__(self, questions: Questions, host: str = "127.0.0.1", port: int = 0) -> None:
        import uvicorn

        token = secrets.token_urlsafe(24)
        self._socket = _bound(host, port)
        port = self._socket.getsockname()[1]
        try:
            names = frozenset({_bare(host), socket.gethostname().lower()})
            self._app = application(questions, token, names=names)
        except BaseException:
            self._socket.close()
            raise
        shown = host
        if not host or (_is_address(host) and ipaddress.ip_address(host).is_unspecified):
            shown = "localhost"
        shown = f"[{shown}]" if ":" in shown else shown
        self.url = f"http://{shown}:{port}/{token}/"
        desk: Desk = self._app.state.desk

        class Ending(uvicorn.Server):
            """Gives up what is being answered before it waits for its connections."""

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                desk.close()
                await super().shutdown(sockets)

        self._server = Ending(
            uvicorn.Config(
                self._app,
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                http="h11",
                timeout_graceful_shutdown=1,
                timeout_keep_alive=30,
                backlog=2048,
            )
        )

    def run(self) -> None:
        """Serve until Ctrl-C, which is then raised as `KeyboardInterrupt`, or `stop`."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._app.state.desk.close()
            self._socket.close()

    def stop(self) -> None:
        """End `run`; from any thread."""
        self._server.should_exit = True


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(2048)  # from now on, so that whoever reads the address may come at once
    except BaseException:
        opened.close()
        raise
    return opened


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
