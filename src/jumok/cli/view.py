"""``jumok view``: the page, on a local address."""

import errno
import ipaddress
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jumok.cli.ending import Refusal
from jumok.cli.page import PageWish
from jumok.cli.printing import say

if TYPE_CHECKING:
    from jumok.lens.recording import Recording
    from jumok.view.questions import Questions


_TEXT_BROWSERS = {"www-browser", "links", "elinks", "lynx", "w3m"}


def view(
    recording: Annotated[Path, typer.Argument(help="A recording's file.", show_default=False)],
    against: Annotated[
        Path | None,
        typer.Argument(help="A second one, to compare with the first.", show_default=False),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="A folder with tokenizer.json, to name the tokens of a file that does not know "
            "its words.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
    html: Annotated[
        Path | None,
        typer.Option(help="Instead of serving it, write the page into one file."),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(help="With --html: heads whose single weights it holds first: 3.1,12.4."),
    ] = None,
) -> None:
    """Walk through the attention maps of a recording, as through a street map.

    The first line of the output is the page's address. Ctrl-C ends it.
    """
    from jumok.lens.recording import open_recording

    page = PageWish(html, heads, html is None, port, open_browser)
    page.check()
    files = [recording] if against is None else [recording, against]
    opened = [open_recording(file) for file in files]
    if tokenizer is not None:
        _label(opened, tokenizer)
    names = [file.name for file in files]
    if len(names) == 2 and names[0] == names[1]:
        names = [f"{file.absolute().parent.name}/{file.name}" for file in files]
    page.write(opened, names)
    page.show(opened, names, files, host)


def serve(questions: "Questions", *, host: str, port: int, open_browser: bool) -> None:
    """Serve the page until Ctrl-C; its address is the first line of stdout."""
    from jumok.view.server import Server

    if not 0 <= port < 1 << 16:
        raise Refusal(f"--port {port}: a port is a number from 0 to 65535")
    try:
        server = Server(questions, host, port)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise Refusal(str(error)) from error
        if error.errno == errno.EADDRINUSE:
            raise Refusal(f"port {port} at {host} is taken; --port 0 takes a free one") from error
        raise Refusal(
            f"can't listen at {host}, port {port}: {error.strerror or error}; --host takes an "
            "address of this machine"
        ) from error
    print(server.url, flush=True)
    if not _is_local(host):
        say(
            f"jumok: note: {host} is open to the network: whoever has the address above, which "
            "goes over it unencrypted, sees the recording"
        )
    if open_browser:
        _open_browser(server.url)
    server.run()


def _open_browser(url: str) -> None:
    """Open the page, but not in a browser that would take this terminal, and run no script."""
    try:
        name = str(getattr(webbrowser.get(), "name", ""))
    except webbrowser.Error:
        name = ""
    if Path(name).name in _TEXT_BROWSERS or not webbrowser.open(url):
        say("jumok: note: found no browser to open; open the address above in one")


def _label(opened: Sequence["Recording"], name: str) -> None:
    from jumok.tokens import Tokenizer

    folder = Path(name)
    if folder.is_file():
        folder = folder.parent
    tokens = Tokenizer.from_folder(folder)
    for one in opened:
        one.label(tokens)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
